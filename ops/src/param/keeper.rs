//! The keeper of parameters: gathers values for their uses, sums gradients, and shards both at rest.
//! It interprets [`ShardingStrategy`], and so implements DDP, `ZeRO` and HSDP.
//!
//! ```text
//!              gradient of a bucket, L elements on b ranks           value
//! whole        complete: all-reduce, 2·(b−1)/b·L                     is there
//! state        complete: reduce-scatter, (b−1)/b·L                   after the update: all-gather, (b−1)/b·L
//! gradient     after every backward: reduce-scatter, (b−1)/b·L       after the update: all-gather, (b−1)/b·L
//! value        after every backward: reduce-scatter, (b−1)/b·L       before every use: all-gather, (b−1)/b·L
//! in tiles     in a layer's backward, see `tiles.rs`                 in a layer's passes, see `tiles.rs`
//! in subgroups and at the end of the step: an all-reduce of L/b elements sums the shards over the subgroups
//! ```
//!
//! Source: Li et al., "PyTorch distributed", §3.2.3 (buckets, and sums beside backward), arXiv:2006.15704;
//! Rajbhandari et al., "`ZeRO`", §5 and §7, arXiv:1910.02054.
use crate::param::buckets::Bucket;
use crate::param::gradient::GradientStage;
use crate::param::residence::{self, Kept, Leaving, Residence};
use crate::{AtRest, Param, Result, ShardingStrategy};
use kernels::Kernels;
use shape::RuleStates;
use std::sync::Arc;

/// The keeper of a model's parameters on one rank. Its buffers are reused from step to step.
///
/// A model calls it while a microbatch passes through its modules (the head, a block, the embedding):
/// [`gather`](Self::gather) and [`release`](Self::release) around each module, once in a forward and once in
/// a backward (twice, where a backward runs in two halves).
pub struct Keeper<D: Kernels> {
    rests: ShardingStrategy,
    buckets: Vec<Bucket<D>>,  // in the order of their first use
    model: Bucket<D>,         // all parameters, for calls that overlap no computation
    leaving: Vec<Leaving<D>>, // state on its way off the device
}

impl<D: Kernels> Default for Keeper<D> {
    /// The keeper of parameters that are kept whole.
    fn default() -> Self {
        Self::new(ShardingStrategy::WHOLE)
    }
}

