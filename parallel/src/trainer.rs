//! One training step: microbatches forward and backward, gradients summed over them and over the data ranks, the
//! global norm clipped, the optimizer's step.
//!
//! ```text
//! loss = Σ over microbatches and data ranks of each token's loss ÷ all targets of the step that count
//! ```
//!
//! So unequal parts need no weights of their own: a mean of means would be another function. Data ranks hold
//! replicas; each gradient is summed once a step, those of a unit (head, block, embedding) in one all-reduce over the data
//! axis. It is started as soon as the last microbatch adds nothing more to the unit's gradients, goes on beside what is left
//! of backward, and is waited for before the optimizer's step.
//!
//! Source: Li et al., "PyTorch distributed", §3, arXiv:2006.15704 (replicas); Huang et al., "GPipe", §2.2,
//! arXiv:1811.06965 (accumulation over microbatches).
use crate::{Batch, Result, STEP, Share};
use comm::{Axis, Group, Mesh, Request};
use kernels::Kernels;
use layers::ops::Partial;
use layers::{Builder, Chunk, Cx, Input, Keeper, Kind, Optimizer, Output, Param, Record, Shape, emptied};
use tensor::{Ids, Tensor};

/// A model with its optimizer, on this rank.
pub struct Trainer<D: Kernels> {
    device: D,
    vocabulary: usize,
    model: Chunk<D>,
    ending: Ending<D>,
    seed: u64,
    record: Option<Record<D>>,
    spare: Cx<D>, // of a microbatch that is back: the next one's is made in its memory
}

/// What a step gives, still on the device; the same on every rank.
pub struct Report<D: Kernels> {
    /// The mean loss over all tokens of the step, in nats.
    pub loss: Tensor<D::Wide>,
    /// The square of the gradient's global norm, before clipping.
    pub norm2: Tensor<D::Wide>,
}

/// What a data rank is dealt of a microbatch, its ids and its targets.
type Dealt<'a, P> = (Share<'a>, Ids<P>, Ids<P>);

