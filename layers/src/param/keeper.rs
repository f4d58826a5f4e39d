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
use crate::ops::filled;
use crate::param::kept::{self, Kept, Leaving};
use crate::param::placement::{Band, Replica};
use crate::param::{Contributed, sharding::ParamSharding, shards::matrix};
use crate::{AtRest, Param, ParamHooks, Result, ShardingStrategy, Wide};
use comm::{Axes, BucketRequest, Group, InPlace, Reduce};
use kernels::Kernels;
use std::sync::Arc;
use tensor::{Category, Place, Scalar, Tensor, ViewMut};

impl<D: Kernels> Param<D> {
    /// Sums the gradient over every axis along which ranks have partial sums of it. A rank without
    /// contribution adds zero.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn sync(&mut self) -> Result<()> {
        ParamHooks::finish(&mut Keeper::new(ShardingStrategy::WHOLE), &mut [self])
    }
}

/// The keeper of a model's parameters on one rank. Its buffers are reused from step to step.
pub struct Keeper<D: Kernels> {
    rests: ShardingStrategy,
    buckets: Vec<Bucket<D>>,  // in the order of their first use
    model: Bucket<D>,         // all parameters, for calls that overlap no computation
    leaving: Vec<Leaving<D>>, // state on its way off the device
}

/// A bucket: parameters that are used, and completed by backward, at one time: the head, a block, the
/// embedding.
///
/// Its tensors share one call for each group of ranks. A call for each parameter would pay the latency for
/// each; one call for the whole model could not start before backward ends. Each element is summed in rank
/// order in any case, so the bits are the same.
struct Bucket<D: Kernels> {
    first: Arc<str>, // name of the first parameter, identifies the bucket
    gradients: BucketCalls<D::Wide>,
    values: BucketCalls<D>,
}

/// The calls for a bucket's tensors, one for each group of ranks.
struct BucketCalls<D: Kernels> {
    label: Arc<str>,
    all: Vec<BucketCall<D>>,
    lent: Vec<(usize, usize)>, // (parameter, call) of each tensor in a call
}

/// Tensors that share a call over a group of ranks.
struct BucketCall<D: Kernels> {
    key: CallKey,
    group: Group<D::Place>,
    tensors: Vec<Tensor<D>>, // last parameter first; empty between steps
    under_way: Option<BucketRequest<D>>,
}

/// Key of a bucket's call: parameters share it if the same ranks sum their gradients and their sharding is
/// the same.
type CallKey = (InPlace, Axes, ShardingStrategy);

const SUM: InPlace = InPlace::AllReduce(Reduce::Sum);

impl<D: Kernels> Keeper<D> {
    /// Creates the keeper of parameters with this sharding at rest. It acts on parameters that are trained
    /// and whose gradients several ranks sum.
    pub fn new(rests: ShardingStrategy) -> Self {
        let model = Bucket::of(Arc::default(), "the model");
        Self { rests, buckets: Vec::new(), model, leaving: Vec::new() }
    }
    /// Returns the bucket of these parameters, and its index.
    fn bucket(&mut self, params: &[&mut Param<D>]) -> (usize, &mut Bucket<D>) {
        let first = params.first().map_or_else(Arc::default, |param| param.name.clone());
        let number = self.buckets.iter().position(|bucket| bucket.first == first).unwrap_or_else(|| {
            self.buckets.push(Bucket::of(first, &name(params)));
            self.buckets.len() - 1
        });
        (number, &mut self.buckets[number])
    }
}

