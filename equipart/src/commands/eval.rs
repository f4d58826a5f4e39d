//! `eval`: mean loss and perplexity of a model on a text or on given ids; loss and accuracy of a classifier
//! on pictures.
use super::Run;
use crate::cli::args::{self, DtypeArgs, ModelName, RanksArgs, patience};
use crate::cli::pictures::{PicturesArgs, digits, only_text};
use crate::cli::processes::ProcessesArgs;
use crate::cli::watch::ProgressWatch;
use crate::cli::{corpus, learner, loads, out, processes, show};
use crate::views::Views;
use clap::Args;
use comm::Axis;
use kernels::MetaOf;
use layers::{LayerCounts, counted};
use models::{Model, TrainableModel, ids, text};
use parallel::dtype::RunDevice;
use parallel::{
    Batch, BuildContext, Layout, Network, Result, Sequence, Trainer, bail, budget, price, session,
};
use run::in_device;
use run::train::settings::{SEQ, sequences};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use tensor::Real;
use tensor::files::{self, seen};

/// Measure the loss and the perplexity of a text or of given ids
#[derive(Args, Debug)]
#[command(after_long_help = processes::HELP)]
pub(crate) struct EvalArgs {
    /// A folder with config.json and model.safetensors, or the name of a model [default: embedded]
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// Text to evaluate, all of it [default: the held-out part of the embedded text]; for a classifier, a
    /// folder with the four files of MNIST, whose test pictures are evaluated [default: generated digits]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    /// Evaluate sequences of token ids instead: a JSON list of lists
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "seq"])]
    pub(crate) batch: Option<PathBuf>,
    /// Tokens of the sequences that a text is cut into [default: 256, or the model's positions if fewer]
    #[arg(long)]
    pub(crate) seq: Option<usize>,
    #[arg(long, default_value_t, help = parallel::layout::grammar())]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) number: DtypeArgs,
    /// Seconds that a rank waits for the others in one call before the run fails [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = patience)]
    pub(crate) timeout: Option<Duration>,
    /// Check the digests of all weights first; with ranks as processes, also compare all bytes of all files,
    /// not only those that ranks read
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) processes: ProcessesArgs,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
}

/// Evaluation of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// e^loss: the number of equally likely tokens that the model chooses among.
    pub perplexity: f64,
    /// Number of predicted tokens, or of pictures.
    pub tokens: usize,
    /// Fraction of the pictures classified correctly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Tokens per expert.
    #[serde(skip_serializing_if = "LayerCounts::is_empty")]
    pub experts: LayerCounts,
}

/// Sequences, and pictures, evaluated at once on each data rank.
const TOGETHER: [usize; 2] = [8, 1000];