impl<D: Kernels> Trainer<D> {
    /// Builds this rank's part of the model.
    ///
    /// # Errors
    /// If the ranks do not fit the shape, or there are no such values.
    pub fn new(at: &Builder<D>, shape: &Shape, optimizer: (Kind, Option<f64>)) -> Result<Self> {
        Self::of(&at.learning(), shape, optimizer)
    }
    /// The same for a model that is only evaluated: its parameters have no masters.
    ///
    /// # Errors
    /// If the ranks do not fit the shape, or there are no such values.
    pub fn evaluator(at: &Builder<D>, shape: &Shape) -> Result<Self> {
        Self::of(at, shape, (Kind::Sgd, None))
    }
    fn of(at: &Builder<D>, shape: &Shape, optimizer: (Kind, Option<f64>)) -> Result<Self> {
        let model = Chunk::whole(at, shape)?;
        let (device, ending) = (at.device.clone(), Ending::new(at, optimizer));
        let (vocabulary, spare) = (shape.vocabulary, Cx::default());
        Ok(Self { device, vocabulary, model, ending, seed: 0, record: None, spare })
    }
    /// The same, drawing dropout from this seed.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
    /// From now on, what layers take and give is left in `record`, if there is one.
    pub fn record(&mut self, record: Option<Record<D>>) {
        self.record = record;
    }
    /// One step on a batch that every rank is given whole.
    ///
    /// # Errors
    /// If the batch cannot be dealt, an id is outside the vocabulary, or ranks do not meet.
    pub fn step(&mut self, batch: &Batch, lr: f64) -> Result<Report<D>> {
        let _span = self.ending.mesh.span(format_args!("{STEP}{}", self.ending.optimizer.steps() + 1));
        let mut loss = None;
        for microbatch in 0..batch.microbatches().len() {
            loss = Some(sum(loss, self.microbatch(batch, microbatch)?));
        }
        self.ending.finish(loss, |params| self.model.list(params), lr)
    }
    /// The mean loss of a batch, in nats, without learning from it; the same on every rank. `done` is told after each
    /// microbatch how many there were.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn evaluate(&mut self, batch: &Batch, done: &dyn Fn(usize)) -> Result<Tensor<D::Wide>> {
        let _span = self.ending.mesh.span("evaluate");
        let mut loss = None;
        for microbatch in 0..batch.microbatches().len() {
            let (share, ids, targets) = self.share(batch, microbatch)?;
            let cx = Cx::infer(share.lengths()).averaged_over(batch.counted());
            loss = Some(sum(loss, self.forward(&cx, ids, targets)?));
            done(microbatch + 1);
        }
        Ok(self.ending.total(loss)?.wait()?)
    }
    /// Forward and backward of one microbatch: its share of the loss, an addend on each data rank.
    fn microbatch(&mut self, batch: &Batch, microbatch: usize) -> Result<Partial<D::Wide>> {
        let (share, ids, targets) = self.share(batch, microbatch)?;
        let cx = std::mem::take(&mut self.spare)
            .then_train(microbatch, share.lengths(), batch.counted())
            .numbered_from(share.first)
            .dropping(self.seed, self.ending.optimizer.steps())
            .profiled(&self.device)
            .recorded(self.record.clone());
        let span = self.ending.mesh.span(format_args!("forward {microbatch}"));
        let loss = self.forward(&cx, ids, targets)?;
        drop(span);
        let span = self.ending.mesh.span(format_args!("backward {microbatch}"));
        let last = microbatch + 1 == batch.microbatches().len();
        self.model.backward_with(&cx, None, &mut self.ending.keeper, last)?;
        drop(span);
        self.spare = cx.recorded(None);
        Ok(loss)
    }
    fn forward(
        &mut self,
        cx: &Cx<D>,
        ids: Ids<D::Place>,
        targets: Ids<D::Place>,
    ) -> Result<Partial<D::Wide>> {
        match self.model.forward_with(cx, Input::Tokens(ids), Some(targets), &mut self.ending.keeper)? {
            Output::Loss(loss) => Ok(loss),
            Output::Activation(_) => unreachable!("a whole model ends in a loss"),
        }
    }
    /// This data rank's part of a microbatch, its ids and targets.
    fn share<'a>(&self, batch: &'a Batch, microbatch: usize) -> Result<Dealt<'a, D::Place>> {
        let data = self.ending.mesh.group(Axis::Dp);
        let share = batch.share(microbatch, data.rank(), data.size())?;
        let sequences = share.sequences.iter();
        let ids = Ids::new(self.device.place(), sequences.clone().flat_map(|s| &s.ids), self.vocabulary)?;
        let targets = Ids::targets(self.device.place(), sequences.flat_map(|s| &s.targets), self.vocabulary)?;
        Ok((share, ids, targets))
    }
    /// The model.
    pub fn model(&mut self) -> &mut Chunk<D> {
        &mut self.model
    }
    /// Model and optimizer, for saving and restoring them.
    pub fn parts(&mut self) -> (&mut Chunk<D>, &mut Optimizer<D>, &Mesh<D::Place>) {
        (&mut self.model, &mut self.ending.optimizer, &self.ending.mesh)
    }
}

/// What a trainer has besides its model, and how a step ends, whatever the model.
pub(crate) struct Ending<D: Kernels> {
    pub(crate) mesh: Mesh<D::Place>,
    pub(crate) optimizer: Optimizer<D>,
    loss: Group<D::Place>, // the data ranks, as the loss meets them
    keeper: Keeper<D>,
    room: Vec<&'static mut Param<D>>, // for the list of parameters; empty between steps
}

