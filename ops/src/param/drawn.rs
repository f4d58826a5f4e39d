//! Initial values of a parameter, computed on all cores.
use std::thread::{available_parallelism, scope};
use tensor::{Key, limits};

/// Smallest number of elements that is worth a thread.
const FEW: usize = 1 << 12;

/// Sets elements on all cores, each core a consecutive part. `first` is the index of the first element.
pub(super) fn by_cores<E: Send>(first: usize, to: &mut [E], set: &(impl Fn(usize, &mut [E]) + Sync)) {
    let cores = available_parallelism().map_or(1, usize::from).min(to.len() / FEW).max(1);
    let share = to.len().div_ceil(cores).max(1);
    // The key of the field's hash functions: threads get it from the thread that starts them.
    let key = Key::current();
    scope(|scope| {
        let mut shares = (first..).step_by(share).zip(to.chunks_mut(share));
        let mine = shares.next();
        for (first, to) in shares {
            limits::scoped(scope, move || {
                let _key = key.map(Key::enter);
                set(first, to);
            });
        }
        mine.map(|(first, to)| set(first, to))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: cores whose shares overlap or leave a gap, a last share that is cut off, numbers that are
    /// counted from elsewhere; a core that draws with another key, or none.
    #[test]
    fn all_numbers_are_set_once_by_who_has_the_key() {
        for len in [0, 1, FEW - 1, 3 * FEW + 1, 100 * FEW + 7] {
            let mut numbers = vec![1; len];
            by_cores(5, &mut numbers, &|first, to| (first..).zip(to).for_each(|(i, to)| *to += i * i));
            assert!(numbers.into_iter().eq((5..5 + len).map(|i| 1 + i * i)), "{len}");
        }
        let (_key, mut keys) = (Key(7).enter(), vec![None; 9 * FEW]);
        by_cores(0, &mut keys, &|_, to| to.fill(Key::current()));
        assert!(keys.into_iter().all(|key| key == Some(Key(7))));
    }
}
