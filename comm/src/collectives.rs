//! The collectives: what all ranks of a group do together.
//!
//! Everything that does not depend on how bytes travel is here: arguments are checked before anyone waits, results are
//! allocated, traffic is counted. So a ghost is metered exactly as a rank that has peers.
use crate::call::{Call, Counts, Elem, Op, Reduce};
use crate::engine::Windows;
use crate::error::{CommError, Result};
use crate::group::Group;
use kernels::Kernels;
use std::panic::Location;
use std::sync::Arc;
use tensor::{Category, Device, Place, Tensor, count};

impl<P: Place> Group<P> {
    /// Puts the reduction over all ranks into every rank's `data[R,C]`: the same bits on all. Directly, addends are
    /// taken in rank order; [by an algorithm](Group::via), in the algorithm's.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn all_reduce<D: Kernels<Place = P>>(&self, data: &mut Tensor<D>, reduce: Reduce) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let call =
            Call { reduce: Some(reduce), ..self.call(Op::AllReduce, data.shape(), Elem::of::<D::Elem>()) };
        match &self.route {
            None => self.together(&call, None, Some(data)),
            Some(route) => route.all_reduce(self, data, &call),
        }
    }
    /// `mine[R,C]` of every rank, below each other in rank order: `[ranks·R, C]`, a buffer, the same on all ranks. In a
    /// group of one, another owner of `mine`.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn all_gather<D: Device<Place = P>>(&self, mine: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(mine, self.gathering(mine.shape(), None, Elem::of::<D::Elem>())?)
    }
    /// The same of blocks that differ: rank `i` has `counts[i]` rows; `[Σ counts, C]`.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if these are not as many as ranks, or this rank's is not `mine`'s, and those of every
    /// call.
    #[track_caller]
    pub fn all_gather_v<D: Device<Place = P>>(
        &self,
        mine: &Tensor<D>,
        counts: &[usize],
    ) -> Result<Tensor<D>> {
        self.make(mine, self.gathering(mine.shape(), Some(counts.into()), Elem::of::<D::Elem>())?)
    }
    /// `mine[R,C]` of every rank, side by side in rank order, but only the first `n` columns of all: `[R, n]`, a buffer,
    /// the same on all ranks. What is beyond them is padding. In a group of one, another owner of `mine`.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if there are not as many columns, or in a group of one others, and those of every call.
    #[track_caller]
    pub fn all_gather_columns<D: Device<Place = P>>(&self, mine: &Tensor<D>, n: usize) -> Result<Tensor<D>> {
        let [rows, cols] = mine.shape();
        let call = self.call(Op::AllGather, [rows, cols], Elem::of::<D::Elem>());
        let call = Call { counts: Some(Counts::Columns(n)), ..call };
        let all = cols.saturating_mul(self.size());
        if n > all || self.size() == 1 && n < all {
            let why = format!("{n} columns are not the first of {} ranks' {cols} each", self.size());
            return Err(CommError::bad_counts(&call, why));
        }
        if self.size() == 1 {
            return Ok(mine.clone());
        }
        let mut out = Tensor::empty(mine.device(), Category::Buffers, rows, n);
        self.together(&call, Some(mine), Some(&mut out))?;
        Ok(out)
    }
    /// This rank's block of rows of the sum over ranks, in rank order, of `data[R,C]`: `[R/ranks, C]`, an activation,
    /// of which every rank holds another. In a group of one, another owner of `data`.
    ///
    /// # Errors
    /// [`CommError::Indivisible`] rows, and those of every call.
    #[track_caller]
    pub fn reduce_scatter<D: Device<Place = P>>(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(data, self.scattering(data.shape(), None, Elem::of::<D::Elem>())?)
    }
    /// The same in blocks that differ: rank `i` gets `counts[i]` rows.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if these are not as many as ranks or do not add up to R, and those of every call.
    #[track_caller]
    pub fn reduce_scatter_v<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        counts: &[usize],
    ) -> Result<Tensor<D>> {
        self.make(data, self.scattering(data.shape(), Some(counts.into()), Elem::of::<D::Elem>())?)
    }
    /// Puts the `data[R,C]` of rank `root` of the group into every rank's.
    ///
    /// # Errors
    /// [`CommError::WrongPeer`] if the group has no such rank, and those of every call.
    #[track_caller]
    pub fn broadcast<D: Device<Place = P>>(&self, data: &mut Tensor<D>, root: usize) -> Result<()> {
        let peer = self.peer(root, "take a broadcast from", Location::caller())?;
        if self.size() == 1 {
            return Ok(());
        }
        let call =
            Call { peer: Some(peer), root, ..self.call(Op::Broadcast, data.shape(), Elem::of::<D::Elem>()) };
        self.together(&call, None, Some(data))
    }
    /// `mine[R,C]` of every rank, below each other in rank order, on rank `root` of the group: `[ranks·R, C]`, a buffer.
    /// Nothing on the others.
    ///
    /// # Errors
    /// [`CommError::WrongPeer`] if the group has no such rank, and those of every call.
    #[track_caller]
    pub fn gather<D: Device<Place = P>>(&self, mine: &Tensor<D>, root: usize) -> Result<Option<Tensor<D>>> {
        let peer = self.peer(root, "gather on", Location::caller())?;
        if self.size() == 1 {
            return Ok(Some(mine.clone()));
        }
        let call =
            Call { peer: Some(peer), root, ..self.call(Op::Gather, mine.shape(), Elem::of::<D::Elem>()) };
        let room =
            || Tensor::empty(mine.device(), Category::Buffers, self.rows_of_all(mine.rows()), mine.cols());
        let mut out = (self.rank == root).then(room);
        self.together(&call, Some(mine), out.as_mut())?;
        Ok(out)
    }
    /// This rank's block `[rows, cols]` of the `data[ranks·rows, cols]` that rank `root` of the group has, and no other:
    /// an activation on `device`.
    ///
    /// # Errors
    /// [`CommError::WrongPeer`] if the group has no such rank, [`CommError::BadCounts`] if the root has no data or data
    /// of another shape, or another rank has some, and those of every call.
    #[track_caller]
    pub fn scatter<D: Device<Place = P>>(
        &self,
        device: &D,
        data: Option<&Tensor<D>>,
        root: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Tensor<D>> {
        let peer = self.peer(root, "scatter from", Location::caller())?;
        let call =
            Call { peer: Some(peer), root, ..self.call(Op::Scatter, [rows, cols], Elem::of::<D::Elem>()) };
        let wanted = (self.rank == root).then_some([rows * self.size(), cols]);
        let seen = data.map(Tensor::shape);
        if seen != wanted {
            let words =
                |shape: Option<[usize; 2]>| shape.map_or("nothing".into(), |[r, c]| format!("{r}x{c}"));
            let why = format!("rank {} brings {}, not {}", self.rank, words(seen), words(wanted));
            return Err(CommError::bad_counts(&call, why));
        }
        if let (1, Some(data)) = (self.size(), data) {
            return Ok(data.clone());
        }
        let mut out = Tensor::empty(device, Category::Activations, rows, cols);
        self.together(&call, data, Some(&mut out))?;
        Ok(out)
    }
    /// Block `i` of the rows of `data[R,C]` goes to rank `i`; what ranks had for this one, below each other in rank
    /// order: `[R,C]`, an activation. In a group of one, another owner of `data`.
    ///
    /// # Errors
    /// [`CommError::Indivisible`] rows, and those of every call.
    #[track_caller]
    pub fn all_to_all<D: Device<Place = P>>(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(data, self.exchanging(data.shape(), None, Elem::of::<D::Elem>())?)
    }
    /// The same of blocks that differ: `give[i]` rows go to rank `i`, `take[i]` come from it; `[Σ take, C]`. What one
    /// rank gives another is what that takes of it.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if these are not as many as ranks, or `give` does not add up to R, or this rank gives
    /// itself another number than it takes; [`CommError::Mismatch`], on both, if one gives what the other does not take;
    /// and those of every call.
    #[track_caller]
    pub fn all_to_all_v<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        give: &[usize],
        take: &[usize],
    ) -> Result<Tensor<D>> {
        let counts = Some([give.into(), take.into()]);
        self.make(data, self.exchanging(data.shape(), counts, Elem::of::<D::Elem>())?)
    }
    /// Returns on no rank before all have called it.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let call = self.call(Op::Barrier, [0, 0], Elem::of::<f32>());
        // SAFETY: there are no windows.
        self.run(&call, || unsafe { self.engine.now(self.rank, Windows { give: None, take: None }, &call) })
    }
}

