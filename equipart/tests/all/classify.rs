//! The plain classifier: what it learns is the oracle's, under every layout; what it saves is what it judged
//! itself by; `prove` says equal.
use crate::child::equipart;
use crate::classify_refused::refused;
use layers::OptimizerKind;
use models::TrainableModel;
use models::digits::{Digits, Set, order};
use ops::{ADAMW, Draw, RandomValues, SGD, ValueSource};
use parallel::{Layout, Network};
use reference::{Classifier, Updates, Weights};
use run::train::data::TrainData;
use run::train::epochs::EpochLine;
use run::train::evaluations::Evaluations;
use run::train::settings::Settings;
use run::train::state::Saves;
use run::train::{StepLine, TrainRun, of_steps};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensor::safetensors::File;

const LAYOUTS: [&str; 8] =
    ["none", "tp=2", "tp=2,sp", "dp=2", "tp=2,dp=2", "tp=4", "pp=2", "pp=2,tp=2,sp,dp=2"];

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// Results of training for this number of epochs, by a model with this number of hidden features.
struct Lesson {
    hidden: Vec<usize>,
    epochs: usize,
    settings: Settings,
}

/// Settings of so many epochs of 237 pictures.
fn lesson(hidden: &[usize], optimizer: OptimizerKind, lr: f64, clip: Option<f64>, seed: u64) -> Lesson {
    let (epochs, batch_size) = (4, 8);
    let settings = Settings {
        steps: epochs * 237usize.div_ceil(batch_size),
        seq: 1,
        batch_size,
        microbatches: 3,
        lr,
        warmup: 5,
        optimizer,
        clip,
        seed,
        floor: 0.3,
        ..Settings::default()
    };
    Lesson { hidden: hidden.to_vec(), epochs, settings }
}

fn train(digits: &Digits, lesson: &Lesson, under: &str) -> Vec<EpochLine> {
    let (lines, steps) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let Lesson { hidden, settings, .. } = lesson;
    let run = TrainRun {
        model: TrainableModel::classifier(
            [&[digits.pixels()], &hidden[..], &[digits.classes]].concat(),
            settings.seed,
        ),
        source: &TrainData::Digits(digits.clone()),
        settings: settings.clone(),
        layout: layout(under),
        network: Network::default(),
        out: None,
        resume: None,
        checkpoint_every: usize::MAX,
        saves: Saves::default(),
        check_every: None,
        stop_after: None,
        evaluations: Evaluations::default(),
        dump: None,
    };
    let reported = |line: &StepLine| {
        steps.fetch_add(1, Ordering::Relaxed);
        lines.lock().unwrap().extend(line.epoch.clone());
        Ok(())
    };
    run.train(&of_steps(reported)).unwrap();
    assert_eq!(steps.into_inner(), settings.steps, "told once, on rank 0");
    lines.into_inner().unwrap()
}

fn pictures(set: &Set, which: &[usize]) -> (Vec<f64>, Vec<u32>) {
    let x = which
        .iter()
        .flat_map(|&i| set.image(i))
        .map(|&x| f64::from((f32::from(x) / 255.0 - 0.1307) / 0.3081))
        .collect();
    (x, which.iter().map(|&i| u32::from(set.labels[i])).collect())
}

/// The share of a set whose label has the largest logit.
fn accuracy(model: &Classifier, weights: &Weights<f64>, set: &Set) -> f64 {
    let (x, labels) = pictures(set, &(0..set.len()).collect::<Vec<_>>());
    let logits = model.logits(weights, &x);
    let best = |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    let classes = logits.len() / labels.len();
    let right = logits.chunks(classes).zip(&labels).filter(|(row, label)| best(row) == **label).count();
    right as f64 / labels.len() as f64
}

