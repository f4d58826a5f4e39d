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
use crate::stages::{At, Stages, Work};
use crate::{Batch, Result, STEP, Share};
use comm::{Axes, Axis, Group, Mesh, Request};
use kernels::Kernels;
use layers::ops::Partial;
use layers::{Builder, Cx, Input, Keeper, Kind, Optimizer, Output, Param, Pass, Record, Room, Shape, Wanted};
use tensor::{Ids, Tensor};

/// A model with its optimizer, on this rank.
pub struct Trainer<D: Kernels> {
    device: D,
    model: Stages<D>,
    ending: Ending<D>,
    seed: u64,
    record: Option<Record<D>>,
    flight: Flight<D>,
}

/// What a step gives, still on the device; the same on every rank.
pub struct Report<D: Kernels> {
    /// The mean loss over all tokens of the step, in nats.
    pub loss: Tensor<D::Wide>,
    /// The square of the gradient's global norm, before clipping.
    pub norm2: Tensor<D::Wide>,
}

/// The contexts of the microbatches in flight.
struct Flight<D: Kernels> {
    cxs: Vec<Option<Cx<D>>>, // by microbatch
    spare: Vec<Cx<D>>,       // of microbatches that are back: the next one's is made in the memory of one
}

impl<D: Kernels> Trainer<D> {
    /// Builds this rank's part of the model.
    ///
    /// # Errors
    /// If the ranks do not fit the shape, or there are no such values.
    pub fn new(at: &At<D>, shape: &Shape, optimizer: (Kind, Option<f64>)) -> Result<Self> {
        let learning = At { builder: at.learning(), schedule: at.schedule };
        Self::of(&learning, shape, optimizer)
    }
    /// Builds this rank's part of a model that is only evaluated: its parameters have no masters.
    ///
    /// # Errors
    /// If the ranks do not fit the shape, or there are no such values.
    pub fn evaluator(at: &At<D>, shape: &Shape) -> Result<Self> {
        Self::of(at, shape, (Kind::Sgd, None))
    }
    fn of(at: &At<D>, shape: &Shape, optimizer: (Kind, Option<f64>)) -> Result<Self> {
        let (device, flight) = (at.device.clone(), Flight { cxs: Vec::new(), spare: Vec::new() });
        let (model, ending) = (Stages::new(at, shape)?, Ending::new(at, optimizer)?);
        Ok(Self { device, model, ending, seed: 0, record: None, flight })
    }
    /// The same model, drawing dropout from this seed.
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
        let step = self.ending.optimizer.steps();
        let pass = Pass { learns: true, keeps: true, seed: self.seed, step, ..Pass::default() };
        let loss = self.microbatches(batch, pass, &|_| ())?;
        self.ending.finish(loss, |params| self.model.list(params), lr)
    }
    /// The mean loss of a batch, in nats, without learning from it; the same on every rank. `done` is told after each
    /// microbatch how many there were.
    ///
    /// # Errors
    /// If the batch cannot be dealt, an id is outside the vocabulary, or ranks do not meet.
    pub fn evaluate(&mut self, batch: &Batch, done: &dyn Fn(usize)) -> Result<Tensor<D::Wide>> {
        let _span = self.ending.mesh.span("evaluate");
        let loss = self.microbatches(batch, Pass::default(), done)?;
        Ok(self.ending.total(loss)?.wait()?)
    }
    /// All microbatches, forward and, where the pass learns, backward: this rank's part of the loss.
    fn microbatches(&mut self, batch: &Batch, pass: Pass, done: &dyn Fn(usize)) -> Result<Partial<D::Wide>> {
        let Self { device, model, ending, record, flight, .. } = self;
        let data = ending.mesh.group(Axis::SEQUENCES);
        let (rank, ranks, pass) = (data.rank(), data.size(), Pass { mean_over: batch.counted(), ..pass });
        let (vocabulary, record) = (model.vocabulary(), record.as_ref());
        let mut dealt =
            Dealt { device, batch, rank, ranks, vocabulary, pass, record, flight, loss: None, done };
        let all = batch.microbatches().len();
        model.run(all, pass.learns, &mut dealt, &mut ending.keeper)?;
        let loss = dealt.loss;
        Ok(loss.unwrap_or_else(|| Partial::nothing(device.wide(), [1, 1], &ending.loss)))
    }
    /// The model.
    pub fn model(&mut self) -> &mut Stages<D> {
        &mut self.model
    }
    /// Stages and optimizer, for saving and restoring them.
    pub fn parts(&mut self) -> (&mut Stages<D>, &mut Optimizer<D>, &Mesh<D::Place>) {
        (&mut self.model, &mut self.ending.optimizer, &self.ending.mesh)
    }
}

