//! Tensors on the host, compiled here once for the numbers that programs and proofs run in. They are generic, so each crate that
//! uses them would compile them again; crates with `opt-level` 0 or 1 share the instances of a crate that they depend on.
use crate::{Bf16, Cpu, Dual, F61, Scalar, Tensor};

/// The addresses of what goes through numbers one by one.
fn of<S: Scalar>() -> [*const (); 6] {
    [
        Tensor::<Cpu<S>>::with_room as *const (),
        Tensor::<Cpu<S>>::along as *const (),
        Tensor::<Cpu<S>>::write as *const (),
        Tensor::<Cpu<S>>::write_together as *const (),
        Tensor::<Cpu<S>>::read as *const (),
        Tensor::<Cpu<S>>::read_into as *const (),
    ]
}

/// The instances. Nobody needs to call this: that it names them is what has them compiled.
#[doc(hidden)]
pub fn compiled() -> [[*const (); 6]; 5] {
    [of::<f32>(), of::<f64>(), of::<Bf16>(), of::<F61>(), of::<Dual<F61>>()]
}
