//! The CUDA driver by FFI: the functions in use, how the library is found, and errors with the driver's own
//! names and texts.
//!
//! Source: NVIDIA, "CUDA Driver API", the functions' pages. Names with `_v2` are those behind the header's
//! macros.
use crate::library::{library, open};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::{Mutex, OnceLock};

pub(crate) type Handle = *mut c_void;

library! {
    /// Functions of `libcuda.so.1` in use.
    Functions {
        fn cuInit(c_uint);
        fn cuDriverGetVersion(*mut c_int);
        fn cuDeviceGetCount(*mut c_int);
        fn cuDeviceGet(*mut c_int, c_int);
        fn cuDeviceGetName(*mut c_char, c_int, c_int);
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
        fn cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        fn cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        fn cuDevicePrimaryCtxRelease_v2(c_int);
        fn cuCtxSetCurrent(Handle);
        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        fn cuMemAlloc_v2(*mut u64, usize);
        fn cuMemFree_v2(u64);
        fn cuMemHostAlloc(*mut Handle, usize, c_uint);
        fn cuMemFreeHost(Handle);
        fn cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
        fn cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
        fn cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
        fn cuMemsetD8Async(u64, u8, usize, Handle);
        fn cuStreamCreate(*mut Handle, c_uint);
        fn cuStreamDestroy_v2(Handle);
        fn cuStreamSynchronize(Handle);
        fn cuStreamWaitEvent(Handle, Handle, c_uint);
        fn cuEventCreate(*mut Handle, c_uint);
        fn cuEventRecord(Handle, Handle);
        fn cuEventSynchronize(Handle);
        fn cuEventQuery(Handle);
        fn cuEventElapsedTime(*mut f32, Handle, Handle);
        fn cuEventDestroy_v2(Handle);
        fn cuModuleLoadDataEx(*mut Handle, *const c_void, c_uint, *mut c_int, *mut Handle);
        fn cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        fn cuModuleUnload(Handle);
        fn cuFuncSetAttribute(Handle, c_int, c_int);
        fn cuLaunchKernelEx(*const DriverLaunch, Handle, *mut Handle, *mut Handle);
        fn cuTensorMapEncodeTiled(
            *mut u64, c_uint, c_uint, u64, *const u64, *const u64, *const u32, *const u32, c_uint, c_uint, c_uint, c_uint
        );
        fn cuGetErrorName(c_int, *mut *const c_char);
        fn cuGetErrorString(c_int, *mut *const c_char);
    }
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: a kernel's blocks may begin before the kernel
/// before it has ended.
pub(crate) const BESIDE: c_uint = 6;

/// `CUlaunchAttribute`.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) value: [u64; 8],
}
/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct DriverLaunch {
    pub(crate) blocks: [c_uint; 3],
    pub(crate) threads: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *mut LaunchAttribute,
    pub(crate) count: c_uint,
}

/// A GPU that is missing or cannot be used, or a driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's library was not found.
    #[error("no CUDA driver on this machine: {0}")]
    NoDriver(String),
    /// The library lacks a function that is called.
    #[error("the CUDA driver {library} has no function {function}; CUDA 13 or newer is needed")]
    NoFunction {
        /// Name by which the library was found.
        library: String,
        /// The missing function.
        function: &'static str,
    },
    /// The driver is too old.
    #[error("the CUDA driver supports CUDA {}.{}; 13.0 or newer is needed", .0 / 1000, .0 % 1000 / 10)]
    TooOld(i32),
    /// The driver finds no card.
    #[error("the CUDA driver finds no GPU{}", listed())]
    NoCard,
    /// The requested card does not exist.
    #[error("there is no GPU {asked}; this machine has {there}, numbered from 0")]
    NoSuchCard {
        /// Number of the requested card.
        asked: usize,
        /// Number of cards.
        there: usize,
    },
    /// The card cannot run the kernels.
    #[error("GPU {name} has compute capability {}.{}; 8.0 or higher is needed", .capability.0, .capability.1)]
    TooSmall {
        /// The driver's name for the card.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// The driver cannot compile the kernels.
    #[error("the CUDA driver cannot load the kernels of {module}: {reason}{}{log}", if .log.is_empty() { "" } else { ": " })]
    Kernels {
        /// Name of the PTX.
        module: &'static str,
        /// The driver's name and text of the error.
        reason: String,
        /// Log of the driver's compiler.
        log: String,
    },
    /// The driver does not find a kernel in its module.
    #[error("the CUDA driver finds no kernel {kernel} in {module}: {reason}")]
    Kernel {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of the PTX.
        module: &'static str,
        /// The call, and the driver's name and text of the error.
        reason: String,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// The driver's name and text of the error.
        reason: String,
    },
}

