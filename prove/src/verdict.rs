//! What a proof came to: a certificate, or a divergence.
use super::{Difference, KEYS, Subject};
use parallel::Layout;
use serde::Serialize;
use std::fmt::Display;
use tensor::Key;

/// What is compared, in words.
pub(crate) const WHAT: &str = "logits, losses, norms, every gradient, every new weight";
/// What no proof says.
pub(crate) const LIMITS: &str = "It says nothing about rounding, overflow, other shapes or deadlock.";

/// How surely, in words, after so many keys; where these are more than usual, why.
pub(crate) fn sure(wrong: &str, bound_log2: Option<f64>, keys: usize) -> String {
    match bound_log2 {
        Some(log2) if keys > *KEYS.start() => format!(
            "{wrong} would pass with probability at most 2^{log2:.1}: 2^{:.1} with each of {keys} keys, which cost {keys} \
             times as much as one",
            log2 / keys as f64
        ),
        Some(log2) => format!("{wrong} would pass with probability at most 2^{log2:.1}"),
        None => "these shapes are too large for the bound to say how surely".into(),
    }
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// The layout.
    pub layout: String,
    /// What ran: the model's shapes, the texts and the steps, in words.
    pub subject: String,
    /// The keys, in hexadecimal.
    pub keys: Vec<String>,
    /// Whether everything was equal.
    pub equal: bool,
    /// log₂ of the probability that a wrong program passes; null where the bound says nothing, or was not asked for.
    pub bound_log2: Option<f64>,
    /// Tensors compared, under all keys on all ranks.
    pub tensors: usize,
    /// Elements compared.
    pub elements: usize,
    /// The window that was proven, where the model's was narrowed to what the short texts can show.
    pub window: Option<usize>,
    /// The model whose small image was proven, and the sizes that were made smaller; null where the model itself was proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What the panel proves of this layout and this run has none of, in words; empty where that was not asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub never_ran: Vec<&'static str>,
    /// What differs first.
    pub first_difference: Option<Difference>,
    /// Why a rank failed, where a case that should run to its end did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Verdict {
    /// Nothing compared yet.
    pub(super) fn of((layout, subject): (&dyn Display, &dyn Display), keys: &[Key]) -> Self {
        let (layout, subject) = (layout.to_string(), subject.to_string());
        let keys = keys.iter().map(Key::to_string).collect();
        Self { layout, subject, keys, equal: true, ..Self::default() }
    }
    /// Whether it is of the same kind: shrinking looks for the smallest failure of one kind.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = |of: &Self| (of.equal, of.error.is_some());
        kind(self) == kind(other)
    }
    /// Of a run that did not come to its end, although it should.
    pub fn failed(subject: &Subject, layout: &Layout, keys: &[Key], why: String) -> Self {
        Self { equal: false, error: Some(why), ..Self::of((layout, subject), keys) }
    }
    /// The statement, in words: what was shown, how surely, and what it does not say.
    pub fn statement(&self) -> String {
        let Verdict { layout, subject, tensors, elements, .. } = self;
        let keys = self.keys.join(" and ");
        if let Some(why) = &self.error {
            return format!("Not equal: under {layout} and the keys {keys}, it fails: {why}");
        }
        let Some(d) = &self.first_difference else {
            let sure = sure("a wrong program", self.bound_log2, self.keys.len());
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
                "Randomised proof: under {layout}, generation and training equal the unsplit oracle in the field of \
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
