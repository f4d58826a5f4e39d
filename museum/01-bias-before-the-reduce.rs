//! Exhibit: 1
//! Title: A row layer's bias, added before the reduction
//! Source: huggingface/text-generation-inference#1036 (issue): the bias is added to each rank's part of the
//!   output, which is all-reduced then
//! Breaks: the bias counts once per tensor rank
//! Killed by: the compiler: expected `&Partial<D>`, found `&Tensor<D>`
//! F32 loss: none, it does not compile
use comm::Group;
use kernels::Kernels;
use ops::{Region, Result, Rows, Split, Stream};
use tensor::Tensor;

fn row<D: Kernels>(x: &Split<D>, w: &Rows<D>, bias: &Tensor<D>, group: &Group<D::Place>) -> Result<Stream<D>> {
    let y = x.matmul(w)?;
    (y + bias).reduce(group, Region::Whole)
}

fn main() {}
