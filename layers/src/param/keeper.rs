//! Who keeps parameters: gathers values where they are used, sums gradients, and puts both where they rest. It interprets
//! [`Rests`]; no other code knows of DDP, ZeRO or HSDP.
//!
//! ```text
//!              gradient of a unit, L numbers on b ranks              value
//! whole        complete: all-reduce, 2·(b−1)/b·L                     is there
//! state        complete: reduce-scatter, (b−1)/b·L                   after the update: all-gather, (b−1)/b·L
//! gradient     after every backward: reduce-scatter, (b−1)/b·L       after the update: all-gather, (b−1)/b·L
//! value        after every backward: reduce-scatter, (b−1)/b·L       before every use: all-gather, (b−1)/b·L
//! in blocks    and at the end of the step: shards are summed over the blocks by an all-reduce of L/b numbers
//! ```
//!
//! A unit is what is used, and completed by backward, at one time: the head, a block, the embedding. Its tensors go in one
//! call for each group of ranks. A call of its own for each parameter would pay the latency for each; one call for the
//! whole model could not begin before backward ends. Each number is added in rank order either way, so the bits are the same.
//!
//! Source: Li et al., "PyTorch distributed", §3.2.3 (buckets, and sums beside backward), arXiv:2006.15704; Rajbhandari et
//! al., "ZeRO", §5 and §7, arXiv:1910.02054.
use crate::{Param, Rest, Rests, Result, Uses};
use comm::{Axes, Group, InPlace, Reduce, Together};
use kernels::Kernels;
use std::sync::Arc;
use tensor::Tensor;

/// The keeper of a model's parameters, on one rank. What a step needs is kept for the next.
pub struct Keeper<D: Kernels> {
    rests: Rests,
    units: Vec<Unit<D>>, // in the order in which they were first seen
}

/// Parameters that go together.
struct Unit<D: Kernels> {
    first: Arc<str>, // the name of one
    gradients: Calls<D::Wide>,
    values: Calls<D>,
}

/// The calls in which tensors of a unit go, one for each group of ranks.
struct Calls<D: Kernels> {
    label: Arc<str>,
    all: Vec<Call<D>>,
}

/// Tensors that go together over a group of ranks.
struct Call<D: Kernels> {
    key: Key,
    group: Group<D::Place>,
    tensors: Vec<Tensor<D>>, // last parameter first; empty between steps
    under_way: Option<Together<D>>,
}

/// What tells calls of a unit apart: parameters whose gradients are summed over the same ranks, and rest alike.
type Key = (InPlace, Axes, Rests);

const SUM: InPlace = InPlace::AllReduce(Reduce::Sum);

impl<D: Kernels> Default for Keeper<D> {
    /// Of parameters that rest whole.
    fn default() -> Self {
        Self::new(Rests::WHOLE)
    }
}

impl<D: Kernels> Keeper<D> {
    /// Of parameters that rest so, if they are trained and several ranks sum their gradients.
    pub fn new(rests: Rests) -> Self {
        Self { rests, units: Vec::new() }
    }
    /// The unit of these parameters.
    fn unit(&mut self, params: &[&mut Param<D>]) -> usize {
        let Some(first) = params.first() else { return 0 };
        self.units.iter().position(|unit| unit.first == *first.name()).unwrap_or_else(|| {
            let gradients = Calls { label: label(OF, params).into(), all: Vec::new() };
            let values = Calls { label: label("values of ", params).into(), all: Vec::new() };
            self.units.push(Unit { first: first.name().clone(), gradients, values });
            self.units.len() - 1
        })
    }
    /// Does something with the parameters of each unit, in their order.
    fn each(
        &mut self,
        mut params: &mut [&mut Param<D>],
        mut work: impl FnMut(&mut Unit<D>, &mut [&mut Param<D>]) -> Result<()>,
    ) -> Result<()> {
        while !params.is_empty() {
            let is_first = |param: &&mut Param<D>| self.units.iter().any(|unit| unit.first == *param.name());
            let len = 1 + params[1..].iter().take_while(|param| !is_first(param)).count();
            let (own, others) = params.split_at_mut(len);
            let unit = self.unit(own);
            work(&mut self.units[unit], own)?;
            params = others;
        }
        Ok(())
    }
    /// Reduces and scatters what backward added to gradients that rest as shards.
    fn put_away(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        let number = self.unit(params);
        let rests = |param: &Param<D>| param.rests_as_shard(param.placement().rests.gradient);
        for param in params.iter_mut().rev().filter(|param| param.lent.is_none() && param.is_written()) {
            if rests(param) {
                param.begin_sum()?;
                self.units[number].lend_gradient(number, param);
            }
        }
        let Some(unit) = self.units.get_mut(number) else { return Ok(()) };
        unit.gradients.start()?;
        unit.gradients.wait()?;
        for param in params.iter_mut().filter(|param| rests(param)) {
            if let Some((_, Some(call))) = param.lent {
                param.give(unit.gradients.give_back(call));
                param.lent = None;
            }
        }
        Ok(())
    }
    /// Waits for all sums that were started, and gives the gradients back. `params` are all parameters of the step, those of
    /// a unit in the order in which the unit had them; of those that nobody has completed, the sums are started here, as one
    /// unit.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn finish(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        if params.iter().any(|param| param.lent.is_none()) {
            self.complete(params)?;
        }
        self.units.iter_mut().try_for_each(|unit| unit.gradients.wait())?;
        for param in params.iter_mut() {
            if let (unit, Some(call)) = param.lent.take().expect("completed above") {
                param.give(self.units[unit].gradients.give_back(call));
            }
        }
        self.sum_blocks(params)?;
        params.iter_mut().try_for_each(|param| param.end_sum())
    }
    /// Sums shards of gradients over the ranks of other blocks that have the same.
    fn sum_blocks(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.each(params, |unit, params| {
            for param in params.iter_mut().rev() {
                let Some(shards) = param.shards.as_ref().filter(|shards| shards.peers.size() > 1) else {
                    continue;
                };
                let shard = param.gradient.shard.take().expect("summed within the block");
                unit.gradients.lend(key(SUM, param), &shards.peers, shard);
            }
            unit.gradients.start()
        })?;
        self.each(params, |unit, params| {
            unit.gradients.wait()?;
            for param in params.iter_mut().filter(|param| param.shards.is_some()) {
                if param.gradient.shard.is_none() {
                    let call = unit.gradients.call(key(SUM, param)).expect("lent above");
                    param.gradient.shard = Some(unit.gradients.give_back(call));
                }
            }
            Ok(())
        })
    }
    /// When an optimizer has changed shards: values that rest whole are gathered.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn share(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.each(params, |unit, params| unit.gather(params, Param::lend_stale))?;
        self.each(params, Unit::gathered)
    }
}

