//! The meter is right: local parts are parts of the whole, activations grow with the tokens and not with
//! their pairs, and the operating system reports the same.
mod clipped;

use crate::child::{equipart, output, refused};
use kernels::Heads;
use layers::{Positions, Shape};
use models::Config;
use models::families;
use ops::{RandomValues, SGD};
use parallel::price::peak_of_all;
use parallel::{BuildContext, Layout, session};
use prove::{OracleTraces, Subject, prove};
use run::price::{Price, price, program};
use run::train::schedule::LrSchedule;
use run::train::settings::Settings;
use serde_json::Value;
use std::path::Path;
use tensor::{Category, Cpu, Device, Key};

fn config(width: usize, blocks: usize, vocabulary: usize) -> Config {
    let heads = Heads::new(8, 8, width / 8);
    let shape = Shape { width, blocks, heads, hidden: 3 * width, vocabulary, ..Shape::LLAMA };
    Config {
        family: families::LLAMA,
        shape,
        positions: 1024,
        bos: None,
        eos: Vec::new(),
        spare_coefficient: 0.0,
        wrapper: None,
    }
}

pub(crate) fn settings(seq: usize, batch_size: usize) -> Settings {
    Settings {
        steps: 2,
        seq,
        batch_size,
        lr: 0.01,
        clip: Some(1.0),
        seed: 3,
        lr_schedule: LrSchedule::Constant,
        ..Settings::default()
    }
}

fn prices(config: &Config, settings: &Settings, layout: &str) -> Vec<Price> {
    price(config, settings, &layout.parse().unwrap()).unwrap()
}

/// Weights, gradients and moments of each rank are 1/tp of the unsplit ones, as measured and as priced.
/// (Gains of norms are whole on every rank; of this model they are too few to matter.) Kills: a parameter
/// that is not cut, a gradient or a moment of its whole shape, a gathered weight that stays.
#[test]
fn what_is_split_takes_its_share() {
    let (config, settings) = (config(64, 2, 512), settings(16, 2));
    let split = [Category::Weights, Category::Gradients, Category::Optimizer];
    let unsplit = &prices(&config, &settings, "none")[0].peak_bytes;
    for (text, tp) in [("none", 1), ("tp=2", 2), ("tp=4", 4), ("tp=4,sp", 4)] {
        let (layout, priced): (Layout, _) = (text.parse().unwrap(), prices(&config, &settings, text));
        let world = layout.world().unwrap();
        let run = session::run((&layout, &world), &RandomValues { seed: 0 }, |at: BuildContext<Cpu<f32>>| {
            program(&at, config.shape, &settings).map(|cost| cost.peaks)
        });
        for (rank, (peaks, priced)) in run.unwrap().into_iter().zip(priced).enumerate() {
            for category in split {
                let (bytes, whole) = (peaks.category[category as usize], unsplit[category.name()]);
                let off = (bytes * tp).abs_diff(whole) as f64 / whole as f64;
                assert!(off < 0.02, "{text}, rank {rank}: {bytes} bytes of {} of {whole}", category.name());
                assert_eq!(bytes, priced.peak_bytes[category.name()], "{text}, rank {rank}");
            }
        }
    }
}

/// From T tokens to 2T and to 4T: what pairs take shows in the second difference, `A(4T) − 3A(2T) + 2A(T)`,
/// which is nothing for activations. Buffers peak at several moments, each linear, so theirs is only less
/// than one bit a pair would make. Kills: a matrix of T×T scores or masks, whole or of one head, kept or not;
/// scratch for all pairs.
#[test]
fn activations_grow_with_the_tokens() {
    const T: usize = 256;
    let config = config(64, 2, 512);
    for layout in ["none", "tp=2", "tp=2,sp"] {
        let peaks = |seq| prices(&config, &settings(seq, 1), layout).swap_remove(0).peak_bytes;
        let [one, two, four] = [T, 2 * T, 4 * T].map(peaks);
        for (category, most) in [("activations", 0), ("buffers", 6 * T * T / 8)] {
            let (one, two, four) = (one[category], two[category], four[category]);
            assert!(one < two, "{layout}: {category} of {one} bytes do not grow");
            let bent = (four + 2 * one).abs_diff(3 * two);
            assert!(bent <= most, "{layout}: {category} of {one}, {two}, {four} bytes, bent by {bent}");
        }
    }
}

