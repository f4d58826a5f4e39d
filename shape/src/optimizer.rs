//! The optimizer of a model's parameters: its constants, and the state that it keeps for each parameter.
use serde::{Deserialize, Serialize};

/// An optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Plain gradient descent.
    Sgd,
    /// Adam with decoupled weight decay (on matrices only).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Constant added to the square root of the second moment.
        eps: f64,
        /// Weight decay.
        decay: f64,
    },
}

impl OptimizerKind {
    /// Returns the optimizer's name in files.
    pub fn name(self) -> &'static str {
        match self {
            OptimizerKind::Sgd => "sgd",
            OptimizerKind::AdamW { .. } => "adamw",
        }
    }
    /// Returns the tensors that it keeps for each parameter.
    pub fn states(self) -> &'static [StateInfo] {
        const MOMENTS: [StateInfo; 2] = [StateInfo::like_value("m"), StateInfo::like_value("v")];
        match self {
            OptimizerKind::Sgd => &[],
            OptimizerKind::AdamW { .. } => &MOMENTS,
        }
    }
    /// `AdamW` with the constants usual for transformers.
    pub const ADAMW: OptimizerKind = OptimizerKind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };
}

/// A tensor of optimizer state that a rule keeps for each parameter, in the wide dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Its name, in files before the parameter's: `m.head`.
    pub name: &'static str,
    /// Its elements.
    pub like: Like,
}

impl StateInfo {
    /// A tensor with one element for each of the value's.
    pub const fn like_value(name: &'static str) -> Self {
        Self { name, like: Like::Value }
    }
}

/// The elements of a parameter's tensor, by those of its value `[R, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// One for each of the value's: `[R, C]`.
    Value,
    /// One for each block of so many consecutive elements of a row; the last block of a row may be smaller:
    /// `[R, ⌈C/n⌉]`.
    Blocks(usize),
    /// One for the whole parameter, the same on every rank: `[1, 1]`. A parameter is updated in parts, so
    /// each of them sets this number, and none adds to it.
    One,
}

impl Like {
    /// Returns the tensor's shape for a value of this shape.
    pub fn shape(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Value => [rows, columns],
            Self::Blocks(n) => [rows, columns.div_ceil(n)],
            Self::One => [1, 1],
        }
    }
    /// Returns the number of its elements before element `of_value` of the value, counted row by row in rows
    /// of `columns` elements: the begin of a block, if elements are in blocks.
    pub fn before(self, of_value: usize, columns: usize) -> usize {
        match self {
            Self::Value => of_value,
            Self::Blocks(n) => of_value / columns * columns.div_ceil(n) + of_value % columns / n,
            Self::One => 0,
        }
    }
}
