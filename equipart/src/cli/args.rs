//! Flags.
mod model;
mod network;
mod price;
mod ranks;
mod train;

pub(crate) use model::ModelName;
pub(crate) use network::NetworkArgs;
use network::patience;
pub(crate) use price::PriceArgs;
pub(crate) use ranks::{RanksArgs, TableArgs, microbatches, note, note_inference, table};
pub(crate) use train::{DropoutRate, TrainArgs};

use super::pictures::{PicturesArgs, Plain};
use super::processes::{self, ProcessesArgs};
use crate::commands::bench::{self, BenchArgs};
use crate::commands::collectives::{self, CollectivesArgs};
use crate::commands::diff::{self, DiffArgs};
use crate::commands::gpu_check::Part;
use crate::commands::prove::cases::CasesArgs;
use crate::commands::schedule::{self, ScheduleArgs};
use crate::device::DeviceName;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use parallel::number::NumberName;
use parallel::{Layout, layout};
use std::path::PathBuf;
use std::time::Duration;
use tensor::Key;
use tensor::safetensors::Dtype;

/// Below the list of commands: those that few need to see in it.
const MORE: &str = "`equipart completions SHELL` prints completions for bash, zsh, fish and others; `equipart man` the manual.";

/// Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
#[derive(Parser, Debug)]
#[command(name = "equipart", version, after_help = MORE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// One JSON object a line on standard output, for scripts
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // there is one
pub(crate) enum Command {
    /// Do the same work under several layouts and show time, memory, traffic and equality (the default command)
    #[command(allow_negative_numbers = true)]
    Compare(CompareArgs),
    /// Train on text, or on given ids, with checkpoints
    #[command(allow_negative_numbers = true, after_long_help = processes::HELP)]
    Train(TrainArgs),
    /// Continue prompts
    #[command(allow_negative_numbers = true, after_long_help = processes::HELP)]
    Generate(GenerateArgs),
    /// Prove that a layout equals the unsplit model, bit for bit, in a finite field
    #[command(allow_negative_numbers = true)]
    Prove(ProveArgs),
    /// Tell a layout's peak memory, operations and traffic without running it
    #[command(allow_negative_numbers = true)]
    Price(PriceArgs),
    /// Tell the loss and the perplexity of a text or of given ids
    #[command(after_long_help = processes::HELP)]
    Eval(EvalArgs),
    /// Write a model anew, in the Hugging Face layout, with numbers of another kind
    Convert(ConvertArgs),
    /// Tell whether two runs' tensors differ by rounding or by a bug, and where it starts
    #[command(after_help = diff::CODES)]
    Diff(DiffArgs),
    /// Draw and price all-reduce algorithms: who sends what to whom, step by step
    #[command(allow_negative_numbers = true, after_help = collectives::JSON)]
    Collectives(CollectivesArgs),
    /// Draw a pipeline's schedule, built in or your own: which rank does what when, what it waits and holds
    #[command(allow_negative_numbers = true, after_help = schedule::JSON)]
    Schedule(ScheduleArgs),
    /// List what programs can compute on here, and why not on the rest
    Devices,
    /// Check every kernel on a GPU against the host, layouts on it, and how fast it is
    GpuCheck(GpuCheckArgs),
    /// List the strategies that a layout can name
    Strategies,
    /// Measure products, steps, decoding, all-reduces and proofs, beside what the machine could do at best
    #[command(after_help = bench::HELP)]
    Bench(BenchArgs),
    /// Print what a shell reads to complete commands and flags
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program
    #[command(hide = true)]
    Man {
        /// A folder for that page and those of all commands, instead of printing it
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Tokens of a sequence where nothing else is said.
pub(crate) const SEQ: usize = 256;

/// Reads the name of a number.
fn number() -> impl TypedValueParser<Value = NumberName> {
    named(NumberName::ALL.map(|(number, about)| (number.name(), about, number)))
}

/// The help of `--device`.
pub(crate) const DEVICE: &str = "Where the run computes: cpu, or cuda: a GPU for each rank where there are as many and NCCL is found, \
    else the first for all";

/// Reads the name of a device.
pub(crate) fn device() -> impl TypedValueParser<Value = DeviceName> {
    named(DeviceName::ALL)
}

/// The flags of numbers, and of what computes with them.
#[derive(Args, Debug, Default)]
pub(crate) struct NumberArgs {
    /// The numbers of the run: f32, bf16 with sums in f32, or f64
    #[arg(long = "number", default_value_t, value_name = "NUMBER", value_parser = number())]
    pub(crate) name: NumberName,
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = device(), help = DEVICE)]
    pub(crate) device: DeviceName,
}

/// Seconds for which `compare` measures a row.
pub(crate) const SECONDS: f64 = 1.0;

#[derive(Args, Debug, Default)]
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

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// A folder with config.json and model.safetensors, or the name of a model [default: embedded]
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// A text to continue, in whatever the tokenizer puts around a text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Vec<String>,
    /// Token ids to continue, such as 1,403,407; may be repeated
    #[arg(long, value_name = "IDS", value_parser = ids)]
    pub(crate) prompt_ids: Vec<Vec<u32>>,
    /// How many tokens to add [default: as the model's folder says, or 128; as many as the model has positions for]
    #[arg(long)]
    pub(crate) max_new: Option<usize>,
    /// Draw from the probabilities of logits divided by this [default: as the model's folder says, or take the likeliest
    /// token]
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Draw only from so many likeliest tokens [default: as the model's folder says, or all]
    #[arg(long)]
    pub(crate) top_k: Option<usize>,
    /// Draw only from the likeliest tokens that have this share of the probability [default: as the model's folder says,
    /// or 1]
    #[arg(long)]
    pub(crate) top_p: Option<f64>,
    /// Where tokens are drawn: other seeds, other draws [default: 0]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Take the likeliest token, whatever the model's folder says
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "seed"])]
    pub(crate) greedy: bool,
    /// Ranks along each axis: none, tp=2, ...; with dp, at least as many prompts, if no experts are shared out
    #[arg(long, default_value_t)]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) number: NumberArgs,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
    /// A folder for activations and weights, as safetensors
    #[arg(long, value_name = "DIR")]
    pub(crate) dump: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) processes: ProcessesArgs,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

