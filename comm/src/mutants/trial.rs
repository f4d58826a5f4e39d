//! One run under a mutant, and the fate of the mutant.
use super::site::{CallSite, Mutant, Mutation};
use crate::axis::Axis;
use crate::call::Reduce;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// One observed run of a world: lists the run's calls, or mutates one of them. Clones share the same trial.
///
/// ```
/// use comm::mutants::{Fate, Mutant, Mutation, Outcome, Trial};
/// use comm::{Axis, CommError, Reduce, World};
/// use tensor::{Category, Cpu, Tensor};
///
/// let mutant = Mutant { call: 1, mutation: Mutation::Skip };
/// let trial = Trial::of(mutant);
/// let sums = World::threads(&[(Axis::Tp, 2)])?.on_trial(&trial).run(|device: Cpu<f32>, mesh| {
///     let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| mesh.rank() as f32);
///     mesh.group(Axis::Tp).all_reduce(&mut x, Reduce::Sum)?;
///     Ok::<_, CommError>(x.read().expect("the host has values")[0])
/// })?;
/// assert_eq!(sums, [0.0, 1.0]); // not 1, 1
/// assert_ne!(sums, [1.0, 1.0]);
/// assert_eq!(trial.fate(Outcome::Differs)?, Fate::Killed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trial {
    mutant: Option<Mutant>,
    // the call's number on each rank, and the other axis
    place: Option<(Arc<BTreeMap<usize, usize>>, Option<Axis>)>,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Debug, Default)]
struct Observed {
    sites: Vec<(usize, CallSite)>, // with the rank that made the call
    effects: Vec<Effect>,
}

/// Effect of the mutant on one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// True if the rank got a wrong result.
    pub(crate) changed: bool,
    /// True if all ranks of the group got the same result.
    pub(crate) alike: bool,
    /// The reduction of the call, if it reduces.
    pub(crate) reduce: Option<Reduce>,
}

/// Outcome of a run under a mutant, compared with the right results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All compared results were equal, on every rank.
    Equal,
    /// A compared result differed.
    Differs,
    /// A rank failed, so there was nothing to compare: ranks did not meet, or a value had no inverse.
    Fails,
}

/// Fate of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Noticed: a compared result differed.
    Killed,
    /// Noticed: the run ended with an error.
    Failed,
    /// Not noticed, because it changes nothing, for this reason, which was checked in this run.
    Equivalent(&'static str),
    /// Not noticed.
    Survived,
}

/// Error: no rank reached the mutant's call, or none could go wrong in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} was never reached: the run makes no such call")]
pub struct NotReached(pub String);

/// Reasons that a mutant need not be noticed.
pub(super) const UNCHANGED: &str = "every rank got the right result, bit for bit";
pub(super) const CANCELS: &str = "a stabiliser cancels if it is the same on all ranks, as it was here";

impl Trial {
    /// Returns a trial without a mutant, which lists the run's calls.
    #[must_use]
    pub fn honest() -> Self {
        Self { mutant: None, place: None, observed: Arc::default() }
    }
    /// Returns a trial of a mutant.
    #[must_use]
    pub fn of(mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), place: None, observed: Arc::default() }
    }
    /// Returns a trial of a mutant of a call that an honest run listed. The call goes wrong on all ranks that
    /// make it together, and on those of other groups that run the same program.
    #[must_use]
    pub fn at(site: &CallSite, mutation: Mutation) -> Self {
        let place = Some((site.calls.clone(), site.other));
        Self { place, ..Self::of(Mutant { call: site.call, mutation }) }
    }
    /// True if the call of this number goes wrong on a rank.
    pub(crate) fn is_at(&self, rank: usize, number: usize) -> bool {
        let call = match &self.place {
            None => self.mutant.map(|mutant| mutant.call),
            Some((calls, _)) => calls.get(&rank).copied(),
        };
        call == Some(number)
    }
    /// Returns the axis to go wrong along: that of the listed call, or `first` if the trial has none.
    pub(crate) fn axis(&self, first: Option<Axis>) -> Option<Axis> {
        self.place.as_ref().map_or(first, |(_, other)| *other)
    }
    pub(crate) fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }
    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().expect("nothing panics under this lock")
    }
    pub(crate) fn observe(&self, rank: usize, site: CallSite) {
        self.observed().sites.push((rank, site));
    }
    pub(crate) fn did(&self, effect: Effect) {
        self.observed().effects.push(effect);
    }
    /// Returns the calls that a rank of the world made in an honest run, in the rank's order.
    pub fn sites(&self, rank: usize) -> Vec<CallSite> {
        let programs = Programs::of(&self.observed().sites);
        programs
            .by_rank
            .get(&rank)
            .map_or_else(Vec::new, |all| all.iter().map(|site| programs.placed(rank, site)).collect())
    }
    /// Returns the calls of all ranks in an honest run. A call that several ranks make, together or in the
    /// same program, is listed once.
    pub fn meetings(&self) -> Vec<CallSite> {
        let programs = Programs::of(&self.observed().sites);
        let sites = programs.by_rank.iter().flat_map(|(rank, all)| all.iter().map(move |site| (*rank, site)));
        let placed = sites.map(|(rank, site)| (rank, programs.placed(rank, site)));
        placed.filter(|(rank, site)| site.calls.keys().next() == Some(rank)).map(|(_, site)| site).collect()
    }
    /// Number of ranks that went wrong.
    #[cfg(test)]
    pub(super) fn effects(&self) -> usize {
        self.observed().effects.len()
    }
    /// Returns the fate of the mutant, given the outcome of its run.
    ///
    /// # Errors
    /// [`NotReached`], for any outcome, if no rank went wrong: then nothing was tried.
    pub fn fate(&self, outcome: Outcome) -> Result<Fate, NotReached> {
        let observed = self.observed();
        if observed.effects.is_empty() {
            let words = self.mutant.map_or("a mutant of an honest run".to_string(), |m| m.to_string());
            return Err(NotReached(words));
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

/// Calls of all ranks, in the order of each rank.
struct Programs {
    by_rank: BTreeMap<usize, Vec<CallSite>>,
    // numbers of a rank's calls over a group, without messages
    together: HashMap<(usize, Arc<[usize]>), Vec<usize>>,
}

impl Programs {
    fn of(sites: &[(usize, CallSite)]) -> Self {
        let mut programs = Self { by_rank: BTreeMap::new(), together: HashMap::new() };
        for (rank, site) in sites {
            programs.by_rank.entry(*rank).or_default().push(site.clone());
            if !site.is_message() {
                programs.together.entry((*rank, site.members.clone())).or_default().push(site.call);
            }
        }
        programs
    }
    /// True if two ranks make the same calls in the same order: same numbers, operations, source locations
    /// and labels.
    fn alike(&self, a: usize, b: usize) -> bool {
        let program =
            |rank| self.by_rank[&rank].iter().map(|site| (site.call, site.op, site.at, &site.label));
        a == b || program(a).eq(program(b))
    }
    fn site(&self, rank: usize, number: usize) -> Option<&CallSite> {
        self.by_rank[&rank].iter().find(|site| site.call == number)
    }
    /// Returns a rank's call, with all ranks that go wrong with it.
    fn placed(&self, rank: usize, site: &CallSite) -> CallSite {
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
        CallSite { calls: Arc::new(calls), other, ..site.clone() }
    }
}
