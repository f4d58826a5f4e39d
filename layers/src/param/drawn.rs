//! The first values of a parameter, drawn by all cores: some hundred thousand at a time, however large it is.
use std::ops::Range;
use std::thread::{available_parallelism, scope};
use tensor::Key;

/// Numbers of which so many are drawn together.
const TOGETHER: usize = 1 << 18;
/// So few of them that a core is not worth asking.
const FEW: usize = 1 << 12;

/// Number `i` of a parameter whose numbers are asked for one after the other, of `len`.
pub(super) fn in_turn<E: Copy + Send>(
    len: usize,
    number: impl Fn(usize) -> E + Sync,
) -> impl FnMut(usize) -> E {
    let (mut drawn, mut first) = (Vec::new(), 0);
    move |i| {
        if i < first || i - first >= drawn.len() {
            first = i;
            drawn = together(i..len.min(i + TOGETHER), &number);
        }
        drawn[i - first]
    }
}

fn together<E: Copy + Send>(range: Range<usize>, number: &(impl Fn(usize) -> E + Sync)) -> Vec<E> {
    let cores = available_parallelism().map_or(1, usize::from).min(range.len() / FEW).max(1);
    let share = range.len().div_ceil(cores).max(1);
    let key = Key::current(); // of a field's functions: threads have it from who starts them
    let of_core = |core: usize| {
        let _key = key.map(Key::enter);
        let from = range.start + core * share;
        (from..range.end.min(from + share)).map(number).collect::<Vec<_>>()
    };
    scope(|scope| {
        let others: Vec<_> = (1..cores).map(|core| scope.spawn(move || of_core(core))).collect();
        let mut all = of_core(0);
        for other in others {
            all.extend(other.join().expect("drawing does not panic"));
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Kills: cores whose shares overlap or leave a gap, a last piece that is cut off, numbers that are drawn more than once;
    /// a core that draws with another key, or none.
    #[test]
    fn all_numbers_come_in_turn_and_each_is_drawn_once() {
        for len in [0, 1, FEW - 1, 3 * FEW + 1, TOGETHER, 2 * TOGETHER + 7] {
            let drawn = AtomicUsize::new(0);
            let square = |i: usize| {
                drawn.fetch_add(1, Relaxed);
                i * i
            };
            let mut number = in_turn(len, square);
            assert!((0..len).all(|i| number(i) == i * i), "{len}");
            assert_eq!(drawn.load(Relaxed), len);
        }
        let _key = Key(7).enter();
        let mut key = in_turn(9 * FEW, |_| Key::current());
        assert!((0..9 * FEW).all(|i| key(i) == Some(Key(7))));
        let mut number = in_turn(2 * TOGETHER, |i| i);
        assert_eq!([TOGETHER + 1, 5, 2 * TOGETHER - 1].map(&mut number), [TOGETHER + 1, 5, 2 * TOGETHER - 1]);
    }
}
