//! A parameter as a whole matrix again: put together from all ranks, or seen from one of them, however it rests.
use super::origin::Origin;
use super::{Param, Wide};
use crate::{Draw, Result};
use comm::Mesh;
use kernels::Kernels;
use tensor::{Device, Scalar, Tensor};

impl<D: Kernels> Param<D> {
    /// The whole matrix on the host, put together from what rests of it on all ranks; `None` without values.
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
            _ => self.sharding.cuts.gather(mesh, &rest.clone().reshaped(rows, cols)),
        }
    }
    /// The whole value on the host, the same on every rank; `None` without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<D::Elem>>> {
        match &self.value.shard {
            Some(shard) => self.gather_at_rest(mesh, shard),
            None => self.sharding.cuts.gather(mesh, &self.value()),
        }
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
        self.gather_at_rest(mesh, master)
    }
    /// The whole gradient on the host, the same on every rank of what it was synced over; `None` without values
    /// or before the first contribution.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn gather_gradient(&self, mesh: &Mesh<D::Place>) -> Result<Option<Vec<Wide<D>>>> {
        self.gradient.rest().map_or(Ok(None), |gradient| self.gather_at_rest(mesh, gradient))
    }
    /// This rank's elements, each with where it lies in the whole, row-major; of a value that rests as shards, those of
    /// its own. Nothing without values.
    pub fn elements(&self) -> Vec<(usize, D::Elem)> {
        self.placed(self.value.rest()).0
    }
    /// This rank's elements of the gradient, as it rests, each with where it lies in the whole; nothing before the first
    /// contribution.
    pub fn gradient_elements(&self) -> Vec<(usize, Wide<D>)> {
        self.placed(self.gradient.rest()).0
    }
    /// This rank's numbers of the gradient that lie beyond the whole: padding, which no gradient reaches.
    pub fn gradient_padding(&self) -> Vec<Wide<D>> {
        self.placed(self.gradient.rest()).1
    }
    /// The numbers of a tensor, each with where it lies in the whole; and those that are padding.
    fn placed<E: Device>(&self, rest: Option<&Tensor<E>>) -> (Vec<(usize, E::Elem)>, Vec<E::Elem>) {
        let mut both = (Vec::new(), Vec::new());
        let from =
            rest.map_or(
                0,
                |rest| if rest.shape() == self.sharding.room() { 0 } else { self.sharding.at_rest().1 },
            );
        let all = rest.and_then(Tensor::read).unwrap_or_default();
        let mut numbers = all.iter().copied();
        for (index, len) in self.sharding.cuts.runs(from..from + all.len()) {
            let some = numbers.by_ref().take(len);
            match index {
                Some([row, column]) => both.0.extend((row * self.shape[1] + column..).zip(some)),
                None => both.1.extend(some),
            }
        }
        both
    }
    /// Adds other values, by global index, to the value: a proof's fresh randomness between two steps.
    ///
    /// # Errors
    /// If there are no such values.
    pub fn disturb<'a>(&mut self, at: impl Into<Origin<'a, D>>, draw: Draw) -> Result<()> {
        assert!(self.master.is_none(), "the numbers of proofs are their own wide numbers");
        let values = at.into().values.of(&self.name, self.shape, draw)?;
        let from = if self.value.shard.is_some() { self.sharding.at_rest().1 } else { 0 };
        let value = self.value.rest_mut().expect("all of it, or a shard");
        let before = value.read().unwrap_or_default();
        let noise = values.map(|_, wide| D::Elem::narrow(wide));
        value.write_together(&mut |first, to| {
            self.sharding.cuts.fill(from + first, to, &noise);
            to.iter_mut().zip(&before[first..]).for_each(|(to, &x)| *to = x + *to);
        });
        Ok(())
    }
}
