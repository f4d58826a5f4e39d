//! One card: its context, its stream, and the kernels that were loaded on it.
//!
//! All ranks of this process that compute on a card, which may be one, share its one stream: what one rank launches is done before what
//! another launches later, so whoever has met another rank may read what that one wrote, without waiting for the card.

mod events;

use crate::driver::{CudaError, Driver, Handle, OUT_OF_MEMORY, call};
use crate::ptx::{self, Module};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

/// A card that is in use.
pub struct Card {
    driver: &'static Driver,
    ordinal: c_int,
    context: Handle,
    stream: Handle,
    modules: Vec<Handle>,
    kernels: HashMap<KernelName, Kernel>,
    /// What the card is.
    pub about: AboutCard,
}
// SAFETY: the driver's handles may be used by any thread whose current context is theirs, which every call sees to.
unsafe impl Send for Card {}
// SAFETY: the driver's functions may be called by many threads at once.
unsafe impl Sync for Card {}

/// What a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AboutCard {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: usize,
    /// CUDA's version as the driver knows it.
    pub cuda: (i32, i32),
    /// The library that the driver is.
    pub library: String,
    /// Bytes of its memory: free, in all.
    pub memory: [usize; 2],
}

/// A kernel's name but for the number at its end, and that number; nothing for one that is of no number.
pub(crate) type KernelName = (&'static str, &'static str);

struct Kernel {
    function: Handle,
    sizes: Vec<usize>, // bytes of each parameter
}

/// How many blocks, threads of each, and bytes of dynamic shared memory a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
    pub(crate) shared: usize,
}

/// Room for an argument that is no C as it is; as many as a kernel can have.
pub(crate) type Room = [u64; 4];
const MOST: usize = 16;

/// An argument of a kernel: bytes as C has them.
///
/// # Safety
/// What is at the address is `repr(C)` and means on the card what it means here.
pub(crate) unsafe trait Argument {
    /// Its address, which may be in the room, and how many bytes it has.
    fn bytes(&self, room: &mut Room) -> (*mut c_void, usize);
}
macro_rules! arguments_of {
    ($($of:ty),*) => {$(
        // SAFETY: numbers, and structs of them that are `repr(C)`, are the same on both sides.
        unsafe impl $crate::card::Argument for $of {
            fn bytes(&self, _: &mut $crate::card::Room) -> (*mut std::ffi::c_void, usize) {
                ((&raw const *self).cast_mut().cast(), size_of::<Self>())
            }
        }
    )*};
}
pub(crate) use arguments_of;
arguments_of!(f32, f64, u32, u64);

/// What the driver's twin calls its card.
const TWIN: &str = "the CPU's twin of a GPU";

/// A matrix as the card copies boxes of it: `CUtensorMap`.
#[repr(C, align(64))]
pub(crate) struct Boxes([u64; 16]);
arguments_of!(Boxes);

const CAPABILITY: [c_int; 2] = [75, 76];
const PROCESSORS: c_int = 16;
const DYNAMIC_SHARED: c_int = 8;

/// Held by those who take or give back memory, and as a whole by who launches on several cards: a driver that waits for a card
/// because of the one would wait for ever where a part of the other is not launched yet.
static MEMORY: RwLock<()> = RwLock::new(());

/// As long as this is held, nobody takes memory of a card or gives it back.
pub(crate) fn nobody_allocates() -> RwLockWriteGuard<'static, ()> {
    MEMORY.write().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The context that this thread's calls mean.
    static CURRENT: Cell<Handle> = const { Cell::new(null_mut()) };
}

/// Another library may have changed what this thread's calls mean.
pub(crate) fn elsewhere() {
    CURRENT.set(null_mut());
}

/// The cards in use, by number: opened once, for all ranks of this process.
static OPEN: Mutex<Vec<Option<Arc<Card>>>> = Mutex::new(Vec::new());

