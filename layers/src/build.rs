//! What building a layer needs: a device, a mesh, and where the initial values come from.
use crate::ops::Region;
use crate::{Error, Result, Strategy};
use comm::{Axis, Mesh};
use kernels::Kernels;
use std::cell::RefCell;
use std::rc::Rc;
use tensor::{Device, Scalar, mix};

/// Where a parameter's values come from when nothing was trained: normal, `mean + std · draw`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub std: f64,
}

/// Element `[row, column]` of a whole parameter.
pub type Element<'a, E> = Box<dyn Fn([usize; 2]) -> E + 'a>;

/// A source of initial values. Each rank asks only for the elements of its share.
pub trait Values<E> {
    /// The values of the parameter `name` of this whole shape.
    ///
    /// # Errors
    /// If there are none, or of another shape.
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<Element<'_, E>>;
}

/// Values from a hash of (seed, name, global index): the same whatever the layout.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Other seeds, other values.
    pub seed: u64,
}

impl<E: Scalar> Values<E> for Random {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<Element<'_, E>> {
        let seed = name.bytes().fold(mix(self.seed), |hash, byte| mix(hash ^ u64::from(byte)));
        let mean = E::from_f64(draw.mean);
        Ok(Box::new(move |[row, column]| {
            let index = (row * shape[1] + column) as u64;
            mean + E::sample(mix(seed ^ index), draw.std)
        }))
    }
}

/// The place where layers are built: this rank's device, its mesh, and the values.
pub struct Builder<'a, D: Kernels> {
    /// This rank's memory.
    pub device: &'a D,
    /// This rank's groups.
    pub mesh: &'a Mesh<D>,
    /// The parameters' first values.
    pub values: &'a dyn Values<<D as Device>::Elem>,
    /// Which tokens of the residual stream are this rank's.
    pub region: Region,
    /// What the layout's strategies build.
    pub strategies: Vec<&'a dyn Strategy<D>>,
    /// Layers that strategies built so far, each with the strategy's name.
    pub built: Built,
}

/// Names of layers, each with that of the strategy which built it.
pub type Built = Rc<RefCell<Vec<(String, &'static str)>>>;

impl<'a, D: Kernels> Builder<'a, D> {
    /// A place where every rank of the tensor axis has all tokens of the residual stream.
    pub fn new(device: &'a D, mesh: &'a Mesh<D>, values: &'a dyn Values<<D as Device>::Elem>) -> Self {
        Self { device, mesh, values, region: Region::Whole, strategies: Vec::new(), built: Rc::default() }
    }
    /// The same, where these strategies build what they build.
    #[must_use]
    pub fn with(self, strategies: impl IntoIterator<Item = &'a dyn Strategy<D>>) -> Self {
        strategies.into_iter().fold(self, |at, strategy| {
            let mut at = strategy.place(at);
            at.strategies.push(strategy);
            at
        })
    }
    /// The same, but each rank of the tensor axis has its own tokens (sequence regions).
    #[must_use]
    pub fn in_regions(self) -> Self {
        Self { region: Region::tokens(self.mesh.group(Axis::Tp)), ..self }
    }
}

/// A size that must be at least 1.
pub(crate) fn positive(what: &str, seen: usize) -> Result<usize> {
    if seen == 0 {
        return Err(Error::Size { what: what.into(), seen: "0".into(), wanted: "at least 1".into() });
    }
    Ok(seen)
}

/// A place where every rank has all tokens.
pub(crate) fn whole_rows<D: Kernels>(at: &Builder<D>, name: &str) -> Result<()> {
    if at.region == Region::Whole {
        return Ok(());
    }
    Err(Error::Tokens { name: name.into() })
}
