//! The models that are part of the program, and their text. The default is a byte-level model trained by `equipart train`
//! on a frozen corpus of the project's own prose and sources; its sister has experts and was trained further:
//!
//! ```text
//! equipart convert --model embedded --experts 8 --chosen 4 --slices 4 --out upcycled
//! equipart train --model upcycled --steps 800 --seed 1 --out trained
//! equipart convert --model trained --dtype f16 --out models/moe
//! ```

/// Its config.json.
pub const CONFIG: &str = include_str!("../default/config.json");
/// Its model.safetensors.
pub static WEIGHTS: &[u8] = include_bytes!("../default/model.safetensors");
/// The config.json of its sister with experts.
pub const MOE_CONFIG: &str = include_str!("../moe/config.json");
/// The model.safetensors of that.
pub static MOE_WEIGHTS: &[u8] = include_bytes!("../moe/model.safetensors");
/// What both were trained on (the last tenth was held out).
pub static CORPUS: &[u8] = include_bytes!("../default/corpus.txt");
/// The corpus' SHA-256, in hexadecimal: it stays what they were trained on.
pub const CORPUS_SHA256: &str = include_str!("../default/corpus.sha256");
