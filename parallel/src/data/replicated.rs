//! Data parallelism, `dp=N`: every rank has the whole model (or its tensor-parallel part) and its own
//! sequences of each microbatch; each gradient is a partial sum, summed once a step.
//!
//! ```text
//! dW = Σ_d dW_d      all-reduce, once a step, as many elements as parameters
//! ```
//!
//! Microbatches are cut first, and then each is dealt over the data ranks, so that its number of sequences
//! does not depend on the layout. A parameter's gradient is summed over all ranks that have other tokens
//! (`Axes::TOKENS`), unless its placement says otherwise, and is kept whole, so there is nothing to build.
//!
//! Source: Li et al., "PyTorch Distributed", §2, arXiv:2006.15704. Chapter: data parallelism.
use super::state_split::StateSplit;
use crate::{Batch, Result, Sequence, bail};
use comm::Axis;
use layers::{Choice, StrategyInfo, counted};
use ops::TokenShards;

/// Data parallelism.
pub static REPLICATED: StateSplit = StateSplit {
    about: StrategyInfo {
        name: "data parallelism",
        word: "dp",
        paper: "Li et al., arXiv:2006.15704",
        chapter: Some("data-parallelism.md"),
        hints: &[
            ("loss", "the loss is a mean over the targets of the whole step: each rank gives a partial sum"),
            ("gradient of", "gradients are partial sums over data ranks: no mean of means, and once a step"),
            ("norm²", "the norm is that of the summed gradient, the same on every data rank"),
            ("", "microbatches are cut first and each is dealt over data ranks: its sequences stay the same"),
        ],
        ..StrategyInfo::of(Some(Axis::Dp), Choice::State)
    },
    change: |rests, _| rests,
};

/// A data rank's local batch: its part of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalBatch<'a> {
    /// Its sequences.
    pub sequences: &'a [Sequence],
    /// Number of documents of the step before them: the index of the first.
    pub first: usize,
}

impl LocalBatch<'_> {
    /// Number of tokens of each document.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().flat_map(|s| s.documents.iter().copied())
    }
}

