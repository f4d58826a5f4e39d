//! Shape L at work: logits of a batch, a training step on it, decoding of single tokens.
//!
//! These are the passes of every command: `Chunk::logits`, `Trainer::step` and `generate`. Logits are those
//! of every token, whole on every tensor rank (one all-gather of the vocabulary shards), and nothing is saved
//! for backward. A step is forward, backward, gradients summed over data ranks, and plain gradient descent
//! without clipping. Decoding is greedy; the prefill, which adds the first token, is not counted.
use super::context;

use super::pass::{BenchPass, RATE, batch, ids, least};
use super::scale::Scale;
use crate::taken::WARM;
use comm::Ledger;
use kernels::{Kernels, Meta, MetaOf};
use layers::{RuleStates, Shape};
use models::families;
use models::generate::{self, Prompts};
use models::sampling::Sampling;
use models::{Config, Model};
use ops::{ADAMW, EvenValues, Keeper, PassContext, SGD};
use parallel::dtype::RunDevice;
use parallel::{Batch, BuildContext, Layout, Network, Result, Stages, Trainer, measure, price, session};
use std::sync::Mutex;
use std::time::Instant;
use tensor::{Cpu, Device, Phase, TokenIds};

/// One rank of a pass that can be repeated.
#[allow(clippy::large_enum_variant)] // a rank has one
enum Ready<D: Kernels> {
    Forward(Stages<D>, D),
    Step(Trainer<D>, Batch),
    Attention(context::Attention<D>),
    Moves(Trainer<D>, Keeper<D>),
}

impl<D: Kernels> Ready<D> {
    fn new(pass: BenchPass, at: &BuildContext<D>, scale: &Scale) -> Result<Self> {
        let trainer = |kind| Trainer::new(at, scale.shape, (kind, None));
        Ok(match pass {
            BenchPass::Forward => Self::Forward(Stages::new(at, scale.shape)?, at.device.clone()),
            BenchPass::Step => Self::Step(trainer(SGD)?, batch(scale)?),
            BenchPass::AdamStep => Self::Step(trainer(ADAMW)?, batch(scale)?),
            BenchPass::Attention => Self::Attention(context::Attention::new(at, scale)?),
            BenchPass::Block => {
                let (trainer, batch) = context::block(at, scale)?;
                Self::Step(trainer, batch)
            }
            BenchPass::Moves => {
                let mut trainer = trainer(ADAMW)?;
                trainer.step(&batch(scale)?, RATE)?; // now there are moments
                Self::Moves(trainer, Keeper::new(at.rests))
            }
        })
    }
    fn once(&mut self, scale: &Scale) -> Result<()> {
        match self {
            Self::Forward(model, device) => {
                let [sequences, tokens] = scale.batch;
                let ids = TokenIds::new(
                    device.place(),
                    &ids(scale, 0, sequences * tokens),
                    scale.shape.vocabulary,
                )?;
                model.logits(&PassContext::infer(vec![tokens; sequences]), ids, true)?;
            }
            Self::Attention(attention) => attention.once()?,
            Self::Step(trainer, batch) => drop(trainer.step(batch, RATE)?),
            Self::Moves(trainer, keeper) => {
                let mut params = trainer.model().params();
                keeper.update(&mut params, RuleStates::NONE, |_| ())?;
            }
        }
        Ok(())
    }
}

/// The best time of a pass under a layout over a network.
pub(super) fn seconds<D: RunDevice>(
    network: &Network,
    pass: BenchPass,
    layout: &Layout,
    scale: &Scale,
) -> Result<f64> {
    let world = network.world(layout, "a pass of shape L")?;
    let ranks = session::run((layout, &world), &EvenValues, |at: BuildContext<D>| {
        let mut ready = Ready::new(pass, &at, scale)?;
        let once = |_| Ok(measure::work(&at, Phase::Step, || ready.once(scale))?.1.seconds);
        network.of_all(at.mesh, (0..=scale.tries).map(once).collect::<Result<Vec<_>>>()?)
    })?;
    Ok(least(&ranks.concat()))
}

