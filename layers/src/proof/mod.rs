//! The proof of one layer: write a [`Case`] (how it is built, what the oracle says, what it sends), and
//! [`proves`] does the rest, for ranks 1, 2, 3, 4 and 8 along the axis that splits layers, or in the worlds that the case
//! names, along whose other axes tokens are dealt:
//!
//! 1. **equal** (`equal.rs`): outputs, gradients of inputs and weights, and new weights equal the unsplit oracle bit
//!    for bit in the field, under two keys, over two steps of two ragged microbatches; the traffic is the predicted one;
//! 2. **derived** (`derivative.rs`): the hand-written backward is the exact derivative of the forward, by dual numbers;
//! 3. **close** (`rounding.rs`): in f32 the split layer is as near to the f64 truth as the unsplit one is;
//! 4. **priced** (`price.rs`): `Meta` tells the bytes, FLOPs and traffic that are measured;
//! 5. **sharp** (`mutants.rs`): with any one of the layer's calls to other ranks gone wrong in any way, it is not equal.
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

pub use case::{Answer, Case, Given, SEED};
use erased::Erased;
pub use lies::Lies;

/// Proves a layer, all five ways.
///
/// # Panics
/// If the proof fails: says what differs, on which rank of how many, under which key, and in how many elements.
pub fn proves(case: &impl Case) {
    all::<dyn Erased>(case, false);
}

/// Proves a layer, but tries no mutants: where another case has all calls that this one has.
///
/// # Panics
/// As [`proves`].
pub fn holds(case: &impl Case) {
    but_mutants::<dyn Erased>(case, false);
}

/// Proves a layer, all five ways, under sequence parallelism: each rank has its own tokens of the stream.
///
/// # Panics
/// If the proof fails: says what differs, on which rank of how many, under which key, and in how many elements.
pub fn proves_in_regions(case: &impl Case) {
    all::<dyn Erased>(case, true);
}

/// What becomes of all mutants of a layer, where tensors are compared of whose names this is true.
#[cfg(test)]
pub(crate) fn blind(case: &impl Case, compared: fn(&str) -> bool) -> comm::mutants::Tally {
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
