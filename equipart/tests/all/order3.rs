//! The baseline that a trained model must beat: the next byte from the three before it.
//!
//! ```text
//! P(x | h) = (max(n(hx) − D, 0) + D·t(h)·P(x | h')) / n(h)
//! ```
//! `h'` is `h` without its first byte; below the empty `h` all 256 bytes are equally likely. Of three bytes,
//! `n` counts occurrences; of fewer, the different bytes that came before, which says in how many places `x`
//! is at home. `t(h)` is how many different bytes follow `h`, `D` what an occurrence is held to be worth too
//! much: from how many were counted once (`n₁`) and twice (`n₂`), `(n₁ + 1)/(n₁ + 2n₂ + 2)`. Nothing has
//! probability 0.
//!
//! Source: Kneser, Ney, "Improved backing-off for m-gram language modeling", ICASSP 1995; interpolated as by
//! Chen, Goodman, Computer Speech & Language 13(4), 1999.

/// The bytes of a context.
const ORDER: usize = 3;

/// Bits per byte of `held_out` after its first byte, for a model of order 3 that counted in `train`; 0 if
/// there is no second byte.
///
/// # Panics
/// If an id is no byte.
pub(crate) fn order3(train: &[u32], held_out: &[u32]) -> f64 {
    let bytes =
        |ids: &[u32]| -> Vec<u8> { ids.iter().map(|&id| u8::try_from(id).expect("ids of bytes")).collect() };
    let (counts, text) = (Counts::new(&bytes(train)), bytes(held_out));
    let bits = |at: usize| -counts.probability(&text[at.saturating_sub(ORDER)..at], text[at]).log2();
    let targets = text.len().saturating_sub(1);
    (1..=targets).map(bits).sum::<f64>() / targets.max(1) as f64
}

/// Counts of the bytes that follow each context, by its length.
struct Counts([Table; ORDER + 1]);

/// Contexts of one length, in ascending order.
struct Table {
    grams: Vec<(u32, u32)>,         // context and next byte; `n` of it
    contexts: Vec<(u32, u32, u32)>, // context; `n` of it, `t` of it
    discount: f64,                  // D
}

impl Counts {
    fn new(train: &[u8]) -> Self {
        let sorted = |length: usize| {
            let mut all: Vec<u32> = train.windows(length).map(number).collect();
            all.sort_unstable();
            all
        };
        Self(std::array::from_fn(|order| {
            if order == ORDER {
                return Table::new(&sorted(ORDER + 1));
            }
            let mut longer = sorted(order + 2);
            longer.dedup();
            for gram in &mut longer {
                *gram &= u32::MAX >> (8 * (ORDER - order));
            }
            longer.sort_unstable();
            Table::new(&longer)
        }))
    }
    /// The probability of `next` after this context, of which at most the last three bytes count.
    fn probability(&self, context: &[u8], next: u8) -> f64 {
        let longest = context.len().min(ORDER);
        (0..=longest).fold(1.0 / 256.0, |shorter, order| {
            self.0[order].blend(&context[context.len() - order..], next, shorter)
        })
    }
}

impl Table {
    /// From contexts with their next byte, in ascending order.
    fn new(sorted: &[u32]) -> Self {
        let grams: Vec<_> = sorted.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect();
        let contexts = grams
            .chunk_by(|a, b| a.0 >> 8 == b.0 >> 8)
            .map(|same| (same[0].0 >> 8, same.iter().map(|gram| gram.1).sum(), same.len() as u32))
            .collect();
        let counted = |times| grams.iter().filter(|gram| gram.1 == times).count() as f64;
        let discount = (counted(1) + 1.0) / (counted(1) + 2.0 * counted(2) + 2.0);
        Self { grams, contexts, discount }
    }
    /// The probability of `next` after this context, given that after the shorter one.
    fn blend(&self, context: &[u8], next: u8, shorter: f64) -> f64 {
        let find = number(context);
        let Ok(at) = self.contexts.binary_search_by_key(&find, |context| context.0) else {
            return shorter; // never seen: it says nothing
        };
        let (_, occurrences, different) = self.contexts[at];
        let gram = find << 8 | u32::from(next);
        let seen = self.grams.binary_search_by_key(&gram, |gram| gram.0).map_or(0, |at| self.grams[at].1);
        let own = (f64::from(seen) - self.discount).max(0.0);
        (own + self.discount * f64::from(different) * shorter) / f64::from(occurrences)
    }
}

