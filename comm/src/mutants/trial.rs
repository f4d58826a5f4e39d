//! What a run under a mutant was, and what became of the mutant.
use super::{Mutant, Site};
use crate::call::Reduce;
use std::sync::{Arc, Mutex, MutexGuard};

/// One run of a world, watched: which calls it makes, or what a mutant does to it. Clones are the same trial.
#[derive(Clone, Debug)]
pub struct Trial {
    mutant: Option<Mutant>,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Debug, Default)]
struct Observed {
    sites: Vec<(usize, Site)>, // with the rank that made the call
    effects: Vec<Effect>,
}

/// What the mutant did on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// Whether the rank got anything else than it should.
    pub(crate) changed: bool,
    /// Whether all ranks of the group got the same.
    pub(crate) alike: bool,
    /// What was to be reduced, if something was.
    pub(crate) reduce: Option<Reduce>,
}

/// How a run under a mutant came out, compared with what it should give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All that is compared was equal, on every rank.
    Equal,
    /// Something was not.
    Differs,
    /// A rank failed, so there was nothing to compare: ranks did not meet, or a number had no inverse.
    Fails,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was noticed: something compared differed.
    Killed,
    /// It was noticed: the run ended with an error.
    Failed,
    /// It was not, since it changes nothing, for this reason, which was checked in this run.
    Equivalent(&'static str),
    /// It was not noticed.
    Survived,
}

/// The number of a mutant's call was never reached, or no rank could go wrong in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} never came: the run makes no such call")]
pub struct NeverCame(pub String);

/// Why what was not noticed need not be.
pub(super) const UNCHANGED: &str = "every rank got, bit for bit, what it should get";
pub(super) const CANCELS: &str = "a stabiliser cancels, if only it is the same on all ranks, as it was";

impl Trial {
    /// A run as it should be, whose calls are listed.
    #[must_use]
    pub fn honest() -> Self {
        Self { mutant: None, observed: Arc::default() }
    }
    /// A run under a mutant.
    #[must_use]
    pub fn of(mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), observed: Arc::default() }
    }
    pub(crate) fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }
    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().expect("nothing panics under this lock")
    }
    pub(crate) fn observe(&self, rank: usize, site: Site) {
        self.observed().sites.push((rank, site));
    }
    pub(crate) fn did(&self, effect: Effect) {
        self.observed().effects.push(effect);
    }
    /// The calls that a rank of the world made in an honest run, in its order.
    pub fn sites(&self, rank: usize) -> Vec<Site> {
        let observed = self.observed();
        observed.sites.iter().filter(|(of, _)| *of == rank).map(|(_, site)| site.clone()).collect()
    }
    /// How many ranks went wrong.
    #[cfg(test)]
    pub(super) fn effects(&self) -> usize {
        self.observed().effects.len()
    }
    /// What became of the mutant, if its run came out so.
    ///
    /// # Errors
    /// [`NeverCame`], whatever was compared, if no rank went wrong: then nothing was tried.
    pub fn fate(&self, outcome: Outcome) -> Result<Fate, NeverCame> {
        let observed = self.observed();
        if observed.effects.is_empty() {
            let words = self.mutant.map_or("a mutant of an honest run".to_string(), |m| m.to_string());
            return Err(NeverCame(words));
        }
        let stab = |e: &Effect| e.reduce == Some(Reduce::Stab) && e.alike;
        Ok(match outcome {
            Outcome::Differs => Fate::Killed,
            Outcome::Fails => Fate::Failed,
            Outcome::Equal if observed.effects.iter().all(|e| !e.changed) => Fate::Equivalent(UNCHANGED),
            Outcome::Equal if observed.effects.iter().all(stab) => Fate::Equivalent(CANCELS),
            Outcome::Equal => Fate::Survived,
        })
    }
}