/// Returns the list of visible cards in words, if one is set.
fn listed() -> String {
    let listed = std::env::var_os("CUDA_VISIBLE_DEVICES");
    listed.map_or_else(String::new, |list| format!("; CUDA_VISIBLE_DEVICES is {:?}", list.to_string_lossy()))
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NO_DEVICE`: also the status of a list without a valid card.
const NO_DEVICE: c_int = 100;

/// The driver of this machine.
pub(crate) struct Driver {
    pub(crate) functions: Functions,
    /// CUDA's version, as `1000·major + 10·minor`.
    pub(crate) version: i32,
    /// Name by which the library was found.
    pub(crate) library: String,
}

/// Calls a function of the driver: `call!(driver, cuInit(0))?`.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let driver = &$driver;
        // SAFETY: the arguments are what the function's page asks for; what they point to outlives the call.
        driver.check(stringify!($function), unsafe { (driver.functions.$function)($($argument),*) })
    }};
}
pub(crate) use call;

/// Library to load instead of the system's driver, set by [`use_driver`].
static ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

/// Makes this library the driver of the process, instead of the system's. The driver is loaded once, so this
/// comes before any other call.
pub fn use_driver(library: impl Into<String>) {
    *ELSEWHERE.lock().expect("nothing panics under this lock") = Some(library.into());
}

impl Driver {
    /// Returns the driver, loaded once: the library of [`use_driver`], else of the variable `EQUIPART_CUDA`,
    /// else the system's.
    ///
    /// # Errors
    /// If the driver is missing, is too old, or does not start.
    pub(crate) fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        let elsewhere = || ELSEWHERE.lock().expect("nothing panics under this lock").clone();
        let named = || elsewhere().or_else(|| std::env::var("EQUIPART_CUDA").ok());
        let names =
            || named().map_or_else(|| vec!["libcuda.so.1".into(), "libcuda.so".into()], |name| vec![name]);
        DRIVER.get_or_init(|| Self::open(&names())).as_ref().map_err(Clone::clone)
    }
    fn open(names: &[String]) -> Result<Self, CudaError> {
        let (library, name) = open(names).map_err(CudaError::NoDriver)?;
        let functions = Functions::bind(library)
            .map_err(|function| CudaError::NoFunction { library: name.into(), function })?;
        let mut driver = Self { functions, version: 0, library: name.into() };
        // SAFETY: any thread may call it, at any time.
        match unsafe { (driver.functions.cuInit)(0) } {
            NO_DEVICE => return Err(CudaError::NoCard),
            status => driver.check("cuInit", status)?,
        }
        let mut version = 0;
        call!(driver, cuDriverGetVersion(&raw mut version))?;
        if version < 13_000 {
            return Err(CudaError::TooOld(version));
        }
        driver.version = version;
        Ok(driver)
    }
    /// Returns the number of cards, at least one.
    ///
    /// # Errors
    /// [`CudaError::NoCard`].
    pub(crate) fn cards(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&raw mut count))?;
        if count > 0 { Ok(count as usize) } else { Err(CudaError::NoCard) }
    }
    /// Turns a status into a result.
    ///
    /// # Errors
    /// If the status is not 0.
    pub(crate) fn check(&self, call: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == 0 { Ok(()) } else { Err(CudaError::Call { call, reason: self.reason(status) }) }
    }
    /// Returns the driver's name and text of an error.
    pub(crate) fn reason(&self, status: c_int) -> String {
        let described = |ask: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = null();
            // SAFETY: the driver's texts are constants.
            unsafe {
                ask(status, &raw mut text);
                if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy()) }
            }
        };
        match (described(self.functions.cuGetErrorName), described(self.functions.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name} ({text})"),
            _ => format!("error {status}"),
        }
    }
}
