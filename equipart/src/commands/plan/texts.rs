//! `plan --generate`: the best layout for generating texts.
use super::{GoalName, PlanArgs, idle, indivisible, proof, too_large};
use crate::cli::out::line;
use crate::cli::show;
use run::price::seconds::{spent, used};
use comm::readable;
use layers::{Design, counted};
use models::Config;
use parallel::{Result, bail, with_dtype};
use plan::clock::time;
use plan::generation::{FoundTexts, GenerationJob, GenerationSearch, TextsGoal, WeighedTexts};
use run::train::settings::at_least_1;
use serde_json::{Value, json};

/// Returns what is generated.
fn job(a: &PlanArgs, config: &Config) -> Result<GenerationJob> {
    let new = a.new.unwrap_or(256.min(config.positions / 2));
    let prompt = a.prompt.unwrap_or(2048.min(config.positions.saturating_sub(new)));
    at_least_1(&[("devices", a.devices), ("prompt", prompt), ("new", new), ("batch-size", a.batch_size)])?;
    config.generates()?;
    let tokens = prompt.saturating_add(new);
    if tokens > config.positions {
        bail!(
            "--prompt is {prompt} and --new {new}, together {tokens}; the model has {} positions",
            config.positions
        );
    }
    let design = Design::from(config.shape).inferring();
    Ok(GenerationJob { design, prompt, new, texts: a.batch_size, dtype: a.dtype.name() })
}

/// Finds the best layouts, and prints them.
pub(super) fn run(a: &PlanArgs, config: &Config, json: bool) -> Result<bool> {
    let job = job(a, config)?;
    let (machine, memory) = a.machine()?;
    let goal = match a.goal {
        GoalName::Throughput => TextsGoal::Throughput,
        GoalName::Latency => TextsGoal::Latency,
        GoalName::Memory => TextsGoal::Memory,
    };
    if a.all_devices {
        indivisible(a.devices, &job.design, [job.texts, job.prompt])?;
    }
    let search = GenerationSearch { job: &job, machine: &machine, memory, ranks: a.devices, goal };
    let found = with_dtype!(a.dtype, D => search.find::<D>(!a.all_devices));
    let Some(best) = found.best.first() else {
        let least = found.least.map(|(peak, layout)| (peak, layout, String::new()));
        return Err(too_large(memory, a.devices, least));
    };
    let proof = a.prove.then(|| proof::of(job.design.shape(), &best.layout)).transpose()?;
    if json {
        found.best.iter().map(|of| object(of, &job)).for_each(|plan| show::json(&plan));
        if let Some(proof) = &proof {
            show::json(&json!({ "proof": proof }));
        }
    } else {
        report(&search, &found);
        if let Some(proof) = &proof {
            line(&format!("\n{}", proof::sentence(proof)));
        }
    }
    Ok(proof.is_none_or(|proof| proof.equal))
}

fn object(of: &WeighedTexts, job: &GenerationJob) -> Value {
    json!({
        "layout": of.layout.to_string(), "devices": of.layout.ranks(), "texts": of.texts,
        "first_token_seconds": of.time.first, "seconds": of.time.seconds,
        "tokens_per_second": of.tokens_per_second(job), "peak_bytes": of.time.peak, "parts": used(&of.time.parts, 0.0),
    })
}

/// Prints the layouts for people.
fn report(search: &GenerationSearch, found: &FoundTexts) {
    let GenerationSearch { job, machine, memory, ranks, .. } = search;
    line(&format!(
        "Generating in {} on {} of {}, with {} each: {} after a prompt of {}, at most {} at once.\n{} layouts and \
         numbers of texts were weighed, and {} refused.\n",
        job.dtype,
        counted(*ranks, "device"),
        machine.about,
        readable(*memory as u128),
        counted(job.new, "token"),
        job.prompt,
        counted(job.texts, "text"),
        found.weighed,
        found.refused,
    ));
    let row = |of: &WeighedTexts| {
        let later = job.new.saturating_sub(1).max(1) as f64;
        vec![
            of.layout.to_string(),
            of.texts.to_string(),
            time(of.time.first),
            time((of.time.seconds - of.time.first) / later),
            time(of.time.seconds),
            run::words::amount(of.tokens_per_second(job)),
            readable(of.time.peak as u128),
        ]
    };
    let head = ["layout", "texts at once", "first token", "each later one", "all", "tokens/s", "holds"];
    line(&show::fitted(show::table(&head, found.best.iter().map(row))).to_string());
    let best = &found.best[0];
    let parts = used(&best.time.parts, 0.0);
    line(&format!("\nWith the best, a text spends {}.", spent(&parts, best.time.seconds)));
    idle(best.layout.ranks(), *ranks);
}
