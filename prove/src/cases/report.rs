//! Report of a campaign: the same bytes for the same key and the same number of cases.
use super::case::ProofCase;
use super::failure::Failure;
use super::habits::HABITS;
use crate::Verdict;
use parallel::{Layout, strategies};
use serde::Serialize;
use std::collections::BTreeMap;
use tensor::Key;

/// Number of cases with some property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseCount {
    /// Name of the property.
    pub what: String,
    /// Number of cases.
    pub cases: usize,
}

/// Outcome of a campaign.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CampaignReport {
    /// Number of equal cases before the first that is not.
    pub cases: usize,
    /// True if all were equal.
    pub equal: bool,
    /// Layout of all cases; null if layouts were drawn.
    pub layout: Option<String>,
    /// The number of the first case.
    pub key: String,
    /// The number of the case after the last.
    pub next_key: String,
    /// Number of tensors compared, on all ranks of all cases.
    pub tensors: usize,
    /// Number of their elements.
    pub elements: usize,
    /// Number of cases of each layout.
    pub layouts: BTreeMap<String, usize>,
    /// Number of cases of each strategy.
    pub strategies: Vec<CaseCount>,
    /// Number of cases of each habit.
    pub habits: Vec<CaseCount>,
    /// The first case that was not equal, shrunk.
    pub failure: Option<Failure>,
}

impl CampaignReport {
    /// Creates a report without cases.
    pub(super) fn new(key: Key, layout: Option<Layout>) -> Self {
        let none = |what: &str| CaseCount { what: what.into(), cases: 0 };
        let key = key.to_string();
        let layout = layout.map(|layout| layout.to_string());
        let strategies = strategies::all().iter().map(|about| none(about.name)).collect();
        let habits = HABITS.iter().map(|(what, _)| none(what)).collect();
        Self { equal: true, layout, next_key: key.clone(), key, strategies, habits, ..Self::default() }
    }
    /// Adds an equal case with its verdict; `next` is the number of the next case.
    pub(super) fn add(&mut self, case: &ProofCase, verdict: &Verdict, next: Key) {
        self.cases += 1;
        self.tensors += verdict.tensors;
        self.elements += verdict.elements;
        self.next_key = next.to_string();
        *self.layouts.entry(case.layout.to_string()).or_default() += 1;
        for about in case.layout.strategies() {
            let mut counts = self.strategies.iter_mut();
            counts.find(|count| count.what == about.name).expect("a strategy of the list").cases += 1;
        }
        for (count, (_, is)) in self.habits.iter_mut().zip(HABITS.iter()) {
            count.cases += usize::from(is(case));
        }
    }
    /// Returns the statement, in words: what was shown, of what, and what it does not cover.
    pub fn statement(&self) -> String {
        let Self { cases, tensors, elements, key, next_key, .. } = self;
        let under = self.layout.as_ref().map_or("its layout", |layout| layout);
        if let Some(failure) = &self.failure {
            return failure.statement();
        }
        let mut says = vec![
            format!(
                "{cases} drawn case{s} from the key {key}: under {under}, training equals the unsplit oracle in the field \
                 of 2^61 - 1.",
                s = if *cases == 1 { "" } else { "s" },
            ),
            format!(
                "Equal bit for bit: {tensors} tensors, {elements} elements (logits, losses, norms, every gradient, every \
                 new weight), on every rank,\nunder one key a case."
            ),
        ];
        for (by, counts) in [("strategy", &self.strategies), ("habit", &self.habits)] {
            says.push(format!("\nCases by {by}"));
            says.extend(counts.iter().map(|CaseCount { what, cases }| format!("{cases:>9}  {what}")));
        }
        says.push("\nCases by layout".into());
        says.extend(self.layouts.iter().map(|(layout, cases)| format!("{cases:>9}  {layout}")));
        says.push(format!(
            "\nIt says nothing about rounding, overflow, deadlock, or shapes that were not drawn.\n\
             `equipart prove --layout` bounds the error for one layout. Continue with --key {next_key}."
        ));
        says.join("\n")
    }
}
