//! The random key of the field's opaque functions: thread-local, set by a guard, inherited by ranks.
use crate::mix;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// Random key of a proof. Two keys give two independent runs of the same proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u64);

thread_local! { static CURRENT: Cell<Option<Key>> = const { Cell::new(None) }; }

impl Key {
    /// Makes this the thread's key until the guard drops, which restores the previous key.
    #[must_use = "the key holds while the guard lives"]
    pub fn enter(self) -> KeyGuard {
        KeyGuard { before: CURRENT.replace(Some(self)), stays: PhantomData }
    }
    /// Returns this thread's key, to pass on to a thread that it starts.
    pub fn current() -> Option<Key> {
        CURRENT.get()
    }
    /// Derives another key by hashing this one.
    #[must_use]
    pub fn next(self) -> Key {
        Key(mix(self.0 ^ 0x6B65_795F_6E65_7874))
    }
    /// Hashes a tag with the thread's key.
    ///
    /// # Panics
    /// Without a key: an opaque function would be the same in every run and would prove nothing.
    #[inline]
    pub(crate) fn hash(tag: u64) -> u64 {
        match CURRENT.get() {
            Some(Key(key)) => mix(key ^ mix(tag)),
            None => panic!("the field needs a key: hold `Key(..).enter()` around the run"),
        }
    }
}

impl fmt::Display for Key {
    /// Writes the key in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl FromStr for Key {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let key = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        key.map(Self).map_err(|_| format!("{text:?} is not a key; wanted a number below 2^64, decimal or 0x"))
    }
}

/// Keeps a key set on this thread; dropping it restores the previous key.
pub struct KeyGuard {
    before: Option<Key>,
    stays: PhantomData<*const ()>, // neither Send nor Sync: the guard stays on its thread
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{F61, Scalar};

    #[test]
    fn keys_nest_and_other_keys_give_other_values() {
        let x = F61::from_usize(7);
        let _outer = Key(1).enter();
        let one = x.sigmoid();
        {
            let _inner = Key(1).next().enter();
            assert_ne!(x.sigmoid(), one);
        }
        assert_eq!((x.sigmoid(), Key::current()), (one, Some(Key(1))));
    }

    #[test]
    #[should_panic(expected = "the field needs a key")]
    fn no_key_no_opaque_function() {
        let _ = F61::ONE.sigmoid();
    }
}
