//! The residual stream: activations `[B,D]` whose rows are tokens. Under sequence parallelism each rank has
//! its own tokens ([`Region::Tokens`]), otherwise all of them ([`Region::Whole`]). Layers are written once
//! for both: the region decides which collective reduces a [`Partial`], and what a product must gather first.
//!
//! ```text
//!              Partial → Stream      Stream → Tensor
//! whole        all-reduce            nothing
//! tokens       reduce-scatter        all-gather
//! ```
//!
//! An all-reduce is a reduce-scatter and an all-gather, so the traffic is the same; the memory between the
//! two is not.
//!
//! Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", §4.2.2,
//! arXiv:2205.05198. Chapter: sequence parallelism.
use crate::handles::split::same;
use crate::record::{Recordable, RecordedPart};
use crate::{Partial, Result, filled};
use comm::{Axes, Group, Mesh, Request};
use kernels::Kernels;
use std::ops::Range;
use tensor::{Category, Place, Scalar, Tensor};

/// Rows of the residual stream that a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// All rows, on every rank of the axis.
    Whole,
    /// Its own rows: `⌈B/ranks⌉` consecutive ones; the last ranks may have fewer, or none.
    Tokens {
        /// The axes over which tokens are cut.
        axis: Axes,
        /// Number of this rank.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
}

impl Region {
    /// Cuts tokens over the ranks of a group.
    pub fn tokens<P: Place>(group: &Group<P>) -> Self {
        Self::Tokens { axis: group.axis(), rank: group.rank(), ranks: group.size() }
    }
    /// Returns this rank's range of `rows` rows.
    pub fn mine(self, rows: usize) -> Range<usize> {
        match self {
            Region::Whole => 0..rows,
            Region::Tokens { rank, ranks, .. } => {
                let share = rows.div_ceil(ranks);
                (rank * share).min(rows)..((rank + 1) * share).min(rows)
            }
        }
    }
}

/// norm(X), and X itself, which bypasses the next part as the residual. In backward, their gradients, which
/// the norm's backward sums in its own pass; `None` if nothing used X.
pub type Branches<D> = (Stream<D>, Option<Stream<D>>);

/// `X[B,D]`: this rank's tokens of the residual stream.
pub struct Stream<D: Kernels> {
    share: Tensor<D>,
    rows: usize,
    region: Region,
}

impl<D: Kernels> Clone for Stream<D> {
    /// Returns another owner of the same memory.
    fn clone(&self) -> Self {
        Self { share: self.share.clone(), ..*self }
    }
}

impl<D: Kernels> From<Tensor<D>> for Stream<D> {
    /// Wraps all tokens, which every rank has.
    fn from(whole: Tensor<D>) -> Self {
        Self { rows: whole.rows(), share: whole, region: Region::Whole }
    }
}

impl<D: Kernels> Stream<D> {
    /// Cuts this rank's tokens from a matrix that every rank holds whole.
    #[must_use]
    pub fn cut(whole: &Tensor<D>, region: Region) -> Self {
        let mine = region.mine(whole.rows());
        if mine.len() == whole.rows() {
            return Self { share: whole.clone(), rows: whole.rows(), region };
        }
        let mut share = whole.beside(mine.len(), whole.cols());
        whole.device().copy(share.view_mut(), whole.view().take_rows(mine.start, mine.len()));
        Self { share, rows: whole.rows(), region }
    }
    /// Cuts a whole stream to this rank's tokens of a region; a stream that is already cut stays as it is.
    #[must_use]
    pub fn in_region(self, region: Region) -> Self {
        if self.region == Region::Whole { Self::cut(&self.share, region) } else { self }
    }
    /// A stream of `rows` tokens whose local part `share` was sent by a rank of the same region.
    #[must_use]
    pub fn sent(share: Tensor<D>, rows: usize, region: Region) -> Self {
        assert_eq!(share.rows(), region.mine(rows).len(), "a row for every token");
        Self { share, rows, region }
    }
    /// Returns the same tokens with other features.
    ///
    /// # Panics
    /// If there is not a row for every token.
    #[must_use]
    pub fn with(&self, share: Tensor<D>) -> Self {
        assert_eq!(share.rows(), self.share.rows(), "a row for every token");
        Self { share, ..*self }
    }
    /// This rank's tokens, for row-wise operations.
    pub fn share(&self) -> &Tensor<D> {
        &self.share
    }
    pub(crate) fn share_mut(&mut self) -> &mut Tensor<D> {
        &mut self.share
    }
    /// Number of tokens on all ranks together.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of features.
    pub fn cols(&self) -> usize {
        self.share.cols()
    }
    /// Range of this rank's tokens.
    pub fn mine(&self) -> Range<usize> {
        self.region.mine(self.rows)
    }
    /// The region: the rows that each rank has.
    pub fn region(&self) -> Region {
        self.region
    }
    /// The device that holds it.
    pub fn device(&self) -> &D {
        self.share.device()
    }
    /// Gathers all tokens: the same on every rank of the group.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn gather(&self, group: &Group<D::Place>) -> Result<Tensor<D>> {
        let Region::Tokens { axis, ranks, .. } = self.region else { return Ok(self.share.clone()) };
        same(axis, group.axis())?;
        Ok(group.all_gather(&padded(self.share.clone(), self.rows.div_ceil(ranks)))?.first_rows(self.rows))
    }
    /// Starts [`Stream::gather`]. The rank must call the returned function, which waits for it.
    ///
    /// # Errors
    /// Same as [`Stream::gather`].
    #[track_caller]
    pub fn start_gather(&self, group: &Group<D::Place>) -> Result<impl FnOnce() -> Result<Self> + use<D>> {
        let Self { share, rows, region } = self.clone();
        let call = match region {
            Region::Whole => Request::done(share),
            Region::Tokens { axis, ranks, .. } => {
                same(axis, group.axis())?;
                group.start_all_gather(padded(share, rows.div_ceil(ranks)))?
            }
        };
        Ok(move || Ok(call.wait()?.first_rows(rows).into()))
    }
}