impl Card {
    /// A card, by its number; opened when it is first asked for.
    ///
    /// # Errors
    /// That there is no driver or no such card, or that it does not take the kernels.
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
    /// How many cards there are.
    ///
    /// # Errors
    /// That there is no driver, or no card.
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
        let about = AboutCard::of(driver, device)?;
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
            modules: Vec::new(),
            kernels: HashMap::new(),
            about,
        };
        card.enter()?;
        call!(driver, cuStreamCreate(&raw mut card.stream, 1))?; // 1: it does not wait for the default stream
        card.about.memory = card.memory()?;
        let by_hand: &[Module] = if card.about.name == TWIN { &[] } else { &ptx::BY_HAND };
        for module in ptx::MODULES.iter().chain(by_hand) {
            if module.runs_on(card.about.capability) {
                card.load(module)?;
            }
        }
        Ok(card)
    }
    /// Has the driver compile a module, and finds its kernels.
    fn load(&mut self, module: &'static Module) -> Result<(), CudaError> {
        const LOG_BUFFER: c_int = 5;
        const LOG_BYTES: c_int = 6;
        let mut log = vec![0u8; 8192];
        let mut options = [LOG_BUFFER, LOG_BYTES];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let text = CString::new(module.ptx()).expect("PTX has no zero bytes");
        let mut handle = null_mut();
        // SAFETY: the text ends with a zero; the log has as many bytes as the options say.
        let status = unsafe {
            (self.driver.functions.cuModuleLoadDataEx)(
                &raw mut handle,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if status != 0 {
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
            return Err(CudaError::Kernels { module: module.name, reason: self.driver.reason(status), log });
        }
        self.modules.push(handle);
        for (name, sizes) in ptx::kernels(module.ptx()) {
            let (mut function, called) = (null_mut(), CString::new(name).expect("a name"));
            let found = call!(self.driver, cuModuleGetFunction(&raw mut function, handle, called.as_ptr()));
            found.map_err(|error| CudaError::Kernel {
                kernel: name,
                module: module.name,
                reason: error.to_string(),
            })?;
            let number = name.rsplit_once('_').filter(|(_, number)| matches!(*number, "f32" | "bf16"));
            self.kernels.insert(number.unwrap_or((name, "")), Kernel { function, sizes });
        }
        Ok(())
    }
    /// Makes this card the one that the driver's next calls of this thread mean.
    pub(crate) fn enter(&self) -> Result<(), CudaError> {
        if CURRENT.get() == self.context {
            return Ok(());
        }
        call!(self.driver, cuCtxSetCurrent(self.context)).map(|()| CURRENT.set(self.context))
    }
    /// Bytes of its memory: free, in all.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<[usize; 2], CudaError> {
        self.enter()?;
        let [mut free, mut total] = [0; 2];
        call!(self.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok([free, total])
    }
    /// Memory of so many bytes, all of them zero; none if there is no more.
    ///
    /// # Errors
    /// Any other failure.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Option<u64>, CudaError> {
        let _whole = MEMORY.read();
        self.enter()?;
        let mut at = 0;
        // SAFETY: the address is written where it is asked for.
        let status = unsafe { (self.driver.functions.cuMemAlloc_v2)(&raw mut at, bytes.max(1)) };
        if status == OUT_OF_MEMORY {
            return Ok(None);
        }
        self.driver.check("cuMemAlloc", status)?;
        call!(self.driver, cuMemsetD8Async(at, 0, bytes, self.stream))?;
        Ok(Some(at))
    }
    /// Gives memory back.
    pub(crate) fn free(&self, at: u64) {
        let _whole = MEMORY.read();
        // A card that has failed has nothing to give back; who computes on it is told elsewhere.
        let _ = self.enter().and_then(|()| call!(self.driver, cuMemFree_v2(at)));
    }
    /// Copies bytes to the card.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn put(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.enter()?;
        call!(self.driver, cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.stream))
    }
    /// Copies bytes from the card, when all that was launched before is done.
    ///
    /// # Errors
    /// The driver's; among them those of kernels that were launched before.
    pub(crate) fn get(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.enter()?;
        call!(self.driver, cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.stream))?;
        self.settle()
    }
    /// Copies bytes on the card.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.enter()?;
        call!(self.driver, cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream))
    }
    /// Waits until all that was launched is done.
    ///
    /// # Errors
    /// What failed of it.
    pub fn settle(&self) -> Result<(), CudaError> {
        self.enter()?;
        call!(self.driver, cuStreamSynchronize(self.stream))
    }
    /// Its stream.
    pub(crate) fn stream(&self) -> Handle {
        self.stream
    }
    /// Whether a kernel was loaded: those for newer cards are not on others.
    pub(crate) fn has(&self, kernel: KernelName) -> bool {
        self.kernels.contains_key(&kernel)
    }
    /// A matrix of bf16, of `cols` that lie together and `rows` so many bytes apart, for kernels that have the card copy boxes of
    /// 64 rows and columns of it to shared memory, 16 bytes permuted by row.
    ///
    /// # Errors
    /// The driver's: the address and the bytes are multiples of 16, and there are rows and columns.
    pub(crate) fn boxes(&self, at: u64, [rows, cols]: [u64; 2], bytes: u64) -> Result<Boxes, CudaError> {
        const BF16: u32 = 9;
        const RANK: u32 = 2;
        const PERMUTED_128: u32 = 3;
        const CACHED_256: u32 = 3;
        let (mut boxes, dims, strides) = (Boxes([0; 16]), [cols, rows], [bytes]);
        let (sizes, steps, map) = ([64; 2], [1; 2], &raw mut boxes.0);
        let [dims, strides] = [dims.as_ptr(), strides.as_ptr()];
        let [sizes, steps]: [*const u32; 2] = [sizes.as_ptr(), steps.as_ptr()];
        call!(
            self.driver,
            cuTensorMapEncodeTiled(
                map.cast(),
                BF16,
                RANK,
                at,
                dims,
                strides,
                sizes,
                steps,
                0,
                PERMUTED_128,
                CACHED_256,
                0
            )
        )?;
        Ok(boxes)
    }
    /// Launches a kernel.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the kernel takes other arguments, or there is none of this name.
    pub(crate) fn launch(
        &self,
        kernel: KernelName,
        shape: Shape,
        arguments: &[&dyn Argument],
    ) -> Result<(), CudaError> {
        let Kernel { function, sizes } =
            self.kernels.get(&kernel).unwrap_or_else(|| panic!("no kernel {kernel:?}"));
        let (mut rooms, mut at) = ([Room::default(); MOST], [null_mut(); MOST]);
        let takes = arguments.len() == sizes.len() && sizes.len() <= MOST;
        let given = arguments.iter().zip(&mut rooms).zip(&mut at).map(|((argument, room), at)| {
            let (from, bytes) = argument.bytes(room);
            *at = from;
            bytes
        });
        assert!(takes && given.eq(sizes.iter().copied()), "{kernel:?} takes arguments of {sizes:?} bytes");
        let [x, y, z] = shape.blocks.map(|blocks| blocks as u32);
        if x * y * z == 0 {
            return Ok(());
        }
        self.enter()?;
        if shape.shared > 48 << 10 {
            call!(self.driver, cuFuncSetAttribute(*function, DYNAMIC_SHARED, shape.shared as c_int))?;
        }
        let (threads, shared) = (shape.threads as u32, shape.shared as u32);
        call!(
            self.driver,
            cuLaunchKernel(
                *function,
                x,
                y,
                z,
                threads,
                1,
                1,
                shared,
                self.stream,
                at.as_mut_ptr(),
                null_mut()
            )
        )
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = self.enter(); // what fails here has failed before, and was told
        for module in self.modules.drain(..) {
            let _ = call!(self.driver, cuModuleUnload(module));
        }
        let _ = call!(self.driver, cuStreamDestroy_v2(self.stream));
        let _ = call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.ordinal));
        elsewhere();
    }
}

