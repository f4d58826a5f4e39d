//! One card: its context, its stream, and the kernels that are loaded on it.
//!
//! All ranks of this process on a card share its one stream. The card does a rank's launches before later
//! launches of other ranks, so ranks that have met on the host may read each other's results without waiting
//! for the card.

pub(crate) mod argument;
mod launch;
mod queue;

pub(crate) use argument::{
    Argument, ArgumentSpace, BeginsEarly, CardLaunch, KernelName, LaunchConfig, LaunchRules, LoadedKernels,
    NamedMemory, TensorMap, arguments_of,
};

use crate::driver::{CudaError, Driver, Handle, OUT_OF_MEMORY, call};
use crate::ptx::{self, Module};
use queue::LaunchQueue;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

/// An open card.
pub struct Card {
    driver: &'static Driver,
    ordinal: c_int,
    context: Handle,
    stream: Handle,
    copies: Handle, // stream of copies that run beside kernels
    modules: Vec<Handle>,
    pub(crate) kernels: LoadedKernels,
    queue: Mutex<LaunchQueue>,
    /// Properties of the card.
    pub about: CardProperties,
}
// SAFETY: any thread may use the driver's handles if their context is current, which every call ensures.
unsafe impl Send for Card {}
// SAFETY: many threads may call the driver's functions at once.
unsafe impl Sync for Card {}

/// Properties of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardProperties {
    /// The driver's name for it.
    pub name: String,
    /// Its PCI bus, which no variable changes, such as `0000:3b:00.0`.
    pub bus: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: usize,
    /// CUDA version that the driver supports.
    pub cuda: (i32, i32),
    /// Name by which the driver's library was found.
    pub library: String,
    /// Bytes of its memory: free, total.
    pub memory: [usize; 2],
}

/// Name that the host twin gives its card.
const TWIN: &str = "the CPU's twin of a GPU";

const CAPABILITY: [c_int; 2] = [75, 76];
const PROCESSORS: c_int = 16;

/// Lock between allocation and launches on several cards. Shared by callers that allocate or free memory,
/// exclusive for a launch on several cards: a driver call that waits for a card while allocating would wait
/// for ever if a part of that launch is still missing.
static MEMORY: RwLock<()> = RwLock::new(());

/// Keeps memory of cards from being allocated or freed until the guard is dropped.
pub(crate) fn lock_allocations() -> RwLockWriteGuard<'static, ()> {
    MEMORY.write().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The context that is current for this thread.
    static CURRENT: Cell<Handle> = const { Cell::new(null_mut()) };
}

/// Forgets this thread's current context: a call of another library may have changed it.
pub(crate) fn forget_current_context() {
    CURRENT.set(null_mut());
}

/// The open cards, by number: opened once, for all ranks of this process.
static OPEN: Mutex<Vec<Option<Arc<Card>>>> = Mutex::new(Vec::new());

