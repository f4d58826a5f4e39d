//! Training from Rust: the embedded model under a layout, with an observer of its own. `cargo run --release
//! --example train_embedded` prints the loss of each step.
use models::text::Corpus;
use models::{Model, embedded};
use parallel::{Network, Result};
use run::train::data::TrainData;
use run::train::settings::Settings;
use run::train::{TrainRun, of_steps};
use std::sync::Mutex;

fn main() -> Result<()> {
    for (step, loss) in trained("tp=2,pp=2")?.iter().enumerate() {
        println!("step {}: {loss:.4}", step + 1);
    }
    Ok(())
}

/// Trains for a few steps under a layout, and returns their losses.
fn trained(layout: &str) -> Result<Vec<f64>> {
    let model = Model::embedded()?;
    let corpus = Corpus::tokenized(&embedded::CORPUS[..4000], "a text", 32, &model.tokenizer()?)?;
    let source = TrainData::Text(corpus);
    let usual = source.usual_settings(None);
    let settings = Settings { steps: 4, seq: 32, batch_size: 4, microbatches: 2, ..usual };
    let run = TrainRun::of((model.into(), &source), settings, layout.parse()?, Network::default());
    let losses = Mutex::new(Vec::new());
    run.train(&of_steps(|step| {
        losses.lock().expect("no observer panics").push(step.loss);
        Ok(())
    }))?;
    Ok(losses.into_inner().expect("no observer panics"))
}

/// Kills: an observer that misses a step, a run from Rust that ignores its layout or its settings.
#[test]
fn a_layout_has_the_losses_of_the_unsplit_run() {
    let (split, whole) = (trained("tp=2,pp=2").unwrap(), trained("none").unwrap());
    assert_eq!(split.len(), 4);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-4 * b.abs();
    assert!(split.iter().zip(&whole).all(near) && split != whole, "{split:?} {whole:?}");
}
