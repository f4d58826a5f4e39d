//! One training step: microbatches forward and backward, gradients summed over them and over the data ranks, the
//! global norm clipped, the optimizer's step.
//!
//! ```text
//! loss = Σ over microbatches and data ranks of each token's loss ÷ all targets of the step that count
//! ```
//!
//! So unequal parts need no weights of their own: a mean of means would be another function. Data ranks hold
//! replicas; each gradient is summed once a step: an all-reduce of its elements over the data axis.
//!
//! Source: Li et al., "PyTorch distributed", §3, arXiv:2006.15704 (replicas); Huang et al., "GPipe", §2.2,
//! arXiv:1811.06965 (accumulation over microbatches).
use crate::{Batch, Result, STEP, Sequence, Share};
use comm::{Axis, Mesh};
use kernels::Kernels;
use layers::ops::Partial;
use layers::{Builder, Chunk, Cx, Input, Kind, Optimizer, Output, Param, Record, Shape};
use tensor::{Ids, Tensor};

/// A model with its optimizer, on this rank.
pub struct Trainer<D: Kernels> {
    device: D,
    mesh: Mesh<D>,
    vocabulary: usize,
    model: Chunk<D>,
    optimizer: Optimizer<D>,
    seed: u64,
    record: Option<Record<D>>,
}

/// What a step gives, still on the device; the same on every rank.
pub struct Report<D: Kernels> {
    /// The mean loss over all tokens of the step, in nats.
    pub loss: Tensor<D>,
    /// The square of the gradient's global norm, before clipping.
    pub norm2: Tensor<D>,
}

impl<D: Kernels> Trainer<D> {
    /// Builds this rank's part of the model.
    ///
    /// # Errors
    /// If the ranks do not fit the shape, or there are no such values.
    pub fn new(at: &Builder<D>, shape: &Shape, optimizer: (Kind, Option<f64>)) -> Result<Self> {
        let model = Chunk::whole(at, shape)?;
        let optimizer = Optimizer::new(optimizer.0, optimizer.1);
        let (device, mesh) = (at.device.clone(), at.mesh.clone());
        Ok(Self { device, mesh, vocabulary: shape.vocabulary, model, optimizer, seed: 0, record: None })
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
        let _span = self.mesh.span(format_args!("{STEP}{}", self.optimizer.steps() + 1));
        let mut loss = None;
        for microbatch in 0..batch.microbatches().len() {
            loss = Some(sum(loss, self.microbatch(batch, microbatch)?));
        }
        finish(loss, self.model.params(), &mut self.optimizer, &self.mesh, lr)
    }
    /// The mean loss of a batch, in nats, without learning from it; the same on every rank.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn evaluate(&mut self, batch: &Batch) -> Result<Tensor<D>> {
        let _span = self.mesh.span("evaluate");
        let mut loss = None;
        for microbatch in 0..batch.microbatches().len() {
            let (share, ids, targets) = self.share(batch, microbatch)?;
            let cx = Cx::infer(&share.lengths()).averaged_over(batch.counted());
            loss = Some(sum(loss, self.forward(&cx, ids, targets)?));
        }
        total(loss, &self.mesh)
    }
    /// Forward and backward of one microbatch: its share of the loss, an addend on each data rank.
    fn microbatch(&mut self, batch: &Batch, microbatch: usize) -> Result<Partial<D>> {
        let (share, ids, targets) = self.share(batch, microbatch)?;
        let cx = Cx::train(microbatch, &share.lengths(), batch.counted())
            .numbered_from(share.first)
            .dropping(self.seed, self.optimizer.steps())
            .profiled(&self.device)
            .recorded(self.record.clone());
        let span = self.mesh.span(format_args!("forward {microbatch}"));
        let loss = self.forward(&cx, ids, targets)?;
        drop(span);
        let _span = self.mesh.span(format_args!("backward {microbatch}"));
        self.model.backward(&cx, None)?;
        Ok(loss)
    }
    fn forward(&mut self, cx: &Cx<D>, ids: Ids<D>, targets: Ids<D>) -> Result<Partial<D>> {
        match self.model.forward(cx, Input::Tokens(ids), Some(targets))? {
            Output::Loss(loss) => Ok(loss),
            Output::Activation(_) => unreachable!("a whole model ends in a loss"),
        }
    }
    /// This data rank's part of a microbatch, its ids and targets.
    fn share<'a>(&self, batch: &'a Batch, microbatch: usize) -> Result<(Share<'a>, Ids<D>, Ids<D>)> {
        let data = self.mesh.group(Axis::Dp);
        let share = batch.share(microbatch, data.rank(), data.size())?;
        let all = |of: fn(&Sequence) -> &Vec<u32>| -> Vec<u32> {
            share.sequences.iter().flat_map(of).copied().collect()
        };
        let ids = Ids::new(&self.device, &all(|s| &s.ids), self.vocabulary)?;
        let targets = Ids::targets(&self.device, &all(|s| &s.targets), self.vocabulary)?;
        Ok((share, ids, targets))
    }
    /// The model.
    pub fn model(&mut self) -> &mut Chunk<D> {
        &mut self.model
    }
    /// Model and optimizer, for saving and restoring them.
    pub fn parts(&mut self) -> (&mut Chunk<D>, &mut Optimizer<D>, &Mesh<D>) {
        (&mut self.model, &mut self.optimizer, &self.mesh)
    }
}

