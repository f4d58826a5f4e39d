//! The host's kernels of the numbers that proofs run in, and calls between its ranks, compiled here once. They are generic, so each crate that proves
//! something would compile them again; crates with `opt-level` 0 or 1 share the instances of a crate that they depend on.
use crate::Group;
use kernels::{Kernels, every_kernel};
use tensor::{Cpu, Dual, F61, Host};

/// The addresses of these kernels.
macro_rules! addresses {
    ([$number:ty] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        vec![$(<Cpu<$number> as Kernels>::$name as *const ()),*]
    };
}

/// The addresses of what goes between ranks.
fn calls<D: Kernels<Place = Host>>() -> Vec<*const ()> {
    vec![
        Group::<Host>::all_reduce::<D> as *const (),
        Group::<Host>::all_gather::<D> as *const (),
        Group::<Host>::reduce_scatter::<D> as *const (),
        Group::<Host>::broadcast::<D> as *const (),
        Group::<Host>::all_to_all_v::<D> as *const (),
        Group::<Host>::start_all_reduce::<D> as *const (),
        Group::<Host>::start_together::<D> as *const (),
    ]
}

/// The instances. Nobody needs to call this: that it names them is what has them compiled.
#[doc(hidden)]
pub fn kernels() -> Vec<*const ()> {
    let field = every_kernel!(addresses F61);
    let duals = every_kernel!(addresses Dual<F61>);
    [field, duals, calls::<Cpu<F61>>(), calls::<Cpu<Dual<F61>>>(), calls::<Cpu<f32>>()].concat()
}
