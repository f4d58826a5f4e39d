//! Fates of the mutants of a run, and a tally of them.
use super::site::{CallSite, ExpectedResult, Mutation};
use super::trial::{Fate, NotReached, Outcome, Trial};
use std::collections::BTreeMap;

/// Reason that a mutant may survive once: dropout dropped what it changes, or the target does not count.
pub(super) const UNREAD: &str =
    "nothing reads what it changes there; it is killed in the same call on other tokens";

/// Note about a call without which all compared results are equal.
pub(super) const NEEDLESS: &str = " (all compared results are equal without this call: it may be needless)";

/// Returns the fate of a mutation of one of a run's calls; `None` if there is no such mutant. `run` runs the
/// program under a trial of the call that it is given and returns the outcome. A mutant that survives is
/// tried again where the run makes the same call, by source location and label, on other tokens: it may have
/// changed only elements that nothing reads.
///
/// # Errors
/// [`NotReached`] if no rank reached a mutant's call.
pub fn judge(
    mutation: Mutation,
    site: &CallSite,
    sites: &[CallSite],
    mut run: impl FnMut(&CallSite, &Trial) -> Outcome,
) -> Result<Option<Fate>, NotReached> {
    match site.outlook(mutation) {
        ExpectedResult::None => return Ok(None),
        ExpectedResult::Same(reason) => return Ok(Some(Fate::Equivalent(reason))),
        ExpectedResult::Open => {}
    }
    let mut end = |site: &CallSite| {
        let trial = Trial::at(site, mutation);
        trial.fate(run(site, &trial))
    };
    let fate = end(site)?;
    if fate == Fate::Survived {
        let same =
            |other: &&CallSite| (other.at, &other.label) == (site.at, &site.label) && other.call != site.call;
        for other in sites.iter().filter(same) {
            if matches!(end(other)?, Fate::Killed | Fate::Failed) {
                return Ok(Some(Fate::Equivalent(UNREAD)));
            }
        }
    }
    Ok(Some(fate))
}

/// Numbers of mutants by fate.
#[derive(Clone, Debug, Default)]
pub struct MutantTally {
    ends: BTreeMap<(Mutation, &'static str), usize>,
    survivors: Vec<String>,
}

impl MutantTally {
    /// Counts a mutant, if there is one; `words` describe its call.
    pub fn add(&mut self, mutation: Mutation, fate: Option<Fate>, words: &str) {
        let end = match fate {
            None => return,
            Some(Fate::Killed) => "killed",
            Some(Fate::Failed) => "killed by an error",
            Some(Fate::Equivalent(reason)) => reason,
            Some(Fate::Survived) => "survived",
        };
        *self.ends.entry((mutation, end)).or_default() += 1;
        if fate == Some(Fate::Survived) {
            let needless = if mutation == Mutation::Skip { NEEDLESS } else { "" };
            self.survivors.push(format!("{mutation}: {words}{needless}"));
        }
    }
    /// Mutants that were not noticed, with their calls. A skipped call among them is noted as possibly
    /// needless.
    pub fn survivors(&self) -> &[String] {
        &self.survivors
    }
    /// Number of mutants that were noticed.
    pub fn killed(&self) -> usize {
        self.ends.iter().filter(|((_, end), _)| end.starts_with("killed")).map(|(_, number)| number).sum()
    }
    /// Prints a line for each mutation and fate, `mutants | subject | mutation | end | number`, which `cargo
    /// xtask mutants` collects.
    pub fn print(&self, subject: &str) {
        for ((mutation, end), number) in &self.ends {
            println!("mutants | {subject} | {mutation} | {end} | {number}");
        }
    }
}
