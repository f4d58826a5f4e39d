//! NVIDIA GPUs: the driver by FFI, a card as a place, our own kernels on it, and ranks on cards. Building
//! needs no CUDA: the driver is loaded when the program runs, and kernels are committed as PTX. Without a
//! GPU, the same kernels run on the host as the host twin: see `twin.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `library.rs`, `driver.rs` | optional shared libraries; the CUDA driver's functions and errors |
//! | `card.rs`, `ptx.rs` | a card with its stream and kernels; the kernels as committed |
//! | `gpu.rs`, `device.rs` | one rank's use of a card as a place; the device of a dtype on it |
//! | `shared.rs` | ranks on cards: threads that meet as on the host, and share one card |
//! | `nccl.rs`, `cards.rs` | NCCL's functions and communicators; ranks with a card each |
//! | `../kernels/*.cu`, `launches.rs`, `launches/` | the kernels and their launches, one file per family |
//! | `checks.rs`, `checks/` | checks of every kernel, on the host twin and on a card |
//! | `measure.rs`, `cublas.rs` | the speed of kernels on a card, beside copies and NVIDIA's library |
//! | `twin.rs`, `../twin/` | the host twin of the driver: the same kernels, compiled for the host |

// Libraries of the system, found when they are needed, and the kernels' code.
mod library;
mod ptx;

// The driver, and its twin on the host.
mod driver;
#[cfg(any(test, feature = "twin"))]
pub mod twin;

// A card, the libraries that compute on it, and all cards of this process.
mod card;
mod cards;
mod cublas;
mod nccl;

// A place on a card, and a device of one dtype there.
mod device;
mod gpu;

// Kernels, and the launches that run them.
mod compute;
mod launches;

// Ranks that share cards, checks and measurements.
pub mod checks;
pub mod measure;
mod shared;

pub use card::{Card, CardProperties};
pub use device::Cuda;
pub use driver::{CudaError, use_driver};
pub use gpu::{Gpu, GpuBuffer, GpuPtr};
pub use nccl::Nccl;
pub use shared::{CardEngine, MOST_RANKS, take};
