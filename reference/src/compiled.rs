//! The oracle, compiled here once for the dtypes of the proofs. The oracle is generic, so each crate with
//! proofs would compile it again; crates with `opt-level` 0, 1 or "s" share the instances of a crate that
//! they depend on.
use crate::{
    Degree, Design, Mask, Trainer, attention, attention_backward, cross_attention, cross_attention_backward,
};
use tensor::{Dual, F61, Scalar};

/// Addresses of the functions from which the others are reached.
fn of<S: Scalar>() -> [*const (); 6] {
    [
        Trainer::<S>::step as *const (),
        Design::logits_recorded::<S> as *const (),
        attention::<S, Mask> as *const (),
        attention_backward::<S, Mask> as *const (),
        cross_attention::<S> as *const (),
        cross_attention_backward::<S> as *const (),
    ]
}

/// Returns the addresses of the oracle's instances. No call is needed: naming the instances makes the
/// compiler emit them.
#[doc(hidden)]
pub fn compiled() -> [[*const (); 6]; 4] {
    [of::<F61>(), of::<Dual<F61>>(), of::<Degree>(), of::<f64>()]
}
