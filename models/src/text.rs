//! Texts for training and evaluation: a corpus of token ids, its batches and its windows.
pub mod documents;

use self::documents::TextFile;
use crate::tokenizer::{Encoded, Tokenizer};
use parallel::{Error, Result, bail};
use std::path::Path;
use tensor::mix;
use tensor::quoted::counted;

/// Token ids, and the target of each: the id that follows it.
pub type TokenPair = (Vec<u32>, Vec<u32>);

/// Returns the ids of a part of a text, without special tokens. The part starts at byte `start` of the text;
/// `name` names the text in messages.
///
/// # Errors
/// If the bytes are not UTF-8 and the tokenizer is not byte-level, or if the tokenizer has no tokens for
/// them.
pub fn encode(bytes: &[u8], start: usize, name: &str, tokenizer: &Tokenizer) -> Result<Encoded> {
    if tokenizer.is_of_bytes() {
        return Ok(Encoded::of_bytes(bytes));
    }
    let text = std::str::from_utf8(bytes).map_err(|why| {
        let (at, byte) = (start + why.valid_up_to(), bytes[why.valid_up_to()]);
        Error::new(format!(
            "{name} is not valid UTF-8 (at byte {at}: {byte:#04x}); a tokenizer.json reads UTF-8 text only"
        ))
    })?;
    tokenizer.encode(text)
}

/// The joined tokens of documents.
#[derive(Default)]
struct Joined {
    ids: Vec<u32>,
    /// Number of bytes without those of the first token.
    predicted_bytes: usize,
}

impl Joined {
    /// Adds a part of a document, which starts at byte `start` of it, after the token `end` if a part is
    /// before it.
    fn add(
        &mut self,
        (bytes, start): (&[u8], usize),
        (name, end): (&str, Option<u32>),
        tokenizer: &Tokenizer,
    ) -> Result<()> {
        let Encoded { ids, first } = encode(bytes, start, name, tokenizer)?;
        if ids.is_empty() {
            return Ok(());
        }
        self.predicted_bytes += bytes.len() - if self.ids.is_empty() { first } else { 0 };
        self.ids.extend(end.filter(|_| !self.ids.is_empty()));
        self.ids.extend(ids);
        Ok(())
    }
}

/// A text for training, with its last tenth held out for evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The first nine tenths.
    pub train: Vec<u32>,
    /// The last tenth.
    pub held_out: Vec<u32>,
    /// Number of bytes of the last tenth, without those of its first token, which is never predicted.
    pub held_out_bytes: usize,
}

