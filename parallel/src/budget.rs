//! Whether the machine can hold a run. What a run takes is known beforehand (see [`mod@price`](crate::price)): what its
//! devices hold at most, all ranks together. The program itself, its texts and mapped files are not counted.
use crate::At;
use crate::{Error, Result, Scheme, session};
use comm::SharedPlace;
use kernels::{Kernels, Meta};
use std::fmt::Display;
use std::fs;
use std::path::Path;
use tensor::Fault;

/// Whether so many free bytes hold so many; where it is not known how many are free, it may be tried.
pub fn holds(bytes: u128, free: Option<u64>) -> bool {
    free.is_none_or(|free| bytes <= u128::from(free))
}

/// Refuses a run of so many ranks and bytes on places where fewer are free.
///
/// # Errors
/// One sentence with both numbers.
pub fn fits<P: SharedPlace>(run: impl Display, ranks: usize, bytes: u128) -> Result<()> {
    fits_in(run, bytes, P::free_beside_the_host(ranks).or_else(free))
}

fn fits_in(run: impl Display, bytes: u128, free: Option<u64>) -> Result<()> {
    if holds(bytes, free) {
        return Ok(());
    }
    Err(Error::new(format!(
        "{run} takes {bytes} bytes over all ranks, and {} bytes of memory are free; fewer ranks, a smaller model or fewer \
         tokens take less",
        free.unwrap_or(0)
    )))
}

/// Refuses a run of which the rank that holds the most would hold more than its layout allows. Its `program` is run once
/// more, under the limit, for what would exceed it.
///
/// # Errors
/// One sentence: what was asked for, beside what, the limit, and the smallest limit that works.
pub fn within<'a, D: Kernels>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, peak): (usize, usize),
    program: impl FnOnce(At<Meta<D>>) -> Result<()>,
) -> Result<()> {
    let scheme = scheme.into();
    let Some(limit) = scheme.layout.memory_limit().filter(|limit| peak > *limit) else { return Ok(()) };
    match Fault::caught(|| session::ghost(scheme, (rank, Some(limit)), program)) {
        Ok(done) => done,
        Err(fault) => {
            let why = format!(
                "rank {rank} under {scheme}: {fault}; {peak} bytes are the smallest limit that works"
            );
            Err(Error { works: Some(peak), ..Error::new(why) })
        }
    }
}

/// What several programs give that run one after the other under one limit. Of those that it refuses the one counts that
/// needs the most: what works for that one works for all.
///
/// # Errors
/// The first that is not about the limit; or else the refusal of the program that needs the most.
pub fn all<T>(programs: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut done, mut refused) = (Vec::new(), None::<Error>);
    for program in programs {
        match program {
            Ok(given) => done.push(given),
            Err(error) if error.works.is_none() => return Err(error),
            Err(error) if refused.as_ref().is_none_or(|most| most.works < error.works) => {
                refused = Some(error);
            }
            Err(_) => {}
        }
    }
    refused.map_or(Ok(done), Err)
}

/// Bytes that this process can still take: those that Linux calls available, or fewer where a control group (version 2)
/// has a limit. None on other systems, where nothing is refused.
pub fn free() -> Option<u64> {
    let available = number(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(available.min(of_groups(Path::new("/sys/fs/cgroup"), &groups).unwrap_or(u64::MAX)))
}

/// What the control group of this process, and those that it lies in, leave of their limits. Pages of files count as
/// free: they are given back.
fn of_groups(root: &Path, groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let left = |group: &Path| {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let limit: u64 = read("memory.max")?.trim().parse().ok()?; // "max" is none
        let (held, stat) =
            (read("memory.current")?.trim().parse().ok()?, read("memory.stat").unwrap_or_default());
        let files = ["inactive_file", "active_file"].iter().filter_map(|name| number(&stat, name)).sum();
        Some(limit.saturating_sub(u64::saturating_sub(held, files)))
    };
    root.join(path).ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
}

/// The number after a word that begins a line.
fn number(text: &str, word: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(word)).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a run refused that just fits, one taken that does not, numbers beyond 64 bits.
    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        assert!(fits_in("this", 7, Some(7)).is_ok() && fits_in("this", u128::MAX, None).is_ok());
        let why = |bytes| fits_in("training under tp=2", bytes, Some(7)).unwrap_err().why;
        let wanted = "training under tp=2 takes 8 bytes over all ranks, and 7 bytes of memory are free; ";
        assert!(why(8).starts_with(wanted), "{}", why(8));
        assert!(why(1 << 64).contains("takes 18446744073709551616 bytes"), "{}", why(1 << 64));
    }

    /// Kills: a limit that works for the first program and not for the next, another refusal in the place of what is wrong.
    #[test]
    fn of_many_programs_the_one_that_needs_the_most_is_told() {
        let refused = |works| Err(Error { works: Some(works), ..Error::new(format!("{works}")) });
        let why = |programs: Vec<Result<u8>>| all(programs).unwrap_err().why;
        assert_eq!(all([Ok(1), Ok(2)]), Ok(vec![1, 2]));
        assert_eq!(why(vec![refused(5), Ok(1), refused(9), refused(7)]), "9");
        assert_eq!(why(vec![refused(5), Err(Error::new("no such layout")), refused(9)]), "no such layout");
    }

    /// Kills: the limit of an outer group passed over, pages of files counted as held, a group without a limit taken for
    /// one that has nothing left.
    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |name: &str, max: &str, current: &str, stat: &str| {
            let dir = root.path().join(name);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [("memory.max", max), ("memory.current", current), ("memory.stat", stat)] {
                fs::write(dir.join(file), format!("{text}\n")).unwrap();
            }
        };
        let left = || of_groups(root.path(), "1:cpu:/old\n0::/a/b\n");
        assert_eq!(left(), None);
        group("a/b", "max", "500", "");
        assert_eq!(left(), None);
        group("a", "1000", "900", "anon 700\ninactive_file 150\nactive_file 50");
        assert_eq!(left(), Some(300));
        group("a/b", "800", "600", "anon 600");
        assert_eq!(left(), Some(200));
        group("a/b", "500", "600", "anon 600");
        assert_eq!(left(), Some(0));
    }

    #[test]
    fn what_is_free_is_what_the_system_says() {
        assert_eq!(number("MemTotal:  9 kB\nMemAvailable:   12 kB\n", "MemAvailable:"), Some(12));
        assert_eq!(number("MemTotal:  9 kB\n", "MemAvailable:"), None);
        assert_eq!(free().is_some(), cfg!(target_os = "linux"));
    }
}
