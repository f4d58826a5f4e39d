//! How a proof hands an activation to the ranks and puts their shares together again.
use super::Given;
use crate::Result;
use crate::ops::{Region, Split, Stream};
use comm::Group;
use kernels::Kernels;
use tensor::{Category, Ids, Tensor};

/// Where activations are handed out.
pub struct AtRank<'a, D: Kernels> {
    /// This rank's memory.
    pub device: &'a D,
    /// The ranks that share them.
    pub group: &'a Group<D::Place>,
    /// Whose tokens of the stream are here.
    pub region: Region,
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
}
