//! A file that several ranks write, each its own byte ranges.
//!
//! ```text
//! every rank     plan: the same layout, so each knows where its bytes go
//! one rank       create: the file beside its target, of its whole size
//! every rank     open, write, close: from as many threads as it likes
//! every rank     digests of some blocks, as they are in the file
//! the creator    finish: header with all digests, sync, rename
//! ```
//! Between two lines, ranks wait for each other: see `parallel`'s checkpoints. A reader sees the old file or
//! the new one.
use super::digest::Outline;
use super::error::{Error, FormatError};
use crate::dtype::{Dtype, Storable};
use crate::files::{self, Replacement};
use crate::limits;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

/// A file that several ranks write, from one rank's point of view.
pub struct SplitFile {
    path: PathBuf,
    outline: Outline,
    created: Option<Replacement>,
}

/// The file as one thread writes it. On a network's disk, others see what was written once it is dropped.
pub struct SplitWriter<'a> {
    path: &'a Path,
    file: fs::File,
}

impl SplitFile {
    /// Lays out a file of these tensors (name, dtype, shape), in this order.
    ///
    /// # Errors
    /// If one file cannot hold the names or sizes.
    pub fn plan<N: AsRef<str>>(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        tensors: &[(N, Dtype, Vec<usize>)],
    ) -> Result<Self, Error> {
        let outline =
            Outline::new(metadata, tensors).map_err(FormatError::of(&path.display().to_string()))?;
        Ok(Self { path: path.to_owned(), outline, created: None })
    }
    /// Path of the file that is replaced.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.outline.len() as u64
    }
    /// Creates the file beside its target, and takes its bytes of the disk. One rank calls it.
    ///
    /// # Errors
    /// If the system refuses, such as for a full disk.
    pub fn create(&mut self) -> Result<(), Error> {
        let mut created = Replacement::shared(&self.path)?;
        files::grow(created.file(), 0, self.bytes()).map_err(files::Error::system("write", &self.path))?;
        self.created = Some(created);
        Ok(())
    }
    /// Opens the file that another rank created, or this one.
    ///
    /// # Errors
    /// If there is none, or the system refuses.
    pub fn open(&self) -> Result<SplitWriter<'_>, Error> {
        Ok(SplitWriter { path: &self.path, file: self.handle()? })
    }
    fn handle(&self) -> Result<fs::File, Error> {
        let opened = OpenOptions::new().read(true).write(true).open(files::temporary(&self.path));
        Ok(opened.map_err(files::Error::system("write", &self.path))?)
    }
    /// Byte of the file at which a tensor begins; `None` if the file has no such tensor.
    pub fn begin_of(&self, name: &str) -> Option<u64> {
        let (_, info) = self.outline.places.iter().find(|(other, _)| other == name)?;
        Some((self.outline.start + info.data_offsets.0) as u64)
    }
    /// Number of blocks that have a digest each.
    pub fn blocks(&self) -> usize {
        self.outline.blocks().len()
    }
    /// Returns the digests of some blocks, as they are in the file; meanwhile brings the file to the disk.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn digests(&self, which: Range<usize>) -> Result<Vec<u64>, Error> {
        let synced = self.handle()?;
        let digest = |which| -> Result<Vec<u64>, Error> {
            let digests = self.outline.digests(&mut self.handle()?, which);
            Ok(digests.map_err(files::Error::system("read back", &self.path))?)
        };
        let middle = which.start + which.len() / 2;
        let [first, second] = [which.start..middle, middle..which.end];
        let (first, second, synced) = thread::scope(|scope| {
            let synced = limits::scoped(scope, move || synced.sync_data());
            let second = limits::scoped(scope, move || digest(second));
            let first = digest(first);
            let joined = "neither a digest nor a sync panics";
            (first, second.join().expect(joined), synced.join().expect(joined))
        });
        synced.map_err(files::Error::system("sync to disk", &self.path))?;
        Ok([first?, second?].concat())
    }
    /// Moves the file to its target's place, with the digests of all blocks. Returns false on
    /// other ranks than the one that created it, which do nothing.
    ///
    /// # Errors
    /// If the system refuses. The old file is then untouched.
    pub fn finish(self, digests: &[u64]) -> Result<bool, Error> {
        let Some(mut created) = self.created else { return Ok(false) };
        let header =
            self.outline.header(digests).map_err(FormatError::of(&self.path.display().to_string()))?;
        created.begin_with(&header)?;
        created.finish()?;
        Ok(true)
    }
}

impl SplitWriter<'_> {
    /// Reads elements back from byte `at` of the file on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn read<T: Storable>(&mut self, at: u64, elements: &mut [T]) -> Result<(), Error> {
        let read = self.file.seek(SeekFrom::Start(at));
        let read = read.and_then(|_| self.file.read_exact(bytemuck::cast_slice_mut(elements)));
        Ok(read.map_err(files::Error::system("read back", self.path))?)
    }
    /// Writes elements from byte `at` of the file on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn write<T: Storable>(&mut self, at: u64, elements: &[T]) -> Result<(), Error> {
        let written = self.file.seek(SeekFrom::Start(at));
        let written = written.and_then(|_| self.file.write_all(bytemuck::cast_slice(elements)));
        Ok(written.map_err(files::Error::system("write", self.path))?)
    }
}
