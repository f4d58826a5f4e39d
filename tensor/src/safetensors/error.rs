//! Errors of a safetensors file: one sentence each, with the value seen and the value wanted.
use super::header::MAX_HEADER;
use crate::dtype::{Dtype, KINDS};
use crate::files;
use crate::quoted::{displayed, quoted, sentence};

/// Error of reading or writing a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of the file itself.
    #[error(transparent)]
    File(#[from] files::Error),
    /// Flaw in its contents, or in a request.
    #[error("{path}: {fault}")]
    Fault {
        /// Path of the file.
        path: String,
        /// The flaw.
        fault: FormatError,
    },
}

/// Flaw in a file's contents, or in a request to it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the sentences say what the fields are
pub enum FormatError {
    /// A file too short for the header's length.
    #[error("the file has {seen} bytes, wanted at least 8 for the length of its header")]
    Short { seen: usize },
    /// A header length outside of the limits.
    #[error("the header's length is {seen} bytes, wanted 2 to {MAX_HEADER}")]
    HeaderLength { seen: u64 },
    /// The file ends in its header.
    #[error("the header's length is {seen} bytes, but only {left} follow in the file")]
    HeaderTruncated { seen: u64, left: usize },
    /// The header is not text.
    #[error("the header is not UTF-8 from its byte {at} on")]
    NotUtf8 { at: usize },
    /// The header is not JSON, or not of the format's structure.
    #[error("the header is not the JSON of the safetensors format: {}", sentence(why))]
    Json { why: String },
    /// A header that does not have its digest.
    #[error("the header is altered: its digest is {seen}, wanted {}", quoted(wanted))]
    HeaderAltered { seen: String, wanted: String },
    /// Digests that are not those of the tensors.
    #[error("the digests of the tensors are {seen} characters, wanted {wanted} hexadecimal digits")]
    Digests { seen: usize, wanted: usize },
    /// A tensor that does not have its digest.
    #[error("tensor {} is torn or altered: its digest is another", quoted(name))]
    Altered { name: String },
    /// Two entries of one name.
    #[error("{what} {} appears twice, wanted once", quoted(name))]
    Twice { what: &'static str, name: String },
    /// A name that the format reserves.
    #[error("a tensor is named {}, a name that the format reserves", quoted(name))]
    Reserved { name: String },
    /// An unknown dtype.
    #[error("tensor {} has dtype {}, wanted one of {KINDS}", quoted(name), quoted(seen))]
    UnknownDtype { name: String, seen: String },
    /// A size in bytes that overflows.
    #[error("tensor {} has shape {} of {dtype}, whose size in bytes overflows", quoted(name), list(shape))]
    Overflow { name: String, shape: Vec<usize>, dtype: Dtype },
    /// A range that ends before it begins.
    #[error(
        "tensor {} begins at byte {begin} of the data and ends at {end}, wanted an end after the beginning",
        quoted(name)
    )]
    Reversed { name: String, begin: usize, end: usize },
    /// A range beyond the end of the file.
    #[error("tensor {} ends at byte {end} of the data, but the file has only {len}", quoted(name))]
    Outside { name: String, end: usize, len: usize },
    /// A range whose size is not the shape's.
    #[error(
        "tensor {} has {seen} bytes of data, wanted {wanted} for shape {} of {dtype}",
        quoted(name),
        list(shape)
    )]
    Size { name: String, shape: Vec<usize>, dtype: Dtype, seen: usize, wanted: usize },
    /// Two ranges share bytes.
    #[error(
        "tensor {} begins at byte {begin} of the data, but {} ends at {wanted}: they overlap",
        quoted(name),
        quoted(before)
    )]
    Overlap { name: String, before: String, begin: usize, wanted: usize },
    /// Bytes before a tensor that no tensor describes.
    #[error(
        "tensor {} begins at byte {begin} of the data, wanted {wanted}: the format forbids holes",
        quoted(name)
    )]
    Hole { name: String, begin: usize, wanted: usize },
    /// Bytes after the last tensor that no tensor describes.
    #[error("the file has {seen} bytes of data, but its tensors end at {wanted}")]
    Trailing { seen: usize, wanted: usize },
    /// A requested tensor that is missing.
    #[error("there is no tensor {} among the {count} of the file ({some})", quoted(name))]
    Missing { name: String, count: usize, some: String },
    /// A requested shape that is not the tensor's.
    #[error("tensor {} has shape {}, wanted {}", quoted(name), list(seen), list(wanted))]
    Shape { name: String, seen: Vec<usize>, wanted: Vec<usize> },
    /// A requested dtype that is not the tensor's.
    #[error("tensor {} has dtype {seen}, wanted {wanted}", quoted(name))]
    WrongDtype { name: String, seen: Dtype, wanted: String },
    /// Weights in a format that can hold programs.
    #[error(
        "the weights are in {seen}, wanted model.safetensors, as save_pretrained of transformers writes it"
    )]
    Pickled { seen: &'static str },
    /// The index is not JSON, or not of the format's structure.
    #[error("the index is not the JSON of a list of tensors by file: {}", sentence(why))]
    Index { why: String },
    /// A file name in the index that leads out of its folder.
    #[error(
        "the index puts tensor {} in {}, wanted the name of a file in the same folder",
        quoted(name),
        quoted(file)
    )]
    NoPlainName { name: String, file: String },
    /// A file of the index that is missing.
    #[error("the index puts tensor {} in {}, but there is no such file", quoted(name), quoted(file))]
    NoShard { name: String, file: String },
    /// A tensor of the index that is missing.
    #[error("the index puts tensor {} in {}, which has no such tensor", quoted(name), quoted(file))]
    NotInShard { name: String, file: String },
    /// A tensor that the index does not list.
    #[error("tensor {} is in {}, but not in the index", quoted(name), quoted(file))]
    Unlisted { name: String, file: String },
    /// A tensor in two files.
    #[error("tensor {} is in {} and in {}, wanted once", quoted(name), quoted(file), quoted(other))]
    InTwo { name: String, file: String, other: String },
    /// A value too large for the dtype of the file.
    #[error("tensor {} has the value {value}, which is too large for {dtype}", quoted(name))]
    TooLarge { name: String, value: f64, dtype: Dtype },
    /// A tensor written out of order.
    #[error("tensor {} was passed to write, wanted {wanted}", quoted(seen))]
    Order { seen: String, wanted: String },
    /// A tensor written with more or fewer elements than announced.
    #[error("tensor {} was passed {seen} elements to write, wanted {wanted}", quoted(name))]
    Count { name: String, seen: usize, wanted: usize },
    /// A file finished before all tensors were written.
    #[error("{written} of {wanted} tensors were written, the next is {}", quoted(next))]
    Unfinished { written: usize, wanted: usize, next: String },
    /// A write after a failed one.
    #[error("cannot write after an earlier write failed")]
    Broken,
}

/// Formats dimensions, of which a file may list any number.
fn list(dimensions: &[usize]) -> String {
    displayed(&format!("{dimensions:?}"))
}

impl FormatError {
    /// Returns a function that adds the file's path to a flaw.
    pub(super) fn of(path: &str) -> impl Fn(FormatError) -> Error + use<> {
        let path = path.to_owned();
        move |fault| Error::Fault { path: path.clone(), fault }
    }
    /// Error for a missing tensor, with some of the names that exist.
    pub(super) fn missing<'a>(
        path: &str,
        name: &str,
        among: impl ExactSizeIterator<Item = &'a String>,
    ) -> Error {
        let count = among.len();
        let mut some = among.take(4).map(|name| displayed(name)).collect::<Vec<_>>().join(", ");
        some += if count > 4 { ", …" } else { "" };
        Self::of(path)(Self::Missing { name: name.to_owned(), count, some })
    }
}