/// Losses and accuracies of the same training in plain f64.
fn oracle(digits: &Digits, Lesson { hidden, epochs, settings: s }: &Lesson) -> Vec<[f64; 2]> {
    let model = Classifier { sizes: [&[digits.pixels()], &hidden[..], &[digits.classes]].concat() };
    let (mut weights, random) = (Weights::new(), RandomValues { seed: s.seed });
    for (name, shape @ [rows, cols]) in model.shapes() {
        let std = if rows == 1 { 0.02 } else { 1.0 / (rows as f64).sqrt() };
        let numbers = ValueSource::<f32>::of(&random, &name, shape, Draw { mean: 0.0, std }).unwrap();
        let all = (0..rows * cols).map(|i| f64::from(numbers.at([i / cols, i % cols]))).collect();
        weights.insert(name, all);
    }
    let n = digits.train.len();
    let schedule = s.learning_rate();
    let mut updates = Updates::new(model.shapes(), s.optimizer, s.clip, weights);
    let epoch = |epoch| {
        let mut sum = 0.0;
        for batch in order(s.seed, epoch, n).chunks(s.batch_size) {
            let (x, labels) = pictures(&digits.train, batch);
            let mut walk = reference::Walk::unseen(updates.weights(), None);
            let (loss, g) = model.gradients_recorded(&x, &labels, batch.len(), &mut walk);
            sum += loss * batch.len() as f64;
            updates.apply(&g, schedule.at(updates.steps()));
        }
        [sum / n as f64, accuracy(&model, updates.weights(), &digits.test)]
    };
    (0..*epochs).map(epoch).collect()
}

/// Kills: a last batch left out, a mean of means, an order or a rate of another step, pixels not x/255, a
/// test that comes before the epoch or judges by the pictures learnt from, microbatches or ranks that count
/// twice.
#[test]
fn every_layout_learns_what_the_oracle_learns() {
    let digits = Digits::generated(1, 237, 60);
    let sgd = lesson(&[24, 8], SGD, 0.1, None, 0);
    let adamw = lesson(&[16], ADAMW, 3e-3, Some(0.5), 3);
    for settings in [sgd, adamw] {
        let truth = oracle(&digits, &settings);
        assert!(truth[3][0] < 0.8 * truth[0][0] && truth[3][1] > 0.3, "{truth:?}");
        for under in LAYOUTS {
            for (line, [loss, accuracy]) in train(&digits, &settings, under).iter().zip(&truth) {
                assert!((line.loss / loss - 1.0).abs() < 1e-4, "{under}: {line:?} instead of {loss}");
                assert!(
                    (line.accuracy - accuracy).abs() < 1.5 / 60.0,
                    "{under}: {line:?} instead of {accuracy}"
                );
                assert!(line.seconds > 0.0 && line.examples_per_second > 0.0);
            }
        }
    }
}

