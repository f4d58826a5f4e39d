//! Weights in files of the safetensors format: mapped for reading, replaced atomically in writing.
//!
//! ```text
//! u64 n, little-endian | n bytes of JSON, padded with spaces to a multiple of 8 | data, without holes
//! {"__metadata__": {"key": "value", ..}, "name": {"dtype":"F32", "shape":[2, 3], "data_offsets":[0,24]}, ..}
//! ```
//! A [`File`] is checked whole when opened: afterwards every tensor lies in the data and covers its own
//! bytes. Reading a [`Matrix`] touches only the pages of the elements read, so a rank that reads its part of
//! a model reads that part of the file. A model is one file, or several with an index. A [`Writer`] takes
//! tensor after tensor; a [`SplitFile`] is written by several ranks.
//!
//! The format's own crate provides dtypes, the description of a tensor and the header's text. Its reader is
//! only the oracle of the tests: it keeps the last of two tensors with one name, does not name the faulty
//! tensor, and adds sizes that may overflow. Its writer sorts tensors, writes metadata in any order, and does
//! not sync to disk. Source: <https://github.com/huggingface/safetensors>, "Format".
#[cfg(test)]
#[path = "safetensors/tests/adversary.rs"]
mod adversary;
mod digest;
mod error;
mod file;
mod header;
mod matrix;
mod shards;
mod split;
mod writer;

pub use crate::dtype::{Dtype, FileFloats, Storable};
pub use error::{Error, FormatError};
pub use file::File;
pub use header::Info;
pub use matrix::Matrix;
pub use shards::index_of;
pub use split::{SplitFile, SplitWriter};
pub use writer::Writer;
