//! Subject of a proof: a model, texts to read, steps to train; and the oracle's results for them.
use super::trace::{TensorTrace, disturbed, reported};
use crate::oracle::{self, Oracle};
use comm::Axis;
use layers::{Choice, Design, OptimizerKind, Shape, counted};
use ops::{GradientScaling, RandomValues};
use parallel::{Batch, BuildContext, Layout, Result, Scheme, Sequence, Stages, dump, session};
use reference::{Sparsity, StaleTrainer, Staleness, Weights};
use std::fmt::{self, Arguments};
use tensor::{Cpu, F61, Scalar};

/// Callback that receives a description of each activity.
pub type ProofProgress<'a> = dyn Fn(&str) + Sync + 'a;

/// Initial weights of a program: the same under every layout.
pub(crate) const START: RandomValues = RandomValues { seed: 0 };

/// Returns true if a text gives the same token by token as at once. False if tokens compete for experts, or
/// are dealt to experts by their place in the microbatch.
pub(crate) fn reads_alone(shape: &Shape) -> bool {
    shape.experts.is_none_or(|experts| experts.capacity.is_none() && !experts.forced)
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
        let trainer = reference::Trainer::new(design, kind, clip, weights).sparse(sparse);
        match self.stale.clone() {
            None => Oracle::Latest(trainer),
            Some(stale) => Oracle::Stale(StaleTrainer::new(trainer, stale)),
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
