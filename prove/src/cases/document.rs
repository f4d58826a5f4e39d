//! A document of a case: its number of tokens, and the targets that count.
use serde::{Deserialize, Serialize};
use std::fmt;

/// Written as one letter per token: `.` if the target counts, `x` if it is ignored. `.x.` has three tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Document(String);

impl Document {
    /// Creates a document from one flag per token: true if its target counts.
    ///
    /// # Panics
    /// If there are no tokens.
    pub fn new(counted: impl IntoIterator<Item = bool>) -> Self {
        let letters: String = counted.into_iter().map(|counts| if counts { '.' } else { 'x' }).collect();
        assert!(!letters.is_empty(), "a document without tokens");
        Self(letters)
    }
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.0.len()
    }
    /// Returns a flag for each token: true if its target counts.
    pub fn counted(&self) -> impl Iterator<Item = bool> + '_ {
        self.0.chars().map(|letter| letter == '.')
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Document {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() || text.contains(|letter| !['.', 'x'].contains(&letter)) {
            return Err(format!("{text:?} is not a document; write . or x for each token, such as \"..x\""));
        }
        Ok(Self(text))
    }
}
