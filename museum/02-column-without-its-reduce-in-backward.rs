//! Exhibit: 2
//! Title: A column layer's input gradient, not reduced
//! Source: pytorch/torchtitan#1805 (issue): a local tensor is taken out of the distributed one without saying
//!   how its gradient lies, so a reduction is missed in backward
//! Breaks: what lies before the layer learns from one rank's part of its gradient
//! Killed by: the compiler: is not implemented for `Stream<D>`
//! F32 loss: none, it does not compile
use comm::Group;
use kernels::Kernels;
use ops::{Columns, Result, Split, Stream};

fn column_backward<D: Kernels>(dy: &Split<D>, w: Columns<D>, group: &Group<D::Place>) -> Result<Stream<D>> {
    let _ = group;
    let dx = dy.matmul(&w.t())?;
    Ok(dx.into())
}

fn main() {}
