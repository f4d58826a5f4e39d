//! How a proof hands an activation to the ranks and puts their shares together again.
use super::Given;
use crate::Result;
use crate::ops::Split;
use comm::Group;
use kernels::Kernels;
use tensor::{Category, Ids, Tensor};

/// An activation, by how it lies over the ranks of a group.
pub trait Lies<D: Kernels>: Sized {
    /// This rank's part of the input (or, with `dy`, of the output's gradient) of so many features.
    ///
    /// # Errors
    /// If the ranks do not divide the features.
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, device: &D, group: &Group<D>) -> Result<Self>;
    /// The whole, row-major, on every rank; empty for ids and on a device without values.
    ///
    /// # Errors
    /// If ranks do not meet.
    fn whole(&self, group: &Group<D>) -> Result<Vec<D::Elem>>;
}

impl<D: Kernels> Lies<D> for Tensor<D> {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, device: &D, _: &Group<D>) -> Result<Self> {
        let from = if dy { &given.dy } else { &given.x };
        Ok(Tensor::from_fn(device, Category::Activations, given.tokens(), features, |i| from[i]))
    }
    fn whole(&self, _: &Group<D>) -> Result<Vec<D::Elem>> {
        Ok(self.read().unwrap_or_default())
    }
}

impl<D: Kernels> Lies<D> for Split<D> {
    fn hand(given: &Given<D::Elem>, dy: bool, features: usize, device: &D, group: &Group<D>) -> Result<Self> {
        Split::cut(&Tensor::hand(given, dy, features, device, group)?, group)
    }
    fn whole(&self, group: &Group<D>) -> Result<Vec<D::Elem>> {
        Ok(self.all_gather(group)?.read().unwrap_or_default())
    }
}

impl<D: Kernels> Lies<D> for Ids<D> {
    fn hand(given: &Given<D::Elem>, _: bool, features: usize, device: &D, _: &Group<D>) -> Result<Self> {
        Ok(Ids::new(device, &given.ids, features)?)
    }
    fn whole(&self, _: &Group<D>) -> Result<Vec<D::Elem>> {
        Ok(Vec::new())
    }
}
