//! A model at work on any device: a training step and tokens one by one, with what bounds them.
use crate::model::{self, Pass};
use crate::scale::Scale;
use layers::Shape;
use parallel::number::Runs;
use parallel::{Layout, Network, Result};

/// What a model takes on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtWork {
    /// Seconds of a training step.
    pub step: f64,
    /// Its floating point operations: products and attention.
    pub flops: f64,
    /// Seconds of a token that `generate` adds.
    pub token: f64,
    /// Bytes of weights that such a token reads.
    pub weights: f64,
}

impl AtWork {
    /// Measures a shape on a batch of so many sequences of so many tokens, and on a prompt of so many tokens to which so many
    /// are added; the best of some tries.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn measure<D: Runs>(
        shape: Shape,
        batch: [usize; 2],
        decode: [usize; 2],
        tries: usize,
    ) -> Result<Self> {
        let scale = Scale { shape, batch, decode, tries, ..Scale::FULL };
        Ok(Self {
            step: model::seconds::<D>(&Network::default(), Pass::Step, &Layout::UNSPLIT, &scale)?,
            flops: model::flops(Pass::Step, &Layout::UNSPLIT, &scale)?,
            token: model::decode::<D>(&scale)?,
            weights: model::weights_read::<D>(shape)?,
        })
    }
}