pub(crate) fn lines(args: &[&str]) -> Vec<Value> {
    let output = equipart(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect()
}

/// Generated digits as the four files of MNIST.
pub(crate) fn written(dir: &Path, [train, test]: [usize; 2]) -> Digits {
    let digits = Digits::generated(5, train, test);
    for (set, name) in [(&digits.train, "train"), (&digits.test, "t10k")] {
        let number = |n: usize| (n as u32).to_be_bytes();
        let header = |kind: u8, sizes: &[usize]| {
            [vec![0, 0, 8, kind], sizes.iter().flat_map(|n| number(*n)).collect()].concat()
        };
        let images = (0..set.len()).flat_map(|i| set.image(i)).copied().collect();
        let images = [header(3, &[set.len(), 28, 28]), images].concat();
        let labels = [header(1, &[set.len()]), (0..set.len()).map(|i| set.labels[i]).collect()].concat();
        std::fs::write(dir.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
        std::fs::write(dir.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    }
    digits
}

/// Contents of a file, under our names: `[outputs, inputs]` turned round.
fn read(dir: &Path, model: &Classifier) -> Weights<f64> {
    let file = File::open(&dir.join("model.safetensors")).unwrap();
    let mut names = file.names().collect::<Vec<_>>();
    names.sort_unstable();
    assert_eq!(names, ["0.bias", "0.weight", "2.bias", "2.weight"]);
    let mut weights = BTreeMap::new();
    for (i, size) in model.sizes.windows(2).enumerate() {
        let weight = file.matrix(&format!("{}.weight", 2 * i), [size[1], size[0]]).unwrap();
        let bias = file.matrix(&format!("{}.bias", 2 * i), [1, size[1]]).unwrap();
        let turned = (0..size[0] * size[1]).map(|at| weight.get(at % size[1], at / size[1])).collect();
        weights.insert(format!("layers.{i}"), turned);
        weights.insert(format!("layers.{i}.bias"), (0..size[1]).map(|o| bias.get(0, o)).collect());
    }
    weights
}

/// Kills: a weight saved as it lies and not `[outputs, inputs]`, a model of the epoch before, a folder of
/// another run.
#[test]
fn what_is_saved_is_what_was_judged() {
    let dir = tempfile::tempdir().unwrap();
    let digits = written(dir.path(), [120, 50]);
    let (data, out) = (dir.path().display().to_string(), dir.path().join("out"));
    let out_name = out.display().to_string();
    let args =
        ["train", "--model", "mlp", "--data", &data, "--hidden", "24", "--epochs", "4", "--batch-size", "8"];
    let args = [&args[..], &["--lr", "0.1", "--layout", "tp=2,dp=2", "--out", &out_name]].concat();
    let trace = dir.path().join("trace.json");
    let flags = ["--link", "tp=20us,1GB/s", "--trace", trace.to_str().unwrap(), "--json"];
    let said = lines(&[&args[..], &flags].concat());
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for span in ["step 1", "forward 0", "backward 0", "sync gradients", "optimizer"] {
        assert!(
            (0..4).all(|rank| events.iter().any(|e| e["tid"] == 10_000 + 2 * rank && e["name"] == span)),
            "{span}"
        );
    }
    assert_eq!((said.len(), &said[0]["epoch"], &said[3]["epoch"]), (4, &1.into(), &4.into()));
    assert!(said[3]["loss"].as_f64().unwrap() < said[0]["loss"].as_f64().unwrap());
    let model = Classifier { sizes: vec![784, 24, 10] };
    let right = accuracy(&model, &read(&out, &model), &digits.test);
    assert_eq!(said[3]["accuracy"].as_f64().unwrap(), right);
    assert!(right > 0.3);
    let config: Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["sizes"]), (&"mlp".into(), &serde_json::json!([784, 24, 10])));
    let note = |key: &str| File::open(&out.join("model.safetensors")).unwrap().metadata().get(key).cloned();
    assert_eq!((note("format"), note("step")), (Some("pt".into()), Some("60".into())));
    refused(
        &args,
        &format!("{out_name} holds a model already; resume it with --resume or choose another folder"),
    );
    refused(&["train", "--model", &out_name], "");

    let other = dir.path().join("other");
    let plain = [&args[..args.len() - 1], &[other.to_str().unwrap()]].concat();
    let table = String::from_utf8(equipart(&plain).stdout).unwrap();
    let ends = format!("the model is in {}\n", other.display());
    assert!(
        table.contains("accuracy") && table.contains("on 50 test pictures") && table.ends_with(&ends),
        "{table}"
    );
    let eval =
        lines(&["eval", "--model", &out_name, "--data", &data, "--layout", "dp=2", "--json"]).remove(0);
    assert_eq!((eval["accuracy"].as_f64(), eval["tokens"].as_u64()), (Some(right), Some(50)));
}

/// Kills: an order, a rate or moments of another step where a run goes on in the middle of an epoch; an
/// epoch's loss, or its time, of the part after that alone; a table or a CSV without earlier epochs.
#[test]
fn a_run_that_is_resumed_ends_as_one_that_was_not() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), [120, 50]);
    let data = dir.path().display().to_string();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name).display().to_string());
    let begin = ["train", "--model", "mlp", "--data", &data, "--hidden", "12", "--epochs", "2", "--json"];
    let begin = [&begin[..], &["--optimizer", "adamw", "--layout", "dp=2", "--out"]].concat();
    let whole = lines(&[&begin[..], &[&one]].concat());
    assert!(lines(&[&begin[..], &[&two, "--stop-after", "3"]].concat()).is_empty(), "no epoch ended");
    let rest = lines(&["train", "--resume", &two, "--data", &data, "--layout", "tp=2", "--json"]);
    assert_eq!((whole.len(), rest.len()), (2, 2));
    let loss = |line: &Value| line["loss"].as_f64().unwrap();
    let alike = |epoch: usize| (loss(&whole[epoch]) / loss(&rest[epoch]) - 1.0).abs() < 1e-3;
    assert!(alike(0) && alike(1), "{whole:?} {rest:?}");
    let log = std::fs::read_to_string(dir.path().join("two/log.jsonl")).unwrap();
    let steps = log.lines().take(3).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let before: f64 = steps.map(|step| 32.0 / step["tokens_per_second"].as_f64().unwrap()).sum();
    let [seconds, rate] = ["seconds", "examples_per_second"].map(|key| rest[0][key].as_f64().unwrap());
    assert!(seconds > before && (seconds * rate - 120.0).abs() < 1e-6, "{seconds} s after {before} s");
    refused(&["train", "--resume", &two], "");
    refused(
        &["train", "--resume", &two, "--data", &data],
        "the run has done 8 steps and ends at 8; give a larger --epochs to continue",
    );
    let csv = dir.path().join("a.csv").display().to_string();
    let more = ["train", "--resume", &two, "--data", &data, "--epochs", "3", "--csv", &csv];
    let more = String::from_utf8(equipart(&more).stdout).unwrap();
    let row = |line: &str, end: &str| line.split(end).next().unwrap().trim().parse::<usize>().ok();
    let epochs = std::fs::read_to_string(csv).unwrap();
    let epochs: Vec<_> = epochs.lines().filter_map(|line| row(line, ",")).collect();
    assert_eq!(epochs, [1, 2, 3]);
    let shown: Vec<_> = more.lines().filter_map(|line| row(line.trim(), " ")).collect();
    assert_eq!(shown, [1, 2, 3], "{more}");
}

