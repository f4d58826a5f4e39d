//! Weights in files of the safetensors format: mapped for reading, replaced atomically in writing.
//!
//! ```text
//! u64 n, little-endian | n bytes of JSON, padded with spaces to a multiple of 8 | data, without holes
//! {"__metadata__": {"key": "value", ..}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..}
//! ```
//! A [`File`] is checked whole when it is opened: afterwards every description lies in the data and covers its own
//! bytes. Reading a [`Matrix`] touches the pages of the numbers that are read, and no others, so a rank that
//! wants its share of a large model reads its share of a large file. The tensors of a model are in one file,
//! or in several with an index. A [`Writer`] takes one tensor after the other.
//!
//! The format's own crate has the kinds of numbers, the description of a tensor and a header's text. Its reader is the
//! oracle of the tests and no more: it keeps the last of two tensors with one name, says neither which tensor is wrong nor
//! what it saw and wanted, and adds sizes that may overflow. Its writer sorts tensors, notes come in any order, and it
//! brings nothing to the disk. Source: <https://github.com/huggingface/safetensors>, "Format".
#[cfg(test)]
mod adversary;
mod dtype;
mod error;
mod file;
mod header;
mod matrix;
pub(crate) mod rounding;
mod shards;
mod writer;

pub use dtype::{Dtype, Storable};
pub use error::{Error, Flaw};
pub use file::File;
pub use header::Info;
pub use matrix::Matrix;
pub use writer::Writer;
