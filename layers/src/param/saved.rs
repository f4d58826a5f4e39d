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
use crate::param::shards::rectangles;
use kernels::Kernels;
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
        let sharding = &self.sharding;
        let wide = match which {
            SavedTensor::Value => self.master.as_ref(),
            SavedTensor::Moment(i) => Some(self.moments.get(i)?),
        };
        let is_sharded = sharding.shards.is_some() && (wide.is_some() || self.value.shard.is_some());
        if !sharding.saves(is_sharded) {
            return None;
        }
        let (from, n) = match &sharding.shards {
            Some(shards) if is_sharded => (shards.from(), shards.len),
            _ => (0, usize::MAX),
        };
        let rectangles = self.rectangles(from, n);
        if rectangles.is_empty() {
            return None;
        }
        let tensor = match wide {
            Some(wide) => TensorAtRest::Wide(wide.read()),
            None => TensorAtRest::Value(self.value.rest()?),
        };
        Some(SavedPart { tensor, rectangles })
    }
    /// Splits `n` elements of the local part, row by row from element `from` on, into rectangles that are
    /// rectangles of the whole, too.
    fn rectangles(&self, from: usize, n: usize) -> Vec<SavedRectangle> {
        let (local, cuts) = (self.local(), &self.sharding.cuts);
        let [rows, columns] = [0, 1].map(|dim| cuts.saved(dim));
        let n = n.min((local[0] * local[1]).saturating_sub(from));
        let mut all = Vec::new();
        for part in rectangles(n, from, local) {
            let within = |dim: usize, (at, first): &(std::ops::Range<usize>, usize)| {
                let start = at.start.max(part.begin[dim]);
                let end = at.end.min(part.begin[dim] + part.shape[dim]);
                (start < end).then(|| (start, first + start - at.start, end - start))
            };
            let columns: Vec<_> = columns.iter().filter_map(|piece| within(1, piece)).collect();
            for (row, first, height) in rows.iter().filter_map(|piece| within(0, piece)) {
                all.extend(columns.iter().map(|(column, beginning, width)| SavedRectangle {
                    begin: [first, *beginning],
                    shape: [height, *width],
                    from: row * local[1] + column - from,
                    stride: local[1],
                }));
            }
        }
        all
    }
}

impl<D: Kernels> TensorAtRest<D> {
    /// Returns the elements on the host, wide; `None` on the meta device.
    pub fn read(&self) -> Option<Vec<Wide<D>>> {
        match self {
            Self::Value(value) => Some(value.read()?.into_iter().map(Scalar::widen).collect()),
            Self::Wide(wide) => wide.read(),
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
