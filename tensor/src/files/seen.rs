//! What this process has read of files, for processes that must have read the same: noted once it is asked for.
//!
//! Of a file that is read whole there is a digest of all its bytes. Of a mapped one, of which a process reads only its part,
//! there is one of the header, and of each tensor a tally of the numbers that were read.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// A mapped file of at most so many bytes is digested whole: that takes a few milliseconds.
const SMALL: usize = 1 << 24;

static LOG: Mutex<Option<Log>> = Mutex::new(None);

struct Log {
    all: bool,
    files: BTreeMap<String, [u64; 2]>,
    mapped: Vec<(String, Arc<Tallies>)>,
}

/// What was read of the tensors of a mapped file, by name.
pub(crate) type Tallies = BTreeMap<String, Tally>;

/// The numbers of a tensor that were read: how many, the sum of their places, and a sum that depends on all of them and on where
/// they lie, in whatever order they come.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    numbers: AtomicU64,
    places: AtomicU64,
    sum: AtomicU64,
}

impl Tally {
    /// Counts numbers that lie so many apart, from the one that is the `first` of all on.
    pub(crate) fn count(&self, first: usize, apart: usize, numbers: &[f64]) {
        const ANY: u64 = 0x9e37_79b9_7f4a_7c15; // each place has a key of its own, so zeros and orders count
        let (first, apart, len) = (first as u64, apart as u64, numbers.len() as u64);
        let (mut key, mut sum) = (ANY.wrapping_mul(first + 1), 0u64);
        for number in numbers {
            sum = sum.wrapping_add(number.to_bits() ^ key);
            key = key.wrapping_add(ANY.wrapping_mul(apart));
        }
        let between = (len * len.saturating_sub(1) / 2).wrapping_mul(apart);
        let places = len.wrapping_mul(first).wrapping_add(between);
        self.numbers.fetch_add(numbers.len() as u64, Relaxed);
        self.places.fetch_add(places, Relaxed);
        self.sum.fetch_add(sum, Relaxed);
    }
}

fn log() -> MutexGuard<'static, Option<Log>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on what is read is noted; of mapped files `all`, or only what is read of them.
pub fn note(all: bool) {
    *log() = Some(Log { all, files: BTreeMap::new(), mapped: Vec::new() });
}

/// A file was read whole.
pub(super) fn read(path: &Path, bytes: &[u8]) {
    if let Some(log) = &mut *log() {
        log.files.insert(path.display().to_string(), digest(bytes.len(), bytes));
    }
}

/// A file of these bytes was mapped, whose first so many are its header: where to count what is read of these tensors.
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
    let tallies = Arc::new(tensors.map(|name| (name.clone(), Tally::default())).collect());
    log.mapped.push((path.to_owned(), Arc::clone(&tallies)));
    Some(tallies)
}

/// How many bytes there are, and a hash of some of them.
fn digest(len: usize, bytes: &[u8]) -> [u64; 2] {
    [len as u64, xxh3_64(bytes)]
}

/// This program: how many bytes it has, and a digest; none where the system does not show it.
pub fn program() -> Option<[u64; 2]> {
    let file = std::fs::File::open(std::env::current_exe().ok()?).ok()?;
    // SAFETY: a program that runs is not written; whoever does so all the same ends it in any case.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    Some(digest(bytes.len(), &bytes))
}

/// The files that were read since it is noted, by path: how many bytes each has, and a digest.
pub fn files() -> BTreeMap<String, [u64; 2]> {
    log().as_ref().map_or_else(BTreeMap::new, |log| log.files.clone())
}

/// What was read of the tensors of mapped files: which, how many numbers, the sum of their places, and a digest of them. Two
/// processes that have read the same numbers of a tensor have the same of all.
pub fn tensors() -> Vec<(String, [u64; 3])> {
    let log = log();
    let all = log.iter().flat_map(|log| &log.mapped);
    let of = |(path, tallies): &(String, Arc<Tallies>)| -> Vec<_> {
        let told = |(name, tally): (&String, &Tally)| {
            let Tally { numbers, places, sum } = tally;
            let told = [numbers, places, sum].map(|count| count.load(Relaxed));
            (told[0] > 0).then(|| (format!("{name} of {path}"), told))
        };
        tallies.iter().filter_map(told).collect()
    };
    all.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a number or a place that does not count, one counted twice, an order that counts.
    #[test]
    fn a_tally_knows_numbers_and_places_in_whatever_order() {
        let told = |parts: &[(usize, usize, &[f64])]| {
            let tally = Tally::default();
            for (first, apart, numbers) in parts {
                tally.count(*first, *apart, numbers);
            }
            [&tally.numbers, &tally.places, &tally.sum].map(|count| count.load(Relaxed))
        };
        let all = told(&[(0, 1, &[1.0, 2.0, 0.0, 4.0])]);
        assert_eq!(all, told(&[(2, 1, &[0.0, 4.0]), (0, 1, &[1.0, 2.0])]));
        assert_eq!(all, told(&[(1, 2, &[2.0, 4.0]), (0, 2, &[1.0, 0.0])]));
        for other in [[1.0, 2.0, 0.0, 4.5], [2.0, 1.0, 0.0, 4.0], [1.0, 2.0, -0.0, 4.0]] {
            let other = told(&[(0, 1, &other)]);
            assert!(other[..2] == all[..2] && other[2] != all[2]);
        }
        assert_ne!(all[..2], told(&[(1, 1, &[1.0, 2.0, 0.0, 4.0])])[..2], "other places");
    }
}
