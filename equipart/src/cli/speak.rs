//! Commands that use a model as it is: generate, eval, convert.
use super::args::{self, ConvertArgs, EvalArgs, GenerateArgs};
use super::watch::Watch;
use super::{corpus, model, out, show};
use crate::convert::convert;
use crate::dump::{self, About};
use crate::eval::evaluate;
use crate::generate::{Request, generate};
use crate::number::{Runs, in_number};
use crate::sampling::{Sampling, SamplingError};
use crate::settings::sequences;
use crate::tokenizer::Tokenizer;
use crate::{Error, Layout, Model, Network, Result, ids, names, text};
use tensor::files;

pub(super) fn run_generate(a: GenerateArgs, json: bool) -> Result<bool> {
    let (model, network) = (model(a.model.as_ref())?, a.network.network(None)?);
    let layout = a.layout.limited(a.memory.limit);
    network.fits(&[layout])?;
    let shows_text = !json && model.tokens.are_known();
    let tokenizer = (shows_text || !a.prompt.is_empty()).then(|| model.tokenizer()).transpose()?;
    let mut prompts: Vec<Vec<u32>> = a.prompt_ids.iter().map(|ids| ids.0.clone()).collect();
    for (text, tokenizer) in a.prompt.iter().zip(tokenizer.iter().cycle()) {
        prompts.push(tokenizer.encode_prompt(text)?);
    }
    if prompts.is_empty() {
        return Err(Error::new("there is no prompt; give --prompt TEXT or --prompt-ids 1,2,3"));
    }
    let seed = a.seed.unwrap_or(0);
    if a.temperature.is_none() && a.seed.is_some() {
        return Err(SamplingError::Greedy { what: "the seed", seen: seed.to_string() }.into());
    }
    let sampling = Sampling { temperature: a.temperature, top_k: a.top_k, top_p: a.top_p, seed };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let max_new = a.max_new.unwrap_or(model.config.positions.saturating_sub(longest).min(128));
    let request = Request { prompts, max_new, sampling, record: a.dump.is_some() };
    in_number!(a.number.name, D => continued::<D>(&a, (&model, &layout, &network), &request, tokenizer.as_ref(), json))
}

/// Continues the prompts in these numbers, and shows them.
fn continued<D: Runs>(
    a: &GenerateArgs,
    (model, layout, network): (&Model, &Layout, &Network),
    request: &Request,
    tokenizer: Option<&Tokenizer>,
    json: bool,
) -> Result<bool> {
    request.check::<D>(model, layout)?;
    a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
    let watch = Watch::bar(request.max_new);
    let generated = generate::<D>(model, (layout, network), request, &|_| watch.tick());
    let generated = a.network.keep_trace(network, generated)?;
    watch.done();
    if let Some(dir) = &a.dump {
        let about = About { layout: layout.to_string(), ..About::default() };
        dump::write(dir, &names::entries(&model.config.shape), generated.seen.clone(), &about)?;
    }
    if json {
        generated.lines().for_each(|line| show::json(&line));
    } else {
        show::texts(&generated, tokenizer)?;
    }
    Ok(true)
}

pub(super) fn run_eval(a: EvalArgs, json: bool) -> Result<bool> {
    let model = model(a.model.as_ref())?;
    let (vocabulary, positions) = (model.config.shape.vocabulary, model.config.positions);
    let all = match (&a.batch, &a.data) {
        (Some(file), _) => ids::read(file, vocabulary, positions)?,
        (None, data) => {
            let tokenizer = model.tokenizer()?;
            let seq = a.seq.unwrap_or(args::SEQ.min(positions));
            if seq == 0 || seq > positions {
                return Err(Error::new(format!(
                    "--seq is {seq}; it must be 1 to {positions}, the model's positions"
                )));
            }
            let text: Vec<u32> = match data {
                Some(file) => text::encode(&files::read(file)?, &file.display().to_string(), &tokenizer)?.ids,
                None => corpus(None, seq, &tokenizer)?.held_out,
            };
            if text.len() < 2 {
                let n = text.len();
                return Err(Error::new(format!(
                    "a text of {n} tokens; there must be 2 or more, one to tell the next"
                )));
            }
            sequences(text::windows(&text, seq))
        }
    };
    let watch = Watch::bar(0);
    let layout = a.layout.limited(a.memory.limit);
    let watching = |done, of| watch.part("evaluated", done, of);
    let evaluation = in_number!(a.number.name, D => evaluate::<D>(&model, &layout, all, &watching))?;
    watch.done();
    if json {
        show::json(&evaluation);
    } else {
        let (loss, perplexity) = (evaluation.loss, evaluation.perplexity);
        out::line(&format!(
            "loss {loss:.6} nats a token, perplexity {perplexity:.4}, {} tokens",
            evaluation.tokens
        ));
    }
    Ok(true)
}

pub(super) fn run_convert(a: &ConvertArgs, json: bool) -> Result<bool> {
    let model = model(Some(&a.model))?;
    let done = convert(&model, &a.out, a.dtype.map(Into::into))?;
    if json {
        show::json(&serde_json::json!({
            "out": a.out, "dtype": done.dtype.to_string(), "tensors": done.tensors, "bytes": done.bytes,
            "along": done.along,
        }));
    } else {
        let (n, dtype, out) = (done.tensors, done.dtype, a.out.display());
        out::line(&format!("{n} tensors in {dtype} are in {out}, with {}", done.along.join(", ")));
    }
    Ok(true)
}
