//! A parameter: this rank's share of a whole matrix, and of its gradient.
pub mod gradient_sums;
pub mod optimizer;
pub mod placement;
pub mod weight;

use crate::model::build::{Builder, Draw};
use crate::param::placement::{Cuts, Placed, Placement, Replica, part};
use crate::{GradientSums, Result};
use comm::{Axis, Group, Mesh, Reduce};
use kernels::{Kernels, Write};
use std::ops::Range;
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
    value: Tensor<D>,
    master: Option<Tensor<D::Wide>>, // of a narrow parameter that learns: its value, not rounded
    gradient: Option<Tensor<D::Wide>>, // taken at the first contribution, so that inference has none
    written: bool,
    pub(crate) summed_in: Option<usize>, // the unit with which the gradient is being summed
}

impl<D: Kernels> Param<D> {
    /// This rank's share of the matrix `name` of this whole shape, with values by global index.
    ///
    /// # Errors
    /// If the ranks do not divide it, or there are no such values.
    pub fn new(
        at: &Builder<D>,
        name: impl Into<Arc<str>>,
        shape: [usize; 2],
        placement: Placement,
        draw: Draw,
    ) -> Result<Self> {
        let name = name.into();
        let cuts = placement.cuts(at.mesh, &name, shape)?;
        let [rows, cols] = cuts.local;
        let values = at.values.of(&name, shape, draw)?;
        let element = |i| cuts.whole_index([i / cols, i % cols]).map_or(Wide::<D>::ZERO, &values);
        let value =
            Tensor::from_fn(at.device, Category::Weights, rows, cols, |i| D::Elem::narrow(element(i)));
        let master = || Tensor::from_fn(at.device.wide(), Category::Optimizer, rows, cols, element);
        let master = (at.learns && D::Elem::NARROW).then(master);
        let held = |replica: Replica| {
            let block = at.mesh.group(replica.axis).blocks(replica.holders)?.named(name.clone());
            Ok((replica, block))
        };
        let replicas = cuts.replicas().into_iter().map(held).collect::<Result<_>>()?;
        Ok(Self {
            name,
            shape,
            placement,
            cuts,
            replicas,
            value,
            master,
            gradient: None,
            written: false,
            summed_in: None,
        })
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
        self.value.shape()
    }
    /// Where its parts lie.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
    /// Whether weight decay applies: to matrices, not to gains.
    pub fn decays(&self) -> bool {
        self.shape[0] > 1
    }
    /// The local value: the one place where it may one day be gathered or fetched first.
    pub(crate) fn value(&self) -> Tensor<D> {
        self.value.clone()
    }
    /// Lets `kernel` write the gradient if it is the first contribution of the step, and add to it if not.
    pub(crate) fn accumulate(&mut self, kernel: impl FnOnce(&D, ViewMut<D::Wide>, Write)) {
        let write = if std::mem::replace(&mut self.written, true) { Write::Add } else { Write::Set };
        let ([rows, cols], device) = (self.local(), self.value.device());
        let gradient = self
            .gradient
            .get_or_insert_with(|| Tensor::empty(device.wide(), Category::Gradients, rows, cols));
        kernel(device, gradient.view_mut(), write);
    }
    /// Sums the addends of the gradient along every axis that has some. No contribution is a zero contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn sync(&mut self, mesh: &Mesh<D::Place>) -> Result<()> {
        GradientSums::default().finish(&mut [self], mesh)
    }
    /// What comes before a gradient is summed along whole axes: no contribution becomes a zero contribution, and parts that
    /// several ranks hold are summed over their holders.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn begin_sum(&mut self) -> Result<()> {
        if !self.written {
            self.accumulate(|device, gradient, _| device.wide().fill(gradient, Wide::<D>::ZERO));
        }
        for (replica, holders) in &self.replicas {
            sum_replica(self.gradient.as_mut().expect("taken above"), replica, holders)?;
        }
        Ok(())
    }
    /// The gradient, if ranks along this axis have addends of it.
    pub(crate) fn lend_gradient(&mut self, axis: Axis) -> Option<Tensor<D::Wide>> {
        self.gradient.take_if(|_| matches!(self.placement.along(axis), Placed::Summed))
    }
    /// Takes the gradient back, if it was lent.
    pub(crate) fn take_back(&mut self, gradient: impl FnOnce() -> Tensor<D::Wide>) {
        let gradient = self.gradient.get_or_insert_with(gradient);
        assert_eq!(gradient.shape(), self.value.shape(), "the gradient of {}", self.name);
    }
    /// Adds the squares of the synced gradient's numbers to `sum[1, 1]`, those that several ranks hold on the first
    /// of them only: over all ranks of the axes that cut it, each number counts once.
    pub(crate) fn add_norm2(&self, sum: &mut Tensor<D::Wide>) {
        let gradient = self.gradient.as_ref().expect("a synced gradient");
        let device = gradient.device();
        let Some(dim) = self.replicas.first().map(|(r, _)| r.dim) else {
            return device.add_norm2(sum.view_mut(), gradient.view());
        };
        let mut from = 0;
        for (replica, _) in self.replicas.iter().filter(|(r, _)| !r.first) {
            device.add_norm2(sum.view_mut(), part(gradient.view(), dim, from, replica.start - from));
            from = replica.start + replica.len;
        }
        device.add_norm2(sum.view_mut(), part(gradient.view(), dim, from, gradient.shape()[dim] - from));
    }
    /// Lets an optimizer change the value by the synced gradient, some rows at a time, and ends the step: the next
    /// contribution to the gradient is a first one. With a sum the gradient's squares are added to it, as
    /// [`add_norm2`](Self::add_norm2) does, but where rows are only this rank's, just before they are used: memory is
    /// read once for both.
    pub(crate) fn update(
        &mut self,
        mut sum: Option<&mut Tensor<D::Wide>>,
        mut kernel: impl FnMut(&D, Range<usize>, (ViewMut<D>, Option<ViewMut<D::Wide>>), View<D::Wide>),
    ) {
        if !self.replicas.is_empty()
            && let Some(sum) = sum.take()
        {
            self.add_norm2(sum);
        }
        let device = self.value.device().clone();
        let gradient = self.gradient.as_ref().expect("a synced gradient").view();
        let [rows, cols] = self.value.shape();
        let together = (D::TOGETHER / cols.max(1)).max(1);
        for rows in (0..rows).step_by(together).map(|from| from..rows.min(from.saturating_add(together))) {
            let value = self.value.view_mut().take_rows(rows.start, rows.len());
            let master = self.master.as_mut().map(|x| x.view_mut().take_rows(rows.start, rows.len()));
            let gradient = gradient.take_rows(rows.start, rows.len());
            if let Some(sum) = &mut sum {
                device.wide().add_norm2(sum.view_mut(), gradient);
            }
            kernel(&device, rows, (value, master), gradient);
        }
        self.written = false;
    }
    /// Adds other values, by global index, to the value: a proof's fresh randomness between two steps.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn disturb(&mut self, at: &Builder<D>, draw: Draw) -> Result<()> {
        assert!(self.master.is_none(), "the numbers of proofs are their own wide numbers");
        let ([rows, cols], cuts) = (self.local(), &self.cuts);
        let values = at.values.of(&self.name, self.shape, draw)?;
        let element = |i| cuts.whole_index([i / cols, i % cols]).map_or(Wide::<D>::ZERO, &values);
        let noise =
            Tensor::from_fn(at.device, Category::Buffers, rows, cols, |i| D::Elem::narrow(element(i)));
        at.device.add(self.value.view_mut(), noise.view());
        Ok(())
    }
    /// How its share was cut out of the whole.
    pub(crate) fn cuts(&self) -> &Cuts {
        &self.cuts
    }
    /// The whole value on the host, the same on every rank; `None` without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<D::Elem>>> {
        self.cuts.gather(mesh, &self.value)
    }
    /// The whole value on the host before it was rounded to a narrow number, the same on every rank: its master's, where it
    /// learns; `None` without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_master(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<Wide<D>>>> {
        let Some(master) = &self.master else {
            let widened = |values: Vec<D::Elem>| values.into_iter().map(Scalar::widen).collect();
            return Ok(self.gather(mesh)?.map(widened));
        };
        self.cuts.gather(mesh, master)
    }
    /// The whole gradient on the host, the same on every rank of what it was synced over; `None` without values
    /// or before the first contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_gradient(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<Wide<D>>>> {
        match &self.gradient {
            None => Ok(None),
            Some(gradient) => self.cuts.gather(mesh, gradient),
        }
    }
    /// This rank's elements, each with where it lies in the whole, row-major; nothing without values.
    pub fn elements(&self) -> Vec<(usize, D::Elem)> {
        self.placed(&self.value)
    }
    /// The same of the gradient; nothing before the first contribution.
    pub fn gradient_elements(&self) -> Vec<(usize, Wide<D>)> {
        self.gradient.as_ref().map_or_else(Vec::new, |gradient| self.placed(gradient))
    }
    /// This rank's numbers of the gradient that lie beyond the whole: padding, which no gradient reaches.
    pub fn gradient_padding(&self) -> Vec<Wide<D>> {
        let (cuts, cols) = (&self.cuts, self.value.cols());
        let values =
            self.gradient.as_ref().and_then(Tensor::read).unwrap_or_default().into_iter().enumerate();
        values.filter(|(i, _)| cuts.whole_index([i / cols, i % cols]).is_none()).map(|(_, x)| x).collect()
    }
    fn placed<E: Device>(&self, share: &Tensor<E>) -> Vec<(usize, E::Elem)> {
        let (cuts, cols) = (&self.cuts, share.cols());
        let values = share.read().unwrap_or_default().into_iter().enumerate();
        let place = |(i, x)| {
            let [row, column] = cuts.whole_index([i / cols, i % cols])?;
            Some((row * self.shape[1] + column, x))
        };
        values.filter_map(place).collect()
    }
}

