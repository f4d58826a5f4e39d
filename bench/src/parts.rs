//! `PipeDream`'s profiler: the costs of each part of a model, measured in training steps of one microbatch on
//! one rank. Every part is a chunk of its own there, so a step's trace has a span for the forward and one for
//! the backward of each part; the update is in none of them.
//!
//! Source: Harlap et al., "`PipeDream`", §3.1, arXiv:1806.03377.
use super::measure::call;
use super::pipeline::cells;
use super::scale::Scale;
use crate::pass::batch;
use comm::{Op, Trace};
use layers::{Design, Shape};
use ops::SGD;
use parallel::dtype::RunDevice;
use parallel::measure::median_and_spread;
use parallel::pipeline::looped_bfs::LoopedBfs;
use parallel::session::Source;
use parallel::step::PassKind;
use parallel::{
    BuildContext, Error, Layout, Network, Pipeline, Result, Schedule, Scheme, Trainer, budget, price,
    session, split,
};
use plan::partition::{ModelProfile, PartCost};
use tensor::Device;

/// Number of first steps that are not counted.
const WARM: usize = 2;
/// Number of steps of which each time is the median.
pub const STEPS: usize = 7;
/// Number of bursts of messages of which the fastest counts.
const TRIES: usize = 4;

/// Measures a model of this shape with these weights on microbatches of `sequences` sequences of `seq`
/// tokens, with elements of `D`. The bandwidth is that of messages as large as an activation between two
/// threads. A table that embedding and head share counts in both ends.
///
/// # Errors
/// If a step does not fit the free memory, or fails.
pub fn profile<D: RunDevice>(
    (shape, values): (Shape, Source<D>),
    [sequences, seq]: [usize; 2],
) -> Result<ModelProfile> {
    let design = Design::from(shape);
    let layout = Layout::UNSPLIT;
    let batch = batch(&Scale { shape, batch: [sequences, seq], ..Scale::FULL })?;
    let schedule: &'static dyn Schedule = &LoopedBfs;
    let pipeline = Pipeline { number: Some(design.parts(1)), ..schedule.into() };
    let scheme = Scheme::<D> { schedule: Some(pipeline), ..(&layout).into() };
    let peak = price::training(scheme, &design, (SGD, None), &batch, |_, _| Ok(()))?;
    budget::fits::<D::Place>("profiling the model", [1, 1], peak.all)?;
    let trace = Trace::new();
    let world = Network { trace: Some(trace.clone()), ..Network::default() }.world(&layout, "a profile")?;
    session::run((scheme, &world), values, |at: BuildContext<D>| {
        let mut trainer = Trainer::new(&at, &design, (SGD, None))?;
        (0..WARM + STEPS).try_for_each(|_| trainer.step(&batch, 0.0).map(drop))
    })?;
    let (runs, plan) = (trace.runs(), pipeline.plan(1, 1));
    let mut took = vec![[const { Vec::new() }; 2]; design.parts(1)];
    for step in 1..=STEPS {
        for (cell, event) in cells(&runs[0].ranks[0], (0, WARM + step), schedule, &plan)?.1 {
            let pass = usize::from(cell.act != PassKind::F);
            took[cell.of.chunk as usize][pass].push(event.took().as_secs_f64());
        }
    }
    let size = size_of::<<D as Device>::Elem>();
    let activation_bytes = sequences * seq * shape.width * size;
    let parts = took.into_iter().zip(split::parameters(&design)?).map(|(took, parameters)| {
        let [forward, backward] = took.map(|times| median_and_spread(times).0);
        PartCost { forward, backward, activation_bytes, weight_bytes: parameters as usize * size }
    });
    let mut parts: Vec<_> = parts.collect();
    parts.iter_mut().next_back().expect("a model has parts").activation_bytes = 0;
    let elements = activation_bytes.div_ceil(size_of::<f32>());
    let send = |best: f64, _| Ok::<_, Error>(call(Op::Send, elements)?.min(best));
    let sent = (0..TRIES).try_fold(f64::INFINITY, send)?;
    Ok(ModelProfile { parts, bandwidth: (elements * size_of::<f32>()) as f64 / sent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::SMALL;
    use ops::EvenValues;
    use tensor::Cpu;

    /// Kills: a part without its time, ends without embedding and head, bytes of another dtype, of one
    /// sequence, or of an activation that no part receives.
    #[test]
    fn every_part_has_its_costs() {
        let shape = Shape { blocks: 3, tied: false, ..SMALL };
        let of = profile::<Cpu<f64>>((shape, &EvenValues), [2, 8]).unwrap();
        assert!(of.parts.iter().all(|part| part.forward > 0.0 && part.backward > 0.0), "{of:?}");
        assert!(of.bandwidth > 0.0 && of.bandwidth.is_finite(), "{of:?}");
        let sent: Vec<_> = of.parts.iter().map(|part| part.activation_bytes).collect();
        assert_eq!(sent, [2 * 8 * shape.width * 8, 2 * 8 * shape.width * 8, 0]);
        let all: usize = of.parts.iter().map(|part| part.weight_bytes).sum();
        assert_eq!(all, 8 * price::parameters(Design::from(shape)).unwrap());
        let [first, middle, last] = [0, 1, 2].map(|part: usize| of.parts[part].weight_bytes);
        assert!(first > middle && last > middle, "{of:?}");
        assert_eq!(
            profile::<Cpu<f32>>((Shape { blocks: 1, ..shape }, &EvenValues), [1, 4]).unwrap().parts.len(),
            1
        );
    }

    /// Kills: the mean, the least or the first of the times.
    #[test]
    fn the_middle_time_counts() {
        assert_eq!(median_and_spread(vec![9.0, 1.0, 2.0]).0, 2.0);
    }
}
