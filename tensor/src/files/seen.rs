//! Log of what this process reads from files, for processes that must read the same; it is off until [`note`]
//! is called.
//!
//! A file that is read whole has a digest of all its bytes. A mapped file, of which a process reads only its
//! part, has a digest of its header, and each of its tensors a tally of the elements read.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Largest size in bytes of a mapped file that is digested whole, which takes a few milliseconds.
const SMALL: usize = 1 << 24;

static LOG: Mutex<Option<ReadLog>> = Mutex::new(None);

struct ReadLog {
    all: bool,
    files: BTreeMap<String, [u64; 2]>,
    mapped: Vec<(String, Arc<Tallies>)>,
}

/// Tallies of the tensors of a mapped file, by name.
pub(crate) type Tallies = BTreeMap<String, ReadTally>;

/// Tally of the elements read from a tensor: their number, the sum of their indices, and a sum that depends
/// on all values and indices but not on the order of reading.
#[derive(Debug, Default)]
pub(crate) struct ReadTally {
    numbers: AtomicU64,
    places: AtomicU64,
    sum: AtomicU64,
}

impl ReadTally {
    /// Counts consecutive elements of `size` bytes, from element `first` of the tensor on.
    pub(crate) fn count(&self, first: usize, bytes: &[u8], size: usize) {
        const ANY: u64 = 0x9e37_79b9_7f4a_7c15; // each index has a key of its own, so zeros and orders count
        let first = first as u64;
        let len = (bytes.len() / size) as u64;
        let (mut key, mut sum) = (ANY.wrapping_mul(first + 1), 0u64);
        for element in bytes.chunks_exact(size) {
            let mut bits = [0; 8];
            bits[..size].copy_from_slice(element);
            sum = sum.wrapping_add(u64::from_le_bytes(bits) ^ key);
            key = key.wrapping_add(ANY);
        }
        let places = len.wrapping_mul(first).wrapping_add(len * len.saturating_sub(1) / 2);
        self.numbers.fetch_add(len, Relaxed);
        self.places.fetch_add(places, Relaxed);
        self.sum.fetch_add(sum, Relaxed);
    }
}

fn log() -> MutexGuard<'static, Option<ReadLog>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the log. If `all`, mapped files are digested whole; otherwise only small ones, and the headers of
/// the others.
pub fn note(all: bool) {
    *log() = Some(ReadLog { all, files: BTreeMap::new(), mapped: Vec::new() });
}

/// Records a file that was read whole.
pub(super) fn read(path: &Path, bytes: &[u8]) {
    if let Some(log) = &mut *log() {
        log.files.insert(path.display().to_string(), digest(bytes.len(), bytes));
    }
}

/// Records a mapped file whose first `header` bytes are its header. Returns the tallies in which reads of
/// these tensors are counted, or `None` if the log is off.
pub(crate) fn mapped<'a>(
    path: &str,
    bytes: &[u8],
    header: usize,
    tensors: impl Iterator<Item = &'a String>,
) -> Option<Arc<Tallies>> {
    let mut log = log();
    let log = log.as_mut()?;
    let whole = log.all || bytes.len() <= SMALL;
    log.files.insert(path.to_owned(), digest(bytes.len(), if whole { bytes } else { &bytes[..header] }));
    let tallies = Arc::new(tensors.map(|name| (name.clone(), ReadTally::default())).collect());
    log.mapped.push((path.to_owned(), Arc::clone(&tallies)));
    Some(tallies)
}

/// Returns the size of a file, and a hash of some of its bytes.
fn digest(len: usize, bytes: &[u8]) -> [u64; 2] {
    [len as u64, xxh3_64(bytes)]
}

/// Size and digest of this program's file; `None` if the system does not show it.
pub fn program() -> Option<[u64; 2]> {
    let file = std::fs::File::open(std::env::current_exe().ok()?).ok()?;
    // SAFETY: the file of a running program is not written; a process that wrote it would end this one in any
    // case.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    Some(digest(bytes.len(), &bytes))
}

/// Files read since the log was started, by path: size in bytes and digest.
pub fn files() -> BTreeMap<String, [u64; 2]> {
    log().as_ref().map_or_else(BTreeMap::new, |log| log.files.clone())
}

/// Elements read from the tensors of mapped files: name, number of elements, sum of their indices, and
/// digest. Two processes that have read the same elements of a tensor report the same values.
pub fn tensors() -> Vec<(String, [u64; 3])> {
    let log = log();
    let of = |(path, tallies): &(String, Arc<Tallies>)| -> Vec<_> {
        let reported = |(name, tally): (&String, &ReadTally)| {
            let ReadTally { numbers, places, sum } = tally;
            let reported = [numbers, places, sum].map(|count| count.load(Relaxed));
            (reported[0] > 0).then(|| (format!("{name} of {path}"), reported))
        };
        tallies.iter().filter_map(reported).collect()
    };
    log.iter().flat_map(|log| &log.mapped).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a number or a place that does not count, one counted twice, an order that counts.
    #[test]
    fn a_tally_knows_numbers_and_places_in_whatever_order() {
        let reported = |parts: &[(usize, &[f64])]| {
            let tally = ReadTally::default();
            for (first, numbers) in parts {
                tally.count(*first, bytemuck::cast_slice(numbers), size_of::<f64>());
            }
            [&tally.numbers, &tally.places, &tally.sum].map(|count| count.load(Relaxed))
        };
        let all = reported(&[(0, &[1.0, 2.0, 0.0, 4.0])]);
        assert_eq!(all, reported(&[(2, &[0.0, 4.0]), (0, &[1.0, 2.0])]));
        assert_eq!(all, reported(&[(1, &[2.0, 0.0]), (3, &[4.0]), (0, &[1.0])]));
        for other in [[1.0, 2.0, 0.0, 4.5], [2.0, 1.0, 0.0, 4.0], [1.0, 2.0, -0.0, 4.0]] {
            let other = reported(&[(0, &other)]);
            assert!(other[..2] == all[..2] && other[2] != all[2]);
        }
        assert_ne!(all[..2], reported(&[(1, &[1.0, 2.0, 0.0, 4.0])])[..2], "other places");
    }
}