/// A step's microbatches as this data rank is dealt them.
struct Dealt<'a, D: Kernels> {
    device: &'a D,
    batch: &'a Batch,
    rank: usize,
    ranks: usize,
    vocabulary: usize,
    pass: Pass,
    record: Option<&'a Record<D>>,
    flight: &'a mut Flight<D>,
    loss: Option<Partial<D::Wide>>,
    done: &'a dyn Fn(usize),
}

impl<'a, D: Kernels> Dealt<'a, D> {
    fn share(&self, microbatch: usize) -> Result<Share<'a>> {
        Ok(self.batch.share(microbatch, self.rank, self.ranks)?)
    }
}

impl<D: Kernels> Work<D> for Dealt<'_, D> {
    fn cx(&mut self, microbatch: usize) -> Result<&Cx<D>> {
        if self.flight.cxs.len() <= microbatch {
            self.flight.cxs.resize_with(microbatch + 1, || None);
        }
        if self.flight.cxs[microbatch].is_none() {
            let share = self.share(microbatch)?;
            let spare = self.flight.spare.pop().unwrap_or_default();
            let cx = spare.then(Pass { microbatch, ..self.pass }, share.lengths()).numbered_from(share.first);
            let cx = cx.profiled(self.device).recorded(self.record.filter(|_| self.pass.learns).cloned());
            self.flight.cxs[microbatch] = Some(cx);
        }
        Ok(self.flight.cxs[microbatch].as_ref().expect("just made"))
    }
    fn input(&mut self, microbatch: usize) -> Result<Input<D>> {
        let ids = self.share(microbatch)?.sequences.iter().flat_map(|s| &s.ids);
        Ok(Input::Tokens(Ids::new(self.device.place(), ids, self.vocabulary)?))
    }
    fn wanted(&mut self, microbatch: usize) -> Result<Wanted<D::Place>> {
        let targets = self.share(microbatch)?.sequences.iter().flat_map(|s| &s.targets);
        Ok(Wanted::Loss(Ids::targets(self.device.place(), targets, self.vocabulary)?))
    }
    fn ended(&mut self, output: Output<D>) {
        let Output::Loss(part) = output else { unreachable!("a loss is wanted") };
        self.loss = Some(match self.loss.take() {
            None => part,
            Some(before) => before + &part,
        });
    }
    fn done(&mut self, microbatch: usize) {
        let cx = self.flight.cxs[microbatch].take().expect("it is in flight");
        self.flight.spare.push(cx.recorded(None));
        (self.done)(microbatch + 1);
    }
}

/// What a trainer has besides its model, and how a step ends, whatever the model.
pub(crate) struct Ending<D: Kernels> {
    pub(crate) mesh: Mesh<D::Place>,
    pub(crate) optimizer: Optimizer<D>,
    loss: Group<D::Place>, // the ranks that have parts of the loss
    keeper: Keeper<D>,
    room: Room<D>, // for the list of parameters
}

