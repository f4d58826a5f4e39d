//! cuBLAS, if it is found: the baseline of measured products. No computation uses it.
use crate::card::{Card, forget_current_context};
use crate::driver::Handle;
use crate::library::{library, open};
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;

library! {
    /// Functions of `libcublas` in use. Source: NVIDIA, "cuBLAS", sections 2.4 and 2.8.
    Functions {
        fn cublasCreate_v2(*mut Handle);
        fn cublasDestroy_v2(Handle);
        fn cublasSetStream_v2(Handle, Handle);
        fn cublasGemmEx(
            Handle, c_int, c_int, c_int, c_int, c_int, *const c_void, u64, c_int, c_int, u64, c_int, c_int,
            *const c_void, u64, c_int, c_int, c_int, c_int
        );
    }
}

/// cuBLAS on a card's stream.
pub(crate) struct Cublas {
    functions: Functions,
    handle: Handle,
}

/// Returns the libraries of this name among Python's packages, newest first.
pub(crate) fn among_pythons_packages(name: &str) -> Vec<String> {
    let ask = ["-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"];
    let Ok(output) = Command::new("python3").args(ask).output() else { return Vec::new() };
    let packages = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("nvidia");
    let folders = packages.read_dir().into_iter().flatten().flatten().map(|entry| entry.path().join("lib"));
    let files =
        folders.flat_map(|lib| lib.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()));
    let named =
        |file: &PathBuf| file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name));
    let mut found: Vec<_> = files.filter(named).map(|file| file.to_string_lossy().into_owned()).collect();
    found.sort();
    found.reverse();
    found
}

impl Cublas {
    /// Finds cuBLAS and starts it on a card's stream.
    ///
    /// # Errors
    /// If cuBLAS is not found or does not start.
    pub(crate) fn on(card: &Card) -> Result<Self, String> {
        let mut names: Vec<_> =
            ["libcublas.so.13", "libcublas.so.12", "libcublas.so"].map(String::from).into();
        names.extend(among_pythons_packages("libcublas.so"));
        let (library, name) = open(&names)?;
        let functions = Functions::bind(library).map_err(|function| format!("{name} has no {function}"))?;
        let mut handle = null_mut();
        let stream = card.enter().and_then(|_| card.stream()).map_err(|error| error.to_string())?;
        // SAFETY: the signatures are those of the library's header; the stream lives as long as the card.
        let statuses = unsafe {
            [(functions.cublasCreate_v2)(&raw mut handle), (functions.cublasSetStream_v2)(handle, stream)]
        };
        forget_current_context();
        if statuses == [0, 0] {
            Ok(Self { functions, handle })
        } else {
            Err(format!("{name} does not start"))
        }
    }
    /// Computes C\[M,N\] = A\[M,K\]·B\[K,N\], all row-major, in bf16 if `narrow`, else in f32, with sums in
    /// f32.
    ///
    /// # Errors
    /// The library's status.
    pub(crate) fn product(
        &self,
        narrow: bool,
        [m, n, k]: [usize; 3],
        [c, a, b]: [u64; 3],
    ) -> Result<(), String> {
        const BF16: c_int = 14;
        const SUMS_IN_F32: c_int = 68;
        let kind = if narrow { BF16 } else { 0 };
        let [m, n, k] = [m, n, k].map(|n| n as c_int);
        let [one, zero] = [1.0f32, 0.0].map(|x| x);
        let [one, zero]: [*const c_void; 2] = [(&raw const one).cast(), (&raw const zero).cast()];
        // The library is column-major, so this is the transposed product. SAFETY: the matrices have these
        // sizes.
        let status = unsafe {
            (self.functions.cublasGemmEx)(
                self.handle,
                0,
                0,
                n,
                m,
                k,
                one,
                b,
                kind,
                n,
                a,
                kind,
                k,
                zero,
                c,
                kind,
                n,
                SUMS_IN_F32,
                -1,
            )
        };
        forget_current_context();
        if status == 0 { Ok(()) } else { Err(format!("cublasGemmEx: status {status}")) }
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the same library created the handle.
        unsafe { (self.functions.cublasDestroy_v2)(self.handle) };
    }
}
