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
        let call = self.call(Op::AllGather, mine.shape(), Elem::of::<D::Elem>());
        self.gather_all(mine, self.all_rows(mine), &call)
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
        let (call, rows) = self.gather_v(mine.shape(), counts.into(), Elem::of::<D::Elem>())?;
        self.gather_all(mine, rows, &call)
    }
    /// An all-gather of blocks that differ, of which this rank's has this shape, and the rows of the result.
    #[track_caller]
    pub(crate) fn gather_v(
        &self,
        shape: [usize; 2],
        counts: Arc<[usize]>,
        elem: Elem,
    ) -> Result<(Call, usize)> {
        let call = Call { counts: Some(Counts::Of(counts.clone())), ..self.call(Op::AllGather, shape, elem) };
        let rows = self.total(&counts, &call)?;
        if counts[self.rank] != shape[0] {
            let why = format!("rank {} has {} rows, not {}", self.rank, shape[0], counts[self.rank]);
            return Err(CommError::bad_counts(&call, why));
        }
        Ok((call, rows))
    }
    /// Rows of all ranks, if each has as many as this one.
    pub(crate) fn all_rows<D: Device<Place = P>>(&self, mine: &Tensor<D>) -> usize {
        count::product("the rows of all ranks", &[mine.rows(), self.size()])
    }
    fn gather_all<D: Device<Place = P>>(
        &self,
        mine: &Tensor<D>,
        rows: usize,
        call: &Call,
    ) -> Result<Tensor<D>> {
        if self.size() == 1 {
            return Ok(mine.clone());
        }
        let mut out = Tensor::empty(mine.device(), Category::Buffers, rows, mine.cols());
        self.together(call, Some(mine), Some(&mut out))?;
        Ok(out)
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
        let call = Call {
            reduce: Some(Reduce::Sum),
            ..self.call(Op::ReduceScatter, data.shape(), Elem::of::<D::Elem>())
        };
        self.divides(data.rows(), call.at)?;
        self.scatter_sum(data, data.rows() / self.size(), &call)
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
        let call = Call {
            reduce: Some(Reduce::Sum),
            counts: Some(Counts::Of(counts.into())),
            ..self.call(Op::ReduceScatter, data.shape(), Elem::of::<D::Elem>())
        };
        self.adds_up(counts, &call)?;
        self.scatter_sum(data, counts[self.rank], &call)
    }
    fn scatter_sum<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        rows: usize,
        call: &Call,
    ) -> Result<Tensor<D>> {
        if self.size() == 1 {
            return Ok(data.clone());
        }
        let mut out = data.beside(rows, data.cols());
        self.together(call, Some(data), Some(&mut out))?;
        Ok(out)
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
        let room = || Tensor::empty(mine.device(), Category::Buffers, self.all_rows(mine), mine.cols());
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
        let call = self.call(Op::AllToAll, data.shape(), Elem::of::<D::Elem>());
        self.divides(data.rows(), call.at)?;
        self.exchange(data, data.rows(), &call)
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
        let (call, rows) =
            self.exchange_v(data.shape(), [give.into(), take.into()], Elem::of::<D::Elem>())?;
        self.exchange(data, rows, &call)
    }
    /// An all-to-all of blocks that differ, of a tensor of this shape, and the rows of the result.
    #[track_caller]
    pub(crate) fn exchange_v(
        &self,
        shape: [usize; 2],
        [give, take]: [Arc<[usize]>; 2],
        elem: Elem,
    ) -> Result<(Call, usize)> {
        let counts = Some(Counts::Between(give.clone(), take.clone()));
        let call = Call { counts, ..self.call(Op::AllToAll, shape, elem) };
        self.adds_up(&give, &call)?;
        let rows = self.total(&take, &call)?;
        if give[self.rank] != take[self.rank] {
            let (given, taken) = (give[self.rank], take[self.rank]);
            let why = format!("rank {} gives itself {given} rows and takes {taken}", self.rank);
            return Err(CommError::bad_counts(&call, why));
        }
        Ok((call, rows))
    }
    fn exchange<D: Device<Place = P>>(
        &self,
        data: &Tensor<D>,
        rows: usize,
        call: &Call,
    ) -> Result<Tensor<D>> {
        if self.size() == 1 {
            return Ok(data.clone());
        }
        let mut out = data.beside(rows, data.cols());
        self.together(call, Some(data), Some(&mut out))?;
        Ok(out)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Algorithm;
    use crate::{Axis, Mesh, World};
    use kernels::{Kernels, Meta};
    use tensor::Cpu;

    const SIZES: [(Axis, usize); 1] = [(Axis::Tp, 4)];
    /// 10 rows over 4 ranks, 3 at most on each.
    const ROWS: [usize; 4] = [3, 3, 3, 1];

    /// Of a call, its name, and what each rank gives it.
    type Act<D> = (
        &'static str,
        [[usize; 2]; 4],
        fn(&Group<<D as Device>::Place>, &mut Tensor<D>) -> Result<()>,
        [Bytes; 4],
    );
    /// Bytes that each rank holds at most besides what it gives, as activations and as buffers; those of its payload; and
    /// those that it sends.
    type Bytes = [usize; 4];

    /// A rank has 4 rows of 5 numbers of 4 bytes, which are 80, all ranks 320; where blocks differ 20 a row, 200 in all.
    fn acts<D: Kernels<Elem = f32>>() -> [Act<D>; 12] {
        let (block, blocks, ragged) = ([[4, 5]; 4], [[16, 5]; 4], ROWS.map(|rows| [rows, 5]));
        [
            ("all_reduce", block, |g, x| g.all_reduce(x, Reduce::Sum), [[0, 0, 80, 120]; 4]),
            // A ring's step receives a fourth.
            ("ring", block, |g, x| g.via(Algorithm::Ring)?.all_reduce(x, Reduce::Sum), [[0, 20, 80, 120]; 4]),
            // 13 rows in blocks of 4 are 16 with padding.
            ("all_gather", block, |g, x| g.all_gather(x).map(drop), [[0, 320, 80, 240]; 4]),
            (
                "all_gather_v",
                ragged,
                |g, x| g.all_gather_v(x, &ROWS).map(drop),
                // All but the block of the next rank are passed on: 7 rows, or 9.
                [[0, 200, 60, 140], [0, 200, 60, 140], [0, 200, 60, 180], [0, 200, 20, 140]],
            ),
            // [2, 13] of [2, 16].
            ("columns", [[2, 4]; 4], |g, x| g.all_gather_columns(x, 13).map(drop), [[0, 104, 32, 96]; 4]),
            ("reduce_scatter", blocks, |g, x| g.reduce_scatter(x).map(drop), [[80, 0, 320, 240]; 4]),
            (
                "reduce_scatter_v",
                [[10, 5]; 4],
                |g, x| g.reduce_scatter_v(x, &ROWS).map(drop),
                [[60, 0, 200, 140], [60, 0, 200, 140], [60, 0, 200, 140], [20, 0, 200, 180]],
            ),
            // A chain from rank 1 on, which rank 0 ends.
            (
                "broadcast",
                block,
                |g, x| g.broadcast(x, 1),
                [[0, 0, 80, 0], [0, 0, 80, 80], [0, 0, 80, 80], [0, 0, 80, 80]],
            ),
            (
                "gather",
                block,
                |g, x| g.gather(x, 1).map(drop),
                [[0, 0, 80, 80], [0, 320, 80, 0], [0, 0, 80, 80], [0, 0, 80, 80]],
            ),
            (
                "scatter",
                blocks,
                |g, x| g.scatter(x.device(), (g.rank() == 1).then_some(&*x), 1, 4, 5).map(drop),
                [[80, 0, 80, 0], [80, 0, 80, 240], [80, 0, 80, 0], [80, 0, 80, 0]],
            ),
            ("all_to_all", blocks, |g, x| g.all_to_all(x).map(drop), [[320, 0, 320, 240]; 4]),
            (
                "all_to_all_v",
                // Between ranks i and j there are i + j rows: 6, 10, 14 and 18 in all, of which 0, 2, 4 and 6 stay.
                [6, 10, 14, 18].map(|rows| [rows, 5]),
                |g, x| {
                    let rows: Vec<_> = (0..4).map(|peer| g.rank() + peer).collect();
                    g.all_to_all_v(x, &rows, &rows).map(drop)
                },
                [[120, 0, 120, 120], [200, 0, 200, 160], [280, 0, 280, 200], [360, 0, 360, 240]],
            ),
        ]
    }

    fn cost<D: Kernels<Elem = f32> + Default>(mesh: &Mesh<D::Place>) -> Result<()> {
        for (name, given, act, wanted) in acts::<D>() {
            let (group, rank, device, before) =
                (mesh.group(Axis::Tp), mesh.rank(), D::default(), mesh.ledger());
            let [rows, cols] = given[rank];
            let mut x = Tensor::from_fn(&device, Category::Weights, rows, cols, |_| 1.0);
            act(group, &mut x)?;
            let (held, said) = (device.meter().peaks_of_all(), mesh.ledger() - &before);
            let [activations, buffers] =
                [Category::Activations, Category::Buffers].map(|c| held.category[c as usize]);
            let said = said.iter().fold([0; 2], |[p, b], (.., t)| [p + t.payload, b + t.bytes]);
            assert_eq!([activations, buffers, said[0], said[1]], wanted[rank], "{name} on rank {rank}");
            assert_eq!(held.total, 4 * rows * cols + activations + buffers, "{name} on rank {rank}");
        }
        Ok(())
    }

    /// Bytes worked out by hand: where rank and ghost share the code, they are wrong alike. Kills: a result with room for
    /// what is padding or without room for what is not, one of another category, rows or bytes counted as numbers.
    #[test]
    fn calls_hold_and_send_the_bytes_that_are_worked_out_by_hand() {
        World::threads(&SIZES).unwrap().run(|_: Cpu<f32>, mesh| cost::<Cpu<f32>>(&mesh)).unwrap();
        for rank in 0..4 {
            cost::<Meta<Cpu<f32>>>(&Mesh::ghost(&SIZES, rank).unwrap()).unwrap();
        }
    }
}