/// The variable that makes this program take the step whose memory is looked at, under that layout.
const CHILD: &str = "EQUIPART_MEMORY_OF";

/// A step of AdamW on 56 million parameters, or a proof of one of a million: prints the bytes that the
/// meters of all ranks say were held at most, the bytes that their pools have at the end, and those that
/// the system says were resident at most, beyond those of the program itself.
fn child(what: &str) {
    let before = resident().expect("the system says it");
    let [held, reserved] = match what.strip_prefix("proof of ") {
        Some(layout) => proof(&layout.parse().unwrap()),
        None => step(&what.parse().unwrap()),
    };
    println!("\nmemory: {held} {reserved} {}", resident().expect("the system says it") - before);
}

fn step(layout: &Layout) -> [usize; 2] {
    let (config, settings) = (config(768, 4, 16384), settings(64, layout.tokens().data_ranks()));
    let world = layout.world().unwrap();
    let run = session::run((layout, &world), &RandomValues { seed: 0 }, |at: BuildContext<Cpu<f32>>| {
        let cost = program(&at, config.shape, &settings)?;
        Ok([cost.peaks.total, at.device.meter().reserved()])
    });
    run.unwrap().into_iter().fold([0; 2], |[a, b], [x, y]| [a + x, b + y])
}

/// A table of positions has many numbers and costs no products. What the proof is priced at stands for both
/// counts.
fn proof(layout: &Layout) -> [usize; 2] {
    let shape = Shape { width: 32, vocabulary: 32, positions: Positions::Learned(30_000), ..Shape::LLAMA };
    let subject = Subject::small(shape, layout).unwrap();
    let verdict = prove(&subject, layout, &[Key(1)], &OracleTraces::default()).unwrap();
    assert!(verdict.equal && verdict.elements > layout.ranks() * 3_000_000, "{verdict:?}");
    [prove::bytes(&subject, layout).unwrap() as usize; 2]
}

/// The most bytes that this process had in memory; none where the system does not say.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}

/// In a process of its own, whose size is that of the step. Kills: memory that nobody meters or that is
/// metered twice, pools that keep much more than is ever held at once, copies made while loading; and of a
/// proof, what every rank keeps of all that is compared.
#[test]
fn the_meter_is_what_the_system_sees() {
    if let Ok(layout) = std::env::var(CHILD) {
        return child(&layout);
    }
    if resident().is_none() {
        return crate::skipped::skipped("this system does not say how much memory a process has");
    }
    for layout in ["none", "tp=2", "dp=2:zero3", "proof of dp=16"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "memory::the_meter_is_what_the_system_sees", "--nocapture"])
            .env(CHILD, layout);
        let out = String::from_utf8(output(&mut child).stdout).unwrap();
        let line = out.lines().find_map(|line| line.strip_prefix("memory: ")).expect(&out);
        let bytes: Vec<usize> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let [held, reserved, resident] = bytes[..] else { panic!("{line}") };
        println!("{layout}: {held} held, {reserved} reserved, {resident} resident");
        // A proof also has the oracle's memory, which no meter counts, and of each of its ranks what the
        // system's allocator has not given back, which is more on a busy machine.
        let most = if layout.starts_with("proof") { held / 4 + (40 << 20) } else { held / 20 };
        assert!(held > 300 << 20 && reserved < held + most, "{line}");
        assert!(held.abs_diff(resident) < most, "{layout}: {held} held, {resident} resident");
    }
}