/// The loss over all data ranks.
fn total<D: Kernels>(loss: Option<Partial<D>>, mesh: &Mesh<D>) -> Result<Tensor<D>> {
    Ok(loss.expect("a batch has a microbatch").all_reduce(&mesh.group(Axis::Dp).named("loss"))?)
}

/// The end of a step, when all microbatches are there and back: loss and gradients summed, weights changed.
pub(crate) fn finish<D: Kernels>(
    loss: Option<Partial<D>>,
    mut params: Vec<&mut Param<D>>,
    optimizer: &mut Optimizer<D>,
    mesh: &Mesh<D>,
    lr: f64,
) -> Result<Report<D>> {
    let span = mesh.span("sync gradients");
    let loss = total(loss, mesh)?;
    for param in &mut params {
        param.sync(mesh)?;
    }
    drop(span);
    let _span = mesh.span("optimizer");
    Ok(Report { loss, norm2: optimizer.step(&mut params, mesh, lr)? })
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
    use comm::World;
    use kernels::Heads;
    use layers::Random;
    use tensor::{Cpu, F61, Key};

    const SHAPE: Shape = Shape {
        width: 4,
        blocks: 1,
        heads: Heads { queries: 2, keys: 2, dim: 2 },
        hidden: 4,
        vocabulary: 8,
        ..Shape::LLAMA
    };

    /// Kills: a mean of means, data ranks not summed, an evaluation that learns.
    #[test]
    fn evaluating_gives_the_loss_that_the_step_begins_with() {
        let _key = Key(6).enter();
        let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
        let batch = Batch::new([5, 2, 3, 1, 4].map(sequence).to_vec(), 2).unwrap();
        for ranks in [1, 2] {
            let losses = World::threads(&[(Axis::Dp, ranks)]).unwrap().run(|device: Cpu<F61>, mesh| {
                let kind = (Kind::Sgd, None);
                let at = Builder::new(&device, &mesh, &Random { seed: 2 });
                let mut trainer = Trainer::new(&at, &SHAPE, kind)?;
                let [first, again] = [trainer.evaluate(&batch)?.read(), trainer.evaluate(&batch)?.read()];
                let step = trainer.step(&batch, 1.0)?.loss.read();
                assert!(first == again && first == step, "{first:?} {again:?} {step:?}");
                assert_ne!(trainer.evaluate(&batch)?.read(), step, "it learnt");
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
            let told = trainer.evaluate(&batch).unwrap().read();
            (told, trainer.step(&batch, 1.0).unwrap().loss.read())
        };
        let added = layers::Objective { smoothing: 0.25, z: 0.5 };
        let dropout = layers::Rates { embedding: 0.5, attention: 0.5, residual: 0.5 };
        let (plain, other) = (loss(&SHAPE), loss(&Shape { loss: added, dropout, ..SHAPE }));
        assert_eq!((plain.0, other.0 == other.1), (other.0.clone(), false));
    }
}
