//! The proof is sharp: if any one of the layer's calls to other ranks goes wrong, in any of the ways there
//! are, the layer no longer equals the oracle. A mutant that goes unnoticed must be equivalent, for a reason
//! that its run has shown.
use super::case::LayerInput;
use super::equal::difference;
use super::erased::Erased;
use super::run::{NamedTensors, STEPS, StepCalls, oracle, run};
use comm::World;
use comm::mutants::{CallSite, MutantTally, Mutation, Outcome, Trial, judge};
use ops::RandomValues;
use std::sync::OnceLock;
use tensor::{Cpu, F61, Key};

/// Number of worlds tried: those with the fewest ranks.
const WORLDS: usize = 2;

pub(super) fn check(case: &(impl Erased + ?Sized), regions: bool) {
    let place = if regions { " under sequence parallelism" } else { "" };
    let tally = tally((case, regions), |_| true);
    tally.print(&format!("{}{place}", case.name().replace("::tests", "")));
    assert!(tally.survivors().is_empty(), "mutants that no proof noticed: {:#?}", tally.survivors());
}

/// Judges all mutants of a layer, comparing only tensors whose name `compared` accepts.
pub(super) fn tally<C: Erased + ?Sized>(
    (case, regions): (&C, bool),
    compared: fn(&str) -> bool,
) -> MutantTally {
    let _key = Key(3).enter();
    let mut tally = MutantTally::default();
    for &ranks in case.ranks().iter().filter(|&&n| n > 1).take(WORLDS) {
        let subject = LayerOnRanks { case, regions, ranks, compared, truth: OnceLock::new() };
        let sites = subject.sites();
        let listed: Vec<_> = sites.iter().map(|(_, site)| site.clone()).collect();
        let run = |site: &CallSite, trial: &Trial| {
            let (step, _) = sites.iter().find(|(_, other)| other.call == site.call).expect("one of them");
            subject.outcome(*step, trial)
        };
        for (step, site) in &sites {
            // Stale data come from the first step, so they are tried in the last; other mutations are tried
            // in the first.
            for &mutation in Mutation::ALL.iter().filter(|m| (**m == Mutation::Stale) == (*step == STEPS - 1))
            {
                let fate = judge(mutation, site, &listed, run).unwrap_or_else(|why| panic!("{why}"));
                tally.add(mutation, fate, &format!("{ranks} ranks: {}", site.words));
            }
        }
    }
    tally
}

/// One layer on a number of ranks.
struct LayerOnRanks<'a, C: ?Sized> {
    case: &'a C,
    regions: bool,
    ranks: usize,
    compared: fn(&str) -> bool,
    truth: OnceLock<NamedTensors<F61>>,
}

impl<C: Erased + ?Sized> LayerOnRanks<'_, C> {
    /// Runs a trial. Returns each rank's first difference, if any, and its calls; or the reason why a rank
    /// failed.
    fn ran(&self, steps: usize, trial: &Trial) -> Result<Vec<(Option<String>, StepCalls)>, String> {
        let world = World::threads(&self.case.world(self.ranks)).expect("a world").on_trial(trial);
        let given = |step| LayerInput::draw(self.case.features(), step);
        let ran = world.run(|device: Cpu<F61>, mesh| {
            let seen =
                run((self.case, self.regions), &device, &mesh, &RandomValues { seed: 7 }, &given, steps)?;
            let truth = self.truth.get_or_init(|| oracle(self.case, &seen.start, &given));
            let later = |name: &str| (steps..STEPS).any(|n| name.starts_with(&format!("step {n}")));
            let truth = truth.iter().filter(|(name, _)| !later(name) && (self.compared)(name));
            Ok::<_, ops::Error>((difference(&seen.trace, truth), seen.calls))
        });
        ran.map_err(|why| why.to_string())
    }
    /// Returns the layer's calls, each with its step.
    fn sites(&self) -> Vec<(usize, CallSite)> {
        let trial = Trial::honest();
        let ran = self.ran(STEPS, &trial).unwrap_or_else(|why| panic!("{why}"));
        let (difference, calls) = &ran[0];
        assert_eq!(*difference, None, "the layer without a mutant differs from the oracle");
        let step = |call| calls.iter().find(|(_, numbers)| numbers.contains(&call)).map(|(step, _)| *step);
        trial.sites(0).into_iter().filter_map(|site| Some((step(site.call)?, site))).collect()
    }
    /// Returns the outcome under a mutant of a call of this step.
    fn outcome(&self, step: usize, trial: &Trial) -> Outcome {
        match self.ran(step + 1, trial) {
            Err(_) => Outcome::Fails,
            Ok(ranks) if ranks.iter().all(|(difference, _)| difference.is_none()) => Outcome::Equal,
            Ok(_) => Outcome::Differs,
        }
    }
}