impl<D: Kernels> Keeper<D> {
    /// Creates the keeper of parameters with this sharding at rest. It acts on parameters that are trained
    /// and whose gradients several ranks sum.
    pub fn new(rests: ShardingStrategy) -> Self {
        let model = Bucket::new(Arc::default(), "the model");
        Self { rests, buckets: Vec::new(), model, leaving: Vec::new() }
    }
    /// True if parameters are sharded at rest, so that there is work around each use. If false, a model need
    /// call neither [`gather`](Self::gather) nor, but for the last use, [`release`](Self::release).
    pub fn has_uses(&self) -> bool {
        self.rests.gradient == AtRest::Shard
    }
    /// Gathers the values of a module, which is used next.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        for param in params.iter_mut().filter(|param| param.sharding.tiles.is_some()) {
            param.value.shard_mut().into_iter().for_each(Kept::load);
        }
        Bucket::of(&mut self.buckets, params).gather(params, |_| true)
    }
    /// Begins to gather the values of a module, which is used after the next one, or to load their shards if
    /// these are off the device.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_ahead(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        let bucket = Bucket::of(&mut self.buckets, params);
        if bucket.is_gathering() {
            return Ok(());
        }
        let shards = params.iter_mut().filter_map(|param| param.value.shard_mut());
        let away = shards.map(Kept::begin_load).max() == Some(true);
        if away { Ok(()) } else { bucket.begin_to_gather(params, |_| true) }
    }
    /// Frees the gathered values of a module that this pass no longer uses, and sums gradients that are kept
    /// as shards. After the `last` use of a step the module's gradients are complete: starts the other sums.
    /// All ranks must have added to the gradients of the same parameters, and complete the same modules in
    /// the same order.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn release(&mut self, params: &mut [&mut Param<D>], last: bool) -> Result<()> {
        for param in params.iter_mut() {
            param.value.rest(param.sharding.placement.rests.value == AtRest::Gathered);
        }
        let bucket = Bucket::of(&mut self.buckets, params);
        let take = |param: &mut Param<D>| {
            let sums = param.gradient.has_contributions() && param.keeps_gradient();
            if sums { param.begin_sum().map(|()| param.gradient.at.take()) } else { Ok(None) }
        };
        bucket.gradients.begin(params, Param::sum_to_shards, take)?;
        bucket.gradients.end(params, Param::take_sum)?;
        if !last {
            return Ok(());
        }
        for param in params.iter_mut().rev().filter(|param| !param.gradient.is_complete()) {
            if param.keeps_gradient() {
                param.fill_shard();
            } else if param.sum_of_whole().is_some() {
                param.begin_sum()?;
                param.call_names[0] = Some(bucket.gradients.label.clone());
            }
        }
        let take = |param: &mut Param<D>| {
            Ok(if param.gradient.is_complete() { None } else { param.gradient.at.take() })
        };
        bucket.gradients.begin(params, Param::sum_of_whole, take)?;
        for param in params {
            param.gradient.stage = GradientStage::Complete;
        }
        Ok(())
    }
    /// Waits for the sums of the gradients of these parameters, all that one part of a model has, each
    /// bucket's in the bucket's order. Starts the sums of parameters that were not completed, as one bucket.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn finish(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        if params.iter().any(|param| !param.gradient.is_complete()) {
            self.release(params, true)?;
        }
        self.buckets.iter_mut().try_for_each(|bucket| bucket.gradients.wait())?;
        for param in params.iter_mut() {
            let mut sums = self.buckets.iter_mut().map(|bucket| &mut bucket.gradients);
            if let Some(sum) = sums.find_map(|sums| sums.take_back(&param.name)) {
                param.take_sum(sum);
            }
            param.gradient.stage = GradientStage::Sums;
        }
        let take = |param: &mut Param<D>| Ok(param.gradient.at.take_shard().map(|shard| shard.read()));
        let give = |param: &mut Param<D>, shard| param.gradient.at = Residence::Shard(Kept::Here(shard));
        self.model.gradients.begin(params, Param::sum_of_shard, take)?;
        self.model.gradients.end(params, give)?;
        params.iter_mut().try_for_each(|param| param.sum_twins())
    }
    /// Lets `change` update the parts kept at rest of each trained parameter, beside these states of an
    /// optimizer. State off the device is loaded for the update, while that of the last parameter is stored.
    ///
    /// # Errors
    /// If a parameter is cut inside a block of its state.
    pub fn update(
        &mut self,
        params: &mut [&mut Param<D>],
        states: RuleStates,
        mut change: impl FnMut(&mut Param<D>),
    ) -> Result<()> {
        let mut left = &mut *params;
        while let Some((param, rest)) = left.split_first_mut() {
            left = rest;
            if !param.placement().trained {
                continue;
            }
            param.allocate_states(states.of(param.name(), param.shape()))?;
            param.load_state();
            if let Some(next) = left.iter_mut().find(|param| param.placement().trained) {
                next.allocate_states(states.of(next.name(), next.shape()))?;
                next.begin_load_state();
            }
            change(param);
            self.leaving.drain(..).for_each(residence::wait);
            self.leaving.push(param.begin_store_state());
        }
        self.leaving.drain(..).for_each(residence::wait);
        Ok(())
    }
    /// Gathers the values that are kept whole and of which each rank updated a part.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn publish(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.model.gather(params, |param| matches!(param.value, Residence::Outdated(_)))
    }
}

impl<D: Kernels> Param<D> {
    /// Sums the gradient over every axis along which ranks have partial sums of it. A rank without
    /// contribution adds zero.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn sync(&mut self) -> Result<()> {
        Keeper::default().finish(&mut [self])
    }
}

#[cfg(test)]
mod tests;
