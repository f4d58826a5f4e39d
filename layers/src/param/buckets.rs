//! Buckets: parameters that are used, and completed by backward, at one time: the head, a block, the
//! embedding.
//!
//! Their tensors share one call for each group of ranks. A call for each parameter would pay the latency for
//! each; one call for the whole model could not start before backward ends. Each element is summed in rank
//! order in any case, so the bits are the same.
//!
//! Source: Li et al., "PyTorch distributed", §3.2.3, arXiv:2006.15704.
use crate::{Param, Result, ShardingStrategy};
use comm::{Axes, BucketRequest, Group, InPlace};
use kernels::Kernels;
use std::sync::Arc;
use tensor::Tensor;

/// A bucket.
pub(super) struct Bucket<D: Kernels> {
    first: Arc<str>, // name of the first parameter, identifies the bucket
    pub(super) gradients: BucketCalls<D::Wide>,
    pub(super) values: BucketCalls<D>,
}

/// The calls for a bucket's tensors, one for each group of ranks.
pub(super) struct BucketCalls<D: Kernels> {
    pub(super) label: Arc<str>,
    all: Vec<BucketCall<D>>,
    in_calls: Vec<(usize, usize)>, // (parameter, call) of each tensor in a call
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

impl<D: Kernels> Param<D> {
    /// Returns the key of the call of this kind for one of its tensors.
    pub(super) fn key(&self, how: InPlace) -> CallKey {
        (how, self.sharding.placement.summed(), self.sharding.placement.rests)
    }
    /// The ranks that have one shard each.
    pub(super) fn ranks(&self) -> Option<&Group<D::Place>> {
        self.sharding.shards.as_ref().map(|shards| &shards.group)
    }
    /// The ranks that have the same shard, each with a partial sum of its gradient.
    pub(super) fn peers(&self) -> Option<&Group<D::Place>> {
        self.sharding.shards.as_ref().map(|shards| &shards.peers)
    }
}

impl<D: Kernels> Bucket<D> {
    pub(super) fn new(first: Arc<str>, name: &str) -> Self {
        let [gradients, values] = ["gradients of ", "values of "].map(|of| format!("{of}{name}").into());
        Self { first, gradients: BucketCalls::new(gradients), values: BucketCalls::new(values) }
    }
    /// Returns the index of the bucket of these parameters, which is made if there is none.
    pub(super) fn of(all: &mut Vec<Self>, params: &[&mut Param<D>]) -> usize {
        let first = params.first().map_or_else(Arc::default, |param| param.name.clone());
        all.iter().position(|bucket| bucket.first == first).unwrap_or_else(|| {
            all.push(Self::new(first, &name(params)));
            all.len() - 1
        })
    }
    /// Gathers the `wanted` values of which only parts are here, unless that was started before.
    pub(super) fn gather(
        &mut self,
        params: &mut [&mut Param<D>],
        wanted: impl Fn(&Param<D>) -> bool,
    ) -> Result<()> {
        if !self.values.are_under_way() {
            self.begin_to_gather(params, wanted)?;
        }
        self.values.end(params, |param, whole| param.value.give_back(whole))
    }
    pub(super) fn begin_to_gather(
        &mut self,
        params: &mut [&mut Param<D>],
        wanted: impl Fn(&Param<D>) -> bool,
    ) -> Result<()> {
        let take = |param: &mut Param<D>| Ok(if wanted(param) { param.take_value() } else { None });
        self.values.begin(InPlace::AllGather, params, Param::ranks, take)
    }
}

impl<D: Kernels> BucketCalls<D> {
    fn new(label: Arc<str>) -> Self {
        Self { label, all: Vec::new(), in_calls: Vec::new() }
    }
    /// Returns whether `begin` has started calls that `end` has not ended.
    pub(super) fn are_under_way(&self) -> bool {
        !self.in_calls.is_empty()
    }
    /// Adds a tensor to the next call with this key; returns the index of the call.
    pub(super) fn add(&mut self, key: CallKey, group: &Group<D::Place>, tensor: Tensor<D>) -> usize {
        let at = self.all.iter().position(|call| call.key == key).unwrap_or_else(|| {
            let group = group.named(self.label.clone());
            self.all.push(BucketCall { key, group, tensors: Vec::new(), under_way: None });
            self.all.len() - 1
        });
        self.all[at].tensors.push(tensor);
        at
    }
    /// Starts the calls that have tensors.
    pub(super) fn start(&mut self) -> Result<()> {
        for call in self.all.iter_mut().filter(|call| !call.tensors.is_empty()) {
            call.under_way = Some(call.group.start_together(call.key.0, std::mem::take(&mut call.tensors))?);
        }
        Ok(())
    }
    /// Waits for the calls that were started.
    pub(super) fn wait(&mut self) -> Result<()> {
        for call in &mut self.all {
            if let Some(under_way) = call.under_way.take() {
                call.tensors = under_way.wait()?;
            }
        }
        Ok(())
    }
    /// Returns the last tensor of a call's list: that of the first parameter that has not got its tensor
    /// back.
    pub(super) fn take_back(&mut self, call: usize) -> Tensor<D> {
        self.all[call].tensors.pop().expect("a call returned fewer tensors than it took")
    }
    /// Starts the calls of this kind for these parameters.
    pub(super) fn begin<N: Kernels<Place = D::Place>>(
        &mut self,
        how: InPlace,
        params: &mut [&mut Param<N>],
        group: fn(&Param<N>) -> Option<&Group<D::Place>>,
        take: impl Fn(&mut Param<N>) -> Result<Option<Tensor<D>>>,
    ) -> Result<()> {
        for (i, param) in params.iter_mut().enumerate().rev() {
            if group(param).is_none_or(|group| group.size() == 1) {
                continue;
            }
            if let (Some(tensor), Some(group)) = (take(param)?, group(param)) {
                let call = self.add(param.key(how), group, tensor);
                self.in_calls.push((i, call));
                let call_names = &mut param.call_names[usize::from(how == InPlace::AllGather)];
                call_names.get_or_insert_with(|| self.label.clone());
            }
        }
        self.start()
    }
    /// Waits for the calls that `begin` started with these parameters, and returns the tensors.
    pub(super) fn end<N: Kernels<Place = D::Place>>(
        &mut self,
        params: &mut [&mut Param<N>],
        give_back: impl Fn(&mut Param<N>, Tensor<D>),
    ) -> Result<()> {
        self.wait()?;
        while let Some((i, call)) = self.in_calls.pop() {
            give_back(params[i], self.take_back(call));
        }
        Ok(())
    }
}

/// Returns a common name of these parameters: the longest part that their names share, or else all names.
pub(super) fn name<D: Kernels>(params: &[&mut Param<D>]) -> String {
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