/// Up to four bytes as one number, the last one lowest.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::mix;

    fn random(n: usize, kinds: u64, seed: u64) -> Vec<u32> {
        (0..n as u64).map(|at| (mix(mix(seed) ^ at) % kinds) as u32).collect()
    }
    fn bytes(ids: &[u32]) -> Vec<u8> {
        ids.iter().map(|&id| id as u8).collect()
    }

    /// Kills: an escape of the wrong weight, an order counted twice or left out of the blend.
    #[test]
    fn probabilities_sum_to_one_after_every_context() {
        for (train, seed) in [(random(5_000, 7, 1), 1), (random(300, 256, 2), 2), (vec![], 3), (vec![4], 4)] {
            let counts = Counts::new(&bytes(&train));
            for at in 0..300 {
                let context = bytes(&random(at % 6, if at % 2 == 0 { 7 } else { 256 }, seed + at as u64));
                let all: Vec<f64> = (0..=255).map(|next| counts.probability(&context, next)).collect();
                assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12 && all.iter().all(|p| *p > 0.0));
            }
        }
    }

    /// By hand. Kills: a wrong count, discount, or context; occurrences where the bytes before are to be
    /// counted.
    #[test]
    fn a_small_case_by_hand() {
        let close = |counts: &Counts, context: &[u8], next, wanted: f64| {
            let seen = counts.probability(context, next);
            assert!((seen - wanted).abs() < 1e-15, "{context:?}: {seen} instead of {wanted}");
        };
        let counts = &Counts::new(b"abab");
        let half = 0.5 * 0.25 + 0.75 / 256.0; // "a" after a "b", "b" after an "a": D = 3/4
        let (b, a) = (0.25 + 0.75 * half, 0.25 + 0.75 * half); // "ab" after a "b", "ba" after an "a"
        let two = (1.0 + 2.0 * b) / 3.0; // "bab" after an "a": D = 2/3
        close(counts, b"", b'a', half);
        close(counts, b"", b'x', 0.75 / 256.0);
        close(counts, b"a", b'b', b);
        close(counts, b"b", b'a', a);
        close(counts, b"ab", b'a', a); // "aba" comes after nothing
        close(counts, b"ba", b'b', two);
        close(counts, b"aba", b'b', (1.0 + 2.0 * two) / 3.0);
        close(counts, b"xxaba", b'b', (1.0 + 2.0 * two) / 3.0);
        close(counts, b"bab", b'a', a);
        close(counts, b"xyz", b'a', half);
        let counts = &Counts::new(b"abcdabcdabce"); // "abce" once, four more twice: D = 2/11
        for (next, seen) in [(b'd', 2.0), (b'e', 1.0), (b'x', 2.0 / 11.0)] {
            let shorter = counts.probability(b"xbc", next);
            close(counts, b"abc", next, (seen - 2.0 / 11.0 + 4.0 / 11.0 * shorter) / 3.0);
        }
    }

    #[test]
    fn what_repeats_costs_nothing_and_noise_costs_eight_bits() {
        let period: Vec<u32> = "the quick brown fox. ".bytes().map(u32::from).collect();
        let bits = order3(&period.repeat(2_000), &period.repeat(200));
        assert!(bits < 0.01, "{bits}");
        let bits = order3(&random(300_000, 256, 1), &random(20_000, 256, 2));
        assert!((7.9..8.6).contains(&bits), "{bits}");
        let bits = order3(&random(300_000, 16, 1), &random(20_000, 16, 2));
        assert!((4.0..4.3).contains(&bits), "{bits}");
        assert!((order3(&[], &random(100, 256, 3)) - 8.0).abs() < 1e-12);
    }

    /// Each byte is a function of the two before it, of which shorter contexts know little.
    #[test]
    fn longer_contexts_are_used() {
        let mut text = vec![1, 2];
        while text.len() < 50_000 {
            let [.., a, b] = text[..] else { unreachable!() };
            text.push((mix(u64::from(a * 256 + b)) % 17 + mix(text.len() as u64 / 3) % 2) as u32);
        }
        let bits = order3(&text[..45_000], &text[45_000..]);
        assert!(bits < 1.1, "{bits}");
        assert_eq!((order3(&text, &[]), order3(&text, &[9])), (0.0, 0.0));
        assert!(order3(&text, &[9, 9]) > 0.0);
    }
}
