//! Sequences of a batch, and the keys that each token sees.
//!
//! A batch is a row of sequences without padding: token `p` of a sequence lies `p` rows after its first. A
//! query at position `p` sees a key at position `k` of the same sequence, or, in cross-attention, of its
//! memory:
//!
//! ```text
//! all       always
//! causal    k ≤ p
//! window    k ≤ p and (p − k < size or k < sinks)
//! ```
//! Source: windows: Beltagy et al., "Longformer", arXiv:2004.05150; sinks: Xiao et al., arXiv:2309.17453.

/// The keys that a query sees, by their positions in the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Every key.
    All,
    /// Keys up to the query's own position.
    Causal,
    /// The last keys up to the query's own position, and the first keys of the sequence.
    Window {
        /// Number of last keys, the query's own included; at least 1.
        size: usize,
        /// Number of first keys that every later query sees.
        sinks: usize,
    },
}

impl Mask {
    /// Returns true if the query at position `p` sees the key at position `k`.
    pub(crate) fn sees(self, p: usize, k: usize) -> bool {
        match self {
            Mask::All => true,
            Mask::Causal => k <= p,
            Mask::Window { size, sinks } => k <= p && (p - k < size || k < sinks),
        }
    }
}

/// The sequences of a batch, in the order of their rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Number of tokens of each sequence.
    pub lengths: Vec<usize>,
    /// Number of each sequence in its whole step; dropout depends on it.
    pub numbers: Vec<usize>,
}

impl Tokens {
    /// Numbers sequences of these lengths from 0.
    #[must_use]
    pub fn new(lengths: &[usize]) -> Self {
        Self { lengths: lengths.to_vec(), numbers: (0..lengths.len()).collect() }
    }
    /// Returns `(number of its sequence, position in it)` of each row.
    ///
    /// # Panics
    /// If there is not one number for each length.
    pub(crate) fn rows(&self) -> Vec<(usize, usize)> {
        assert_eq!(self.lengths.len(), self.numbers.len(), "each sequence needs one number");
        let sequences = self.numbers.iter().zip(&self.lengths);
        sequences.flat_map(|(&number, &length)| (0..length).map(move |p| (number, p))).collect()
    }
    /// Position of each token in its sequence, counted from 0.
    #[must_use]
    pub fn positions(&self) -> Vec<usize> {
        self.rows().into_iter().map(|(_, position)| position).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a window one token too wide or too narrow, sinks ahead of the query, a window without its
    /// sinks.
    #[test]
    fn sight_equals_the_picture_drawn_by_hand() {
        let picture = |mask: Mask| {
            let row = |p| (0..6).map(|k| if mask.sees(p, k) { 'x' } else { '.' }).collect::<String>();
            (0..6).map(row).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(picture(Mask::All), "xxxxxx xxxxxx xxxxxx xxxxxx xxxxxx xxxxxx");
        let causal = "x..... xx.... xxx... xxxx.. xxxxx. xxxxxx";
        assert_eq!(picture(Mask::Causal), causal);
        let window = |size, sinks| picture(Mask::Window { size, sinks });
        assert_eq!(window(2, 0), "x..... xx.... .xx... ..xx.. ...xx. ....xx");
        assert_eq!(window(2, 1), "x..... xx.... xxx... x.xx.. x..xx. x...xx");
        assert_eq!(window(1, 2), "x..... xx.... xxx... xx.x.. xx..x. xx...x");
        assert_eq!((window(6, 0).as_str(), window(1, 6).as_str()), (causal, causal));
    }

    /// Kills: positions that continue into the next sequence, sequences numbered by their place in the batch.
    #[test]
    fn tokens_know_their_sequence_and_place() {
        let tokens = Tokens { lengths: vec![2, 0, 3], numbers: vec![7, 8, 4] };
        assert_eq!(tokens.rows(), [(7, 0), (7, 1), (4, 0), (4, 1), (4, 2)]);
        assert_eq!(tokens.positions(), [0, 1, 0, 1, 2]);
        let fresh = Tokens::new(&[2, 0, 3]);
        assert_eq!(fresh, Tokens { numbers: vec![0, 1, 2], ..tokens });
    }

    #[test]
    #[should_panic(expected = "each sequence needs one number")]
    fn sequences_without_a_number_panic() {
        let _ = Tokens { lengths: vec![2, 1], numbers: vec![0] }.positions();
    }
}