impl<D: Kernels> ParamHooks<D> for Keeper<D> {
    fn moves(&self) -> bool {
        self.rests.gradient == AtRest::Shard
    }
    fn before(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        for shard in
            params.iter_mut().filter(|param| param.tiles.is_some()).filter_map(|p| p.value.shard.as_mut())
        {
            shard.load();
        }
        self.bucket(params).1.gather(params, |_| true)
    }
    /// Begins to gather the values or, if their shards are off the device, to load these.
    fn ahead(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        let bucket = self.bucket(params).1;
        let begun = !bucket.values.lent.is_empty();
        let shards = params.iter_mut().filter(|_| !begun).filter_map(|param| param.value.shard.as_mut());
        let away = shards.map(Kept::begin_load).max() == Some(true);
        if begun || away { Ok(()) } else { bucket.begin_to_gather(params, |_| true) }
    }
    /// Requires that all ranks have added to the gradients of the same parameters.
    fn after(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        for param in params.iter_mut() {
            if param.sharding.placement.rests.value == AtRest::Gathered && param.value.whole.is_some() {
                param.value.shard = None;
            }
            param.value.whole.take_if(|_| param.value.shard.is_some());
            param.value.shard.iter_mut().for_each(Kept::free);
        }
        let lend = |param: &mut Param<D>| {
            let written = param.contributed.whole
                && param.lent.is_none()
                && param.sharding.keeps(|rests| rests.gradient);
            if written { param.begin_sum().map(|()| param.gradient.whole.take()) } else { Ok(None) }
        };
        let bucket = self.bucket(params).1;
        bucket.gradients.begin(InPlace::ReduceScatter, params, Param::ranks, lend)?;
        bucket.gradients.end(params, Param::take_sum)
    }
    /// Requires that all ranks complete the same buckets in the same order.
    fn complete(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.after(params)?;
        let (number, bucket) = self.bucket(params);
        for param in params.iter_mut().rev().filter(|param| param.lent.is_none()) {
            let mut call = None;
            if param.sharding.keeps(|rests| rests.gradient) {
                param.close();
            } else if param.sharding.placement.trained && !param.sharding.rooted {
                param.begin_sum()?;
                let (how, group) = param
                    .sharding
                    .shards
                    .as_ref()
                    .map_or((SUM, &param.sharding.sum), |of| (InPlace::ReduceScatter, &of.group));
                let (key, whole) = (param.key(how), param.gradient.whole.take_if(|_| group.size() > 1));
                call = whole.map(|whole| bucket.gradients.lend(key, group, whole));
                param.call_names[0] = Some(bucket.gradients.label.clone());
            }
            param.lent = Some((number, call));
        }
        bucket.gradients.start()
    }
    /// Waits for the sums and returns the gradients to the parameters. The parameters of a bucket must come
    /// in the bucket's order. Starts the sums of parameters that were not completed, as one bucket.
    fn finish(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        if params.iter().any(|param| param.lent.is_none()) {
            self.complete(params)?;
        }
        self.buckets.iter_mut().try_for_each(|bucket| bucket.gradients.wait())?;
        for param in params.iter_mut() {
            if let (bucket, Some(call)) = param.lent.take().expect("completed above") {
                param.take_sum(self.buckets[bucket].gradients.give_back(call));
            }
        }
        let give = |param: &mut Param<D>, shard| param.gradient.shard = Some(Kept::Here(shard));
        let lend = |param: &mut Param<D>| Ok(param.gradient.shard.take().map(|shard| shard.read()));
        self.model.gradients.begin(SUM, params, Param::peers, lend)?;
        self.model.gradients.end(params, give)?;
        params.iter_mut().try_for_each(|param| param.end_sum())
    }
    fn ahead_of_update(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        for param in params {
            param.begin_load_state();
        }
        Ok(())
    }
    fn before_update(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        for param in params {
            param.load_state();
        }
        Ok(())
    }
    /// Begins to store the state, while that of the parameter before it has left.
    fn after_update(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.leaving.drain(..).for_each(kept::wait);
        self.leaving.extend(params.iter_mut().map(|param| param.begin_store_state()));
        Ok(())
    }
    /// Gathers the values that are kept whole at rest.
    fn share(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.leaving.drain(..).for_each(kept::wait);
        self.model.gather(params, |param| param.value.shard.is_none())
    }
}

