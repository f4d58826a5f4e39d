//! Cores that a process may use, and threads that stay on one of them.
use parallel::{Error, Result};
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the cores that this process may use.
///
/// # Errors
/// If the system does not say.
#[cfg(target_os = "linux")]
pub fn cores() -> Result<Vec<usize>> {
    let may = sched_getaffinity(None).map_err(|why| Error::new(format!("the cores are not known: {why}")))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).collect())
}

/// Keeps this thread on a core.
///
/// # Errors
/// If the system refuses.
#[cfg(target_os = "linux")]
pub(super) fn pin(core: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).map_err(|why| Error::new(format!("core {core} cannot be used: {why}")))
}

#[cfg(not(target_os = "linux"))]
pub fn cores() -> Result<Vec<usize>> {
    Err(Error::new("share keeps threads on cores, for which it needs Linux"))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_: usize) -> Result<()> {
    cores().map(drop)
}