/// Token ids, separated by commas.
fn ids(text: &str) -> Result<Vec<u32>, String> {
    let id = |part: &str| {
        let part = part.trim();
        part.parse().map_err(|_| format!("{part:?} is no token id; ids are whole numbers below 2^32"))
    };
    text.split(',').map(id).collect()
}

#[derive(Args, Debug)]
pub(crate) struct ProveArgs {
    #[arg(long, help = format!("{} [default: none; with --cases drawn]", layout::grammar()))]
    pub(crate) layout: Option<Layout>,
    /// With --device cuda: only these numbers, f32 or bf16; else a proof has the numbers of a field
    #[arg(long, value_name = "NUMBER", value_parser = number())]
    pub(crate) number: Option<NumberName>,
    /// Where what is proven computes: cpu, in the field; or cuda: linear layers and collectives of the layout on whole numbers, which a
    /// card adds exactly, and every kernel beside the host's
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = device())]
    pub(crate) device: DeviceName,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// The random key, decimal or 0x; the keys after it, or those of drawn cases, are hashed from it [default: a fresh one]
    #[arg(long)]
    pub(crate) key: Option<Key>,
    /// At least so many keys, each of which costs as much as the first and adds its exponent to the bound [default: 2]; in any
    /// case as many as bring it to 2^-30, 64 at most
    #[arg(long, value_name = "N", conflicts_with_all = ["cases", "minutes", "case"])]
    pub(crate) keys: Option<usize>,
    /// Prove the model of this config.json alone [default: a panel of small ones, of every family]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// With --config, a folder for the first step under the first key, as safetensors: activations, gradients, weights
    /// before and after, loss and norm²
    #[arg(long, value_name = "DIR", requires = "config")]
    pub(crate) dump: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cases: CasesArgs,
    /// moe: the embedded model with experts; mlp: a plain classifier of 784 pixels and 10 classes [default: the model of
    /// --config]
    #[arg(long, conflicts_with_all = ["config", "dump"])]
    pub(crate) model: Option<Plain>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
}

#[derive(Args, Debug)]
pub(crate) struct GpuCheckArgs {
    /// Where the report goes, as JSON
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    pub(crate) out: PathBuf,
    /// Only this part of it; may be repeated
    #[arg(long, value_name = "PART", value_parser = named(Part::ALL))]
    pub(crate) only: Vec<Part>,
    /// Measure small sizes: only to see that all of it runs
    #[arg(long)]
    pub(crate) small: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    /// A folder with config.json and model.safetensors, or the name of a model [default: embedded]
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// The text to be told, all of it [default: what is held out of the embedded text]; of a classifier, a folder with the
    /// four files of MNIST, whose test pictures are told [default: drawn digits]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    /// Sequences of token ids instead: a JSON list of lists
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "seq"])]
    pub(crate) batch: Option<PathBuf>,
    /// Tokens of a sequence that a text is cut into [default: 256, or as many as the model has positions for]
    #[arg(long)]
    pub(crate) seq: Option<usize>,
    #[arg(long, default_value_t, help = layout::grammar())]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) number: NumberArgs,
    /// How long a rank waits for others to come to one call before the run fails [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = patience)]
    pub(crate) timeout: Option<Duration>,
    /// With ranks as processes: compare all bytes of all files, not only those that ranks read
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) processes: ProcessesArgs,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// A folder with config.json and safetensors files, or embedded, or moe
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: ModelName,
    /// The folder to write: one that does not exist yet, or is empty
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The kind of numbers to write: f32, bf16 or f16 [default: that of the model]
    #[arg(long, value_parser = dtype())]
    pub(crate) dtype: Option<Dtype>,
    /// Give it so many experts in place of each feed-forward, which begin as copies of it: the model computes what it did
    #[arg(long, value_name = "E", requires = "chosen")]
    pub(crate) experts: Option<usize>,
    /// With --experts: how many of them each token is handed to
    #[arg(long, value_name = "K", requires = "experts")]
    pub(crate) chosen: Option<usize>,
    /// With --experts: how many experts a copy is cut into; divides both [default: 1]
    #[arg(long, value_name = "G", requires = "experts")]
    pub(crate) slices: Option<usize>,
}

/// Reads the name of a kind of numbers in files.
fn dtype() -> impl TypedValueParser<Value = Dtype> {
    named([
        ("f32", "32 bits", Dtype::F32),
        ("bf16", "The upper 16 bits of f32", Dtype::Bf16),
        ("f16", "IEEE half precision", Dtype::F16),
    ])
}

/// Reads a name of a list, of which each says what it means.
fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let names = all.map(|(name, about, _)| PossibleValue::new(name).help(about));
    let value = move |given: String| all.into_iter().find(|(name, ..)| given == *name);
    PossibleValuesParser::new(names).map(move |name| value(name).expect("a name of the list").2)
}
