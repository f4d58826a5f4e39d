//! Instances of the trainer with its model, compiled here once for tests, in the dtypes that most tests use.
//! The trainer is generic, so each crate that trains would compile it again. Crates with `opt-level` 0 share
//! the instances of a crate below them with `opt-level` 1.
use crate::{At, Result, Stages, Trainer};
use kernels::Kernels;
use layers::{Cx, Design, Kind};
use tensor::{Cpu, F61, Ids, Tensor};

/// Addresses of the functions from which all others are reached.
fn of<D: Kernels>() -> [*const (); 4] {
    [
        built::<D> as *const (),
        Trainer::<D>::step as *const (),
        Trainer::<D>::evaluate as *const (),
        logits::<D> as *const (),
    ]
}

fn built<D: Kernels>(at: &At<D>, design: Design) -> Result<Trainer<D>> {
    Trainer::new(at, design, (Kind::Sgd, None))
}

fn logits<D: Kernels>(stages: &mut Stages<D>, cx: &Cx<D>, ids: Ids<D::Place>) -> Result<Tensor<D>> {
    stages.logits(cx, ids, true)
}

/// The instances. No code needs to call this function: it names them, so they are compiled.
#[doc(hidden)]
#[inline(never)]
pub fn compiled() -> [[*const (); 4]; 2] {
    [of::<Cpu<F61>>(), of::<Cpu<f32>>()]
}
