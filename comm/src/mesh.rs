//! Groups of a rank: along each axis, along sets of axes, and of any ranks of the world.
use crate::ghost::{CallClock, Ghosts};
use crate::trace::Traced;
use crate::{
    Axes, Axis, CallRecord, CommError, Engines, Grid, Group, Ledger, RankRecord, RankWaits, Result, TimeUse,
};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tensor::{MetaPlace, Place, Profile};

/// A rank's groups. A group along an axis, or several, has the ranks that differ from this one only along
/// these. Clones are cheap, and share one ledger.
#[derive(Clone)]
pub struct Mesh<P: Place>(Arc<MeshInner<P>>);

struct MeshInner<P: Place> {
    grid: Arc<Grid>,
    engines: Arc<dyn Engines<P>>,
    along: [OnceLock<Box<Group<P>>>; Axes::SETS], // by set, made on first use
    rank: usize,
    record: Arc<RankRecord>,
}

impl<P: Place> Mesh<P> {
    /// Makes the mesh of a world of one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self::without_peers(Grid::alone(), 0)
    }
    /// Makes the groups of one rank of a world with these engines.
    pub(crate) fn new(
        grid: Arc<Grid>,
        rank: usize,
        record: Arc<RankRecord>,
        world: Arc<dyn Engines<P>>,
    ) -> Self {
        let along = std::array::from_fn(|_| OnceLock::new());
        Self(Arc::new(MeshInner { grid, engines: world, along, rank, record }))
    }
    fn without_peers(grid: Grid, rank: usize) -> Self {
        let record = Arc::new(RankRecord::new(rank, Instant::now(), Traced::Never));
        Self::new(Arc::new(grid), rank, record, Arc::new(Ghosts(None)))
    }
    /// Returns the group along axes of one factoring.
    fn along(&self, axes: Axes) -> &Group<P> {
        let MeshInner { grid, engines, along, rank, record } = &*self.0;
        along[axes.index()].get_or_init(|| {
            let members = grid.members(axes, *rank);
            let place = members.place(*rank).expect("it lies around this rank");
            Box::new(Group::new(engines, axes, place, members, record.clone()))
        })
    }
    /// Returns this rank's group along an axis; a group of one if the world is not split along it.
    pub fn group(&self, axis: Axis) -> &Group<P> {
        self.along(axis.into())
    }
    /// Returns the group of the ranks that differ from this one only along these axes, in rank order of the
    /// world. The group is named after those of the axes that the world is split along: over dp and cp in a
    /// world without cp, it is the dp group, and counts as such. Without axes it is a group of one.
    ///
    /// ```
    /// # use comm::{Axis, CommError, Reduce, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// let world = World::threads(&[(Axis::Dp, 2), (Axis::Cp, 2), (Axis::Tp, 2)])?;
    /// let losses = world.run(|device: Cpu<f32>, mesh| {
    ///     let mut loss = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| mesh.rank() as f32);
    ///     mesh.over(Axis::Dp | Axis::Cp)?.named("loss").all_reduce(&mut loss, Reduce::Sum)?;
    ///     Ok::<_, CommError>(loss.read().expect("the host has values")[0])
    /// })?;
    /// assert_eq!(losses, [12.0, 16.0, 12.0, 16.0, 12.0, 16.0, 12.0, 16.0]); // 0 + 2 + 4 + 6, 1 + 3 + 5 + 7
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if axes of both factorings are named, such as dp and ep.
    #[track_caller]
    pub fn over(&self, axes: impl Into<Axes>) -> Result<Group<P>> {
        Ok(self.along(self.0.grid.split(axes.into(), Location::caller())?).clone())
    }
    /// Returns the group of all ranks of the world.
    pub fn world(&self) -> &Group<P> {
        self.along(self.0.grid.split_of(Axis::DENSE.into()))
    }
    /// Returns the group of these ranks of the world, in this order; this rank must be one of them. Example:
    /// the ranks of a stage, if stages have different numbers of ranks. See [`Group::subgroup`].
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the list is empty, names a rank twice or an unknown rank, or lacks this
    /// rank.
    #[track_caller]
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Group<P>> {
        self.world().subgroup(ranks)
    }
    /// Returns the axes [`Axis::DENSE`] with this rank's groups, innermost first.
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = (Axis, &Group<P>)> {
        self.0.grid.order().iter().map(|&axis| (axis, self.group(axis)))
    }
    /// Waits until every rank of the mesh has entered: a barrier along each axis, innermost first.
    ///
    /// # Errors
    /// Same as [`Group::barrier`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        for (_, group) in self.axes() {
            group.barrier()?;
        }
        Ok(())
    }
    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.0.rank
    }
    /// Number of ranks of the world.
    pub fn size(&self) -> usize {
        self.0.grid.ranks()
    }
    /// Coordinates of this rank along the axes of [`Axis::DENSE`], outermost first.
    pub fn coordinates(&self) -> Vec<(Axis, usize)> {
        let place = |&axis: &Axis| (axis, self.0.grid.coordinate(axis, self.0.rank));
        self.0.grid.order().iter().rev().map(place).collect()
    }
    /// Coordinate of a rank of the world along an axis.
    pub fn coordinate(&self, axis: Axis, rank: usize) -> usize {
        self.0.grid.coordinate(axis, rank)
    }
    /// Traffic of this rank so far, in all its groups.
    pub fn ledger(&self) -> Ledger {
        self.0.record.ledger()
    }
    /// Number of calls of this rank that have ended so far while a trace was taken.
    pub fn calls_made(&self) -> usize {
        self.0.record.calls_traced()
    }
    /// Returns the calls of this rank that have ended while a trace was taken, in the order in which they
    /// ended.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.0.record.calls()
    }
    /// Takes this rank's waits for other ranks since the last call, by these ranks, if the world counts them
    /// ([`World::counting_waits`](crate::World::counting_waits)).
    pub fn take_waits(&self) -> Vec<RankWaits> {
        self.0.record.take_waits()
    }
    /// Starts a named span of the trace, which ends when the result is dropped. Does nothing if no trace is
    /// taken.
    pub fn span(&self, name: impl fmt::Display) -> TraceSpan {
        let traced =
            self.0.record.traced().then(|| (self.0.record.clone(), Instant::now(), name.to_string()));
        TraceSpan(traced)
    }
    /// Profiles this rank, whose memory is `place`, until the result is dropped. The trace then has the
    /// rank's layers and kernels, each inside the one it was a part of. Does nothing if no trace is taken.
    pub fn profile(&self, place: &P) -> Profiling<P> {
        let traced = self.0.record.profile().then(|| (self.0.record.clone(), place.clone()));
        if let Some(profile) = place.profile().filter(|_| traced.is_some()) {
            profile.begin(place.meter().flops());
        }
        Profiling(traced)
    }
}

