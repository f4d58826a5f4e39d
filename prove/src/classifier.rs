//! The same proof of a plain classifier: its logits, then two training steps.
use crate::program::START;
use crate::proof::{on_host, under_keys, world};
use crate::trace::{Judge, Named, disturbed, seen, told};
use crate::{Verdict, Watch, bound, locate, oracle};
use comm::{Axis, World};
use kernels::{Kernels, Meta};
use layers::{Classifier, Kind};
use parallel::At;
use parallel::{ClassifierTrainer, Examples, Layout, Result, budget, classify, dump, price, session};
use reference::Degree;
use reference::{Updates, Weights};
use std::fmt;
use tensor::{Cpu, F61, Key, Scalar, mix};

/// What is to be proven of a classifier, besides the layout. The learning rate is 1.
#[derive(Clone, Debug)]
pub struct ClassifierSubject {
    /// Input features, features between, classes.
    pub sizes: Vec<usize>,
    /// How many examples there are in each microbatch of each step.
    pub steps: Vec<Vec<usize>>,
    /// The optimizer and the clip limit.
    pub optimizer: (Kind, Option<f64>),
}

impl ClassifierSubject {
    /// Two clipped steps of plain descent on two microbatches of unequal sizes.
    #[must_use]
    pub fn small(sizes: Vec<usize>, layout: &Layout) -> Self {
        let data = layout.size(Axis::SEQUENCES);
        Self {
            sizes,
            steps: vec![vec![data + 2, data], vec![data, data + 1]],
            optimizer: (Kind::Sgd, Some(0.5)),
        }
    }
    fn classes(&self) -> usize {
        *self.sizes.last().expect("a classifier has sizes")
    }
    fn oracle(&self) -> reference::Classifier {
        reference::Classifier { sizes: self.sizes.clone() }
    }
    /// The microbatches of a step, drawn by hash.
    fn examples<S: Scalar>(&self, step: usize) -> Vec<Examples<S>> {
        let microbatch = |(m, &rows): (usize, &usize)| {
            let hash = |i: usize| mix(mix((step * 1000 + m) as u64) ^ i as u64);
            let x = (0..rows * self.sizes[0]).map(|i| S::sample(hash(i), 1.0)).collect();
            let label = |i: usize| (hash(i) % self.classes() as u64) as u32;
            Examples { x, labels: (0..rows).map(label).collect() }
        };
        self.steps[step].iter().enumerate().map(microbatch).collect()
    }
    /// All examples of a step at once.
    fn all<S: Scalar>(&self, step: usize) -> Examples<S> {
        let all = self.examples(step);
        Examples {
            x: all.iter().flat_map(|m: &Examples<S>| m.x.iter().copied()).collect(),
            labels: all.iter().flat_map(|m| m.labels.iter().copied()).collect(),
        }
    }
    /// The weights that every layout's program begins with, under the key in force, as the unsplit classifier has them.
    fn start(&self) -> Result<Weights<F61>> {
        session::alone(&START, |at: At<Cpu<F61>>| {
            let mut model = Classifier::shard(&at, Axis::LAYERS, &self.sizes)?;
            Ok(dump::weights(model.params(), at.mesh)?.into_iter().collect())
        })
    }
    /// What the oracle gives from these weights, and goes on from `next` of those after each step.
    fn truth<S: Scalar>(
        &self,
        start: Weights<S>,
        next: impl Fn(usize, &Weights<S>) -> Weights<S>,
    ) -> Named<S> {
        let (model, first) = (self.oracle(), self.all(0));
        let mut trace = vec![("logits".to_string(), model.logits(&start, &first.x))];
        let (kind, clip) = self.optimizer;
        let mut updates = Updates::new(model.shapes(), oracle::optimizer(kind), clip, start);
        for n in 0..self.steps.len() {
            let Examples { x, labels } = self.all(n);
            let (loss, mut gradients) = model.gradients(updates.weights(), &x, &labels, labels.len());
            let norm2 = updates.apply(&gradients, 1.0);
            told(&mut trace, n, (loss, norm2), &mut gradients, (&model.shapes(), updates.weights()));
            updates.replace(next(n, updates.weights()));
        }
        trace
    }
    /// log₂ of the probability that a wrong program passes under so many keys; none where the bound says nothing.
    pub fn bound_log2(&self, keys: usize) -> Option<f64> {
        let random = || bound::variables(self.oracle().shapes());
        let _ = Degree::take_tally();
        let trace = self.truth(random(), |_, _| random()); // what was added makes them independent
        let output = trace.into_iter().flat_map(|(_, x)| x).map(Degree::cleared).fold(0.0, f64::max);
        let one = bound::log2_of_tally(output, self.steps.len());
        (one < 0.0).then_some(one * keys as f64)
    }
}

