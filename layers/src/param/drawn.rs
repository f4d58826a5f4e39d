//! The first values of a parameter, drawn by all cores: some hundred thousand at a time, however large it is.
use std::thread::{available_parallelism, scope};

/// Numbers of which so many are drawn together.
const TOGETHER: usize = 1 << 18;
/// So few of them that a core is not worth asking.
const FEW: usize = 1 << 12;

/// Number `i` of a parameter whose numbers are asked for one after the other, of `len`.
pub(super) fn in_turn<E: Copy + Send>(len: usize, number: impl Fn(usize) -> E + Sync) -> impl FnMut(usize) -> E {
    let (mut drawn, mut first) = (Vec::new(), 0);
    move |i| {
        if i < first || i - first >= drawn.len() {
            first = i;
            drawn = together(i..len.min(i + TOGETHER), &number);
        }
        drawn[i - first]
    }
}

fn together<E: Copy + Send>(range: std::ops::Range<usize>, number: &(impl Fn(usize) -> E + Sync)) -> Vec<E> {
    let cores = available_parallelism().map_or(1, usize::from).min(range.len() / FEW).max(1);
    let share = range.len().div_ceil(cores).max(1);
    let of_core = |core: usize| {
        let from = range.start + core * share;
        (from..range.end.min(from + share)).map(number).collect::<Vec<_>>()
    };
    scope(|scope| {
        let others: Vec<_> = (1..cores).map(|core| scope.spawn(move || of_core(core))).collect();
        let mut all = of_core(0);
        others.into_iter().for_each(|other| all.extend(other.join().expect("drawing does not panic")));
        all
    })
}