/// Kills: a command that has no use for a classifier's data.
#[test]
fn every_command_takes_a_classifier() {
    let priced = lines(&["price", "--model", "mlp", "--hidden", "16", "--layout", "tp=2,dp=2", "--json"]);
    assert_eq!((&priced[0]["ranks"], priced[0]["layout"].as_str()), (&4.into(), Some("tp=2,dp=2")));
    // Multiply-adds of a step's 8 pictures: forward, the weights' gradients, and dX of the last layer alone.
    let (weights, dx) = (784 * 16 + 16 * 10, 16 * 10);
    let flops: u64 =
        priced.iter().map(|of| of["flops"].as_u64().unwrap() * of["ranks"].as_u64().unwrap()).sum();
    assert_eq!(flops, 2 * 8 * (2 * weights + dx), "{priced:?}");
    let compare = ["compare", "--model", "mlp", "--hidden", "16", "--layout", "tp=2", "--layout", "pp=2"];
    let rows = lines(&[&compare[..], &["--seconds", "0", "--json"]].concat());
    assert_eq!(rows.len(), 3);
    let of_pictures = |row: &Value| row["pictures_per_second"].is_f64() && row["tokens_per_second"].is_null();
    let right = |row: &Value| row["workload"] == "training" && row["equal"] == true && of_pictures(row);
    assert!(rows.iter().all(right), "{rows:?}");
    let eval = lines(&["eval", "--model", "mlp", "--hidden", "none", "--json"]).remove(0);
    assert!(eval["accuracy"].as_f64().unwrap() < 0.5 && eval["tokens"] == 2000, "{eval}");
    refused(
        &["eval", "--model", "mlp", "--seq", "3"],
        "--seq is for models of text; --model mlp has no use for it",
    );
}

#[test]
fn prove_states_what_it_states_of_every_model() {
    let args = ["prove", "--model", "mlp", "--hidden", "8,6", "--layout", "tp=2,dp=2", "--key", "0x10"];
    let said = lines(&[&args[..], &["--json"]].concat());
    assert_eq!((&said[0]["equal"], &said[0]["layout"]), (&true.into(), &"tp=2,dp=2".into()));
    assert_eq!(
        (&said[0]["keys"][0], &said[0]["first_difference"]),
        (&"0x0000000000000010".into(), &Value::Null)
    );
    assert!(said[0]["bound_log2"].as_f64().unwrap() < -60.0);
    let parameters = 784 * 8 + 8 + 8 * 6 + 6 + 6 * 10 + 10;
    let (steps, logits) = (2 * (2 + 2 * parameters), 2 * 10);
    assert_eq!(
        said[0]["elements"],
        2 * (4 * steps + 2 * logits),
        "two keys; each data rank reads its examples"
    );
    let words = String::from_utf8(equipart(&args).stdout).unwrap();
    assert!(
        words.starts_with("Randomised proof: under tp=2,dp=2") && words.contains("at most 2^-"),
        "{words}"
    );
}
