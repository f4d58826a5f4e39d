//! Checks that the machine can hold a run. The memory of a run is known beforehand (see
//! [`mod@price`](crate::price)): the peak of its devices, all ranks together. The program itself, its texts
//! and mapped files are not counted.
use crate::{BuildContext, Error, Result, Scheme, session};
use comm::SharedPlace;
use kernels::{Kernels, MetaOf};
use std::fmt::Display;
use std::fs;
use std::path::Path;
use tensor::{OutOfMemory, readable};

/// Returns true if `free` bytes hold `bytes`, or if the number of free bytes is unknown.
pub fn fits_in_free(bytes: u128, free: Option<u64>) -> bool {
    free.is_none_or(|free| bytes <= u128::from(free))
}

/// Refuses a run if the part of its `bytes` on this machine, `here` of its `ranks` ranks, exceeds the free
/// memory.
///
/// # Errors
/// One sentence with both numbers.
pub fn fits<P: SharedPlace>(run: impl Display, [here, ranks]: [usize; 2], bytes: u128) -> Result<()> {
    fits_in(run, [here, ranks], bytes, P::free_device_bytes(here).or_else(free))
}

/// Returns the bytes that a run may hold over all its ranks, if `here` of its `ranks` ranks are on this
/// machine: eight ninths of what is free, as the pool's buffers may be an eighth larger than requested. None
/// if the number of free bytes is unknown.
pub fn room<P: SharedPlace>([here, ranks]: [usize; 2]) -> Option<u128> {
    P::free_device_bytes(here).or_else(free).map(|free| room_in([here, ranks], free))
}

fn room_in([here, ranks]: [usize; 2], free: u64) -> u128 {
    u128::from(free) / here.max(1) as u128 * ranks as u128 / 9 * 8
}

fn fits_in(run: impl Display, [here, ranks]: [usize; 2], bytes: u128, free: Option<u64>) -> Result<()> {
    let bytes =
        if here == ranks { bytes } else { bytes.div_ceil(ranks as u128).saturating_mul(here as u128) };
    if fits_in_free(bytes, free) {
        return Ok(());
    }
    Err(Error::new(format!(
        "{run} needs {} over {}, but {} of memory are free; use fewer ranks, a smaller model or fewer tokens",
        readable(bytes),
        if here == ranks {
            "all ranks".into()
        } else {
            format!("the {here} of its {ranks} ranks on this machine")
        },
        readable(free.unwrap_or(0).into())
    )))
}

/// Refuses a run if its largest rank would hold more than its layout allows. Runs `program` once more, under
/// the limit, to find the request that exceeds it.
///
/// # Errors
/// One sentence: the request, what was held beside it, the limit, and the smallest limit that works.
pub fn check_limit<'a, D: Kernels>(
    scheme: impl Into<Scheme<'a, D>>,
    (rank, peak): (usize, usize),
    program: impl FnOnce(BuildContext<MetaOf<D>>) -> Result<()>,
) -> Result<()> {
    let scheme = scheme.into();
    let Some(limit) = scheme.layout.memory_limit().filter(|limit| peak > *limit) else { return Ok(()) };
    match OutOfMemory::caught(|| session::ghost(scheme, (rank, Some(limit)), program)) {
        Ok(done) => done,
        Err(fault) => {
            let why = format!(
                "rank {rank} under {scheme}: {fault}; {peak} bytes ({}) are the smallest limit that works",
                readable(peak as u128)
            );
            Err(Error { works: Some(peak), ..Error::new(why) })
        }
    }
}

/// Collects the results of several programs that run one after the other under one limit. If the limit
/// refuses some of them, it returns the refusal of the program that needs the most: a limit that works for
/// that program works for all.
///
/// # Errors
/// The first error that is not about the limit, or else the refusal of the program that needs the most.
pub fn all<T>(programs: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    let mut refused = None::<Error>;
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

/// Returns the bytes that this process can still allocate: those that Linux reports as available, or fewer if
/// a control group or a limit of the process leaves fewer. None on other systems, where nothing is refused.
pub fn free() -> Option<u64> {
    free_in(Path::new("/proc"))
}

/// Returns the free bytes that the files in a folder like `/proc` report.
fn free_in(proc: &Path) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(proc.join(file)).unwrap_or_default();
    let available = number(&read("meminfo"), "MemAvailable:")? << 10;
    let groups = of_groups(&read("self/cgroup"), &read("self/mountinfo"));
    let limits = of_limits(&read("self/limits"), &read("self/status"));
    [Some(available), groups, limits].into_iter().flatten().min()
}