impl<D: Kernels> Ending<D> {
    pub(crate) fn new(at: &Builder<D>, (kind, clip): (Kind, Option<f64>)) -> Self {
        let loss = at.mesh.group(Axis::Dp).named("loss");
        let (optimizer, keeper) = (Optimizer::new(kind, clip), Keeper::new(at.rests));
        Self { mesh: at.mesh.clone(), optimizer, loss, keeper, room: Vec::new() }
    }
    /// The loss over all data ranks, whose sum is started.
    pub(crate) fn total(&self, loss: Option<Partial<D::Wide>>) -> Result<Request<D::Wide>> {
        Ok(loss.expect("a batch has a microbatch").start_all_reduce(&self.loss)?)
    }
    /// When all microbatches are there and back: loss and gradients summed, weights changed. `list` appends the model's
    /// parameters. The loss is waited for last: while links still carry sums, those that have come are added up.
    pub(crate) fn finish<'a>(
        &mut self,
        loss: Option<Partial<D::Wide>>,
        list: impl FnOnce(&mut Vec<&'a mut Param<D>>),
        lr: f64,
    ) -> Result<Report<D>>
    where
        D: 'a,
    {
        let mut params = std::mem::take(&mut self.room);
        list(&mut params);
        let span = self.mesh.span("sync gradients");
        let loss = self.total(loss)?;
        self.keeper.finish(&mut params)?;
        let loss = loss.wait()?;
        drop(span);
        let _span = self.mesh.span("optimizer");
        let norm2 = self.optimizer.step(&mut params, &self.mesh, lr)?;
        self.keeper.share(&mut params)?;
        self.room = emptied(params);
        Ok(Report { loss, norm2 })
    }
}

