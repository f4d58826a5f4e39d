//! Kernels of dual numbers, tensors of the host, and calls between its ranks, compiled here once for tests. They
//! are generic, so each crate that uses them would compile them again; crates with `opt-level` 0 or 1 share the
//! instances of a crate that they depend on. In a release this crate has `opt-level` 3, whose instances nobody
//! shares, so there it compiles none.
use crate::Group;
use kernels::{Kernels, every_kernel};
use tensor::{Bf16, Cpu, Dual, F61, Host, Tensor};

/// The addresses of these kernels.
macro_rules! addresses {
    ([$number:ty] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        vec![$(<Cpu<$number> as Kernels>::$name as *const ()),*]
    };
}

/// The addresses of what goes through numbers one by one, and of what goes between ranks.
fn tensors<D: Kernels<Place = Host>>() -> Vec<*const ()> {
    vec![
        Tensor::<D>::with_room as *const (),
        Tensor::<D>::write as *const (),
        Tensor::<D>::write_together as *const (),
        Tensor::<D>::read_into as *const (),
        Group::<Host>::all_reduce::<D> as *const (),
        Group::<Host>::all_gather::<D> as *const (),
        Group::<Host>::reduce_scatter::<D> as *const (),
        Group::<Host>::start_all_reduce::<D> as *const (),
        Group::<Host>::start_together::<D> as *const (),
    ]
}

/// The instances. Nobody needs to call this: that it names them is what has them compiled.
#[doc(hidden)]
pub fn compiled() -> Vec<*const ()> {
    let floats = [tensors::<Cpu<f32>>(), tensors::<Cpu<f64>>(), tensors::<Cpu<Bf16>>()];
    let exact = [tensors::<Cpu<F61>>(), tensors::<Cpu<Dual<F61>>>()];
    [every_kernel!(addresses Dual<F61>), floats.concat(), exact.concat()].concat()
}
