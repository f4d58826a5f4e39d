//! A parameter as a whole matrix: assembled from all ranks, or one rank's elements of it, whole or sharded at
//! rest.
use super::origin::{ParamOrigin, Wide};
use super::placement::CutRectangle;
use super::sharding::TensorLayout;
use super::{Param, residence};
use crate::{Draw, Result};
use comm::Mesh;
use kernels::Kernels;
use tensor::{Category, Device, Scalar, Tensor};

impl<D: Kernels> Param<D> {
    /// Returns the whole matrix on the host, assembled from the parts that all ranks keep at rest; `None` on
    /// the meta device.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn gather_at_rest<E: Kernels<Place = D::Place>>(
        &self,
        mesh: &Mesh<D::Place>,
        rest: &Tensor<E>,
    ) -> Result<Option<Vec<E::Elem>>> {
        let [rows, cols] = self.local();
        match &self.sharding.shards {
            Some(shards) if rest.shape() == [1, shards.len] => {
                let whole = shards.group.named(self.name.clone()).all_gather(rest)?;
                self.sharding.cuts.gather(mesh, &whole.reshaped(rows, cols))
            }
            None if let Some(counts) = self.sharding.rows_at_root() => {
                let whole = self.sharding.sum.named(self.name.clone()).all_gather_v(rest, &counts)?;
                self.sharding.cuts.gather(mesh, &whole)
            }
            _ => self.sharding.cuts.gather(mesh, &rest.clone().reshaped(rows, cols)),
        }
    }
    /// Returns the whole value on the host, the same on every rank; `None` on the meta device.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<D::Elem>>> {
        match self.value.shard() {
            Some(shard) => self.gather_at_rest(mesh, &shard.read()),
            None if self.sharding.is_elsewhere() => {
                let none = Tensor::empty(self.device(), Category::Buffers, 0, self.local()[1]);
                self.gather_at_rest(mesh, &none)
            }
            None if self.sharding.rooted => self.gather_at_rest(mesh, &self.value()),
            None => self.sharding.cuts.gather(mesh, &self.value()),
        }
    }
    /// Returns the whole gradient on the host, the same on every rank that it was synced over; `None` on the
    /// meta device or before the first contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_gradient(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<Wide<D>>>> {
        self.gradient.at.at_rest().map_or(Ok(None), |gradient| self.gather_at_rest(mesh, &gradient))
    }
    /// Returns this rank's elements, each with its row-major index in the whole; of a value that is sharded
    /// at rest, those of its shard, if any. Empty on the meta device.
    pub fn elements(&self) -> Vec<(usize, D::Elem)> {
        self.placed(self.value.at_rest().filter(|_| !self.sharding.is_elsewhere()).as_ref()).0
    }
    /// Returns this rank's elements of the gradient as kept at rest, each with its index in the whole; empty
    /// before the first contribution.
    pub fn gradient_elements(&self) -> Vec<(usize, Wide<D>)> {
        self.placed(self.gradient.at.at_rest().as_ref()).0
    }
    /// Returns this rank's padding of the gradient: elements outside the whole matrix, which no gradient
    /// reaches.
    pub fn gradient_padding(&self) -> Vec<Wide<D>> {
        self.placed(self.gradient.at.at_rest().as_ref()).1
    }
    /// Returns the elements of a tensor, each with its index in the whole, and its padding.
    fn placed<E: Device>(&self, rest: Option<&Tensor<E>>) -> (Vec<(usize, E::Elem)>, Vec<E::Elem>) {
        let numbers = rest.and_then(Tensor::read).unwrap_or_default();
        let is_shard = rest.is_some_and(|rest| rest.shape() != self.sharding.room());
        let TensorLayout { cuts, from, .. } = self.sharding.of_value(is_shard);
        let [rows, cols] = cuts.local;
        let beyond = numbers.iter().copied().skip((rows * cols).saturating_sub(from));
        let (mut inside, mut padding) = (Vec::new(), Vec::new());
        for CutRectangle { from, shape: [rows, len], whole, .. } in cuts.rectangles(from, numbers.len()) {
            for row in 0..rows {
                let some = numbers[from + row * cols..][..len].iter().copied();
                match whole {
                    Some(begin) => inside.extend(((begin[0] + row) * self.shape[1] + begin[1]..).zip(some)),
                    None => padding.extend(some),
                }
            }
        }
        inside.sort_unstable_by_key(|(index, _)| *index);
        padding.extend(beyond);
        (inside, padding)
    }
    /// Adds values by global index to the value: fresh randomness between two steps of a proof.
    ///
    /// # Errors
    /// If the values are missing.
    pub fn disturb<'a>(&mut self, at: impl Into<ParamOrigin<'a, D>>, draw: Draw) -> Result<()> {
        assert!(!self.has_master(), "proofs need a dtype that is its own wide dtype");
        let values = at.into().values.of(&self.name, self.shape, draw)?;
        let noise = self.placement().masked(values).map(|_, wide| D::Elem::narrow(wide));
        if self.sharding.is_elsewhere() {
            return Ok(());
        }
        let from = self.sharding.of_value(self.value.shard().is_some()).from;
        self.load_state();
        let value = self.value.at_rest_mut().expect("the parameter has no value");
        let before = value.read().unwrap_or_default();
        value.write_slices(&mut |first, to| {
            self.sharding.cuts.fill(from + first, to, &noise);
            to.iter_mut().zip(&before[first..]).for_each(|(to, &x)| *to = x + *to);
        });
        residence::wait(self.begin_store_state());
        Ok(())
    }
}
