//! `bench`: times of one shape, the best of several, runs of the layouts taking turns.
//!
//! Shape L: Llama-like, width 512, 8 blocks, 8 heads, 2048 hidden features, vocabulary 8192, 4 sequences of 256
//! tokens, f32. A step is forward, backward and plain descent, without clipping.
use crate::{Layout, Result, measure};
use kernels::Heads;
use layers::{Kind, Random, Shape};
use parallel::{Batch, Sequence, Trainer};
use serde::Serialize;
use tensor::{Cpu, Phase, mix};

/// Shape L.
pub const L: Shape = Shape {
    width: 512,
    blocks: 8,
    heads: Heads { queries: 8, keys: 8, dim: 64 },
    hidden: 2048,
    vocabulary: 8192,
    ..Shape::LLAMA
};

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What.
    pub name: &'static str,
    /// How much: the best of all runs.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// How often the layouts take turns, and steps in each turn.
const TURNS: usize = 3;
const STEPS: usize = 4;

/// The time of a training step of shape L on one rank and on two.
///
/// # Errors
/// If a rank fails.
pub fn bench(watch: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let figures = [("train_step_ms_tp1", "none"), ("train_step_ms_tp2", "tp=2")];
    let mut best = [f64::INFINITY; 2];
    for turn in 1..=TURNS {
        for (best, (name, layout)) in best.iter_mut().zip(figures) {
            watch(&format!("{name}, turn {turn} of {TURNS}"));
            *best = best.min(steps(&layout.parse()?)?);
        }
    }
    let figure = |((name, _), value)| Figure { name, value, unit: "ms" };
    Ok(figures.into_iter().zip(best).map(figure).collect())
}

/// The best time of a step, in milliseconds.
fn steps(layout: &Layout) -> Result<f64> {
    let ids = |salt: u64, b: u64| {
        (0..256).map(|i| (mix(mix(salt ^ b) ^ i) % L.vocabulary as u64) as u32).collect::<Vec<_>>()
    };
    let sequences = (0..4).map(|b| Sequence::new(ids(1, b), ids(2, b))).collect();
    let batch = Batch::new(sequences, 1)?;
    let ranks = layout.world()?.run(|device: Cpu<f32>, mesh| {
        let at = layout.place(&device, &mesh, &Random { seed: 1 });
        let mut trainer = Trainer::new(&at, &L, (Kind::Sgd, None))?;
        let mut best = f64::INFINITY;
        for _ in 0..=STEPS {
            // The first also takes the memory.
            let step = || Ok::<_, parallel::Error>(trainer.step(&batch, 1e-4)?.loss.read());
            best = best.min(measure::work(&device, &mesh, Phase::Step, step)?.1.seconds);
        }
        Ok::<_, parallel::Error>(best * 1e3)
    })?;
    Ok(ranks.into_iter().fold(0.0, f64::max))
}
