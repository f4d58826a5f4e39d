//! Tensors to read: a file is checked when it is opened, and its data is touched only where elements are
//! read.
use super::digest::{self, TensorBlocks};
use super::error::{Error, FormatError};
use super::header::{self, Header, Info};
use super::matrix::{Matrix, ReadChecks};
use crate::dtype::{Dtype, Storable, is_float, size};
use crate::files;
use crate::files::mapped::MappedFile;
use crate::files::seen::{self, Tallies};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Tensors of one safetensors file, of bytes in memory, or of several files ([`File::open_folder`]). Clones
/// share them.
#[derive(Clone)]
pub struct File(pub(super) Arc<TensorFiles>);

/// The files, and the file of each tensor.
pub(super) struct TensorFiles {
    pub(super) path: String, // of the one file, or of the index of several
    pub(super) files: Vec<SafetensorsFile>,
    pub(super) place: BTreeMap<String, usize>,
}

/// Bytes of a file, mapped or in memory.
type FileBytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// One checked file.
pub(super) struct SafetensorsFile {
    bytes: FileBytes,
    pub(super) header: Header,
    blocks: BTreeMap<String, TensorBlocks>, // digests of the tensors; none if the file has none
    path: String,
    seen: Option<Arc<Tallies>>,
}

impl SafetensorsFile {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let (file, _) = files::open(path)?;
        let map = MappedFile::new(&file, path)?;
        Self::check(Box::new(map), path.display().to_string(), true)
    }
    fn check(bytes: FileBytes, path: String, is_mapped: bool) -> Result<Self, Error> {
        let content = (*bytes).as_ref();
        let mut header = header::parse(content).map_err(FormatError::of(&path))?;
        let blocks = digest::take(content, &mut header).map_err(FormatError::of(&path))?;
        let see = || seen::mapped(&path, content, header.end, header.tensors.keys());
        let seen = is_mapped.then(see).flatten();
        Ok(Self { bytes, header, blocks, path, seen })
    }
    fn bytes(&self, info: &Info) -> &[u8] {
        let (begin, end) = info.data_offsets;
        &(*self.bytes).as_ref()[self.header.end..][begin..end]
    }
    fn watched(&self, name: &str, info: &Info) -> ReadChecks<'_> {
        let tally = self.seen.as_ref().and_then(|seen| seen.get(name));
        ReadChecks { tally, blocks: self.blocks.get(name).map(|blocks| (blocks, self.bytes(info))), first: 0 }
    }
    /// Returns an error if a part of the tensor that was read does not have its digest.
    fn intact(&self, name: &str) -> Result<(), Error> {
        match self.blocks.get(name) {
            Some(blocks) if !blocks.are_intact() => {
                Err(FormatError::of(&self.path)(FormatError::Altered { name: name.to_owned() }))
            }
            _ => Ok(()),
        }
    }
    /// Reads a whole tensor, and checks it.
    fn verify(&self, name: &str, info: &Info) -> Result<(), Error> {
        if let Some(blocks) = self.blocks.get(name) {
            blocks.read(self.bytes(info), 0..self.bytes(info).len());
        }
        self.intact(name)
    }
    fn wrong_dtype(&self, name: &str, info: &Info, wanted: &str) -> Error {
        let [name, wanted] = [name, wanted].map(str::to_owned);
        FormatError::of(&self.path)(FormatError::WrongDtype { name, seen: info.dtype, wanted })
    }
}

impl From<SafetensorsFile> for File {
    fn from(part: SafetensorsFile) -> Self {
        let place = part.header.tensors.keys().map(|name| (name.clone(), 0)).collect();
        Self(Arc::new(TensorFiles { path: part.path.clone(), files: vec![part], place }))
    }
}

