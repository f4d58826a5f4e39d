//! Where parameters are made: of the [place where layers are built](crate::Builder), what they ask for.
use crate::{Placement, Rests, Values};
use comm::Mesh;
use kernels::Kernels;
use tensor::Device;

/// A device's wide number.
pub type Wide<D> = <<D as Kernels>::Wide as Device>::Elem;

/// Where parameters are made.
pub struct Origin<'a, D: Kernels> {
    pub(crate) device: &'a D,
    pub(crate) mesh: &'a Mesh<D::Place>,
    pub(crate) values: &'a dyn Values<Wide<D>>,
    pub(crate) learns: bool,
    pub(crate) rests: Rests,
    pub(crate) placement: Placement,
}
