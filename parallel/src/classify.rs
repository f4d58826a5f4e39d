//! One training step of a classifier, and how often it is right: examples dealt over the data ranks.
//!
//! ```text
//! loss     = Σ over microbatches and data ranks of each example's loss ÷ all examples of the step
//! accuracy = examples whose largest logit is their label's ÷ all examples
//! ```
//!
//! As in `trainer.rs`, a step is cut into microbatches first and each is dealt then; each gradient is summed over the
//! data axis once a step. A data rank may be dealt no example: its partial sums are 0. Logits are put together from the
//! tensor ranks where accuracy is asked for, and nowhere else.
use crate::bail;
use crate::layout::LayoutError;
use crate::trainer::Ending;
use crate::{Layout, Report, Result, STEP, deal};
use comm::{Axis, Mesh, Reduce};
use kernels::Kernels;
use layers::model::classifier;
use layers::{Builder, Classifier, Cx, Kind, Optimizer, Wide};
use std::iter::repeat_n;
use std::ops::Range;
use tensor::{Category, Ids, Real, Scalar, Tensor};

/// The most numbers that a classifier's parameters, or the features of a step, can have.
pub const MOST: u128 = 1 << 30;

/// Pixels, features between, classes.
pub fn sizes(pixels: usize, hidden: &[usize], classes: usize) -> Vec<usize> {
    [&[pixels], hidden, &[classes]].concat()
}

/// Whether a layout's ranks can share a classifier of these sizes, and whether it can be at all.
///
/// # Errors
/// One sentence on what does not fit.
pub fn fits(layout: &Layout, sizes: &[usize]) -> Result<()> {
    if sizes.contains(&0) {
        bail!("a hidden size is 0; each must be at least 1");
    }
    let parameters: u128 = sizes.windows(2).map(|s| (s[0] as u128 + 1) * s[1] as u128).sum();
    if parameters > MOST {
        bail!("the sizes {sizes:?} make {parameters} parameters; {MOST} is the most");
    }
    let (axis, ranks, shared) = (Axis::Tp, layout.size(Axis::Tp), classifier::shared(sizes));
    let Some(bad) = shared.iter().find(|size| !size.is_multiple_of(ranks)) else { return Ok(()) };
    let possible = layout.possible(axis, |n| shared.iter().all(|size| size.is_multiple_of(n)));
    Err(LayoutError::misfit((axis, ranks), &format!("{bad} hidden features"), &possible).into())
}

/// Examples with their labels, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Examples<E> {
    /// `X[B,F]`, row by row.
    pub x: Vec<E>,
    /// What each row shows, `[B]`.
    pub labels: Vec<u32>,
}

/// A classifier with its optimizer, on this rank.
pub struct ClassifierTrainer<D: Kernels> {
    device: D,
    features: usize,
    classes: usize,
    model: Classifier<D>,
    ending: Ending<D>,
    spare: Cx<D>, // of a microbatch that is back: the next one's is made in its memory
}