/// Layouts whose ranks hold different numbers of tokens and of vocabulary entries. Kills: a kind of rank
/// priced for another, ranks counted once for all of their kind.
#[test]
fn ranks_of_a_kind_are_priced_once_and_all_are_counted() {
    let config = config(64, 1, 509);
    for (layout, batch_size) in [("none", 3), ("dp=4", 6), ("tp=4,sp", 3), ("tp=4,sp,dp=3", 7)] {
        let (settings, layout) = (settings(5, batch_size), layout.parse::<Layout>().unwrap());
        let all: usize =
            prices(&config, &settings, &layout.to_string()).iter().map(|p| p.peak_bytes["total"]).sum();
        let priced = std::cell::Cell::new(0);
        let dealt = |tokens: ops::TokenShards| Ok(tokens.sequences(batch_size).len());
        let bytes = peak_of_all::<Cpu<f32>, _>(&layout, dealt, |at: BuildContext<kernels::Meta<f32>>| {
            priced.set(priced.get() + 1);
            program(&at, config.shape, &settings).map(drop)
        });
        assert_eq!(bytes.unwrap().all, all as u128, "{layout}");
        let kinds = layout.size(comm::Axis::Tp) * if layout.size(comm::Axis::Dp) > 1 { 2 } else { 1 };
        assert_eq!(priced.get(), kinds, "{layout}");
    }
}

/// A step of few microbatches leaves the pipeline half full. Kills: a price of the first steps.
#[test]
fn a_pipeline_is_priced_when_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let sizes =
        r#""hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8"#;
    let llama = format!(r#"{{"model_type": "llama", {sizes}, "vocab_size": 256}}"#);
    let (config, batch) = (file("config.json", &llama), file("batch.json", "[[1, 2, 3, 4, 5]]"));
    for layout in ["pp=3:pipedream", "pp=3:pipedream-vertical"] {
        let flags = ["--json", "--microbatches", "1", "--config", &config, "--layout", layout];
        let lines = |command: &[&str]| {
            let [_, lines] = said(&[command, &flags[..]].concat());
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        let trained = lines(&["train", "--steps", "7", "--batch", &batch, "--optimizer", "adamw"]);
        let last = trained.iter().rfind(|line| line["step"] == 7).unwrap();
        let priced = lines(&["price", "--seq", "4", "--batch-size", "1"]);
        let priced = priced.into_iter().map(|kind| kind["peak_bytes"]["total"].clone());
        assert_eq!(last["peak_bytes"], priced.collect::<Value>(), "{layout}");
    }
}

/// A model of one feature whose feed-forward alone counts: of `H` hidden features it has 12·H bytes of
/// weights, as many of gradients and more of activations. Kills: sizes, bytes or operations that wrap, a
/// limit far below 64 bits.
#[test]
fn prices_go_as_far_as_64_bits_count() {
    let priced = |hidden| {
        let heads = Heads::new(1, 1, 2);
        let shape = Shape { width: 1, heads, hidden, ..Shape::LLAMA };
        let family = families::LLAMA;
        let config = Config {
            family,
            shape,
            positions: 2,
            bos: None,
            eos: Vec::new(),
            spare_coefficient: 0.0,
            wrapper: None,
        };
        let settings = Settings { optimizer: SGD, ..settings(1, 1) };
        price(&config, &settings, &Layout::UNSPLIT).map(|mut prices| prices.swap_remove(0))
    };
    let (small, large) = (priced(2).unwrap(), priced(1 << 58).unwrap());
    let more = (1 << 58) - 2;
    for category in ["weights", "gradients"] {
        assert_eq!(large.peak_bytes[category], small.peak_bytes[category] + 12 * more, "{category}");
    }
    assert!(large.peak_bytes["total"] > 1 << 63, "{large:?}");
    assert_eq!(large.flops, small.flops + 18 * more as u64);
    let why = priced(1 << 59).unwrap_err().why;
    assert_eq!(why, "the bytes of a rank overflow 64 bits");
}

/// Standard error of a command that succeeds, and its results.
fn said(args: &[&str]) -> [String; 2] {
    let output = equipart(args);
    assert!(output.status.success(), "{output:?}");
    [output.stderr, output.stdout].map(|text| String::from_utf8(text).unwrap())
}

pub(crate) fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// A small model that has learnt a little, and a text.
pub(crate) fn trained() -> (tempfile::TempDir, String, String) {
    let (dir, config) = sized("8", "256", "48");
    let (model, text) = (path(&dir, "model"), path(&dir, "text"));
    std::fs::write(&text, "all work and no play makes a dull text. ".repeat(40)).unwrap();
    let args =
        ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "1", "--out", &model];
    said(&args);
    (dir, model, text)
}