impl<D: Kernels> Param<D> {
    /// Returns the key of the call of this kind for one of its tensors.
    fn key(&self, how: InPlace) -> CallKey {
        (how, self.sharding.placement.summed(), self.sharding.placement.rests)
    }
    /// The ranks that have one shard each.
    fn ranks(&self) -> Option<&Group<D::Place>> {
        self.sharding.shards.as_ref().map(|shards| &shards.group)
    }
    /// The ranks that have the same shard, each with a partial sum of its gradient.
    fn peers(&self) -> Option<&Group<D::Place>> {
        self.sharding.shards.as_ref().map(|shards| &shards.peers)
    }
    /// Takes the value for an all-gather, with only this rank's shard filled in; `None` if the value is
    /// gathered, or if products gather it tile by tile.
    fn lend_value(&mut self) -> Option<Tensor<D>> {
        if let (Some(shards), Some(kept), None, None) =
            (&self.sharding.shards, &mut self.value.shard, &self.value.whole, &self.tiles)
        {
            let device = &self.device;
            let mut whole = Tensor::empty(device, Category::Weights, shards.group.size(), shards.len);
            kept.load();
            device.copy(whole.view_mut().take_rows(shards.group.rank(), 1), kept.here().view());
            kept.free();
            (self.value.whole, self.stale) = (Some(whole), true);
        }
        self.value.whole.take_if(|_| self.stale)
    }
    /// Prepares a whole gradient for its sum: fills it with zeros if there is no contribution, and sums parts
    /// that several ranks hold over their holders.
    pub(super) fn begin_sum(&mut self) -> Result<()> {
        if !self.contributed.whole {
            self.accumulate(|device, gradient, _| device.wide().fill(gradient, Wide::<D>::ZERO));
        }
        let (local, Some(gradient)) = (self.local(), &mut self.gradient.whole) else { return Ok(()) };
        let device = gradient.device().clone();
        let all = Band { dim: 1, start: 0, len: local[1] };
        self.sharding.sum_held(&device, matrix(gradient.view_mut(), local), all)
    }
    /// Takes a summed gradient; if it is sharded, adds this rank's shard of it to the shard kept at rest.
    fn take_sum(&mut self, whole: Tensor<D::Wide>) {
        let Some(shards) = &self.sharding.shards else {
            self.gradient.whole = Some(whole);
            return;
        };
        let (device, own) = (whole.device(), whole.view().take_rows(shards.group.rank(), 1));
        let fresh = || Kept::Here(Tensor::empty(device, Category::Gradients, 1, own.cols()));
        let shard = self.gradient.shard.get_or_insert_with(fresh).here().view_mut();
        if self.contributed.shard {
            device.add(shard, own);
        } else {
            device.copy(shard, own);
        }
        self.contributed = Contributed { whole: false, shard: true };
    }
    /// Completes a sharded gradient: fills the shard with zeros if there is no contribution.
    fn close(&mut self) {
        let Some(shards) = self.sharding.shards.as_ref().filter(|_| !self.contributed.shard) else { return };
        let device = self.device().wide();
        let zeros = filled(device, Category::Gradients, [1, shards.len], Wide::<D>::ZERO);
        self.gradient.shard = Some(Kept::Here(zeros));
    }
    /// Sums the gradient over ranks of other stages, after the sum over ranks of the same stage.
    fn end_sum(&mut self) -> Result<()> {
        if let (Some(twins), Some(gradient)) = (&self.sharding.twins, self.gradient.rest_mut()) {
            twins.all_reduce(gradient, Reduce::Sum)?;
        }
        Ok(())
    }
}

impl<P: Place> ParamSharding<P> {
    /// Sums parts of these columns of a gradient that several ranks hold over their holders.
    pub(crate) fn sum_held<W: Kernels<Place = P>>(
        &self,
        device: &W,
        mut gradient: ViewMut<W>,
        columns: Band,
    ) -> Result<()> {
        for (Replica { part, .. }, holders) in &self.replicas {
            let Some(part) = part.within(columns) else { continue };
            let held = part.of_mut(gradient.again());
            let mut sum = Tensor::empty(device, Category::Buffers, held.rows(), held.cols());
            device.copy(sum.view_mut(), held.read());
            holders.all_reduce(&mut sum, Reduce::Sum)?;
            device.copy(part.of_mut(gradient.again()), sum.view());
        }
        Ok(())
    }
}

