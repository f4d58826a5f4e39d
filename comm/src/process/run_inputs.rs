//! Arguments and files that all ranks of a run must have in common.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tensor::quoted::{displayed, quoted, sentence};

/// Arguments of a process, and the files that it has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInputs {
    /// Its arguments.
    pub words: String,
    /// Files by name: the number of bytes of each, and a digest of them.
    pub files: BTreeMap<String, [u64; 2]>,
    /// Why its rank cannot begin, if it cannot.
    pub refused: Option<String>,
}

/// Why processes have not met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct MeetingError {
    /// One sentence.
    pub why: String,
    /// True if it is the answer of rank 0's process, which tells the user.
    pub told: bool,
}

impl From<String> for MeetingError {
    fn from(why: String) -> Self {
        Self { why, told: false }
    }
}

impl MeetingError {
    /// Makes an error of rank 0's answer.
    pub(super) fn answered(why: &str) -> Self {
        Self { why: sentence(why), told: true }
    }
}

impl RunInputs {
    /// Returns the first difference between rank 0, which is this process, and another rank, in one sentence.
    pub(super) fn differs(&self, theirs: &Self, rank: usize) -> Option<String> {
        if self.refused.is_some() {
            return None; // which is what all are told
        }
        if let Some(why) = &theirs.refused {
            return Some(format!("rank {rank}: {}", sentence(why)));
        }
        if self.words != theirs.words {
            let [own, other] = parted(&self.words, &theirs.words);
            return Some(format!(
                "ranks have different arguments: rank {rank} has {other}, rank 0 has {own}"
            ));
        }
        let read = |of: &Self, name: &str| match of.files.get(name) {
            None => "has no such file".to_owned(),
            Some([bytes, digest]) => format!("has a file of {bytes} bytes (digest {digest:016x})"),
        };
        let differs = |name: &&String| self.files.get(*name) != theirs.files.get(*name);
        let name = self.files.keys().chain(theirs.files.keys()).find(differs)?;
        let [other, own] = [theirs, self].map(|inputs| read(inputs, name));
        Some(format!("ranks read different files as {}: rank {rank} {other}, rank 0 {own}", quoted(name)))
    }
}

/// Draws the number of a meeting, on rank 0.
pub(super) fn drawn() -> Result<u64, String> {
    getrandom::u64().map_err(|error| format!("rank 0 cannot draw a number for the meeting: {error}"))
}

/// Formats two texts for a sentence: long ones from the first word that differs.
fn parted(a: &str, b: &str) -> [String; 2] {
    const LONG: usize = 80;
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let word = same.filter(|((_, c), _)| *c == ' ').last().map_or(0, |((at, _), _)| at + 1);
    let from = if a.len().max(b.len()) > LONG { word } else { 0 };
    [a, b].map(|text| if from > 0 { format!("… {}", displayed(&text[from..])) } else { displayed(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str, files: &[(&str, [u64; 2])]) -> RunInputs {
        let files = files.iter().map(|(name, seen)| ((*name).to_owned(), *seen)).collect();
        RunInputs { words: words.into(), files, refused: None }
    }

    /// Kills: a file that one rank alone has, or has with other bytes, and goes unnoticed; a difference far
    /// behind in a long command that is cut off; a word that a terminal obeys.
    #[test]
    fn the_first_difference_is_told() {
        let own = asked("train --lr 1", &[("a", [3, 7]), ("c", [4, 8])]);
        assert_eq!(own.differs(&own.clone(), 1), None);
        let words = own.differs(&asked("train --lr 2\u{1b}", &[]), 3).unwrap();
        assert_eq!(
            words,
            "ranks have different arguments: rank 3 has train --lr 2\\u{1b}, rank 0 has train --lr 1"
        );
        let long = "x ".repeat(200);
        let words =
            asked(&(long.clone() + "--lr 1"), &[]).differs(&asked(&(long + "--lr 22"), &[]), 1).unwrap();
        assert_eq!(words, "ranks have different arguments: rank 1 has … 22, rank 0 has … 1");
        let seen = |files: &[(&str, [u64; 2])]| own.differs(&asked("train --lr 1", files), 2).unwrap();
        assert_eq!(
            seen(&[("a", [3, 9]), ("c", [4, 8])]),
            "ranks read different files as \"a\": rank 2 has a file of 3 bytes (digest 0000000000000009), \
             rank 0 has a file of 3 bytes (digest 0000000000000007)"
        );
        assert_eq!(
            seen(&[("a", [3, 7])]),
            "ranks read different files as \"c\": rank 2 has no such file, \
             rank 0 has a file of 4 bytes (digest 0000000000000008)"
        );
        assert!(
            seen(&[("a", [3, 7]), ("c", [4, 8]), ("b", [1, 1])])
                .contains("as \"b\": rank 2 has a file of 1 bytes")
        );
    }
}
