//! A parameter: this rank's share of a whole matrix, and of its gradient.
mod gathering;
pub mod keeper;
pub mod optimizer;
pub mod placement;
pub mod shards;
pub mod weight;

use crate::model::build::{Builder, Draw};
use crate::ops::filled;
use crate::param::placement::{Cuts, Part, Placement, Replica};
use crate::param::shards::{Resting, Shards, matrix, matrix_mut, rectangles};
use crate::{Keeper, Rest, Result};
use comm::{Axes, Group, Reduce};
use kernels::{Kernels, Write};
use std::sync::Arc;
use tensor::{Category, Device, Scalar, Tensor, View, ViewMut};

/// A device's wide number.
pub type Wide<D> = <<D as Kernels>::Wide as Device>::Elem;

/// This rank's share of a parameter. Layers read it through the weights of [`crate::weight`], where it may be
/// gathered or fetched, and add to its gradient through `accumulate`; nobody else touches it.
pub struct Param<D: Kernels> {
    name: Arc<str>,
    shape: [usize; 2],
    placement: Placement,
    cuts: Cuts,
    replicas: Vec<(Replica, Group<D::Place>)>, // what other ranks hold, too, each part with its holders
    twins: Option<Group<D::Place>>,            // ranks of other stages that hold it, too, all of it
    pub(crate) sum: Group<D::Place>,           // who has partial sums of the gradient
    pub(crate) shards: Option<Shards<D::Place>>,
    pub(crate) value: Resting<D>,
    stale: bool, // of the whole value, only this rank's shard is the last step's
    master: Option<Tensor<D::Wide>>, // of a narrow parameter that learns: its value, not rounded
    pub(crate) gradient: Resting<D::Wide>, // taken at the first contribution, so that inference has none
    written: bool, // the whole gradient holds something of this step
    begun: bool, // and so does its shard
    pub(crate) lent: Option<(usize, Option<usize>)>, // complete: in which unit, and in which of its calls
}

