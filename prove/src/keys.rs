//! Number of keys of a proof: enough to make it sure. Keys are independent, so each adds its exponent to the
//! bound, and each costs as much as the first.
use std::borrow::Cow;
use std::ops::RangeInclusive;
use tensor::Key;

/// log₂ of the probability that a wrong program passes, at which a proof is sure enough.
pub const SURE: f64 = -30.0;
/// Numbers of keys that a proof may have. The least is the default minimum.
pub const KEYS: RangeInclusive<usize> = 2..=64;

/// Keys of a proof.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// These keys.
    Given(&'a [Key]),
    /// Keys from this one on: at least this number, and as many as make the proof sure.
    Sure(Key, usize),
}

impl<'a, K: AsRef<[Key]> + ?Sized> From<&'a K> for Keys<'a> {
    fn from(keys: &'a K) -> Self {
        Self::Given(keys.as_ref())
    }
}

impl<'a> Keys<'a> {
    /// Returns all keys, for proofs with these bounds (log₂, under one key).
    pub(crate) fn all(self, bounds: impl FnOnce() -> Vec<Option<f64>>) -> Cow<'a, [Key]> {
        match self {
            Keys::Given(keys) => keys.into(),
            Keys::Sure(first, least) => drawn(first, least, &bounds()).into(),
        }
    }
}

/// Returns at least `least` keys, starting with `first`, and as many as make each proof with one of these
/// bounds (log₂, under one key) sure, up to the maximum of [`KEYS`].
fn drawn(first: Key, least: usize, bounds: &[Option<f64>]) -> Vec<Key> {
    let wanted = |bound: &f64| (SURE / bound).ceil() as usize;
    let wanted = bounds.iter().flatten().map(wanted).max().unwrap_or(0);
    let count = wanted.max(least).clamp(*KEYS.start(), *KEYS.end());
    std::iter::successors(Some(first), |key| Some(key.next())).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a key too few, a key more than requested, an endless number of keys, the requested minimum
    /// ignored.
    #[test]
    fn keys_are_drawn_until_the_proof_is_sure() {
        let of = |one, least| drawn(Key(5), least, &[Some(-40.0), Some(one)]).len();
        assert_eq!([of(-16.0, 2), of(-15.0, 2), of(-14.9, 2), of(-7.15, 2), of(-10.0, 2)], [2, 2, 3, 5, 3]);
        assert_eq!([of(-16.0, 4), of(-7.15, 4), of(-1e-9, 2), of(-40.0, 1)], [4, 5, 64, 2]);
        assert_eq!(drawn(Key(5), 7, &[None]).len(), 7);
        assert_eq!(drawn(Key(5), 2, &[Some(-10.0), None]), [Key(5), Key(5).next(), Key(5).next().next()]);
    }
}
