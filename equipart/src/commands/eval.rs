//! `eval`: mean loss and perplexity of a model on a text or on given ids; loss and accuracy of a classifier
//! on pictures.
use crate::cli::args::{self, DtypeArgs, ModelName, RankedArgs, patience};
use crate::cli::pictures::{PicturesArgs, digits, only_text};
use crate::cli::run::Run;
use crate::cli::{corpus, learner, loads, processes};
use crate::terminal::out;
use crate::views::Views;
use clap::Args;
use layers::counted;
use models::{Model, ids, text};
use parallel::{Layout, Network, Result, Sequence, bail};
use run::eval::{Evaluation, evaluate};
use run::in_device;
use run::train::settings::{SEQ, sequences};
use std::path::PathBuf;
use std::time::Duration;
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
    pub(crate) ranks: RankedArgs,
}

/// Reads the test pictures.
fn pictures(a: &EvalArgs) -> Result<Vec<Sequence>> {
    only_text(&[("seq", a.seq.is_some()), ("batch", a.batch.is_some())])?;
    let test = digits(a.data.as_deref())?.test;
    Ok((0..test.len()).map(|i| test.example(i)).collect())
}

/// Reads the sequences of the text or of the ids.
fn sequences_of(a: &EvalArgs, model: &Model) -> Result<Vec<Sequence>> {
    let positions = model.config.positions;
    if let Some(file) = &a.batch {
        return ids::read(file, model.config.shape.vocabulary, positions);
    }
    let tokenizer = model.tokenizer()?;
    let seq = a.seq.unwrap_or(SEQ.min(positions));
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

    fn run(self, views: &Views) -> Result<bool> {
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
        let layout = a.ranks.each.of(a.layout, &model.design.clone().inferring())?;
        args::note_inference(&layout);
        let watching = |done, of| drop(views.progress("evaluated", done, of));
        let network = Network { timeout: a.timeout, ..Network::default() };
        let network = a.ranks.join(network, &[layout], a.number.device, &[])?;
        let evaluation = in_device!((a.number.device, a.number.name), D => evaluate::<D>(&model, (&layout, &network), all, &watching))?;
        let &Evaluation { loss, perplexity, tokens, accuracy, .. } = &evaluation;
        views.record(&evaluation)?;
        views.say(&match accuracy {
            None => format!(
                "loss {loss:.6} nats a token, perplexity {perplexity:.4}, {}",
                counted(tokens, "token")
            ),
            Some(right) => format!("loss {loss:.6} nats a picture, {:.2} % of {tokens} right", 100.0 * right),
        })?;
        loads::loads(&evaluation.experts, views)?;
        Ok(true)
    }
}