impl Card {
    /// Returns a card by its number; opened on first use.
    ///
    /// # Errors
    /// If there is no driver or no such card, or the driver does not load the kernels.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let mut cards = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(card)) = cards.get(ordinal) {
            return Ok(card.clone());
        }
        let card = Arc::new(Self::new(ordinal)?);
        if cards.len() <= ordinal {
            cards.resize(ordinal + 1, None);
        }
        cards[ordinal] = Some(card.clone());
        Ok(card)
    }
    /// Returns the number of cards.
    ///
    /// # Errors
    /// If there is no driver, or no card.
    pub fn count() -> Result<usize, CudaError> {
        Driver::get()?.cards()
    }
    fn new(ordinal: usize) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let there = driver.cards()?;
        if ordinal >= there {
            return Err(CudaError::NoSuchCard { asked: ordinal, there });
        }
        let mut device = 0;
        call!(driver, cuDeviceGet(&raw mut device, ordinal as c_int))?;
        let about = CardProperties::of(driver, device)?;
        if about.capability.0 < 8 {
            return Err(CudaError::TooSmall { name: about.name, capability: about.capability });
        }
        let mut context = null_mut();
        call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        let mut card = Self {
            driver,
            ordinal: device,
            context,
            stream: null_mut(),
            copies: null_mut(),
            modules: Vec::new(),
            kernels: LoadedKernels::default(),
            queue: Mutex::default(),
            about,
        };
        card.enter()?;
        for stream in [&mut card.stream, &mut card.copies] {
            call!(driver, cuStreamCreate(stream, 1))?; // 1: it does not wait for the default stream
        }
        card.about.memory = card.memory()?;
        let by_hand: &[Module] = if card.about.name == TWIN { &[] } else { &ptx::BY_HAND };
        let capability = card.about.capability;
        card.load(ptx::MODULES.iter().chain(by_hand).filter(|module| module.runs_on(capability)))?;
        Ok(card)
    }
    /// Makes this card current for the driver's next calls of this thread.
    pub(crate) fn enter(&self) -> Result<&'static Driver, CudaError> {
        if CURRENT.get() != self.context {
            call!(self.driver, cuCtxSetCurrent(self.context))?;
            CURRENT.set(self.context);
        }
        Ok(self.driver)
    }
    /// Returns bytes of its memory: free, total.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<[usize; 2], CudaError> {
        let [mut free, mut total] = [0; 2];
        call!(self.enter()?, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok([free, total])
    }
    /// Allocates zeroed memory; `None` if the card has no more.
    ///
    /// # Errors
    /// Any other failure.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Option<u64>, CudaError> {
        let _whole = MEMORY.read();
        self.enter()?;
        let mut address = 0;
        // SAFETY: the driver writes the address to `at`.
        let status = unsafe { (self.driver.functions.cuMemAlloc_v2)(&raw mut address, bytes.max(1)) };
        if !self.has_memory("cuMemAlloc", status)? {
            return Ok(None);
        }
        call!(self.driver, cuMemsetD8Async(address, 0, bytes, self.stream()?))?;
        Ok(Some(address))
    }
    /// Returns false if an allocation ended with this status because there is no more memory.
    ///
    /// # Errors
    /// Any other failure.
    fn has_memory(&self, call: &'static str, status: c_int) -> Result<bool, CudaError> {
        if status == OUT_OF_MEMORY { Ok(false) } else { self.driver.check(call, status).map(|()| true) }
    }
    /// Frees memory.
    pub(crate) fn free(&self, at: u64) {
        let _whole = MEMORY.read();
        // A card that has failed cannot free memory; the ranks that compute on it get the error elsewhere.
        let _ = self.stream().and_then(|_| call!(self.enter()?, cuMemFree_v2(at)));
    }
    /// Copies bytes to the card.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn put(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        call!(self.enter()?, cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.stream()?))
    }
    /// Copies bytes from the card, after all that was launched before.
    ///
    /// # Errors
    /// The driver's, including those of kernels that were launched before.
    pub(crate) fn get(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        call!(
            self.enter()?,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.stream()?)
        )?;
        self.settle()
    }
    /// Copies bytes on the card.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        call!(self.enter()?, cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream()?))
    }
    /// Allocates pinned memory of the host; `None` if there is no more.
    ///
    /// # Errors
    /// Any other failure.
    pub(crate) fn pin(&self, bytes: usize) -> Result<Option<*mut u8>, CudaError> {
        let _whole = MEMORY.read();
        self.enter()?;
        let mut address = null_mut();
        // SAFETY: the driver writes the address to `at`.
        let status = unsafe { (self.driver.functions.cuMemHostAlloc)(&raw mut address, bytes.max(1), 0) };
        Ok(self.has_memory("cuMemHostAlloc", status)?.then(|| address.cast()))
    }
    /// Frees pinned memory.
    pub(crate) fn unpin(&self, at: *mut u8) {
        let _whole = MEMORY.read();
        let _ = self.enter().and_then(|driver| call!(driver, cuMemFreeHost(at.cast())));
    }
    /// Copies bytes between pinned memory and the card, beside kernels that are launched later, and waits for
    /// the copy.
    ///
    /// # Errors
    /// The driver's, including those of kernels that were launched before.
    pub(crate) fn copy_beside(
        &self,
        bytes: usize,
        host: *mut u8,
        at: u64,
        to_card: bool,
    ) -> Result<(), CudaError> {
        let event = self.event()?;
        let driver = self.enter()?;
        let copied = self.record(event).and_then(|()| {
            call!(driver, cuStreamWaitEvent(self.copies, event, 0))?;
            if to_card {
                call!(driver, cuMemcpyHtoDAsync_v2(at, host.cast_const().cast(), bytes, self.copies))?;
            } else {
                call!(driver, cuMemcpyDtoHAsync_v2(host.cast(), at, bytes, self.copies))?;
            }
            call!(driver, cuStreamSynchronize(self.copies))
        });
        self.forget(event);
        copied
    }
    /// Waits until the card has done all that was launched.
    ///
    /// # Errors
    /// If any of it failed.
    pub fn settle(&self) -> Result<(), CudaError> {
        call!(self.enter()?, cuStreamSynchronize(self.stream()?))
    }
    /// Creates an event, which can be recorded any number of times.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn event(&self) -> Result<Handle, CudaError> {
        const WITHOUT_TIME: c_uint = 2;
        let mut event = null_mut();
        call!(self.enter()?, cuEventCreate(&raw mut event, WITHOUT_TIME))?;
        Ok(event)
    }
    /// Records an event: it passes when the card has done all that was launched before.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self, event: Handle) -> Result<(), CudaError> {
        call!(self.enter()?, cuEventRecord(event, self.stream()?))
    }
    /// Returns true if an event has passed.
    ///
    /// # Errors
    /// The driver's, including those of kernels that were launched before.
    pub(crate) fn passed(&self, event: Handle) -> Result<bool, CudaError> {
        const NOT_READY: c_int = 600;
        let driver = self.enter()?;
        // SAFETY: the event is this card's.
        match unsafe { (driver.functions.cuEventQuery)(event) } {
            NOT_READY => Ok(false),
            status => driver.check("cuEventQuery", status).map(|()| true),
        }
    }
    /// Destroys an event.
    pub(crate) fn forget(&self, event: Handle) {
        let _ = self.enter().and_then(|driver| call!(driver, cuEventDestroy_v2(event)));
    }
    /// Returns the seconds that the card takes for the launches of `work`.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn seconds(&self, work: impl FnOnce()) -> Result<f64, CudaError> {
        self.enter()?;
        let mut events = [null_mut(); 2];
        for event in &mut events {
            call!(self.driver, cuEventCreate(event, 0))?;
        }
        let [from, to] = events;
        call!(self.driver, cuEventRecord(from, self.stream()?))?;
        work();
        call!(self.driver, cuEventRecord(to, self.stream()?))?;
        call!(self.driver, cuEventSynchronize(to))?;
        let mut milliseconds = 0.0;
        call!(self.driver, cuEventElapsedTime(&raw mut milliseconds, from, to))?;
        for event in events {
            call!(self.driver, cuEventDestroy_v2(event))?;
        }
        Ok(f64::from(milliseconds) / 1000.0)
    }
    /// Returns the card's stream, which has all launches so far.
    ///
    /// # Errors
    /// The driver's, of launches that were held.
    pub(crate) fn stream(&self) -> Result<Handle, CudaError> {
        self.queue().flush(self)?;
        Ok(self.stream)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = self.enter(); // a failure here was reported by an earlier call
        for module in self.modules.drain(..) {
            let _ = call!(self.driver, cuModuleUnload(module));
        }
        for stream in [self.stream, self.copies] {
            let _ = call!(self.driver, cuStreamDestroy_v2(stream));
        }
        let _ = call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.ordinal));
        forget_current_context();
    }
}

impl CardProperties {
    fn of(driver: &Driver, device: c_int) -> Result<Self, CudaError> {
        let (mut name, mut bus) = ([0u8; 128], [0u8; 32]);
        call!(driver, cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device))?;
        call!(driver, cuDeviceGetPCIBusId(bus.as_mut_ptr().cast::<c_char>(), bus.len() as c_int, device))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string();
        let attribute = |which| {
            let mut value = 0;
            call!(driver, cuDeviceGetAttribute(&raw mut value, which, device)).map(|()| value)
        };
        let [major, minor] = CAPABILITY;
        Ok(Self {
            name: text(&name),
            bus: text(&bus),
            capability: (attribute(major)?, attribute(minor)?),
            processors: attribute(PROCESSORS)? as usize,
            cuda: (driver.version / 1000, driver.version % 1000 / 10),
            library: driver.library.clone(),
            memory: [0; 2],
        })
    }
}
