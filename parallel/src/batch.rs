//! A step's sequences, in microbatches. Microbatches are part of the model and do not depend on the layout:
//! [`data::replicated`](crate::data::replicated) cuts each of them over the data ranks.
use crate::{Result, bail, deal};
use kernels::MeanOver;
use std::sync::Arc;
use tensor::IGNORED;
use tensor::quoted::counted;

/// One sequence: token ids, and for each the id that should follow it. Rows of features may stand for either.
/// A sequence may pack several documents: each has its own positions and attends only to itself, but all of
/// them stay on one rank. Clones share their ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// Input token ids.
    pub ids: Arc<[u32]>,
    /// Target id of each token; [`IGNORED`] where the loss does not count it.
    pub targets: Arc<[u32]>,
    /// Number of tokens of each document, in order.
    pub documents: Vec<usize>,
    /// Input features in place of ids: the same number for each token, one token after the other.
    pub x: Vec<f32>,
    /// Target features in place of target ids.
    pub y: Vec<f32>,
}

impl Sequence {
    /// A sequence of one document.
    #[must_use]
    pub fn new(ids: Vec<u32>, targets: Vec<u32>) -> Self {
        Self { documents: vec![ids.len()], ids: ids.into(), targets: targets.into(), ..Self::default() }
    }
    /// Returns the number of tokens of the longest document of these sequences.
    pub fn longest(all: &[Self]) -> usize {
        all.iter().flat_map(|of| of.documents.iter().copied()).max().unwrap_or(0)
    }
    /// A sequence of several documents, one after the other: the ids and targets of each.
    #[must_use]
    pub fn packed(documents: &[(Vec<u32>, Vec<u32>)]) -> Self {
        Self {
            ids: documents.iter().flat_map(|(ids, _)| ids.iter().copied()).collect(),
            targets: documents.iter().flat_map(|(_, targets)| targets.iter().copied()).collect(),
            documents: documents.iter().map(|(ids, _)| ids.len()).collect(),
            ..Self::default()
        }
    }
    /// One example: its features, and its class.
    #[must_use]
    pub fn example(x: Vec<f32>, class: u32) -> Self {
        Self { x, targets: [class].into(), documents: vec![1], ..Self::default() }
    }
    /// A sequence of `tokens` tokens: the input features and the target features of each.
    #[must_use]
    pub fn rows(tokens: usize, x: Vec<f32>, y: Vec<f32>) -> Self {
        Self { x, y, documents: vec![tokens], ..Self::default() }
    }
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.documents.iter().sum()
    }
    /// Number of tokens that the mean loss counts.
    pub(crate) fn counted(&self) -> usize {
        if self.y.is_empty() { self.targets.iter().filter(|t| **t != IGNORED).count() } else { self.tokens() }
    }
    /// Validates the sequence; `sequence` is its index, for the error.
    fn check(&self, sequence: usize) -> Result<()> {
        let tokens = self.tokens();
        for (ids, rows) in [(&self.ids, &self.x), (&self.targets, &self.y)] {
            let whole = tokens > 0 && rows.len().is_multiple_of(tokens) && ids.is_empty();
            if !rows.is_empty() && !whole {
                bail!(
                    "sequence {sequence} has {} features and {} ids for {tokens} tokens; it must have \
                     equally many features for each token and no ids, or no features",
                    rows.len(),
                    ids.len()
                );
            }
        }
        let count = |ids: &Arc<[u32]>, rows: &Vec<f32>| if rows.is_empty() { ids.len() } else { tokens };
        let [ids, targets] = [count(&self.ids, &self.x), count(&self.targets, &self.y)];
        if ids == 0 || ids != targets {
            bail!(
                "sequence {sequence} has {ids} ids and {targets} targets; it must have equally many, at \
                 least 1"
            );
        }
        if self.documents.contains(&0) || tokens != ids {
            bail!(
                "the documents of sequence {sequence} have {:?} tokens; each must have at least 1, all \
                 together {ids}",
                self.documents
            );
        }
        Ok(())
    }
}

/// All sequences of one step, in microbatches. Sequences may differ in length, microbatches in size.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    microbatches: Vec<Vec<Sequence>>,
    pub(crate) idle: bool, // true if a data rank may have no sequence
}

impl Batch {
    /// No microbatches, for a pipeline that nothing enters.
    pub(crate) const NONE: Self = Self { microbatches: Vec::new(), idle: false };

