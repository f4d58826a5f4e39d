//! What can be wrong with a file: one sentence each, with the value seen and the value wanted.
use super::dtype::{Dtype, KINDS};
use super::header::MAX_HEADER;
use crate::files;
use crate::quoted::{quoted, sentence, shown};

/// Why a safetensors file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file itself.
    #[error(transparent)]
    File(#[from] files::Error),
    /// What is in it, or what was asked of it.
    #[error("{path}: {fault}")]
    Fault {
        /// Which file.
        path: String,
        /// What is wrong.
        fault: Flaw,
    },
}

/// What is wrong with a file's contents, or with what was asked of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the sentences say what the fields are
pub enum Flaw {
    /// There is no room for the header's length.
    #[error("the file has {seen} bytes, wanted at least 8 for the length of its header")]
    Short { seen: usize },
    /// No header has this length.
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
    /// Two of one name.
    #[error("{what} {} comes twice, wanted once", quoted(name))]
    Twice { what: &'static str, name: String },
    /// A tensor may not have this name.
    #[error("a tensor is named {}, which is the format's own word", quoted(name))]
    Reserved { name: String },
    /// Numbers of a kind unknown here.
    #[error("tensor {} has dtype {}, wanted one of {KINDS}", quoted(name), quoted(seen))]
    UnknownDtype { name: String, seen: String },
    /// More bytes than can be counted.
    #[error("tensor {} has shape {} of {dtype}, whose size in bytes overflows", quoted(name), list(shape))]
    Overflow { name: String, shape: Vec<usize>, dtype: Dtype },
    /// A range that ends before it begins.
    #[error(
        "tensor {} begins at byte {begin} of the data and ends at {end}, wanted an end after the beginning",
        quoted(name)
    )]
    Reversed { name: String, begin: usize, end: usize },
    /// A range that is not in the file.
    #[error("tensor {} ends at byte {end} of the data, but the file has only {len}", quoted(name))]
    Outside { name: String, end: usize, len: usize },
    /// A range of another size than the shape's.
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
    /// Bytes that no tensor describes, before one.
    #[error(
        "tensor {} begins at byte {begin} of the data, wanted {wanted}: the format forbids holes",
        quoted(name)
    )]
    Hole { name: String, begin: usize, wanted: usize },
    /// Bytes that no tensor describes, after the last.
    #[error("the file has {seen} bytes of data, but its tensors end at {wanted}")]
    Trailing { seen: usize, wanted: usize },
    /// Asked for what is not there.
    #[error("there is no tensor {} among the {count} of the file ({some})", quoted(name))]
    Missing { name: String, count: usize, some: String },
    /// Asked for in another shape.
    #[error("tensor {} has shape {}, wanted {}", quoted(name), list(seen), list(wanted))]
    Shape { name: String, seen: Vec<usize>, wanted: Vec<usize> },
    /// Asked for in another kind of number.
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
    /// An index that leads out of its folder.
    #[error(
        "tensor {} is said to be in {}, wanted the name of a file in the same folder",
        quoted(name),
        quoted(file)
    )]
    NoPlainName { name: String, file: String },
    /// A file of the index that is missing.
    #[error("tensor {} is said to be in {}, but there is no such file", quoted(name), quoted(file))]
    NoShard { name: String, file: String },
    /// A tensor of the index that is missing.
    #[error("tensor {} is said to be in {}, which has no such tensor", quoted(name), quoted(file))]
    NotInShard { name: String, file: String },
    /// A tensor that the index forgot.
    #[error("tensor {} is in {}, but not in the index", quoted(name), quoted(file))]
    Unlisted { name: String, file: String },
    /// A tensor in two files.
    #[error("tensor {} is in {} and in {}, wanted once", quoted(name), quoted(file), quoted(other))]
    InTwo { name: String, file: String, other: String },
    /// A number too large for the kind it should be written as.
    #[error("tensor {} has the number {value}, which is too large for {dtype}", quoted(name))]
    TooLarge { name: String, value: f64, dtype: Dtype },
    /// Written out of turn.
    #[error("tensor {} was given to write, wanted {wanted}", quoted(seen))]
    Order { seen: String, wanted: String },
    /// Written with more or fewer numbers than announced.
    #[error("tensor {} was given {seen} numbers to write, wanted {wanted}", quoted(name))]
    Count { name: String, seen: usize, wanted: usize },
    /// Finished too early.
    #[error("{written} of {wanted} tensors were written, the next is {}", quoted(next))]
    Unfinished { written: usize, wanted: usize, next: String },
    /// Went on after an error.
    #[error("nothing more can be written, as an earlier write failed")]
    Broken,
}

/// Dimensions, of which a file may list any number.
fn list(dimensions: &[usize]) -> String {
    shown(&format!("{dimensions:?}"))
}

impl Flaw {
    /// This fault, with the file it is about.
    pub(super) fn of(path: &str) -> impl Fn(Flaw) -> Error + use<> {
        let path = path.to_owned();
        move |fault| Error::Fault { path: path.clone(), fault }
    }
    /// No tensor of this name among these.
    pub(super) fn missing<'a>(
        path: &str,
        name: &str,
        among: impl ExactSizeIterator<Item = &'a String>,
    ) -> Error {
        let count = among.len();
        let mut some = among.take(4).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
        some += if count > 4 { ", …" } else { "" };
        Self::of(path)(Self::Missing { name: name.to_owned(), count, some })
    }
}
