//! A step's sequences. The batch is cut into microbatches first and each microbatch is dealt over the data ranks
//! then, so that the microbatches are part of the model and not of the layout.
use std::ops::Range;

/// One sequence: token ids, and the id that each should be followed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// What goes in.
    pub ids: Vec<u32>,
    /// What should come out, one for each.
    pub targets: Vec<u32>,
}

/// All sequences of one step, in microbatches. Sequences may differ in length, microbatches in size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    microbatches: Vec<Vec<Sequence>>,
}

/// A batch that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// A microbatch without sequences, or none at all.
    #[error("{sequences} sequences in {microbatches} microbatches: each needs at least one")]
    Few {
        /// How many sequences there are.
        sequences: usize,
        /// How many microbatches.
        microbatches: usize,
    },
    /// A sequence without tokens, or with another number of targets.
    #[error(
        "sequence {sequence} has {ids} ids and {targets} targets; both must be the same number, at least 1"
    )]
    Sequence {
        /// Which.
        sequence: usize,
        /// Its ids.
        ids: usize,
        /// Its targets.
        targets: usize,
    },
    /// Fewer sequences than data ranks.
    #[error(
        "a microbatch of {sequences} sequences cannot be dealt over dp={ranks}: each rank needs at least one"
    )]
    Deal {
        /// Of the microbatch.
        sequences: usize,
        /// Data ranks.
        ranks: usize,
    },
}

/// The part of `n` things that the `rank`th of `ranks` gets: consecutive, sizes differing by at most one.
#[must_use]
pub fn deal(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    n * rank / ranks..n * (rank + 1) / ranks
}

impl Batch {
    /// Cuts sequences into so many microbatches of nearly the same number, in order.
    ///
    /// # Errors
    /// If a microbatch would be empty, or a sequence is.
    pub fn new(sequences: Vec<Sequence>, microbatches: usize) -> Result<Self, BatchError> {
        if microbatches == 0 || sequences.len() < microbatches {
            return Err(BatchError::Few { sequences: sequences.len(), microbatches });
        }
        for (sequence, s) in sequences.iter().enumerate() {
            let (ids, targets) = (s.ids.len(), s.targets.len());
            if ids == 0 || ids != targets {
                return Err(BatchError::Sequence { sequence, ids, targets });
            }
        }
        let part = |m| sequences[deal(sequences.len(), m, microbatches)].to_vec();
        Ok(Self { microbatches: (0..microbatches).map(part).collect() })
    }
    /// The microbatches.
    pub fn microbatches(&self) -> &[Vec<Sequence>] {
        &self.microbatches
    }
    /// Tokens that the loss is a mean over: all of the step's.
    pub fn tokens(&self) -> usize {
        self.microbatches.iter().flatten().map(|s| s.ids.len()).sum()
    }
    /// This data rank's sequences of one microbatch.
    ///
    /// # Errors
    /// If there are fewer sequences than ranks.
    pub fn share(&self, microbatch: usize, rank: usize, ranks: usize) -> Result<&[Sequence], BatchError> {
        let all = &self.microbatches[microbatch];
        if all.len() < ranks {
            return Err(BatchError::Deal { sequences: all.len(), ranks });
        }
        Ok(&all[deal(all.len(), rank, ranks)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(n: u32) -> Vec<Sequence> {
        (0..n).map(|i| Sequence { ids: vec![i], targets: vec![i] }).collect()
    }

    /// Kills: a sequence dealt twice or to nobody, an order that depends on the ranks.
    #[test]
    fn every_sequence_is_dealt_once_in_order() {
        for (n, microbatches, ranks) in [(7, 2, 3), (4, 1, 4), (9, 3, 2)] {
            let batch = Batch::new(sequences(n), microbatches).unwrap();
            let dealt = (0..microbatches).flat_map(|m| (0..ranks).map(move |r| (m, r)));
            let dealt: Vec<u32> =
                dealt.flat_map(|(m, r)| batch.share(m, r, ranks).unwrap()).map(|s| s.ids[0]).collect();
            assert_eq!(dealt, (0..n).collect::<Vec<_>>());
            assert_eq!(batch.tokens(), n as usize);
        }
    }

    #[test]
    fn what_cannot_be_dealt_is_refused() {
        let few = Batch::new(sequences(2), 3).unwrap_err().to_string();
        assert_eq!(few, "2 sequences in 3 microbatches: each needs at least one");
        assert!(Batch::new(sequences(2), 0).is_err() && Batch::new(vec![], 1).is_err());
        let deal = Batch::new(sequences(2), 2).unwrap().share(0, 0, 2).unwrap_err().to_string();
        assert_eq!(
            deal,
            "a microbatch of 1 sequences cannot be dealt over dp=2: each rank needs at least one"
        );
        let uneven = Sequence { ids: vec![1, 2], targets: vec![3] };
        assert!(Batch::new(vec![uneven], 1).unwrap_err().to_string().starts_with("sequence 0 has 2 ids"));
    }
}
