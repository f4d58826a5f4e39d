//! Runs on floats: a resumed run equals an uninterrupted one, texts do not depend on the layout, a checkpoint
//! is read under any layout, the price is what is measured, f32 stays near f64.
mod partition;
mod router;
mod schedules;

use kernels::Heads;
use layers::{Experts, OptimizerKind, Scoring, Shape};
use models::config::Family;
use models::families;
use models::generate::{Prompts, all_logits, generate};
use models::sampling::Sampling;
use models::text::Corpus;
use models::{Config, Model};
use ops::{ADAMW, MUON, RandomValues, SGD};
use parallel::{BuildContext, Layout, Network, session};
use run::price::{Cost, price, program};
use run::train::data::TrainData;
use run::train::settings::{Settings, hash};
use run::train::state::{self, Saves, State};
use run::train::{TrainRun, of_steps};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use tensor::safetensors::File;
use tensor::{Category, Cpu};

const SHAPE: Shape =
    Shape { width: 24, blocks: 2, heads: Heads::new(4, 4, 6), hidden: 32, vocabulary: 256, ..Shape::LLAMA };

fn config(family: &'static dyn Family, shape: Shape) -> Config {
    Config { family, shape, positions: 64, bos: None, eos: Vec::new(), spare_coefficient: 0.0, wrapper: None }
}

fn model(tied: bool) -> Model {
    let (family, shape) = (families::LLAMA, Shape { tied, ..SHAPE });
    let config = config(family, shape);
    Model::fresh(config, 5)
}

fn corpus() -> Corpus {
    let text: Vec<u8> =
        (0..4000u32).map(|i| b"the quick brown fox jumps over it. "[(i * i / 7 % 35) as usize]).collect();
    Corpus::new(&text, "a text", 16).unwrap()
}

fn settings(corpus: &Corpus, optimizer: OptimizerKind) -> Settings {
    Settings {
        steps: 6,
        seq: 16,
        batch_size: 5,
        microbatches: 2,
        lr: 0.01,
        warmup: 2,
        optimizer,
        clip: Some(1.0),
        seed: 3,
        text: hash(corpus),
        dropout: Some(0.125),
        label_smoothing: 0.125,
        z_loss: 1e-3,
        ..Settings::default()
    }
}

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// Trains in a folder, from its checkpoint if there is one; gives the losses.
fn train(
    dir: &Path,
    optimizer: OptimizerKind,
    split: &str,
    tied: bool,
    stop_after: Option<usize>,
) -> Vec<f64> {
    train_from(&model(tied), dir, optimizer, split, stop_after)
}

/// The same, of this model.
fn train_from(
    fresh: &Model,
    dir: &Path,
    optimizer: OptimizerKind,
    split: &str,
    stop_after: Option<usize>,
) -> Vec<f64> {
    train_as(fresh, dir, settings(&corpus(), optimizer), split, stop_after)
}

/// The same, with these settings.
fn train_as(
    fresh: &Model,
    dir: &Path,
    settings: Settings,
    split: &str,
    stop_after: Option<usize>,
) -> Vec<f64> {
    let resume = dir.join("config.json").exists().then(|| State::read(dir).unwrap());
    let model = resume.as_ref().map_or_else(|| fresh.clone().into(), |state| state.model.clone());
    let _lock = state::prepare(dir, resume.as_ref().map(|_| dir), &model).unwrap();
    let run = TrainRun {
        model,
        source: &TrainData::Text(corpus()),
        settings,
        layout: layout(split),
        network: Network::default(),
        out: Some(dir.to_path_buf()),
        evaluations: resume.as_ref().map(|state| state.evaluations).unwrap_or_default(),
        resume,
        checkpoint_every: 2,
        saves: Saves::default(),
        check_every: None,
        stop_after,
        dump: None,
    };
    let losses = Mutex::new(Vec::new());
    run.train(&of_steps(|line| {
        losses.lock().unwrap().push(line.loss);
        Ok(())
    }))
    .unwrap();
    losses.into_inner().unwrap()
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let file =
        |f: std::fs::DirEntry| (f.file_name().into_string().unwrap(), std::fs::read(f.path()).unwrap());
    std::fs::read_dir(dir).unwrap().map(|f| file(f.unwrap())).collect()
}

