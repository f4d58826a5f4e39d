//! Proof and time of a planned graph on this machine.
use comm::World;
use layers::Builder;
use layers::graph::planned::PlannedGraph;
use layers::graph::sharding::Sharding;
use layers::graph::step::GraphStep;
use layers::graph::{Operator, OperatorKind, OperatorSplit};
use ops::RandomValues;
use parallel::measure::median;
use parallel::{Result, budget};
use prove::{GraphVerdict, prove_graph};
use std::sync::Arc;
use std::time::Instant;
use tensor::{Cpu, F61, Key, mix};

/// The most ranks, and the most multiplications of a forward, that are run here.
const RANKS: usize = 64;
const WORK: usize = 2_000_000_000;
/// Steps that are timed, beyond the first.
const STEPS: usize = 5;

/// Multiplications of a forward.
fn work(plan: &PlannedGraph) -> usize {
    let operations = |operator: &Operator| {
        let [rows, columns] = plan.graph.tensors[operator.output].shape;
        let inner = match operator.kind {
            OperatorKind::Product => plan.graph.tensors[operator.inputs[0]].shape[1],
            OperatorKind::Attention { seq, .. } => 2 * seq,
            _ => 1,
        };
        rows.saturating_mul(columns).saturating_mul(inner)
    };
    plan.graph.operators.iter().map(operations).fold(0, usize::saturating_add)
}

/// Bytes that all ranks hold in a proof, at most: each matrix of each operator, its gradient, what is kept of
/// it, and the oracle's.
fn held(plan: &PlannedGraph, ranks: usize) -> u128 {
    let share = |(tensor, at): (&usize, &Sharding)| {
        let [rows, columns] = plan.graph.tensors[*tensor].shape;
        let blocks: usize = at.blocks(&plan.mesh).iter().product();
        (rows as u128 * columns as u128).div_ceil(blocks as u128) * ranks as u128
    };
    let of = |(operator, split): (&Operator, &OperatorSplit)| -> u128 {
        operator.inputs.iter().zip(&split.inputs).chain([(&operator.output, &split.output)]).map(share).sum()
    };
    let elements: u128 = plan.graph.operators.iter().zip(&plan.splits).map(of).sum();
    4 * elements * size_of::<F61>() as u128
}

/// Proves a plan, and times a step of it in f32 on the rank that takes the longest, in seconds; `None` if it
/// is too large for that.
///
/// # Errors
/// If a rank fails.
pub(super) fn run(plan: &PlannedGraph) -> Result<Option<(GraphVerdict, f64)>> {
    let ranks: usize = plan.mesh.iter().map(|(_, size)| size).product();
    if ranks > RANKS || work(plan) > WORK || !budget::fits_in_free(held(plan, ranks), budget::free()) {
        return Ok(None);
    }
    let (plan, world) = (Arc::new(plan.clone()), World::threads(&plan.mesh)?);
    let verdict = prove_graph(&plan, &world, Key(mix(std::process::id().into())))?;
    let number = |tensor: usize, i: usize| (mix((tensor << 32 | i) as u64) % 256) as f32 / 256.0;
    let seconds = world.run(|device: Cpu<f32>, mesh| {
        let values = RandomValues { seed: 1 };
        let builder = Builder::new(&device, &mesh, &values);
        let mut step = GraphStep::build(&builder, &plan, &number)?;
        step.run()?;
        let timed = |_| {
            let start = Instant::now();
            step.run().map(|()| start.elapsed().as_secs_f64())
        };
        Ok::<_, ops::Error>(median((0..STEPS).map(timed).collect::<ops::Result<_>>()?).expect("some steps"))
    })?;
    Ok(Some((verdict, seconds.into_iter().fold(0.0, f64::max))))
}
