//! The part of a parameter that this rank saves: the elements of which it is the lowest-ranked holder.
//!
//! ```text
//! sharded at rest        each rank its shard; of subgroups with equal shards, the first
//! whole on all ranks     the first of the ranks that sum the gradient, or that hold a replicated parameter
//! pieces with holders    the first holder of each piece: KV heads that several tensor ranks share
//! tied over stages       the first stage
//! ```
//! Over all ranks, every element of the whole is saved once; padding never is.
use crate::Param;
use crate::param::Wide;
use crate::param::placement::CutRectangle;
use kernels::Kernels;
use std::borrow::Cow;
use tensor::{Category, Scalar, Tensor};

/// A tensor of a parameter in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SavedTensor {
    /// The value, before it was rounded to a narrow dtype.
    Value,
    /// A moment of the optimizer, by its number.
    Moment(usize),
}

/// A tensor at rest: a value in the dtype of the device, or wide state.
pub enum TensorAtRest<D: Kernels> {
    /// A value without a master.
    Value(Tensor<D>),
    /// A master or a moment.
    Wide(Tensor<D::Wide>),
}

/// Elements of a tensor at rest that form a rectangle of the whole parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRectangle {
    /// First row and column in the whole.
    pub begin: [usize; 2],
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Index of the first element in the tensor at rest.
    pub from: usize,
    /// Number of elements from one row to the next in the tensor at rest.
    pub stride: usize,
}

/// The elements of a tensor that this rank saves.
pub struct SavedPart<D: Kernels> {
    /// The tensor at rest on this rank.
    pub tensor: TensorAtRest<D>,
    /// Its elements that this rank saves.
    pub rectangles: Vec<SavedRectangle>,
}

impl<D: Kernels> Param<D> {
    /// Returns the elements of a tensor that this rank saves; `None` if it saves none of them, or there is no
    /// such tensor. State that is kept off the device is loaded.
    pub fn saved(&self, which: SavedTensor) -> Option<SavedPart<D>> {
        let wide = match which {
            SavedTensor::Value => self.master.as_ref(),
            SavedTensor::Moment(i) => Some(self.moments.get(i)?),
        };
        let is_sharded = self.rests_sharded(wide.is_some());
        if !self.sharding.saves(is_sharded) {
            return None;
        }
        let firsts = self.rectangles(is_sharded).filter_map(|(rectangle, first)| first.then_some(rectangle));
        let rectangles: Vec<_> = firsts.collect();
        if rectangles.is_empty() {
            return None;
        }
        let tensor = match wide {
            Some(wide) => TensorAtRest::Wide(wide.read()),
            None => TensorAtRest::Value(self.value.rest()?),
        };
        Some(SavedPart { tensor, rectangles })
    }
    /// Returns whether this rank keeps only its shard of the value, or of a wide tensor.
    pub(super) fn rests_sharded(&self, wide: bool) -> bool {
        self.sharding.shards.is_some() && (wide || self.value.shard.is_some())
    }
    /// Splits this rank's elements of a tensor at rest, sharded or whole, into rectangles of the whole
    /// parameter; padding is left out. With each, returns whether no lower rank holds its pieces.
    pub(super) fn rectangles(&self, sharded: bool) -> impl Iterator<Item = (SavedRectangle, bool)> {
        let (from, n) = match &self.sharding.shards {
            Some(shards) if sharded => (shards.from(), shards.len),
            _ => (0, usize::MAX),
        };
        let cols = self.local()[1];
        let of = move |CutRectangle { local: [row, col], shape, whole, first }: CutRectangle| {
            let from = row * cols + col - from;
            whole.map(|begin| (SavedRectangle { begin, shape, from, stride: cols }, first))
        };
        self.sharding.cuts.rectangles(from, n).into_iter().filter_map(of)
    }
}

impl<D: Kernels> TensorAtRest<D> {
    /// Returns the elements on the host, wide; `None` on the meta device. They are copied only if they are
    /// elsewhere, or narrow.
    pub fn read(&self) -> Option<Cow<'_, [Wide<D>]>> {
        match self {
            Self::Value(value) => value.values().map(Scalar::widened),
            Self::Wide(wide) => wide.values(),
        }
    }
    /// Returns a copy that later updates do not change.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        fn copy<E: Kernels>(of: &Tensor<E>) -> Tensor<E> {
            let mut copy = Tensor::empty(of.device(), Category::Snapshot, of.rows(), of.cols());
            of.device().copy(copy.view_mut(), of.view());
            copy
        }
        match self {
            Self::Value(value) => Self::Value(copy(value)),
            Self::Wide(wide) => Self::Wide(copy(wide)),
        }
    }
}
