//! The flags of `compare`.
use crate::cli::args::{ModelName, NetworkArgs, NumberArgs, RanksArgs};
use crate::cli::pictures::PicturesArgs;
use clap::Args;
use parallel::Layout;
use std::path::PathBuf;

/// Default number of seconds that `compare` measures each row.
pub(crate) const SECONDS: f64 = 1.0;

/// Do the same work under several layouts and show time, memory, traffic and equality (the default command)
#[derive(Args, Debug, Default)]
#[command(allow_negative_numbers = true)]
pub(crate) struct CompareArgs {
    /// A layout to compare with the unsplit one, such as tp=2 or tp=2,dp=2; may be repeated
    #[arg(long)]
    pub(crate) layout: Vec<Layout>,
    #[command(flatten)]
    pub(crate) number: NumberArgs,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
    /// A folder with config.json and model.safetensors, or the name of a model [default: embedded]
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// Parts that a training step's sequences are cut into [default: 2 for each stage of the longest pipeline, 2 without one]
    #[arg(long, value_name = "N")]
    pub(crate) microbatches: Option<usize>,
    /// How long the runs of each row are measured in all, rows in turn; 0: one run each
    #[arg(long, value_name = "S", default_value_t = SECONDS)]
    pub(crate) seconds: f64,
    /// A text to take prompts and sequences from [default: the embedded text]; of a classifier, a folder with the four files
    /// of MNIST [default: drawn digits]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Draw tokens a second against the memory of a rank, as SVG, to this file: each row of generation that --layout, or the
    /// experiment with experts, has
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}
