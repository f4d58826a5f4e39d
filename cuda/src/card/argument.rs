//! Arguments of a kernel, and a launch with a copy of them.
use crate::driver::Handle;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;

/// A kernel's name without its dtype suffix, and the dtype; "" for a kernel without one.
pub(crate) type KernelName = (&'static str, &'static str);

pub(crate) struct Kernel {
    pub(super) function: Handle,
    pub(super) sizes: Vec<usize>, // bytes of each parameter
}

/// Kernels that are loaded on a card.
#[derive(Default)]
pub(crate) struct LoadedKernels(pub(super) HashMap<KernelName, Kernel>);

impl LoadedKernels {
    /// Returns true if a kernel was loaded; kernels for newer cards are not loaded on older ones.
    pub(crate) fn has(&self, kernel: KernelName) -> bool {
        self.0.contains_key(&kernel)
    }
    /// Prepares a launch, without special rules.
    ///
    /// # Panics
    /// If the arguments are not those of the kernel, or the kernel does not exist.
    pub(crate) fn prepare(
        &self,
        kernel: KernelName,
        shape: LaunchConfig,
        arguments: &[&dyn Argument],
    ) -> CardLaunch {
        let Kernel { sizes, .. } =
            self.0.get(&kernel).unwrap_or_else(|| panic!("kernel {kernel:?} is not loaded"));
        let fits = |fit: bool| assert!(fit, "kernel {kernel:?} must get arguments of {sizes:?} bytes");
        fits(arguments.len() == sizes.len());
        let all = sizes.iter().map(|bytes| bytes.div_ceil(size_of::<ArgumentLine>())).sum();
        let (mut lines, mut touched) = (vec![ArgumentLine([0; 64]); all], Some(Vec::new()));
        for ((line, size), argument) in CardLaunch::starts(sizes).zip(sizes).zip(arguments) {
            let mut room = ArgumentSpace::default();
            let (from, bytes) = argument.bytes(&mut room);
            fits(bytes == *size);
            // SAFETY: an argument has these bytes, and the lines from its own on have room for them.
            unsafe { lines[line..].as_mut_ptr().cast::<u8>().copy_from(from.cast(), bytes) };
            match argument.touched() {
                NamedMemory::Nothing => {}
                NamedMemory::Bytes(range) => touched.iter_mut().for_each(|all| all.push(range.clone())),
                NamedMemory::Unknown => touched = None,
            }
        }
        CardLaunch { kernel, shape, rules: &NoRules, lines, touched }
    }
}

/// Launch configuration: blocks, threads per block, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
    pub(crate) shared: usize,
}

/// A launch that may be held for the next one: it has a copy of its arguments.
#[derive(Clone)]
pub(crate) struct CardLaunch {
    pub(crate) kernel: KernelName,
    pub(crate) shape: LaunchConfig,
    pub(super) rules: &'static dyn LaunchRules,
    pub(super) lines: Vec<ArgumentLine>, // each argument begins a line
    /// Memory that its arguments name; `None` if not all is known.
    pub(crate) touched: Option<Vec<Range<u64>>>,
}

/// Bytes of arguments, with the alignment that any of them has.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct ArgumentLine(pub(super) [u8; 64]);

impl CardLaunch {
    /// Returns the line of each argument.
    pub(super) fn starts(sizes: &[usize]) -> impl Iterator<Item = usize> {
        sizes.iter().scan(0, |next, bytes| {
            let start = *next;
            *next += bytes.div_ceil(size_of::<ArgumentLine>());
            Some(start)
        })
    }
    /// Returns the place of an argument.
    ///
    /// # Panics
    /// If the kernel's argument has another size.
    fn at<T: Argument>(&self, kernels: &LoadedKernels, which: usize) -> usize {
        let sizes = &kernels.0[&self.kernel].sizes;
        assert_eq!(sizes[which], size_of::<T>(), "argument {which} of {:?}", self.kernel);
        Self::starts(sizes).nth(which).expect("it has a size")
    }
    /// Returns an argument.
    pub(crate) fn argument<T: Argument + Copy>(&self, kernels: &LoadedKernels, which: usize) -> T {
        let line = self.at::<T>(kernels, which);
        // SAFETY: the lines hold the bytes of an argument of this size, aligned; callers name its type.
        unsafe { self.lines[line..].as_ptr().cast::<T>().read() }
    }
    /// Sets an argument.
    pub(crate) fn set<T: Argument + Copy>(&mut self, kernels: &LoadedKernels, which: usize, to: T) {
        let line = self.at::<T>(kernels, which);
        // SAFETY: as above.
        unsafe { self.lines[line..].as_mut_ptr().cast::<T>().write(to) };
    }
    /// Returns this launch with rules.
    pub(crate) fn under(self, rules: &'static dyn LaunchRules) -> Self {
        Self { rules, ..self }
    }
    /// Returns this launch as one that does the work of two.
    pub(crate) fn touching(self, one: &Self, two: &Self) -> Self {
        let both = one.touched.iter().zip(&two.touched).map(|(one, two)| [&one[..], two].concat()).next();
        Self { touched: both, ..self }
    }
}

