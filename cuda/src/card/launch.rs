//! The kernels loaded on a card, and their launch, which does not wait.
use super::Card;
use super::argument::{CardLaunch, Kernel, KernelName, MOST, TensorMap};
use crate::driver::{BESIDE, CudaError, DriverLaunch, Handle, LaunchAttribute, call};
use crate::ptx::{self, Module};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::thread;
use tensor::limits;

/// A compiled module and its kernels.
struct Loaded {
    module: Handle,
    kernels: Vec<(KernelName, Kernel)>,
}
// SAFETY: any thread may use the driver's handles if their context is current.
unsafe impl Send for Loaded {}

const DYNAMIC_SHARED: c_int = 8;

impl Card {
    /// Compiles modules in the driver and adds their kernels. Each module has a thread of its own, as some
    /// take seconds.
    pub(super) fn load(&mut self, modules: impl Iterator<Item = &'static Module>) -> Result<(), CudaError> {
        let card = &*self;
        let loaded: Vec<_> = thread::scope(|scope| {
            let compiling: Vec<_> =
                modules.map(|module| limits::scoped(scope, move || card.compile(module))).collect();
            compiling.into_iter().map(|thread| thread.join().expect("compiling does not panic")).collect()
        });
        for loaded in loaded {
            let Loaded { module, kernels } = loaded?;
            self.modules.push(module);
            self.kernels.0.extend(kernels);
        }
        Ok(())
    }
    /// Compiles a module in the driver and finds its kernels.
    fn compile(&self, module: &'static Module) -> Result<Loaded, CudaError> {
        const LOG_BUFFER: c_int = 5;
        const LOG_BYTES: c_int = 6;
        let mut log = vec![0u8; 8192];
        let mut options = [LOG_BUFFER, LOG_BYTES];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        self.enter()?;
        let text = CString::new(module.ptx()).expect("PTX has no zero bytes");
        let mut handle = null_mut();
        // SAFETY: the text ends with a zero byte; the log has the size that the options give.
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
        let mut loaded = Loaded { module: handle, kernels: Vec::new() };
        for (name, sizes) in ptx::kernels(module.ptx()) {
            let (mut function, called) = (null_mut(), CString::new(name).expect("a name"));
            let found = call!(self.driver, cuModuleGetFunction(&raw mut function, handle, called.as_ptr()));
            found.map_err(|error| CudaError::Kernel {
                kernel: name,
                module: module.name,
                reason: error.to_string(),
            })?;
            let number = name.rsplit_once('_').filter(|(_, number)| matches!(*number, "f32" | "bf16"));
            loaded.kernels.push((number.unwrap_or((name, "")), Kernel { function, sizes }));
        }
        Ok(loaded)
    }
    /// Describes a bf16 matrix of `rows` and `cols` with adjacent columns and rows `bytes` apart. With the
    /// result, kernels have the card copy boxes of 64 rows and 64 columns to shared memory, their pieces of
    /// 16 bytes permuted by row.
    ///
    /// # Errors
    /// The driver's, unless the address and `bytes` are multiples of 16 and the matrix is not empty.
    pub(crate) fn boxes(&self, at: u64, [rows, cols]: [u64; 2], bytes: u64) -> Result<TensorMap, CudaError> {
        const BF16: u32 = 9;
        const RANK: u32 = 2;
        const PERMUTED_128: u32 = 3;
        const CACHED_256: u32 = 3;
        let mut boxes = TensorMap([0; 16]);
        call!(
            self.driver,
            cuTensorMapEncodeTiled(
                (&raw mut boxes.0).cast(),
                BF16,
                RANK,
                at,
                [cols, rows].as_ptr(),
                [bytes].as_ptr(),
                [64; 2].as_ptr(),
                [1; 2].as_ptr(),
                0,
                PERMUTED_128,
                CACHED_256,
                0
            )
        )?;
        Ok(boxes)
    }
    /// Starts a launch; with `beside`, before the kernel before it has ended.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn start(&self, launch: &mut CardLaunch, beside: bool) -> Result<(), CudaError> {
        let (Kernel { function, sizes }, shape) = (&self.kernels.0[&launch.kernel], launch.shape);
        let [x, y, z] = shape.blocks.map(|blocks| blocks as u32);
        if x * y * z == 0 {
            return Ok(());
        }
        let driver = self.enter()?;
        if shape.shared > 48 << 10 {
            call!(driver, cuFuncSetAttribute(*function, DYNAMIC_SHARED, shape.shared as c_int))?;
        }
        let mut at = [null_mut(); MOST];
        for (at, line) in at.iter_mut().zip(CardLaunch::starts(sizes)) {
            *at = launch.lines[line..].as_mut_ptr().cast::<c_void>();
        }
        let mut attribute = LaunchAttribute { id: BESIDE, value: [1, 0, 0, 0, 0, 0, 0, 0] };
        let how = DriverLaunch {
            blocks: [x, y, z],
            threads: [shape.threads as u32, 1, 1],
            shared: shape.shared as u32,
            stream: self.stream,
            attributes: &raw mut attribute,
            count: beside.into(),
        };
        call!(driver, cuLaunchKernelEx(&raw const how, *function, at.as_mut_ptr(), null_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::argument::{Argument, LaunchConfig};
    use super::*;
    use crate::card::forget_current_context;
    use crate::twin;
    use std::sync::OnceLock;

    /// Kills: a kernel that the driver does not find and the error does not name; a dtype suffix that is part
    /// of a name, or is none.
    #[test]
    fn a_kernel_that_is_not_there_is_named() {
        if let Err(reason) = twin::install() {
            return twin::skipped(&reason);
        }
        let mut card = Card::new(0).unwrap();
        let text =
            OnceLock::from(".version 9.0\n.visible .entry add_f64(\n.param .u32 a\n)\n{\n}\n".to_string());
        let module: &Module = Box::leak(Box::new(Module { name: "none", packed: &[], least: (8, 0), text }));
        let said = card.load([module].into_iter()).unwrap_err().to_string();
        assert!(
            said.starts_with("the CUDA driver finds no kernel add_f64 in none: cuModuleGetFunction failed: "),
            "{said}"
        );
        let all = [("add", "f32"), ("add", "bf16"), ("mean_square_total", "")];
        assert_eq!(all.map(|kernel| card.kernels.has(kernel)), [true; 3]);
        assert_eq!(
            [("add_f32", ""), ("add", ""), ("add", "f64")].map(|kernel| card.kernels.has(kernel)),
            [false; 3]
        );
    }

    /// Kills: a thread that uses another thread's current context, or goes on with it after another library;
    /// a launch with more, fewer or other arguments than the kernel takes.
    #[test]
    fn every_thread_computes_on_the_card_that_it_means() {
        if let Err(reason) = twin::install() {
            return twin::skipped(&reason);
        }
        let one = Card::open(0).unwrap();
        let at = one.alloc(4).unwrap().unwrap();
        let set = || one.put(at, &[1; 4]).is_ok();
        assert!(set() && std::thread::scope(|scope| scope.spawn(set).join().unwrap()));
        call!(one.driver, cuCtxSetCurrent((&raw const at).cast_mut().cast())).unwrap();
        assert!(!set(), "a thread's context is set once");
        forget_current_context();
        assert!(set());
        for given in [&[&1u32 as &dyn Argument, &2u32][..], &[&1u64, &2u64, &3u64]] {
            let shape = LaunchConfig { blocks: [0; 3], threads: 1, shared: 0 };
            let launched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                one.kernels.prepare(("add", "f32"), shape, given)
            }));
            assert!(launched.is_err());
        }
        one.free(at);
    }
}
