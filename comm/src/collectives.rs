//! Collectives: calls that all ranks of a group make together.
//!
//! Everything that does not depend on how bytes travel is here: arguments are checked before any rank waits,
//! results are allocated, traffic is counted. So a ghost is metered exactly like a rank with peers.
use crate::{Call, CommError, Counts, Elem, Group, Op, Reduce, Result, Windows};
use tensor::{Category, Device, Place, Tensor, count};

impl<P: Place> Group<P> {
    /// Replaces every rank's `data[R,C]` with the reduction over all ranks: the same bits on all. Addends are
    /// taken in rank order.
    ///
    /// ```
    /// use comm::{Axis, CommError, Reduce, World};
    /// use tensor::{Category, Cpu, Tensor};
    ///
    /// let sums = World::threads(&[(Axis::Tp, 3)])?.run(|device: Cpu<f32>, mesh| {
    ///     let group = mesh.group(Axis::Tp).named("a sum of ranks");
    ///     let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| group.rank() as f32);
    ///     group.all_reduce(&mut x, Reduce::Sum)?;
    ///     Ok::<_, CommError>(x.read().expect("the host has values")[0])
    /// })?;
    /// assert_eq!(sums, [3.0, 3.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Group`].
    #[track_caller]
    pub fn all_reduce<D: Device<Place = P>>(&self, data: &mut Tensor<D>, reduce: Reduce) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        self.together(&self.reducing::<D>(data.shape(), reduce), None, Some(data))
    }
    /// Returns `mine[R,C]` of all ranks, stacked in rank order: `[ranks·R, C]`, a buffer, the same on all
    /// ranks. In a group of one, returns another owner of `mine`.
    ///
    /// # Errors
    /// See [`Group`].
    #[track_caller]
    pub fn all_gather<D: Device<Place = P>>(&self, mine: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(mine, self.gathering(mine, None)?)
    }
    /// Returns `mine[rows[rank],C]` of all ranks, stacked in rank order: `[Σ rows, C]`, a buffer, the same on
    /// all ranks.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if `rows` does not have one count per rank, or this rank's count is not the
    /// rows of `mine`; and those of every call.
    #[track_caller]
    pub fn all_gather_v<D: Device<Place = P>>(&self, mine: &Tensor<D>, rows: &[usize]) -> Result<Tensor<D>> {
        self.make(mine, self.gathering(mine, Some(rows))?)
    }
    /// Returns the first `n` columns of `mine[R,C]` of all ranks, side by side in rank order: `[R, n]`, a
    /// buffer, the same on all ranks. Columns beyond `n` are padding. In a group of one, returns another
    /// owner of `mine`.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if all ranks together have fewer than `n` columns, or a group of one does not
    /// have exactly `n`; and those of every call.
    #[track_caller]
    pub fn all_gather_columns<D: Device<Place = P>>(&self, mine: &Tensor<D>, n: usize) -> Result<Tensor<D>> {
        let [rows, cols] = mine.shape();
        let call =
            Call { counts: Some(Counts::Columns(n)), ..self.call_of::<D>(Op::AllGather, [rows, cols]) };
        let total = cols.saturating_mul(self.size());
        if n > total || self.size() == 1 && n < total {
            let why = format!("{n} columns are wanted, but {} ranks have {cols} each", self.size());
            return Err(CommError::bad_counts(&call, why));
        }
        self.make(mine, NewTensorCall { call, category: Category::Buffers, shape: [rows, n], room: 0 })
    }
    /// Sums `data[R,C]` over ranks, in rank order, and returns this rank's block of rows: `[R/ranks, C]`, an
    /// activation. In a group of one, returns another owner of `data`.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the number of ranks does not divide R, and those of every call.
    #[track_caller]
    pub fn reduce_scatter<D: Device<Place = P>>(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(data, self.scattering(data, None)?)
    }
    /// Sums `data[R,C]` over ranks, in rank order, and returns this rank's block of rows, where rank `i` gets
    /// `counts[i]` rows: `[counts[rank], C]`, an activation.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if `counts` does not have one count per rank, or does not add up to R; and
    /// those of every call.
    #[track_caller]
    pub fn reduce_scatter_v<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        counts: &[usize],
    ) -> Result<Tensor<D>> {
        self.make(data, self.scattering(data, Some(counts))?)
    }
    /// Copies `data[R,C]` of rank `root` of the group to every rank's `data`.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group has no such rank, and those of every call.
    #[track_caller]
    pub fn broadcast<D: Device<Place = P>>(&self, data: &mut Tensor<D>, root: usize) -> Result<()> {
        let call = self.call_with::<D>(Op::Broadcast, data.shape(), root)?;
        if self.size() == 1 { Ok(()) } else { self.together(&call, None, Some(data)) }
    }
    /// Returns `mine[R,C]` of all ranks, stacked in rank order, on rank `root` of the group: `[ranks·R, C]`,
    /// a buffer. Returns `None` on the other ranks.
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
    /// Returns this rank's block `[rows, cols]` of `data[ranks·rows, cols]`, an activation on `device`. Only
    /// rank `root` of the group passes `data`.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the group has no such rank, [`CommError::BadCounts`] if the root has no
    /// data or data of another shape, or another rank has data; and those of every call.
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
            let why = format!("rank {} passes {}, but must pass {}", self.rank, size(given), size(wanted));
            return Err(CommError::bad_counts(&call, why));
        }
        if let (1, Some(data)) = (self.size(), data) {
            return Ok(data.clone());
        }
        let mut out = Tensor::empty(device, Category::Activations, rows, cols);
        self.together(&call, data, Some(&mut out))?;
        Ok(out)
    }
    /// Sends block `i` of the rows of `data[R,C]` to rank `i`, and returns the blocks received, stacked in
    /// rank order: `[R,C]`, an activation. In a group of one, returns another owner of `data`.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the number of ranks does not divide R, and those of every call.
    #[track_caller]
    pub fn all_to_all<D: Device<Place = P>>(&self, data: &Tensor<D>) -> Result<Tensor<D>> {
        self.make(data, self.exchanging(data, None)?)
    }
    /// Sends `give[i]` rows of `data[R,C]` to rank `i`, and receives `take[i]` rows from it. Returns the rows
    /// received, stacked in rank order: `[Σ take, C]`, an activation. One rank must give another as many rows
    /// as the other takes.
    ///
    /// # Errors
    /// [`CommError::BadCounts`] if `give` or `take` does not have one count per rank, `give` does not add up
    /// to R, or this rank gives itself another number of rows than it takes; [`CommError::Mismatch`], on both
    /// ranks, if one does not give the number that the other takes; and those of every call.
    #[track_caller]
    pub fn all_to_all_v<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        give: &[usize],
        take: &[usize],
    ) -> Result<Tensor<D>> {
        self.make(data, self.exchanging(data, Some([give, take]))?)
    }
    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// See [`Group`].
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

