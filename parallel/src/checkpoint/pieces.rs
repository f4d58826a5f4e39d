//! The elements that a rank writes, and where they go in the files.
//!
//! ```text
//! a rectangle of the parameter [R, C], in a tensor of the file with these rows and columns
//! same orientation    a run of the rectangle's columns for each row      one run if the columns are all
//! transposed          a run of the rectangle's rows for each column      one run if the rows are all
//! ```
use super::ToFile;
use super::files::PlannedFile;
use crate::{Entry, Orientation, Result, bail};
use kernels::Kernels;
use layers::{SavedPart, SavedRectangle, SavedTensor, Wide};
use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;
use tensor::safetensors::{SplitFile, Storable};

/// Number of elements that are arranged at a time.
const ROOM: usize = 1 << 18;
/// Number of columns that are transposed together: a cache line of each row.
const TOGETHER: usize = 16;

/// The elements of a tensor that this rank saves.
pub(super) struct Part<D: Kernels> {
    pub(super) name: Arc<str>,
    pub(super) which: SavedTensor,
    pub(super) part: SavedPart<D>,
}

impl<D: Kernels> Part<D> {
    /// Copies the elements.
    pub(super) fn snapshot(self) -> Self {
        let SavedPart { tensor, rectangles } = self.part;
        Self { part: SavedPart { tensor: tensor.snapshot(), rectangles }, ..self }
    }
}

/// Writes parts into the files.
pub(super) fn write<D: Kernels, S: Storable>(
    files: &mut [PlannedFile],
    parts: impl Iterator<Item = impl Borrow<Part<D>>>,
    to: ToFile<Wide<D>, S>,
) -> Result<()> {
    files.iter_mut().try_for_each(|file| file.file.open())?;
    for part in parts {
        let Part { name, which, part } = part.borrow();
        let Some(values) = part.tensor.read() else { continue };
        for PlannedFile { file, tensors, .. } in &mut *files {
            let of =
                |(entry, tensor, _): &&(Entry, SavedTensor, u64)| *entry.param == **name && tensor == which;
            for (entry, _, begin) in tensors.iter().filter(of) {
                for rectangle in &part.rectangles {
                    let fits = place(file, (entry, *begin), rectangle, |i| to(values[i]))?;
                    if !fits {
                        let path = file.path().display();
                        bail!("{path} is left as it is: {name} has values that are not finite");
                    }
                }
            }
        }
    }
    files.iter_mut().for_each(|file| file.file.close());
    Ok(())
}

/// Writes the elements of a rectangle that belong to a tensor. Returns false if one must not be written.
fn place<S: Storable>(
    file: &mut SplitFile,
    (entry, begin): (&Entry, u64),
    of: &SavedRectangle,
    element: impl Fn(usize) -> Option<S>,
) -> Result<bool> {
    let both = |dim: usize, within: &Range<usize>| {
        within.start.max(of.begin[dim])..within.end.min(of.begin[dim] + of.shape[dim])
    };
    let [rows, columns] = [both(0, &entry.rows), both(1, &entry.columns)];
    if rows.is_empty() || columns.is_empty() {
        return Ok(true);
    }
    let from = of.from + (rows.start - of.begin[0]) * of.stride + columns.start - of.begin[1];
    let at = [rows.start - entry.rows.start, columns.start - entry.columns.start];
    let is_turned = entry.orientation == Orientation::Transposed;
    // of the file: the runs, and the elements of each; their steps in the tensor at rest; the tensor's width
    let (count, len, steps, [first, beside], width) = if is_turned {
        (columns.len(), rows.len(), [1, of.stride], [at[1], at[0]], entry.rows.len())
    } else {
        (rows.len(), columns.len(), [of.stride, 1], at, entry.columns.len())
    };
    let together = (ROOM / len).next_multiple_of(TOGETHER).max(TOGETHER);
    let mut room = vec![S::zeroed(); together.min(count) * len];
    for runs in (0..count).step_by(together).map(|run| run..count.min(run + together)) {
        let some = &mut room[..runs.len() * len];
        for (lines, some) in runs.clone().step_by(TOGETHER).zip(some.chunks_mut(TOGETHER * len)) {
            // a cache line of the source at a time, whichever way it lies
            for i in 0..if is_turned { len } else { 1 } {
                for (run, line) in some.chunks_mut(len).enumerate() {
                    let index = from + (lines + run) * steps[0] + i * steps[1];
                    let line = if is_turned { &mut line[i..=i] } else { line };
                    for (to, index) in line.iter_mut().zip(index..) {
                        let Some(element) = element(index) else { return Ok(false) };
                        *to = element;
                    }
                }
            }
        }
        let byte = |run: usize| begin + (((first + run) * width + beside) * size_of::<S>()) as u64;
        if len == width {
            file.write(byte(runs.start), some)?;
        } else {
            for (run, line) in runs.zip(some.chunks(len)) {
                file.write(byte(run), line)?;
            }
        }
    }
    Ok(true)
}

/// Digests these of all blocks of the files.
pub(super) fn digests(files: &[PlannedFile], which: Range<usize>) -> Result<Vec<u64>> {
    let (mut all, mut first) = (Vec::new(), 0);
    for file in files {
        let own =
            which.start.clamp(first, first + file.blocks())..which.end.clamp(first, first + file.blocks());
        all.extend(file.file.digests(own.start - first..own.end - first)?);
        first += file.blocks();
    }
    Ok(all)
}

/// Moves the files to their places, in order, on the rank that created them.
pub(super) fn finish(files: Vec<PlannedFile>, digests: &[u64]) -> Result<()> {
    let mut left = digests;
    for file in files {
        let (own, rest) = left.split_at(file.blocks());
        file.finish(own)?;
        left = rest;
    }
    Ok(())
}
