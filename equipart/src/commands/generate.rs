//! `generate`: continues prompts.
use crate::cli::args::{DtypeArgs, ModelName, NetworkArgs, RankedArgs, note_inference};
use crate::cli::requests::RequestsArgs;
use crate::cli::run::Run;
use crate::cli::{model, processes};
use crate::views::Views;
use clap::Args;
use layers::Design;
use models::generate::Prompts;
use models::sampling::{Sampling, no_temperature};
use parallel::{Layout, Result, bail};
use run::generate::GenerateRun;
use run::in_device;
use std::path::PathBuf;

/// Continue prompts
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_long_help = processes::HELP)]
pub(crate) struct GenerateArgs {
    /// A folder with config.json and model.safetensors, or the name of a model [default: embedded]
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: Option<ModelName>,
    /// Text to continue, with the special tokens that the tokenizer adds; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Vec<String>,
    /// Token ids to continue, such as 1,403,407; may be repeated
    #[arg(long, value_name = "IDS", value_parser = ids)]
    pub(crate) prompt_ids: Vec<Vec<u32>>,
    #[command(flatten)]
    pub(crate) order: RequestsArgs,
    /// Number of tokens to add [default: as in the model's folder, or 128, up to the model's positions]
    #[arg(long)]
    pub(crate) max_new: Option<usize>,
    /// Draw from the probabilities of logits divided by this [default: as in the model's folder, or take the
    /// likeliest token]
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Draw only from this number of likeliest tokens [default: as in the model's folder, or all]
    #[arg(long)]
    pub(crate) top_k: Option<usize>,
    /// Draw only from the likeliest tokens with this total probability [default: as in the model's folder, or
    /// 1]
    #[arg(long)]
    pub(crate) top_p: Option<f64>,
    /// Seed of the draws [default: 0]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Take the likeliest token, regardless of the model's folder
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "seed"])]
    pub(crate) greedy: bool,
    /// Ranks along each axis: none, tp=2, ...; each data rank needs a prompt, unless experts are split
    #[arg(long, default_value_t)]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) number: DtypeArgs,
    #[command(flatten)]
    pub(crate) ranks: RankedArgs,
    /// Folder for activations and weights, as safetensors
    #[arg(long, value_name = "DIR")]
    pub(crate) dump: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

/// Parses token ids, separated by commas.
fn ids(text: &str) -> std::result::Result<Vec<u32>, String> {
    let id = |part: &str| {
        let part = part.trim();
        part.parse().map_err(|_| format!("{part:?} is not a token id; ids are whole numbers below 2^32"))
    };
    text.split(',').map(id).collect()
}

impl Run for GenerateArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, views: &Views) -> Result<bool> {
        let a = self;
        let mode = a.order.mode()?;
        let lines = a.order.texts()?;
        let mut model = model(a.model.as_ref())?;
        let network = a.network.network(None)?;
        let layout = a.ranks.each.of(a.layout, &Design::from(model.config.shape).inferring())?;
        note_inference(&layout);
        network.fits(&[layout])?;
        let shows_text = views.wants_words() && model.tokens.are_known();
        let texts: Vec<_> = a.prompt.iter().chain(&lines).collect();
        let tokenizer = (shows_text || !texts.is_empty()).then(|| model.tokenizer()).transpose()?;
        let mut prompts = a.prompt_ids.clone();
        for (text, tokenizer) in texts.into_iter().zip(tokenizer.iter().cycle()) {
            prompts.push(tokenizer.encode_prompt(text)?);
        }
        if prompts.is_empty() {
            bail!("there is no prompt; give --prompt TEXT, --prompts FILE or --prompt-ids 1,2,3");
        }
        let draws = if a.greedy { Some(false) } else { a.temperature.map(|_| true) };
        let generation = model.generation(draws)?;
        if let Some(note) = generation.note(a.max_new.is_some()) {
            views.note(&format!("note: {note}"))?;
        }
        let preset = generation.sampling;
        let seed = a.seed.unwrap_or(0);
        let temperature = a.temperature.or(preset.temperature);
        if temperature.is_none() && a.seed.is_some() {
            return Err(no_temperature("the seed", seed));
        }
        let top_k = a.top_k.or(preset.top_k);
        let sampling = Sampling { temperature, top_k, top_p: a.top_p.or(preset.top_p), seed };
        let room = model.config.positions.saturating_sub(prompts.iter().map(Vec::len).max().unwrap_or(0));
        let max_new = a.max_new.unwrap_or(generation.max_new.unwrap_or(128).min(room));
        model.config.eos = generation.eos;
        let prompts = Prompts { prompts, max_new, sampling, record: a.dump.is_some(), requests: mode };
        let network = a.ranks.join(network, &[layout], a.number.device, &[("dump", a.dump.is_some())])?;
        let run = GenerateRun { model, layout, network, prompts, tokenizer, dump: a.dump };
        in_device!((a.number.device, a.number.name), D =>
            run.tell::<D>(|generated| a.network.keep_trace(&run.network, generated), views))?;
        Ok(true)
    }
}
