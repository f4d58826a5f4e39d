//! The flags of `compare`.
use crate::cli::args::{DtypeArgs, ModelName, NetworkArgs, OffloadArgs, RankedArgs, link, optimizer};
use crate::cli::constants::ConstantArgs;
use crate::cli::pictures::PicturesArgs;
use crate::cli::processes;
use algorithms::Link;
use clap::Args;
use comm::Axis;
use layers::OptimizerKind;
use parallel::Layout;
use std::path::PathBuf;

/// Default number of seconds that `compare` measures each row.
pub(crate) const SECONDS: f64 = 1.0;

/// Compare several layouts on the same work: time, memory, traffic and equality (the default command)
#[derive(Args, Debug, Default)]
#[command(allow_negative_numbers = true, after_long_help = processes::HELP)]
pub(crate) struct CompareArgs {
    /// A layout to compare with the unsplit one, such as tp=2 or tp=2,dp=2; may be repeated
    #[arg(long)]
    pub(crate) layout: Vec<Layout>,
    #[command(flatten)]
    pub(crate) number: DtypeArgs,
    #[command(flatten)]
    pub(crate) ranks: RankedArgs,
    #[command(flatten)]
    pub(crate) offload: OffloadArgs,
    /// A folder with config.json and model.safetensors, or the name of a model [default: embedded]
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// Repeat the rows of generation of layouts with pp ranks for every order of requests: one by one, in
    /// slots that take turns, and all at once
    #[arg(long, conflicts_with = "epochs")]
    pub(crate) requests: bool,
    /// Microbatches of a training step [default: 2 for each stage of the longest pipeline; 2 without a
    /// pipeline; with --epochs, 1 for each stage]
    #[arg(long, value_name = "N")]
    pub(crate) microbatches: Option<usize>,
    /// The optimizer of training [default: sgd]
    #[arg(long, value_name = "NAME", value_parser = optimizer())]
    pub(crate) optimizer: Option<OptimizerKind>,
    #[command(flatten)]
    pub(crate) constants: ConstantArgs,
    /// Seconds that each row is measured in all, rows in turn; 0: one run each
    #[arg(long, value_name = "S", default_value_t = SECONDS)]
    pub(crate) seconds: f64,
    /// Text for prompts and sequences [default: the embedded text]; for a classifier, a folder with the four
    /// files of MNIST [default: generated digits]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// With --model mlp: train for this number of epochs under each layout, with the settings of `train`, and
    /// compare accuracies and times
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub(crate) epochs: Option<usize>,
    /// Draw tokens a second against the memory of a rank to this file, as SVG: one point for each row of
    /// generation under --layout, or of the experiment with experts; with --epochs, accuracy, loss and time
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// Repeat the rows of layouts with ranks along this axis over a slow link, such as dp=20us,1GB/s
    #[arg(long, value_name = "AXIS=LATENCY,BANDWIDTH", value_parser = link)]
    pub(crate) slow_link: Option<(Axis, Link)>,
}
