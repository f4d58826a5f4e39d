//! The host's kernels of the numbers that proofs run in, compiled here once. They are generic, so each crate that proves
//! something would compile them again; crates with `opt-level` 0 or 1 share the instances of a crate that they depend on.
use kernels::{Kernels, every_kernel};
use tensor::{Cpu, Dual, F61};

/// The addresses of these kernels.
macro_rules! addresses {
    ([$number:ty] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        vec![$(<Cpu<$number> as Kernels>::$name as *const ()),*]
    };
}

/// The kernels' instances. Nobody needs to call this: that it names them is what has them compiled.
#[doc(hidden)]
pub fn kernels() -> Vec<*const ()> {
    let field = every_kernel!(addresses F61);
    let duals = every_kernel!(addresses Dual<F61>);
    [field, duals].concat()
}