impl<D: Kernels> Uses<D> for Keeper<D> {
    fn moves(&self) -> bool {
        self.rests.gradient == Rest::Shard
    }
    fn before(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        let unit = self.unit(params);
        let Some(unit) = self.units.get_mut(unit) else { return Ok(()) };
        unit.gather(params, Param::unfold)?;
        unit.gathered(params)
    }
    fn after(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        params.iter_mut().for_each(|param| param.fold());
        self.put_away(params)
    }
    /// All ranks complete the same units in the same order.
    fn complete(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.put_away(params)?;
        let number = self.unit(params);
        for param in params.iter_mut().rev().filter(|param| param.lent.is_none()) {
            if !param.placement().trained || param.rests_as_shard(param.placement().rests.gradient) {
                param.close();
                param.lent = Some((number, None));
            } else {
                param.begin_sum()?;
                self.units[number].lend_gradient(number, param);
            }
        }
        self.units.get_mut(number).map_or(Ok(()), |unit| unit.gradients.start())
    }
}

/// What tells apart in which call of this kind a tensor of the parameter goes.
fn key<D: Kernels>(how: InPlace, param: &Param<D>) -> Key {
    (how, param.placement().summed(), param.placement().rests)
}

impl<D: Kernels> Unit<D> {
    /// Starts to gather what `lend` gives of the parameters: whole values, of which each rank has its own shard.
    fn gather(
        &mut self,
        params: &mut [&mut Param<D>],
        lend: impl Fn(&mut Param<D>) -> Option<Tensor<D>>,
    ) -> Result<()> {
        for param in params.iter_mut().rev() {
            if let (Some(whole), Some(shards)) = (lend(param), &param.shards) {
                self.values.lend(key(InPlace::AllGather, param), &shards.group, whole);
            }
        }
        self.values.start()
    }
    /// Waits for these values, and gives them back.
    fn gathered(&mut self, params: &mut [&mut Param<D>]) -> Result<()> {
        self.values.wait()?;
        for param in params.iter_mut().filter(|param| param.is_lent()) {
            let call = self.values.call(key(InPlace::AllGather, param)).expect("lent above");
            param.unfolded(self.values.give_back(call));
        }
        Ok(())
    }
    /// Takes a whole gradient for the sum over the ranks that have partial sums of it, if there are several.
    fn lend_gradient(&mut self, number: usize, param: &mut Param<D>) {
        let (how, group) = match &param.shards {
            Some(shards) => (InPlace::ReduceScatter, &shards.group),
            None => (SUM, &param.sum),
        };
        let whole = param.gradient.whole.take_if(|_| group.size() > 1);
        let call = whole.map(|whole| self.gradients.lend(key(how, param), group, whole));
        param.lent = Some((number, call));
    }
}

impl<D: Kernels> Calls<D> {
    /// Takes a tensor for the next call of this kind: which one that is.
    fn lend(&mut self, key: Key, group: &Group<D::Place>, tensor: Tensor<D>) -> usize {
        let at = self.call(key).unwrap_or_else(|| {
            let group = group.named(self.label.clone());
            self.all.push(Call { key, group, tensors: Vec::new(), under_way: None });
            self.all.len() - 1
        });
        self.all[at].tensors.push(tensor);
        at
    }
    fn call(&self, key: Key) -> Option<usize> {
        self.all.iter().position(|call| call.key == key)
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
    /// The last tensor in the list of a call: that of the first parameter which has not got its own.
    fn give_back(&mut self, call: usize) -> Tensor<D> {
        self.all[call].tensors.pop().expect("as many as were lent")
    }
}

/// How the label of a sum of gradients begins.
const OF: &str = "gradients of ";
/// Between names in a label.
const AND: &str = ", ";

/// What a call of these parameters' tensors is called: by the longest part that their names share, or else by all names.
fn label<D: Kernels>(of: &str, params: &[&mut Param<D>]) -> String {
    let first: &str = params.first().map_or("", |param| param.name());
    let parts = first.rmatch_indices('.').map(|(dot, _)| &first[..dot]);
    let shared = |part: &&str| params.iter().all(|param| is_within(param.name(), part));
    let names = || params.iter().map(|param| &**param.name()).collect::<Vec<_>>().join(AND);
    let what = std::iter::once(first).chain(parts).find(shared).map_or_else(names, str::to_string);
    format!("{of}{what}")
}

/// Whether a name is this part, or goes on after it.
fn is_within(name: &str, part: &str) -> bool {
    name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a sum of this label is of the gradient of this parameter, too.
pub fn is_summed_in(label: &str, name: &str) -> bool {
    label.strip_prefix(OF).is_some_and(|parts| parts.split(AND).any(|part| is_within(name, part)))
}

#[cfg(test)]
mod tests;