/// Kills: moments, step count, batches or schedule that begin anew; a checkpoint of the wrong step; files
/// left over.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one_to_the_byte() {
    for (optimizer, split, tied) in
        [(ADAMW, "none", false), (ADAMW, "tp=2,dp=2", true), (SGD, "tp=2,sp", false)]
    {
        let (once, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let losses = train(once.path(), optimizer, split, tied, None);
        let mut parts = train(twice.path(), optimizer, split, tied, Some(3));
        assert_eq!(parts.len(), 3);
        parts.extend(train(twice.path(), optimizer, split, tied, None));
        assert_eq!(parts, losses, "{split}");
        assert!(files(once.path()) == files(twice.path()), "the folders differ under {split}");
        let names: Vec<_> = files(once.path()).into_keys().collect();
        assert_eq!(names, ["config.json", "model.safetensors", "optimizer-6.safetensors", "tokenizer.json"]);
    }
}

/// A run begun on one layout goes on under another: the same function, so nearly the same losses. One model
/// has more ranks than KV heads and a vocabulary that no ranks divide. Kills: moments of replicas or padding
/// misplaced.
#[test]
fn a_run_goes_on_under_another_layout() {
    let shape = Shape { heads: Heads::new(8, 2, 4), vocabulary: 259, ..SHAPE };
    let uneven = Model::fresh(Config { shape, ..model(false).config }, 5);
    for (model, first, then) in [
        (model(false), "tp=2", "tp=2,sp,dp=2"),
        (uneven.clone(), "tp=8", "tp=2,dp=2"),
        (uneven, "dp=2", "tp=4,sp"),
    ] {
        let (once, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let losses = train_from(&model, once.path(), ADAMW, "none", None);
        let mut parts = train_from(&model, twice.path(), ADAMW, first, Some(3));
        parts.extend(train_from(&model, twice.path(), ADAMW, then, None));
        assert_eq!(parts.len(), losses.len());
        for (a, b) in losses.iter().zip(&parts) {
            assert!((a - b).abs() < 1e-4, "{first}, then {then}: {losses:?} {parts:?}");
        }
        assert!(losses[5] < losses[0], "it learns: {losses:?}");
    }
}

/// Kills: a checkpoint made of two runs or two steps that goes on as if it were one.
#[test]
fn a_checkpoint_of_two_parts_is_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(one.path(), ADAMW, "none", false, Some(2));
    train(two.path(), ADAMW, "none", false, Some(4));
    let parts = [two.path().join("optimizer-4.safetensors"), one.path().join("optimizer-2.safetensors")];
    std::fs::copy(&parts[0], &parts[1]).unwrap();
    let why = State::read(one.path()).err().unwrap().why;
    assert!(why.ends_with("is of another run or step than the model beside it"), "{why}");
    std::fs::write(two.path().join(".model.safetensors.abc.tmp"), "half").unwrap();
    train(two.path(), ADAMW, "none", false, None);
    assert!(
        files(two.path()).keys().all(|name| !name.contains(".tmp")),
        "what was left half-written is removed"
    );
}

#[test]
fn a_folder_with_a_model_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), SGD, "none", false, Some(1));
    let before = files(dir.path());
    let refused = || state::prepare(dir.path(), None, &model(false).into()).err().unwrap().why;
    assert!(refused().contains("holds a model already; resume it with --resume"), "{}", refused());
    let _lock = state::prepare(dir.path(), Some(dir.path()), &model(false).into()).unwrap();
    assert!(refused().contains("is in use by another run"), "{}", refused());
    assert!(files(dir.path()) == before);
}