/// Evaluates sequences under a layout, over a network; `watch` receives the number of finished parts and of
/// all parts.
///
/// # Errors
/// If the layout does not fit the model, there are fewer sequences than data ranks and no experts for the
/// ranks without a sequence, memory is too small, or a rank fails.
pub fn evaluate<D: RunDevice>(
    model: &TrainableModel,
    (layout, network): (&Layout, &Network),
    sequences: Vec<Sequence>,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Evaluation> {
    let (design, pictures) = (&model.design, model.text.is_none());
    layout.fits(design.clone().inferring())?;
    let (data, together) = (layout.tokens().data_ranks(), TOGETHER[usize::from(pictures)]);
    let microbatches = sequences.len().div_ceil(together * data).min(sequences.len() / data).max(1);
    let batch = Batch::new(sequences, microbatches)?.idling(layout.shares_experts());
    batch.deals(&layout.tokens())?;
    let largest = batch.largest(layout.size(Axis::Pp));
    let peak = price::peak_of_all::<D, _>(
        layout,
        |tokens| largest.dealt(&tokens),
        |at: BuildContext<MetaOf<D>>| Trainer::evaluator(&at, design)?.evaluate(&largest, &|_| ()).map(drop),
    )?;
    budget::fits::<D::Place>(
        format_args!("evaluating under {layout}"),
        [network.here(layout), layout.ranks()],
        peak.all,
    )?;
    let ranks = session::run(
        (layout, &network.world(layout, "evaluation")?),
        model.values(),
        |at: BuildContext<D>| {
            let done = |n| {
                if at.mesh.rank() == 0 {
                    watch(n, microbatches);
                }
            };
            let mut trainer = Trainer::evaluator(&at, design)?;
            network.agrees(at.mesh)?;
            let loss = trainer.evaluate(&batch, &done)?;
            let experts: LayerCounts = network.of_all(at.mesh, trainer.take_counts())?.into_iter().collect();
            let right = pictures.then(|| trainer.correct(&batch, &|_| ())).transpose()?;
            Ok((loss.read().expect("the host has values")[0].to_f64(), right, experts))
        },
    )?;
    let ((loss, right), tokens) = ((ranks[0].0, ranks[0].1), batch.counted());
    let experts = ranks.into_iter().map(|(.., experts)| experts).collect();
    if !loss.is_finite() {
        bail!("the loss is {loss}, which is not finite; check the weights");
    }
    let accuracy = right.map(|right| right as f64 / tokens.max(1) as f64);
    Ok(Evaluation { loss, perplexity: loss.exp(), tokens, accuracy, experts })
}

/// Reads the test pictures.
fn pictures(a: &EvalArgs) -> Result<Vec<Sequence>> {
    only_text(&[("seq", a.seq.is_some()), ("batch", a.batch.is_some())])?;
    let test = digits(a.data.as_deref())?.test;
    Ok((0..test.len()).map(|i| test.example(i)).collect())
}

/// Reads the sequences of the text or of the ids.
fn sequences_of(a: &EvalArgs, model: &Model) -> Result<Vec<Sequence>> {
    let (vocabulary, positions) = (model.config.shape.vocabulary, model.config.positions);
    if let Some(file) = &a.batch {
        return ids::read(file, vocabulary, positions);
    }
    let (tokenizer, seq) = (model.tokenizer()?, a.seq.unwrap_or(SEQ.min(positions)));
    if seq == 0 || seq > positions {
        bail!("--seq is {seq}; it must be 1 to {positions}, the model's positions");
    }
    let text: Vec<u32> = match &a.data {
        Some(file) => text::encode(&files::read(file)?, 0, &file.display().to_string(), &tokenizer)?.ids,
        None => corpus(None, seq, &tokenizer)?.held_out,
    };
    if text.len() < 2 {
        bail!(
            "the number of tokens of the text is {}; at least 2 are needed to predict one from another",
            text.len()
        );
    }
    Ok(sequences(text::windows(&text, seq)))
}

impl Run for EvalArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, json: bool) -> Result<bool> {
        let a = self;
        if a.verify {
            seen::note(true);
        }
        let model = learner(a.model.as_ref(), &a.pictures)?;
        if a.verify && model.verify()? == 0 {
            out::note(&format!(
                "note: {} has no digests: they are in files that equipart writes",
                model.origin
            ));
        }
        let all = model.text.as_ref().map_or_else(|| pictures(&a), |model| sequences_of(&a, model))?;
        let watch = ProgressWatch::bar(0);
        let layout = a.on_ranks.of(a.layout, &model.design.clone().inferring())?;
        args::note_inference(&layout);
        let watching = |done, of| watch.part("evaluated", done, of);
        let engine = a.number.device.open(layout.ranks(), &out::note)?;
        let network = Network { timeout: a.timeout, ..Network::default() };
        let network = a.processes.join(network, (&[layout], engine), a.on_ranks.split.as_ref(), &[])?;
        let evaluation = in_device!((a.number.device, a.number.name), D => evaluate::<D>(&model, (&layout, &network), all, &watching))?;
        watch.done();
        let Evaluation { loss, perplexity, tokens, accuracy, .. } = evaluation;
        show::one(json, &evaluation, || match accuracy {
            None => format!(
                "loss {loss:.6} nats a token, perplexity {perplexity:.4}, {}",
                counted(tokens, "token")
            ),
            Some(right) => format!("loss {loss:.6} nats a picture, {:.2} % of {tokens} right", 100.0 * right),
        });
        loads::loads(&evaluation.experts, &Views::printed(json))?;
        Ok(true)
    }
}
