//! Instances of the trainer with its model, compiled here once for tests, in the dtypes that most tests use.
//! The trainer is generic, so each crate that trains would compile it again. Crates with `opt-level` 0 share
//! the instances of a crate below them with `opt-level` 1.
use crate::{BuildContext, Result, Stages, Trainer};
use kernels::Kernels;
use layers::Design;
use ops::{PassContext, SGD};
use tensor::{Cpu, F61, Tensor, TokenIds};

/// Addresses of the functions from which all others are reached.
fn of<D: Kernels>() -> [*const (); 4] {
    [
        built::<D> as *const (),
        Trainer::<D>::step as *const (),
        Trainer::<D>::evaluate as *const (),
        logits::<D> as *const (),
    ]
}

fn built<D: Kernels>(at: &BuildContext<D>, design: Design) -> Result<Trainer<D>> {
    Trainer::new(at, design, (SGD, None))
}

fn logits<D: Kernels>(
    stages: &mut Stages<D>,
    cx: &PassContext<D>,
    ids: TokenIds<D::Place>,
) -> Result<Tensor<D>> {
    stages.logits(cx, ids, true)
}

/// The instances. No code needs to call this function: it names them, so they are compiled.
#[doc(hidden)]
#[inline(never)]
pub fn compiled() -> [[*const (); 4]; 2] {
    [of::<Cpu<F61>>(), of::<Cpu<f32>>()]
}