/// Appends zero rows to `x`, up to `rows` rows in all.
fn padded<D: Kernels>(x: Tensor<D>, rows: usize) -> Tensor<D> {
    if x.rows() == rows {
        return x;
    }
    let mut out = filled(x.device(), Category::Buffers, [rows, x.cols()], D::Elem::ZERO);
    x.device().copy(out.view_mut().take_rows(0, x.rows()), x.view());
    out
}

impl<D: Kernels> Partial<D> {
    /// Sums over the ranks of the group. Returns all tokens or this rank's, according to the region.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn reduce(self, group: &Group<D::Place>, region: Region) -> Result<Stream<D>> {
        let Region::Tokens { axis, ranks, .. } = region else { return Ok(self.all_reduce(group)?.into()) };
        same(axis, group.axis())?;
        let addend = self.addend(group)?;
        let rows = addend.rows();
        let addend = padded(addend, rows.div_ceil(ranks) * ranks);
        let share = group.reduce_scatter(&addend)?.first_rows(region.mine(rows).len());
        Ok(Stream { share, rows, region })
    }
    /// Sums over the ranks of the group. Returns the tokens that the stream `like` has on this rank.
    ///
    /// # Errors
    /// If a collective fails, or the group is of another axis.
    #[track_caller]
    pub fn reduce_as(self, group: &Group<D::Place>, like: &Stream<D>) -> Result<Stream<D>> {
        self.reduce(group, like.region)
    }
    /// Starts [`Partial::reduce_as`]. The rank must call the returned function, which waits for it.
    ///
    /// # Errors
    /// Same as [`Partial::reduce_as`].
    #[track_caller]
    pub fn start_reduce_as(
        self,
        group: &Group<D::Place>,
        like: &Stream<D>,
    ) -> Result<impl FnOnce() -> Result<Stream<D>> + use<D>> {
        let Stream { rows, region, .. } = *like;
        let call = match region {
            Region::Whole => self.start_all_reduce(group)?,
            Region::Tokens { axis, ranks, .. } => {
                same(axis, group.axis())?;
                group.start_reduce_scatter(padded(self.addend(group)?, rows.div_ceil(ranks) * ranks))?
            }
        };
        Ok(move || Ok(Stream { share: call.wait()?.first_rows(region.mine(rows).len()), rows, region }))
    }
}

impl<D: Kernels> Recordable<D> for Stream<D> {
    fn local_part(&self, mesh: &Mesh<D::Place>, is_gradient: bool) -> Result<RecordedPart<D::Elem>> {
        Ok(RecordedPart { rows: self.mine(), ..self.share.local_part(mesh, is_gradient)? })
    }
}

