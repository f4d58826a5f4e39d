//! Models that nobody here made: small random ones of every family, with logits, gradients and greedy ids
//! from transformers and PyTorch in f64 (`golden/make.py`). Read from their files, they agree under every
//! layout.
use models::generate::{Prompts, all_logits, generate};
use models::sampling::Sampling;
use models::{Config, Model, ids};
use ops::SGD;
use parallel::{Layout, Network, Sequence, dump};
use run::train::data::TrainData;
use run::train::evaluations::Evaluations;
use run::train::schedule::LrSchedule;
use run::train::settings::Settings;
use run::train::state::Saves;
use run::train::{TrainRun, of_steps};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tensor::safetensors::File;
use tensor::{Cpu, IGNORED};

/// Goldens of models with experts.
const OF_EXPERTS: [&str; 4] = ["ep=2", "ep=2:all-gather", "tp=2,ep=2", "tp=2,sp,dp=2,ep=4"];
/// Models with experts, and a coefficient of their balance.
const OF_EXPERTS_MODELS: [&str; 4] = ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss"];
const LAYOUTS: [&str; 6] = ["none", "tp=2", "tp=4", "tp=4,sp", "dp=2", "tp=2,sp,dp=2"];
/// How far a logit may be off, and a gradient, as a part of its tensor's largest; and a loss.
const NEAR: f64 = 2e-5;

#[derive(Deserialize)]
struct Golden {
    batch: Vec<Vec<u32>>,
    loss: f64,
    grad_norm: f64,
    greedy: Greedy,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<u32>,
    ids: Vec<u32>,
}

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(model)
}

fn golden(dir: &Path) -> (Golden, File) {
    let text = std::fs::read(dir.join("golden.json")).unwrap();
    (serde_json::from_slice(&text).unwrap(), File::open(&dir.join("golden.safetensors")).unwrap())
}

/// A tensor of a file, row-major.
fn tensor(file: &File, name: &str) -> Vec<f64> {
    let shape = &file.info(name).unwrap_or_else(|| panic!("{name}")).shape;
    let matrix = match shape[..] {
        [count, rows, cols] => file.stack(name, [count, rows, cols]),
        [rows, cols] => file.matrix(name, [rows, cols]),
        _ => file.matrix(name, [1, shape[0]]),
    };
    let matrix = matrix.unwrap();
    let cols = matrix.cols();
    (0..matrix.rows() * cols).map(|i| matrix.get(i / cols, i % cols)).collect()
}

fn largest(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().fold(0.0, |most, x| most.max(x.abs()))
}

fn far(seen: &[f64], wanted: &[f64]) -> f64 {
    assert_eq!(seen.len(), wanted.len());
    largest(seen.iter().zip(wanted).map(|(s, w)| s - w))
}

/// Runs a step on the golden batch: the loss, and what is dumped.
fn step(model: &Model, layout: Layout, golden: &Golden, dir: &Path) -> f64 {
    let path = dir.join("ids.json");
    std::fs::write(&path, serde_json::to_string(&golden.batch).unwrap()).unwrap();
    step_on(
        ids::read(&path, model.config.shape.vocabulary, model.config.positions).unwrap(),
        model,
        layout,
        dir,
    )
}

/// The same on other sequences.
fn step_on(sequences: Vec<Sequence>, model: &Model, layout: Layout, dir: &Path) -> f64 {
    let settings = Settings {
        steps: 1,
        seq: 21,
        batch_size: 2,
        lr: 1.0,
        optimizer: SGD,
        lr_schedule: LrSchedule::Constant,
        dropout: Some(0.0),
        ..Settings::default()
    };
    let run = TrainRun {
        model: model.clone().into(),
        source: &TrainData::Ids(sequences),
        settings,
        layout,
        network: Network::default(),
        out: None,
        resume: None,
        checkpoint_every: 1,
        saves: Saves::default(),
        check_every: None,
        stop_after: None,
        evaluations: Evaluations::default(),
        dump: Some(dir.to_path_buf()),
    };
    let loss = Mutex::new(0.0);
    run.train(&of_steps(|line| {
        *loss.lock().unwrap() = line.loss;
        Ok(())
    }))
    .unwrap();
    loss.into_inner().unwrap()
}

