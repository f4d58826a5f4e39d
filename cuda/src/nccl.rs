//! NCCL by FFI: the functions in use, how the library is found, errors with NCCL's own texts, and
//! communicators of the ranks in this process.
//!
//! Communicators are non-blocking: calls return at once, and are done when the communicator reports it. So a
//! wait for them has a limit, and they can be aborted from outside. Source: NVIDIA, "NCCL", the pages of the
//! functions and "Fault tolerance"; 2.18 is the oldest supported version.
use crate::card::{Card, forget_current_context};
use crate::cublas::among_pythons_packages;
use crate::driver::Handle;
use crate::library::{library, open};
use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

library! {
    /// Functions of `libnccl.so.2` in use.
    Functions {
        fn ncclGetVersion(*mut c_int);
        fn ncclGetUniqueId(*mut UniqueId);
        fn ncclCommInitRankConfig(*mut Handle, c_int, UniqueId, c_int, *mut NcclConfig);
        fn ncclCommFinalize(Handle);
        fn ncclCommDestroy(Handle);
        fn ncclCommAbort(Handle);
        fn ncclCommGetAsyncError(Handle, *mut c_int);
        fn ncclGetErrorString(c_int) -> *const c_char;
        fn ncclGetLastError(Handle) -> *const c_char;
        fn ncclGroupStart();
        fn ncclGroupEnd();
        fn ncclAllReduce(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
        fn ncclReduce(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Handle);
        fn ncclReduceScatter(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
        fn ncclAllGather(*const c_void, *mut c_void, usize, c_int, Handle, Handle);
        fn ncclBroadcast(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
        fn ncclSend(*const c_void, usize, c_int, c_int, Handle, Handle);
        fn ncclRecv(*mut c_void, usize, c_int, c_int, Handle, Handle);
    }
}

/// Id with which the ranks of a group find each other: `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// `ncclConfig_t` of version 2.18, which later versions accept.
#[repr(C)]
pub(crate) struct NcclConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster: c_int,
    least_blocks: c_int,
    most_blocks: c_int,
    net: *const c_char,
    share_on_split: c_int,
}

const LEAST: c_int = 21_800;
const IN_PROGRESS: c_int = 7;
const OK: c_int = 0;
/// NCCL's codes of data types and operations.
pub(crate) const BYTES: c_int = 1;
pub(crate) const F32: c_int = 7;
pub(crate) const BF16: c_int = 9;
pub(crate) const SUM: c_int = 0;
pub(crate) const MAX: c_int = 2;

/// The NCCL library that was found.
pub struct Nccl {
    pub(crate) functions: Functions,
    /// Its version: `2.18.3`.
    pub version: String,
    /// Name by which the library was found.
    pub library: String,
}

/// Calls a function of NCCL: `nccl!(nccl, ncclGroupStart())?`.
macro_rules! nccl {
    ($nccl:expr, $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the arguments are those that the function's page asks for. What they point to outlives the
        // call, and memory of cards is not touched until the call is done.
        $nccl.check(stringify!($function), unsafe { ($nccl.functions.$function)($($argument),*) })
    };
}
pub(crate) use nccl;

impl Nccl {
    /// Returns NCCL, loaded once: the library of the variable `EQUIPART_NCCL`, else the system's, else one of
    /// Python's packages.
    ///
    /// # Errors
    /// In one sentence, the reason that NCCL cannot be used.
    pub fn get() -> Result<&'static Self, String> {
        static NCCL: OnceLock<Result<Nccl, String>> = OnceLock::new();
        #[cfg(test)]
        if let Some(nccl) = tests::PLACED.get() {
            return Ok(nccl);
        }
        let find = || {
            let named = env::var("EQUIPART_NCCL").map(|named| vec![named]);
            let usual = || ["libnccl.so.2", "libnccl.so"].map(String::from).to_vec();
            Self::open(&named.unwrap_or_else(|_| [usual(), among_pythons_packages("libnccl.so")].concat()))
        };
        NCCL.get_or_init(find).as_ref().map_err(Clone::clone)
    }
    /// Opens the first of these libraries that is found.
    ///
    /// # Errors
    /// If none is found, or it lacks a function, or it is too old.
    pub(crate) fn open(names: &[String]) -> Result<Self, String> {
        let (library, name) = open(names).map_err(|why| format!("no NCCL on this machine: {why}"))?;
        let functions = Functions::bind(library).map_err(|function| {
            format!("the NCCL {name} has no function {function}; version 2.18 or newer is needed")
        })?;
        let mut nccl = Self { functions, version: String::new(), library: name.into() };
        let mut v = 0;
        nccl!(nccl, ncclGetVersion(&raw mut v))?;
        nccl.version = format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100);
        if v < LEAST {
            return Err(format!("the NCCL {name} has version {}; 2.18 or newer is needed", nccl.version));
        }
        Ok(nccl)
    }
    /// Turns a status into a result; a call in progress counts as a success.
    ///
    /// # Errors
    /// The function and NCCL's text.
    pub(crate) fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        forget_current_context();
        if matches!(status, OK | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: the texts are constants, or live until this thread's next call.
        let [what, last] = unsafe {
            [(self.functions.ncclGetErrorString)(status), (self.functions.ncclGetLastError)(null_mut())]
                .map(|text| if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy() })
        };
        let last = last.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        Err(format!("{call} failed: {what}{}{last}", if last.is_empty() { "" } else { ": " }))
    }
    /// Creates a unique id.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        nccl!(self, ncclGetUniqueId(&raw mut id)).map(|()| id)
    }
    /// Makes several calls as one group, without waiting for them.
    ///
    /// # Errors
    /// The first that failed.
    pub(crate) fn grouped(&self, calls: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        nccl!(self, ncclGroupStart())?;
        let outcome = calls();
        let ended = nccl!(self, ncclGroupEnd());
        outcome.and(ended)
    }
}

