//! The embedded default: its corpus is the one it was trained on, and it knows more of it than counting can tell.
use crate::order3::order3;
use equipart::commands::train::run::held_out;
use equipart::commands::train::settings::sequences;
use layers::Kind;
use models::text::{Corpus, windows};
use models::{Model, embedded};
use parallel::{Layout, Trainer};
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
            let kind = (Kind::Sgd, None);
            let at = Layout::default().place(&device, &mesh, model.values());
            let mut trainer = Trainer::new(&at, model.config.shape, kind)?;
            held_out(&mut trainer, &corpus, seq, &mesh)
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
