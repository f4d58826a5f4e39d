//! Dtypes, memory and matrices, on which everything else is built. Nothing here depends on ranks.
//!
//! | file | holds |
//! |---|---|
//! | `scalar.rs` | [`Scalar`]: all operations that layer code may apply to an element |
//! | `float.rs`, `narrow.rs`, `field.rs`, `dual.rs` | floats run, the field proves, duals differentiate |
//! | `rope.rs`, `dropout.rs`, `noise.rs`, `codes.rs` | rotation, dropout, noise, codes of 8 bits |
//! | `key.rs` | the random key of the field's opaque functions, set by a guard |
//! | `place.rs`, `device.rs`, `cpu.rs`, `pages.rs` | places with memory, and dtypes on them |
//! | `view.rs`, `matrix.rs`, `ids.rs` | windows into memory; matrices and token ids that own it |
//! | `pool.rs`, `away.rs`, `meter.rs` | free memory for reuse; matrices off the device; bytes and FLOPs |
//! | `profile.rs`, `clock.rs` | times of kernels that run, and of kernels and moves that do not |
//! | `count.rs`, `listed.rs`, `quoted.rs` | sizes that never wrap; enums with names; names in messages |
//! | `files.rs`, `limits.rs` | files with clear errors, replaced whole; threads and memory that are refused |
//! | `safetensors.rs` | weights in files: mapped for reading, replaced atomically in writing |
#![cfg_attr(test, allow(clippy::too_many_lines))] // a test tells one story
#[macro_use]
mod listed;
#[macro_use]
mod narrow;
mod away;
mod bf16;
pub mod bulk;
mod clock;
mod codes;
pub mod count;
mod cpu;
mod device;
mod dropout;
mod dual;
mod f16;
mod field;
pub mod files;
mod float;
mod ids;
mod key;
pub mod limits;
mod matrix;
mod meter;
mod noise;
mod pages;
mod place;
mod pool;
mod profile;
pub mod quoted;
mod rope;
pub mod safetensors;
mod scalar;
mod view;

pub use away::{Away, Move, Store};
pub use bf16::Bf16;
pub use clock::{Clock, KernelWork, StoreKind};
pub use codes::{CodeKind, Coded};
pub use cpu::{Cpu, Host, HostPtr};
pub use device::{Buffer, Device, On, Ptr};
pub use dropout::Dropout;
pub use dual::Dual;
pub use f16::F16;
pub use field::{F61, Field};
pub use float::Real;
pub use ids::{IGNORED, IdsError, Index, TokenIds};
pub use key::{Key, KeyGuard};
pub use limits::PlaceError;
pub use matrix::Tensor;
pub use meter::{Category, Meter, Peaks, Phase};
pub use noise::Noise;
pub use pages::Bytes;
pub use place::{MetaPlace, OutOfMemory, Place, Scratch};
pub use pool::Pool;
pub use profile::{Direction, KernelKind, LayerSpan, Profile, ProfileEntry, Work};
pub use rope::{Rope, Scaling};
pub use scalar::{Scalar, mix};
pub use view::{Strided, View, ViewMut};
