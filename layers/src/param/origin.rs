//! Origin of parameters: the part of a [`Builder`](crate::Builder) that they need.
use crate::{Placement, ShardingStrategy, ValueSource};
use comm::Mesh;
use kernels::Kernels;
use shape::RuleStates;
use tensor::{Device, Store};

/// A device's wide dtype.
pub type Wide<D> = <<D as Kernels>::Wide as Device>::Elem;

/// Everything that a parameter is created from.
pub struct ParamOrigin<'a, D: Kernels> {
    pub(crate) device: &'a D,
    pub(crate) mesh: &'a Mesh<D::Place>,
    pub(crate) values: &'a dyn ValueSource<Wide<D>>,
    pub(crate) learns: bool,
    pub(crate) rests: ShardingStrategy,
    pub(crate) store: Option<&'a Store>,
    pub(crate) states: RuleStates,
    pub(crate) placement: Placement,
}