impl Batch {
    /// The sequences of a microbatch on this data rank.
    pub(crate) fn part(&self, microbatch: usize, tokens: &TokenShards) -> &[Sequence] {
        let all = &self.microbatches()[microbatch];
        &all[tokens.sequences(all.len())]
    }
    /// This data rank's local batch of one microbatch. A rank may have no sequence if tokens are features.
    ///
    /// # Errors
    /// If there are fewer sequences of ids than ranks, and no rank may [idle](Self::idling).
    pub fn share(&self, microbatch: usize, tokens: &TokenShards) -> Result<LocalBatch<'_>> {
        let all = &self.microbatches()[microbatch];
        let ranks = tokens.data_ranks();
        if all.len() < ranks && !self.idle && all.iter().all(|s| s.x.is_empty()) {
            let few = counted(all.len(), "sequence");
            bail!("a microbatch of {few} cannot be dealt over dp={ranks}: each rank needs at least one");
        }
        let before = &all[..tokens.sequences(all.len()).start];
        let before = self.microbatches()[..microbatch].iter().flatten().chain(before);
        let first = before.map(|s| s.documents.len()).sum();
        Ok(LocalBatch { sequences: self.part(microbatch, tokens), first })
    }
    /// Checks that every rank is dealt tokens of each microbatch, unless ranks may [idle](Self::idling).
    ///
    /// # Errors
    /// As [`share`](Self::share), or if no document of a microbatch has as many tokens as there are context
    /// ranks.
    pub fn deals(&self, tokens: &TokenShards) -> Result<()> {
        for (number, microbatch) in self.microbatches().iter().enumerate() {
            self.share(number, tokens)?;
            let longest = microbatch.iter().flat_map(|s| &s.documents).max().copied().unwrap_or(0);
            if !self.idle {
                Self::reach(longest, tokens)?;
            }
        }
        Ok(())
    }
    /// Checks that every context rank gets a token of a document with `longest` tokens.
    ///
    /// # Errors
    /// If there are fewer tokens than ranks.
    pub fn reach(longest: usize, tokens: &TokenShards) -> Result<()> {
        let ranks = tokens.context_ranks();
        if longest < ranks {
            let longest = counted(longest, "token");
            bail!("a sequence of {longest} cannot be dealt over cp={ranks}: each rank needs at least one");
        }
        Ok(())
    }
    /// Number of tokens of each document on this data rank, microbatch by microbatch.
    ///
    /// # Errors
    /// As [`share`](Self::share).
    pub fn dealt(&self, tokens: &TokenShards) -> Result<Vec<Vec<usize>>> {
        let lengths = |microbatch| Ok(self.share(microbatch, tokens)?.lengths().collect());
        (0..self.microbatches().len()).map(lengths).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildContext, Layout, Trainer, price, session};
    use kernels::{Heads, Kernels, Meta};
    use layers::{Experts, Shape};
    use ops::RandomValues;
    use tensor::{Cpu, Device, F61, Key, Tensor};

    fn ranks_of(data: usize) -> TokenShards {
        TokenShards::new([data, 1], |_, _, _| unreachable!("one context rank has all"))
    }

    /// Kills: a sequence dealt twice or to nobody, an order that depends on the ranks.
    #[test]
    fn every_sequence_is_dealt_once_in_order() {
        for (n, microbatches, ranks) in [(7, 2, 3), (4, 1, 4), (9, 3, 2)] {
            let batch =
                Batch::new((0..n).map(|i| Sequence::new(vec![i], vec![i])).collect(), microbatches).unwrap();
            let dealt = (0..microbatches).flat_map(|m| (0..ranks).map(move |r| (m, r)));
            let dealt: Vec<u32> = dealt
                .flat_map(|(m, r)| batch.share(m, &ranks_of(ranks).of_data_rank(r)).unwrap().sequences)
                .map(|s| s.ids[0])
                .collect();
            assert_eq!(dealt, (0..n).collect::<Vec<_>>());
            assert_eq!(batch.tokens(), n as usize);
        }
    }

    /// The loss of a batch with fewer sequences than data ranks, all of which share the experts, and the
    /// price of telling it. Kills: a rank without a sequence that is refused, priced as one with tokens, or
    /// leaves the others waiting; a mean over ranks.
    #[test]
    fn ranks_without_a_sequence_tell_the_loss_with_the_others() {
        fn reported<D: Kernels>(
            at: &BuildContext<D>,
            shape: &Shape,
            batch: &Batch,
        ) -> Result<Tensor<D::Wide>> {
            Trainer::evaluator(at, shape)?.evaluate(batch, &|_| ())
        }
        let _key = Key(6).enter();
        let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
        let few = Batch::new(vec![sequence(5)], 1).unwrap();
        assert!(few.share(0, &ranks_of(2)).is_err());
        let batch = few.idling(true);
        let heads = Heads::new(2, 2, 2);
        let experts = Experts { count: 4, chosen: 2, hidden: 4, forced: true, ..Experts::MIXTRAL };
        let shape = Shape {
            width: 4,
            blocks: 2,
            heads,
            hidden: 4,
            vocabulary: 8,
            experts: Some(experts),
            ..Shape::LLAMA
        };
        let loss = |layout: &str| {
            let layout: Layout = layout.parse().unwrap();
            let ranks = session::run((&layout, &layout.world().unwrap()), &RandomValues { seed: 2 }, |at| {
                let at: BuildContext<Cpu<F61>> = at;
                let loss = reported(&at, &shape, &batch)?.read().unwrap()[0];
                Ok((loss, at.device.meter().peaks_of_all().total))
            });
            let (losses, held): (Vec<_>, Vec<_>) = ranks.unwrap().into_iter().unzip();
            assert!(losses.iter().all(|loss| *loss == losses[0]), "{layout}");
            let largest = batch.largest(layout.size(Axis::Pp));
            let priced = price::peak_of_all::<Cpu<F61>, _>(
                &layout,
                |tokens| largest.dealt(&tokens),
                |at: BuildContext<Meta<F61>>| reported(&at, &shape, &largest).map(drop),
            );
            assert_eq!(priced.unwrap().all, held.into_iter().sum::<usize>() as u128, "{layout}");
            losses[0]
        };
        let alone = loss("none");
        for layout in ["ep=2", "ep=4", "ep=2:all-gather", "dp=2,ep=2", "etp=2", "tp=2,dp=2,ep=2", "ep=2,pp=2"]
        {
            assert_eq!(loss(layout), alone, "{layout}");
        }
    }
}