/// Returns the smallest number of bytes that the limits of this process on its memory leave (`ulimit -v`,
/// `ulimit -d`).
fn of_limits(limits: &str, status: &str) -> Option<u64> {
    let left = |(name, held): (&str, &str)| {
        let limit = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
        Some(limit.parse::<u64>().ok()?.saturating_sub(number(status, held)? << 10))
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")].into_iter().filter_map(left).min()
}

/// Files of a hierarchy of control groups: the limit, the bytes held, and the file pages among them, which
/// the system takes back when it needs them.
struct Hierarchy {
    filesystem: &'static str,
    limit: &'static str,
    held: &'static str,
    files: [&'static str; 2],
}

/// Version 2, and version 1, whose memory controller has a hierarchy of its own. A system may have mounted
/// both.
const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy {
        filesystem: "cgroup2",
        limit: "memory.max",
        held: "memory.current",
        files: ["inactive_file", "active_file"],
    },
    Hierarchy {
        filesystem: "cgroup",
        limit: "memory.limit_in_bytes",
        held: "memory.usage_in_bytes",
        files: ["total_inactive_file", "total_active_file"],
    },
];

/// Returns the smallest number of bytes that the control groups of this process and their ancestors leave of
/// their limits.
fn of_groups(groups: &str, mounts: &str) -> Option<u64> {
    let of = |hierarchy: &Hierarchy| {
        let is_two = hierarchy.filesystem == "cgroup2";
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_memory = controllers.split(',').any(|name| name == "memory");
            (if is_two { controllers.is_empty() } else { is_memory }).then_some(path)
        })?;
        let (root, mount) = mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let mut kind = kind.split(' ');
            let is_memory = || line.rsplit(' ').next().is_some_and(|of| of.split(',').any(|o| o == "memory"));
            let found = kind.next() == Some(hierarchy.filesystem) && (is_two || is_memory());
            found.then_some((place.next()?, place.next()?))
        })?;
        // A container may see its own group as the root of the mount. A group outside of the mount has at
        // least the limit of the mount's root.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let (mount, group) = (Path::new(mount), Path::new(mount).join(below));
        group
            .ancestors()
            .take_while(|group| group.starts_with(mount))
            .filter_map(|at| hierarchy.left(at))
            .min()
    };
    HIERARCHIES.iter().filter_map(of).min()
}

impl Hierarchy {
    /// Returns the bytes that a group leaves of its limit. Without a limit, version 2 has "max", and version
    /// 1 a number that no machine has.
    fn left(&self, group: &Path) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let limit: u64 = read(self.limit)?.trim().parse().ok()?;
        let (held, stat) = (read(self.held)?.trim().parse().ok()?, read("memory.stat").unwrap_or_default());
        let files = self.files.iter().filter_map(|name| number(&stat, name)).sum();
        Some(limit.saturating_sub(u64::saturating_sub(held, files)))
    }
}

