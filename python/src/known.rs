//! Knowledge of elements, by their values: how an exponential or a sum of them factors, what the
//! exponential of a sum with logarithms is, and whose maximum an element is.
use std::collections::HashMap;
use std::sync::Arc;
use tensor::{F61, Scalar};

/// The most powers of a product that are kept; of a longer one nothing is known.
const MOST_POWERS: usize = 12;
/// Words of the filter that says of most elements that nothing is known.
const FILTER: usize = 1 << 15;

/// e^exponent·Π aᵏ over some elements a, in the order of their words.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KnownProduct {
    /// Word of the exponent.
    pub exponent: u64,
    /// Words and powers of the elements, none of which is 0.
    pub powers: Vec<(u64, i64)>,
}

impl KnownProduct {
    /// Returns e^x.
    pub(crate) fn exp(x: F61) -> Self {
        Self { exponent: x.canonical(), powers: Vec::new() }
    }
    /// Returns the element itself; nothing of 1.
    pub(crate) fn atom(a: F61) -> Self {
        let power = (a != F61::ONE).then(|| (a.canonical(), 1));
        Self { exponent: 0, powers: power.into_iter().collect() }
    }
    /// Returns this product times the other to a power.
    pub(crate) fn times(&self, other: &Self, power: i64) -> Self {
        let factor = F61::from_f64(power as f64);
        let exponent = F61::new(self.exponent) + F61::new(other.exponent) * factor;
        let powers = self.merged(other, |own, other| own + power * other);
        Self { exponent: exponent.canonical(), powers }
    }
    /// Returns what a sum of both has as a factor.
    pub(crate) fn common(&self, other: &Self) -> Self {
        let exponent = if self.exponent == other.exponent { self.exponent } else { 0 };
        Self { exponent, powers: self.merged(other, Ord::min) }
    }
    fn merged(&self, other: &Self, of: impl Fn(i64, i64) -> i64) -> Vec<(u64, i64)> {
        let both = self.powers.iter().chain(&other.powers).map(|(a, _)| *a);
        let mut all: Vec<_> = both.collect();
        all.sort_unstable();
        all.dedup();
        let power = |of: &Self, a: u64| {
            of.powers.binary_search_by_key(&a, |(b, _)| *b).map_or(0, |at| of.powers[at].1)
        };
        let powers = all.into_iter().map(|a| (a, of(power(self, a), power(other, a))));
        powers.filter(|(_, power)| *power != 0).collect()
    }
    /// Returns how much the product says.
    fn weight(&self) -> usize {
        self.powers.len() + usize::from(self.exponent != 0)
    }
    /// Returns the sum of its powers' sizes.
    pub(crate) fn degree(&self) -> i64 {
        self.powers.iter().map(|(_, power)| power.abs()).sum()
    }
}

/// The elements that a maximum is over.
#[derive(Clone, Debug)]
pub(crate) struct MaximumOf {
    /// Words of the elements below it, in order, each once.
    pub all: Vec<u64>,
}

/// Knowledge of an element.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fact {
    /// Its exponential.
    pub exponential: Option<KnownProduct>,
    /// A factor of it.
    pub factor: Option<KnownProduct>,
    /// Its square.
    pub square: Option<u64>,
    /// The step that it is a product with.
    pub step: Option<u64>,
    /// True if it is the sum, product or quotient of exponentials, roots and other such.
    pub is_positive: bool,
    /// The elements that it is the maximum of.
    pub below: Option<Arc<MaximumOf>>,
}

/// Facts, by the words of elements.
#[derive(Default)]
pub(crate) struct KnownElements {
    facts: HashMap<u64, Fact>,
    filter: Vec<u64>,
}

/// The place of a word in the filter.
fn bit(word: u64) -> (usize, u64) {
    let hash = word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((hash >> 49) as usize, 1 << (hash >> 43 & 63))
}

impl KnownElements {
    /// Returns what is known of an element.
    pub(crate) fn of(&self, x: F61) -> Option<&Fact> {
        let (at, bit) = bit(x.canonical());
        if self.filter.get(at)? & bit == 0 { None } else { self.facts.get(&x.canonical()) }
    }
    /// Returns what is known of an element, to add to it.
    pub(crate) fn entry(&mut self, x: F61) -> &mut Fact {
        self.filter.resize(FILTER, 0);
        let (at, bit) = bit(x.canonical());
        self.filter[at] |= bit;
        self.facts.entry(x.canonical()).or_default()
    }
    /// Returns true for an element that is known to be positive, and for 1.
    pub(crate) fn is_positive(&self, x: F61) -> bool {
        x == F61::ONE || self.of(x).is_some_and(|of| of.is_positive)
    }
    /// Returns a factor of an element, of 1 the empty one.
    pub(crate) fn factor(&self, x: F61) -> Option<KnownProduct> {
        let known = || self.of(x)?.factor.clone();
        if x == F61::ONE { Some(KnownProduct::default()) } else { known() }
    }
    /// Returns the exponential of an element, if that is more than e to it.
    pub(crate) fn exponential(&self, x: F61) -> Option<&KnownProduct> {
        self.of(x)?.exponential.as_ref()
    }
    /// Learns a factor of an element; of two, the one that says more is kept.
    pub(crate) fn learn_factor(&mut self, x: F61, is: KnownProduct) {
        if x == F61::ZERO || x == F61::ONE || is.powers.len() > MOST_POWERS {
            return;
        }
        let known = &mut self.entry(x).factor;
        if known.as_ref().is_none_or(|known| known.weight() < is.weight()) {
            *known = Some(is);
        }
    }
    /// Learns the exponential of an element, and of its negative, if there are powers in it.
    pub(crate) fn learn_exponential(&mut self, x: F61, is: KnownProduct) {
        if !is.powers.is_empty() && is.powers.len() <= MOST_POWERS {
            self.entry(-x).exponential = Some(KnownProduct::default().times(&is, -1));
            self.entry(x).exponential = Some(is);
        }
    }
}
