//! NCCL by FFI: the functions in use, how it is found, its errors by its own words; communicators of ranks of this process.
//!
//! Communicators do not block: what is asked of them returns at once, and is done when they say so. So a wait for them has a limit,
//! and they can be ended from outside. Source: NVIDIA, "NCCL", the pages of the functions and "Fault tolerance"; 2.18 is the
//! least.
use crate::card::{Card, elsewhere};
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
    /// What is called of `libnccl.so.2`.
    Functions {
        fn ncclGetVersion(*mut c_int);
        fn ncclGetUniqueId(*mut UniqueId);
        fn ncclCommInitRankConfig(*mut Handle, c_int, UniqueId, c_int, *mut Config);
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

/// What ranks know each other by: `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// `ncclConfig_t` of version 2.18, which later ones take.
#[repr(C)]
pub(crate) struct Config {
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
/// Numbers and operations as NCCL counts them.
pub(crate) const BYTES: c_int = 1;
pub(crate) const F32: c_int = 7;
pub(crate) const BF16: c_int = 9;
pub(crate) const SUM: c_int = 0;
pub(crate) const MAX: c_int = 2;

/// NCCL as it was found.
pub struct Nccl {
    pub(crate) functions: Functions,
    /// Its version: `2.18.3`.
    pub version: String,
    /// The name that it was found by.
    pub library: String,
}

/// Calls a function of NCCL: `nccl!(nccl, ncclGroupStart())?`.
macro_rules! nccl {
    ($nccl:expr, $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the arguments are what the function's page asks for; what they point to outlives the call, and memory of
        // cards is left alone until it is done.
        $nccl.check(stringify!($function), unsafe { ($nccl.functions.$function)($($argument),*) })
    };
}
pub(crate) use nccl;

impl Nccl {
    /// NCCL, looked for once: at the variable `EQUIPART_NCCL`, or where the system has it, or among Python's packages.
    ///
    /// # Errors
    /// In one sentence, why there is none.
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
    /// The first of these libraries.
    ///
    /// # Errors
    /// That none is there, or it lacks a function, or is too old.
    pub(crate) fn open(names: &[String]) -> Result<Self, String> {
        let (library, name) = open(names).map_err(|why| format!("no NCCL on this machine: {why}"))?;
        let functions = Functions::bind(library).map_err(|function| {
            format!("the NCCL {name} has no function {function}: it is older than 2.18, which is the least")
        })?;
        let mut nccl = Self { functions, version: String::new(), library: name.into() };
        let mut v = 0;
        nccl!(nccl, ncclGetVersion(&raw mut v))?;
        nccl.version = format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100);
        if v < LEAST {
            return Err(format!("the NCCL {name} is of version {}: 2.18 is the least", nccl.version));
        }
        Ok(nccl)
    }
    /// A status as a result; what has only begun is well.
    ///
    /// # Errors
    /// The function and NCCL's own text.
    pub(crate) fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        elsewhere();
        if matches!(status, OK | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: the texts are constants, or live as long as the thread makes no other call.
        let [what, last] = unsafe {
            [(self.functions.ncclGetErrorString)(status), (self.functions.ncclGetLastError)(null_mut())]
                .map(|text| if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy() })
        };
        let last = last.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        Err(format!("{call} failed: {what}{}{last}", if last.is_empty() { "" } else { ": " }))
    }
    /// A new one.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        nccl!(self, ncclGetUniqueId(&raw mut id)).map(|()| id)
    }
    /// Does many calls as one, which no thread waits in.
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

/// The communicators of one group: of each of its ranks that are in this process one, on its card.
pub(crate) struct Communicators {
    nccl: &'static Nccl,
    /// Ranks in the group that are here, each with its own.
    pub(crate) of: Vec<(usize, Handle)>,
}
// SAFETY: NCCL's handles may be used by any thread, one at a time, which their owner's lock sees to.
unsafe impl Send for Communicators {}

impl Communicators {
    /// Those of these ranks, of so many, each with its card, who find each other by this id. What fails is aborted.
    ///
    /// # Errors
    /// NCCL's, or that they were not ready in time.
    pub(crate) fn new(
        nccl: &'static Nccl,
        (id, ranks): (UniqueId, usize),
        here: &[(usize, &Arc<Card>)],
        limit: Duration,
    ) -> Result<Self, String> {
        const UNDEFINED: c_int = c_int::MIN;
        let config = || Config {
            size: size_of::<Config>(),
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
    /// Waits until all that was asked for is under way on the cards.
    ///
    /// # Errors
    /// NCCL's, or who was not ready in time.
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
    /// Whether anything went wrong since: the first rank that is still busy, if one is.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn look(&self) -> Result<Option<usize>, String> {
        let mut busy = None;
        for &(rank, handle) in &self.of {
            let mut state = OK;
            nccl!(self.nccl, ncclCommGetAsyncError(handle, &raw mut state))?;
            self.nccl.check("what NCCL was asked for", state)?;
            busy = busy.or((state == IN_PROGRESS).then_some(rank));
        }
        Ok(busy)
    }
    /// Ends them now, with what runs on the cards.
    pub(crate) fn abort(&mut self) {
        for (_, handle) in self.of.drain(..).filter(|(_, handle)| !handle.is_null()) {
            let _ = nccl!(self.nccl, ncclCommAbort(handle)); // what fails here was told
        }
    }
    /// Ends them when all is done; what is not in time is aborted.
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
        /// What worlds use that this thread starts, on one card of the driver's twin.
        pub(crate) static PLACED: Cell<Option<&'static Nccl>> = const { Cell::new(None) };
    }

    /// NCCL's twin, compiled with these flags; none if there is no compiler.
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
        let end = "has no function ncclGetLastError: it is older than 2.18, which is the least";
        assert!(lacks.starts_with("the NCCL /") && lacks.ends_with(end), "{lacks}");
        let old = error("-DTWIN_VERSION=21705");
        assert!(old.ends_with("is of version 2.17.5: 2.18 is the least"), "{old}");
    }
}
