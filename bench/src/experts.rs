//! Experts: their products beside one product of the same work, the all-to-all of their rows beside a copy of
//! the same bytes, and a model with experts whose tokens are dispatched in turn.
use super::all_reduce::bursts;
use super::machine::{Bound, Hardware, Probe};
use super::products::{fastest, matrix};
use super::scale::Scale;
use crate::pass::least;
use comm::{Axis, Mesh};
use layers::{Builder, Experts, Shape};
use ops::{Draw, EvenValues, ExpertWeight, expert_columns};
use parallel::dtype::RunDevice;
use parallel::{Network, Result};
use tensor::{Category, Device, Scalar, Tensor};

/// Experts, tokens of each, and features in and out.
const GROUPED: [usize; 3] = [8, 64, 512];
/// The most calls of a burst, and bytes of a burst.
const CALLS: usize = 1000;
const BURST: usize = 64 << 20;

/// Returns the same scale for a model with experts in place of its feed-forwards.
pub(super) fn scale(scale: &Scale) -> Scale {
    let hidden = scale.shape.hidden / 2;
    let experts = Experts { count: 8, chosen: 2, hidden, forced: true, ..Experts::MIXTRAL };
    let shape = Shape { experts: Some(experts), blocks: scale.shape.blocks.div_ceil(2), ..scale.shape };
    Scale { shape, ..*scale }
}

/// M, N and K of the one product with the same work as those of all experts.
pub(super) fn as_one() -> [usize; 3] {
    let [experts, tokens, features] = GROUPED;
    [experts * tokens, features, features]
}

/// Seconds of every expert's tokens times its own matrix, as in a layer of experts.
pub(super) fn grouped<H: Hardware>(scale: &Scale) -> Result<f64> {
    let device = H::F32::default();
    let [experts, tokens, features] = GROUPED.map(|n| scale.of(n));
    let (x, counts) = (matrix(&device, 1 << 40, experts * tokens, features), vec![tokens; experts]);
    let (mesh, draw) = (Mesh::alone(), Draw { mean: 0.0, std: 1.0 });
    let builder = Builder::new(&device, &mesh, &EvenValues);
    let w = ExpertWeight::new(&builder, "experts", [experts, features], (&[features.into()], false), draw)?
        .matrices()?;
    Ok(fastest::<H>(scale, device.place(), || drop(expert_columns(&x, &counts, &w))))
}

/// Seconds of an all-to-all in which each of two ranks receives `bytes` bytes, a third of them from itself.
pub(super) fn all_to_all<D: RunDevice>(network: &Network, bytes: usize, scale: &Scale) -> Result<f64> {
    let rows = (scale.of(bytes) / 1024).max(3); // of 256 elements
    let calls = (BURST / scale.of(bytes)).clamp(1, scale.of(CALLS));
    let world = network.world(&"dp=2,ep=2".parse()?, "all-to-alls")?;
    let times = world.run(|device: D, mesh| {
        let group = mesh.group(Axis::Ep).named("burst");
        let (own, other) = (rows / 3, rows - rows / 3);
        let counts = if group.rank() == 0 { [own, other] } else { [other, own] };
        let x = Tensor::from_fn(&device, Category::Buffers, rows, 256, |_| D::Elem::ZERO);
        let call = || group.all_to_all_v(&x, &counts, &counts).map(drop);
        network.of_all(&mesh, bursts(&group, device.place(), calls, call)?)
    })?;
    Ok(least(&times.concat()))
}

/// Lower bound of the all-to-all: each rank's result is copied once, by processors that do the same for all
/// ranks, and no rank finishes before it has heard from the other.
pub(super) fn bound(cores: usize, bytes: usize, scale: &Scale) -> Bound {
    vec![(Probe::Copy { cores, bytes: scale.of(bytes) * 2 / cores }, 1.0), (Probe::Meet { threads: 2 }, 1.0)]
}
