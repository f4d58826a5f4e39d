//! Text to token ids and back: by a model's own tokenizer.json, read as in `transformers`, or byte by byte.
//!
//! | input | special tokens |
//! |---|---|
//! | a prompt ([`Tokenizer::encode_prompt`]) | those that the file adds around a text, as in `transformers` |
//! | a text for training or evaluation ([`Tokenizer::encode`]) | only those written in it |
//! | ids ([`Tokenizer::decode`]) | left out |
//!
//! Texts are never truncated or padded, and merges are never dropped at random, whatever the file says: equal
//! texts have equal ids. Only tokenizer.json is read, not the additions of `tokenizer_config.json`.
//!
//! Ids equal those of the Python library `tokenizers`, with two exceptions. Of two equally good segmentations
//! of a Unigram model, the other may be chosen, since some scores are read a unit in the last place off. And
//! regular expressions run without C here: a search ends after a million steps back, as in a million spaces.
mod along;
mod bytes;

pub use along::{ALONG, TokenizerSource, is_same};
pub use bytes::json;

use comm::caught;
use parallel::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::files;
use tensor::quoted::sentence;
use tokenizers::models::ModelWrapper;

/// Converts text to token ids and back. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tokenizer(Option<Arc<FileTokenizer>>);

#[derive(Debug)]
struct FileTokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

/// A text as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<u32>,
    /// Number of bytes of the text up to the end of the first token.
    pub first: usize,
}

impl Tokenizer {
    /// Returns the byte-level tokenizer: the id of each byte is its value.
    pub fn bytes() -> Self {
        Self::default()
    }
    /// Reads a tokenizer.json. A file in which the id of each byte is its value gives [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// If the file cannot be read or is not a tokenizer.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read(path)?;
        let unreadable = |why: String| {
            let why = sentence(&why);
            Error::new(format!("{} is not a readable tokenizer: {why}", path.display()))
        };
        let mut inner = tokenized(|| tokenizers::Tokenizer::from_bytes(&text)).map_err(unreadable)?;
        if inner.get_vocab_size(true) == 256 && bytes::is_of_bytes(&text) {
            return Ok(Self::bytes());
        }
        inner.with_padding(None).with_truncation(None).map_err(|why| unreadable(why.to_string()))?;
        if let ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some()
        {
            let mut model = model.clone();
            model.dropout = None;
            inner.with_model(model);
        }
        Ok(Self(Some(Arc::new(FileTokenizer { path: path.to_owned(), inner }))))
    }
    /// Returns true if the id of each byte is its value.
    pub fn is_of_bytes(&self) -> bool {
        self.0.is_none()
    }
    /// Checks that a vocabulary of this size has all of its ids.
    ///
    /// # Errors
    /// If one of the ids is not below it.
    pub fn fits(&self, vocabulary: usize) -> Result<()> {
        let (origin, largest) = match &self.0 {
            None => ("text that is read as bytes".to_owned(), Some(255)),
            Some(file) => {
                let around = self.encode_prompt("")?; // these ids come from the file
                let largest = file.inner.get_vocab(true).into_values().chain(around).max();
                (file.path.display().to_string(), largest)
            }
        };
        match largest.filter(|&id| id as usize >= vocabulary) {
            Some(largest) => Err(Error::new(format!(
                "{origin} has token ids up to {largest}; they must be below the model's vocab_size of {vocabulary}"
            ))),
            None => Ok(()),
        }
    }
    /// Returns the ids of a prompt: of its text, and of the special tokens that the file adds around it.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoded(text, true)?.ids)
    }
    /// Returns the ids of a text without the special tokens around it. Takes some hundred bytes of memory for
    /// each byte of the text.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        self.encoded(text, false)
    }
    fn encoded(&self, text: &str, around: bool) -> Result<Encoded> {
        let Some(file) = &self.0 else { return Ok(Encoded::of_bytes(text.as_bytes())) };
        let encoding =
            tokenized(|| file.inner.encode(text, around)).map_err(file.failed("turn this text into ids"))?;
        let first = encoding.get_offsets().first().map_or(0, |&(_, end)| end);
        Ok(Encoded { ids: encoding.get_ids().to_vec(), first })
    }
    /// Returns the text of these ids, without special tokens. Invalid UTF-8, and a number that is not a byte,
    /// become `�`.
    ///
    /// # Errors
    /// If the tokenizer cannot decode them.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let Some(file) = &self.0 else { return Ok(bytes::text(ids)) };
        tokenized(|| file.inner.decode(ids, true)).map_err(file.failed("turn these ids into text"))
    }
}

impl Encoded {
    /// Encodes a text whose bytes are its ids.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { ids: bytes.iter().copied().map(u32::from).collect(), first: bytes.len().min(1) }
    }
}

impl FileTokenizer {
    fn failed(&self, what: &'static str) -> impl Fn(String) -> Error + '_ {
        move |why| {
            let why = sentence(&why);
            Error::new(format!("{}: the tokenizer cannot {what}: {why}", self.path.display()))
        }
    }
}

/// Returns the library's result, or its error. The library panics on some files that are JSON of an
/// unexpected shape.
fn tokenized<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match caught(work) {
        Ok(done) => done.map_err(|why| why.to_string()),
        Err(_) => Err("the tokenizers library panicked on this input".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