impl fmt::Display for ClassifierSubject {
    /// The shapes that run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |all: &[usize], by| all.iter().map(usize::to_string).collect::<Vec<_>>().join(by);
        write!(f, "a classifier of sizes {}", joined(&self.sizes, "-"))?;
        for (n, microbatches) in self.steps.iter().enumerate() {
            write!(f, "; step {n} on {} examples", joined(microbatches, " + "))?;
        }
        Ok(())
    }
}

/// The layout's program on one rank, on any device; what is compared is shown as it comes.
fn program<D: Kernels<Wide = D>>(
    subject: &ClassifierSubject,
    at: &At<D>,
    see: &mut dyn FnMut(String, Vec<D::Elem>),
) -> Result<()> {
    let mut trainer = ClassifierTrainer::new(at, &subject.sizes, subject.optimizer)?;
    see("logits".into(), trainer.logits(&subject.all(0))?.read().unwrap_or_default());
    for n in 0..subject.steps.len() {
        let report = trainer.step(&subject.examples(n), 1.0)?;
        seen(see, n, &report, trainer.parts().0.params(), at.device, at.mesh)?;
    }
    Ok(())
}

/// As [`bytes`](super::bytes).
fn bytes(subject: &ClassifierSubject, layout: &Layout) -> Result<u128> {
    let (data, _key) = (layout.size(Axis::SEQUENCES), Key(0).enter()); // examples are drawn, though nobody looks at them
    let rows = |rank| subject.steps.iter().flatten().map(move |&rows| parallel::deal(rows, rank, data).len());
    let dealt = |rank| Ok(rows(rank).collect::<Vec<_>>());
    let ranks =
        price::peak_of_all(layout, dealt, |at: At<Meta<Cpu<F61>>>| program(subject, &at, &mut |_, _| ()))?;
    let sizes = subject.oracle().shapes().into_iter().map(|(_, [rows, cols])| rows * cols).collect();
    let logits = subject.steps[0].iter().sum::<usize>() * subject.classes();
    Ok(ranks.all + on_host(layout, &[(sizes, 2 * subject.steps.len()), (vec![logits], 1)]))
}

/// Proves one layout of a classifier under these keys, without the bound.
///
/// # Errors
/// If the layout does not fit the sizes, or a rank fails.
pub fn prove_classifier(subject: &ClassifierSubject, layout: &Layout, keys: &[Key]) -> Result<Verdict> {
    prove_classifier_in(&world(layout)?, subject, layout, keys)
}

/// Proves a classifier under a layout in a world of the layout's ranks that may be on trial (`World::on_trial`), or slow.
///
/// # Errors
/// As [`prove_classifier`].
pub fn prove_classifier_in(
    world: &World,
    subject: &ClassifierSubject,
    layout: &Layout,
    keys: &[Key],
) -> Result<Verdict> {
    classify::fits(layout, &subject.sizes)?;
    let one = |key: Key| {
        let _key = key.enter();
        let truth = subject.truth(subject.start()?, |n, w| disturbed(subject.oracle().shapes(), n, w));
        session::run((layout, world), &START, |at: At<Cpu<F61>>| {
            let mut judge = Judge::new(&truth, 0..truth[0].1.len(), at.mesh.rank());
            program(subject, &at, &mut |name, whole| judge.sees(&name, &whole))?;
            Ok(judge.compared())
        })
    };
    under_keys((layout, subject), keys, || bytes(subject, layout), &one)
}

/// Proves one layout of a classifier under these keys, and says how surely; `watch` is told what is being done.
///
/// # Errors
/// As [`prove_classifier`], and if the machine has not the memory for it, before any of it is taken.
pub fn certify_classifier(
    subject: &ClassifierSubject,
    layout: &Layout,
    keys: &[Key],
    watch: &Watch,
) -> Result<Verdict> {
    classify::fits(layout, &subject.sizes)?;
    budget::fits(format_args!("proving {layout}"), bytes(subject, layout)?)?;
    watch(&format!("proving {layout}"));
    let mut verdict = prove_classifier(subject, layout, keys)?;
    if let Some(first) = &mut verdict.first_difference {
        first.hint = locate::hint(&first.name, &first.collectives, &layout.strategies(), &[]);
    }
    watch("bounding the probability of an error");
    Ok(Verdict { bound_log2: subject.bound_log2(keys.len()), ..verdict })
}
