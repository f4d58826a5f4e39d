//! Subject of a proof: a model, texts to read, steps to train; and the oracle's results for them.
use super::trace::{TensorTrace, disturbed, reported};
use crate::cases::{CaseStep, Document, ProofCase};
use crate::oracle::Oracle;
use crate::{ProofProgress, oracle};
use comm::Axis;
use layers::{Choice, Design, OptimizerKind, Shape, Window, counted};
use ops::{GradientScaling, RandomValues, SGD};
use parallel::{Batch, BuildContext, Layout, Result, Scheme, Sequence, Stages, dump, session};
use reference::{Sparsity, StaleTrainer, Staleness, Weights};
use std::fmt::{self, Arguments};
use tensor::{Cpu, F61, Key, Scalar, mix};

/// Initial weights of a program: the same under every layout.
pub(crate) const START: RandomValues = RandomValues { seed: 0 };

/// Least number of data ranks that a small subject is dealt to.
const DEALT: usize = 8;

/// Returns true if a text gives the same token by token as at once. False if tokens compete for experts, or
/// are dealt to experts by their place in the microbatch.
pub(crate) fn reads_alone(shape: &Shape) -> bool {
    shape.experts.is_none_or(|experts| experts.capacity.is_none() && !experts.forced)
}

/// Returns the number of microbatches of both steps under a layout.
fn microbatches(layout: &Layout) -> [usize; 2] {
    if layout.table().is_none() && layout.pipeline().schedule.updates_each() {
        return [layout.size(Axis::Pp) + 1, 1]; // enough to fill the pipeline; degrees grow with each update
    }
    layout.table().map_or([2, 1], |table| [table.sizes().microbatches; 2])
}

/// Subject of a proof, without the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// The model.
    pub model: Design,
    /// Texts whose logits are compared, each with the length of its prompt; the rest is fed token by token.
    /// For a model whose tokens are features, the outputs for the first microbatch of the first step are
    /// compared.
    pub texts: Vec<(Vec<u32>, usize)>,
    /// Batch and learning rate of each step.
    pub steps: Vec<(Batch, f64)>,
    /// The optimizer and the clip limit.
    pub optimizer: (OptimizerKind, GradientScaling),
    /// Size of the window, if the model's was narrowed.
    pub narrowed: Option<usize>,
    /// Age of the weights that microbatches read, if each of them is an update.
    pub stale: Option<Staleness>,
    /// The linear layers whose ranks send each other only some features, if there are any.
    pub sparse: Option<Sparsity>,
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
        let window = shape.window.map(|w| Window { size: w.size.min(2), sinks: w.sinks.min(1), ..w });
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
    /// Returns the sequences of features whose outputs are compared.
    pub(crate) fn given(&self) -> Vec<Sequence> {
        let first = self.steps.first().filter(|_| self.model.features().is_some());
        first.into_iter().flat_map(|(batch, _)| batch.microbatches()[0].clone()).collect()
    }
    /// Returns the number of compared rows of each text (its prompt's last token and all after it) or
    /// sequence of features.
    pub(crate) fn rows_read(&self) -> Vec<usize> {
        let texts = self.texts.iter().map(|(ids, prompt)| ids.len() - prompt + 1);
        texts.chain(self.given().iter().map(Sequence::tokens)).collect()
    }
    /// Returns the subject of a proof of this scheme: under a schedule that updates after each microbatch,
    /// one that trains without clipping, on weights as stale as the schedule's paper says; under sparse
    /// communication, one whose layers are sparse.
    #[must_use]
    pub fn under(&self, scheme: &Scheme<Cpu<F61>>) -> Self {
        Self { sparse: sparse(&self.model, scheme.layout), ..self.aged(scheme) }
    }
    fn aged(&self, scheme: &Scheme<Cpu<F61>>) -> Self {
        let (pipeline, stages) = (scheme.pipeline(), scheme.layout.size(Axis::Pp));
        let vertical = match pipeline.schedule.about().word {
            "pipedream" => false,
            "pipedream-vertical" => true,
            _ => return self.clone(),
        };
        let parts = self.model.parts(scheme.layout.size(Axis::Tp));
        let blocks = |stage| {
            let parts = pipeline.blocks(parts, stage, stages);
            let [first, end] =
                [parts.start, parts.end].map(|part| self.model.start(part, scheme.layout.size(Axis::Tp)));
            end - first
        };
        let stale = Some(Staleness { stages: (0..stages).map(blocks).collect(), vertical });
        Self { optimizer: (self.optimizer.0, GradientScaling::default()), stale, ..self.clone() }
    }
    /// Returns the oracle, with these weights.
    pub(super) fn oracle<S: Scalar>(&self, weights: Weights<S>) -> Oracle<S> {
        let (kind, GradientScaling { clip, .. }) = self.optimizer;
        let design = oracle::design(&self.model);
        let sparse = &self.sparse.clone().unwrap_or_default();
        match self.stale.clone() {
            None => Oracle::Latest(reference::Trainer::new(design, kind, clip, weights).sparse(sparse)),
            Some(stale) => Oracle::Stale(StaleTrainer::new(design, kind, stale, weights).sparse(sparse)),
        }
    }
    /// Returns the oracle's batch and learning rate of each step.
    pub(super) fn oracle_steps(&self) -> Vec<(Vec<Vec<reference::Sequence>>, f64)> {
        self.steps.iter().map(|(batch, lr)| (oracle::microbatches(batch), *lr)).collect()
    }
    /// Returns the sequences that the oracle reads.
    pub(super) fn oracle_texts(&self) -> Vec<reference::Sequence> {
        let text = |ids: &[u32]| reference::Sequence { ids: ids.to_vec(), ..reference::Sequence::default() };
        let texts = self.texts.iter().map(|(ids, _)| text(ids));
        texts.chain(self.given().iter().flat_map(oracle::documents)).collect()
    }
    /// Selects, from the logits of every token, those that a generation has.
    fn read<S: Copy>(&self, logits: Vec<S>) -> Vec<S> {
        if self.model.features().is_some() {
            return logits;
        }
        let wanted =
            self.texts.iter().flat_map(|(ids, prompt)| (0..ids.len()).map(move |i| i + 1 >= *prompt));
        let rows = logits.chunks(self.model.outputs()).zip(wanted).filter(|(_, wanted)| *wanted);
        rows.flat_map(|(row, _)| row.iter().copied()).collect()
    }
    /// Returns the initial weights of every layout's program, under the key in force, as the unsplit model
    /// has them.
    pub(super) fn start(&self) -> Result<Weights<F61>> {
        session::alone(&START, |at: BuildContext<Cpu<F61>>| {
            let mut model = Stages::new(&at, &self.model)?;
            Ok(dump::weights(model.params(), at.mesh)?.into_iter().collect())
        })
    }
    /// Returns the oracle's results from these weights, under the key in force. Calls `see` with everything
    /// that it computes.
    pub(super) fn truth(
        &self,
        weights: Weights<F61>,
        watch: &ProofProgress,
        see: &mut OracleObserver,
    ) -> TensorTrace {
        let (model, mut trace, texts) =
            (oracle::design(&self.model), TensorTrace::new(), self.oracle_texts());
        let shapes = model.shapes();
        let rows = tokens(&model, &texts, 0);
        watch("the oracle, the texts");
        let mut trainer = self.oracle(weights);
        let mut see_texts = |name: Arguments, x: &[F61]| see(0, &name.to_string(), &rows, x);
        let logits = model.logits_recorded(trainer.weights(), &texts, &mut see_texts);
        trace.push(("logits".into(), self.read(logits)));
        for (n, (batch, lr)) in self.oracle_steps().iter().enumerate() {
            watch(&format!("the oracle, step {n}"));
            let step = trainer.step_recorded(batch, *lr, &mut |m, name, x| {
                let rows = tokens(&model, &batch[m], batch[..m].iter().map(Vec::len).sum());
                see(n + 1, &name.to_string(), &rows, x);
            });
            reported(&mut trace, n, (step, self.stale.is_none()), (&shapes, trainer.weights()));
            trainer.replace(disturbed(shapes.clone(), n, trainer.weights()));
        }
        trace
    }
}