/// Rules of how a kernel's launch goes with those around it. Without others, it begins after the one before
/// it has ended, and does its own work alone.
pub(crate) trait LaunchRules: Sync {
    /// Returns true if the next launch might do the work of this one, too, or this one that of the next.
    fn may_merge(&self, _kernels: &LoadedKernels, _launch: &CardLaunch) -> bool {
        false
    }
    /// Returns one launch that does the work of two, with the same bits, if there is one.
    fn merged(&self, _kernels: &LoadedKernels, _held: &CardLaunch, _next: &CardLaunch) -> Option<CardLaunch> {
        None
    }
    /// Returns true if the kernel waits itself for the kernels before it, so that it may begin earlier.
    fn begins_early(&self, _launch: &CardLaunch) -> bool {
        false
    }
    /// Lets a kernel that begins early read before it waits, unless a kernel that may still run uses that
    /// memory.
    fn reading_early(
        &self,
        _kernels: &LoadedKernels,
        launch: CardLaunch,
        _in_use: &[Range<u64>],
    ) -> CardLaunch {
        launch
    }
}

/// No rules beyond these.
pub(crate) struct NoRules;
impl LaunchRules for NoRules {}

/// Rules of kernels that wait themselves for the kernel before them.
pub(crate) struct BeginsEarly;

impl LaunchRules for BeginsEarly {
    fn begins_early(&self, _launch: &CardLaunch) -> bool {
        true
    }
}

/// Memory that an argument names.
pub(crate) enum NamedMemory {
    Nothing,
    Bytes(Range<u64>),
    /// Perhaps an address.
    Unknown,
}

/// Space for the C form of an argument that is not `repr(C)` itself.
pub(crate) type ArgumentSpace = [u64; 4];
/// Most arguments of a kernel.
pub(super) const MOST: usize = 16;

/// An argument of a kernel, as the bytes that C passes.
///
/// # Safety
/// The bytes at the address are `repr(C)` and mean the same on the card as here.
pub(crate) unsafe trait Argument {
    /// Returns the argument's address, which may be in `room`, and its bytes.
    fn bytes(&self, room: &mut ArgumentSpace) -> (*mut c_void, usize);
    /// Returns the memory that the argument names, read or written.
    fn touched(&self) -> NamedMemory {
        NamedMemory::Nothing
    }
}
macro_rules! arguments_of {
    ($($of:ty),*) => {$(
        // SAFETY: scalars, and `repr(C)` structs of them, are the same on both sides.
        unsafe impl $crate::card::argument::Argument for $of {
            fn bytes(&self, _: &mut $crate::card::argument::ArgumentSpace) -> (*mut std::ffi::c_void, usize) {
                ((&raw const *self).cast_mut().cast(), size_of::<Self>())
            }
        }
    )*};
}
pub(crate) use arguments_of;
arguments_of!(f32, f64, u32);
// SAFETY: as above.
unsafe impl Argument for u64 {
    fn bytes(&self, _: &mut ArgumentSpace) -> (*mut c_void, usize) {
        ((&raw const *self).cast_mut().cast(), size_of::<Self>())
    }
    fn touched(&self) -> NamedMemory {
        NamedMemory::Unknown
    }
}

/// A matrix whose tiles (boxes) the card copies itself, by TMA: `CUtensorMap`.
#[repr(C, align(64))]
pub(crate) struct TensorMap(pub(super) [u64; 16]);
arguments_of!(TensorMap);
