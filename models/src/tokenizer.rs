//! Text as token ids and back: by a model's own tokenizer.json, read as `transformers` reads it, or byte by byte.
//!
//! | what | special tokens |
//! |---|---|
//! | a prompt ([`Tokenizer::encode_prompt`]) | those that the file puts around a text, as in `transformers` |
//! | a text to learn or to be told ([`Tokenizer::encode`]) | none but those written in it |
//! | ids as text ([`Tokenizer::decode`]) | left out |
//!
//! A text is never cut or padded, and merges are never dropped at random, whatever the file says: equal texts have
//! equal ids. Nothing but tokenizer.json is read; what `tokenizer_config.json` adds to it is not added.
//!
//! Ids are those of the library `tokenizers` in Python, with two exceptions. Two cuts of a Unigram model that are as
//! good as each other may be chosen otherwise, since it reads some scores a unit in the last place off. And expressions
//! are searched without C here: where a search takes a million steps back, as in a million spaces, it ends there.
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

/// Turns text into token ids and back. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tokenizer(Option<Arc<OfFile>>);

#[derive(Debug)]
struct OfFile {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

/// A text as ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<u32>,
    /// Bytes of the text up to the end of the first token.
    pub first: usize,
}

impl Tokenizer {
    /// Each byte is the token of its number.
    pub fn bytes() -> Self {
        Self::default()
    }
    /// Reads a tokenizer.json. One that makes every byte the token of its number is [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// If the file cannot be read or is no tokenizer.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read(path)?;
        let unreadable = |why: String| {
            let why = sentence(&why);
            Error::new(format!("{}: this is no tokenizer that can be read: {why}", path.display()))
        };
        let mut inner = said(|| tokenizers::Tokenizer::from_bytes(&text)).map_err(unreadable)?;
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
        Ok(Self(Some(Arc::new(OfFile { path: path.to_owned(), inner }))))
    }
    /// Whether each byte is the token of its number.
    pub fn is_of_bytes(&self) -> bool {
        self.0.is_none()
    }
    /// Whether a model of so many ids has all of its ids.
    ///
    /// # Errors
    /// If it has not.
    pub fn fits(&self, vocabulary: usize) -> Result<()> {
        let (origin, largest) = match &self.0 {
            None => ("text that is read as bytes".to_owned(), Some(255)),
            Some(file) => {
                let around = self.encode_prompt("")?; // ids of its own, in the file
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
    /// The ids of a prompt: of its text, and of the special tokens that the file puts around it.
    ///
    /// # Errors
    /// If the text has what the tokenizer has no token for.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoded(text, true)?.ids)
    }
    /// The ids of a text and nothing else. Takes some hundred bytes of memory for each byte of the text.
    ///
    /// # Errors
    /// If the text has what the tokenizer has no token for.
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        self.encoded(text, false)
    }
    fn encoded(&self, text: &str, around: bool) -> Result<Encoded> {
        let Some(file) = &self.0 else { return Ok(Encoded::of_bytes(text.as_bytes())) };
        let encoding =
            said(|| file.inner.encode(text, around)).map_err(file.failed("turn this text into ids"))?;
        let first = encoding.get_offsets().first().map_or(0, |&(_, end)| end);
        Ok(Encoded { ids: encoding.get_ids().to_vec(), first })
    }
    /// The text of these ids, without special tokens; what is not UTF-8, and a number that is no byte, shows as `�`.
    ///
    /// # Errors
    /// If the tokenizer cannot put them together.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let Some(file) = &self.0 else { return Ok(bytes::text(ids)) };
        said(|| file.inner.decode(ids, true)).map_err(file.failed("turn these ids into text"))
    }
}

impl Encoded {
    /// A text whose bytes are its ids.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { ids: bytes.iter().copied().map(u32::from).collect(), first: bytes.len().min(1) }
    }
}

impl OfFile {
    fn failed(&self, what: &'static str) -> impl Fn(String) -> Error + '_ {
        move |why| {
            let (path, why) = (self.path.display(), sentence(&why));
            Error::new(format!("{path}: the tokenizer cannot {what}: {why}"))
        }
    }
}

/// What the library gives, or says; it panics on some files that are JSON of another shape.
fn said<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match caught(work) {
        Ok(done) => done.map_err(|why| why.to_string()),
        Err(_) => Err("the library tokenizers gives up on it without a reason".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
