//! Part of a parameter that an update changes at a time: rows of a whole, or elements of a shard.
use crate::param::placement::Band;
use crate::param::state::StateTensor;
use kernels::Kernels;
use shape::Like;
use tensor::{View, ViewMut};

/// Arguments of an update: a part of the value, and the same part of all that belongs to it. The value, its
/// master, the gradient and state like the value have one shape `[R, C]`. State of blocks of `n` elements is
/// `[R, ⌈C/n⌉]`: the blocks of a row are next to each other, and no part begins or ends within one.
pub struct UpdatePart<'a, D: Kernels> {
    /// The device.
    pub device: &'a D,
    /// The value.
    pub value: ViewMut<'a, D>,
    /// The master of a narrow value.
    pub master: Option<ViewMut<'a, D::Wide>>,
    /// The optimizer's state.
    pub states: StateParts<'a, D>,
    /// The synced gradient.
    pub gradient: View<'a, D::Wide>,
}

/// The same part of each tensor of state.
pub struct StateParts<'a, D: Kernels> {
    pub(crate) states: &'a mut [StateTensor<D::Wide>],
    pub(crate) at: UpdateRange,
}

impl<'a, D: Kernels> StateParts<'a, D> {
    /// Returns the first `N` tensors, in the order of the rule's list.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn all<const N: usize>(self) -> [ViewMut<'a, D::Wide>; N] {
        let Self { states, at } = self;
        states.first_chunk_mut::<N>().expect("the rule lists its state").each_mut().map(|state| {
            let whole = state.kept.here().view_mut();
            let like = state.info.like;
            if like == Like::One { whole } else { at.like(like).of_mut(whole) }
        })
    }
}

/// The place of a part.
#[derive(Clone, Copy)]
pub(crate) struct UpdateRange {
    /// Rows, or elements of a shard.
    pub(crate) band: Band,
    /// Number of columns of a row.
    pub(crate) cols: usize,
    /// True if the elements of a shard are whole rows.
    pub(crate) rows: bool,
}

impl UpdateRange {
    /// Returns the same part of a tensor with such elements.
    fn like(self, like: Like) -> Self {
        let Self { band: Band { dim, start, len }, cols, rows } = self;
        let before = |element: usize| if dim == 0 { element } else { like.before(element, cols) };
        let [start, end] = [start, start + len].map(before);
        Self { band: Band { dim, start, len: end - start }, cols: like.shape([1, cols])[1], rows }
    }
    /// Returns this part of a tensor.
    pub(crate) fn of<D: Kernels>(self, all: View<D>) -> View<D> {
        let part = self.band.of(all);
        if self.rows { part.reshape(self.band.len / self.cols, self.cols) } else { part }
    }
    /// Returns this part of a tensor, for writing.
    pub(crate) fn of_mut<D: Kernels>(self, all: ViewMut<D>) -> ViewMut<D> {
        let part = self.band.of_mut(all);
        if self.rows { part.reshape(self.band.len / self.cols, self.cols) } else { part }
    }
}
