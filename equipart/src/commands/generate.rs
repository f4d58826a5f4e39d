//! `generate`: continues prompts.
use crate::cli::args::{GenerateArgs, note_inference};
use crate::cli::watch::Watch;
use crate::cli::{model, out, processes, show};
use crate::device::in_device;
use layers::Design;
use models::generate::{Prompts, generate};
use models::sampling::{Sampling, no_temperature};
use models::tokenizer::Tokenizer;
use models::{Model, names};
use parallel::dump::{self, Provenance};
use parallel::number::Runs;
use parallel::{Layout, Network, Result, bail};

pub(crate) fn run(a: GenerateArgs, json: bool) -> Result<bool> {
    let (mut model, network) = (model(a.model.as_ref())?, a.network.network(None)?);
    let layout = a.on_ranks.of(a.layout, &Design::from(model.config.shape).inferring())?;
    note_inference(&layout);
    network.fits(&[layout])?;
    let shows_text = !json && model.tokens.are_known();
    let tokenizer = (shows_text || !a.prompt.is_empty()).then(|| model.tokenizer()).transpose()?;
    let mut prompts = a.prompt_ids.clone();
    for (text, tokenizer) in a.prompt.iter().zip(tokenizer.iter().cycle()) {
        prompts.push(tokenizer.encode_prompt(text)?);
    }
    if prompts.is_empty() {
        bail!("there is no prompt; give --prompt TEXT or --prompt-ids 1,2,3");
    }
    let draws = if a.greedy { Some(false) } else { a.temperature.map(|_| true) };
    let generation = model.generation(draws)?;
    if let Some(note) = generation.note(a.max_new.is_some()) {
        out::note(&format!("note: {note}"));
    }
    let (own, seed) = (generation.sampling, a.seed.unwrap_or(0));
    let (temperature, top_k, top_p) =
        (a.temperature.or(own.temperature), a.top_k.or(own.top_k), a.top_p.or(own.top_p));
    if temperature.is_none() && a.seed.is_some() {
        return Err(no_temperature("the seed", seed));
    }
    let sampling = Sampling { temperature, top_k, top_p, seed };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = model.config.positions.saturating_sub(longest);
    let max_new = a.max_new.unwrap_or(generation.max_new.unwrap_or(128).min(room));
    model.config.eos = generation.eos;
    let request = Prompts { prompts, max_new, sampling, record: a.dump.is_some() };
    let (engine, dumps) = (a.number.device.open(layout.ranks())?, ("dump", a.dump.is_some()));
    let network =
        processes::joined(network, (&layout, engine), a.on_ranks.split.as_ref(), (&a.processes, &[dumps]))?;
    in_device!((a.number.device, a.number.name), D => continued::<D>(&a, (&model, &layout, &network), &request, tokenizer.as_ref(), json))
}

/// Continues the prompts in these numbers, and shows them.
fn continued<D: Runs>(
    a: &GenerateArgs,
    (model, layout, network): (&Model, &Layout, &Network),
    request: &Prompts,
    tokenizer: Option<&Tokenizer>,
    json: bool,
) -> Result<bool> {
    request.check::<D>(model, (layout, network))?;
    a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
    let watch = Watch::bar(request.max_new);
    let generated = generate::<D>(model, (layout, network), request, &|_| watch.tick());
    let generated = a.network.keep_trace(network, generated)?;
    watch.done();
    if let Some(dir) = &a.dump {
        let about = Provenance { layout: layout.to_string(), ..Provenance::default() };
        dump::write(dir, &names::entries(&model.config), generated.seen.clone(), &about)?;
    }
    if json {
        generated.lines().for_each(|line| show::json(&line));
    } else {
        show::texts(&generated, tokenizer)?;
    }
    Ok(true)
}