/// A folder with a config of these sizes, which is no small model's.
pub(crate) fn sized(hidden: &str, vocabulary: &str, positions: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"model_type":"llama","hidden_size":8,"intermediate_size":{hidden},"num_hidden_layers":1,
        "num_attention_heads":2,"num_key_value_heads":2,"vocab_size":{vocabulary},
        "max_position_embeddings":{positions},"rms_norm_eps":1e-5,"hidden_act":"silu"}}"#
    );
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let config = path(&dir, "config.json");
    (dir, config)
}

/// A model of 412 GB, one that has more bytes than 64 bits count, and one whose square wraps. Kills: a price
/// that wraps, a panic, a limit far below what can be counted.
#[test]
fn large_models_are_priced_as_what_they_are() {
    for hidden in [4_294_967_308u64, 3_037_000_500] {
        let (_dir, config) = sized(&hidden.to_string(), "256", "512");
        let [_, priced] = said(&["price", "--config", &config, "--json"]);
        let priced: Value = serde_json::from_str(&priced).unwrap();
        let besides = 2 * 256 * 8 + 8 * (3 * 8) + 8 * 8 + 3 * 8; // tables, attention, gains
        assert_eq!(priced["peak_bytes"]["weights"], 4 * (3 * 8 * hidden + besides));
    }
    let (_dir, config) = sized("288230376151711744", "256", "512"); // 2^58
    refused(&["price", "--config", &config], "the bytes of a matrix overflow 64 bits");
    // 2^55, of which a rank has more than one matrix
    let (_dir, config) = sized("36028797018963968", "256", "512");
    refused(&["price", "--config", &config], "overflow 64 bits");
    refused(&["train", "--config", &config], "overflow 64 bits");
}

/// A model that fits no machine is refused with both numbers before anything is written. Kills: a model that
/// fails in the middle of a run, or takes all memory there is; a folder that is left behind.
#[test]
#[cfg(target_os = "linux")]
fn what_the_machine_cannot_hold_is_refused_beforehand() {
    let free = "B of memory are free; use fewer ranks, a smaller model or fewer tokens";
    let too_large = |args: &[&str], run: &str| {
        refused(args, free);
        refused(args, &format!("error: {run} needs "));
    };
    let (dir, config) = sized("4294967308", "256", "512");
    let mlp = ["prove", "--model", "mlp", "--hidden", "30000,30000", "--layout", "dp=1024"];
    too_large(&mlp, "proving dp=1024");
    too_large(
        &["train", "--model", "mlp", "--hidden", "30000,30000", "--layout", "dp=1024"],
        "training under dp=1024",
    );
    let out = path(&dir, "out");
    too_large(&["train", "--config", &config, "--out", &out, "--seq", "32"], "training under none");
    let (wide, config) = sized("8", "4294967312", "512");
    let ids = path(&wide, "ids");
    std::fs::write(&ids, "[[1,2,3,4]]").unwrap();
    too_large(&["train", "--config", &config, "--batch", &ids, "--out", &out], "training under none");
    assert!(!Path::new(&out).exists());

    let (small, model, _) = trained();
    let dump = path(&small, "dump");
    std::fs::create_dir(&dump).unwrap();
    std::fs::write(Path::new(&dump).join("names.json"), "an earlier dump").unwrap();
    let config = Path::new(&model).join("config.json");
    let long = std::fs::read_to_string(&config).unwrap().replace(": 48,", ": 109951162777600,");
    std::fs::write(&config, long).unwrap();
    let generate = ["generate", "--model", &model, "--prompt", "a", "--max-new", "99951162777600"];
    too_large(&[&generate[..], &["--dump", &dump]].concat(), "generating under none");
    assert!(Path::new(&dump).join("names.json").exists());

    let model = hollow(&dir, 4_294_967_308);
    let of = |command: &'static str| vec![command, "--model", &model, "--batch", &ids];
    too_large(&of("eval"), "evaluating under none");
    too_large(&["compare", "--model", &model, "--layout", "tp=2"], "comparing none");
}