/// A running profile; dropping it ends the profile.
#[must_use = "a profile ends when it is dropped"]
pub struct Profiling<P: Place>(Option<(Arc<RankRecord>, P)>);

impl<P: Place> Drop for Profiling<P> {
    fn drop(&mut self) {
        if let Some((record, place)) = self.0.take() {
            record.profiled(place.profile().map_or_else(Vec::new, Profile::end));
        }
    }
}

/// A named stretch of time; dropping it ends the stretch.
#[must_use = "a span ends when it is dropped"]
pub struct TraceSpan(Option<(Arc<RankRecord>, Instant, String)>);

impl Drop for TraceSpan {
    fn drop(&mut self) {
        if let Some((record, from, name)) = self.0.take() {
            record.spent(|| TimeUse::Span(name), from);
        }
    }
}

impl Mesh<MetaPlace> {
    /// Returns one rank of a world of these sizes, without its peers: memory and traffic are counted as with
    /// peers. Axes left out have size 1; the number of ranks is not limited.
    ///
    /// # Errors
    /// Same as [`World::threads`](crate::World::threads), except that only overflow limits the number of
    /// ranks; [`CommError::BadWorld`] if there is no such rank.
    pub fn ghost(sizes: &[(Axis, usize)], rank: usize) -> Result<Self> {
        Self::of_grid(Grid::new(sizes, usize::MAX)?, rank)
    }
    /// Same as [`Mesh::ghost`], with axes that nest in this order, innermost first.
    ///
    /// # Errors
    /// Same as [`Mesh::ghost`] and [`World::order`](crate::World::order).
    pub fn ghost_in_order(sizes: &[(Axis, usize)], order: &[Axis], rank: usize) -> Result<Self> {
        Self::of_grid(Grid::new(sizes, usize::MAX)?.nested(order)?, rank)
    }
    /// Returns this rank with a clock that counts the time of its calls.
    #[must_use]
    pub fn timed(self, clock: Arc<dyn CallClock>) -> Self {
        let MeshInner { grid, rank, record, .. } = &*self.0;
        Self::new(grid.clone(), *rank, record.clone(), Arc::new(Ghosts(Some(clock))))
    }
    fn of_grid(grid: Grid, rank: usize) -> Result<Self> {
        if rank >= grid.ranks() {
            let size = grid.ranks();
            let why = format!("there is no rank {rank} in a world of {size} (ranks count from 0)");
            return Err(CommError::BadWorld(why));
        }
        Ok(Self::without_peers(grid, rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::TAG;
    use crate::{Reduce, World};
    use kernels::Kernels;
    use tensor::{Category, Cpu, F61, Host, Peaks, Scalar, Tensor};

    const SIZES: [(Axis, usize); 3] = [(Axis::Dp, 2), (Axis::Tp, 4), (Axis::Ep, 4)];

    /// Every call over every group, over some sets of axes and over blocks of these, on shapes that do not
    /// divide and on nothing.
    fn program<D: Kernels>(device: &D, mesh: &Mesh<D::Place>) -> Result<(Ledger, Peaks)> {
        let zeros = |rows, cols| Tensor::from_fn(device, Category::Weights, rows, cols, |_| D::Elem::ZERO);
        let sets = [Axis::Dp | Axis::Tp, Axis::Ep.into(), Axis::Edp | Axis::Ep].map(|axes| mesh.over(axes));
        let groups =
            mesh.axes().map(|(_, group)| Ok(group.clone())).chain(sets).collect::<Result<Vec<_>>>()?;
        let consecutive = |group: &Group<D::Place>| {
            let odd = [group.split(|rank| rank % 2)];
            [1, 2, 4].map(|size| group.consecutive(size.min(group.size()))).into_iter().chain(odd)
        };
        for group in groups.iter().flat_map(consecutive) {
            let group = group?;
            let (next, n) = ((group.rank() + 1) % group.size(), group.size());
            for (rows, cols) in [(5, 7), (0, 3), (1, 1)] {
                let mut x = zeros(rows, cols);
                group.all_reduce(&mut x, Reduce::Sum)?;
                let all = group.all_gather(&x)?;
                let _columns = group.all_gather_columns(&x, n * cols)?;
                let _block = (group.reduce_scatter(&all)?, group.reduce_scatter(&zeros(n * rows, cols))?);
                group.broadcast(&mut x, n - 1)?;
                group.barrier()?;
                let all = group.gather(&x, n - 1)?;
                let _block = group.scatter(device, all.as_ref(), n - 1, rows, cols)?;
                let _blocks = group.all_to_all(&zeros(n * rows, cols))?;
                let counts: Vec<_> = (0..n).map(|rank| rows + rank).collect();
                let all = group.all_gather_v(&zeros(counts[group.rank()], cols), &counts)?;
                let _block = group.reduce_scatter_v(&all, &counts)?;
                let _blocks = group.all_to_all_v(
                    &zeros(n * counts[group.rank()], cols),
                    &vec![counts[group.rank()]; n],
                    &counts,
                )?;
                group.all_reduce_values(&mut [rows, cols], usize::max)?;
                assert_eq!(group.all_gather_values(&[7u8])?, vec![vec![7]; n]);
                if n == 1 {
                    continue;
                }
                let coming = group.start_receive(device, (group.rank() + n - 1) % n, rows, cols, TAG)?;
                let going = group.start_send(next, x.clone(), TAG)?;
                let _both = (coming.wait()?, going.wait()?);
                if group.rank() == 0 {
                    group.send(next, &x, TAG)?;
                } else if group.rank() == 1 {
                    let _got = group.receive(device, 0, rows, cols, TAG)?;
                }
            }
        }
        Ok((mesh.ledger(), device.meter().peaks_of_all()))
    }

    /// Kills: anything allocated or counted by an engine.
    #[test]
    fn ghosts_cost_what_threads_do_byte_for_byte() {
        let world = World::threads(&SIZES).unwrap();
        let threads = world.run(|device: Cpu<F61>, mesh| program(&device, &mesh)).unwrap();
        for (rank, threads) in threads.into_iter().enumerate() {
            let mesh = Mesh::ghost(&SIZES, rank).unwrap();
            assert_eq!(program(&kernels::meta_of::<Cpu<F61>>(), &mesh).unwrap(), threads, "rank {rank}");
            assert!(threads.0.wire_bytes() > 0 && threads.1.total > 0);
        }
    }

    #[test]
    fn ghosts_are_any_rank_of_any_world() {
        let large = [(Axis::Dp, 1 << 20), (Axis::Tp, 1 << 20)];
        let mesh = Mesh::ghost(&[(Axis::Tp, 512), (Axis::Dp, 8)], 8 * 512 - 2).unwrap();
        assert_eq!(mesh.coordinates(), [(Axis::Pp, 0), (Axis::Dp, 7), (Axis::Cp, 0), (Axis::Tp, 510)]);
        assert_eq!((mesh.rank(), mesh.size(), mesh.group(Axis::Tp).size()), (4094, 4096, 512));
        let axes: Vec<_> = mesh.axes().map(|(axis, group)| (axis, group.size())).collect();
        assert_eq!(axes, [(Axis::Tp, 512), (Axis::Cp, 1), (Axis::Dp, 8), (Axis::Pp, 1)]);
        assert!(Mesh::ghost(&large, (1 << 40) - 1).is_ok());
        let error = Mesh::ghost(&SIZES, 8).err().unwrap();
        assert_eq!(error.to_string(), "there is no rank 8 in a world of 8 (ranks count from 0)");
    }

    #[test]
    fn alone_every_axis_has_a_group_of_one() {
        let mesh = Mesh::<Host>::alone();
        let alone = |axis| (mesh.group(axis).axis(), mesh.group(axis).size(), mesh.group(axis).rank());
        assert!(Axis::ALL.iter().all(|&axis| alone(axis) == (axis.into(), 1, 0)));
        assert_eq!((mesh.rank(), mesh.size(), mesh.axes().count()), (0, 1, Axis::DENSE.len()));
    }
}
