//! Cuts a proof's activations into the ranks' parts, and puts these together again.
use super::case::LayerInput;
use comm::Group;
use kernels::{Kernels, Segment};
use ops::{Branches, Region, Result, Split, Stream};
use tensor::{Category, Scalar, Tensor, TokenIds};

/// The rank that activations are given to.
pub struct AtRank<'a, D: Kernels> {
    /// The rank's device.
    pub device: &'a D,
    /// The ranks that split the activations.
    pub group: &'a Group<D::Place>,
    /// Region of the stream: the tokens of each rank.
    pub region: Region,
    /// The ranks that tokens are dealt to.
    pub dealers: &'a Group<D::Place>,
}

impl<D: Kernels> AtRank<'_, D> {
    /// Number of this rank among those that tokens are dealt to, and their number.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.dealers.rank(), self.dealers.size())
    }
    /// Puts the ranks' parts of a matrix with a row for each token together, in the order of the whole
    /// microbatch.
    ///
    /// # Errors
    /// If a collective fails.
    pub(super) fn together(
        &self,
        x: &dyn ActivationLayout<D>,
        (cols, deal): (usize, &dyn Fn((usize, usize)) -> Vec<Segment>),
    ) -> Result<Vec<D::Elem>> {
        let mine = x.whole(self)?;
        let ranks = self.dealers.size();
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

/// An activation, by its layout over the ranks of a group.
pub trait ActivationLayout<D: Kernels>: 'static {
    /// Returns this rank's part of the input (or, with `dy`, of the output's gradient), which has `features`
    /// features.
    ///
    /// # Errors
    /// If the ranks do not divide the features.
    fn hand(given: &LayerInput<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self>
    where
        Self: Sized;
    /// Returns the whole, row-major, on every rank; empty for ids and on the meta device.
    ///
    /// # Errors
    /// If a collective fails.
    ///
    /// # Panics
    /// If a stream is of another region than `at`.
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>>;
    /// Returns true if it is a matrix with a row for each token; ids are not.
    fn has_rows(&self) -> bool {
        true
    }
}

impl<D: Kernels> ActivationLayout<D> for Tensor<D> {
    fn hand(given: &LayerInput<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        let from = if dy { &given.dy } else { &given.x };
        Ok(Tensor::from_fn(at.device, Category::Activations, given.tokens(), features, |i| from[i]))
    }
    fn whole(&self, _: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok(self.read().unwrap_or_default())
    }
}

impl<D: Kernels> ActivationLayout<D> for Stream<D> {
    fn hand(given: &LayerInput<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Ok(Stream::cut(&Tensor::hand(given, dy, features, at)?, at.region))
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        assert_eq!(self.region(), at.region, "the region of the layer's stream");
        Ok(self.gather(at.group)?.read().unwrap_or_default())
    }
}

/// A norm's output, without the residual branch.
impl<D: Kernels> ActivationLayout<D> for Branches<D> {
    fn hand(given: &LayerInput<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Ok((Stream::hand(given, dy, features, at)?, None))
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        self.0.whole(at)
    }
}

/// An input and a memory of the same width. The whole is one after the other.
impl<D: Kernels> ActivationLayout<D> for [Stream<D>; 2] {
    fn hand(given: &LayerInput<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        assert!(!dy, "a memory is an input, not an output");
        let rows = given.memory_lengths.iter().sum();
        let memory = Tensor::from_fn(at.device, Category::Activations, rows, features, |i| given.memory[i]);
        Ok([Stream::hand(given, dy, features, at)?, Stream::cut(&memory, at.region)])
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok([self[0].whole(at)?, self[1].whole(at)?].concat())
    }
}

impl<D: Kernels> ActivationLayout<D> for Split<D> {
    fn hand(given: &LayerInput<D::Elem>, dy: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Split::cut(&Tensor::hand(given, dy, features, at)?, at.group)
    }
    fn whole(&self, at: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok(self.all_gather(at.group)?.read().unwrap_or_default())
    }
}

impl<D: Kernels> ActivationLayout<D> for TokenIds<D::Place> {
    fn hand(given: &LayerInput<D::Elem>, _: bool, features: usize, at: &AtRank<D>) -> Result<Self> {
        Ok(TokenIds::new(at.device.place(), &given.ids, features)?)
    }
    fn whole(&self, _: &AtRank<D>) -> Result<Vec<D::Elem>> {
        Ok(Vec::new())
    }
    fn has_rows(&self) -> bool {
        false
    }
}
