//! Which optimizer changes a model's parameters, and its constants.
use serde::{Deserialize, Serialize};

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Plain gradient descent.
    Sgd,
    /// Adam with decoupled weight decay (on matrices only).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Weight decay.
        decay: f64,
    },
}

impl Kind {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sgd => "sgd",
            Kind::AdamW { .. } => "adamw",
        }
    }
    /// How many moments it keeps of each number.
    pub fn moments(self) -> usize {
        match self {
            Kind::Sgd => 0,
            Kind::AdamW { .. } => 2,
        }
    }
    /// `AdamW` as most transformers are trained.
    pub const ADAMW: Kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };
}