impl<D: Kernels> Ending<D> {
    pub(crate) fn new(at: &Builder<D>, (kind, clip): (Kind, Option<f64>)) -> Result<Self> {
        let loss = at.mesh.over(Axes::LOSS)?.named("loss");
        let (optimizer, keeper) = (Optimizer::new(kind, clip), Keeper::new(at.rests));
        Ok(Self { mesh: at.mesh.clone(), optimizer, loss, keeper, room: Room::default() })
    }
    /// The loss over all ranks that have a part of it, whose sum is started.
    pub(crate) fn total(&self, loss: Partial<D::Wide>) -> Result<Request<D::Wide>> {
        Ok(loss.start_all_reduce(&self.loss)?)
    }
    /// When all microbatches are there and back: loss and gradients summed, weights changed. `list` appends the model's
    /// parameters. The loss is waited for last: while links still carry sums, those that have come are added up.
    pub(crate) fn finish<'a>(
        &mut self,
        loss: Partial<D::Wide>,
        list: impl FnOnce(&mut Vec<&'a mut Param<D>>),
        lr: f64,
    ) -> Result<Report<D>>
    where
        D: 'a,
    {
        let Self { mesh, optimizer, keeper, room, .. } = self;
        let span = mesh.span("sync gradients");
        let loss = loss.start_all_reduce(&self.loss)?;
        room.with(list, |params| {
            keeper.finish(params)?;
            let loss = loss.wait()?;
            drop(span);
            let _span = mesh.span("optimizer");
            let norm2 = optimizer.step(params, mesh, lr)?;
            keeper.share(params)?;
            Ok(Report { loss, norm2 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequence;
    use crate::pipeline::gpipe::GPipe;
    use crate::pipeline::{Alone, Schedule};
    use comm::World;
    use kernels::Heads;
    use layers::{Builder, Random, Rest, Rests};
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
        let model = |tied| reference::Model {
            dropout: reference::Rates { embedding: 0.25, attention: 0.25, residual: 0.25 },
            ..reference::Model::llama(4, 3, heads, 4, 8, 10_000.0, 1e-5, tied)
        };
        let dropout = layers::Rates { embedding: 0.25, attention: 0.25, residual: 0.25 };
        let (beta1, beta2, eps, decay) = (0.5, 0.75, 0.5, 0.25);
        let kind = Kind::AdamW { beta1, beta2, eps, decay };
        let theirs = reference::Optimizer::AdamW { beta1, beta2, eps, decay };
        let sizes = [[1, 1, 1], [1, 2, 1], [1, 1, 2], [1, 2, 2], [2, 1, 1], [2, 2, 2], [3, 1, 1]];
        let zero = [0, 1, 2, 3].map(|stage: usize| {
            let rest = |from: usize| if stage >= from { Rest::Shard } else { Rest::Whole };
            Rests { value: rest(3), gradient: rest(2), state: rest(1), block: None }
        });
        let all = sizes.iter().flat_map(|sizes| zero.map(|rests| (*sizes, rests)));
        let all = all.filter(|([_, dp, _], rests)| *dp > 1 || *rests == Rests::WHOLE);
        for (([pp, dp, tp], rests), tied) in all.flat_map(|case| [(case, false), (case, true)]) {
            let run = |device: Cpu<F61>, mesh: Mesh<_>| {
                let builder = Builder { rests, ..Builder::new(&device, &mesh, &Random { seed: 2 }) };
                let schedule: &dyn Schedule = if pp > 1 { &GPipe } else { &Alone };
                let at = At { builder, schedule };
                let shape = Shape { dropout, blocks: 3, tied, ..SHAPE };
                let mut trainer = Trainer::new(&at, &shape, (kind, Some(0.5)))?.seeded(3);
                let weights = |trainer: &mut Trainer<_>| {
                    let (mut all, params) = (std::collections::BTreeMap::new(), trainer.model().params());
                    for of in crate::named(&params, &mesh)? {
                        let whole = crate::whole(&device, &of, &mesh, |i| params[i].gather(&mesh))?;
                        all.insert(of.name, whole.expect("the host has values"));
                    }
                    Ok::<_, crate::Error>(all)
                };
                let (model, start) = (model(tied), weights(&mut trainer)?);
                let mut truth = reference::Trainer::new(model, theirs, Some(0.5), start).seeded(3);
                for step in 0..2 {
                    let (report, wanted) = (trainer.step(&batch, 0.5)?, truth.step(&told, 0.5));
                    let at = format!("step {step}, pp={pp}, dp={dp}, tp={tp}, {rests:?}, tied: {tied}");
                    let loss = wanted.losses.into_iter().fold(F61::ZERO, |sum, loss| sum + loss);
                    assert_eq!(report.loss.read().unwrap(), [loss], "{at}");
                    assert_eq!(report.norm2.read().unwrap(), [wanted.norm2], "{at}");
                    assert!(weights(&mut trainer)? == *truth.weights(), "weights, {at}");
                }
                Ok::<_, crate::Error>(())
            };
            World::threads(&[(Axis::Pp, pp), (Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap();
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
            let at = At::from(Builder::new(&device, &mesh, &Random { seed: 2 }));
            let mut trainer = Trainer::new(&at, &Shape { blocks: 2, ..SHAPE }, (Kind::Sgd, None))?;
            trainer.step(&batch, 1.0)?;
            Ok::<_, crate::Error>(mesh.calls())
        });
        for calls in calls.unwrap() {
            let labels: Vec<_> =
                calls.iter().filter_map(|call| Some(call.label.as_ref()?.to_string())).collect();
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
                let at = At::from(Builder::new(&device, &mesh, &Random { seed: 2 }));
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
            let at = At::from(Builder::new(&device, &mesh, &Random { seed: 2 }));
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