/// A call whose result is another tensor: of so many rows, in this category.
pub(crate) struct Making {
    pub(crate) call: Call,
    pub(crate) category: Category,
    pub(crate) rows: usize,
}

/// What calls at once and started ones share.
impl<P: Place> Group<P> {
    /// An all-gather, of which this rank's block has this shape; of blocks of so many rows, if they differ.
    #[track_caller]
    pub(crate) fn gathering(
        &self,
        shape: [usize; 2],
        counts: Option<Arc<[usize]>>,
        elem: Elem,
    ) -> Result<Making> {
        let call = Call { counts: counts.clone().map(Counts::Of), ..self.call(Op::AllGather, shape, elem) };
        let Some(counts) = counts else {
            return Ok(Making { call, category: Category::Buffers, rows: self.rows_of_all(shape[0]) });
        };
        let rows = self.total(&counts, &call)?;
        if counts[self.rank] != shape[0] {
            let why = format!("rank {} has {} rows, not {}", self.rank, shape[0], counts[self.rank]);
            return Err(CommError::bad_counts(&call, why));
        }
        Ok(Making { call, category: Category::Buffers, rows })
    }
    /// A reduce-scatter of a tensor of this shape; in blocks of so many rows, if they differ.
    #[track_caller]
    pub(crate) fn scattering(
        &self,
        shape: [usize; 2],
        counts: Option<Arc<[usize]>>,
        elem: Elem,
    ) -> Result<Making> {
        let call = Call {
            reduce: Some(Reduce::Sum),
            counts: counts.clone().map(Counts::Of),
            ..self.call(Op::ReduceScatter, shape, elem)
        };
        let rows = if let Some(counts) = counts {
            self.adds_up(&counts, &call)?;
            counts[self.rank]
        } else {
            self.divides(shape[0], call.at)?;
            shape[0] / self.size()
        };
        Ok(Making { call, category: Category::Activations, rows })
    }
    /// An all-to-all of a tensor of this shape; of blocks that are given and taken in so many rows, if they differ.
    #[track_caller]
    pub(crate) fn exchanging(
        &self,
        shape: [usize; 2],
        counts: Option<[Arc<[usize]>; 2]>,
        elem: Elem,
    ) -> Result<Making> {
        let call = self.call(Op::AllToAll, shape, elem);
        let Some([give, take]) = counts else {
            self.divides(shape[0], call.at)?;
            return Ok(Making { call, category: Category::Activations, rows: shape[0] });
        };
        let call = Call { counts: Some(Counts::Between(give.clone(), take.clone())), ..call };
        self.adds_up(&give, &call)?;
        let rows = self.total(&take, &call)?;
        if give[self.rank] != take[self.rank] {
            let (given, taken) = (give[self.rank], take[self.rank]);
            let why = format!("rank {} gives itself {given} rows and takes {taken}", self.rank);
            return Err(CommError::bad_counts(&call, why));
        }
        Ok(Making { call, category: Category::Activations, rows })
    }
    /// Rows of all ranks, if each has as many as this one.
    fn rows_of_all(&self, rows: usize) -> usize {
        count::product("the rows of all ranks", &[rows, self.size()])
    }
    /// Makes such a call at once.
    fn make<D: Device<Place = P>>(&self, given: &Tensor<D>, making: Making) -> Result<Tensor<D>> {
        if self.size() == 1 {
            return Ok(given.clone());
        }
        let Making { call, category, rows } = making;
        let mut out = Tensor::empty(given.device(), category, rows, given.cols());
        self.together(&call, Some(given), Some(&mut out))?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