/// Returns the layers of a model that are sparse under a layout, if there are any.
fn sparse(model: &Design, layout: &Layout) -> Option<Sparsity> {
    let about = layout.strategies().into_iter().find(|about| about.choice == Choice::Features)?;
    let (device, mesh, ranks) =
        (kernels::meta_of::<Cpu<f32>>(), layout.ghost(0).ok()?, layout.size(Axis::Tp));
    let at = layout.place(&device, &mesh, &START);
    let parts = 0..model.parts(ranks);
    model.stage(&at, &[parts], None).ok()?;
    let built = at.built.borrow();
    let layers = built.iter().filter(|(_, by)| *by == about.name).map(|(name, _)| name.clone()).collect();
    Some(Sparsity { layers, ranks, percent: layout.number(about).unwrap_or(0) })
}

/// Callback for the oracle's values: the texts (0) or the step (from 1), the name, the (sequence, position)
/// of each row, and the rows.
pub(super) type OracleObserver<'a> = dyn FnMut(usize, &str, &[(usize, usize)], &[F61]) + 'a;

/// Returns the (sequence, position) of every token, with sequences numbered from `first`.
fn tokens(model: &reference::Design, sequences: &[reference::Sequence], first: usize) -> Vec<(usize, usize)> {
    let positions = |(b, s): (usize, &reference::Sequence)| (0..model.tokens(s)).map(move |p| (first + b, p));
    sequences.iter().enumerate().flat_map(positions).collect()
}

impl Subject {
    /// Describes the texts and the steps, in words.
    pub fn work(&self) -> String {
        let tokens = |m: &Vec<Sequence>| m.iter().map(Sequence::tokens).sum::<usize>();
        let step = |(n, (batch, _)): (usize, &(Batch, f64))| {
            let tokens: Vec<_> = batch.microbatches().iter().map(tokens).collect();
            let words: Vec<_> = tokens.iter().map(usize::to_string).collect();
            let one = counted(tokens[tokens.len() - 1], "token");
            let noun = one.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("; step {n} on {}{noun}", words.join(" + "))
        };
        let steps: String = self.steps.iter().enumerate().map(step).collect();
        let rows = self.given().len();
        let read = if rows > 0 { counted(rows, "sequence") } else { counted(self.texts.len(), "text") };
        format!("{read} read{steps}")
    }
    /// Describes the optimizer, in words.
    pub fn learner(&self) -> String {
        let (kind, GradientScaling { clip, loss }) = self.optimizer;
        let clipped = clip.map_or_else(String::new, |limit| format!(", clipped at {limit}"));
        let scaled = loss.map_or_else(String::new, |of| format!(", its loss scaled by 2^{}", of.log2));
        format!("{kind}{clipped}{scaled}")
    }
}

impl fmt::Display for Subject {
    /// Writes the shapes that run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}; {}", self.model, self.work(), self.learner())?;
        let Some(Sparsity { layers, percent, .. }) = &self.sparse else { return Ok(()) };
        let layers = counted(layers.len(), "layer");
        write!(f, "; {layers} without the weights of {percent} % of the features to other ranks")
    }
}
