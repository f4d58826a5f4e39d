//! Operations of a device: [`Kernels`], generated from one list (`list.rs`), on the host
//! ([`Cpu`](tensor::Cpu), one generic body for every dtype) and on [`Meta`], which computes nothing and so
//! gives the price.
//!
//! Kernels write to memory that is passed to them: they never allocate and never count, so bytes and FLOPs
//! are the same on every device. Nothing here depends on ranks.
#![cfg_attr(
    test,
    allow(dead_code, unused_imports, unused_macros, reason = "unit tests are built without floats' kernels")
)]

// What kernels take besides matrices.
mod arguments;
mod indexed;
mod mask;

// The list of kernels, the trait that it makes, and what each reads and writes.
mod kernels;
mod list;
mod touched;

// Devices: the host, and one that computes nothing.
mod cpu;
mod meta;

pub use arguments::{
    Attend, LossTerms, MeanOver, Qkv, RouterBalance, RouterNoise, RouterTerms, RowShard, RunningSoftmax,
    Scores, Write, loss_scale,
};
pub use cpu::{CpuScalar, Packed, bf16, machine, widest};
pub use indexed::{Indexable, Indexed};
pub use kernels::{Kernels, OrderedKernels};
pub use mask::{Mask, Segment, Span};
pub use meta::{Meta, MetaOf, meta_of, timed_meta_of};
pub use shape::{Activation, Gate, Heads, ScoreTerms};
