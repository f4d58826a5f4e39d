//! Verdict of a proof: a certificate, or a divergence.
use super::{Difference, KEYS, Subject};
use parallel::Layout;
use serde::Serialize;
use std::fmt::Display;
use tensor::Key;

/// Compared tensors, in words.
pub(crate) const WHAT: &str = "logits, losses, norms, every gradient, every new weight";
/// Limits of every proof, in words.
pub(crate) const LIMITS: &str = "It says nothing about rounding, overflow, other shapes or deadlock.";

/// Describes the probability of an error after this number of keys; if there are more keys than usual, also
/// their cost.
pub(crate) fn sure(wrong: &str, bound_log2: Option<f64>, keys: usize) -> String {
    match bound_log2 {
        Some(log2) if keys > *KEYS.start() => format!(
            "{wrong} would pass with probability at most 2^{log2:.1}: 2^{:.1} with each of {keys} keys, which cost {keys} \
             times as much as one",
            log2 / keys as f64
        ),
        Some(log2) => format!("{wrong} would pass with probability at most 2^{log2:.1}"),
        None => "there is no bound on the error, because they are too large".into(),
    }
}

/// First words of a statement: a proof, or equality that is none.
pub(crate) fn headline(bound_log2: Option<f64>) -> &'static str {
    match bound_log2 {
        Some(_) => "Randomised proof",
        None => "Equal, but without a bound on the error, because the shapes are too large",
    }
}

/// Outcome of a proof.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// The layout.
    pub layout: String,
    /// Subject: the model's shapes, the texts and the steps, in words.
    pub subject: String,
    /// The keys, in hexadecimal.
    pub keys: Vec<String>,
    /// True if everything was equal.
    pub equal: bool,
    /// log₂ of the probability that a wrong program passes; null if there is no bound, or it was not
    /// requested.
    pub bound_log2: Option<f64>,
    /// Number of tensors compared, under all keys on all ranks.
    pub tensors: usize,
    /// Number of elements compared.
    pub elements: usize,
    /// Size of the window that was proven, if the model's was narrowed for the short texts.
    pub window: Option<usize>,
    /// Model whose small image was proven, and the sizes that were reduced; null if the model itself was
    /// proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Habits that the panel proves of this layout and this run lacks, in words; empty if they were not
    /// requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub never_ran: Vec<&'static str>,
    /// First difference.
    pub first_difference: Option<Difference>,
    /// Error of a rank, in a case that should have run to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Verdict {
    /// Creates a verdict with nothing compared yet.
    pub(super) fn of((layout, subject): (&dyn Display, &dyn Display), keys: &[Key]) -> Self {
        let subject = subject.to_string();
        let keys = keys.iter().map(Key::to_string).collect();
        Self { layout: layout.to_string(), subject, keys, equal: true, ..Self::default() }
    }
    /// Returns true if both are of the same kind: shrinking looks for the smallest failure of one kind.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = |of: &Self| (of.equal, of.error.is_some());
        kind(self) == kind(other)
    }
    /// Creates the verdict of a run that should have run to its end, but failed.
    pub fn failed(subject: &Subject, layout: &Layout, keys: &[Key], why: String) -> Self {
        Self { equal: false, error: Some(why), ..Self::of((layout, subject), keys) }
    }
    /// Returns the statement, in words: what was shown, how surely, and what it does not cover.
    pub fn statement(&self) -> String {
        let Verdict { layout, subject, tensors, elements, .. } = self;
        let keys = self.keys.join(" and ");
        if let Some(why) = &self.error {
            return format!("Not equal: under {layout} and the keys {keys}, it fails: {why}");
        }
        let Some(d) = &self.first_difference else {
            let sure = sure("a wrong program", self.bound_log2, self.keys.len());
            let headline = headline(self.bound_log2);
            let narrow = |n| format!("Its window was narrowed to {n} tokens, as the texts are short.\n");
            let narrow = self.window.map(narrow).unwrap_or_default();
            let never = match self.never_ran.join("; ") {
                none if none.is_empty() => none,
                list => format!(
                    "Never ran here: {list}. Without a model, `equipart prove` proves these, on small ones.\n"
                ),
            };
            let image = self.image.as_ref().map_or_else(String::new, |words| format!("{words}\n"));
            return format!(
                "{headline}: under {layout}, generation and training equal the unsplit oracle in the field of \
                 2^61 - 1.\n\
                 {image}What ran: {subject}.\n\
                 Equal bit for bit: {tensors} tensors, {elements} elements ({WHAT}), on every rank, under the keys \
                 {keys}.\n\
                 For the shapes that ran, {sure} (opaque functions taken as random).\n\
                 {narrow}{never}{LIMITS}"
            );
        };
        format!("Not equal: under {layout} and the keys {keys}, {d}")
    }
}