/// Kills: a rope's scaling, a window, a bias, a norm of heads, a head size or an activation taken for
/// another; a tensor turned or a part of it misplaced in reading or dumping; numbers of half precision read
/// as others.
#[test]
fn logits_gradients_and_greedy_ids_are_those_of_transformers() {
    for dir in std::fs::read_dir(folder("")).unwrap() {
        let dir = dir.unwrap().path();
        if !dir.is_dir() {
            continue;
        }
        let name = dir.file_name().unwrap().display();
        let (model, (golden, file)) = (Model::read(&dir).unwrap(), golden(&dir));
        let fits = |layout: &Layout| layout.fits(model.config.shape).is_ok();
        let all = LAYOUTS.into_iter().chain(OF_EXPERTS).map(|layout| layout.parse().unwrap());
        let layouts: Vec<Layout> = all.filter(fits).collect();
        assert!(layouts.len() >= 4, "{name}: {layouts:?}");
        for layout in layouts {
            let logits =
                all_logits::<Cpu<f32>>(&model, (&layout, &Network::default()), &golden.batch).unwrap();
            let wanted = [tensor(&file, "logits.0"), tensor(&file, "logits.1")].concat();
            let (off, size) = (far(&logits, &wanted), largest(wanted.iter().copied()));
            assert!(off < NEAR * size, "{name}, {layout}: logits are off by {off:.1e}");
            let out = tempfile::tempdir().unwrap();
            let loss = step(&model, layout, &golden, out.path());
            assert!((loss - golden.loss).abs() < NEAR, "{name}, {layout}: loss {loss} for {}", golden.loss);
            let (worst, norm) = gradients(&file, out.path(), &format!("{name}, {layout}"));
            assert!((norm / golden.grad_norm - 1.0).abs() < NEAR, "{name}, {layout}: norm {norm}");
            let prompts = vec![golden.greedy.prompt.clone(); layout.size(comm::Axis::Dp)];
            let sampling = Sampling::default();
            let request =
                Prompts { prompts, max_new: golden.greedy.ids.len(), sampling, ..Prompts::default() };
            for text in
                generate::<Cpu<f32>>(&model, (&layout, &Network::default()), &request, &|_| ()).unwrap().texts
            {
                assert_eq!(
                    text.ids,
                    [&golden.greedy.prompt[..], &golden.greedy.ids].concat(),
                    "{name}, {layout}"
                );
            }
            println!(
                "{name:<9} {:<13} logits off by {off:.1e} of {size:.1}, gradients by {worst:.1e} of their largest, \
                 loss by {:.1e}",
                layout.to_string(),
                (loss - golden.loss).abs()
            );
        }
    }
}

/// The worst gradient of a dump, and the norm of all.
fn gradients(golden: &File, dump: &Path, at: &str) -> (f64, f64) {
    let seen = File::open(&dump.join("gradients.safetensors")).unwrap();
    let names: Vec<_> = golden.names().filter_map(|name| name.strip_prefix("grad.")).collect();
    assert_eq!(seen.names().count(), names.len(), "{at}");
    let (mut worst, mut norm2) = (0.0f64, 0.0);
    for name in names {
        let (got, wanted) = (tensor(&seen, name), tensor(golden, &format!("grad.{name}")));
        let (off, size) = (far(&got, &wanted), largest(wanted.iter().copied()));
        assert!(off < NEAR * size, "{at}: gradient of {name} is off by {off:.1e} of {size:.1e}");
        worst = worst.max(off / size);
        norm2 += got.iter().map(|g| g * g).sum::<f64>();
    }
    (worst, norm2.sqrt())
}

