//! Checkpoints: parameters and optimizer state in files that do not depend on the layout. Each rank writes
//! the elements of which it is the lowest-ranked holder, where they belong in the files, whose layout all
//! ranks compute alike. Only names, sizes and digests cross a link.
//!
//! ```text
//! plan      every rank      names and sizes of all parameters; the byte at which each tensor begins
//! create    rank 0          the files beside their targets, of their whole size
//! write     every rank      its elements                                    } in the background, if
//! arrange   every rank      the order of columns, where they alternate      } asked for, from
//! digest    every rank      a part of the blocks, as they are in the files  } a snapshot
//! finish    rank 0          headers, sync, rename                           }
//! ```
//! Ranks wait for each other between two lines. Before the last rename, readers see the old checkpoint.
mod files;
mod pieces;
mod restore;

pub use files::CheckpointFile;
pub use restore::{optimizer_file, restore_optimizer};

use crate::{Error, Result};
use comm::Mesh;
use files::PlannedFile;
use kernels::Kernels;
use ops::{Param, SavedPart, Wide};
use std::ops::Range;
use std::thread::JoinHandle;
use tensor::dtype::Storable;
use tensor::{Place, limits};

/// Conversion of elements to the dtype of a file; returns false if the file must not hold one of them.
pub type ToFile<E, S> = fn(&[E], &mut [S]) -> bool;

/// A checkpoint that is being saved.
pub struct Saving<D: Kernels> {
    stage: Stage<D>,
    background: bool,
    arrange: fn(&[PlannedFile], [usize; 2]) -> Result<()>,
}

/// Stage of a checkpoint.
enum Stage<D: Kernels> {
    /// This rank writes its elements. Keeps the snapshot, and the files if it fails.
    Write(SaveWork<(Vec<PlannedFile>, Vec<SavedPart<D>>, Result<()>)>),
    /// This rank puts columns into order, if some alternate.
    Arrange(SaveWork<Vec<PlannedFile>>),
    /// This rank digests its part of the blocks.
    Digest(SaveWork<(Vec<PlannedFile>, Vec<u64>)>),
    /// Rank 0 moves the files to their places.
    Finish(SaveWork<()>),
    Done,
}

/// Work of a stage: its result, or the thread that computes it.
enum SaveWork<T> {
    Done(Result<T>),
    Thread(JoinHandle<Result<T>>),
}

impl<T: Send + 'static> SaveWork<T> {
    fn new(background: bool, work: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        if background { Self::Thread(limits::spawn(work)) } else { Self::Done(work()) }
    }
    fn is_finished(&self) -> bool {
        if let Self::Thread(thread) = self { thread.is_finished() } else { true }
    }
    fn wait(self) -> Result<T> {
        match self {
            Self::Done(result) => result,
            Self::Thread(thread) => thread
                .join()
                .unwrap_or_else(|_| Err(Error::new("the thread that saves a checkpoint ended early"))),
        }
    }
}

/// Begins to save files: one after the other replaces the old file of its name, and the last one makes the
/// checkpoint current. A parameter without a tensor of some name has no elements in it, such as the
/// optimizer's state before the first step. In the background, elements are written from a copy while the
/// caller goes on; the caller then calls [`Saving::advance`] until the checkpoint is whole. Every rank calls
/// it.
///
/// # Errors
/// If a file cannot be created, such as for a full disk; if a rank fails.
pub fn save<D: Kernels, S: Storable>(
    files: Vec<CheckpointFile>,
    params: &[&mut Param<D>],
    mesh: &Mesh<D::Place>,
    (to, background): (ToFile<Wide<D>, S>, bool),
) -> Result<Saving<D>> {
    let planned = files.into_iter().map(CheckpointFile::plan::<S>).collect::<Result<Vec<_>>>()?;
    let mut files: Vec<PlannedFile> = planned.into_iter().flatten().collect();
    if mesh.rank() == 0 {
        files.iter_mut().try_for_each(PlannedFile::create)?;
    }
    wait(mesh, "files of a checkpoint")?;
    let parts = parts(params);
    let stage = if background {
        let copies: Vec<_> = parts.map(SavedPart::snapshot).collect();
        Stage::Write(SaveWork::new(true, move || {
            let written = pieces::write(&files, copies.iter(), to);
            Ok((files, copies, written))
        }))
    } else {
        let written = pieces::write(&files, parts, to);
        Stage::Write(SaveWork::Done(Ok((files, Vec::new(), written))))
    };
    Ok(Saving { stage, background, arrange: pieces::arrange::<S> })
}

