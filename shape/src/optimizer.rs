//! The optimizer of a model's parameters, and its constants.
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
    /// Returns the number of moments kept per parameter.
    pub fn moments(self) -> usize {
        match self {
            OptimizerKind::Sgd => 0,
            OptimizerKind::AdamW { .. } => 2,
        }
    }
    /// `AdamW` with the constants usual for transformers.
    pub const ADAMW: OptimizerKind = OptimizerKind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };
}
