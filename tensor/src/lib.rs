//! Dtypes, memory and matrices, on which everything else is built. Nothing here depends on ranks.
//!
//! | file | holds |
//! |---|---|
//! | `scalar.rs` | [`Scalar`]: all operations that layer code may apply to an element |
//! | `float.rs`, `field.rs`, `dual.rs` | floats run, the field proves, duals differentiate |
//! | `rope.rs`, `dropout.rs`, `noise.rs`, `scalar/codes.rs` | rotation, dropout, noise, codes of 8 bits |
//! | `key.rs` | the random key of the field's opaque functions, set by a guard |
//! | `place.rs`, `device.rs`, `cpu.rs`, `pages.rs` | places with memory, and dtypes on them |
//! | `view.rs`, `matrix.rs`, `ids.rs` | windows into memory; matrices and token ids that own it |
//! | `away.rs`, `meter.rs` | free memory for reuse; matrices off the device; bytes and FLOPs |
//! | `profile.rs`, `clock.rs` | times of kernels that run, and of kernels and moves that do not |
//! | `count.rs`, `listed.rs`, `quoted.rs` | sizes that never wrap; enums with names; names in messages |
//! | `files.rs`, `limits.rs` | files with clear errors, replaced whole; threads and memory that are refused |
//! | `safetensors.rs` | weights in files: mapped for reading, replaced atomically in writing |
#![cfg_attr(test, allow(clippy::too_many_lines))] // a test tells one story

// Ground: counts that never wrap, names in messages, threads and memory that are refused, hashes, times.
pub mod count;
pub mod limits;
#[macro_use]
mod listed;
mod mix;
mod pages;
mod profile;
pub mod quoted;
mod rounding;
pub mod size;

// Files, and the operations that an element has.
mod clock;
pub mod files;
mod key;
mod rope;
mod scalar;

// Dtypes: floats run, the field proves, duals differentiate; what is drawn of them.
mod dropout;
mod dual;
mod field;
mod float;
mod noise;

// Elements as bytes, and work on many of them.
pub mod bulk;
pub mod dtype;

// Memory of a place, and dtypes on it.
mod device;
mod meter;
mod place;

// Matrices and token ids that own memory, and views of them.
mod away;
mod cpu;
mod ids;
mod matrix;
mod view;

// Weights in files.
pub mod safetensors;

pub use away::{Away, Move, Store};
pub use clock::{Clock, KernelWork, StoreKind};
pub use cpu::{Cpu, Host, HostPtr};
pub use device::{Buffer, Device, On, Ptr};
pub use dropout::Dropout;
pub use dual::Dual;
pub use field::{F61, Field};
pub use float::Real;
pub use float::bf16::Bf16;
pub use float::f16::F16;
pub use ids::{IGNORED, IdsError, Index, TokenIds};
pub use key::{Key, KeyGuard};
pub use limits::PlaceError;
pub use matrix::Tensor;
pub use meter::{Category, Meter, OutOfMemory, Peaks, Phase};
pub use mix::mix;
pub use noise::Noise;
pub use pages::Bytes;
pub use place::pool::Pool;
pub use place::{MetaPlace, Place, Scratch};
pub use profile::{Direction, KernelKind, LayerSpan, Profile, ProfileEntry, Work};
pub use rope::{PairFactors, Rope, Scaling};
pub use scalar::Scalar;
pub use scalar::codes::{CodeKind, Coded};
pub use size::{parse_bytes, readable};
pub use view::{Strided, View, ViewMut};