impl<D: Kernels> ClassifierTrainer<D> {
    /// Builds this rank's part of a classifier of these sizes: input features, features between, classes.
    ///
    /// # Errors
    /// If the ranks do not fit the sizes, or there are no such values.
    pub fn new(at: &Builder<D>, sizes: &[usize], optimizer: (Kind, Option<f64>)) -> Result<Self> {
        let model = Classifier::shard(&at.learning(), Axis::LAYERS, sizes)?;
        let (device, ending, spare) = (at.device.clone(), Ending::new(at, optimizer)?, Cx::default());
        let (features, classes) = (sizes[0], sizes[sizes.len() - 1]);
        Ok(Self { device, features, classes, model, ending, spare })
    }
    /// One step on microbatches that every rank is given whole: their mean loss and the norm², on every rank.
    ///
    /// # Errors
    /// If a label is no class, or ranks do not meet.
    ///
    /// # Panics
    /// If there is no microbatch, or one has not as many rows as labels.
    pub fn step(&mut self, microbatches: &[Examples<D::Elem>], lr: f64) -> Result<Report<D>> {
        let _span = self.ending.mesh.span(format_args!("{STEP}{}", self.ending.optimizer.steps() + 1));
        let all = microbatches.iter().map(|m| m.labels.len()).sum();
        let (mut loss, mut first) = (None, 0);
        for (microbatch, examples) in microbatches.iter().enumerate() {
            let mine = self.deal(examples.labels.len());
            let cx = std::mem::take(&mut self.spare)
                .then_train(microbatch, repeat_n(1, mine.len()), all)
                .numbered_from(first + mine.start)
                .profiled(&self.device);
            let labels = Ids::targets(self.device.place(), &examples.labels[mine.clone()], self.classes)?;
            let span = self.ending.mesh.span(format_args!("forward {microbatch}"));
            let addend = self.model.forward(&cx, self.rows(examples, mine), labels)?;
            drop(span);
            let span = self.ending.mesh.span(format_args!("backward {microbatch}"));
            self.model.backward(&cx)?;
            drop(span);
            self.spare = cx;
            loss = Some(match loss.take() {
                None => addend,
                Some(before) => before + &addend,
            });
            first += examples.labels.len();
        }
        self.ending.finish(loss.expect("a microbatch"), |params| self.model.list(params), lr)
    }
    /// Logits `[B, classes]` of all examples, the same on every rank: nothing is dealt.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn logits(&self, examples: &Examples<D::Elem>) -> Result<Tensor<D>> {
        let rows = 0..examples.labels.len();
        Ok(self.model.logits(&Cx::infer(repeat_n(1, rows.len())), self.rows(examples, rows))?)
    }
    /// How many examples have their label's logit as the largest, the same on every rank; of equal ones the first
    /// counts. All are judged at once: hand them over some thousand at a time.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn correct(&self, examples: &Examples<D::Elem>) -> Result<usize>
    where
        D::Elem: Real,
        Wide<D>: Real,
    {
        let mine = self.deal(examples.labels.len());
        let cx = Cx::infer(repeat_n(1, mine.len()));
        let logits = self.model.logits(&cx, self.rows(examples, mine.clone()))?;
        let logits = logits.read().expect("a device with values");
        let rows = logits.chunks(self.classes).zip(&examples.labels[mine]);
        let right = rows.filter(|(row, label)| largest(row) == **label as usize).count();
        let right = Wide::<D>::from_usize(right);
        let mut sum = Tensor::from_fn(self.device.wide(), Category::Buffers, 1, 1, |_| right);
        self.ending.mesh.group(Axis::SEQUENCES).named("correct").all_reduce(&mut sum, Reduce::Sum)?;
        Ok(sum.read().expect("a device with values")[0].to_f64() as usize)
    }
    /// This data rank's part of so many examples.
    fn deal(&self, all: usize) -> Range<usize> {
        let data = self.ending.mesh.group(Axis::SEQUENCES);
        deal(all, data.rank(), data.size())
    }
    /// `X` of these examples.
    fn rows(&self, examples: &Examples<D::Elem>, rows: Range<usize>) -> Tensor<D> {
        let n = self.features;
        assert_eq!(examples.x.len(), examples.labels.len() * n, "{n} features for each label");
        let x = &examples.x[rows.start * n..];
        Tensor::from_fn(&self.device, Category::Activations, rows.len(), n, |i| x[i])
    }
    /// Model and optimizer, for saving them.
    pub fn parts(&mut self) -> (&mut Classifier<D>, &mut Optimizer<D>, &Mesh<D::Place>) {
        (&mut self.model, &mut self.ending.optimizer, &self.ending.mesh)
    }
}