/// A model saved under one layout is the same model under all: equal texts, with greedy choice and with
/// draws.
#[test]
fn texts_do_not_depend_on_the_layout() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), ADAMW, "tp=2", true, None);
    let model = Model::read(dir.path()).unwrap();
    let drawn = Sampling { temperature: Some(0.8), top_k: Some(20), top_p: Some(0.9), seed: 4 };
    for sampling in [Sampling::default(), drawn] {
        let prompts =
            vec![b"the ".map(u32::from).to_vec(), b"quick brown".map(u32::from).to_vec(), vec![120]];
        let request = Prompts { prompts, max_new: 12, sampling, ..Prompts::default() };
        let texts = |split: &str| {
            generate::<Cpu<f32>>(&model, (&layout(split), &Network::default()), &request, &|_| ())
                .unwrap()
                .texts
        };
        let alone = texts("none");
        assert!(
            alone
                .iter()
                .zip(&request.prompts)
                .all(|(t, p)| t.ids.len() == p.len() + 12 && t.ids.starts_with(p))
        );
        for split in ["tp=2", "tp=4", "dp=3", "tp=2,dp=2"] {
            let split_texts = texts(split);
            assert_eq!(split_texts.len(), alone.len());
            for (n, (text, want)) in split_texts.iter().zip(&alone).enumerate() {
                let lengths = |t: &models::generate::Text| (t.ids.len(), t.prompt_logits.len());
                assert_eq!(lengths(text), lengths(want), "{split}");
                let part = text.ids.iter().zip(&want.ids).position(|(a, b)| a != b);
                let tie = part.is_none_or(|at| want.margins[at - (want.ids.len() - 12)] < 1e-4);
                assert!(tie, "{split}, text {n} parts at {part:?}");
                let apart = text.prompt_logits.iter().zip(&want.prompt_logits).map(|(a, b)| (a - b).abs());
                assert!(apart.fold(0.0, f32::max) < 1e-4);
            }
        }
    }
}

/// A text ends with its end token, and the others go on as if it were still there.
#[test]
fn texts_end_where_they_end() {
    let prompts = vec![vec![3, 4, 5], vec![6], vec![7, 8]];
    let generate = |eos: Vec<u32>, split: &str| {
        let mut ending = model(false);
        ending.config.eos = eos;
        let request = Prompts {
            prompts: prompts.clone(),
            max_new: 10,
            sampling: Sampling::default(),
            ..Prompts::default()
        };
        let reported = Mutex::new(Vec::new());
        let texts = generate::<Cpu<f32>>(&ending, (&layout(split), &Network::default()), &request, &|id| {
            reported.lock().unwrap().push(id);
        })
        .unwrap()
        .texts;
        assert_eq!(
            reported.into_inner().unwrap(),
            texts[0].ids[3..],
            "told of every new token of the first text"
        );
        texts.into_iter().map(|t| t.ids).collect::<Vec<_>>()
    };
    let endless = generate(Vec::new(), "none");
    let end = endless[1][3]; // the third new token of the second text
    let until = |ids: &[u32], prompt: usize| {
        let new = ids[prompt..].iter().position(|id| *id == end).map_or(ids.len(), |at| prompt + at + 1);
        ids[..new].to_vec()
    };
    let wanted: Vec<_> = endless.iter().zip(&prompts).map(|(ids, p)| until(ids, p.len())).collect();
    assert!(wanted[1].len() <= 4 && wanted.iter().any(|ids| ids.len() > 6), "{wanted:?}");
    for split in ["none", "tp=2", "dp=3", "tp=2,dp=2"] {
        assert_eq!(generate(vec![end], split), wanted, "{split}");
    }
}