/// The tensors of which this rank saves elements, one at a time.
fn parts<D: Kernels>(params: &[&mut Param<D>]) -> impl Iterator<Item = SavedPart<D>> {
    params.iter().flat_map(|param| param.tensors()).filter_map(|tensor| tensor.saved())
}

/// Takes what a save takes of this rank's memory, in turn; returns the copies of a save in the background.
pub(crate) fn copies<D: Kernels>(params: &[&mut Param<D>], background: bool) -> Vec<SavedPart<D>> {
    parts(params).filter_map(|part| background.then(|| part.snapshot())).collect()
}

impl<D: Kernels> Saving<D> {
    /// Goes on with the checkpoint as far as all ranks have come; returns true once it is whole. If `wait`,
    /// waits until then. Every rank calls it, at the same points of its program.
    ///
    /// # Errors
    /// If a rank could not write. The old checkpoint is then untouched.
    pub fn advance(&mut self, mesh: &Mesh<D::Place>, wait: bool) -> Result<bool> {
        while !matches!(self.stage, Stage::Done) {
            if !wait && self.background {
                let finished = self.stage.is_finished();
                let answers = mesh.world().named("checkpoint").all_gather_values(&[u8::from(finished)])?;
                if answers.concat().contains(&0) {
                    return Ok(false);
                }
            }
            self.stage = self.next(mesh)?;
        }
        Ok(true)
    }
    fn next(&mut self, mesh: &Mesh<D::Place>) -> Result<Stage<D>> {
        let background = self.background;
        Ok(match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Write(work) => {
                let (files, _, written) = work.wait()?;
                wait(mesh, "elements of a checkpoint")?;
                written?; // only now, as files that a failing rank created end with it
                wait(mesh, "elements of a checkpoint")?;
                if files.iter().any(PlannedFile::alternates) {
                    let place = [mesh.rank(), mesh.size()];
                    let arrange = self.arrange;
                    Stage::Arrange(SaveWork::new(background, move || arrange(&files, place).map(|()| files)))
                } else {
                    Stage::digest(files, mesh, background)
                }
            }
            Stage::Arrange(work) => {
                let files = work.wait()?;
                wait(mesh, "elements of a checkpoint")?;
                Stage::digest(files, mesh, background)
            }
            Stage::Digest(work) => {
                let (files, own) = work.wait()?;
                let digests = mesh.world().named("digests of a checkpoint").all_gather_values(&own)?.concat();
                Stage::Finish(SaveWork::new(background, move || pieces::finish(files, &digests)))
            }
            Stage::Finish(work) => {
                work.wait()?;
                wait(mesh, "end of a checkpoint")?;
                Stage::Done
            }
            Stage::Done => Stage::Done,
        })
    }
}

impl<D: Kernels> Stage<D> {
    fn digest(files: Vec<PlannedFile>, mesh: &Mesh<D::Place>, background: bool) -> Self {
        let blocks = share(files.iter().map(PlannedFile::blocks).sum(), mesh.rank(), mesh.size());
        Self::Digest(SaveWork::new(background, move || {
            let digests = pieces::digests(&files, blocks)?;
            Ok((files, digests))
        }))
    }
    fn is_finished(&self) -> bool {
        match self {
            Self::Write(work) => work.is_finished(),
            Self::Arrange(work) => work.is_finished(),
            Self::Digest(work) => work.is_finished(),
            Self::Finish(work) => work.is_finished(),
            Self::Done => true,
        }
    }
}

fn wait<P: Place>(mesh: &Mesh<P>, what: &'static str) -> Result<()> {
    Ok(mesh.world().named(what).barrier()?)
}

/// The part of `n` blocks that a rank digests.
fn share(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    n * rank / ranks..n * (rank + 1) / ranks
}

#[cfg(test)]
pub(crate) mod tests;
