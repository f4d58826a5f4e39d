//! What is proven: a model, texts to read, steps to train; and what the oracle says of them.
use super::trace::{Trace, disturbed, told};
use crate::program::START;
use crate::{Watch, bound, oracle};
use layers::model::shape::counted;
use layers::{Kind, Shape, Window};
use parallel::{At, Batch, Layout, Result, Sequence, Stages, dump, session};
use reference::Weights;
use std::fmt;
use tensor::{Cpu, F61, IGNORED, Scalar, mix};

/// To how many data ranks a small subject deals at least.
const DEALT: usize = 8;

/// What is to be proven, besides the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// The model.
    pub shape: Shape,
    /// Texts whose logits are compared, and how much of each is a prompt; the rest is fed token by token.
    pub texts: Vec<(Vec<u32>, usize)>,
    /// The batch of each step, and its learning rate.
    pub steps: Vec<(Batch, f64)>,
    /// The optimizer and the clip limit.
    pub optimizer: (Kind, Option<f64>),
    /// The window, where the model's was narrowed.
    pub narrowed: Option<usize>,
}

impl Subject {
    /// Two clipped steps of plain descent with rate 1, drawn by hash: what hides nothing. Adam would hide uniform scale.
    /// The first step has two microbatches of unequal sequences, some of which pack two documents; the second has one,
    /// of short ones. Some targets are ignored. A window is narrowed to 2 tokens, since the documents are short. All of
    /// it deals to eight data ranks, so that it is the same under every layout of up to so many; more get more sequences.
    ///
    /// # Errors
    /// If the layout has more data ranks than can be dealt to.
    pub fn small(shape: Shape, layout: &Layout) -> Result<Self> {
        let window = shape.window.map(|w| Window { size: w.size.min(2), sinks: w.sinks.min(1), ..w });
        let narrowed = window.filter(|_| window != shape.window).map(|w| w.size);
        let (shape, data) = (Shape { window, ..shape }, layout.size(comm::Axis::SEQUENCES).max(DEALT));
        let longest = shape.context().unwrap_or(usize::MAX);
        let id = |salt: usize, i: usize| (mix((salt * 1000 + i) as u64) % shape.vocabulary as u64) as u32;
        let document = |salt: usize, tokens: usize| {
            let ids: Vec<_> = (0..tokens.min(longest)).map(|i| id(salt, i)).collect();
            let mut targets: Vec<_> = (0..ids.len()).map(|i| id(salt + 500, i)).collect();
            if salt % 4 == 1 {
                targets[0] = IGNORED;
            }
            (ids, targets)
        };
        let long = |b: usize| {
            let two = [document(b, [2, 1, 2, 4][b % 4]), document(b + 7, 2)];
            Sequence::packed(&two[..=usize::from(b % 8 == 2)])
        };
        let short = |b: usize| Sequence::packed(&[document(31 + b, if b < data / 2 { 1 } else { 2 })]);
        let steps = vec![
            (Batch::new((0..=2 * data).map(long).collect(), 2)?, 1.0),
            (Batch::new((0..data).map(short).collect(), 1)?, 1.0),
        ];
        let text = |s: &Sequence| {
            let first = s.ids[..s.documents[0]].to_vec();
            let prompt = first.len().div_ceil(2);
            (first, prompt)
        };
        let texts = steps[0].0.microbatches()[0].iter().map(text).collect();
        Ok(Self { shape, texts, steps, optimizer: (Kind::Sgd, Some(0.5)), narrowed })
    }
    pub(super) fn oracle(&self) -> reference::Model {
        oracle::model(&self.shape)
    }
    pub(super) fn oracle_optimizer(&self) -> reference::Optimizer {
        oracle::optimizer(self.optimizer.0)
    }
    pub(super) fn oracle_steps(&self) -> Vec<(Vec<Vec<reference::Sequence>>, f64)> {
        self.steps.iter().map(|(batch, lr)| (oracle::microbatches(batch), *lr)).collect()
    }
    pub(super) fn oracle_texts(&self) -> Vec<reference::Sequence> {
        let text = |ids: &[u32]| reference::Sequence { ids: ids.to_vec(), targets: Vec::new() };
        self.texts.iter().map(|(ids, _)| text(ids)).collect()
    }
    /// log₂ of the probability that a wrong program passes under so many keys; none where the bound says nothing.
    pub fn bound_log2(&self, keys: usize) -> Option<f64> {
        let (model, optimizer) = (self.oracle(), self.oracle_optimizer());
        let one = bound::log2_per_key(
            &model,
            optimizer,
            self.optimizer.1,
            &self.oracle_texts(),
            &self.oracle_steps(),
        );
        (one < 0.0).then_some(one * keys as f64)
    }
    /// Of every token's logits, those that a generation has.
    fn read<S: Copy>(&self, logits: Vec<S>) -> Vec<S> {
        let wanted =
            self.texts.iter().flat_map(|(ids, prompt)| (0..ids.len()).map(move |i| i + 1 >= *prompt));
        let rows = logits.chunks(self.shape.vocabulary).zip(wanted).filter(|(_, wanted)| *wanted);
        rows.flat_map(|(row, _)| row.iter().copied()).collect()
    }
    /// The weights that every layout's program begins with, under the key in force, as the unsplit model has them.
    pub(super) fn start(&self) -> Result<Weights<F61>> {
        session::alone(&START, |at: At<Cpu<F61>>| {
            let mut model = Stages::new(&at, &self.shape)?;
            Ok(dump::weights(model.params(), at.mesh)?.into_iter().collect())
        })
    }
    /// What the oracle gives under the key in force, from these weights.
    pub(super) fn truth(&self, weights: Weights<F61>, watch: &Watch) -> Trace {
        let (model, mut trace) = (self.oracle(), Trace::new());
        let steps = self.oracle_steps();
        watch("the oracle, the texts");
        trace.push(("logits".into(), self.read(model.logits(&weights, &self.oracle_texts()))));
        let shapes = model.shapes();
        let mut trainer = reference::Trainer::new(model, self.oracle_optimizer(), self.optimizer.1, weights);
        for (n, (batch, lr)) in steps.iter().enumerate() {
            watch(&format!("the oracle, step {n}"));
            let mut step = trainer.step(batch, *lr);
            let loss = step.losses.iter().fold(F61::ZERO, |sum, &loss| sum + loss);
            told(&mut trace, n, (loss, step.norm2), &mut step.gradients, (&shapes, trainer.weights()));
            trainer.replace(disturbed(shapes.clone(), n, trainer.weights()));
        }
        trace
    }
}

impl Subject {
    /// What is read and learnt, in words.
    pub fn work(&self) -> String {
        let tokens = |m: &Vec<Sequence>| m.iter().map(|s| s.ids.len()).sum::<usize>().to_string();
        let step = |(n, (batch, _)): (usize, &(Batch, f64))| {
            let tokens: Vec<_> = batch.microbatches().iter().map(tokens).collect();
            format!("; step {n} on {} tokens", tokens.join(" + "))
        };
        let steps: String = self.steps.iter().enumerate().map(step).collect();
        format!("{} read{steps}", counted(self.texts.len(), "text"))
    }
    /// The optimizer, in words.
    pub fn learner(&self) -> String {
        let (kind, clip) = self.optimizer;
        let kind = match kind {
            Kind::Sgd => "SGD".to_string(),
            Kind::AdamW { decay, .. } if decay > 0.0 => format!("AdamW, decay {decay}"),
            Kind::AdamW { .. } => "AdamW".to_string(),
        };
        kind + &clip.map_or_else(String::new, |limit| format!(", clipped at {limit}"))
    }
}

impl fmt::Display for Subject {
    /// The shapes that run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}; {}", self.shape, self.work(), self.learner())
    }
}