/// Runs training steps under a layout; some are profiled in the network's trace.
pub(super) fn profiled<D: RunDevice>(layout: &Layout, network: &Network, scale: &Scale) -> Result<()> {
    const STEPS: usize = 3;
    let world = network.world(layout, "a training step of shape L")?;
    session::run((layout, &world), &EvenValues, |at: BuildContext<D>| {
        let mut ready = Ready::new(BenchPass::Step, &at, scale)?;
        for step in 0..WARM + STEPS {
            let _profile = (step >= WARM).then(|| at.mesh.profile(at.device.place()));
            measure::work(&at, Phase::Step, || ready.once(scale))?;
        }
        Ok(())
    })?;
    Ok(())
}

/// FLOPs of all ranks in a pass, as the meter counts them.
pub(super) fn flops(pass: BenchPass, layout: &Layout, scale: &Scale) -> Result<f64> {
    metered::<Cpu<f32>>(layout, |at: &BuildContext<Meta<f32>>| Ready::new(pass, at, scale)?.once(scale))
}

/// FLOPs of all ranks, as the meter counts them.
pub(super) fn metered<D: Kernels>(
    layout: &Layout,
    work: impl Fn(&BuildContext<MetaOf<D>>) -> Result<()>,
) -> Result<f64> {
    let of_rank = |rank| {
        let counted = |at: BuildContext<MetaOf<D>>| work(&at).map(|()| at.device.meter().flops() as f64);
        session::ghost::<D, _>(layout, (rank, None), counted)
    };
    (0..layout.ranks()).map(of_rank).sum()
}

/// Traffic of a rank in a training step.
pub(super) fn traffic(layout: &Layout, rank: usize, scale: &Scale) -> Result<Ledger> {
    session::ghost::<Cpu<f32>, _>(layout, (rank, None), |at: BuildContext<Meta<f32>>| {
        let mut ready = Ready::new(BenchPass::Step, &at, scale)?;
        let before = at.mesh.ledger();
        ready.once(scale)?;
        Ok(at.mesh.ledger() - &before)
    })
}

/// Seconds of a token that `generate` adds to a prompt, on one rank: the mean of all added tokens.
pub(super) fn decode<D: RunDevice>(scale: &Scale) -> Result<f64> {
    let [prompt, new] = scale.decode;
    let config = Config {
        family: families::LLAMA,
        shape: scale.shape,
        positions: prompt + new + 1,
        bos: None,
        eos: Vec::new(),
        spare_coefficient: 0.0,
        wrapper: None,
    };
    let model = Model::even(config);
    let prompts = vec![ids(scale, 0, prompt)];
    let request = Prompts { prompts, max_new: new + 1, sampling: Sampling::default(), ..Prompts::default() };
    let chosen = Mutex::new(Vec::with_capacity(new + 1));
    let now = |_| chosen.lock().expect("nothing panics under this lock").push(Instant::now());
    generate::generate::<D>(&model, (&Layout::default(), &Network::default()), &request, &now)?;
    let chosen = chosen.into_inner().expect("nothing panicked");
    Ok(chosen[new].duration_since(chosen[0]).as_secs_f64() / new as f64)
}

/// Bytes of weights that a decoded token reads.
pub(super) fn weights_read<D: RunDevice>(shape: Shape) -> Result<f64> {
    let Shape { width, blocks, vocabulary, .. } = shape;
    let idle = shape.experts.map_or(0, |of| (of.count - of.chosen) * 3 * width * of.hidden * blocks);
    let weights = price::parameters(shape)? - vocabulary * width + width - idle;
    Ok((weights * size_of::<D::Elem>()) as f64)
}

/// Time of a model on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtWork {
    /// Seconds of a training step.
    pub step: f64,
    /// Floating point operations of the step: products and attention.
    pub flops: f64,
    /// Seconds of a decoded token.
    pub token: f64,
    /// Bytes of weights that a decoded token reads.
    pub weights: f64,
}

impl AtWork {
    /// Measures a shape: `batch` is sequences and tokens of each, `decode` is tokens of the prompt and tokens
    /// to add. Returns the best of `tries` training steps.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn measure<D: RunDevice>(
        shape: Shape,
        batch: [usize; 2],
        decode: [usize; 2],
        tries: usize,
    ) -> Result<Self> {
        let scale = Scale { shape, batch, decode, tries, ..Scale::FULL };
        Ok(Self {
            step: seconds::<D>(&Network::default(), BenchPass::Step, &Layout::UNSPLIT, &scale)?,
            flops: flops(BenchPass::Step, &Layout::UNSPLIT, &scale)?,
            token: self::decode::<D>(&scale)?,
            weights: weights_read::<D>(shape)?,
        })
    }
}
