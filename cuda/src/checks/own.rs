//! Checks that only a GPU has: of several of its kernels for one work.
use super::{Check, Checked, gemm, norm, rotary};
use crate::device::Cuda;
use crate::gpu::Gpu;
use tensor::Bf16;

impl Checked for Gpu {
    type Wide = Cuda<f32>;
    type Narrow = Cuda<Bf16>;
    const OWN: &'static [Check<Self>] = &[
        Check {
            family: "gemm",
            name: "every way to compute a product",
            kernels: &[],
            run: gemm::by_every_rung,
        },
        Check {
            family: "gemm",
            name: "products of one row and the kernels around them",
            kernels: &[],
            run: gemm::with_others,
        },
        Check { family: "norm", name: "rms norm by hand", kernels: &[], run: norm::by_hand },
        Check { family: "rotary", name: "a rotation and a cache's write", kernels: &[], run: rotary::as_one },
    ];
}
