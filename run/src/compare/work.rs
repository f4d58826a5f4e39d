//! The work of a comparison.
use super::partitioning::Partitioning;
use crate::device::DeviceName;
use crate::price::PriceRun;
use crate::train::settings::{Settings, sequences};
use layers::{OptimizerKind, counted};
use models::digits::Digits;
use models::generate::Prompts;
use models::text::Corpus;
use models::{Model, TrainableModel};
use ops::{GradientScaling, LossScaling};
use parallel::dtype::{DtypeName, RunDevice};
use parallel::pipeline::Pipeline;
use parallel::{Batch, BuildContext, Layout, Network, Result, Sequence, Trainer, bail, price};
use prove::Subject;
use tensor::Device;

/// The longest time that a row may be measured: an hour, in seconds.
const LONGEST: f64 = 3600.0;
/// The most microbatches of a step.
const MOST_MICROBATCHES: usize = 1024;

/// Sizes of the work.
const PROMPTS: usize = 4;
const PROMPT: usize = 16;
const NEW: usize = 32;
const SEQUENCES: usize = 4;
/// Tokens of a step, however many sequences its microbatches and data ranks need: each sequence has a few,
/// and no more than most models have positions for.
const TOKENS: usize = 256;
const SEQ: [usize; 2] = [16, 64];
/// Limit of the gradient's norm in a training step.
const CLIP: f64 = 1.0;
/// Learning rate of a step.
pub const LR: f64 = 0.1;
/// Models with more parameters give the field one short sequence instead of the whole batch.
const LARGE: usize = 20_000_000;
const LARGE_TOKENS: usize = 16;

/// A comparison to run.
pub struct Comparison<'a> {
    /// The model.
    pub model: &'a TrainableModel,
    /// Source of prompts and sequences; for a classifier, which does not generate text, its pictures.
    pub data: Data<'a>,
    /// Partitionings besides the unsplit one, which always comes first.
    pub ways: Vec<Partitioning>,
    /// True if training is compared, too.
    pub learns: bool,
    /// Network between the ranks of the timed runs; the checks run without it. In a trace each row is a run.
    pub network: Network,
    /// Number of microbatches of a training step.
    pub microbatches: usize,
    /// The optimizer of a training step.
    pub optimizer: OptimizerKind,
    /// Total seconds that each row is measured; 0 for one run.
    pub seconds: f64,
}

/// Data that the model reads and learns.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// A text.
    Text(&'a Model, &'a Corpus),
    /// Pictures.
    Digits(&'a Digits),
}

impl Comparison<'_> {
    /// Checks the work before anything runs.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn check(&self) -> Result<()> {
        if !(0.0..=LONGEST).contains(&self.seconds) {
            bail!("--seconds is {}; it must be 0 to {LONGEST}", self.seconds);
        }
        if !(1..=MOST_MICROBATCHES).contains(&self.microbatches) {
            bail!("--microbatches is {}; it must be 1 to {MOST_MICROBATCHES}", self.microbatches);
        }
        Ok(())
    }
    /// The compared training step under a layout, to be priced.
    ///
    /// # Errors
    /// If the data has no step of these sizes.
    pub fn step(&self, layout: &Layout, (device, number): (DeviceName, DtypeName)) -> Result<PriceRun> {
        let batch = batch(self)?;
        let sequences = || batch.microbatches().iter().flatten();
        let settings = Settings {
            seq: sequences().map(Sequence::tokens).max().unwrap_or(1),
            batch_size: sequences().count(),
            microbatches: self.microbatches,
            optimizer: self.optimizer,
            number,
            device,
            ..Settings::default()
        };
        Ok(PriceRun { design: self.model.design.clone(), experts: None, settings, layout: *layout })
    }
    /// The most data ranks of any layout.
    pub(super) fn data_ranks(&self) -> usize {
        self.ways.iter().map(|way| way.layout.tokens().data_ranks()).max().unwrap_or(1)
    }
    /// All ways, each once, an unsplit one first.
    pub(super) fn all_ways(&self) -> Vec<Partitioning> {
        let mut ways: Vec<Partitioning> = Vec::new();
        let first = self.ways.iter().all(|way| way.layout.ranks() > 1).then(|| Layout::default().into());
        for way in first.into_iter().chain(self.ways.iter().copied()) {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }
}