/// Where the largest number stands; the first of equal ones.
fn largest<E: Real>(row: &[E]) -> usize {
    let larger = |best, i: usize| if row[i] > row[best] { i } else { best };
    (1..row.len()).fold(0, larger)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::World;
    use layers::Random;
    use reference::{Optimizer, Updates};
    use tensor::{Cpu, F61, Key, mix};

    const SIZES: [usize; 4] = [3, 6, 4, 5];
    const LAYOUTS: [[usize; 2]; 6] = [[1, 1], [2, 1], [3, 1], [1, 2], [2, 2], [3, 2]]; // dp, tp
    const ADAMW: (Kind, Option<f64>) =
        (Kind::AdamW { beta1: 0.5, beta2: 0.75, eps: 0.5, decay: 0.25 }, Some(0.5));

    fn examples<S: Scalar>(n: usize, salt: u64) -> Examples<S> {
        let draw = |i: usize| mix(mix(salt) ^ i as u64);
        let labels = (0..n).map(|i| (draw(i) % 5) as u32).collect();
        Examples { x: (0..n * 3).map(|i| S::sample(draw(i + 1000), 1.0)).collect(), labels }
    }
    /// Microbatches of unequal sizes; of the second, a third data rank has none.
    fn steps() -> Vec<Vec<Examples<F61>>> {
        vec![vec![examples(5, 1), examples(2, 2)], vec![examples(4, 3), examples(1, 4)]]
    }

    /// Kills: data ranks not summed or averaged, a mean of means, an example dealt twice or to nobody, moments of
    /// another parameter, microbatches overwritten.
    #[test]
    fn steps_equal_the_oracle_bit_for_bit() {
        let _key = Key(8).enter();
        for (optimizer, [dp, tp]) in
            [(Kind::Sgd, None), ADAMW].into_iter().flat_map(|o| LAYOUTS.map(|l| (o, l)))
        {
            let run = |device: Cpu<F61>, mesh: Mesh<_>| {
                let at = Builder::new(&device, &mesh, &Random { seed: 4 });
                let mut trainer = ClassifierTrainer::new(&at, &SIZES, optimizer)?;
                let weights = |trainer: &mut ClassifierTrainer<_>| {
                    let whole =
                        |p: &mut layers::Param<_>| Ok((p.name().to_string(), p.gather(&mesh)?.unwrap()));
                    trainer.parts().0.params().into_iter().map(whole).collect::<Result<_>>()
                };
                let oracle = reference::Classifier { sizes: SIZES.to_vec() };
                let theirs = match optimizer.0 {
                    Kind::Sgd => Optimizer::Sgd,
                    Kind::AdamW { beta1, beta2, eps, decay } => Optimizer::AdamW { beta1, beta2, eps, decay },
                };
                let mut truth = Updates::new(oracle.shapes(), theirs, optimizer.1, weights(&mut trainer)?);
                for microbatches in steps() {
                    let whole = Examples {
                        x: microbatches.iter().flat_map(|m| m.x.clone()).collect(),
                        labels: microbatches.iter().flat_map(|m| m.labels.clone()).collect(),
                    };
                    assert_eq!(
                        trainer.logits(&whole)?.read().unwrap(),
                        oracle.logits(truth.weights(), &whole.x)
                    );
                    let n = whole.labels.len();
                    let (loss, g) = oracle.gradients(truth.weights(), &whole.x, &whole.labels, n);
                    let norm2 = truth.apply(&g, 0.5);
                    let report = trainer.step(&microbatches, 0.5)?;
                    assert_eq!(report.loss.read().unwrap(), [loss], "dp={dp}, tp={tp}");
                    assert_eq!(report.norm2.read().unwrap(), [norm2], "dp={dp}, tp={tp}");
                    assert!(weights(&mut trainer)? == *truth.weights(), "dp={dp}, tp={tp}");
                }
                Ok::<_, crate::Error>(())
            };
            World::threads(&[(Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap();
        }
    }

    /// Kills: a count of one data rank or of all tensor ranks, the largest logit of a share, another rank's labels.
    #[test]
    fn correct_counts_every_example_once() {
        let mut all = examples::<f32>(1000, 5);
        let counts = |all: &Examples<f32>, [dp, tp]: [usize; 2]| {
            let run = |device: Cpu<f32>, mesh: Mesh<_>| {
                let at = Builder::new(&device, &mesh, &Random { seed: 4 });
                let trainer = ClassifierTrainer::new(&at, &SIZES, ADAMW)?;
                Ok::<_, crate::Error>((trainer.correct(all)?, trainer.logits(all)?.read().unwrap()))
            };
            World::threads(&[(Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap()
        };
        let logits = counts(&all, [1, 1]).remove(0).1;
        for (i, row) in logits.chunks(5).enumerate() {
            let best = (0..5).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
            all.labels[i] = if i % 3 == 0 { best } else { (best + 1) % 5 };
        }
        for layout in LAYOUTS {
            let wanted = all.labels.len().div_ceil(3);
            assert!(counts(&all, layout).iter().all(|(right, _)| *right == wanted), "{layout:?}");
        }
        assert_eq!((largest(&[1.0, 3.0, 3.0, 2.0]), largest(&[-1.0f32])), (1, 0));
    }

    #[test]
    fn a_label_that_is_no_class_is_refused() {
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let at = Builder::new(&device, &mesh, &Random { seed: 4 });
            let mut trainer = ClassifierTrainer::new(&at, &SIZES, (Kind::Sgd, None))?;
            let wrong = Examples { x: vec![0.0; 3], labels: vec![5] };
            trainer.step(&[wrong], 1.0).map(drop)
        };
        let why = World::threads(&[]).unwrap().run(run).unwrap_err().reason;
        assert_eq!(why, "token id 5 at position 0 is not in the vocabulary of 5 (ids go from 0 to 4)");
    }
}
