//! What a run under a mutant was, and what became of the mutant.
use super::{Mutant, Mutation, Site};
use crate::axis::Axis;
use crate::call::Reduce;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// One run of a world, watched: which calls it makes, or what a mutant does to it. Clones are the same trial.
#[derive(Clone, Debug)]
pub struct Trial {
    mutant: Option<Mutant>,
    place: Option<(Arc<BTreeMap<usize, usize>>, Option<Axis>)>, // the call's number on each rank, and another axis
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
        Self { mutant: None, place: None, observed: Arc::default() }
    }
    /// A run under a mutant.
    #[must_use]
    pub fn of(mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), place: None, observed: Arc::default() }
    }
    /// A run under a mutant of a call that an honest run listed: of all ranks that make it together, and of those of other
    /// groups that run the same program.
    #[must_use]
    pub fn at(site: &Site, mutation: Mutation) -> Self {
        let place = Some((site.calls.clone(), site.other));
        Self { place, ..Self::of(Mutant { call: site.call, mutation }) }
    }
    /// Whether the call of this number goes wrong on a rank.
    pub(crate) fn is_at(&self, rank: usize, number: usize) -> bool {
        let call = match &self.place {
            None => self.mutant.map(|mutant| mutant.call),
            Some((calls, _)) => calls.get(&rank).copied(),
        };
        call == Some(number)
    }
    /// The axis to go wrong along, of these that there are.
    pub(crate) fn axis(&self, first: Option<Axis>) -> Option<Axis> {
        self.place.as_ref().map_or(first, |(_, other)| *other)
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
        let programs = Programs::of(&self.observed().sites);
        programs
            .by_rank
            .get(&rank)
            .map_or_else(Vec::new, |all| all.iter().map(|site| programs.placed(rank, site)).collect())
    }
    /// The calls of all ranks in an honest run, each once where several ranks make it, or run the same program.
    pub fn meetings(&self) -> Vec<Site> {
        let programs = Programs::of(&self.observed().sites);
        let all = programs.by_rank.iter().flat_map(|(rank, all)| all.iter().map(move |site| (*rank, site)));
        let placed = all.map(|(rank, site)| (rank, programs.placed(rank, site)));
        placed.filter(|(rank, site)| site.calls.keys().next() == Some(rank)).map(|(_, site)| site).collect()
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

/// The calls of all ranks, in the order of each.
struct Programs {
    by_rank: BTreeMap<usize, Vec<Site>>,
    together: HashMap<(usize, Arc<[usize]>), Vec<usize>>, // numbers of a rank's calls over a group, messages left out
}

impl Programs {
    fn of(sites: &[(usize, Site)]) -> Self {
        let mut all = Self { by_rank: BTreeMap::new(), together: HashMap::new() };
        for (rank, site) in sites {
            all.by_rank.entry(*rank).or_default().push(site.clone());
            if !site.is_message() {
                all.together.entry((*rank, site.members.clone())).or_default().push(site.call);
            }
        }
        all
    }
    /// Whether two ranks make calls of the same places and labels in the same order.
    fn alike(&self, a: usize, b: usize) -> bool {
        let program =
            |rank| self.by_rank[&rank].iter().map(|site| (site.call, site.op, site.at, &site.label));
        a == b || program(a).eq(program(b))
    }
    fn site(&self, rank: usize, number: usize) -> Option<&Site> {
        self.by_rank[&rank].iter().find(|site| site.call == number)
    }
    /// A rank's call, with all who go wrong with it.
    fn placed(&self, rank: usize, site: &Site) -> Site {
        let alike: Vec<_> = self.by_rank.keys().copied().filter(|other| self.alike(rank, *other)).collect();
        let mut calls: BTreeMap<usize, usize> = alike.iter().map(|other| (*other, site.call)).collect();
        for other in alike.into_iter().filter(|_| !site.is_message()) {
            let members = &self.site(other, site.call).expect("its program is the same").members;
            let numbers = |rank| self.together.get(&(rank, members.clone()));
            let nth = numbers(other).and_then(|all| all.iter().position(|number| *number == site.call));
            for member in
                members.iter().filter(|member| !calls.contains_key(member)).copied().collect::<Vec<_>>()
            {
                let number = nth.zip(numbers(member)).and_then(|(nth, all)| all.get(nth).copied());
                calls.extend(number.map(|number| (member, number)));
            }
        }
        let all_along = |axis: Axis| {
            calls.iter().all(|(rank, number)| {
                let ways = self.site(*rank, *number).into_iter().flat_map(|site| &site.ways);
                ways.filter(|(along, _)| *along == axis)
                    .any(|(_, all)| all.iter().all(|r| calls.contains_key(r)))
            })
        };
        let other = site.ways.iter().map(|(axis, _)| *axis).find(|axis| all_along(*axis));
        Site { calls: Arc::new(calls), other, ..site.clone() }
    }
}