/// The folder's model with weights that nobody ever wrote: a file that is long and takes no room.
#[cfg(target_os = "linux")]
fn hollow(dir: &tempfile::TempDir, hidden: u64) -> String {
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".into(), vec![256, 8]),
        (layer("input_layernorm"), vec![8]),
        (layer("self_attn.q_proj"), vec![8, 8]),
        (layer("self_attn.k_proj"), vec![8, 8]),
        (layer("self_attn.v_proj"), vec![8, 8]),
        (layer("self_attn.o_proj"), vec![8, 8]),
        (layer("post_attention_layernorm"), vec![8]),
        (layer("mlp.gate_proj"), vec![hidden, 8]),
        (layer("mlp.up_proj"), vec![hidden, 8]),
        (layer("mlp.down_proj"), vec![8, hidden]),
        ("model.norm.weight".into(), vec![8]),
        ("lm_head.weight".into(), vec![256, 8]),
    ];
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let end = at + 4 * shape.iter().product::<u64>();
        header.insert(name, serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let file = std::fs::File::create(dir.path().join("model.safetensors")).unwrap();
    std::io::Write::write_all(&mut &file, &bytes).unwrap();
    file.set_len(bytes.len() as u64 + at).unwrap();
    dir.path().display().to_string()
}

/// Kills: a minute without a word, words among the results.
#[test]
fn long_work_says_how_far_it_is() {
    let (_dir, model, text) = trained();
    let [reported, result] = said(&["eval", "--model", &model, "--data", &text, "--seq", "1"]);
    let parts: Vec<_> = reported.lines().filter(|line| line.starts_with("evaluated ")).collect();
    assert!(parts.len() == 10 && parts[9] == "evaluated 200 of 200", "{reported}");
    assert_eq!(result.lines().count(), 1, "{result}");
    let config = Path::new(&model).join("config.json").display().to_string();
    let train = ["train", "--config", &config, "--data", &text, "--steps", "1", "--seq", "2"];
    let [reported, _] = said(&train);
    let parts: Vec<_> =
        reported.lines().filter(|line| line.starts_with("held-out text: evaluated ")).collect();
    assert!(parts.len() == 10 && parts[9] == "held-out text: evaluated 10 of 10", "{reported}");
    let [reported, _] = said(&[&train[..], &["--json"]].concat());
    assert!(!reported.contains("evaluated"), "{reported}");
    let [reported, result] = said(&["prove", "--config", &config, "--key", "1"]);
    for part in ["the oracle, the texts", "the oracle, step 1", "the texts", "step 0", "step 1"] {
        let line = format!("proving none under 0x0000000000000001: {part}");
        assert!(reported.lines().any(|reported| reported == line), "{line} is not in\n{reported}");
    }
    assert!(reported.contains("bounding") && result.starts_with("Randomised proof: "), "{reported}{result}");
}
