//! A case that failed, in words, and the place where it departs from the oracle.
use super::case::ProofCase;
use crate::{Difference, locate};
use comm::caught;
use serde::Serialize;
use tensor::Key;

/// A case that is not equal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Number of equal cases before it.
    pub after: usize,
    /// Number that it was drawn from: the key of a campaign that starts with it.
    #[serde(with = "super::case::written")]
    pub number: Key,
    /// The shrunk case.
    pub case: ProofCase,
    /// First difference of the shrunk case; `None` if it fails otherwise.
    pub first_difference: Option<Difference>,
    /// Error of the shrunk case; `None` if there is a difference.
    pub error: Option<String>,
}

impl Failure {
    /// Returns this failure with the context of the difference, from another run with everything compared. If
    /// that run shows no difference, the failure stays as it is.
    #[must_use]
    pub fn located(mut self) -> Self {
        let locate = || locate(&self.case.subject()?, &self.case.layout, &[self.case.key]);
        if let Some(seen) = self.first_difference.take() {
            self.first_difference = Some(caught(locate).ok().and_then(Result::ok).flatten().unwrap_or(seen));
        }
        self
    }
    /// Returns the statement: the difference, the case, and how to reproduce it.
    pub fn statement(&self) -> String {
        let Self { after, number, case, first_difference, error } = self;
        let what = match (first_difference, error) {
            (Some(difference), _) => difference.to_string(),
            (None, error) => format!("it fails: {}", error.as_deref().unwrap_or("without a message")),
        };
        format!(
            "Not equal: after {after} equal cases, the case of the key {number}. The smallest case found \
             that fails alike:\n\n\
             {case}\n\n{what}\n\n\
             To reproduce it, give this line to `equipart prove --case`; to keep it, add it to \
             prove/tests/regressions.jsonl:\n{}",
            case.line()
        )
    }
}