impl<D: Kernels> Param<D> {
    /// This rank's share of the matrix `name` of this whole shape, with values by global index.
    ///
    /// # Errors
    /// If the ranks do not divide it, there are no such values, or it cannot rest so.
    pub fn new(
        at: &Builder<D>,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        placement: Placement,
        draw: Draw,
    ) -> Result<Self> {
        let name = name.into();
        let cuts = placement.cuts(at.mesh, &name, shape)?;
        let held = |replica: Replica| {
            let block = at.mesh.group(replica.axis).blocks(replica.holders)?.named(name.clone());
            Ok((replica, block))
        };
        let replicas = cuts.replicas().into_iter().map(held).collect::<Result<_>>()?;
        let sum = at.mesh.over(placement.summed())?;
        let [rows, cols] = cuts.local;
        let shards = Shards::of(&sum, placement.rests, rows * cols)?.filter(|_| placement.trained);
        let (value, gradient) = (Resting::default(), Resting::default());
        let mut param = Self {
            name,
            shape,
            placement,
            cuts,
            replicas,
            twins: None,
            sum,
            shards,
            value,
            stale: false,
            master: None,
            gradient,
            written: false,
            begun: false,
            lent: None,
        };
        let values = at.values.of(&param.name, shape, draw)?;
        let element = |at: Option<[usize; 2]>| at.map_or(Wide::<D>::ZERO, &values);
        let as_shard = param.rests_as_shard(param.placement.rests.value);
        let ([rows, cols], from) = if as_shard { param.at_rest() } else { (param.room(), 0) };
        let value = Tensor::from_fn(at.device, Category::Weights, rows, cols, |i| {
            D::Elem::narrow(element(param.place(from + i)))
        });
        if at.learns && D::Elem::NARROW && param.placement.trained {
            let ([rows, cols], from) = param.at_rest();
            let number = |i| element(param.place(from + i));
            param.master = Some(Tensor::from_fn(at.device.wide(), Category::Optimizer, rows, cols, number));
        }
        *(if as_shard { &mut param.value.shard } else { &mut param.value.whole }) = Some(value);
        Ok(param)
    }
    /// Its canonical name: `blocks.0.attention.qkv`.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }
    /// `[rows, columns]` of the whole.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }
    /// `[rows, columns]` of this rank's share.
    pub fn local(&self) -> [usize; 2] {
        self.cuts.local
    }
    /// Where its parts lie.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
    /// Whether weight decay applies: to matrices, not to gains.
    pub fn decays(&self) -> bool {
        self.shape[0] > 1
    }
    /// Where it lies.
    pub fn device(&self) -> &D {
        self.value.rest().expect("all of it, or a shard").device()
    }
    /// Whether something of it rests as a shard that rests so in general: alone, or not trained, it does not.
    pub(crate) fn rests_as_shard(&self, rest: Rest) -> bool {
        rest == Rest::Shard && self.shards.is_some()
    }
    /// The local value, while it is here.
    pub(crate) fn value(&self) -> Tensor<D> {
        let whole = self.value.whole.as_ref().filter(|_| !self.stale);
        let whole = whole.unwrap_or_else(|| panic!("{} rests as a shard, and was not gathered", self.name));
        let [rows, cols] = self.local();
        whole.clone().reshaped(rows, cols)
    }
    /// Lets `kernel` write what is not trained: the local value, which must become the same wherever it is held.
    ///
    /// # Panics
    /// If it is trained.
    pub fn change(&mut self, kernel: impl FnOnce(&D, ViewMut<D>)) {
        assert!(!self.placement.trained, "{} is changed by its gradient", self.name);
        let device = self.device().clone();
        kernel(&device, self.value.whole.as_mut().expect("it rests whole").view_mut());
    }
    /// Lets `kernel` write the gradient if it is the first contribution of the step, and add to it if not.
    pub(crate) fn accumulate(&mut self, kernel: impl FnOnce(&D, ViewMut<D::Wide>, Write)) {
        let write = if std::mem::replace(&mut self.written, true) { Write::Add } else { Write::Set };
        let (local, [rows, cols], device) = (self.local(), self.room(), self.device().clone());
        let wide = device.wide();
        if write == Write::Set && !self.begun {
            self.gradient.shard = None; // the last step's
        }
        let gradient = self.gradient.whole.get_or_insert_with(|| {
            let mut fresh = Tensor::empty(wide, Category::Gradients, rows, cols);
            let (numbers, room) = (local[0] * local[1], rows * cols);
            if room > numbers {
                let beyond = fresh.view_mut().reshape(1, room).take_cols(numbers, room - numbers);
                wide.fill(beyond, Wide::<D>::ZERO);
            }
            fresh
        });
        kernel(&device, matrix_mut(gradient.view_mut(), local), write);
    }
    /// Sums the addends of the gradient along every axis that has some. No contribution is a zero contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn sync(&mut self) -> Result<()> {
        Keeper::default().finish(&mut [self])
    }
    /// From now on these ranks, of other stages, hold all of it, too: each of them has this parameter, and a partial sum of
    /// its gradient.
    pub fn held_with(&mut self, group: &Group<D::Place>) {
        self.twins = Some(group.named(self.name.clone()));
    }
    /// Whether its numbers count on this rank: what several hold (ranks of other stages, or of other blocks of shards) counts
    /// on the first of them.
    fn counts(&self) -> bool {
        let peers = self.shards.as_ref().map(|shards| &shards.peers);
        self.twins.iter().chain(peers).all(|holders| holders.rank() == 0)
    }
    /// The axes along which ranks have other numbers of it that count.
    pub(crate) fn different(&self) -> Axes {
        let shards = self.shards.as_ref().map_or(Axes::default(), |_| self.placement.summed());
        self.placement.different() | shards
    }
    /// Whether the whole gradient holds something that is not summed.
    pub(crate) fn is_written(&self) -> bool {
        self.written
    }
    /// What comes before a whole gradient is summed: no contribution becomes a zero contribution, and parts that
    /// several ranks hold are summed over their holders.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn begin_sum(&mut self) -> Result<()> {
        if !self.written {
            self.accumulate(|device, gradient, _| device.wide().fill(gradient, Wide::<D>::ZERO));
        }
        let local = self.local();
        for (replica, holders) in &self.replicas {
            sum_part(self.gradient.whole.as_mut().expect("taken above"), local, replica.part, holders)?;
        }
        Ok(())
    }
    /// Takes a gradient that was summed; where it is cut into shards, this rank's is added to what rests of it.
    pub(crate) fn give(&mut self, whole: Tensor<D::Wide>) {
        let Some(shards) = &self.shards else {
            self.gradient.whole = Some(whole);
            return;
        };
        let (device, own) = (whole.device(), whole.view().take_rows(shards.group.rank(), 1));
        let fresh = || Tensor::empty(device, Category::Gradients, 1, own.cols());
        let shard = self.gradient.shard.get_or_insert_with(fresh).view_mut();
        if self.begun {
            device.add(shard, own)
        } else {
            device.copy(shard, own)
        }
        (self.begun, self.written) = (true, false);
    }
    /// What comes before shards of a gradient are used: no contribution becomes a zero contribution.
    pub(crate) fn close(&mut self) {
        let Some(shards) = self.shards.as_ref().filter(|_| !self.begun) else { return };
        let device = self.device().wide();
        self.gradient.shard = Some(filled(device, Category::Gradients, [1, shards.len], Wide::<D>::ZERO));
        self.begun = true;
    }
    /// The whole value in the making: this rank's shard of it in its place. None if it is here, or rests whole.
    pub(crate) fn unfold(&mut self) -> Option<Tensor<D>> {
        let (shards, shard) = (self.shards.as_ref()?, self.value.shard.as_ref()?);
        if self.value.whole.is_some() {
            return None;
        }
        let [ranks, len] = self.room();
        let mut whole = Tensor::empty(shard.device(), Category::Weights, ranks, len);
        shard.device().copy(whole.view_mut().take_rows(shards.group.rank(), 1), shard.view());
        self.stale = true;
        Some(whole)
    }
    /// The whole value, if only this rank's shard of it is the last step's.
    pub(crate) fn lend_stale(&mut self) -> Option<Tensor<D>> {
        self.value.whole.take_if(|_| self.stale)
    }
    /// Whether its whole value is being gathered.
    pub(crate) fn is_lent(&self) -> bool {
        self.stale && self.value.whole.is_none()
    }
    /// Takes the whole value.
    pub(crate) fn unfolded(&mut self, whole: Tensor<D>) {
        (self.value.whole, self.stale) = (Some(whole), false);
    }
    /// Lets go of the whole value, where it rests as a shard.
    pub(crate) fn fold(&mut self) {
        self.value.whole.take_if(|_| self.value.shard.is_some());
    }
    /// When the sum over ranks of the same stage is there: that over ranks of other stages.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn end_sum(&mut self) -> Result<()> {
        match (&self.twins, self.gradient.rest_mut()) {
            (Some(twins), Some(gradient)) => Ok(twins.all_reduce(gradient, Reduce::Sum)?),
            _ => Ok(()),
        }
    }
    /// Adds the squares of the synced gradient's numbers to `sum[1, 1]`, those that several ranks hold on the first
    /// of them only: over all ranks that have other numbers, each counts once.
    pub(crate) fn add_norm2(&self, sum: &mut Tensor<D::Wide>) {
        if !self.counts() {
            return;
        }
        let (gradient, device) = (self.gradient.rest().expect("a synced gradient"), self.device().wide());
        let Some(dim) = self.replicas.first().map(|(replica, _)| replica.part.dim) else {
            return device.add_norm2(sum.view_mut(), gradient.view());
        };
        let others =
            self.replicas.iter().filter(|(replica, _)| !replica.first).map(|(replica, _)| replica.part);
        for (begin, numbers) in rectangles(gradient.view(), self.at_rest().1, self.local()) {
            let (begin, len) = (begin[dim], [numbers.rows(), numbers.cols()][dim]);
            let (mut from, end) = (begin, begin + len);
            for other in others.clone().chain([Part { dim, start: end, len: 0 }]) {
                let to = other.start.clamp(from, end);
                let own = Part { dim, start: from - begin, len: to - from };
                device.add_norm2(sum.view_mut(), own.of(numbers));
                from = (other.start + other.len).clamp(to, end);
            }
        }
    }
    /// Lets an optimizer change the value by the synced gradient, as it rests, some rows at a time (some numbers of a
    /// shard), and ends the step: the next contribution to the gradient is a first one. With a sum the gradient's squares
    /// are added to it, as [`add_norm2`](Self::add_norm2) does, but where rows are only this rank's, just before they are
    /// used: memory is read once for both.
    pub(crate) fn update(
        &mut self,
        mut sum: Option<&mut Tensor<D::Wide>>,
        mut kernel: impl FnMut(&D, Part, (ViewMut<D>, Option<ViewMut<D::Wide>>), View<D::Wide>),
    ) {
        if (!self.replicas.is_empty() || !self.counts())
            && let Some(sum) = sum.take()
        {
            self.add_norm2(sum);
        }
        let (device, dim) = (self.device().clone(), usize::from(self.shards.is_some()));
        let gradient = self.gradient.rest().expect("a synced gradient").view();
        let Resting { whole, shard } = &mut self.value;
        let mut value = match (&self.shards, shard) {
            (_, Some(shard)) => {
                *whole = None;
                shard.view_mut()
            }
            (Some(shards), None) => {
                self.stale = true;
                whole.as_mut().expect("it rests whole").view_mut().take_rows(shards.group.rank(), 1)
            }
            (None, None) => whole.as_mut().expect("it rests whole").view_mut(),
        };
        let [n, together] = [gradient.rows(), gradient.cols()].map(|x| x.max(1));
        let [n, together] =
            if dim == 0 { [n, (D::TOGETHER / together).max(1)] } else { [together, D::TOGETHER] };
        for start in (0..n).step_by(together) {
            let part = Part { dim, start, len: together.min(n - start) };
            let gradient = part.of(gradient);
            if let Some(sum) = &mut sum {
                device.wide().add_norm2(sum.view_mut(), gradient);
            }
            let master = self.master.as_mut().map(|x| part.of_mut(x.view_mut()));
            kernel(&device, part, (part.of_mut(value.again()), master), gradient);
        }
        (self.written, self.begun) = (false, false);
    }
}

/// Sums a part of a gradient, the matrix of this shape, over the ranks that hold the same part of the value.
fn sum_part<D: Kernels>(
    gradient: &mut Tensor<D>,
    local: [usize; 2],
    part: Part,
    holders: &Group<D::Place>,
) -> Result<()> {
    let device = gradient.device().clone();
    let held = part.of(matrix(gradient.view(), local));
    let mut sum = Tensor::empty(&device, Category::Buffers, held.rows(), held.cols());
    device.copy(sum.view_mut(), held);
    holders.all_reduce(&mut sum, Reduce::Sum)?;
    device.copy(part.of_mut(matrix_mut(gradient.view_mut(), local)), sum.view());
    Ok(())
}

#[cfg(test)]
mod tests;
