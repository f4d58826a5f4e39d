//! Profiles of whole runs: what is in them, that their tables add up, what lies within what, and what is
//! refused.
use crate::child::equipart;
use bench::profile::{self, RankProfile, WorkKind};
use comm::{Event, TimeUse, Trace, TraceRun as Traced};
use models::text::Corpus;
use models::{Config, Model};
use parallel::{Layout, Network};
use run::price::price;
use run::train::data::TrainData;
use run::train::evaluations::Evaluations;
use run::train::settings::{Settings, hash};
use run::train::state::Saves;
use run::train::{TrainRun, of_steps};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tensor::KernelKind;

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":48,
    "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu"}"#;
const STEPS: usize = 5;
const MICROBATCHES: usize = 2;

fn settings(corpus: &Corpus) -> Settings {
    Settings {
        steps: STEPS,
        seq: 16,
        batch_size: 4,
        microbatches: MICROBATCHES,
        lr: 0.01,
        clip: Some(1.0),
        seed: 3,
        text: hash(corpus),
        dropout: Some(0.25),
        ..Settings::default()
    }
}

/// Trains; what the trace has of it, and the operations that one of its ranks should do in a step.
fn trained(layout: &str, network: &Network) -> (Traced, Vec<u64>) {
    let (config, layout): (_, Layout) = (Config::parse(CONFIG, "a test").unwrap(), layout.parse().unwrap());
    let corpus = Corpus::new(&b"all work and no play ".repeat(40), "a text", 16).unwrap();
    let flops = price(&config, &settings(&corpus), &layout).unwrap().iter().map(|rank| rank.flops).collect();
    let run = TrainRun {
        model: Model::fresh(config, 5).into(),
        source: &TrainData::Text(corpus.clone()),
        settings: settings(&corpus),
        layout,
        network: network.clone(),
        out: None,
        resume: None,
        checkpoint_every: 100,
        saves: Saves::default(),
        check_every: None,
        stop_after: None,
        evaluations: Evaluations::default(),
        dump: None,
    };
    run.train(&of_steps(|_| Ok(()))).unwrap();
    (network.trace.as_ref().unwrap().runs().remove(0), flops)
}

fn is_work(event: &Event) -> bool {
    matches!(event.what, TimeUse::Kernel { .. } | TimeUse::Layer { .. })
}

/// Names of all layers of the model, a star for each block.
fn names() -> BTreeSet<&'static str> {
    let block = [
        "blocks.*.attention",
        "blocks.*.attention.out",
        "blocks.*.attention.qkv",
        "blocks.*.mlp",
        "blocks.*.mlp.down",
        "blocks.*.mlp.gate_up",
        "blocks.*.norm1",
        "blocks.*.norm2",
    ];
    block.into_iter().chain(["embedding", "norm", "head"]).collect()
}

fn layers_are_all_there(rank: &RankProfile) {
    for pass in [tensor::Direction::Forward, tensor::Direction::Backward] {
        let rows: Vec<_> = rank.layers.iter().filter(|row| row.pass == Some(pass)).collect();
        assert_eq!(rows.iter().map(|row| &*row.name).collect::<BTreeSet<_>>(), names(), "{pass:?}");
        assert_eq!(rows.len(), names().len());
        for row in rows {
            let blocks = if row.name.starts_with("blocks") { 2 } else { 1 };
            assert_eq!(row.layers, blocks, "{}", row.name);
            assert_eq!(row.sum.calls, blocks * MICROBATCHES * rank.steps, "{}", row.name);
        }
    }
    let parts: Vec<_> = rank.layers.iter().filter(|row| row.pass.is_none()).map(|row| &*row.name).collect();
    assert_eq!(parts, ["step *", "forward *", "backward *", "sync gradients", "optimizer"]);
}

