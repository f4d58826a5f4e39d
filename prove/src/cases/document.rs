//! A document of a case: how many tokens it has, and which of its targets count.
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Written as one letter a token: `.` where the target counts, `x` where it is ignored. `.x.` has three.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Document(Vec<bool>);

impl Document {
    /// By whether each token's target counts.
    ///
    /// # Panics
    /// Without tokens.
    pub fn new(counted: Vec<bool>) -> Self {
        assert!(!counted.is_empty(), "a document without tokens");
        Self(counted)
    }
    /// How many tokens it has.
    pub fn tokens(&self) -> usize {
        self.0.len()
    }
    /// Whether each token's target counts.
    pub fn counted(&self) -> impl Iterator<Item = bool> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|counts| f.write_str(if *counts { "." } else { "x" }))
    }
}

impl FromStr for Document {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let letter = |c: char| match c {
            '.' => Ok(true),
            'x' => Ok(false),
            _ => Err(()),
        };
        let counted = text.chars().map(letter).collect::<Result<Vec<_>, _>>().unwrap_or_default();
        if counted.is_empty() {
            return Err(format!("{text:?} is no document; write . or x for each token, such as \"..x\""));
        }
        Ok(Self(counted))
    }
}

impl TryFrom<String> for Document {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Document> for String {
    fn from(document: Document) -> Self {
        document.to_string()
    }
}
