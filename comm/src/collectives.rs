//! The collectives: what all ranks of a group do together.
//!
//! Everything that does not depend on how bytes travel is here: arguments are checked before anyone waits, results are
//! allocated, traffic is counted. So a ghost is metered exactly as a rank that has peers.
use crate::{Call, CommError, Counts, Elem, Group, Op, Reduce, Result, Windows};
use tensor::{Category, Device, Place, Tensor, count};

impl<P: Place> Group<P> {
    /// Puts the reduction over all ranks into every rank's `data[R,C]`: the same bits on all. Addends are
    /// taken in rank order.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn all_reduce<D: Device<Place = P>>(&self, data: &mut Tensor<D>, reduce: Reduce) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        self.together(&self.reducing::<D>(data.shape(), reduce), None, Some(data))
    }
    /// `mine[R,C]` of every rank, below each other in rank order: `[ranks·R, C]`, a buffer, the same on all ranks. In a
    /// group of one, another owner of `mine`.
    ///
    /// # Errors
    /// Those of every call.
    #[track_caller]
    pub fn all_gather<D: Device<Place = P>>(&self, mine: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(mine, self.gathering(mine, None)?)
    }
    /// `mine[rows[rank],C]` of every rank, below each other in rank order: `[Σ rows, C]`, a buffer, equal on all ranks.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if these are not as many as ranks, or this rank's is not `mine`'s, and those of every
    /// call.
    #[track_caller]
    pub fn all_gather_v<D: Device<Place = P>>(&self, mine: &Tensor<D>, rows: &[usize]) -> Result<Tensor<D>> {
        self.make(mine, self.gathering(mine, Some(rows))?)
    }
    /// `mine[R,C]` of every rank, side by side in rank order, but only the first `n` columns of all: `[R, n]`, a buffer,
    /// the same on all ranks. What is beyond them is padding. In a group of one, another owner of `mine`.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if there are not as many columns, or in a group of one others, and those of every call.
    #[track_caller]
    pub fn all_gather_columns<D: Device<Place = P>>(&self, mine: &Tensor<D>, n: usize) -> Result<Tensor<D>> {
        let [rows, cols] = mine.shape();
        let call =
            Call { counts: Some(Counts::Columns(n)), ..self.call_of::<D>(Op::AllGather, [rows, cols]) };
        let all = cols.saturating_mul(self.size());
        if n > all || self.size() == 1 && n < all {
            let why = format!("{n} columns are not the first of {} ranks' {cols} each", self.size());
            return Err(CommError::bad_counts(&call, why));
        }
        self.make(mine, Making { call, category: Category::Buffers, shape: [rows, n], room: 0 })
    }
    /// This rank's block of rows of the sum over ranks, in rank order, of `data[R,C]`: `[R/ranks, C]`, an activation,
    /// of which every rank holds another. In a group of one, another owner of `data`.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the ranks do not divide the rows, and those of every call.
    #[track_caller]
    pub fn reduce_scatter<D: Device<Place = P>>(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(data, self.scattering(data, None)?)
    }
    /// This rank's block of rows of the sum over ranks, in rank order, of `data[R,C]`, where rank `i` gets `counts[i]` rows:
    /// `[counts[rank], C]`, an activation.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if these are not as many as ranks or do not add up to R, and those of every call.
    #[track_caller]
    pub fn reduce_scatter_v<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        counts: &[usize],
    ) -> Result<Tensor<D>> {
        self.make(data, self.scattering(data, Some(counts))?)
    }
    /// Puts the `data[R,C]` of rank `root` of the group into every rank's.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group has no such rank, and those of every call.
    #[track_caller]
    pub fn broadcast<D: Device<Place = P>>(&self, data: &mut Tensor<D>, root: usize) -> Result<()> {
        let call = self.call_with::<D>(Op::Broadcast, data.shape(), root)?;
        if self.size() == 1 { Ok(()) } else { self.together(&call, None, Some(data)) }
    }
    /// `mine[R,C]` of every rank, below each other in rank order, on rank `root` of the group: `[ranks·R, C]`, a buffer.
    /// Nothing on the others.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group has no such rank, and those of every call.
    #[track_caller]
    pub fn gather<D: Device<Place = P>>(&self, mine: &Tensor<D>, root: usize) -> Result<Option<Tensor<D>>> {
        let call = self.call_with::<D>(Op::Gather, mine.shape(), root)?;
        if self.size() == 1 {
            return Ok(Some(mine.clone()));
        }
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
    /// [`CommError::BadArgument`] if the group has no such rank, [`CommError::BadCounts`] if the root has no data or data
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
        let call = self.call_with::<D>(Op::Scatter, [rows, cols], root)?;
        let [given, wanted] =
            [data.map(Tensor::shape), (self.rank == root).then_some([rows * self.size(), cols])];
        if given != wanted {
            let size =
                |shape: Option<[usize; 2]>| shape.map_or("nothing".into(), |[r, c]| format!("{r}x{c}"));
            let why = format!("rank {} brings {}, not {}", self.rank, size(given), size(wanted));
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
    /// [`CommError::BadArgument`] if the ranks do not divide the rows, and those of every call.
    #[track_caller]
    pub fn all_to_all<D: Device<Place = P>>(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(data, self.exchanging(data, None)?)
    }
    /// `give[i]` rows of `data[R,C]` go to rank `i`, `take[i]` come from it: `[Σ take, C]`, an activation, in rank order. What one
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
        self.make(data, self.exchanging(data, Some([give, take]))?)
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

/// A call whose result is another tensor: of this shape, in this category, with room for so many rows.
pub(crate) struct Making {
    pub(crate) call: Call,
    pub(crate) category: Category,
    pub(crate) shape: [usize; 2],
    pub(crate) room: usize,
}

/// What calls at once and started ones share.
impl<P: Place> Group<P> {
    /// An all-reduce of tensors of this shape.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn reducing<D: Device>(&self, shape: [usize; 2], reduce: Reduce) -> Call {
        let mut call = self.call_of::<D>(Op::AllReduce, shape);
        call.reduce = Some(reduce); // in place: a call is large
        call
    }
    /// An all-gather, of which this is the rank's block; of blocks of so many rows, if they differ.
    #[track_caller]
    pub(crate) fn gathering<D: Device>(&self, mine: &Tensor<D>, counts: Option<&[usize]>) -> Result<Making> {
        let list = counts.map(|counts| Counts::Of(self.record.list(counts)));
        let call = Call { counts: list, ..self.call_of::<D>(Op::AllGather, mine.shape()) };
        let rows = match counts {
            None => self.rows_of_all(mine.rows()),
            Some(counts) => self.total(counts, &call)?,
        };
        if let Some(own) = counts.map(|counts| counts[self.rank]).filter(|&own| own != mine.rows()) {
            let why = format!("rank {} has {} rows, not {own}", self.rank, mine.rows());
            return Err(CommError::bad_counts(&call, why));
        }
        Ok(Making { call, category: Category::Buffers, shape: [rows, mine.cols()], room: 0 })
    }
    /// A reduce-scatter of a tensor; in blocks of so many rows, if they differ.
    #[track_caller]
    pub(crate) fn scattering<D: Device>(&self, data: &Tensor<D>, counts: Option<&[usize]>) -> Result<Making> {
        let (reduce, list) = (Some(Reduce::Sum), counts.map(|counts| Counts::Of(self.record.list(counts))));
        let call = Call { reduce, counts: list, ..self.call_of::<D>(Op::ReduceScatter, data.shape()) };
        let rows = match counts {
            None => self.divides(data.rows())?,
            Some(counts) => self.adds_up(counts, &call).map(|()| counts[self.rank])?,
        };
        Ok(Making { call, category: Category::Activations, shape: [rows, data.cols()], room: 0 })
    }
    /// An all-to-all of a tensor; of blocks that are given and taken in so many rows, if they differ.
    #[track_caller]
    pub(crate) fn exchanging<D: Device>(
        &self,
        data: &Tensor<D>,
        counts: Option<[&[usize]; 2]>,
    ) -> Result<Making> {
        let list = counts.map(|counts| counts.map(|counts| self.record.list(counts)));
        let list = list.map(|[give, take]| Counts::Between(give, take));
        let call = Call { counts: list, ..self.call_of::<D>(Op::AllToAll, data.shape()) };
        let Some([give, take]) = counts else {
            self.divides(data.rows())?;
            return Ok(Making { call, category: Category::Activations, shape: data.shape(), room: 0 });
        };
        self.adds_up(give, &call)?;
        let rows = self.total(take, &call)?;
        let [given, taken] = [give, take].map(|counts| counts[self.rank]);
        if given != taken {
            let why = format!("rank {} gives itself {given} rows and takes {taken}", self.rank);
            return Err(CommError::bad_counts(&call, why));
        }
        Ok(Making { call, category: Category::Activations, shape: [rows, data.cols()], room: 0 })
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
        let Making { call, category, shape: [rows, cols], .. } = making;
        let mut out = Tensor::empty(given.device(), category, rows, cols);
        self.together(&call, Some(given), Some(&mut out))?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
