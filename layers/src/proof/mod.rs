//! The proof of one layer: write a [`Case`] (its construction, its oracle, its traffic), and [`proves`] does
//! the rest, for 1, 2, 3, 4 and 8 ranks along the axis that splits layers, or in the worlds that the case
//! names, along whose other axes tokens are dealt:
//!
//! 1. **equal** (`equal.rs`): outputs, gradients of inputs and weights, and new weights equal the unsplit
//!    oracle bit for bit in the field, under two keys, over two steps of two ragged microbatches; the traffic
//!    is the predicted one;
//! 2. **derived** (`derivative.rs`): the hand-written backward is the exact derivative of the forward, by
//!    dual numbers;
//! 3. **close** (`rounding.rs`): in f32 the split layer is as near to the f64 truth as the unsplit one is;
//! 4. **priced** (`price.rs`): `Meta` predicts the measured bytes, FLOPs and traffic;
//! 5. **sharp** (`mutants.rs`): if any one of the layer's calls to other ranks goes wrong, in any way, it is
//!    not equal.
mod case;
mod derivative;
mod equal;
mod erased;
mod lies;
mod mutants;
mod price;
mod rounding;
mod run;
#[cfg(test)]
mod tests;

pub use case::{Answer, Case, LayerInput, SEED};
use erased::Erased;
pub use lies::ActivationLayout;

/// Proves a layer, all five ways.
///
/// # Panics
/// If the proof fails; names the tensor that differs, the rank and the number of ranks, the key, and the
/// number of elements that differ.
pub fn proves(case: &impl Case) {
    all::<dyn Erased>(case, false);
}

/// Proves a layer without mutants: for a case all of whose calls another case makes too.
///
/// # Panics
/// As [`proves`].
pub fn holds(case: &impl Case) {
    but_mutants::<dyn Erased>(case, false);
}

/// Proves a layer, all five ways, under sequence parallelism: each rank has its own tokens of the stream.
///
/// # Panics
/// If the proof fails; names the tensor that differs, the rank and the number of ranks, the key, and the
/// number of elements that differ.
pub fn proves_in_regions(case: &impl Case) {
    all::<dyn Erased>(case, true);
}

/// Judges all mutants of a layer, comparing only tensors whose name `compared` accepts.
#[cfg(test)]
pub(crate) fn blind(case: &impl Case, compared: fn(&str) -> bool) -> comm::mutants::MutantTally {
    mutants::tally::<dyn Erased>((case, false), compared)
}

fn all<C: Erased + ?Sized>(case: &C, regions: bool) {
    but_mutants(case, regions);
    mutants::check(case, regions);
}

fn but_mutants<C: Erased + ?Sized>(case: &C, regions: bool) {
    equal::check(case, regions);
    derivative::check(case, regions);
    rounding::check(case, regions);
    if case.is_predicted() {
        price::check(case, regions);
    }
}