impl Corpus {
    /// Splits a text whose bytes are its tokens, as [`tokenized`](Self::tokenized).
    ///
    /// # Errors
    /// If a part has fewer than the `seq + 1` bytes of a sequence and its targets.
    pub fn new(bytes: &[u8], name: &str, seq: usize) -> Result<Self> {
        Self::tokenized(bytes, name, seq, &Tokenizer::bytes())
    }
    /// Splits a text for sequences of `seq` tokens; `name` names it in messages.
    ///
    /// The bytes are split first: a tenth, rounded down to whole characters, is held out, whatever the
    /// tokenizer. Then each part is encoded separately. So bits per byte on the held-out text can be compared
    /// between models with different tokens, and no token lies in both parts.
    ///
    /// # Errors
    /// If the bytes are not text, or a part has fewer than the `seq + 1` tokens of a sequence and its
    /// targets.
    pub fn tokenized(bytes: &[u8], name: &str, seq: usize, tokenizer: &Tokenizer) -> Result<Self> {
        let file = TextFile { name: name.to_owned(), documents: vec![bytes.into()] };
        Self::joined(&[file], (seq, None), tokenizer)
    }
    /// Joins the documents of files in order, with the token `end` between two; the last tenth of each file
    /// is held out, as in [`tokenized`](Self::tokenized). A document that lies in both parts is split.
    ///
    /// # Errors
    /// If a file has no text, and as [`tokenized`](Self::tokenized).
    pub fn joined(
        files: &[TextFile],
        (seq, end): (usize, Option<u32>),
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let size = |file: &TextFile| file.documents.iter().map(|document| document.len()).sum::<usize>();
        if let Some(file) = files.iter().find(|file| size(file) == 0) {
            bail!("{} is empty (0 bytes)", file.name);
        }
        if seq == 0 {
            bail!("the sequence length is 0; it must be at least 1 token");
        }
        let [mut train, mut held_out] = [(); 2].map(|()| Joined::default());
        for file in files {
            let (bytes, mut before) = (size(file), 0);
            for document in &file.documents {
                let mut cut = (bytes - bytes / 10).saturating_sub(before).min(document.len());
                let inside_a_character = |at: usize| document.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
                while !tokenizer.is_of_bytes() && inside_a_character(cut) {
                    cut += 1;
                }
                before += document.len();
                let (first, last) = document.split_at(cut);
                train.add((first, 0), (&file.name, end), tokenizer)?;
                held_out.add((last, cut), (&file.name, end), tokenizer)?;
            }
        }
        let wanted = seq.saturating_add(1);
        let parts = [("that tenth", held_out.ids.len()), ("the rest", train.ids.len())];
        if let Some((part, tokens)) = parts.into_iter().find(|(_, tokens)| *tokens < wanted) {
            let bytes: usize = files.iter().map(size).sum();
            let (name, of) = match files {
                [file] => (file.name.clone(), "its last tenth"),
                _ => (format!("the text of {} files", files.len()), "the last tenth of each file"),
            };
            bail!(
                "{name} has {}, and {of} is held out; {part} has {}, but sequences of {seq} need at least {wanted}",
                counted(bytes, "byte"),
                counted(tokens, "token"),
            );
        }
        Ok(Self { train: train.ids, held_out_bytes: held_out.predicted_bytes, held_out: held_out.ids })
    }
    /// Reads a file and splits it for sequences of `seq` tokens.
    ///
    /// # Errors
    /// If the file cannot be read, and as [`tokenized`](Self::tokenized).
    pub fn read(path: &Path, seq: usize, tokenizer: &Tokenizer) -> Result<Self> {
        Self::tokenized(&tensor::files::read(path)?, &path.display().to_string(), seq, tokenizer)
    }
    /// Checks that a vocabulary of this size has all of its ids.
    ///
    /// # Errors
    /// If one of the ids is not below it.
    pub fn fits(&self, vocabulary: usize) -> Result<()> {
        match self.train.iter().chain(&self.held_out).max().filter(|&&id| id as usize >= vocabulary) {
            Some(&id) => Err(Error::new(format!(
                "the text has token id {id}; ids must be below the model's vocab_size of {vocabulary}"
            ))),
            None => Ok(()),
        }
    }
    /// Returns the sequences of a step: `batch_size` pairs of `seq` ids and `seq` targets. The start of
    /// sequence `b` of step `s` is a hash of (seed, `s·batch_size + b`): the same under every layout, for any
    /// number of microbatches, and after an interruption.
    ///
    /// # Panics
    /// If the training text does not have more than `seq` tokens.
    pub fn batch(&self, seed: u64, step: usize, batch_size: usize, seq: usize) -> Vec<TokenPair> {
        assert!(seq < self.train.len(), "sequences of {seq} tokens from {}", self.train.len());
        let starts = (self.train.len() - seq) as u128;
        let start = |b: usize| {
            let hash = mix(mix(seed) ^ (step as u64).wrapping_mul(batch_size as u64).wrapping_add(b as u64));
            ((u128::from(hash) * starts) >> 64) as usize
        };
        (0..batch_size).map(|b| pair(&self.train, start(b), seq)).collect()
    }
}

/// Splits the held-out ids into consecutive windows of `seq` tokens, the last one shorter: every token but
/// the first is a target once.
///
/// # Panics
/// If `seq` is 0.
pub fn windows(held_out: &[u32], seq: usize) -> Vec<TokenPair> {
    let targets = held_out.len().saturating_sub(1);
    (0..targets).step_by(seq).map(|start| pair(held_out, start, seq.min(targets - start))).collect()
}

fn pair(text: &[u32], start: usize, seq: usize) -> TokenPair {
    (text[start..start + seq].to_vec(), text[start + 1..=start + seq].to_vec())
}

#[cfg(test)]
mod tests;
