//! A planted fault, for tests of the program: one element of one rank changes.
use comm::Mesh;
use kernels::Kernels;
use parallel::Trainer;
use tensor::{Category, Scalar, Tensor};

/// Seed of the runs in which it changes.
const PLANTED: u64 = 7_031_977;
const TENSOR: &str = "blocks.1.norm2";

/// Changes one element on rank 1 after step 3 of a planted run.
pub(super) fn plant<D: Kernels>(trainer: &mut Trainer<D>, mesh: &Mesh<D::Place>, (seed, step): (u64, usize)) {
    if (seed, step, mesh.rank()) != (PLANTED, 3, 1) {
        return;
    }
    let mut params = trainer.model().params();
    let param = params.iter_mut().find(|param| **param.name() == *TENSOR).expect("a parameter of the model");
    let value = param.version();
    let values = value.read().expect("the host has values");
    let [rows, cols] = value.shape();
    let other = |i: usize| if i == 5 { values[i] + D::Elem::ONE } else { values[i] };
    param.exchange(&mut Tensor::from_fn(&param.device().clone(), Category::Weights, rows, cols, other));
}
