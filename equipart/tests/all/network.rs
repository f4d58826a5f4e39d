//! Links, patience and traces from the command line: what is refused, what a timeline tells, that slow links
//! change no result, and what is printed where ranks fail.
mod pipelines;
mod slow_link;

use crate::child::equipart;
use models::generate::{Prompts, generate};
use models::sampling::Sampling;
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
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":48,
    "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu"}"#;

/// A folder with a small model's configuration and a text, and their paths.
fn small() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let [config, text] = ["config.json", "text"].map(|name| dir.path().join(name).display().to_string());
    std::fs::write(&config, CONFIG).unwrap();
    std::fs::write(&text, "all work and no play makes a dull text. ".repeat(40)).unwrap();
    (dir, config, text)
}

fn succeeds(args: &[&str]) {
    let output = equipart(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn flags_that_make_no_sense_get_one_sentence() {
    let (dir, config, text) = small();
    let folder = dir.path().display().to_string();
    let train = ["train", "--config", &config, "--data", &text, "--seq", "32"];
    let of_link = "invalid value '{}' for '--link <AXIS=LATENCY,BANDWIDTH>': ";
    let of_time = "invalid value '{}' for '--timeout <SECONDS>': \"{}\" is not a time to wait; \
                   write seconds above 0, a year (31536000) at most, such as 2.5";
    let latency = "write a number of 0 or more (at most 2^53 ns) and s, ms, us or ns, such as 20us";
    let refused = |flags: &[&str], says: &str| {
        let says = format!("error: {}", says.replace("{}", flags[1]));
        for command in [&train[..], &["generate", "--prompt", "a"], &["compare"]] {
            let output = equipart(&[command, flags].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{flags:?}: {error}");
            assert!(output.stdout.is_empty(), "{flags:?}");
            assert!(
                error.lines().any(|line| line.split(" at path ").next() == Some(&says)),
                "{flags:?} says {error}, wanted {says}"
            );
        }
    };
    refused(
        &["--link", "20us,1GB/s"],
        &format!(
            "{of_link}\"{{}}\" is not a link of an axis; write axis=latency,bandwidth, such as tp=20us,1GB/s"
        ),
    );
    refused(
        &["--link", "xp=20us,1GB/s"],
        &format!("{of_link}\"xp\" is not an axis; the axes are tp, etp, ep, cp, dp, pp"),
    );
    refused(&["--link", "tp=1GB/s,20us"], &format!("{of_link}\"1GB/s\" is not a latency; {latency}"));
    refused(&["--link", "tp=-1us,1GB/s"], &format!("{of_link}\"-1us\" is not a latency; {latency}"));
    for seconds in ["0", "-1", "nan", "inf", "1e300", "1e-12", "a minute"] {
        refused(&["--timeout", seconds], of_time);
    }
    refused(&["--trace", &folder], "{} is a directory where a file should be");
    let beyond = format!("{folder}/none/trace.json");
    refused(&["--trace", &beyond], "cannot write beside {}: No such file or directory (os error 2)");
    let link = ["--link", "dp=20us,1GB/s", "--layout", "tp=2"];
    let rest = "split that axis, or leave the link out";
    let says = |output: Output| {
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr)
            .unwrap()
            .lines()
            .find(|l| l.starts_with("error: "))
            .map(str::to_string)
    };
    for command in [&train[..], &["generate", "--prompt", "a"]] {
        let reported = says(equipart(&[command, &link].concat())).unwrap();
        assert_eq!(reported, format!("error: --link dp=20us,1GB/s: the layout tp=2 has no dp ranks; {rest}"));
    }
    let reported = says(equipart(&[&["compare"], &link[..]].concat())).unwrap();
    assert_eq!(
        reported,
        format!("error: --link dp=20us,1GB/s: none of the compared layouts has dp ranks; {rest}")
    );
    let slow = says(equipart(&["compare", "--layout", "tp=2", "--slow-link", "dp=20us,1GB/s"])).unwrap();
    assert_eq!(
        slow,
        format!("error: --slow-link dp=20us,1GB/s: none of the compared layouts has dp ranks; {rest}")
    );
    let twice = [&train[..], &link, &["--link", "tp=1s,1B/s", "--link", "dp=1us,2GB/s"]].concat();
    let twice: Vec<_> = twice.iter().map(|flag| if *flag == "tp=2" { "tp=2,dp=2" } else { flag }).collect();
    assert_eq!(
        says(equipart(&twice)).unwrap(),
        "error: --link gives the dp axis two links, 20us,1GB/s and 1us,2GB/s; give each axis one"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is written");
}

/// One stretch of a row, in nanoseconds.
#[derive(Debug)]
struct Stretch {
    name: String,
    cat: String,
    from: u64,
    to: u64,
    args: Value,
    inside: Option<usize>, // the one that contains it
}

fn entries(file: &Path) -> Value {
    let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(file["displayTimeUnit"], "ms");
    file
}

/// The number of a row, twice its rank and one more of a plan; of its thread, which is no process' and never
/// 0: to Perfetto these are main threads, all in one row.
fn row_of(event: &Value) -> u64 {
    let [pid, tid] = ["pid", "tid"].map(|key| event[key].as_u64().unwrap());
    assert!(pid > 0 && tid / 10_000 == pid && tid != pid, "{event}");
    tid % 10_000
}

/// The rows of a file, each checked to be properly nested, by process' and thread's names.
fn rows(file: &Path) -> BTreeMap<(String, String), Vec<Stretch>> {
    let file = entries(file);
    let events = file["traceEvents"].as_array().unwrap();
    let about = |name: &str, event: &Value, what: &str| {
        let mut of =
            events.iter().filter(|e| e["ph"] == "M" && e["name"] == name && e["pid"] == event["pid"]);
        let tid = |e: &&Value| name.starts_with("process") || e["tid"] == event["tid"];
        of.find(tid).unwrap_or_else(|| panic!("no {name} of {event}"))["args"][what].clone()
    };
    let mut rows = BTreeMap::<_, Vec<Stretch>>::new();
    for event in events.iter().filter(|event| !["M", "s", "f"].contains(&event["ph"].as_str().unwrap())) {
        assert_eq!(event["ph"], "X");
        assert_eq!(about("process_sort_index", event, "sort_index"), event["pid"]);
        let (rank, plan) = (row_of(event) / 2, row_of(event) % 2);
        assert_eq!(about("thread_sort_index", event, "sort_index"), row_of(event));
        let row = ["process_name", "thread_name"].map(|name| about(name, event, "name"));
        let row = row.map(|name| name.as_str().unwrap().to_string());
        assert_eq!(row[1], format!("{}rank {rank}", ["", "plan of "][plan as usize]));
        let ns = |key: &str| (event[key].as_f64().unwrap() * 1e3) as u64; // as Perfetto reads it
        let (from, to) = (ns("ts"), ns("ts") + ns("dur"));
        let text = |key: &str| event[key].as_str().unwrap().to_string();
        let row = rows.entry(row.into()).or_default();
        let inside = (0..row.len()).rev().find(|i| row[*i].to > from && row[*i].from <= from);
        let inside = inside.or_else(|| (0..row.len()).rev().find(|i| to == from && row[*i].to == from));
        assert!(row.last().is_none_or(|last| last.from <= from), "in order of time: {event}");
        assert!(inside.is_none_or(|i| to <= row[i].to), "{event} ends after {:?}", inside.map(|i| &row[i]));
        row.push(Stretch {
            name: text("name"),
            cat: text("cat"),
            from,
            to,
            args: event["args"].clone(),
            inside,
        });
    }
    rows
}

/// Kills: compute that is counted as waiting, a gap, a wait outside of calls, calls lost or out of order.
fn tells_all_of_its_time(row: &[Stretch]) {
    for span in row.iter().filter(|s| s.cat == "span") {
        let within = |s: &&Stretch| span.from <= s.from && s.to <= span.to;
        let parts =
            row.iter().filter(|s| ["compute", "collective", "message"].contains(&&*s.cat)).filter(within);
        assert_eq!(parts.map(|s| s.to - s.from).sum::<u64>(), span.to - span.from, "{}", span.name);
    }
    for stretch in row {
        let around = stretch.inside.map(|i| row[i].cat.as_str());
        let right = match stretch.cat.as_str() {
            "wait" => stretch.name == "wait" && around == Some("collective"),
            "compute" => stretch.name == "compute" && around == Some("span"),
            "collective" | "message" => {
                around == Some("span") && stretch.args["call"].as_str().unwrap().contains(" over ")
            }
            _ => stretch.cat == "span" && around != Some("collective") && around != Some("wait"),
        };
        assert!(right, "{stretch:?} inside {around:?}");
    }
}

fn calls(row: &[Stretch]) -> Vec<(&str, &Value)> {
    row.iter().filter(|s| s.cat == "collective").map(|s| (s.name.as_str(), &s.args)).collect()
}

/// Kills: rows of another rank's name or place, a step without its parts, a link that is not there.
#[test]
fn the_trace_of_two_steps_tells_all_of_every_ranks_time() {
    let (dir, config, text) = small();
    let file = dir.path().join("trace.json");
    let train = ["train", "--config", &config, "--data", &text, "--seq", "32", "--batch-size", "4"];
    let flags = ["--layout", "tp=2", "--steps", "2", "--microbatches", "2", "--link", "tp=500us,1GB/s"];
    succeeds(&[&train[..], &flags, &["--trace", file.to_str().unwrap()]].concat());
    let rows = rows(&file);
    let names: Vec<_> = rows.keys().map(|(run, rank)| (run.as_str(), rank.as_str())).collect();
    assert_eq!(names, [("training under tp=2", "rank 0"), ("training under tp=2", "rank 1")]);
    for ((_, rank), row) in &rows {
        tells_all_of_its_time(row);
        let inside = |outer: Option<usize>| {
            let spans = row.iter().enumerate().filter(move |(_, s)| s.cat == "span" && s.inside == outer);
            spans.map(|(i, s)| (i, s.name.as_str())).collect::<Vec<_>>()
        };
        assert_eq!(inside(None), [(0, rank.as_str())]);
        let steps = inside(Some(0));
        assert_eq!(steps.iter().map(|s| s.1).collect::<Vec<_>>(), ["step 1", "step 2", "evaluate"]);
        for (step, _) in &steps[..2] {
            let parts: Vec<_> = inside(Some(*step)).into_iter().map(|s| s.1).collect();
            let both = ["forward 0", "backward 0", "forward 1", "backward 1", "sync gradients", "optimizer"];
            assert_eq!(parts, both);
        }
        for call in row.iter().filter(|s| s.cat == "collective") {
            assert!(call.to - call.from >= 500_000, "over this link at least a latency: {call:?}");
        }
    }
    let [zero, one] = [0, 1].map(|rank| calls(rows.values().nth(rank).unwrap()));
    assert_eq!(zero, one);
    let labels: Vec<_> = zero.iter().filter_map(|(_, args)| args["label"].as_str()).collect();
    assert!(labels.contains(&"blocks.0.mlp.down") && zero.iter().any(|(name, _)| *name == "barrier"));
    let down = zero.iter().find(|(_, args)| args["label"] == "blocks.0.mlp.down").unwrap();
    assert_eq!((down.0, &down.1["bytes"]), ("all_reduce", &Value::from(2 * 32 * 16 * 4)));
}

/// Kills: rows of `compare` without a run, a link for what is not split, tokens without a name.
#[test]
fn the_trace_of_a_comparison_has_a_run_for_every_row() {
    let (dir, config, text) = small();
    let (model, file) = (dir.path().join("model"), dir.path().join("trace.json"));
    let train = ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "1"];
    succeeds(&[&train[..], &["--out", model.to_str().unwrap()]].concat());
    let of_model = ["--model", model.to_str().unwrap(), "--trace", file.to_str().unwrap()];
    let flags = ["--data", &text, "--layout", "tp=2", "--link", "tp=100us,1GB/s"];
    succeeds(&[&["compare", "--seconds", "0"], &of_model[..], &flags].concat());
    let compared = rows(&file);
    let names: Vec<_> = compared.keys().map(|(run, rank)| format!("{run}: {rank}")).collect();
    let wanted =
        |work: &str| ["none: rank 0", "tp=2: rank 0", "tp=2: rank 1"].map(|l| format!("{work} under {l}"));
    assert_eq!(names, [wanted("inference"), wanted("training")].concat());
    for ((run, _), row) in &compared {
        tells_all_of_its_time(row);
        assert_eq!(calls(row).is_empty(), run.ends_with("none"), "{run}");
        let slow = |s: &Stretch| s.cat != "collective" || s.to - s.from >= 100_000;
        assert!(row.iter().all(slow), "{run}");
        let spans = row.iter().filter(|s| s.cat == "span").map(|s| s.name.as_str()).collect::<Vec<_>>();
        let wanted = if run.starts_with("training") { ["step 1", "step 2"] } else { ["prompt", "token 23"] };
        assert!(wanted.iter().all(|name| spans.contains(name)), "{spans:?}");
    }
    let generate = ["generate", "--prompt", "all", "--max-new", "3", "--layout", "tp=2"];
    succeeds(&[&generate[..], &of_model].concat());
    let generated = rows(&file);
    let row = &generated[&("inference under tp=2".to_string(), "rank 1".to_string())];
    tells_all_of_its_time(row);
    let spans: Vec<_> = row.iter().filter(|s| s.cat == "span").map(|s| s.name.as_str()).collect();
    assert_eq!(spans, ["rank 1", "prompt", "token 1", "token 2"]);
}

/// Kills: a link that changes a number, one that takes no time for what the price says is sent.
#[test]
fn slow_links_take_their_time_and_change_nothing() {
    let config = Config::parse(CONFIG, "a test").unwrap();
    let corpus = Corpus::new(&b"all work and no play ".repeat(40), "a text", 16).unwrap();
    let (model, layout): (_, Layout) = (Model::fresh(config, 5), "tp=2,dp=2".parse().unwrap());
    let settings = Settings {
        steps: 3,
        seq: 16,
        batch_size: 4,
        microbatches: 2,
        lr: 0.01,
        clip: Some(1.0),
        seed: 3,
        text: hash(&corpus),
        ..Settings::default()
    };
    let links = [comm::Axis::Tp, comm::Axis::Dp].map(|axis| (axis, "10us,2MB/s".parse().unwrap()));
    let slow = Network { links: links.to_vec(), ..Network::default() };
    let moving = |bytes: usize| Duration::from_secs_f64(bytes as f64 / 2e6);
    let train = |network: &Network| {
        let (model, network, settings) = (model.clone().into(), network.clone(), settings.clone());
        let source = &TrainData::Text(corpus.clone());
        let (out, resume, dump) = (None, None, None);
        let (checkpoint_every, stop_after) = (100, None);
        let run = TrainRun {
            model,
            source,
            settings,
            layout,
            network,
            out,
            saves: Saves::default(),
            resume,
            checkpoint_every,
            check_every: None,
            stop_after,
            evaluations: Evaluations::default(),
            dump,
        };
        let losses = Mutex::new(Vec::new());
        let finished = run
            .train(&of_steps(|line| {
                losses.lock().unwrap().push(line.loss.to_bits());
                Ok(())
            }))
            .unwrap();
        (losses.into_inner().unwrap(), finished.held_out_bits_per_byte.map(f64::to_bits))
    };
    let fast = train(&Network::default());
    let begun = Instant::now();
    assert_eq!(train(&slow), fast);
    let bytes =
        price(&model.config, &settings, &layout).unwrap().iter().map(|p| p.traffic_bytes).max().unwrap();
    let (took, least) = (begun.elapsed(), 3 * moving(bytes));
    assert!(bytes > 10_000 && took >= least, "{took:?} for three times {bytes} bytes, {least:?}");
    let sampling = Sampling { temperature: Some(0.8), top_k: None, top_p: None, seed: 4 };
    let request =
        Prompts { prompts: vec![vec![3, 4, 5], vec![6]], max_new: 6, sampling, ..Prompts::default() };
    let texts =
        |network| generate::<tensor::Cpu<f32>>(&model, (&layout, network), &request, &|_| ()).unwrap();
    let (fast, slow) = (texts(&Network::default()), texts(&slow));
    assert_eq!(slow.texts, fast.texts);
    for taken in &slow.taken {
        assert!(taken.wire > 0 && taken.seconds >= moving(taken.wire).as_secs_f64(), "{taken:?}");
    }
}

/// Kills: a table that is not printed, or in the place of the sentence, and a trace of successes only.
#[test]
fn a_failure_of_ranks_is_told_with_their_last_calls_and_keeps_its_trace() {
    let (dir, config, text) = small();
    let file = dir.path().join("trace.json");
    let train =
        ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "3", "--lr", "1e40"];
    let flags = ["--layout", "tp=2", "--trace", file.to_str().unwrap(), "--json"];
    let output = equipart(&[&train[..], &flags].concat());
    assert_eq!(output.status.code(), Some(2));
    let reported = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = reported.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("error: ")).expect("a sentence");
    assert!(
        lines[at].starts_with("error: rank ") && lines[at].ends_with("a smaller --lr may help"),
        "{reported}"
    );
    assert_eq!(lines[at + 1], "");
    let head: Vec<_> = lines[at + 2].split_whitespace().collect();
    assert_eq!(head, ["rank", "call", "began", "outcome", "what"]);
    for rank in ["0", "1"] {
        let row = |line: &&&str| line.trim_start().starts_with(&format!("{rank} "));
        let of_rank: Vec<_> = lines[at + 3..].iter().filter(row).collect();
        assert!(of_rank.len() > 2 && of_rank.iter().any(|line| line.contains(" over tp")), "{reported}");
    }
    let rows = rows(&file);
    assert_eq!(rows.len(), 2);
    for row in rows.values() {
        tells_all_of_its_time(row);
    }
    let quiet = equipart(&["train", "--config", &config, "--data", &text, "--seq", "32", "--lr", "nan"]);
    assert_eq!(String::from_utf8(quiet.stderr).unwrap().lines().count(), 1, "no rank ran");
}
