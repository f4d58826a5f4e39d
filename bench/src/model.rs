//! Shape L at work: logits of a batch, a training step on it, tokens one by one.
//!
//! These are the passes that every command makes: `Chunk::logits`, `Trainer::step` and `generate`. Logits are those of
//! every token, whole on every tensor rank (one gather of the vocabulary's shares), and nothing is kept for backward.
//! A step is forward, backward, gradients summed over data ranks, and plain descent without clipping. A token that is
//! added is one that was chosen greedily; reading the prompt, which adds the first, is not counted.
use super::machine::{Bound, Probe, least};
use super::scale::Scale;
use crate::profile::{WARM, is_taken};
use comm::Ledger;
use kernels::{Kernels, Meta};
use layers::{Cx, Even, Kind, Shape};
use models::config::Architecture;
use models::generate::{self, Prompts};
use models::sampling::Sampling;
use models::{Config, Model};
use parallel::number::Runs;
use parallel::{At, Batch, Layout, Network, Result, Sequence, Stages, Trainer, measure, price, session};
use std::sync::Mutex;
use std::time::Instant;
use tensor::{Cpu, Device, Ids, Phase, mix};

/// A pass over the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// All logits, nothing kept.
    Forward,
    /// A training step.
    Step,
}

pub(super) const RATE: f64 = 1e-4;

/// One rank of a pass, which can be made again and again.
#[allow(clippy::large_enum_variant)] // a rank has one
enum Ready<D: Kernels> {
    Forward(Stages<D>, D),
    Step(Trainer<D>, Batch),
}

impl<D: Kernels> Ready<D> {
    fn new(pass: Pass, at: &At<D>, scale: &Scale) -> Result<Self> {
        Ok(match pass {
            Pass::Forward => Self::Forward(Stages::new(at, scale.shape)?, at.device.clone()),
            Pass::Step => Self::Step(Trainer::new(at, scale.shape, (Kind::Sgd, None))?, batch(scale)?),
        })
    }
    fn once(&mut self, scale: &Scale) -> Result<()> {
        match self {
            Self::Forward(model, device) => {
                let [sequences, tokens] = scale.batch;
                let ids =
                    Ids::new(device.place(), &ids(scale, 0, sequences * tokens), scale.shape.vocabulary)?;
                model.logits(&Cx::infer(vec![tokens; sequences]), ids, true)?;
            }
            Self::Step(trainer, batch) => drop(trainer.step(batch, RATE)?),
        }
        Ok(())
    }
}

pub(super) fn ids(scale: &Scale, salt: u64, n: usize) -> Vec<u32> {
    (0..n as u64).map(|i| (mix(mix(salt) ^ i) % scale.shape.vocabulary as u64) as u32).collect()
}

fn batch(scale: &Scale) -> Result<Batch> {
    let [sequences, tokens] = scale.batch;
    let sequence = |b: u64| Sequence::new(ids(scale, 2 * b, tokens), ids(scale, 2 * b + 1, tokens));
    Batch::new((0..sequences as u64).map(sequence).collect(), 1)
}

/// The best time of a pass under a layout over a network.
pub(super) fn seconds<D: Runs>(network: &Network, pass: Pass, layout: &Layout, scale: &Scale) -> Result<f64> {
    let world = network.world(layout, "a pass of shape L")?;
    let ranks = session::run((layout, &world), &Even, |at: At<D>| {
        let mut ready = Ready::new(pass, &at, scale)?;
        let once = |_| Ok(measure::work(&at, Phase::Step, || ready.once(scale))?.1.seconds);
        (0..=scale.tries).map(once).collect::<Result<Vec<_>>>()
    })?;
    Ok(least(&ranks))
}

/// Training steps under a layout, over a network whose trace is told of some of them.
pub(super) fn profiled<D: Runs>(layout: &Layout, network: &Network, scale: &Scale) -> Result<()> {
    const STEPS: usize = 3;
    let world = network.world(layout, "a training step of shape L")?;
    session::run((layout, &world), &Even, |at: At<D>| {
        let mut ready = Ready::new(Pass::Step, &at, scale)?;
        for step in 0..WARM + STEPS {
            let _profile = is_taken(step).then(|| at.mesh.profile(at.device.place()));
            measure::work(&at, Phase::Step, || ready.once(scale))?;
        }
        Ok(())
    })?;
    Ok(())
}