/// The logits of decoding with a cache are those of the whole forward, and f32 is near f64 under every
/// layout.
#[test]
fn logits_in_f32_are_near_those_in_f64() {
    let model = model(false);
    let texts: Vec<Vec<u32>> = vec![(0..20).map(|i| i * 7 % 256).collect(), vec![1, 2, 3]];
    let truth = all_logits::<Cpu<f64>>(&model, (&Layout::default(), &Network::default()), &texts).unwrap();
    let error = |split: &str| {
        let logits = all_logits::<Cpu<f32>>(&model, (&layout(split), &Network::default()), &texts).unwrap();
        assert_eq!((logits.len(), truth.len()), (23 * 256, 23 * 256));
        logits.iter().zip(&truth).fold(0.0f64, |e, (a, b)| e.max((a - b).abs()))
    };
    let own = error("none");
    assert!(own > 0.0 && own < 1e-4, "{own:e}");
    for split in ["tp=2", "tp=4", "dp=2", "tp=2,dp=2"] {
        assert!(error(split) <= 4.0 * own, "{split} errs by {:e}, unsplit by {own:e}", error(split));
    }
    let greedy =
        Prompts { prompts: texts.clone(), max_new: 1, sampling: Sampling::default(), ..Prompts::default() };
    let decoded =
        generate::<Cpu<f32>>(&model, (&layout("tp=2"), &Network::default()), &greedy, &|_| ()).unwrap();
    let last = &truth[19 * 256..20 * 256];
    let apart = decoded.texts[0].prompt_logits.iter().zip(last).map(|(a, b)| (f64::from(*a) - b).abs());
    assert!(apart.fold(0.0, f64::max) <= 4.0 * own);
}

/// Bytes by category, operations and traffic of every rank, to the byte, before anything runs.
#[test]
fn the_price_is_what_is_measured() {
    let corpus = corpus();
    for (optimizer, split) in [
        (ADAMW, "none"),
        (ADAMW, "tp=2"),
        (SGD, "dp=2"),
        (ADAMW, "tp=4,dp=2"),
        (ADAMW, "tp=4,sp"),
        (ADAMW, "tp=2,pp=2,offload-file,recompute:selective"),
        (ADAMW, "dp=2:zero2:offload-file,recompute:full/2"),
        (SGD, "dp=2:zero3:offload-file"),
        (MUON, "none"),
        (MUON, "tp=2,dp=2:zero1"),
    ] {
        let (settings, layout) = (settings(&corpus, optimizer), layout(split));
        let config = model(false).config;
        let (prices, shape) = (price(&config, &settings, &layout).unwrap(), settings.shape(&config));
        let world = comm::World::threads(&layout.axes()).unwrap();
        let measured =
            session::run((&layout, &world), &RandomValues { seed: 0 }, |at: BuildContext<Cpu<f32>>| {
                program(&at, shape, &settings)
            });
        let measured = measured.unwrap();
        assert_eq!(prices.len(), measured.len());
        for (p, cost) in prices.iter().zip(measured) {
            let Cost { peaks, flops, traffic: ledger, offloaded } = cost;
            assert_eq!((p.away_bytes, p.moved_bytes), offloaded, "{split}, rank {}", p.rank);
            let of = |c: &Category| (c.name(), peaks.category[*c as usize]);
            let mut bytes: BTreeMap<_, _> = Category::ALL.iter().map(of).collect();
            bytes.insert("total", peaks.total);
            assert_eq!(
                (&p.peak_bytes, p.flops, p.traffic_bytes),
                (&bytes, flops, ledger.wire_bytes()),
                "{split}, rank {}",
                p.rank
            );
            let said =
                p.traffic.iter().map(|s| (s.axis, s.operation, s.calls, s.payload_bytes, s.wire_bytes));
            let counted = ledger.iter().map(|(a, op, t)| (a.name(), op.name(), t.calls, t.payload, t.bytes));
            assert!(said.eq(counted), "{split}, rank {}: {:?} {ledger:?}", p.rank, p.traffic);
        }
    }
}

/// Weights, gradients and optimizer of what is split go down with the ranks.
#[test]
fn split_memory_is_a_share() {
    let corpus = corpus();
    let settings = settings(&corpus, ADAMW);
    let of = |split: &str, what: &str| {
        price(&model(false).config, &settings, &layout(split)).unwrap()[0].peak_bytes[what]
    };
    for what in ["weights", "gradients", "optimizer"] {
        let gains = (2 * SHAPE.blocks + 1) * SHAPE.width * 4 * if what == "optimizer" { 2 } else { 1 };
        assert_eq!(of("tp=4", what), (of("none", what) - gains) / 4 + gains, "{what}");
    }
}
