//! Models embedded in the program, and their training text. The default is a byte-level model, trained by
//! `equipart train` on a frozen corpus of the project's own prose and sources. Its sister has experts and was
//! trained further:
//!
//! ```text
//! equipart convert --model embedded --experts 8 --chosen 4 --slices 4 --out upcycled
//! equipart train --model upcycled --steps 800 --seed 1 --out trained
//! equipart convert --model trained --dtype f16 --out models/moe
//! ```

/// config.json of the default.
pub const CONFIG: &str = include_str!("../default/config.json");
/// model.safetensors of the default.
pub static WEIGHTS: &[u8] = include_bytes!("../default/model.safetensors");
/// config.json of the sister with experts.
pub const MOE_CONFIG: &str = include_str!("../moe/config.json");
/// model.safetensors of the sister with experts.
pub static MOE_WEIGHTS: &[u8] = include_bytes!("../moe/model.safetensors");
/// Training text of both (the last tenth was held out).
pub static CORPUS: &[u8] = include_bytes!("../default/corpus.txt");
/// SHA-256 of the corpus, in hexadecimal: the corpus must stay the training text of both.
pub const CORPUS_SHA256: &str = include_str!("../default/corpus.sha256");
