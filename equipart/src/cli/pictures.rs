//! Flags of models of pictures: `--model mlp`, and the other flags that it refuses.
use clap::{Args, ValueEnum};
use models::TrainableModel;
use models::digits::Digits;
use parallel::Result;
pub(crate) use run::train::settings::refuse;
use std::path::Path;

/// Features of the hidden layers of a classifier.
type Hidden = Vec<usize>;

/// Parses the features of the hidden layers, separated by commas.
fn hidden(text: &str) -> std::result::Result<Hidden, String> {
    if text.trim() == "none" {
        return Ok(Vec::new());
    }
    let size = |part: &str| {
        part.trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| {
            format!("{part:?} is not a hidden size; write numbers of 1 or more, such as 512,512, or none")
        })
    };
    text.split(',').map(size).collect()
}

/// The sizes of a classifier.
#[derive(Args, Debug, Default)]
pub(crate) struct PicturesArgs {
    /// With --model mlp: features of the hidden layers, or none [default: 512,512]
    #[arg(long, value_name = "SIZES", value_parser = hidden)]
    pub(crate) hidden: Option<Hidden>,
}

impl PicturesArgs {
    /// Returns a classifier with fresh weights for these pictures, or, without pictures, for generated
    /// digits.
    pub(crate) fn fresh(&self, digits: Option<&Digits>, seed: u64) -> TrainableModel {
        let (pixels, classes) = digits.map_or((784, 10), |digits| (digits.pixels(), digits.classes));
        let hidden = self.hidden.as_deref().unwrap_or(&[512, 512]);
        TrainableModel::classifier([&[pixels], hidden, &[classes]].concat(), seed)
    }
    /// Refuses `--hidden` for a text model.
    pub(crate) fn unused(&self) -> Result<()> {
        refuse(&[("hidden", self.hidden.is_some())], "--model mlp; a model of text")
    }
}

/// Models that are named instead of read from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NamedModel {
    /// Multilayer perceptron.
    Mlp,
    /// The embedded default model with experts.
    Moe,
}

/// Refuses flags that do not apply to a classifier.
pub(crate) fn only_text(flags: &[(&str, bool)]) -> Result<()> {
    refuse(flags, "models of text; --model mlp")
}

/// Reads the pictures of a folder, or generates digits.
pub(crate) fn digits(folder: Option<&Path>) -> Result<Digits> {
    folder.map_or_else(|| Ok(Digits::generated(0, 10_000, 2_000)), Digits::read)
}