/// Kills: a rank or a layer that no table has, rows that do not add up to the steps, kernels or their
/// operations that are lost, waiting that is no part of a call.
#[test]
fn both_tables_of_every_rank_add_up_to_its_steps() {
    for layout in ["none", "tp=2", "tp=2,sp,dp=2"] {
        let (run, flops) = trained(layout, &Network::default().profiling(bench::profile::MOST));
        let ranks = profile::of(&run, &Network::default()).unwrap();
        assert_eq!(ranks.len(), flops.len());
        for ((rank, events), flops) in ranks.iter().zip(&run.ranks).zip(flops) {
            let steps: Vec<_> = events
                .iter()
                .filter(|e| matches!(&e.what, TimeUse::Span(n) if n.starts_with("step ")))
                .collect();
            assert_eq!((rank.steps, steps.len()), (STEPS - profile::WARM, STEPS - profile::WARM));
            assert_eq!(rank.time, steps.iter().map(|step| step.took()).sum());
            assert_eq!(rank.kinds.iter().map(|(_, sum)| sum.time).sum::<Duration>(), rank.time);
            assert_eq!(rank.layers.iter().map(|row| row.sum.time).sum::<Duration>(), rank.time);
            let sum = |kind| rank.kinds.iter().find(|(of, _)| *of == kind).unwrap().1;
            let counted: u64 = rank.kinds.iter().map(|(_, sum)| sum.flops).sum();
            assert_eq!(counted, flops * rank.steps as u64, "{layout}");
            assert!(
                sum(WorkKind::On(KernelKind::Product)).flops > 0
                    && sum(WorkKind::On(KernelKind::Attention)).flops > 0
            );
            assert_eq!(sum(WorkKind::Collective).calls > 0, layout != "none");
            assert_eq!(sum(WorkKind::Wait).time > Duration::ZERO, layout != "none");
            assert!(rank.kinds.iter().all(|(kind, sum)| sum.calls > 0
                || *kind == WorkKind::Other
                || layout == "none" && matches!(kind, WorkKind::Collective | WorkKind::Wait)));
            layers_are_all_there(rank);
        }
    }
}

/// Kills: a kernel in no layer, a layer in no pass, events out of order, one that ends after what contains
/// it; work that is noted outside of profiles, or without being asked for; a trace that changes what it is
/// about.
#[test]
fn what_a_rank_does_lies_within_its_step() {
    let whole = Network { trace: Some(Trace::new()), ..Network::default() };
    let (plain, _) = trained("tp=2", &whole);
    assert_eq!(plain.ranks.iter().flatten().filter(|event| is_work(event)).count(), 0, "nobody asked");
    let whole = Network { trace: Some(Trace::new()), ..Network::default() }.profiling(bench::profile::MOST);
    for (network, warm) in [(whole, true), (Network::default().profiling(bench::profile::MOST), false)] {
        let (run, _) = trained("tp=2", &network);
        for events in &run.ranks {
            let begins = |name: &str| events.iter().any(|e| matches!(&e.what, TimeUse::Span(n) if n == name));
            assert_eq!((begins("step 1"), begins("rank 0") || begins("rank 1")), (warm, warm));
            assert!(begins("step 3"));
            let mut open: Vec<&Event> = Vec::new();
            for event in events {
                while open.pop_if(|last| last.to < event.to).is_some() {}
                assert!(
                    open.last().is_none_or(|last| last.from <= event.from),
                    "{event:?} in {:?}",
                    open.last()
                );
                let step = |e: &&Event| matches!(&e.what, TimeUse::Span(n) if n.starts_with("step "));
                let within =
                    open.iter().rev().find(|e| matches!(e.what, TimeUse::Layer { .. } | TimeUse::Span(_)));
                if is_work(event) {
                    let TimeUse::Span(name) = &open.iter().copied().find(step).unwrap().what else {
                        unreachable!()
                    };
                    assert!(!["step 1", "step 2"].contains(&&**name), "{event:?} in {name}");
                }
                if let (TimeUse::Layer { name: layer, pass }, Some(within)) = (&event.what, within) {
                    let right = match &within.what {
                        // The head's backward follows its forward at once: its logits are large.
                        TimeUse::Span(name) if &**layer == "head" => name.starts_with("forward"),
                        TimeUse::Span(name) => name.starts_with(pass.name()),
                        TimeUse::Layer { pass: outer, .. } => outer == pass,
                        _ => false,
                    };
                    assert!(right, "{event:?} in {within:?}");
                }
                open.push(event);
            }
        }
    }
}

