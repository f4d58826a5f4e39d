//! GPUs: the driver by FFI, a card's memory as a place, our own kernels on it, ranks that share a card.
//!
//! Nothing of CUDA is needed to build this: the driver is looked for when the program runs, and kernels are committed as
//! PTX. Where there is no GPU, the same kernels run on the host through the driver's twin: see `twin.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `library.rs`, `driver.rs` | shared libraries that may be missing; the CUDA driver's functions and errors |
//! | `card.rs`, `ptx.rs` | a card with its stream and kernels; the kernels as committed |
//! | `gpu.rs`, `device.rs` | one rank's share of a card as a place; numbers on it |
//! | `shared.rs` | ranks on cards: threads that meet as on the host, and share one card |
//! | `nccl.rs`, `cards.rs` | NCCL's functions and communicators; ranks with a card each |
//! | `launches.rs`, `launches/` | how each kernel is launched, one file a family |
//! | `../kernels/*.cu` | the kernels, one file a family |
//! | `checks.rs`, `checks/` | what is checked of every kernel, on the twin and on a card |
//! | `measure.rs`, `cublas.rs` | how fast kernels are on a card, beside its copies and NVIDIA's library |
//! | `twin.rs`, `../twin/` | the driver's twin: the same kernels, compiled for the host |
mod card;
mod cards;
pub mod checks;
mod cublas;
mod device;
mod driver;
mod gpu;
mod launches;
mod library;
pub mod measure;
mod nccl;
mod ptx;
mod shared;
#[cfg(any(test, feature = "twin"))]
pub mod twin;

pub use card::{AboutCard, Card};
pub use device::Cuda;
pub use driver::{CudaError, use_driver};
pub use gpu::{Gpu, GpuBuffer, GpuPtr};
pub use nccl::Nccl;
pub use shared::{Engine, MOST_RANKS, take};
