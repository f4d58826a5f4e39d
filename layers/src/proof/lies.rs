//! How a proof hands an activation to the ranks and puts their shares together again.
use super::Given;
use crate::Result;
use crate::ops::{Branches, Region, Split, Stream};
use comm::Group;
use kernels::{Kernels, Segment};
use tensor::{Category, Ids, Scalar, Tensor};

/// Where activations are handed out.
pub struct AtRank<'a, D: Kernels> {
    /// This rank's memory.
    pub device: &'a D,
    /// The ranks that share them.
    pub group: &'a Group<D::Place>,
    /// Whose tokens of the stream are here.
    pub region: Region,
    /// The ranks that tokens are dealt to.
    pub dealers: &'a Group<D::Place>,
}

impl<D: Kernels> AtRank<'_, D> {
    /// This rank among those that tokens are dealt to.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.dealers.rank(), self.dealers.size())
    }
    /// What the ranks have of a matrix with a row for each of their own tokens, as it lies in the whole microbatch.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(super) fn together(
        &self,
        x: &dyn Lies<D>,
        (cols, deal): (usize, &dyn Fn((usize, usize)) -> Vec<Segment>),
    ) -> Result<Vec<D::Elem>> {
        let (mine, ranks) = (x.whole(self)?, self.dealers.size());
        if ranks == 1 || !x.has_rows() {
            return Ok(mine);
        }
        let dealt: Vec<_> = (0..ranks).map(|rank| deal((rank, ranks))).collect();
        let counts: Vec<_> = dealt.iter().map(|tokens| tokens.iter().map(|t| t.len).sum()).collect();
        let share =
            Tensor::from_fn(self.device, Category::Buffers, counts[self.dealers.rank()], cols, |i| mine[i]);
        let Some(all) = self.dealers.all_gather_v(&share, &counts)?.read() else { return Ok(Vec::new()) };
        let rows = dealt.iter().flatten().flat_map(|t| t.row..t.row + t.len);
        let mut whole = vec![D::Elem::ZERO; all.len()];
        rows.zip(all.chunks(cols)).for_each(|(row, x)| whole[row * cols..][..cols].copy_from_slice(x));
        Ok(whole)
    }
}

/// An activation, by how it lies over the ranks of a group.
pub trait Lies<D: Kernels>: 'static {
    /// This rank's part of the input (or, with `dy`, of the output's gradient) of so many features.
    ///
    /// # Errors
    /// If the ranks do not divide the features.
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self>
    where
        Self: Sized;
    /// The whole, row-major, on every rank; empty for ids and on a device without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    ///
    /// # Panics
    /// If a stream has other tokens than those of the place.
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>>;
    /// Whether it is a matrix with a row for each token: ids are none.
    fn has_rows(&self) -> bool {
        true
    }
}

impl<D: Kernels> Lies<D> for Tensor<D> {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        let from = if dy { &given.dy } else { &given.x };
        Ok(Tensor::from_fn(at.device, Category::Activations, given.tokens(), features, |i| from[i]))
    }
    fn whole(&self, _: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok(self.read().unwrap_or_default())
    }
}

impl<D: Kernels> Lies<D> for Stream<D> {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Ok(Stream::cut(&Tensor::hand(given, dy, features, at)?, at.region))
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        assert_eq!(self.region(), at.region, "whose tokens a stream of the layer has");
        Ok(self.gather(at.group)?.read().unwrap_or_default())
    }
}

/// A norm's output, of which nobody takes the other branch.
impl<D: Kernels> Lies<D> for Branches<D> {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Ok((Stream::hand(given, dy, features, at)?, None))
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        self.0.whole(at)
    }
}

/// An input and its memory, as wide; whole, the one after the other.
impl<D: Kernels> Lies<D> for [Stream<D>; 2] {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        assert!(!dy, "a memory goes in and does not come out");
        let rows = given.memory_lengths.iter().sum();
        let memory = Tensor::from_fn(at.device, Category::Activations, rows, features, |i| given.memory[i]);
        Ok([Stream::hand(given, dy, features, at)?, Stream::cut(&memory, at.region)])
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok([self[0].whole(at)?, self[1].whole(at)?].concat())
    }
}

impl<D: Kernels> Lies<D> for Split<D> {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Split::cut(&Tensor::hand(given, dy, features, at)?, at.group)
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok(self.all_gather(at.group)?.read().unwrap_or_default())
    }
}

impl<D: Kernels> Lies<D> for Ids<D::Place> {
    fn hand(given: &Given<D::Elem>, _: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Ok(Ids::new(at.device.place(), &given.ids, features)?)
    }
    fn whole(&self, _: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok(Vec::new())
    }
    fn has_rows(&self) -> bool {
        false
    }
}
