//! Exhibit: 4
//! Title: A norm of each rank's addend, before the reduction
//! Source: vllm-project/vllm-ascend#14345 (pull request): each rank's part of the experts' output goes
//!   through an RMSNorm before the all-reduce that should come first
//! Breaks: a sum of norms is no norm of the sum
//! Killed by: the compiler: expected `Stream<_>`, found `Partial<D>`
//! F32 loss: none, it does not compile
use comm::Group;
use kernels::Kernels;
use ops::{Result, Rows, Split, Stream, norm};
use tensor::Tensor;

fn normed<D: Kernels>(x: &Split<D>, w: &Rows<D>, gain: &Tensor<D>, group: &Group<D::Place>) -> Result<Stream<D>> {
    let _ = group;
    Ok(norm(&x.matmul(w)?, gain, None, 1e-5).0)
}

fn main() {}
