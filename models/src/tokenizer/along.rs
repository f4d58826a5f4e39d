//! Source of a model's tokenizer, and the files that are copied when the model is written again.
use super::Tokenizer;
use super::bytes::json;
use crate::config::{GENERATION, Generation};
use parallel::{Error, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use tensor::files;

/// Files that are copied unchanged, if they exist: those of the tokenizer and of text generation in
/// `transformers`.
pub const ALONG: [&str; 9] = [
    "added_tokens.json",
    "chat_template.jinja",
    GENERATION,
    "merges.txt",
    "special_tokens_map.json",
    TOKENIZER,
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];
const TOKENIZER: &str = "tokenizer.json";

/// Source of a model's tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSource {
    /// No tokenizer is known.
    Unknown,
    /// Byte-level: the id of each byte is its value.
    Bytes,
    /// The tokenizer.json of this folder, if there is one.
    Folder(PathBuf),
}

impl TokenizerSource {
    /// Returns the source of the tokenizer.json beside a file, if there is one.
    pub fn beside(file: &Path) -> Option<Self> {
        let folder = file.parent()?;
        folder.join(TOKENIZER).exists().then(|| Self::Folder(folder.to_owned()))
    }
    /// Returns true if there is a tokenizer.
    pub fn are_known(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Bytes => true,
            Self::Folder(folder) => folder.join(TOKENIZER).exists(),
        }
    }
    /// Returns the tokenizer of a model with a vocabulary of this size.
    ///
    /// # Errors
    /// If there is none, it cannot be read, or it has ids outside the vocabulary.
    pub fn read(&self, vocabulary: usize) -> Result<Tokenizer> {
        const INSTEAD: &str =
            "to read text with; give token ids (train and eval: --batch; generate: --prompt-ids)";
        let tokenizer = match self {
            Self::Bytes => Tokenizer::bytes(),
            Self::Folder(folder) if self.are_known() => Tokenizer::read(&folder.join(TOKENIZER))?,
            Self::Folder(folder) => {
                bail!("{} has no {TOKENIZER} {INSTEAD}", folder.display());
            }
            Self::Unknown => {
                bail!("a new model with a vocabulary of {vocabulary} has no {TOKENIZER} {INSTEAD}");
            }
        };
        tokenizer.fits(vocabulary)?;
        Ok(tokenizer)
    }
    /// Writes the files that a reader of this model's text needs to a folder, and returns their names.
    /// Generation keys of a config.json go to a `generation_config.json`, as in `transformers`.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn write(&self, out: &Path) -> Result<Vec<String>> {
        let from = match self {
            Self::Unknown => return Ok(Vec::new()),
            Self::Bytes => {
                files::replace_file(&out.join(TOKENIZER), json().as_bytes())?;
                return Ok(vec![TOKENIZER.to_owned()]);
            }
            Self::Folder(from) => from,
        };
        let there = ALONG.into_iter().filter(|name| from.join(name).is_file());
        let same = is_same(from, out);
        let kept = |name: &str| {
            let copied = if same { Ok(()) } else { copy(&from.join(name), &out.join(name)) };
            copied.map(|()| name.to_owned())
        };
        let mut kept = there.map(kept).collect::<Result<Vec<_>>>()?;
        if !from.join(GENERATION).exists()
            && let Some(text) = Generation::legacy(from)
        {
            files::replace_file(&out.join(GENERATION), text.as_bytes())?;
            kept.push(GENERATION.to_owned());
        }
        Ok(kept)
    }
}

/// Returns true if both folders exist and are the same.
pub fn is_same(a: &Path, b: &Path) -> bool {
    fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).map_err(|why| Error::new(format!("cannot read {}: {why}", from.display())))?;
    Ok(files::replace_file(to, &bytes)?)
}
