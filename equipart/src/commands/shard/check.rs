//! Proof and time of a planned graph on this machine.
use comm::{Axis, World};
use layers::graph::planned::PlannedGraph;
use layers::graph::sharding::Sharding;
use layers::graph::step::GraphStep;
use layers::graph::{OperatorKind, OperatorSplit};
use layers::{Builder, RandomValues};
use parallel::Result;
use std::sync::Arc;
use std::time::Instant;
use tensor::{Cpu, F61, Key, Scalar, mix};

/// The most ranks, and the most multiplications of a step, that are run here.
const RANKS: usize = 64;
const WORK: usize = 3_000_000_000;
/// Steps that are timed, beyond the first.
const STEPS: usize = 5;

/// Result of a check.
pub(super) struct GraphCheck {
    /// True if all equals the unsplit graph.
    pub(super) equal: bool,
    /// Number of results, gradients and new parameters.
    pub(super) tensors: usize,
    /// Seconds of a step in f32 on the rank that takes the longest.
    pub(super) seconds: f64,
}

/// Value of an element of a matrix.
fn number<S: Scalar>(tensor: usize, i: usize) -> S {
    S::from_usize((mix((tensor << 32 | i) as u64) % 251) as usize) * S::from_f64(1.0 / 256.0)
}

/// Multiplications of a forward.
fn work(plan: &PlannedGraph) -> usize {
    let of = |operator: &layers::graph::Operator| {
        let [rows, columns] = plan.graph.tensors[operator.output].shape;
        let inner = match operator.kind {
            OperatorKind::Product => plan.graph.tensors[operator.inputs[0]].shape[1],
            OperatorKind::Attention { seq, .. } => 2 * seq,
            _ => 1,
        };
        rows.saturating_mul(columns).saturating_mul(inner)
    };
    plan.graph.operators.iter().map(of).fold(0, usize::saturating_add)
}

/// Proves a plan against the same graph on one rank, and times it; `None` if it is too large for that.
///
/// # Errors
/// If a rank fails.
pub(super) fn run(plan: &PlannedGraph) -> Result<Option<GraphCheck>> {
    let ranks: usize = plan.mesh.iter().map(|(_, size)| size).product();
    if ranks > RANKS || work(plan) > WORK {
        return Ok(None);
    }
    let key = Key(mix(std::process::id().into()));
    let _key = key.enter();
    let whole = |operator: &layers::graph::Operator| OperatorSplit {
        inputs: operator.inputs.iter().map(|_| Sharding::WHOLE).collect(),
        output: Sharding::WHOLE,
    };
    let alone = PlannedGraph {
        mesh: vec![(Axis::Tp, 1)],
        splits: plan.graph.operators.iter().map(whole).collect(),
        forward: plan.forward.iter().map(|all| vec![Vec::new(); all.len()]).collect(),
        backward: plan.backward.iter().map(|all| vec![Vec::new(); all.len()]).collect(),
        ..plan.clone()
    };
    let [plan, alone] = [plan.clone(), alone].map(Arc::new);
    let trace = |plan: &Arc<PlannedGraph>| {
        let world = World::threads(&plan.mesh)?;
        let all = world.run(|device: Cpu<F61>, mesh| {
            let values = RandomValues { seed: 1 };
            GraphStep::build(&Builder::new(&device, &mesh, &values), plan, &number)?.trace()
        });
        Ok::<_, parallel::Error>(all?)
    };
    let (split, unsplit) = (trace(&plan)?, trace(&alone)?);
    let wanted = &unsplit[0][1];
    let seconds = World::threads(&plan.mesh)?.run(|device: Cpu<f32>, mesh| {
        let values = RandomValues { seed: 1 };
        let at = Builder::new(&device, &mesh, &values);
        let mut step = GraphStep::build(&at, &plan, &number)?;
        step.run()?;
        let mut all = Vec::new();
        for _ in 0..STEPS {
            let start = Instant::now();
            step.run()?;
            all.push(start.elapsed().as_secs_f64());
        }
        all.sort_by(f64::total_cmp);
        Ok::<_, layers::Error>(all[STEPS / 2])
    })?;
    Ok(Some(GraphCheck {
        equal: split.iter().all(|[_, seen]| seen == wanted),
        tensors: wanted.len(),
        seconds: seconds.into_iter().fold(0.0, f64::max),
    }))
}