/// Kills: tables on the wrong stream or none, lines that lack a rank, a trace without kernels or that is no
/// JSON.
#[test]
fn train_tells_its_profile_and_keeps_its_trace() {
    let dir = tempfile::tempdir().unwrap();
    let [config, text, trace] =
        ["config.json", "text", "t.json"].map(|n| dir.path().join(n).display().to_string());
    std::fs::write(&config, CONFIG).unwrap();
    std::fs::write(&text, "all work and no play makes a dull text. ".repeat(40)).unwrap();
    let train =
        ["train", "--config", &config, "--data", &text, "--seq", "32", "--layout", "tp=2", "--profile"];
    let reported = |flags: &[&str]| {
        let output = equipart(&[&train[..], flags].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let tables = reported(&["--steps", "4", "--trace", &trace]);
    for words in ["training under tp=2: ", "mean of 2 steps", " By kind", " By layer", "blocks.*.mlp.down x2"]
    {
        assert!(tables.contains(words), "{words} in {tables}");
    }
    let file: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    for (cat, name) in [("layer", "blocks.1.mlp.down"), ("product", "product"), ("optimizer", "adamw")] {
        assert!(events.iter().any(|e| e["cat"] == cat && e["name"] == name), "{name}");
    }
    let lines = reported(&["--steps", "3", "--json", "--dtype", "f64"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for rank in 0..2 {
        let of = |what: &str| {
            lines.iter().filter(|l| l["profile"] == what && l["rank"] == rank).collect::<Vec<_>>()
        };
        let (steps, kinds, layers) = (of("steps"), of("kind"), of("layer"));
        assert_eq!((steps.len(), kinds.len(), layers.len()), (1, WorkKind::ALL.len(), 2 * names().len() + 5));
        let names = WorkKind::ALL.map(WorkKind::name);
        assert!(kinds.iter().zip(names).all(|(line, name)| line["kind"] == name));
        assert!(
            steps[0]["steps"] == 1 && steps[0]["peak_gflops"].is_null(),
            "a peak is of f32: {}",
            steps[0]
        );
        let (ms, product) = (steps[0]["ms"].as_f64().unwrap(), kinds[0]);
        assert!(product["gflops"].as_f64().unwrap() > 0.0 && product["of_peak"].is_null());
        for rows in [&kinds, &layers] {
            let sum: f64 = rows.iter().map(|line| line["ms"].as_f64().unwrap()).sum();
            assert!((sum - ms).abs() < 1e-9 * ms, "{sum} of {ms}"); // the digits of a sum
        }
    }
}

/// Kills: a flag that is taken and ignored, a run that is too short to be looked into.
#[test]
fn flags_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.json").display().to_string();
    let refused = |args: &[&str], says: &str| {
        let output = equipart(args);
        let reported = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {reported}");
        assert!(
            reported.contains(says) && output.stdout.is_empty(),
            "{args:?} says {reported}, wanted {says}"
        );
    };
    let of_bench = |flag| format!("error: --{flag} is for bench --profile; the figures have no use for it");
    refused(&["bench", "--trace", &trace], &of_bench("trace"));
    refused(&["bench", "--timeout", "3"], &of_bench("timeout"));
    refused(&["bench", "--link", "tp=1us,1GB/s"], &of_bench("link"));
    refused(&["bench", "--layout", "tp=2"], "--profile");
    refused(&["bench", "--profile", "--only", "gemm"], "cannot be used with");
    refused(&["bench", "--profile", "--layout", "tp=3"], "tp=3");
    refused(&["bench", "--profile", "--link", "tp=1us,1GB/s"], "the layout none has no tp ranks");
    let short = "error: --profile needs more than 2 steps; this run has 2";
    refused(&["train", "--steps", "2", "--profile"], short);
    refused(&["train", "--steps", "9", "--stop-after", "2", "--profile"], short);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
}