/// A pass takes at least as long as its products and its attention, by its price, at the peak of so many processors.
pub(super) fn bound(pass: Pass, layout: &Layout, cores: usize, scale: &Scale) -> Result<Bound> {
    Ok(vec![(Probe::Peak { cores }, flops(pass, layout, scale)? / cores as f64)])
}

/// What all ranks compute in a pass, as the meter counts it.
pub(super) fn flops(pass: Pass, layout: &Layout, scale: &Scale) -> Result<f64> {
    metered::<Cpu<f32>>(layout, |at: &At<Meta<f32>>| Ready::new(pass, at, scale)?.once(scale))
}

/// What all ranks compute, as the meter counts it.
pub(super) fn metered<D: Kernels>(
    layout: &Layout,
    work: impl Fn(&At<Meta<D::Elem>>) -> Result<()>,
) -> Result<f64> {
    let of_rank = |rank| {
        let counted = |at: At<Meta<D::Elem>>| work(&at).map(|()| at.device.meter().flops() as f64);
        session::ghost::<D, _>(layout, (rank, None), counted)
    };
    (0..layout.ranks()).map(of_rank).sum()
}

/// What a rank says in a training step.
pub(super) fn said(layout: &Layout, rank: usize, scale: &Scale) -> Result<Ledger> {
    session::ghost::<Cpu<f32>, _>(layout, (rank, None), |at: At<Meta<f32>>| {
        let mut ready = Ready::new(Pass::Step, &at, scale)?;
        let before = at.mesh.ledger();
        ready.once(scale)?;
        Ok(at.mesh.ledger() - &before)
    })
}

/// The time of a token that `generate` adds to a prompt, on one rank: the mean of all that are added.
pub(super) fn decode<D: Runs>(scale: &Scale) -> Result<f64> {
    let [prompt, new] = scale.decode;
    let (shape, positions) = (scale.shape, prompt + new + 1);
    let config = Config {
        architecture: Architecture::Llama,
        shape,
        positions,
        bos: None,
        eos: Vec::new(),
        spare_coefficient: 0.0,
    };
    let model = Model::even(config);
    let prompts = vec![ids(scale, 0, prompt)];
    let request = Prompts { prompts, max_new: new + 1, sampling: Sampling::default(), record: false };
    let chosen = Mutex::new(Vec::with_capacity(new + 1));
    let now = |_| chosen.lock().expect("nothing panics under this lock").push(Instant::now());
    generate::generate::<D>(&model, (&Layout::default(), &Network::default()), &request, &now)?;
    let chosen = chosen.into_inner().expect("nothing panicked");
    Ok(chosen[new].duration_since(chosen[0]).as_secs_f64() / new as f64)
}

/// A token takes at least as long as all weights take to be read by one processor: the head's too, but of the embedding's
/// table one row, and of experts those that it is handed to.
pub(super) fn decode_bound<D: Runs>(scale: &Scale) -> Result<Bound> {
    Ok(vec![(Probe::Read { cores: 1 }, weights_read::<D>(scale.shape)?)])
}

/// Bytes of weights that such a token reads.
pub(super) fn weights_read<D: Runs>(shape: Shape) -> Result<f64> {
    let Shape { width, blocks, vocabulary, .. } = shape;
    let idle = shape.experts.map_or(0, |of| (of.count - of.chosen) * 3 * width * of.hidden * blocks);
    let weights = price::parameters(shape)? - vocabulary * width + width - idle;
    Ok((weights * size_of::<D::Elem>()) as f64)
}

/// What a model takes on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtWork {
    /// Seconds of a training step.
    pub step: f64,
    /// Its floating point operations: products and attention.
    pub flops: f64,
    /// Seconds of a token that `generate` adds.
    pub token: f64,
    /// Bytes of weights that such a token reads.
    pub weights: f64,
}

impl AtWork {
    /// Measures a shape on a batch of so many sequences of so many tokens, and on a prompt of so many tokens to which so many
    /// are added; the best of some tries.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn measure<D: Runs>(
        shape: Shape,
        batch: [usize; 2],
        decode: [usize; 2],
        tries: usize,
    ) -> Result<Self> {
        let scale = Scale { shape, batch, decode, tries, ..Scale::FULL };
        Ok(Self {
            step: seconds::<D>(&Network::default(), Pass::Step, &Layout::UNSPLIT, &scale)?,
            flops: flops(Pass::Step, &Layout::UNSPLIT, &scale)?,
            token: self::decode::<D>(&scale)?,
            weights: weights_read::<D>(shape)?,
        })
    }
}
