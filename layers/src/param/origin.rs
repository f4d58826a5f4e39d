//! Origin of parameters: the part of a [`Builder`](crate::Builder) that they need.
use crate::{Placement, Rests, Values};
use comm::Mesh;
use kernels::Kernels;
use tensor::Device;

/// A device's wide dtype.
pub type Wide<D> = <<D as Kernels>::Wide as Device>::Elem;

/// Everything that a parameter is created from.
pub struct Origin<'a, D: Kernels> {
    pub(crate) device: &'a D,
    pub(crate) mesh: &'a Mesh<D::Place>,
    pub(crate) values: &'a dyn Values<Wide<D>>,
    pub(crate) learns: bool,
    pub(crate) rests: Rests,
    pub(crate) placement: Placement,
}
