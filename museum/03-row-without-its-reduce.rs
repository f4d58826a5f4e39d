//! Exhibit: 3
//! Title: A row layer's output, not reduced
//! Source: sgl-project/sglang#14811 (pull request): makes the output projection of a layer reduce again;
//!   before it each rank's part of a sum was taken for the sum, as a review says
//! Breaks: every rank goes on with another part of the output
//! Killed by: the compiler: expected `Stream<D>`, found `Partial<D>`
//! F32 loss: none, it does not compile
use comm::Group;
use kernels::Kernels;
use ops::{Result, Rows, Split, Stream, join};

fn row<D: Kernels>(x: &Split<D>, w: &Rows<D>, skip: &Stream<D>, group: &Group<D::Place>) -> Result<Stream<D>> {
    let _ = group;
    Ok(join(x.matmul(w)?, skip))
}

fn main() {}
