//! The tensors of a parameter that this rank holds at rest, with their places in the whole: ranks that hold
//! the same elements compare them.
use crate::Param;
use crate::param::Wide;
use crate::param::saved::{SavedRectangle, TensorAtRest};
use kernels::Kernels;

/// A tensor of a parameter at rest on this rank.
pub struct HeldTensor<'a, D: Kernels> {
    param: &'a Param<D>,
    number: usize,
    /// Its elements, as rectangles of the whole parameter.
    pub rectangles: Vec<SavedRectangle>,
}

impl<D: Kernels> Param<D> {
    /// Returns the tensors that this rank holds at rest, and that have elements: the value, its master, the
    /// moments. A rank holds nothing of a parameter that rests on another one, the root.
    pub fn held(&self) -> impl Iterator<Item = HeldTensor<'_, D>> {
        let value = self.value.shard.is_some() || self.value.whole.is_some();
        let first = [value.then_some(0), self.master.as_ref().map(|_| 1)];
        let numbers = first.into_iter().flatten().chain(2..2 + self.moments.len());
        let of = |number| {
            let rectangles = self.rectangles(self.rests_sharded(number > 0)).map(|(rectangle, _)| rectangle);
            HeldTensor { param: self, number, rectangles: rectangles.collect() }
        };
        numbers.filter(|_| !self.sharding.is_elsewhere()).map(of)
    }
}

impl<D: Kernels> HeldTensor<'_, D> {
    /// Name of its parameter.
    pub fn name(&self) -> &str {
        self.param.name()
    }
    /// Its number: 0 for the value, 1 for the master, 2 and 3 for the moments.
    pub fn number(&self) -> usize {
        self.number
    }
    /// Returns the elements at rest on the host, wide; `None` on the meta device. Loads state that is kept
    /// off the device.
    pub fn read(&self) -> Option<Vec<Wide<D>>> {
        let wide = match self.number {
            0 => return Some(TensorAtRest::<D>::Value(self.param.value.rest()?).read()?.into_owned()),
            1 => self.param.master.as_ref()?,
            moment => &self.param.moments[moment - 2],
        };
        wide.read().read()
    }
}

impl<D: Kernels> std::fmt::Display for HeldTensor<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.param.name();
        match self.number {
            0 => f.write_str(name),
            1 => write!(f, "the master of {name}"),
            moment => write!(f, "moment {} of {name}", moment - 1),
        }
    }
}