impl AboutCard {
    fn of(driver: &Driver, device: c_int) -> Result<Self, CudaError> {
        let mut name = [0u8; 128];
        call!(driver, cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device))?;
        let attribute = |which| {
            let mut value = 0;
            call!(driver, cuDeviceGetAttribute(&raw mut value, which, device)).map(|()| value)
        };
        let [major, minor] = CAPABILITY;
        Ok(Self {
            name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_string(),
            capability: (attribute(major)?, attribute(minor)?),
            processors: attribute(PROCESSORS)? as usize,
            cuda: (driver.version / 1000, driver.version % 1000 / 10),
            library: driver.library.clone(),
            memory: [0; 2],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin;
    use std::sync::OnceLock;

    /// Kills: a kernel that the driver does not find, and whose name is not told; a number that is part of a name, or is none.
    #[test]
    fn a_kernel_that_is_not_there_is_named() {
        if let Err(reason) = twin::install() {
            return eprintln!("skipped: {reason}");
        }
        let mut card = Card::new(0).unwrap();
        let text = OnceLock::from(".version 9.0\n.visible .entry add_f64(\n.param .u32 a\n)\n{\n}\n".to_string());
        let module: &Module =
            Box::leak(Box::new(Module { name: "none", packed: &[], least: (8, 0), text }));
        let said = card.load(module).unwrap_err().to_string();
        assert!(said.starts_with("the CUDA driver has no kernel add_f64 of none: cuModuleGetFunction failed: "), "{said}");
        let all = [("add", "f32"), ("add", "bf16"), ("mean_square_total", "")];
        assert_eq!(all.map(|kernel| card.has(kernel)), [true; 3]);
        assert_eq!([("add_f32", ""), ("add", ""), ("add", "f64")].map(|kernel| card.has(kernel)), [false; 3]);
    }

    /// Kills: a thread that takes what another means for its own, or goes on with it after another library; a launch with more, fewer or
    /// other arguments than the kernel takes.
    #[test]
    fn every_thread_computes_on_the_card_that_it_means() {
        if let Err(reason) = twin::install() {
            return eprintln!("skipped: {reason}");
        }
        let one = Card::open(0).unwrap();
        let at = one.alloc(4).unwrap().unwrap();
        let set = || one.put(at, &[1; 4]).is_ok();
        assert!(set() && std::thread::scope(|scope| scope.spawn(set).join().unwrap()));
        call!(one.driver, cuCtxSetCurrent((&raw const at).cast_mut().cast())).unwrap();
        assert!(!set(), "what a thread means is asked for once");
        elsewhere();
        assert!(set());
        for given in [&[&1u32 as &dyn Argument, &2u32][..], &[&1u64, &2u64, &3u64]] {
            let shape = Shape { blocks: [0; 3], threads: 1, shared: 0 };
            let launched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.launch(("add", "f32"), shape, given)));
            assert!(launched.is_err());
        }
        one.free(at);
    }
}