/// A call whose result is a new tensor: its category, its shape, and the rows that it has room for.
pub(crate) struct NewTensorCall {
    pub(crate) call: Call,
    pub(crate) category: Category,
    pub(crate) shape: [usize; 2],
    pub(crate) room: usize,
}

/// Calls of the blocking and the started collectives.
impl<P: Place> Group<P> {
    /// Makes the call of an all-reduce of a tensor of this shape.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn reducing<D: Device>(&self, shape: [usize; 2], reduce: Reduce) -> Call {
        let mut call = self.call_of::<D>(Op::AllReduce, shape);
        call.reduce = Some(reduce); // in place, because a call is large
        call
    }
    /// Makes the call of an all-gather of `mine`; `counts` lists the rows of each rank if they differ.
    #[track_caller]
    pub(crate) fn gathering<D: Device>(
        &self,
        mine: &Tensor<D>,
        counts: Option<&[usize]>,
    ) -> Result<NewTensorCall> {
        let list = counts.map(|counts| Counts::Of(self.record.list(counts)));
        let call = Call { counts: list, ..self.call_of::<D>(Op::AllGather, mine.shape()) };
        let rows = match counts {
            None => self.rows_of_all(mine.rows()),
            Some(counts) => self.total(counts, &call)?,
        };
        if let Some(own) = counts.map(|counts| counts[self.rank]).filter(|&own| own != mine.rows()) {
            let why = format!("rank {} has {} rows, but its count is {own}", self.rank, mine.rows());
            return Err(CommError::bad_counts(&call, why));
        }
        Ok(NewTensorCall { call, category: Category::Buffers, shape: [rows, mine.cols()], room: 0 })
    }
    /// Makes the call of a reduce-scatter of `data`; `counts` lists the rows that each rank gets if they
    /// differ.
    #[track_caller]
    pub(crate) fn scattering<D: Device>(
        &self,
        data: &Tensor<D>,
        counts: Option<&[usize]>,
    ) -> Result<NewTensorCall> {
        let (reduce, list) = (Some(Reduce::Sum), counts.map(|counts| Counts::Of(self.record.list(counts))));
        let call = Call { reduce, counts: list, ..self.call_of::<D>(Op::ReduceScatter, data.shape()) };
        let rows = match counts {
            None => self.divides(data.rows())?,
            Some(counts) => self.adds_up(counts, &call).map(|()| counts[self.rank])?,
        };
        Ok(NewTensorCall { call, category: Category::Activations, shape: [rows, data.cols()], room: 0 })
    }
    /// Makes the call of an all-to-all of `data`; `counts` lists the rows given and taken if they differ.
    #[track_caller]
    pub(crate) fn exchanging<D: Device>(
        &self,
        data: &Tensor<D>,
        counts: Option<[&[usize]; 2]>,
    ) -> Result<NewTensorCall> {
        let list = counts.map(|counts| counts.map(|counts| self.record.list(counts)));
        let list = list.map(|[give, take]| Counts::Between(give, take));
        let call = Call { counts: list, ..self.call_of::<D>(Op::AllToAll, data.shape()) };
        let Some([give, take]) = counts else {
            self.divides(data.rows())?;
            return Ok(NewTensorCall { call, category: Category::Activations, shape: data.shape(), room: 0 });
        };
        self.adds_up(give, &call)?;
        let rows = self.total(take, &call)?;
        let [given, taken] = [give, take].map(|counts| counts[self.rank]);
        if given != taken {
            let why = format!("rank {} gives itself {given} rows, but takes {taken}", self.rank);
            return Err(CommError::bad_counts(&call, why));
        }
        Ok(NewTensorCall { call, category: Category::Activations, shape: [rows, data.cols()], room: 0 })
    }
    /// Number of rows of all ranks, if each has `rows`.
    fn rows_of_all(&self, rows: usize) -> usize {
        count::product("the rows of all ranks", &[rows, self.size()])
    }
    /// Runs such a call and returns its result.
    fn make<D: Device<Place = P>>(&self, given: &Tensor<D>, making: NewTensorCall) -> Result<Tensor<D>> {
        if self.size() == 1 {
            return Ok(given.clone());
        }
        let NewTensorCall { call, category, shape: [rows, cols], .. } = making;
        let mut out = Tensor::empty(given.device(), category, rows, cols);
        self.together(&call, Some(given), Some(&mut out))?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
