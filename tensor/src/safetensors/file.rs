//! A file to read: checked whole when it is opened, touched only where numbers are read.
use super::dtype::{Dtype, is_float};
use super::header::{self, Header};
use super::{Error, Flaw, Info, Matrix, Storable};
use crate::files;
use crate::files::seen::{self, Tallies};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A safetensors file, or the bytes of one in memory. Clones share it.
#[derive(Clone)]
pub struct File(Arc<Checked>);

/// Mapped, or in memory.
type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

struct Checked {
    bytes: Bytes,
    header: Header,
    path: String,
    seen: Option<Arc<Tallies>>,
}

impl File {
    /// Maps a file and checks its header; nothing of the data is read.
    ///
    /// The file must not change while it is mapped: to change one, replace it with a [`Writer`](super::Writer),
    /// which leaves the mapped one as it is.
    ///
    /// # Errors
    /// If there is no such file, or it is not whole and without contradiction.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, _) = files::open(path)?;
        // SAFETY: whoever changes a file in place while it is mapped breaks the rule above; ours replace it.
        let map = unsafe { Mmap::map(&file) }.map_err(files::Error::system("map", path))?;
        Self::check(Box::new(map), path.display().to_string(), true)
    }
    /// A file that is part of the program; `name` stands for the path in messages.
    ///
    /// # Errors
    /// If it is not whole and without contradiction.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Self, Error> {
        Self::check(Box::new(bytes), name.to_owned(), false)
    }
    fn check(bytes: Bytes, path: String, is_mapped: bool) -> Result<Self, Error> {
        let all = (*bytes).as_ref();
        let header = header::parse(all).map_err(Flaw::of(&path))?;
        let see = || seen::mapped(&path, all, header.end, header.tensors.keys());
        let seen = is_mapped.then(see).flatten();
        Ok(Self(Arc::new(Checked { bytes, header, path, seen })))
    }

    /// The tensors' names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.header.tensors.keys().map(String::as_str)
    }
    /// The tensors' names as they lie in the file: in the order in which they were written.
    pub fn in_order(&self) -> Vec<&str> {
        let mut all: Vec<_> = self.0.header.tensors.iter().collect();
        all.sort_by_key(|(name, info)| (info.data_offsets, *name));
        all.into_iter().map(|(name, _)| name.as_str()).collect()
    }
    /// What the tensor called `name` is.
    pub fn info(&self, name: &str) -> Option<&Info> {
        self.0.header.tensors.get(name)
    }
    /// What its writer noted in the file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.header.metadata
    }

    /// The matrix called `name`, of exactly this shape `[rows, cols]`, of floats of any kind from 16 bits on.
    /// A vector `[n]` counts as `[1, n]`.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix<'_>, Error> {
        let is_vector = |seen: &[usize]| shape[0] == 1 && *seen == shape[1..];
        self.floats((name, shape), &shape, |seen| *seen == shape || is_vector(seen))
    }
    /// The tensor called `name`, which holds `count` matrices of this many rows and columns, one below the other.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn stack(&self, name: &str, [count, rows, cols]: [usize; 3]) -> Result<Matrix<'_>, Error> {
        let shape = [count, rows, cols];
        self.floats((name, [count * rows, cols]), &shape, |seen| *seen == shape)
    }
    /// A tensor of floats as a matrix of this shape, if its own shape fits the one that is wanted.
    fn floats(
        &self,
        (name, shape): (&str, [usize; 2]),
        wanted: &[usize],
        fits: impl Fn(&[usize]) -> bool,
    ) -> Result<Matrix<'_>, Error> {
        let info = self.find(name, wanted, fits)?;
        if !is_float(info.dtype) {
            return Err(self.wrong_dtype(name, info, "F64, F32, F16 or BF16"));
        }
        let tally = self.0.seen.as_ref().and_then(|seen| seen.get(name));
        Ok(Matrix::new(self.bytes(info), info.dtype, shape, tally))
    }
    /// All numbers of the tensor called `name`, of exactly this shape and kind; for small things.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn values<T: Storable>(&self, name: &str, shape: &[usize]) -> Result<Vec<T>, Error> {
        let info = self.find(name, shape, |seen| seen == shape)?;
        if info.dtype != T::DTYPE {
            return Err(self.wrong_dtype(name, info, &T::DTYPE.to_string()));
        }
        Ok(self.bytes(info).chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }
    /// Where it comes from, for messages.
    pub(super) fn path(&self) -> &str {
        &self.0.path
    }
    /// All of a tensor: its dtype, its shape, its bytes.
    pub(super) fn whole(&self, name: &str) -> Option<(Dtype, &[usize], &[u8])> {
        let info = self.info(name)?;
        Some((info.dtype, &info.shape, self.bytes(info)))
    }
    fn bytes(&self, info: &Info) -> &[u8] {
        let (begin, end) = info.data_offsets;
        &(*self.0.bytes).as_ref()[self.0.header.end..][begin..end]
    }
    fn find(&self, name: &str, wanted: &[usize], fits: impl Fn(&[usize]) -> bool) -> Result<&Info, Error> {
        let Some(info) = self.info(name) else {
            return Err(Flaw::missing(&self.0.path, name, self.0.header.tensors.keys()));
        };
        if !fits(&info.shape) {
            let (name, seen, wanted) = (name.to_owned(), info.shape.clone(), wanted.to_owned());
            return Err(Flaw::of(&self.0.path)(Flaw::Shape { name, seen, wanted }));
        }
        Ok(info)
    }
    fn wrong_dtype(&self, name: &str, info: &Info, wanted: &str) -> Error {
        let (name, wanted) = (name.to_owned(), wanted.to_owned());
        Flaw::of(&self.0.path)(Flaw::WrongDtype { name, seen: info.dtype, wanted })
    }
}

#[cfg(test)]
impl File {
    pub(super) fn from_memory(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::check(Box::new(bytes), "memory".to_owned(), false)
    }
    pub(super) fn begin(&self) -> usize {
        self.0.header.end
    }
    pub(super) fn bytes_of(&self, name: &str) -> &[u8] {
        self.whole(name).unwrap().2
    }
}

#[cfg(test)]
mod tests;
