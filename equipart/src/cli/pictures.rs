//! What only models of pictures take: `--model mlp`, and what of the other flags it has no use for.
use clap::{Args, ValueEnum};
use models::Learner;
use models::digits::Digits;
use parallel::{Error, Result};
use std::path::Path;

/// Features of a classifier's layers between.
type Hidden = Vec<usize>;

/// Features of the layers between, separated by commas.
fn hidden(text: &str) -> std::result::Result<Hidden, String> {
    if text.trim() == "none" {
        return Ok(Vec::new());
    }
    let size = |part: &str| {
        let size = part.trim().parse().ok().filter(|n| *n > 0);
        size.ok_or_else(|| {
            format!("{part:?} is no hidden size; write numbers of 1 or more, such as 512,512, or none")
        })
    };
    text.split(',').map(size).collect()
}

/// The sizes of a classifier.
#[derive(Args, Debug, Default)]
pub(crate) struct PicturesArgs {
    /// With --model mlp: features of the layers between pixels and classes, or none [default: 512,512]
    #[arg(long, value_name = "SIZES", value_parser = hidden)]
    pub(crate) hidden: Option<Hidden>,
}

impl PicturesArgs {
    /// Fresh weights for such pictures; without pictures, for those that are drawn.
    pub(crate) fn fresh(&self, digits: Option<&Digits>, seed: u64) -> Learner {
        let (pixels, classes) = digits.map_or((784, 10), |digits| (digits.pixels(), digits.classes));
        let hidden = self.hidden.as_deref().unwrap_or(&[512, 512]);
        Learner::classifier([&[pixels], hidden, &[classes]].concat(), seed)
    }
    /// Whether a model of text is given what is not for it.
    pub(crate) fn unused(&self) -> Result<()> {
        refuse(&[("hidden", self.hidden.is_some())], "--model mlp; a model of text")
    }
}

/// Models that are named and not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plain {
    /// A multilayer perceptron.
    Mlp,
    /// The embedded default's sister with experts.
    Moe,
}

/// Flags that are given though they are for others.
pub(crate) fn refuse(flags: &[(&str, bool)], others: &str) -> Result<()> {
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Error::new(format!("--{flag} is for {others} has no use for it"))),
        None => Ok(()),
    }
}

/// Flags that a classifier has no use for.
pub(crate) fn only_text(flags: &[(&str, bool)]) -> Result<()> {
    refuse(flags, "models of text; --model mlp")
}

/// Pictures of a folder, or drawn ones.
pub(crate) fn digits(folder: Option<&Path>) -> Result<Digits> {
    folder.map_or_else(|| Ok(Digits::generated(0, 10_000, 2_000)), Digits::read)
}