pub(crate) fn sum<D: Kernels>(before: Option<Partial<D>>, addend: Partial<D>) -> Partial<D> {
    match before {
        None => addend,
        Some(before) => before + &addend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequence;
    use comm::World;
    use kernels::Heads;
    use layers::Random;
    use tensor::{Cpu, F61, IGNORED, Key, Scalar};

    const SHAPE: Shape = Shape {
        width: 4,
        blocks: 1,
        heads: Heads { queries: 2, keys: 2, dim: 2 },
        hidden: 4,
        vocabulary: 8,
        ..Shape::LLAMA
    };

    /// Two steps with dropout, clipping and decay, on microbatches of 2 and 3 sequences. Kills: a microbatch left out or
    /// overwritten, sequences numbered by their data rank or microbatch, a mean of means, gradients that stay on their data
    /// rank, dropout of another step.
    #[test]
    fn steps_equal_the_oracle_bit_for_bit() {
        let _key = Key(6).enter();
        let lengths = [5, 2, 3, 1, 4];
        let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
        let batch = Batch::new(lengths.map(sequence).to_vec(), 2).unwrap();
        let told = |s: &Sequence| reference::Sequence { ids: s.ids.clone(), targets: s.targets.clone() };
        let told: Vec<Vec<_>> = batch.microbatches().iter().map(|m| m.iter().map(told).collect()).collect();
        let heads = reference::Heads { queries: 2, keys: 2, dim: 2 };
        let mut model = reference::Model::llama(4, 1, heads, 4, 8, 10_000.0, 1e-5, false);
        model.dropout = reference::Rates { embedding: 0.25, attention: 0.25, residual: 0.25 };
        let dropout = layers::Rates { embedding: 0.25, attention: 0.25, residual: 0.25 };
        let (beta1, beta2, eps, decay) = (0.5, 0.75, 0.5, 0.25);
        let kind = Kind::AdamW { beta1, beta2, eps, decay };
        let theirs = reference::Optimizer::AdamW { beta1, beta2, eps, decay };
        for [dp, tp] in [[1, 1], [2, 1], [1, 2], [2, 2]] {
            let run = |device: Cpu<F61>, mesh: Mesh<_>| {
                let at = Builder::new(&device, &mesh, &Random { seed: 2 });
                let mut trainer =
                    Trainer::new(&at, &Shape { dropout, ..SHAPE }, (kind, Some(0.5)))?.seeded(3);
                let weights = |trainer: &mut Trainer<_>| {
                    let whole = |p: &mut Param<_>| Ok((p.name().to_string(), p.gather(&mesh)?.unwrap()));
                    trainer.model().params().into_iter().map(whole).collect::<Result<_>>()
                };
                let (model, start) = (model.clone(), weights(&mut trainer)?);
                let mut truth = reference::Trainer::new(model, theirs, Some(0.5), start).seeded(3);
                for step in 0..2 {
                    let (report, wanted) = (trainer.step(&batch, 0.5)?, truth.step(&told, 0.5));
                    let at = format!("step {step}, dp={dp}, tp={tp}");
                    let loss = wanted.losses.into_iter().fold(F61::ZERO, |sum, loss| sum + loss);
                    assert_eq!(report.loss.read().unwrap(), [loss], "{at}");
                    assert_eq!(report.norm2.read().unwrap(), [wanted.norm2], "{at}");
                    assert!(weights(&mut trainer)? == *truth.weights(), "weights, {at}");
                }
                Ok::<_, crate::Error>(())
            };
            World::threads(&[(Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap();
        }
    }

    /// As they are told when they have ended. Kills: a sum for each parameter or one for all, sums in another order than
    /// that in which backward completes them, a loss that is waited for while gradients could be added up.
    #[test]
    fn a_step_sums_the_gradients_of_each_unit_in_one_call() {
        let batch = Batch::new(vec![Sequence::new(vec![1, 2], vec![2, 3]); 4], 2).unwrap();
        let trace = comm::Trace::new();
        let world = World::threads(&[(Axis::Dp, 2)]).unwrap().traced(&trace, "a step");
        let calls = world.run(|device: Cpu<f32>, mesh| {
            let at = Builder::new(&device, &mesh, &Random { seed: 2 });
            let mut trainer = Trainer::new(&at, &Shape { blocks: 2, ..SHAPE }, (Kind::Sgd, None))?;
            trainer.step(&batch, 1.0)?;
            Ok::<_, crate::Error>(mesh.calls())
        });
        for calls in calls.unwrap() {
            let label =
                |call: &String| call.split_once(" for ")?.1.split_once(" at ").map(|l| l.0.to_string());
            let labels: Vec<_> = calls.iter().filter_map(label).collect();
            let gradients =
                ["norm, head", "blocks.1", "blocks.0", "embedding"].map(|of| format!("gradients of {of}"));
            assert_eq!((&labels[..4], &labels[4..]), (&gradients[..], &["loss".to_string()][..]));
        }
    }

    /// Kills: a mean of means, or over targets that do not count, data ranks not summed, an evaluation that learns.
    #[test]
    fn evaluating_gives_the_loss_that_the_step_begins_with() {
        let _key = Key(6).enter();
        let target = |i: u32| if i == 2 { IGNORED } else { i };
        let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).map(target).collect());
        let batch = Batch::new([5, 2, 3, 1, 4].map(sequence).to_vec(), 2).unwrap();
        for ranks in [1, 2] {
            let losses = World::threads(&[(Axis::Dp, ranks)]).unwrap().run(|device: Cpu<F61>, mesh| {
                let kind = (Kind::Sgd, None);
                let at = Builder::new(&device, &mesh, &Random { seed: 2 });
                let mut trainer = Trainer::new(&at, &SHAPE, kind)?;
                let parts = std::cell::RefCell::new(Vec::new());
                let mut evaluate = || trainer.evaluate(&batch, &|n| parts.borrow_mut().push(n));
                let [first, again] = [evaluate()?.read(), evaluate()?.read()];
                assert_eq!(parts.take(), [1, 2, 1, 2]);
                let step = trainer.step(&batch, 1.0)?.loss.read();
                assert!(first == again && first == step, "{first:?} {again:?} {step:?}");
                assert_ne!(trainer.evaluate(&batch, &|_| ())?.read(), step, "it learnt");
                Ok::<_, crate::Error>(step.unwrap())
            });
            losses.unwrap();
        }
    }

    /// Kills: a text that is judged by what training adds to the loss, or with dropout.
    #[test]
    fn evaluating_is_cross_entropy_alone() {
        let _key = Key(6).enter();
        let batch = Batch::new(vec![Sequence::new(vec![1, 2, 3], vec![2, 3, 4])], 1).unwrap();
        let (device, mesh) = (Cpu::<F61>::default(), Mesh::alone());
        let loss = |shape: &Shape| {
            let at = Builder::new(&device, &mesh, &Random { seed: 2 });
            let mut trainer = Trainer::new(&at, shape, (Kind::Sgd, None)).unwrap();
            let told = trainer.evaluate(&batch, &|_| ()).unwrap().read();
            (told, trainer.step(&batch, 1.0).unwrap().loss.read())
        };
        let added = layers::Objective { smoothing: 0.25, z: 0.5 };
        let dropout = layers::Rates { embedding: 0.5, attention: 0.5, residual: 0.5 };
        let (plain, other) = (loss(&SHAPE), loss(&Shape { loss: added, dropout, ..SHAPE }));
        assert_eq!((plain.0, other.0 == other.1), (other.0.clone(), false));
    }
}
