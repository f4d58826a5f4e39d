//! Origin of parameters: everything that one is created from.
use crate::{Placement, ShardingStrategy, ValueSource};
use comm::Mesh;
use kernels::Kernels;
use shape::RuleStates;
use tensor::{Device, Store};

/// A device's wide dtype.
pub type Wide<D> = <<D as Kernels>::Wide as Device>::Elem;

/// Everything that a parameter is created from.
pub struct ParamOrigin<'a, D: Kernels> {
    /// This rank's memory.
    pub device: &'a D,
    /// This rank's groups.
    pub mesh: &'a Mesh<D::Place>,
    /// The parameters' initial values.
    pub values: &'a dyn ValueSource<Wide<D>>,
    /// True if parameters are trained: narrow ones then have a master, their value before rounding.
    pub learns: bool,
    /// How parameters are sharded at rest over the ranks that sum their gradients.
    pub rests: ShardingStrategy,
    /// Store of the state of trained parameters, if it is kept off the device.
    pub store: Option<&'a Store>,
    /// The state that the optimizer keeps for each trained parameter.
    pub states: RuleStates,
    /// The placement before any axis cuts the parameter.
    pub placement: Placement,
}

#[cfg(test)]
impl<'a, D: Kernels> ParamOrigin<'a, D> {
    pub(crate) fn new(device: &'a D, mesh: &'a Mesh<D::Place>, values: &'a dyn ValueSource<Wide<D>>) -> Self {
        let placement = Placement::default();
        let (learns, rests, store, states) = (false, ShardingStrategy::WHOLE, None, RuleStates::NONE);
        Self { device, mesh, values, learns, rests, store, states, placement }
    }
    pub(crate) fn placement(&self) -> Placement {
        self.placement.clone().resting(self.rests)
    }
}

#[cfg(test)]
impl<'a, D: Kernels> From<&ParamOrigin<'a, D>> for ParamOrigin<'a, D> {
    fn from(at: &ParamOrigin<'a, D>) -> Self {
        Self { placement: at.placement(), ..*at }
    }
}