impl File {
    /// Maps a file and checks its header; reads none of the data.
    ///
    /// The file must not change while it is mapped: to change one, replace it with a
    /// [`Writer`](super::Writer), which leaves the mapped one as it is.
    ///
    /// # Errors
    /// If there is no such file, or it is incomplete or inconsistent.
    pub fn open(path: &Path) -> Result<Self, Error> {
        SafetensorsFile::open(path).map(Self::from)
    }
    /// Checks a file that is part of the program; `name` stands for the path in messages.
    ///
    /// # Errors
    /// If it is incomplete or inconsistent.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Self, Error> {
        SafetensorsFile::check(Box::new(bytes), name.to_owned(), false).map(Self::from)
    }

    /// Path of the one file, or of the index of several: for messages.
    pub fn path(&self) -> &str {
        &self.0.path
    }
    /// Names of the tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.place.keys().map(String::as_str)
    }
    /// Names of the tensors in the order of the data, file after file: the order in which they were written.
    pub fn in_order(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.0.place.iter().collect();
        names.sort_by_key(|(name, at)| (**at, self.0.files[**at].header.tensors[*name].data_offsets, *name));
        names.into_iter().map(|(name, _)| name.as_str()).collect()
    }
    /// Description of the tensor called `name`.
    pub fn info(&self, name: &str) -> Option<&Info> {
        self.held(name).map(|(_, info)| info)
    }
    fn held(&self, name: &str) -> Option<(&SafetensorsFile, &Info)> {
        let part = &self.0.files[*self.0.place.get(name)?];
        Some((part, &part.header.tensors[name]))
    }
    /// Metadata of the first file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        static NOTHING: BTreeMap<String, String> = BTreeMap::new();
        self.0.files.first().map_or(&NOTHING, |part| &part.header.metadata)
    }

    /// Returns the matrix called `name`, of exactly this shape `[rows, cols]`, of floats of 16 bits or more.
    /// A vector `[n]` counts as `[1, n]`.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix<'_>, Error> {
        let is_vector = |seen: &[usize]| shape[0] == 1 && *seen == shape[1..];
        self.floats((name, shape), &shape, |seen| *seen == shape || is_vector(seen))
    }
    /// Returns the tensor called `name`, which holds `count` matrices of this many rows and columns, one
    /// below the other.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn stack(&self, name: &str, [count, rows, cols]: [usize; 3]) -> Result<Matrix<'_>, Error> {
        let shape = [count, rows, cols];
        self.floats((name, [count * rows, cols]), &shape, |seen| *seen == shape)
    }
    /// Returns a float tensor as a matrix of this shape, if its own shape passes `fits`.
    fn floats(
        &self,
        (name, shape): (&str, [usize; 2]),
        wanted: &[usize],
        fits: impl Fn(&[usize]) -> bool,
    ) -> Result<Matrix<'_>, Error> {
        let (part, info) = self.find(name, wanted, fits)?;
        if !is_float(info.dtype) {
            return Err(part.wrong_dtype(name, info, "F64, F32, F16 or BF16"));
        }
        Ok(Matrix::new(part.bytes(info), info.dtype, shape, part.watched(name, info)))
    }
    /// Returns all elements of the tensor called `name`, whatever its shape, as one row; `None` if there is
    /// no such tensor, or its dtype is not a float of 16 bits or more.
    pub fn flat(&self, name: &str) -> Option<Matrix<'_>> {
        let (dtype, _, bytes) = self.whole(name)?;
        is_float(dtype)
            .then(|| Matrix::new(bytes, dtype, [1, bytes.len() / size(dtype)], ReadChecks::default()))
    }
    /// Returns all elements of the tensor called `name`, of exactly this shape and dtype; for small tensors,
    /// as it copies them.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn values<T: Storable>(&self, name: &str, shape: &[usize]) -> Result<Vec<T>, Error> {
        let (part, info) = self.find(name, shape, |seen| seen == shape)?;
        if info.dtype != T::DTYPE {
            return Err(part.wrong_dtype(name, info, &T::DTYPE.to_string()));
        }
        part.verify(name, info)?;
        Ok(part.bytes(info).chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }
    /// Returns an error if what was read so far of the tensor called `name` does not have its digest. Files
    /// of other programs have no digests.
    ///
    /// # Errors
    /// One sentence with the tensor's name.
    pub fn intact(&self, name: &str) -> Result<(), Error> {
        self.held(name).map_or(Ok(()), |(part, _)| part.intact(name))
    }
    /// Reads all tensors, and checks their digests. Returns the number of those that have one.
    ///
    /// # Errors
    /// One sentence with the name of the first tensor that does not have its digest.
    pub fn verify(&self) -> Result<usize, Error> {
        for part in &self.0.files {
            part.header.tensors.iter().try_for_each(|(name, info)| part.verify(name, info))?;
        }
        Ok(self.0.files.iter().map(|part| part.blocks.len()).sum())
    }
    /// Returns a tensor's dtype, shape and bytes, unchecked.
    pub fn whole(&self, name: &str) -> Option<(Dtype, &[usize], &[u8])> {
        let (part, info) = self.held(name)?;
        Some((info.dtype, &info.shape, part.bytes(info)))
    }
    /// True if both tensors exist and have the same dtype, shape and bytes; all of their bytes are then read.
    pub fn equal(&self, name: &str, other: &str) -> bool {
        self.whole(name).is_some_and(|one| self.whole(other) == Some(one))
    }
    fn find(
        &self,
        name: &str,
        wanted: &[usize],
        fits: impl Fn(&[usize]) -> bool,
    ) -> Result<(&SafetensorsFile, &Info), Error> {
        let Some((part, info)) = self.held(name) else {
            return Err(FormatError::missing(&self.0.path, name, self.0.place.keys()));
        };
        if !fits(&info.shape) {
            let (name, seen, wanted) = (name.to_owned(), info.shape.clone(), wanted.to_owned());
            return Err(FormatError::of(&part.path)(FormatError::Shape { name, seen, wanted }));
        }
        Ok((part, info))
    }
}

#[cfg(test)]
impl File {
    pub(super) fn from_memory(bytes: Vec<u8>) -> Result<Self, Error> {
        SafetensorsFile::check(Box::new(bytes), "memory".to_owned(), false).map(Self::from)
    }
    pub(super) fn begin(&self) -> usize {
        self.0.files[0].header.end
    }
    pub(super) fn bytes_of(&self, name: &str) -> &[u8] {
        self.whole(name).unwrap().2
    }
}

#[cfg(test)]
mod tests;