impl<D: Kernels> Bucket<D> {
    fn of(first: Arc<str>, name: &str) -> Self {
        let [gradients, values] = ["gradients of ", "values of "].map(|of| format!("{of}{name}").into());
        Self { first, gradients: BucketCalls::of(gradients), values: BucketCalls::of(values) }
    }
    /// Gathers the `wanted` values of which only shards are here, unless that was started before.
    fn gather(&mut self, params: &mut [&mut Param<D>], wanted: impl Fn(&Param<D>) -> bool) -> Result<()> {
        if self.values.lent.is_empty() {
            self.begin_to_gather(params, wanted)?;
        }
        let give = |param: &mut Param<D>, whole| (param.value.whole, param.stale) = (Some(whole), false);
        self.values.end(params, give)
    }
    fn begin_to_gather(
        &mut self,
        params: &mut [&mut Param<D>],
        wanted: impl Fn(&Param<D>) -> bool,
    ) -> Result<()> {
        let lend = |param: &mut Param<D>| Ok(if wanted(param) { param.lend_value() } else { None });
        self.values.begin(InPlace::AllGather, params, Param::ranks, lend)
    }
}

impl<D: Kernels> BucketCalls<D> {
    fn of(label: Arc<str>) -> Self {
        Self { label, all: Vec::new(), lent: Vec::new() }
    }
    /// Adds a tensor to the next call with this key; returns the index of the call.
    fn lend(&mut self, key: CallKey, group: &Group<D::Place>, tensor: Tensor<D>) -> usize {
        let at = self.all.iter().position(|call| call.key == key).unwrap_or_else(|| {
            let group = group.named(self.label.clone());
            self.all.push(BucketCall { key, group, tensors: Vec::new(), under_way: None });
            self.all.len() - 1
        });
        self.all[at].tensors.push(tensor);
        at
    }
    /// Starts the calls that have tensors.
    fn start(&mut self) -> Result<()> {
        for call in self.all.iter_mut().filter(|call| !call.tensors.is_empty()) {
            call.under_way = Some(call.group.start_together(call.key.0, std::mem::take(&mut call.tensors))?);
        }
        Ok(())
    }
    /// Waits for the calls that were started.
    fn wait(&mut self) -> Result<()> {
        for call in &mut self.all {
            if let Some(under_way) = call.under_way.take() {
                call.tensors = under_way.wait()?;
            }
        }
        Ok(())
    }
    /// Returns the last tensor of a call's list: that of the first parameter that has not got its tensor
    /// back.
    fn give_back(&mut self, call: usize) -> Tensor<D> {
        self.all[call].tensors.pop().expect("a call returned fewer tensors than it took")
    }
    /// Starts the calls of this kind for these parameters.
    fn begin<N: Kernels<Place = D::Place>>(
        &mut self,
        how: InPlace,
        params: &mut [&mut Param<N>],
        group: fn(&Param<N>) -> Option<&Group<D::Place>>,
        lend: impl Fn(&mut Param<N>) -> Result<Option<Tensor<D>>>,
    ) -> Result<()> {
        for (i, param) in params.iter_mut().enumerate().rev() {
            if group(param).is_none_or(|group| group.size() == 1) {
                continue;
            }
            if let (Some(tensor), Some(group)) = (lend(param)?, group(param)) {
                let call = self.lend(param.key(how), group, tensor);
                self.lent.push((i, call));
                let call_names = &mut param.call_names[usize::from(how == InPlace::AllGather)];
                call_names.get_or_insert_with(|| self.label.clone());
            }
        }
        self.start()
    }
    /// Waits for the calls that `begin` started with these parameters, and returns the tensors.
    fn end<N: Kernels<Place = D::Place>>(
        &mut self,
        params: &mut [&mut Param<N>],
        give: impl Fn(&mut Param<N>, Tensor<D>),
    ) -> Result<()> {
        self.wait()?;
        while let Some((i, call)) = self.lent.pop() {
            give(params[i], self.give_back(call));
        }
        Ok(())
    }
}

/// Returns a common name of these parameters: the longest part that their names share, or else all names.
fn name<D: Kernels>(params: &[&mut Param<D>]) -> String {
    let first: &str = params.first().map_or("", |param| param.name());
    let parts = first.rmatch_indices('.').map(|(dot, _)| &first[..dot]);
    let shared = |part: &&str| params.iter().all(|param| is_within(param.name(), part));
    let names = || params.iter().map(|param| &**param.name()).collect::<Vec<_>>().join(", ");
    std::iter::once(first).chain(parts).find(shared).map_or_else(names, str::to_string)
}

/// Returns whether a name is this part, or continues it.
fn is_within(name: &str, part: &str) -> bool {
    name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests;