/// The communicators of one group: one for each of its ranks in this process, on that rank's card.
pub(crate) struct Communicators {
    nccl: &'static Nccl,
    /// Ranks of the group in this process, each with its communicator.
    pub(crate) of: Vec<(usize, Handle)>,
}
// SAFETY: any thread may use NCCL's handles, one at a time, which their owner's lock ensures.
unsafe impl Send for Communicators {}

impl Communicators {
    /// Creates communicators for the ranks in `here`, each on its card, in the group of `ranks` ranks with
    /// this id. If that fails, they are aborted.
    ///
    /// # Errors
    /// NCCL's, or the rank that was not ready within `limit`.
    pub(crate) fn new(
        nccl: &'static Nccl,
        (id, ranks): (UniqueId, usize),
        here: &[(usize, &Arc<Card>)],
        limit: Duration,
    ) -> Result<Self, String> {
        const UNDEFINED: c_int = c_int::MIN;
        let config = || NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: 0xcafe_beef,
            version: LEAST as u32,
            blocking: 0,
            cluster: UNDEFINED,
            least_blocks: UNDEFINED,
            most_blocks: UNDEFINED,
            net: null(),
            share_on_split: UNDEFINED,
        };
        let mut configs: Vec<_> = here.iter().map(|_| config()).collect(); // they live until the group ends
        let mut all = Self { nccl, of: here.iter().map(|(rank, _)| (*rank, null_mut())).collect() };
        let begun = nccl.grouped(|| {
            for (((rank, card), (_, handle)), config) in here.iter().zip(&mut all.of).zip(&mut configs) {
                card.enter().map_err(|error| error.to_string())?;
                nccl!(nccl, ncclCommInitRankConfig(handle, ranks as c_int, id, *rank as c_int, config))?;
            }
            Ok(())
        });
        begun.and_then(|()| all.settled(limit)).inspect_err(|_| all.abort())?;
        Ok(all)
    }
    /// Waits until all calls are under way on the cards.
    ///
    /// # Errors
    /// NCCL's, or the rank that was not ready within `limit`.
    pub(crate) fn settled(&self, limit: Duration) -> Result<(), String> {
        const SPINS: u32 = 1000;
        let begun = Instant::now();
        let mut looks = 0;
        while let Some(rank) = self.look()? {
            if begun.elapsed() > limit {
                return Err(format!("NCCL's rank {rank} was not ready within {limit:?}"));
            }
            looks += 1;
            if looks > SPINS {
                sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }
    /// Checks for errors, and returns the first rank that is still busy, if any.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn look(&self) -> Result<Option<usize>, String> {
        let mut busy = None;
        for &(rank, handle) in &self.of {
            let mut state = OK;
            nccl!(self.nccl, ncclCommGetAsyncError(handle, &raw mut state))?;
            self.nccl.check("an asynchronous NCCL call", state)?;
            busy = busy.or((state == IN_PROGRESS).then_some(rank));
        }
        Ok(busy)
    }
    /// Aborts the communicators, and what runs on the cards.
    pub(crate) fn abort(&mut self) {
        for (_, handle) in self.of.drain(..).filter(|(_, handle)| !handle.is_null()) {
            let _ = nccl!(self.nccl, ncclCommAbort(handle)); // a failure here was reported by an earlier call
        }
    }
    /// Finalizes and destroys the communicators; aborts them if they are not done within `limit`.
    pub(crate) fn end(&mut self, limit: Duration) {
        let nccl = self.nccl;
        let finalized = self.of.iter().try_for_each(|&(_, handle)| nccl!(nccl, ncclCommFinalize(handle)));
        if finalized.and_then(|()| self.settled(limit)).is_err() {
            return self.abort();
        }
        for (_, handle) in self.of.drain(..) {
            let _ = nccl!(nccl, ncclCommDestroy(handle));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::twin;
    use std::cell::Cell;
    thread_local! {
        /// NCCL of the worlds that this thread starts, on one card of the host twin.
        pub(crate) static PLACED: Cell<Option<&'static Nccl>> = const { Cell::new(None) };
    }

    /// Returns NCCL's host twin, compiled with these flags; `None` without a compiler.
    pub(crate) fn placed(flags: &[&str]) -> Option<&'static Nccl> {
        opened(flags).map(|nccl| &*Box::leak(Box::new(nccl.unwrap_or_else(|why| panic!("{why}")))))
    }
    fn opened(flags: &[&str]) -> Option<Result<Nccl, String>> {
        match twin::install().and_then(|_| twin::nccl(flags)) {
            Ok(path) => Some(Nccl::open(&[path.to_string_lossy().into_owned()])),
            Err(why) => {
                twin::skipped(&why);
                None
            }
        }
    }

    /// Kills: a library that is missing, old or not whole, and goes unnoticed or ends in a panic.
    #[test]
    fn why_there_is_no_nccl_is_a_sentence() {
        let nowhere = Nccl::open(&["/nowhere/libnccl.so".into()]).err().unwrap();
        assert!(nowhere.starts_with("no NCCL on this machine: /nowhere/libnccl.so: "), "{nowhere}");
        let Some(whole) = opened(&[]) else { return };
        assert_eq!(whole.ok().unwrap().version, "2.18.3");
        let error = |flag| opened(&[flag]).unwrap().err().unwrap();
        let lacks = error("-DTWIN_WITHOUT_LAST_ERROR");
        let end = "has no function ncclGetLastError; version 2.18 or newer is needed";
        assert!(lacks.starts_with("the NCCL /") && lacks.ends_with(end), "{lacks}");
        let old = error("-DTWIN_VERSION=21705");
        assert!(old.ends_with("has version 2.17.5; 2.18 or newer is needed"), "{old}");
    }
}