/// Sums a part of a gradient over the ranks that hold the same part of the value.
fn sum_replica<D: Kernels>(
    gradient: &mut Tensor<D>,
    replica: &Replica,
    holders: &Group<D::Place>,
) -> Result<()> {
    let [rows, cols] = gradient.shape();
    let [rows, cols] = if replica.dim == 0 { [replica.len, cols] } else { [rows, replica.len] };
    let mut part = Tensor::empty(gradient.device(), Category::Buffers, rows, cols);
    let device = gradient.device().clone();
    device.copy(part.view_mut(), replica.of(gradient.view()));
    holders.all_reduce(&mut part, Reduce::Sum)?;
    device.copy(replica.of_mut(gradient.view_mut()), part.view());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::placement::{Pieces, Section};
    use crate::{Cx, Embedding, Error, Head, Kind, Layer, Objective, Optimizer, Random, Shape};
    use comm::{Axis, Op, World};
    use tensor::{Cpu, Ids};

    /// A matrix of 13 rows of 5 numbers over 4 ranks: 4 rows on each, 80 bytes, of which the last rank's are padding but
    /// for one. Values, gradients and each of two moments take as much; to put them together takes 4·80 bytes, and then,
    /// when these are gone, 13·5·4 = 260.
    fn padded_bytes<D: Kernels<Elem = f32, Wide = D> + Default>(mesh: &Mesh<D::Place>) -> Result<()> {
        let (device, values) = (D::default(), Random { seed: 1 });
        let at = Builder::new(&device, mesh, &values);
        let sections = vec![Section { size: 13, pieces: Pieces::Padded }];
        let placement = Placement::default().on(Axis::Tp, Placed::Split { dim: 0, sections });
        let mut param = Param::new(&at, "w", [13, 5], placement, Draw { mean: 0.0, std: 1.0 })?;
        param.accumulate(|device, gradient, _| device.wide().fill(gradient, 0.5));
        Optimizer::new(Kind::ADAMW, None).step(&mut [&mut param], mesh, 1.0)?;
        let buffers = || device.meter().peaks_of_all().category[Category::Buffers as usize];
        assert_eq!(buffers(), 4 + 4, "the norm and the factor of clipping");
        let before = mesh.ledger();
        param.gather(mesh)?;
        let said = (mesh.ledger() - &before).get(Axis::Tp, Op::AllGather);
        assert_eq!((buffers(), said.payload, said.bytes), (320, 80, 240));
        assert_eq!(device.meter().peaks_of_all().category[..3], [80, 80, 160]);
        Ok(())
    }

    /// Kills: a share of which only what is no padding has room, moments of the whole, padding left out of what is sent.
    #[test]
    fn padded_parameters_take_the_bytes_that_are_worked_out_by_hand() {
        let sizes = [(Axis::Tp, 4)];
        World::threads(&sizes).unwrap().run(|_: Cpu<f32>, mesh| padded_bytes::<Cpu<f32>>(&mesh)).unwrap();
        for rank in 0..4 {
            padded_bytes::<kernels::Meta<Cpu<f32>>>(&Mesh::ghost(&sizes, rank).unwrap()).unwrap();
        }
    }

    /// Of 12 columns, two ranks each hold 2 of the last 4, with an addend of one half: summed, these are 1. So the norm² is
    /// 8·0.25 + 4·1 = 6, on every rank. Kills: a replica's numbers counted once for each holder, or not at all.
    #[test]
    fn numbers_that_several_ranks_hold_count_once_in_the_norm() {
        let sections = vec![8.into(), Section { size: 4, pieces: Pieces::Shared(2) }];
        let placement = Placement::default().on(Axis::Tp, Placed::Split { dim: 1, sections });
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let at = Builder::new(&device, &mesh, &Random { seed: 1 });
            let draw = Draw { mean: 0.0, std: 1.0 };
            for clip in [None, Some(100.0)] {
                let mut param = Param::new(&at, "w", [1, 12], placement.clone(), draw)?;
                param.accumulate(|device, gradient, _| device.wide().fill(gradient, 0.5));
                param.sync(&mesh)?;
                let norm2 = Optimizer::new(Kind::Sgd, clip).step(&mut [&mut param], &mesh, 1.0)?;
                assert_eq!(norm2.read().unwrap(), [6.0]);
            }
            Ok::<_, Error>(())
        };
        World::threads(&[(Axis::Tp, 4)]).unwrap().run(run).unwrap();
    }

    /// Numbers of a rank's padding, each with its gradient.
    fn padding(param: &Param<Cpu<f32>>) -> Vec<[f32; 2]> {
        let (cols, value) = (param.local()[1], param.value.read().unwrap());
        let both = value.into_iter().zip(param.gradient.as_ref().unwrap().read().unwrap());
        let beyond = |(i, _): &(usize, _)| param.cuts.whole_index([i / cols, i % cols]).is_none();
        both.enumerate().filter(beyond).map(|(_, (value, gradient))| [value, gradient]).collect()
    }

    /// A vocabulary of 13 over 4 ranks, of which the last has one row of 4: its ids come and are targets, its padding is
    /// neither. Kills: padding that a softmax, an id of another rank or decay touches.
    #[test]
    fn padding_has_no_gradient_and_stays_zero_while_its_neighbours_learn() {
        let run = |device: Cpu<f32>, mesh: Mesh<_>, tied| {
            let at = Builder::new(&device, &mesh, &Random { seed: 1 });
            let loss = Objective { smoothing: 0.1, z: 0.01 };
            let shape = Shape { width: 5, vocabulary: 13, tied, loss, ..Shape::LLAMA };
            let mut embedding = Embedding::shard(&at, Axis::Tp, "table", [13, 5], None, None, 0.0)?;
            let mut head = Head::shard(&at, Axis::Tp, &shape)?;
            let (mut optimizer, cx) = (Optimizer::new(Kind::ADAMW, Some(0.5)), Cx::train(0, [4], 4));
            for step in 0..3 {
                let targets = Ids::targets(device.place(), &[12, 1, 3, 12], 13)?;
                let (x, kept) = embedding.forward(&cx, Ids::new(device.place(), &[0, 12, 5, 11], 13)?)?;
                let (_, saved) = head.forward(&cx, tied.then_some(embedding.rows()), x, targets)?;
                let (dx, pending) =
                    head.backward_input(&cx, tied.then_some(embedding.rows()), saved, true)?;
                head.backward_weight(tied.then_some(embedding.table()), pending);
                embedding.backward(&cx, kept, dx.unwrap())?;
                let mut params = Vec::new();
                embedding.params(&mut params);
                head.params(&mut params);
                for param in &mut params {
                    param.sync(&mesh)?;
                }
                optimizer.step(&mut params, &mesh, 0.1)?;
                let beyond: Vec<_> = params.iter().flat_map(|p| padding(p)).collect();
                let tables = if tied { 1 } else { 2 };
                let wanted = if mesh.rank() == 3 { tables * 3 * 5 } else { 0 };
                assert_eq!(beyond, vec![[0.0; 2]; wanted], "rank {}, step {step}", mesh.rank());
                let head = if tied { "table" } else { "head" };
                let head = params.iter().find(|p| &**p.name() == head).unwrap().gradient_elements();
                assert!(!head.is_empty() && head.iter().all(|(_, g)| *g != 0.0), "every id learns");
            }
            Ok::<_, Error>(())
        };
        for tied in [true, false] {
            let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
            world.run(|device, mesh| run(device, mesh, tied)).unwrap();
        }
    }

    /// Kills: the last step's gradient used again, a value that moves without a gradient.
    #[test]
    fn no_contribution_is_a_zero_contribution() {
        let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &Random { seed: 1 });
        let mut param =
            Param::new(&at, "w", [2, 2], Placement::default(), Draw { mean: 0.0, std: 1.0 }).unwrap();
        let mut optimizer = Optimizer::new(Kind::Sgd, None);
        let start = param.gather(&mesh).unwrap().unwrap();
        param.accumulate(|device, gradient, _| device.wide().fill(gradient, 0.5));
        for (step, gradient) in [0.5, 0.0].into_iter().enumerate() {
            param.sync(&mesh).unwrap();
            assert_eq!(param.gather_gradient(&mesh).unwrap().unwrap(), [gradient; 4], "step {step}");
            optimizer.step(&mut [&mut param], &mesh, 1.0).unwrap();
            let moved: Vec<f64> = start.iter().map(|w| w - 0.5).collect();
            assert_eq!(param.gather(&mesh).unwrap().unwrap(), moved, "step {step}");
        }
    }
}
