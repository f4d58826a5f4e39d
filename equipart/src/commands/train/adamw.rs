//! Constants of AdamW: their flags, and their place among the settings of a run.
use super::settings::OptimizerName;
use crate::cli::pictures::refuse;
use clap::Args;
use layers::OptimizerKind;
use parallel::{Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Decay of the two moments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Betas(pub f64, pub f64);

impl FromStr for Betas {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let both =
            text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
        let (first, second) = both.ok_or_else(|| format!("{text:?} is not two numbers such as 0.9,0.95"))?;
        Ok(Self(first, second))
    }
}

impl fmt::Display for Betas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0, self.1)
    }
}

/// Flags of the constants of `AdamW`.
#[derive(Args, Debug)]
pub(crate) struct AdamwArgs {
    /// Weight decay of AdamW, on matrices only; times the learning rate in each step [default: 0.1]
    #[arg(long, value_name = "X")]
    pub(crate) weight_decay: Option<f64>,
    /// Decay of the first and of the second moment of AdamW [default: 0.9,0.95]
    #[arg(long, value_name = "B1,B2")]
    pub(crate) betas: Option<Betas>,
    /// Constant that AdamW adds to the root of the second moment [default: 1e-8]
    #[arg(long, value_name = "X")]
    pub(crate) eps: Option<f64>,
}

impl AdamwArgs {
    /// Returns the constants, those of `usual` where no flag is given, for a run with this optimizer.
    ///
    /// # Errors
    /// If a flag is given and the optimizer is another.
    pub(crate) fn of(&self, usual: AdamwConstants, optimizer: OptimizerName) -> Result<AdamwConstants> {
        let Self { weight_decay, betas, eps } = self;
        let given =
            [("weight-decay", weight_decay.is_some()), ("betas", betas.is_some()), ("eps", eps.is_some())];
        if optimizer != OptimizerName::Adamw {
            refuse(&given, &format!("--optimizer adamw; {optimizer}"))?;
        }
        Ok(AdamwConstants {
            weight_decay: weight_decay.unwrap_or(usual.weight_decay),
            betas: betas.unwrap_or(usual.betas),
            eps: eps.unwrap_or(usual.eps),
        })
    }
}

/// Constants of `AdamW`, as in [`OptimizerKind::AdamW`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamwConstants {
    /// Weight decay.
    pub weight_decay: f64,
    /// Decay of the moments.
    pub betas: Betas,
    /// Constant added to the root of the second moment.
    pub eps: f64,
}

impl Default for AdamwConstants {
    fn default() -> Self {
        const USUAL: AdamwConstants = match OptimizerKind::ADAMW {
            OptimizerKind::AdamW { beta1, beta2, eps, decay } => {
                AdamwConstants { weight_decay: decay, betas: Betas(beta1, beta2), eps }
            }
            OptimizerKind::Sgd => unreachable!(),
        };
        USUAL
    }
}

impl AdamwConstants {
    /// Returns the optimizer.
    pub(super) fn kind(self) -> OptimizerKind {
        let Self { weight_decay: decay, betas: Betas(beta1, beta2), eps } = self;
        OptimizerKind::AdamW { beta1, beta2, eps, decay }
    }
    /// Validates the constants, as f32 holds them.
    ///
    /// # Errors
    /// One sentence on the first that is out of range.
    pub(super) fn check(self) -> Result<()> {
        let Self { weight_decay, betas, eps } = self;
        if !(weight_decay.is_finite() && weight_decay >= 0.0) {
            bail!("--weight-decay is {weight_decay}; it must be 0 or more");
        }
        if ![betas.0, betas.1].iter().all(|beta| (0.0..1.0).contains(&(*beta as f32))) {
            bail!("--betas is {betas}; both must be 0 or more and below 1 in f32");
        }
        if !(eps.is_finite() && eps as f32 > 0.0) {
            bail!("--eps is {eps}; it must be above 0 in f32");
        }
        Ok(())
    }
}
