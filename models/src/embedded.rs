//! The embedded default: a byte-level model trained by `equipart train` on a frozen corpus of the project's own
//! prose and sources, both part of the program.

/// Its config.json.
pub const CONFIG: &str = include_str!("../default/config.json");
/// Its model.safetensors.
pub static WEIGHTS: &[u8] = include_bytes!("../default/model.safetensors");
/// What it was trained on (the last tenth was held out).
pub static CORPUS: &[u8] = include_bytes!("../default/corpus.txt");
/// The corpus' SHA-256, in hexadecimal: it stays what the model was trained on.
pub const CORPUS_SHA256: &str = include_str!("../default/corpus.sha256");