/// `A + B`, in A's memory if no one else holds it.
#[must_use]
pub fn join<D: Kernels>(mut a: Stream<D>, b: &Stream<D>) -> Stream<D> {
    assert!(
        a.region == b.region && a.rows == b.rows && a.cols() == b.cols(),
        "streams of different regions or shapes"
    );
    a.device().clone().add(a.share.view_mut(), b.share.view());
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use comm::{Axis, Op, World};
    use tensor::Cpu;

    /// Tokens that the ranks do not divide, and fewer than ranks. Kills: rows lost, doubled or out of order;
    /// padding that is gathered; a sum that counts it.
    #[test]
    fn streams_are_cut_gathered_and_reduced_whole() {
        for (ranks, rows) in [(1, 3), (2, 5), (3, 7), (4, 2), (4, 8), (8, 1)] {
            let run = |device: Cpu<f64>, mesh: comm::Mesh<tensor::Host>| {
                let group = mesh.group(Axis::Tp);
                let region = Region::tokens(group);
                let number = |i: usize| 1.0 + i as f64;
                let matrix = || Tensor::from_fn(&device, Category::Activations, rows, 2, number);
                let whole = matrix();
                let mine = Stream::cut(&whole, region);
                assert_eq!((mine.share().rows(), mine.rows()), (mine.mine().len(), rows));
                assert_eq!(mine.gather(group)?.read(), whole.read());
                let sum = Partial::sum(whole.clone(), Axis::Tp).reduce(group, region)?;
                let all = sum.gather(group)?.read().unwrap();
                assert_eq!(all, (0..2 * rows).map(|i| ranks as f64 * number(i)).collect::<Vec<_>>());
                let reduced = Partial::sum(matrix(), Axis::Tp).reduce(group, Region::Whole)?;
                assert_eq!(reduced.gather(group)?.read().unwrap(), all);
                Ok::<_, Error>(mine.mine().len())
            };
            let shares = World::threads(&[(Axis::Tp, ranks)]).unwrap().run(run).unwrap();
            assert_eq!(shares.iter().sum::<usize>(), rows, "{shares:?}");
        }
    }

    /// Kills: a stream that another axis gathers or reduces.
    #[test]
    fn streams_meet_only_their_axis() {
        let (device, mesh) = (Cpu::<f32>::default(), comm::Mesh::alone());
        let x = || Tensor::from_fn(&device, Category::Activations, 2, 2, |i| i as f32);
        let region = Region::tokens(mesh.group(Axis::Tp));
        let data = mesh.group(Axis::Dp);
        let reported = |reported: Result<Stream<_>>| reported.err().map(|why| why.to_string());
        let says = |share, other| {
            Some(format!("a part along axis {share} cannot be used with a part or group along axis {other}"))
        };
        let reduce = |axis, group, region| reported(Partial::sum(x(), axis).reduce(group, region));
        assert_eq!(reported(Stream::cut(&x(), region).gather(data).map(Stream::from)), says("tp", "dp"));
        assert_eq!(reduce(Axis::Tp, data, region), says("tp", "dp"));
        assert_eq!(reduce(Axis::Dp, data, region), says("tp", "dp"), "tokens cut over another axis");
        assert_eq!(reduce(Axis::Dp, mesh.group(Axis::Tp), region), says("dp", "tp"));
        assert_eq!(reduce(Axis::Tp, data, Region::Whole), says("tp", "dp"));
        assert_eq!(reduce(Axis::Dp, data, Region::Whole), None);
    }

    /// 7 tokens of 3 numbers over 4 ranks, of 4 bytes each: 2 tokens on a rank, 24 bytes, 1 on the last; with
    /// padding 8, 96 bytes. Kills: padding that takes no room, or takes it where nothing is padded; tokens
    /// gathered without it.
    fn padded_bytes<D: Kernels<Elem = f32> + Default>(mesh: &comm::Mesh<D::Place>) -> Result<()> {
        let (group, device, last) = (mesh.group(Axis::Tp), D::default(), mesh.rank() == 3);
        let (region, before) = (Region::tokens(group), mesh.ledger());
        let held = |category| device.meter().now(category);
        let peak = |category| device.meter().peaks_of_all().category[category as usize];
        let addend = Tensor::from_fn(&device, Category::Activations, 7, 3, |_| 1.0);
        let sum = Partial::sum(addend, Axis::Tp).reduce(group, region)?;
        // The addend of 84 bytes goes when it has been padded.
        assert_eq!((peak(Category::Activations), held(Category::Activations)), (84, 24));
        assert_eq!((peak(Category::Buffers), held(Category::Buffers)), (96, 0));
        let share = Tensor::from_fn(&device, Category::Weights, region.mine(7).len(), 3, |_| 1.0);
        let all = sum.with(share).gather(group)?;
        // The last rank's token is padded before all are gathered; the others give theirs as they lie.
        assert_eq!((all.shape(), held(Category::Buffers)), ([7, 3], 96));
        assert_eq!(peak(Category::Buffers), if last { 24 + 96 } else { 96 });
        let said = mesh.ledger() - &before;
        let said = |op| [said.get(Axis::Tp, op).payload, said.get(Axis::Tp, op).bytes];
        assert_eq!((said(Op::ReduceScatter), said(Op::AllGather)), ([96, 72], [24, 72]));
        Ok(())
    }

    #[test]
    fn padded_tokens_take_the_bytes_that_are_worked_out_by_hand() {
        let sizes = [(Axis::Tp, 4)];
        World::threads(&sizes).unwrap().run(|_: Cpu<f32>, mesh| padded_bytes::<Cpu<f32>>(&mesh)).unwrap();
        for rank in 0..4 {
            padded_bytes::<kernels::Meta<f32>>(&comm::Mesh::ghost(&sizes, rank).unwrap()).unwrap();
        }
    }
}
