//! Instances of generic code, compiled here once for tests: kernels of dual numbers, host tensors, and calls
//! between host ranks. Every crate that uses them would otherwise compile them again: crates with `opt-level`
//! 0 or 1 share the instances of a crate that they depend on. In a release this crate has `opt-level` 3,
//! whose instances are not shared, so it compiles none there.
use crate::Group;
use kernels::{Kernels, every_kernel};
use tensor::{Cpu, Dual, F61, Host, Tensor, every_float};

/// Addresses of these kernels.
macro_rules! addresses {
    ([$number:ty] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        vec![$(<Cpu<$number> as Kernels>::$name as *const ()),*]
    };
}

/// Addresses of functions over elements, and of calls between ranks.
fn tensors<D: Kernels<Place = Host>>() -> Vec<*const ()> {
    vec![
        Tensor::<D>::with_room as *const (),
        Tensor::<D>::write as *const (),
        Tensor::<D>::write_slices as *const (),
        Tensor::<D>::read_into as *const (),
        Group::<Host>::all_reduce::<D> as *const (),
        Group::<Host>::all_gather::<D> as *const (),
        Group::<Host>::reduce_scatter::<D> as *const (),
        Group::<Host>::start_all_reduce::<D> as *const (),
        Group::<Host>::start_together::<D> as *const (),
    ]
}

/// Addresses of those of all floats.
macro_rules! floats {
    ($($variant:ident $number:ty, $about:literal;)*) => {
        [$(tensors::<Cpu<$number>>()),*]
    };
}

/// Addresses of the instances. Naming them here compiles them, so this need not be called.
#[doc(hidden)]
pub fn compiled() -> Vec<*const ()> {
    let floats = every_float!(floats);
    let exact = [tensors::<Cpu<F61>>(), tensors::<Cpu<Dual<F61>>>()];
    [every_kernel!(addresses Dual<F61>), floats.concat(), exact.concat()].concat()
}