/// Returns the number after a word that begins a line.
fn number(text: &str, word: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(word)).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a run refused that just fits, one taken that does not, numbers beyond 64 bits; ranks of other
    /// machines counted on this.
    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        assert!(
            fits_in("this", [2; 2], 7, Some(7)).is_ok() && fits_in("this", [2; 2], u128::MAX, None).is_ok()
        );
        let why = |bytes| fits_in("training under tp=2", [2; 2], bytes, Some(7)).unwrap_err().why;
        assert!(fits_in("this", [1, 4], 28, Some(7)).is_ok(), "a quarter of it is here");
        let here = fits_in("this", [2, 4], 28, Some(7)).unwrap_err().why;
        let wanted =
            "this needs 14 B over the 2 of its 4 ranks on this machine, but 7 B of memory are free; ";
        assert!(here.starts_with(wanted), "{here}");
        let wanted = "training under tp=2 needs 8 B over all ranks, but 7 B of memory are free; ";
        assert!(why(8).starts_with(wanted), "{}", why(8));
        assert!(why(466_526_208_032).contains("needs 466.53 GB over all"), "{}", why(466_526_208_032));
    }

    /// Kills: ranks of other machines that share this one's memory, no bytes to spare for the pool, numbers
    /// beyond 64 bits.
    #[test]
    fn the_room_is_of_all_ranks_and_leaves_a_ninth() {
        assert_eq!((room_in([2, 2], 90), room_in([1, 4], 90)), (80, 320));
        assert_eq!(room_in([1, 1024], u64::MAX), u128::from(u64::MAX) * 1024 / 9 * 8);
    }

    /// Kills: a limit that works for the first program and not for the next, another refusal in the place of
    /// what is wrong.
    #[test]
    fn of_many_programs_the_one_that_needs_the_most_is_told() {
        let refused = |works| Err(Error { works: Some(works), ..Error::new(format!("{works}")) });
        let why = |programs: Vec<Result<u8>>| all(programs).unwrap_err().why;
        assert_eq!(all([Ok(1), Ok(2)]), Ok(vec![1, 2]));
        assert_eq!(why(vec![refused(5), Ok(1), refused(9), refused(7)]), "9");
        assert_eq!(why(vec![refused(5), Err(Error::new("no such layout")), refused(9)]), "no such layout");
    }

    /// The line of a mount in /proc/self/mountinfo.
    fn mounted(root: &str, at: &Path, filesystem: &str, options: &str) -> String {
        format!("31 23 0:28 {root} {} rw,nosuid shared:9 - {filesystem} cgroup {options}\n", at.display())
    }
    fn written(group: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(group).unwrap();
        for (file, text) in files {
            fs::write(group.join(file), format!("{text}\n")).unwrap();
        }
    }

    /// Kills: the limit of an outer group passed over, pages of files counted as held, a group without a
    /// limit taken for one that has nothing left.
    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |name: &str, max: &str, current: &str, stat: &str| {
            let files = [("memory.max", max), ("memory.current", current), ("memory.stat", stat)];
            written(&root.path().join(name), &files);
        };
        let mount = mounted("/", root.path(), "cgroup2", "rw,nsdelegate");
        let left = || of_groups("1:cpu:/old\n0::/a/b\n", &mount);
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

    /// Version 1 beside version 2, which has no memory controller then; its controller alone and with
    /// another; a container that sees its own group as the root. Kills: a limit of version 1 that is not
    /// seen, another controller's group, the largest number of version 1 taken for a limit, pages of files of
    /// the group alone.
    #[test]
    fn groups_of_version_1_count_too() {
        let root = tempfile::tempdir().unwrap();
        let group = |name: &str, limit: &str, usage: &str, stat: &str| {
            let at = root.path().join("memory").join(name);
            let files =
                [("memory.limit_in_bytes", limit), ("memory.usage_in_bytes", usage), ("memory.stat", stat)];
            written(&at, &files);
        };
        let mounts = |of: &str, memory: &str| {
            let [cpu, memory_at, unified] = ["cpu", "memory", "unified"].map(|name| root.path().join(name));
            mounted("/", &cpu, "cgroup", "rw,cpu")
                + &mounted(of, &memory_at, "cgroup", memory)
                + &mounted("/", &unified, "cgroup2", "rw")
        };
        let groups = "9:name=systemd:/\n5:cpu,cpuacct:/other\n4:hugetlb,memory:/a/b\n0::/\n";
        let left = || of_groups(groups, &mounts("/", "rw,memory"));
        assert_eq!(left(), None);
        written(&root.path().join("unified"), &[("memory.max", "5"), ("memory.current", "5")]);
        assert_eq!(left(), Some(0), "the least of both versions");
        fs::remove_dir_all(root.path().join("unified")).unwrap();
        group("other", "1", "1", "");
        group("a/b", "9223372036854771712", "500", "");
        assert!(left() > Some(1 << 62), "none");
        group("a", "1000", "900", "inactive_file 1\ntotal_inactive_file 150\ntotal_active_file 50");
        assert_eq!(left(), Some(300));
        group("a/b", "734003200", "733000000", "total_inactive_file 1000000");
        assert_eq!(left(), Some(300));
        group("a", "9223372036854771712", "900", "");
        assert_eq!(left(), Some(2_003_200));
        assert_eq!(of_groups(groups, &mounts("/", "rw,hugetlb,memory")), Some(2_003_200));
        group("", "7", "3", "");
        assert_eq!(of_groups(groups, &mounts("/a/b", "rw,memory")), Some(4), "the group is the mount's root");
        assert_eq!(of_groups("4:memory:/elsewhere\n", &mounts("/a/b", "rw,memory")), Some(4));
        assert_eq!(of_groups(groups, &mounts("/", "rw,pids")), None);
    }

    /// Kills: a limit of the process or of its groups that is not seen, memory that it already holds counted
    /// as free, a soft limit passed over for the hard one.
    #[test]
    fn the_tightest_limit_of_all_kinds_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("group");
        let limits = |space: &str, data: &str| {
            format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax data size  {data}  999999999  bytes\nMax address space  {space}  unlimited  bytes"
            )
        };
        let free = |[available, of_group, space, data]: [&str; 4]| {
            written(root.path(), &[("meminfo", &format!("MemAvailable: {available} kB"))]);
            let status = "VmSize:  40 kB\nVmData:  10 kB";
            let mounts = mounted("/", &group, "cgroup2", "rw");
            let of_self = [
                ("cgroup", "0::/"),
                ("mountinfo", &mounts),
                ("status", status),
                ("limits", &limits(space, data)),
            ];
            written(&root.path().join("self"), &of_self);
            written(&group, &[("memory.max", of_group), ("memory.current", "0"), ("memory.stat", "")]);
            free_in(root.path())
        };
        let unlimited = "unlimited";
        assert_eq!(free(["100", "max", unlimited, unlimited]), Some(102_400));
        assert_eq!(free(["100", "9000", "204800", unlimited]), Some(9000));
        assert_eq!(free(["100", "90000", "81920", unlimited]), Some(40_960));
        assert_eq!(free(["100", "90000", "81920", "20480"]), Some(10_240));
        assert_eq!(free(["100", "90000", "8192", "20480"]), Some(0));
        fs::remove_file(root.path().join("meminfo")).unwrap();
        assert_eq!(free_in(root.path()), None);
    }

    #[test]
    fn what_is_free_is_what_the_system_says() {
        assert_eq!(number("MemTotal:  9 kB\nMemAvailable:   12 kB\n", "MemAvailable:"), Some(12));
        assert_eq!(number("MemTotal:  9 kB\n", "MemAvailable:"), None);
        assert_eq!(free().is_some(), cfg!(target_os = "linux"));
    }
}
