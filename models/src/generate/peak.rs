//! Price of a generation.
use super::answers::together;
use super::prompts::Prompts;
use super::requests::RequestMode;
use super::slots::SlotRun;
use crate::Model;
use kernels::{MetaOf, OrderedKernels};
use ops::{PassContext, TokenShards};
use parallel::dtype::RunDevice;
use parallel::{BuildContext, Layout, Result, Stages, price};
use std::time::Instant;
use tensor::{Real, TokenIds};

impl Prompts {
    /// Returns the peak memory of the ranks, with caches for all new tokens. With slots and a model that can
    /// end a text early, an upper bound: a request that waits may then join any slot.
    ///
    /// # Errors
    /// If the layout does not fit the model, or 64 bits do not count the bytes of a rank.
    pub fn peak<D: RunDevice>(&self, model: &Model, layout: &Layout) -> Result<price::Peak> {
        let dealt = |tokens: TokenShards| Ok(self.lengths(tokens.sequences(self.prompts.len())));
        // How context ranks of other data ranks share later tokens is not stated to experts.
        let one = model.config.shape.experts.is_some() && layout.tokens().context_ranks() > 1;
        let passes = self.max_new.min(if one { 1 } else { 2 }); // later ones hold no more
        let planned = self.planned(layout, passes, !model.config.eos.is_empty());
        let program = |at: BuildContext<MetaOf<D>>| {
            let shape = &model.config.shape;
            let mut chunk = Stages::new(&at, shape)?;
            let mine = at.tokens.sequences(self.prompts.len());
            if let Some(planned) = &planned {
                let run = SlotRun::new(planned, (shape, &[]), &at, (None, Instant::now()));
                let mut run = run.priced(self.positions(&self.lengths(mine)));
                return chunk.in_turns(run.slots(), &mut run);
            }
            let data = at.tokens.data_ranks();
            let together = together(shape, &at);
            let of_rank = |rank| {
                self.batches(at.tokens.of_data_rank(rank).sequences(self.prompts.len()), data, together)
            };
            let mut all: Vec<_> = (0..data).map(of_rank).collect();
            for of in self.batches(mine, data, together) {
                let lengths = all.iter_mut().map(|batches| self.lengths(batches.next().unwrap_or(0..0)));
                self.read(&mut chunk, &at, (&self.lengths(of), lengths), (shape.vocabulary, passes))?;
            }
            Ok(())
        };
        price::peak_of_all::<D, _>(layout, dealt, program)
    }
    /// Reads prompts of these lengths, of this rank and of all data ranks, and a new token of each. The cache
    /// is held while the first logits are computed.
    fn read<D: OrderedKernels<Elem: Real>>(
        &self,
        chunk: &mut Stages<D>,
        at: &BuildContext<D>,
        (lengths, all): (&[usize], impl Iterator<Item = Vec<usize>>),
        (vocabulary, passes): (usize, usize),
    ) -> Result<()> {
        let all: Vec<_> = all.collect();
        let cx = PassContext::infer(lengths).sharded(at.tokens).among(all.iter().cloned());
        let mut cx = cx.with_cache(self.positions(lengths));
        for pass in 0..passes.max(1) {
            if pass > 0 {
                cx.advance(&vec![1; lengths.len()]);
                cx = cx.among(all.iter().map(|lengths| vec![1; lengths.len()]));
            }
            let ids = TokenIds::new(at.device.place(), &vec![0; cx.rows()], vocabulary)?;
            let logits = chunk.logits(&cx, ids, false)?;
            drop(self.first(vocabulary).map(|n| ops::top_k(&logits, n)));
        }
        Ok(())
    }
    /// The request as a price runs it in slots, if it asks for slots: with this number of new tokens a text.
    /// If texts can end early, all requests that wait are as long as the longest.
    pub(super) fn planned(&self, layout: &Layout, max_new: usize, ends_early: bool) -> Option<Self> {
        let RequestMode::Async { .. } = self.requests else { return None };
        let tokens = layout.tokens();
        let slots = self.slots(layout);
        let of_rank = |rank| {
            let mut lengths = self.lengths(tokens.of_data_rank(rank).sequences(self.prompts.len()));
            let waiting = lengths.get_mut(slots..).unwrap_or_default();
            if let Some(longest) = waiting.iter().max().copied().filter(|_| ends_early) {
                waiting.fill(longest);
            }
            lengths
        };
        let prompts = (0..tokens.data_ranks()).flat_map(of_rank).map(|length| vec![0; length]).collect();
        Some(Self { prompts, max_new, ..self.clone() })
    }
    /// Number of slots of a data rank; 0 without slots.
    pub(super) fn slots(&self, layout: &Layout) -> usize {
        self.requests.slots(layout.chunks(), self.most_requests(layout.tokens().data_ranks()))
    }
    /// Number of requests that wait for a slot at first, and number of slots of a data rank; 0 without slots.
    pub fn waiting(&self, layout: &Layout) -> (usize, usize) {
        let tokens = layout.tokens();
        let slots = self.slots(layout);
        let wait = |rank| tokens.of_data_rank(rank).sequences(self.prompts.len()).len().saturating_sub(slots);
        (if slots > 0 { (0..tokens.data_ranks()).map(wait).sum() } else { 0 }, slots)
    }
}