/// The prompts of the inference work: at least one for every data rank.
pub(super) fn request(work: &Comparison, model: &Model, corpus: &Corpus) -> Prompts {
    let room = model.config.positions;
    let prompt = PROMPT.min(room / 2).max(1);
    let pairs = corpus.batch(1, 0, PROMPTS.max(work.data_ranks()), prompt);
    let prompts = pairs.into_iter().map(|(ids, _)| ids).collect();
    Prompts { prompts, max_new: NEW.min(room - prompt), ..Prompts::default() }
}

/// The batch of the training work, the same for all layouts: each microbatch has a sequence for every data
/// rank.
pub(super) fn batch(work: &Comparison) -> Result<Batch> {
    let n = SEQUENCES.max(work.microbatches * work.data_ranks());
    let sequences = match work.data {
        Data::Text(model, corpus) => {
            let seq = (TOKENS / n).clamp(SEQ[0], SEQ[1]);
            sequences(corpus.batch(0, 0, n, seq.min(model.config.positions)))
        }
        Data::Digits(digits) => {
            (0..n.max(SEQ[1]).min(digits.train.len())).map(|i| digits.train.example(i)).collect()
        }
    };
    Batch::new(sequences, work.microbatches)
}

/// Subject of the proof under a layout: the generated texts and the batch. A large model gets a short
/// sequence for each data rank instead, to read and to learn, and a note on it.
pub(super) fn subject(
    work: &Comparison,
    layout: &Layout,
    texts: Vec<(Vec<u32>, usize)>,
) -> Result<(Subject, Option<String>)> {
    let design = &work.model.design;
    let subject = |texts, batch| Subject {
        model: design.clone(),
        texts,
        steps: vec![(batch, LR)],
        optimizer: (work.optimizer, Some(CLIP).into()),
        narrowed: None,
        stale: None,
        sparse: None,
    };
    let Data::Text(model, corpus) = work.data else { return Ok((subject(texts, batch(work)?), None)) };
    if price::parameters(design)? <= LARGE {
        return Ok((subject(texts, batch(work)?), None));
    }
    let ranks = layout.tokens().data_ranks();
    let tokens = LARGE_TOKENS.min(model.config.positions);
    let pairs = corpus.batch(0, 0, ranks, tokens);
    let texts = pairs.iter().map(|(ids, _)| (ids.clone(), tokens.div_ceil(2))).collect();
    let note = format!("the field was given {} of {tokens} tokens", counted(ranks, "sequence"));
    Ok((subject(texts, Batch::new(sequences(pairs), 1)?), Some(note)))
}

/// Returns true if training under a layout is compared with its own run in f64: it is on stale weights, or on
/// fewer.
pub(super) fn has_own_truth(layout: &Layout) -> bool {
    layout.pipeline().schedule.updates_each() || layout.is_sparse()
}

pub(super) fn trainer<D: RunDevice>(work: &Comparison, at: &BuildContext<D>) -> Result<Trainer<D>> {
    Trainer::new(at, &work.model.design, optimizer::<D>(work, &at.pipeline))
}

/// The optimizer of training rows under a pipeline.
pub(super) fn optimizer<D: Device>(
    work: &Comparison,
    pipeline: &Pipeline,
) -> (OptimizerKind, GradientScaling) {
    let loss = LossScaling::usual::<D::Elem>();
    (work.optimizer, GradientScaling { clip: pipeline.clip(Some(CLIP)), loss })
}
