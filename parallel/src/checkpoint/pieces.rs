//! The elements that a rank writes, and where they go in the files.
//!
//! ```text
//! a rectangle of the parameter [R, C], in a tensor of the file with these rows and columns
//! same orientation    a run of the rectangle's columns for each row      one run if the columns are all
//! transposed          a run of the rectangle's rows for each column      one run if the rows are all
//! alternate           as in the same orientation; once all are written, ranks arrange some rows each
//! ```
use super::ToFile;
use super::files::PlannedFile;
use crate::{Entry, Orientation, Result, bail};
use kernels::Kernels;
use ops::{SavedPart, SavedRectangle, VALUE, Wide};
use std::borrow::Borrow;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{available_parallelism, scope};
use tensor::bulk::transpose;
use tensor::dtype::Storable;
use tensor::safetensors::SplitFile;
use tensor::{Scalar, limits};

/// Number of elements that are arranged at a time; few in tests, so that tensors have several pieces.
const ROOM: usize = if cfg!(test) { 24 } else { 1 << 18 };
/// Most threads that arrange and write the elements of a tensor.
const THREADS: usize = 4;
/// Fewest runs of a turned part that are arranged at a time.
const TILE: usize = if cfg!(test) { 4 } else { 64 };

/// Writes parts into the files.
pub(super) fn write<D: Kernels, S: Storable>(
    files: &[PlannedFile],
    parts: impl Iterator<Item = impl Borrow<SavedPart<D>>>,
    to: ToFile<Wide<D>, S>,
) -> Result<()> {
    for part in parts {
        let SavedPart { param, name, tensor, rectangles } = part.borrow();
        let Some(values) = tensor.read() else { continue };
        for PlannedFile { file, tensors, .. } in files {
            for (entry, _, begin) in
                tensors.iter().filter(|(of, of_name, _)| *of.param == **param && of_name == name)
            {
                let mut less = Vec::new();
                if entry.plus_one && *name == VALUE {
                    less.extend(values.iter().map(|x| *x - Scalar::ONE));
                }
                let values = if less.is_empty() { &values[..] } else { &less };
                for rectangle in rectangles {
                    if !place(file, (entry, *begin), rectangle, (values, to))? {
                        let path = file.path().display();
                        bail!("{path} is left as it is: {param} has values that are not finite");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Writes the elements of a rectangle that belong to a tensor. Returns false if an element must not be
/// written.
fn place<E: Scalar, S: Storable>(
    file: &SplitFile,
    (entry, mut begin): (&Entry, u64),
    of: &SavedRectangle,
    values: (&[E], ToFile<E, S>),
) -> Result<bool> {
    let is_turned = entry.orientation == Orientation::Transposed;
    let mut fits = true;
    for rows in entry.bands() {
        let bytes = rows.len() * entry.columns.len() * size_of::<S>();
        fits &= place_band((file, begin), [&rows, &entry.columns], is_turned, of, values)?;
        begin += bytes as u64;
    }
    Ok(fits)
}

/// Writes the elements of a rectangle that are in these rows and columns, which begin at this byte and may be
/// turned: arranges and writes them in pieces, which threads share. Returns false if an element must not be
/// written.
fn place_band<E: Scalar, S: Storable>(
    (file, begin): (&SplitFile, u64),
    ranges: [&Range<usize>; 2],
    is_turned: bool,
    of: &SavedRectangle,
    (values, to): (&[E], ToFile<E, S>),
) -> Result<bool> {
    let both = |dim: usize| {
        let within = ranges[dim];
        within.start.max(of.begin[dim])..within.end.min(of.begin[dim] + of.shape[dim])
    };
    let [rows, columns] = [0, 1].map(both);
    if rows.is_empty() || columns.is_empty() {
        return Ok(true);
    }
    let from = of.from + (rows.start - of.begin[0]) * of.stride + columns.start - of.begin[1];
    let at = [rows.start - ranges[0].start, columns.start - ranges[1].start];
    // of the file: the runs, and the elements of each; the first run and element; the tensor's width
    let (count, len, [first, beside], width) = if is_turned {
        (columns.len(), rows.len(), [at[1], at[0]], ranges[0].len())
    } else {
        (rows.len(), columns.len(), at, ranges[1].len())
    };
    let together = (ROOM / len).clamp(TILE, TILE.max(count)).min(count);
    let byte = |run: usize| begin + (((first + run) * width + beside) * size_of::<S>()) as u64;
    let next = AtomicUsize::new(0);
    let work = || -> Result<bool> {
        let mut out = file.open()?;
        let mut turned = Vec::new();
        let mut room = vec![S::zeroed(); together * len];
        while let start = next.fetch_add(together, Relaxed)
            && start < count
        {
            let runs = start..count.min(start + together);
            let some = &mut room[..runs.len() * len];
            let fits = if is_turned {
                turned.resize(some.len(), E::ZERO);
                transpose(&values[from + runs.start..], of.stride, [len, runs.len()], &mut turned, len);
                to(&turned, some)
            } else {
                let line = |run: usize| &values[from + run * of.stride..][..len];
                runs.clone().zip(some.chunks_mut(len)).all(|(run, some)| to(line(run), some))
            };
            if !fits {
                return Ok(false);
            }
            if len == width {
                out.write(byte(runs.start), some)?;
            } else {
                for (run, line) in runs.zip(some.chunks(len)) {
                    out.write(byte(run), line)?;
                }
            }
        }
        Ok(true)
    };
    let pieces = count.div_ceil(together);
    let others = available_parallelism().map_or(1, usize::from).min(THREADS).min(pieces) - 1;
    scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| limits::scoped(scope, work)).collect();
        let own = work()?;
        let others = others.into_iter().map(|other| other.join().expect("writing does not panic"));
        others.collect::<Result<Vec<_>>>().map(|all| own && all.into_iter().all(|fits| fits))
    })
}

/// Puts the columns of alternate tensors into their order, in a rank's share of their rows.
pub(super) fn arrange<S: Storable>(files: &[PlannedFile], [rank, ranks]: [usize; 2]) -> Result<()> {
    for PlannedFile { file, tensors, .. } in files {
        for (entry, _, begin) in tensors.iter().filter(|(of, ..)| of.orientation == Orientation::Alternate) {
            let width = entry.columns.len();
            let mut open = file.open()?;
            let [mut row, mut turned] = [0, 1].map(|_| vec![S::zeroed(); width]);
            for at in super::share(entry.rows.len(), rank, ranks) {
                let byte = begin + (at * width * size_of::<S>()) as u64;
                open.read(byte, &mut row)?;
                turned.iter_mut().zip(entry.order()).for_each(|(to, column)| *to = row[column]);
                open.write(byte, &turned)?;
            }
        }
    }
    Ok(())
}

/// Digests these of all blocks of the files.
pub(super) fn digests(files: &[PlannedFile], which: Range<usize>) -> Result<Vec<u64>> {
    let (mut all, mut first) = (Vec::new(), 0);
    for file in files {
        let end = first + file.blocks();
        let own = which.start.clamp(first, end)..which.end.clamp(first, end);
        all.extend(file.file.digests(own.start - first..own.end - first)?);
        first = end;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tensor::bulk::finite_f32;
    use tensor::dtype::Dtype;

    /// Kills: a verdict of the last row, of the first piece, or of one thread for that of all.
    #[test]
    fn an_element_that_must_not_be_written_is_seen_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for (orientation, shape) in [(Orientation::Same, [2000, 3]), (Orientation::Transposed, [3, 2000])] {
            let entry = Entry { orientation, ..Entry::whole("x".into(), shape) };
            let tensors = [("x", Dtype::F32, entry.shape())];
            let mut file = SplitFile::plan(&folder.path().join("x"), &BTreeMap::new(), &tensors).unwrap();
            file.create().unwrap();
            let begin = file.begin_of("x").unwrap();
            let fits = |values: &[f32]| {
                let of = SavedRectangle { begin: [0, 0], shape, from: 0, stride: shape[1] };
                place(&file, (&entry, begin), &of, (values, finite_f32)).unwrap()
            };
            let mut values = vec![1.0; 6000];
            assert!(fits(&values));
            for at in (0..6000).step_by(149) {
                values[at] = f32::NAN;
                assert!(!fits(&values), "{at}, {orientation:?}");
                values[at] = 1.0;
            }
        }
    }
}
