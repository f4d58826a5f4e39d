//! The embedded default: its corpus is the one it was trained on, and it knows more of it than counting can
//! tell. Its sister with experts knows no less, and uses them about alike.
use crate::child::equipart;
use crate::order3::order3;
use models::text::{Corpus, windows};
use models::{Model, embedded};
use ops::SGD;
use parallel::{Layout, Network, Trainer};
use run::eval::{Evaluation, evaluate};
use run::train::data::held_out;
use run::train::settings::sequences;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tensor::Cpu;

#[test]
fn the_corpus_is_frozen() {
    let hash = Sha256::digest(embedded::CORPUS);
    let hex: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex.concat(), embedded::CORPUS_SHA256.trim());
}

/// Held-out bits a byte, under a split layout: below an order-3 byte model's, which was given the same text.
#[test]
fn the_model_beats_an_order_3_model_on_held_out_text() {
    let model = Model::embedded().unwrap();
    let seq = 256;
    let corpus = Corpus::new(embedded::CORPUS, "the embedded text", seq).unwrap();
    let layout: Layout = "dp=2".parse().unwrap();
    let world = comm::World::threads(&layout.axes()).unwrap();
    let bits = world
        .run(|device: Cpu<f32>, mesh| {
            let kind = (SGD, None);
            let at = Layout::default().place(&device, &mesh, model.values());
            let mut trainer = Trainer::new(&at, model.config.shape, kind)?;
            held_out(&mut trainer, (&corpus, seq), &|_, _| ())
        })
        .unwrap()[0]
        .expect("text enough for two ranks");
    let counted = order3(&corpus.train, &corpus.held_out);
    println!("held out: {bits:.3} bits a byte; an order-3 model {counted:.3}");
    assert!(bits < counted - 0.2, "{bits} {counted}");
    assert!((bits - 1.823).abs() < 0.01, "{bits}, which is not what README says");
    let tokens: usize = sequences(windows(&corpus.held_out, seq)).iter().map(|s| s.targets.len()).sum();
    assert_eq!(tokens, corpus.held_out.len() - 1, "every held-out byte but the first is predicted once");
}

/// Evaluation of a model on the held-out text, under a layout.
fn held_out_of(model: Model, layout: &str) -> Evaluation {
    let corpus = Corpus::new(embedded::CORPUS, "the embedded text", 256).unwrap();
    let all = sequences(windows(&corpus.held_out, 256));
    evaluate::<Cpu<f32>>(&model.into(), (&layout.parse().unwrap(), &Network::default()), all, &|_, _| ())
        .unwrap()
}

/// Kills: a sister that lost what the default knew, one that has a few experts do all the work.
#[test]
fn the_sister_is_no_worse_than_the_default_and_its_experts_are_used_alike() {
    let default = held_out_of(Model::embedded().unwrap(), "dp=2");
    let sister = held_out_of(Model::moe().unwrap(), "dp=2,ep=2");
    println!("{sister:?}");
    assert!(sister.loss <= default.loss, "{} {}", sister.loss, default.loss);
    assert!(default.experts.is_empty());
    let experts = Model::moe().unwrap().config.shape.experts.unwrap();
    assert_eq!(sister.experts.iter().count(), 4);
    for (layer, counts) in sister.experts.iter() {
        let even = (sister.tokens * experts.chosen) as f64 / experts.count as f64;
        assert_eq!(counts.iter().sum::<usize>(), sister.tokens * experts.chosen, "{layer}");
        let near = counts.iter().all(|&count| (count as f64 / even - 1.0).abs() < 0.3);
        assert!(near, "{layer}: {counts:?}, of which {even} is even");
    }
}

/// The lines that a command prints, with `--model moe`.
fn of_sister(args: &[&str]) -> Vec<Value> {
    let output = equipart(&[args, &["--model", "moe", "--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Kills: a token that goes to another expert where there are more ranks, a draw that depends on them.
#[test]
fn the_sister_tells_the_same_under_layouts_of_experts() {
    let ids = |layout: &str, drawn: &[&str]| {
        let prompts = ["--prompt", "/// The ", "--prompt", "fn ", "--max-new", "24"];
        let said = of_sister(&[&["generate", "--layout", layout][..], &prompts, drawn].concat());
        said.iter().map(|line| line["ids"].clone()).collect::<Vec<_>>()
    };
    for drawn in [&[][..], &["--temperature", "0.8", "--seed", "3"]] {
        let alone = ids("none", drawn);
        assert!(alone.len() >= 2 && alone[0].as_array().is_some_and(|ids| ids.len() >= 24), "{alone:?}");
        for layout in ["ep=2", "tp=2,ep=2", "dp=2,tp=2,ep=2,etp=2"] {
            assert_eq!(ids(layout, drawn), alone, "{layout}, {drawn:?}");
        }
    }
}

/// Kills: a command that does not know the name, a run whose loads are told twice or not at all.
#[test]
fn every_command_knows_the_sister() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let text = at("text");
    std::fs::write(&text, "all work and no play makes a dull text. ".repeat(40)).unwrap();
    let evaluated = of_sister(&["eval", "--data", &text, "--seq", "32"]);
    assert_eq!(evaluated[0]["experts"].as_object().unwrap().len(), 4);
    let train = ["train", "--data", &text, "--seq", "32", "--steps", "1", "--batch-size", "2", "--layout"];
    let said = of_sister(&[&train[..], &["ep=2"]].concat());
    assert_eq!((said.len(), said[1]["experts"].as_object().unwrap().len()), (2, 4));
    for counts in said[1]["experts"].as_object().unwrap().values() {
        let sum: u64 = counts.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(sum, 2 * 32 * 4);
    }
    assert_eq!(of_sister(&["price", "--layout", "ep=2", "--batch-size", "2", "--seq", "32"])[0]["ranks"], 2);
    assert!(!of_sister(&["schedule", "--kind", "gpipe", "--stages", "2", "--microbatches", "2"]).is_empty());
    assert_eq!(of_sister(&["convert", "--out", &at("again")])[0]["tensors"], 127);
}
