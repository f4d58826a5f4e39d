//! What becomes of the mutants of a run, and how many came to which end.
use super::{Fate, Mutation, NeverCame, Outcome, Outlook, Site, Trial};
use std::collections::BTreeMap;

/// Why a mutant may live once: dropout dropped what it changes, or a target that does not count.
pub(super) const UNREAD: &str =
    "nothing reads what it changes there; of the same call on other tokens it is killed";

/// What is said of a call without which everything compared is equal.
pub(super) const NEEDLESS: &str = " (nothing compared is different without this call: it may be needless)";

/// What becomes of a mutation of one of a run's calls; nothing where there is no such mutant. `run` runs under a trial of
/// that call, and says how that came out. A mutant that lives is tried
/// again where the run makes the same call, by place and label, on other tokens: it may have changed what nothing reads.
///
/// # Errors
/// [`NeverCame`] if a mutant was never told.
pub fn judge(
    mutation: Mutation,
    site: &Site,
    sites: &[Site],
    mut run: impl FnMut(&Site, &Trial) -> Outcome,
) -> Result<Option<Fate>, NeverCame> {
    match site.outlook(mutation) {
        Outlook::None => return Ok(None),
        Outlook::Same(reason) => return Ok(Some(Fate::Equivalent(reason))),
        Outlook::Open => {}
    }
    let mut end = |site: &Site| {
        let trial = Trial::at(site, mutation);
        let outcome = run(site, &trial);
        trial.fate(outcome)
    };
    let fate = end(site)?;
    if fate == Fate::Survived {
        let same =
            |other: &&Site| (other.at, &other.label) == (site.at, &site.label) && other.call != site.call;
        for other in sites.iter().filter(same) {
            if matches!(end(other)?, Fate::Killed | Fate::Failed) {
                return Ok(Some(Fate::Equivalent(UNREAD)));
            }
        }
    }
    Ok(Some(fate))
}

/// How many mutants came to which end.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    ends: BTreeMap<(Mutation, &'static str), usize>,
    survivors: Vec<String>,
}

impl Tally {
    /// Counts one, if there was one; its call in words.
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
    /// Those that were not noticed, with their calls. Of a call that nobody misses: that it may be needless.
    pub fn survivors(&self) -> &[String] {
        &self.survivors
    }
    /// How many were noticed.
    pub fn killed(&self) -> usize {
        self.ends.iter().filter(|((_, end), _)| end.starts_with("killed")).map(|(_, number)| number).sum()
    }
    /// Prints a line for each mutation and end, `mutants | subject | mutation | end | number`: what `cargo xtask
    /// mutants` gathers.
    pub fn print(&self, subject: &str) {
        for ((mutation, end), number) in &self.ends {
            println!("mutants | {subject} | {mutation} | {end} | {number}");
        }
    }
}
