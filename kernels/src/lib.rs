//! What a device computes: [`Kernels`], on the host ([`Cpu`](tensor::Cpu), one generic body for every number) and
//! on [`Meta`], which computes nothing and so tells the price.
//!
//! Kernels write into memory they are given: they never allocate and never count, so that bytes and FLOPs are
//! the same on every device. Nothing here knows of ranks.
mod cpu;
mod kernels;
mod meta;
#[cfg(test)]
mod proof;
mod sight;

pub use cpu::{CpuScalar, Packed, bf16, machine, widest};
pub use kernels::{
    Activation, AdamW, Attend, Causal, Heads, Kernels, LossTerms, Qkv, Selects, Slice, Softmax, Span, Write,
};
pub use meta::Meta;
pub use sight::Sight;
