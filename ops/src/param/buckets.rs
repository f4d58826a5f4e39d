//! Buckets: parameters that are used, and completed by backward, at one time: the head, a block, the
//! embedding.
//!
//! Their tensors share one call for each group of ranks. A call for each parameter would pay the latency for
//! each; one call for the whole model could not start before backward ends. Each element is summed in rank
//! order in any case, so the bits are the same.
//!
//! Source: Li et al., "PyTorch distributed", §3.2.3, arXiv:2006.15704.
use crate::{Param, Result, ShardingStrategy};
use comm::{Axes, BucketRequest, Group, InPlace, Reduce};
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
    in_calls: Vec<(Arc<str>, usize)>, // names of the parameters whose tensors are in a call, and the call
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

/// Kind and ranks of a call for a tensor of a parameter, if it needs one.
type ParamCall<'a, P> = Option<(InPlace, &'a Group<P>)>;

const SUM: InPlace = InPlace::AllReduce(Reduce::Sum);

impl<D: Kernels> Bucket<D> {
    pub(super) fn new(first: Arc<str>, name: &str) -> Self {
        let [gradients, values] = ["gradients of ", "values of "].map(|of| format!("{of}{name}").into());
        Self { first, gradients: BucketCalls::new(gradients), values: BucketCalls::new(values) }
    }
    /// Returns the bucket of these parameters, which is made if there is none.
    pub(super) fn of<'a>(all: &'a mut Vec<Self>, params: &[&mut Param<D>]) -> &'a mut Self {
        let first = params.first().map_or_else(Arc::default, |param| param.name.clone());
        let index = all.iter().position(|bucket| bucket.first == first).unwrap_or_else(|| {
            all.push(Self::new(first, &name(params)));
            all.len() - 1
        });
        &mut all[index]
    }
    /// Returns whether it has begun to gather values.
    pub(super) fn is_gathering(&self) -> bool {
        !self.values.in_calls.is_empty()
    }
    /// Begins to gather the `wanted` values of which only parts are here.
    pub(super) fn begin_to_gather(
        &mut self,
        params: &mut [&mut Param<D>],
        wanted: impl Fn(&Param<D>) -> bool,
    ) -> Result<()> {
        let take = |param: &mut Param<D>| Ok(if wanted(param) { param.take_value() } else { None });
        self.values.begin(params, Param::gathering, take)
    }
    /// Gathers the `wanted` values of which only parts are here.
    pub(super) fn gather(
        &mut self,
        params: &mut [&mut Param<D>],
        wanted: impl Fn(&Param<D>) -> bool,
    ) -> Result<()> {
        if !self.is_gathering() {
            self.begin_to_gather(params, wanted)?;
        }
        self.values.end(params, |param, whole| param.value.give_back(whole))
    }
}

impl<D: Kernels> BucketCalls<D> {
    fn new(label: Arc<str>) -> Self {
        Self { label, all: Vec::new(), in_calls: Vec::new() }
    }
    /// Starts calls of this kind with the tensors that `take` takes of these parameters.
    pub(super) fn begin<N: Kernels<Place = D::Place>>(
        &mut self,
        params: &mut [&mut Param<N>],
        call: fn(&Param<N>) -> ParamCall<D::Place>,
        take: impl Fn(&mut Param<N>) -> Result<Option<Tensor<D>>>,
    ) -> Result<()> {
        for param in params.iter_mut().rev() {
            if call(param).is_none_or(|(_, group)| group.size() == 1) {
                continue;
            }
            let (Some(tensor), Some((how, group))) = (take(param)?, call(param)) else { continue };
            let key = (how, param.sharding.placement.summed(), param.sharding.placement.rests);
            let index = self.all.iter().position(|call| call.key == key).unwrap_or_else(|| {
                let group = group.named(self.label.clone());
                self.all.push(BucketCall { key, group, tensors: Vec::new(), under_way: None });
                self.all.len() - 1
            });
            self.all[index].tensors.push(tensor);
            self.in_calls.push((param.name.clone(), index));
            let call_names = &mut param.call_names[usize::from(how == InPlace::AllGather)];
            call_names.get_or_insert_with(|| self.label.clone());
        }
        for call in self.all.iter_mut().filter(|call| !call.tensors.is_empty()) {
            call.under_way = Some(call.group.start_together(call.key.0, std::mem::take(&mut call.tensors))?);
        }
        Ok(())
    }
    /// Waits for the calls that were begun.
    pub(super) fn wait(&mut self) -> Result<()> {
        for call in &mut self.all {
            if let Some(under_way) = call.under_way.take() {
                call.tensors = under_way.wait()?;
            }
        }
        Ok(())
    }
    /// Returns a parameter's tensor from its call, if it is in one, after those of the parameters before it.
    pub(super) fn take_back(&mut self, name: &Arc<str>) -> Option<Tensor<D>> {
        let (_, call) = self.in_calls.pop_if(|(first, _)| first == name)?;
        self.all[call].tensors.pop()
    }
    /// Waits for the calls that were begun with some of these parameters, and returns the tensors.
    pub(super) fn end<N: Kernels<Place = D::Place>>(
        &mut self,
        params: &mut [&mut Param<N>],
        give_back: impl Fn(&mut Param<N>, Tensor<D>),
    ) -> Result<()> {
        self.wait()?;
        for param in params {
            if let Some(tensor) = self.take_back(&param.name) {
                give_back(param, tensor);
            }
        }
        Ok(())
    }
}

impl<D: Kernels> Param<D> {
    /// Returns whether this rank keeps only its shard of the gradient between backward passes.
    pub(super) fn keeps_gradient(&self) -> bool {
        self.sharding.keeps(|rests| rests.gradient)
    }
    /// The all-gather of its value from the ranks that have one shard each.
    fn gathering(&self) -> ParamCall<'_, D::Place> {
        Some((InPlace::AllGather, &self.sharding.shards.as_ref()?.group))
    }
    /// The sum of a whole gradient to the ranks that have one shard each.
    pub(super) fn sum_to_shards(&self) -> ParamCall<'_, D::Place> {
        Some((InPlace::ReduceScatter, &self.sharding.shards.as_ref()?.group))
    }
    /// The sum of a complete gradient, if this rank keeps it whole until then.
    pub(super) fn sum_of_whole(&self) -> ParamCall<'_, D::Place> {
        let sums = self.sharding.placement.trained && !self.sharding.rooted && !self.keeps_gradient();
        if sums { self.sum_to_shards().or(Some((SUM, &self.sharding.sum))) } else { None }
    }
    /// The sum of a shard over the ranks that have the same one, each with a partial sum of it.
    pub(super) fn sum_of_shard(&self) -> ParamCall<'_, D::Place> {
        Some((SUM, &self.sharding.shards.as_ref()?.peers))
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
