//! Small subjects: two steps, for layouts of up to eight data ranks, or for one layout alone.
use super::case::{CaseStep, ProofCase};
use super::document::Document;
use crate::Subject;
use crate::subject::reads_alone;
use comm::Axis;
use layers::{Design, Shape, Window};
use ops::SGD;
use parallel::{Batch, Layout, Result, Sequence};
use tensor::{Key, mix};

/// Least number of data ranks that a small subject is dealt to.
const DEALT: usize = 8;

/// Returns the number of microbatches of both steps under a layout.
fn microbatches(layout: &Layout) -> [usize; 2] {
    if layout.table().is_none() && layout.pipeline().schedule.updates_each() {
        return [layout.size(Axis::Pp) + 1, 1]; // enough to fill the pipeline; degrees grow with each update
    }
    layout.table().map_or([2, 1], |table| [table.sizes().microbatches; 2])
}

impl Subject {
    /// Creates two clipped steps of plain SGD with rate 1, drawn by hash. SGD hides no error; Adam would hide
    /// a uniform scale. The first step has two microbatches of unequal sequences, some of which pack two
    /// documents; the second has one, of short sequences. Some targets are ignored. A window is narrowed to 2
    /// tokens, since the documents are short. All of it deals to eight data ranks, so that it is the same
    /// under every layout of up to eight; layouts with more data ranks get more sequences. Under a user's
    /// schedule table, both steps have the table's number of microbatches, and few sequences in each.
    ///
    /// # Errors
    /// If the layout has more data ranks than sequences can be dealt to.
    pub fn small(model: impl Into<Design>, layout: &Layout) -> Result<Self> {
        if layout.table().is_some() {
            return Self::smallest(model, layout); // it may have many microbatches, and is this layout's only
        }
        Self::of(model, layout.tokens().data_ranks().max(DEALT), microbatches(layout))
    }
    /// Creates the smallest subject of a layout: for a model that is proven under that layout only. A smaller
    /// subject makes a surer proof, because fewer values could collide by chance.
    ///
    /// # Errors
    /// If the layout has more data ranks than sequences can be dealt to.
    pub fn smallest(model: impl Into<Design>, layout: &Layout) -> Result<Self> {
        Self::of(model, layout.tokens().data_ranks(), microbatches(layout))
    }
    fn of(model: impl Into<Design>, data: usize, microbatches: [usize; 2]) -> Result<Self> {
        match model.into() {
            Design::Transformer(shape) => Self::of_ids(shape, data, microbatches),
            model => Self::of_features(model, data, microbatches[0]),
        }
    }
    fn of_features(model: Design, data: usize, microbatches: usize) -> Result<Self> {
        let (width, outputs) = (model.width(0), model.outputs());
        let number = |salt: usize, i: usize| mix(mix(salt as u64) ^ i as u64) as u32;
        let features = |salt: usize, n: usize| -> Vec<f32> {
            (0..n).map(|i| (number(salt, i) % 1024) as f32 / 256.0 - 2.0).collect()
        };
        let sequence = |salt: usize| {
            if !model.gives_rows() {
                return Sequence::example(features(salt, width), number(salt, width) % outputs as u32);
            }
            let tokens = 2 + salt % 3;
            Sequence::rows(tokens, features(salt, tokens * width), features(salt + 500, tokens * outputs))
        };
        let batch = |step: usize| {
            let sequences = (0..=microbatches * data).map(|b| sequence(step * 1000 + b)).collect();
            Ok((Batch::new(sequences, microbatches)?, 1.0))
        };
        let steps = (0..2).map(batch).collect::<Result<_>>()?;
        Ok(Self {
            model,
            texts: Vec::new(),
            steps,
            optimizer: (SGD, Some(0.5).into()),
            narrowed: None,
            stale: None,
            sparse: None,
        })
    }
    fn of_ids(shape: Shape, data: usize, [first, second]: [usize; 2]) -> Result<Self> {
        let window = shape.window.map(|w| Window { size: w.size.min(2), sinks: w.sinks.min(1) });
        let narrowed = window.filter(|_| window != shape.window).map(|w| w.size);
        let shape = Shape { window, ..shape };
        let longest = shape.context().unwrap_or(usize::MAX);
        let document =
            |b: usize, tokens: usize| Document::new((0..tokens.min(longest)).map(|i| i > 0 || b % 4 != 3));
        let tokens = |b: usize| [2, 1, 2, 4][b % 4];
        let long = |b| [document(b, tokens(b)), document(b + 1, 2)][..=usize::from(b % 8 == 2)].to_vec();
        let short = |b| vec![document(b + 3, if b < data / 2 { 1 } else { 2 })];
        let step = |microbatches, sequences| CaseStep { microbatches, sequences };
        let steps = vec![
            step(first, (0..=first * data).map(long).collect()),
            step(second, (0..second * data).map(short).collect()),
        ];
        let text = |tokens: usize| (tokens, tokens.div_ceil(2));
        let texts = (0..data.max(4)).map(|b| text(tokens(b).min(longest)));
        let texts = texts.filter(|_| reads_alone(&shape)).collect();
        let (optimizer, lr, clip, layout) = (SGD, 1.0, Some(0.5), Layout::UNSPLIT);
        let case =
            ProofCase { key: Key(0), layout, shape, optimizer, lr, clip, loss_scale: None, steps, texts };
        Ok(Self { narrowed, ..case.subject()? })
    }
}