    /// Cuts sequences into `microbatches` microbatches of nearly the same number of sequences, in order.
    ///
    /// # Errors
    /// If a microbatch would be empty, or a sequence is not valid.
    pub fn new(sequences: Vec<Sequence>, microbatches: usize) -> Result<Self> {
        if microbatches == 0 || sequences.len() < microbatches {
            let [sequences, parts] = [(sequences.len(), "sequence"), (microbatches, "microbatch")]
                .map(|(n, what)| counted(n, what));
            bail!("{sequences} in {parts}: each needs at least one");
        }
        sequences.iter().enumerate().try_for_each(|(number, sequence)| sequence.check(number))?;
        let part = |m| sequences[deal(sequences.len(), m, microbatches)].to_vec();
        Ok(Self { microbatches: (0..microbatches).map(part).collect(), idle: false })
    }
    /// Returns this batch with `idle` set. If true, a data rank may have no sequence of a microbatch.
    #[must_use]
    pub fn idling(self, idle: bool) -> Self {
        Self { idle, ..self }
    }
    /// The microbatches.
    pub fn microbatches(&self) -> &[Vec<Sequence>] {
        &self.microbatches
    }
    /// Number of tokens in the step.
    pub fn tokens(&self) -> usize {
        self.microbatches.iter().flatten().map(Sequence::tokens).sum()
    }
    /// Targets that the loss is a mean over: those of a microbatch that is an update of its own, or of the
    /// step.
    pub(crate) fn mean_over(&self, microbatch: Option<usize>, log2: u32) -> MeanOver {
        let alone = microbatch.map(|n| self.microbatches[n].iter().map(Sequence::counted).sum());
        MeanOver { targets: alone.unwrap_or_else(|| self.counted()), log2 }
    }
    /// Number of targets that the mean loss counts: all of the step's except ignored ones.
    pub fn counted(&self) -> usize {
        let (mut sum, mut last): (usize, Option<(&Sequence, usize)>) = (0, None);
        for s in self.microbatches.iter().flatten() {
            // clones are counted once
            let known = last.filter(|(of, _)| of.y.is_empty() && Arc::ptr_eq(&of.targets, &s.targets));
            let count = known.map_or_else(|| s.counted(), |(_, count)| count);
            (sum, last) = (sum + count, Some((s, count)));
        }
        sum
    }
    /// Checks that each token has `input` features going in and `output` target features; 0 where there are
    /// ids.
    ///
    /// # Errors
    /// If a token has another number of features.
    pub(crate) fn has_features(&self, [input, output]: [usize; 2]) -> Result<()> {
        for s in self.microbatches.iter().flatten() {
            for (rows, wanted, which) in [(&s.x, input, "input"), (&s.y, output, "target")] {
                let seen = rows.len() / s.tokens();
                if seen != wanted {
                    bail!(
                        "a token has {}; the model needs {wanted}",
                        counted(seen, &format!("{which} feature"))
                    );
                }
            }
        }
        Ok(())
    }
    /// A batch whose evaluation takes as much memory as that of this one, or more: the microbatch with the
    /// most tokens. Without stages, it is there twice if there are others, since each microbatch is computed
    /// beside the sum of losses that earlier ones leave. With `stages` of a pipeline, it is there as often as
    /// there are microbatches, as some schedules begin all of them before they finish one.
    #[must_use]
    pub fn largest(&self, stages: usize) -> Self {
        let tokens = |m: &&Vec<Sequence>| m.iter().map(Sequence::tokens).sum::<usize>();
        let largest = self.microbatches.iter().max_by_key(tokens).into_iter();
        let count = self.microbatches.len();
        let times = if stages > 1 { count } else { count.min(2) };
        let microbatches = largest.flat_map(|m| std::iter::repeat_n(m.clone(), times)).collect();
        Self { microbatches, idle: self.idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::TokenShards;

    fn over(data: usize) -> TokenShards {
        TokenShards::new([data, 1], |_, _, _| unreachable!("one context rank has all"))
    }

    fn sequences(n: u32) -> Vec<Sequence> {
        (0..n).map(|i| Sequence::new(vec![i], vec![i])).collect()
    }

    #[test]
    fn what_cannot_be_dealt_is_refused() {
        let few = Batch::new(sequences(2), 3).unwrap_err().to_string();
        assert_eq!(few, "2 sequences in 3 microbatches: each needs at least one");
        assert!(Batch::new(sequences(2), 0).is_err() && Batch::new(vec![], 1).is_err());
        let deal = Batch::new(sequences(2), 2).unwrap().share(0, &over(2)).unwrap_err().to_string();
        assert_eq!(
            deal,
            "a microbatch of 1 sequence cannot be dealt over dp=2: each rank needs at least one"
        );
        let uneven = Sequence::new(vec![1, 2], vec![3]);
        assert!(Batch::new(vec![uneven], 1).unwrap_err().to_string().starts_with("sequence 0 has 2 ids"));
        let why = |sequence| Batch::new(vec![sequence], 1).unwrap_err().to_string();
        let wanted = "it must have equally many features for each token and no ids, or no features";
        let rows = |x: usize, y: usize| Sequence::rows(2, vec![0.5; x], vec![0.5; y]);
        assert_eq!(why(rows(7, 4)), format!("sequence 0 has 7 features and 0 ids for 2 tokens; {wanted}"));
        assert_eq!(why(rows(4, 3)), format!("sequence 0 has 3 features and 0 ids for 2 tokens; {wanted}"));
        let both = Sequence { ids: [1, 2].into(), ..rows(4, 4) };
        assert_eq!(why(both), format!("sequence 0 has 4 features and 2 ids for 2 tokens; {wanted}"));
        let none = Sequence::rows(0, vec![0.5], vec![0.5]);
        assert_eq!(why(none), format!("sequence 0 has 1 features and 0 ids for 0 tokens; {wanted}"));
        assert!(why(rows(4, 0)).starts_with("sequence 0 has 2 ids and 0 targets"));
        assert!(
            why(Sequence { targets: [1].into(), ..rows(4, 0) }).starts_with("sequence 0 has 2 ids and 1 t")
        );
    }

    /// A rank may have no sequence of features. Kills: features that count as tokens, targets of features
    /// that do not count.
    #[test]
    fn features_are_dealt_by_their_tokens() {
        let all = vec![
            Sequence::rows(3, vec![0.5; 6], vec![0.5; 6]),
            Sequence::rows(1, vec![0.5; 2], vec![1.0; 2]),
        ];
        let batch = Batch::new(all, 2).unwrap();
        assert_eq!((batch.tokens(), batch.counted()), (4, 4));
        assert_eq!(batch.dealt(&over(2)).unwrap(), vec![Vec::<usize>::new(); 2]);
        assert_eq!(batch.dealt(&over(2).of_data_rank(1)).unwrap(), [vec![3], vec![1]]);
        let example = |class| Sequence::example(vec![0.5; 4], class);
        assert_eq!(Batch::new(vec![example(IGNORED), example(2)], 1).unwrap().counted(), 1);
    }

    /// Documents of 3, 4 and 1 tokens, the first two packed, in two slices each. Kills: a slice of a sequence
    /// and not of its documents, tokens of the document before, positions that begin anew in a slice, a
    /// document without tokens left out.
    #[test]
    fn slices_are_of_documents() {
        let document = |ids: &[u32]| (ids.to_vec(), ids.to_vec());
        let all =
            vec![Sequence::packed(&[document(&[1, 2, 3]), document(&[4, 5, 6, 7])]), sequences(1).remove(0)];
        let batch = Batch::new(all, 1).unwrap();
        let share = || batch.share(0, &over(1)).unwrap();
        let ids = |slice| {
            let slice = share().slice(slice, 2, &TokenShards::WHOLE);
            slice.flat_map(|(s, tokens)| s.ids[tokens].to_vec()).collect()
        };
        let (first, second): (Vec<_>, Vec<_>) = (ids(0), ids(1));
        assert_eq!((first, second), (vec![1, 4, 5], vec![2, 3, 6, 7, 0]));
        let of =
            |slice| share().segments(slice, 2).map(|s| (s.position, s.len, s.sequence)).collect::<Vec<_>>();
        assert_eq!(
            (of(0), of(1)),
            (vec![(0, 1, 0), (0, 2, 1), (0, 0, 2)], vec![(1, 2, 0), (2, 2, 1), (0, 1, 2)])
        );
    }

    /// Kills: a number that depends on the ranks, documents counted as one, an ignored target that counts.
    #[test]
    fn documents_are_numbered_through_the_step() {
        let document = |n: u32| ((0..n).collect(), vec![IGNORED; n as usize]);
        let packed = Sequence::packed(&[document(2), document(3)]);
        let all = [sequences(2), vec![packed], sequences(2)].concat();
        let batch = Batch::new(all, 2).unwrap();
        assert_eq!((batch.tokens(), batch.counted()), (9, 4));
        let firsts = |ranks| -> Vec<(usize, Vec<usize>)> {
            let shares = (0..2).flat_map(|m| (0..ranks).map(move |r| (m, r)));
            let share = |(m, r)| batch.share(m, &over(ranks).of_data_rank(r)).unwrap();
            shares.map(|at| (share(at).first, share(at).lengths().collect())).collect()
        };
        assert_eq!(firsts(1), [(0, vec![1, 1]), (2, vec![2, 3, 1, 1])]);
        assert_eq!(batch.dealt(&over(2).of_data_rank(1)).unwrap(), [vec![1], vec![1, 1]]);
        assert!(batch.dealt(&over(3)).is_err());
        let largest = &batch.microbatches()[1];
        assert_eq!(batch.largest(1).microbatches(), [largest.clone(), largest.clone()]);
        let singles = Batch::new(sequences(7), 7).unwrap();
        assert_eq!([1, 2].map(|stages| singles.largest(stages).microbatches().len()), [2, 7]);
        assert_eq!(firsts(2), [(0, vec![1]), (1, vec![1]), (2, vec![2, 3]), (4, vec![1, 1])]);
        let mut torn = Sequence::new(vec![1, 2], vec![3, 4]);
        torn.documents = vec![1, 0, 1];
        let why = Batch::new(vec![torn], 1).unwrap_err().to_string();
        assert_eq!(
            why,
            "the documents of sequence 0 have [1, 0, 1] tokens; each must have at least 1, all together 2"
        );
    }
}
