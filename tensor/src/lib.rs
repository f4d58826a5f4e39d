//! Numbers, memory and matrices: the ground on which everything else stands. Nothing here knows of ranks.
//!
//! | file | holds |
//! |---|---|
//! | `scalar.rs` | [`Scalar`]: all that layer code may do to a number |
//! | `float.rs`, `field.rs`, `dual.rs` | the numbers: floats run, the field proves, duals differentiate |
//! | `bf16.rs` | a float of 16 bits, whose wide number is `f32` |
//! | `rope.rs`, `dropout.rs` | how far positions turn features; which elements are dropped: what both sides must agree on |
//! | `key.rs` | the random key of the field's opaque functions, set by a guard |
//! | `place.rs`, `device.rs` | a place with memory; a kind of number on it |
//! | `view.rs`, `matrix.rs`, `ids.rs` | windows into memory; matrices and token ids that own it |
//! | `pool.rs` | where their memory rests until it is used again |
//! | `cpu.rs`, `pages.rs` | the host as such a place, and numbers on it: one pool a rank |
//! | `count.rs` | sizes multiplied and added, none of which ever wraps |
//! | `listed.rs` | enumerations with names |
//! | `meter.rs`, `profile.rs` | bytes by category and phase, FLOPs; when each kernel and layer ran |
//! | `quoted.rs` | names from files, as messages show them |
//! | `files.rs` | files opened with clear errors, replaced whole or not at all |
//! | `safetensors.rs` | weights in files: mapped for reading, replaced atomically in writing |
#[macro_use]
mod listed;
mod bf16;
pub mod count;
mod cpu;
mod device;
mod dropout;
mod dual;
mod field;
pub mod files;
mod float;
mod ids;
mod key;
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

pub use bf16::Bf16;
pub use cpu::{Cpu, Host, HostPtr};
pub use device::{Buffer, Device, On, Ptr};
pub use dropout::Dropout;
pub use dual::Dual;
pub use field::{F61, Field};
pub use float::Real;
pub use ids::{IGNORED, Ids, IdsError, Index};
pub use key::{Key, KeyGuard};
pub use matrix::Tensor;
pub use meter::{Category, Meter, Peaks, Phase};
pub use noise::Noise;
pub use pages::Bytes;
pub use place::{Fault, Nowhere, Place, PlaceError, Scratch};
pub use pool::Pool;
pub use profile::{Direction, KernelKind, LayerSpan, Profile, Work, Worked};
pub use rope::{Rope, Scaling};
pub use scalar::{Scalar, mix};
pub use view::{Strided, View, ViewMut};