/// Goldens with `output_router_logits` true; the gradients of routers alone, by name.
#[derive(Deserialize)]
struct Balanced {
    coefficient: f64,
    loss: f64,
    grad_norm: f64,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// A folder's model with this coefficient and `output_router_logits`.
fn balanced(dir: &Path, coefficient: f64, logits: bool) -> Model {
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    config["router_aux_loss_coef"] = coefficient.into();
    config["output_router_logits"] = logits.into();
    let mut model = Model::read(dir).unwrap();
    model.config = Config::parse(&config.to_string(), "").unwrap();
    model
}

/// Transformers counts the tokens of all blocks, whether they have a target or not, and no padding; the last
/// token of each sequence has no target. Kills: a balance where transformers has none, of each block (of
/// Mixtral's two), of dense blocks (of Qwen's), of tokens with a target, of a rank's tokens, or of a stage's
/// blocks.
#[test]
fn the_balance_of_experts_is_that_of_transformers() {
    for name in OF_EXPERTS_MODELS {
        let dir = folder(name);
        let text = std::fs::read(dir.join("balance.json")).unwrap();
        let reported: Balanced = serde_json::from_slice(&text).unwrap();
        let ((golden, file), model) = (golden(&dir), balanced(&dir, reported.coefficient, true));
        for layout in ["none", "pp=2", "tp=2,sp,dp=2", "dp=2,ep=2", "tp=2,pp=2:zb-v"] {
            let layout: Layout = layout.parse().unwrap();
            if layout.fits(model.config.shape).is_err() {
                continue;
            }
            let out = tempfile::tempdir().unwrap();
            let sequence = |ids: &Vec<u32>| Sequence::new(ids.clone(), [&ids[1..], &[IGNORED]].concat());
            let loss = step_on(golden.batch.iter().map(sequence).collect(), &model, layout, out.path());
            assert!(
                (loss - reported.loss).abs() < NEAR,
                "{name}, {layout}: loss {loss} for {}",
                reported.loss
            );
            let seen = File::open(&out.path().join("gradients.safetensors")).unwrap();
            for (router, wanted) in &reported.gradients {
                let (off, size) = (far(&tensor(&seen, router), wanted), largest(wanted.iter().copied()));
                assert!(off < NEAR * size, "{name}, {layout}: {router} is off by {off:.1e} of {size:.1e}");
            }
            let norm = seen.names().flat_map(|name| tensor(&seen, name)).map(|g| g * g).sum::<f64>().sqrt();
            assert!((norm / reported.grad_norm - 1.0).abs() < NEAR, "{name}, {layout}: norm {norm}");
        }
        let out = tempfile::tempdir().unwrap();
        let without = balanced(&dir, reported.coefficient, false);
        let loss = step(&without, Layout::UNSPLIT, &golden, out.path());
        assert!((loss - golden.loss).abs() < NEAR, "{name}: loss {loss} for {}", golden.loss);
        gradients(&file, out.path(), name);
        assert!((reported.loss - golden.loss).abs() > 0.1, "{name}: a balance that is seen");
    }
}

/// A dump is consistent: every linear layer's output is its input times its weight, plus its bias; names and
/// metadata are there. Kills: rows or columns of an activation out of order, weights of after the step.
#[test]
fn dumped_products_hold() {
    let dir = folder("gpt2");
    let (model, (golden, _)) = (Model::read(&dir).unwrap(), golden(&dir));
    for layout in LAYOUTS {
        let out = tempfile::tempdir().unwrap();
        step(&model, layout.parse().unwrap(), &golden, out.path());
        let open = |name: &str| File::open(&out.path().join(name)).unwrap();
        let (activations, weights) = (open("activations.safetensors"), open("weights.safetensors"));
        for (ours, theirs) in
            [("attention.qkv", "attn.c_attn"), ("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc")]
        {
            let [x, y] = ["in", "out"].map(|end| tensor(&activations, &format!("blocks.1.{ours}.{end}")));
            let [w, b] =
                ["weight", "bias"].map(|part| tensor(&weights, &format!("transformer.h.1.{theirs}.{part}")));
            let (tokens, outputs) = (golden.batch.iter().map(|s| s.len() - 1).sum::<usize>(), b.len());
            let inputs = x.len() / tokens;
            assert_eq!((y.len(), w.len()), (tokens * outputs, inputs * outputs));
            for (i, y) in y.iter().enumerate() {
                let (row, col) = (i / outputs, i % outputs);
                let product: f64 = (0..inputs).map(|k| x[row * inputs + k] * w[k * outputs + col]).sum();
                assert!((product + b[col] - y).abs() < 1e-4, "{layout}: {ours}[{row}, {col}]");
            }
        }
        let note = |key: &str| activations.metadata().get(key).cloned();
        assert_eq!((note("layout").as_deref(), note("step").as_deref()), (Some(layout), Some("0")));
        let names = std::fs::read_to_string(out.path().join("names.json")).unwrap();
        let names: serde_json::Value = serde_json::from_str(&names).unwrap();
        assert_eq!(names["blocks.0.attention.qkv"][0], "transformer.h.0.attn.c_attn.weight");
    }
    assert!(dump::prepare(&folder("gpt2").join("config.json")).is_err(), "a file is no folder");
}
