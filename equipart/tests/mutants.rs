//! A whole model's proof is sharp: under layouts of every kind, with one call between ranks gone wrong, training no
//! longer equals the oracle. Drawn are a call and a mutation; those of the trainer's own calls are all tried.
use comm::Axis;
use comm::mutants::{Mutation, Outlook, Site, Tally, Trial, judge};
use equipart::Layout;
use equipart::prove::{Subject, Truths, prove_in};
use kernels::Heads;
use layers::{Rates, Shape};
use tensor::{Key, mix};

/// More ranks than key heads, a vocabulary that no ranks divide, dropout.
const SHAPE: Shape = Shape {
    width: 6,
    blocks: 1,
    heads: Heads { queries: 4, keys: 2, dim: 2 },
    hidden: 4,
    vocabulary: 11,
    dropout: Rates { embedding: 0.25, attention: 0.25, residual: 0.25 },
    ..Shape::LLAMA
};
const LAYOUTS: [&str; 8] =
    ["tp=2", "tp=2,sp", "tp=4", "tp=4,sp", "dp=2", "dp=3", "tp=2,dp=2", "tp=2,sp,dp=2"];
/// Mutants drawn for each layout.
const DRAWN: usize = 40;

struct Trials {
    layout: Layout,
    subject: Subject,
    truths: Truths,
}

impl Trials {
    fn of(layout: &str) -> Self {
        let layout: Layout = layout.parse().unwrap();
        Self { layout, subject: Subject::small(SHAPE, &layout).unwrap(), truths: Truths::default() }
    }
    /// Whether the run under a trial equals the oracle; one that fails does not.
    fn equal(&self, trial: &Trial) -> bool {
        let world = self.layout.world().unwrap().on_trial(trial);
        prove_in(&world, &self.subject, &self.layout, &[Key(1)], &self.truths)
            .is_ok_and(|verdict| verdict.equal)
    }
    /// The calls of the program; not those by which the proof puts shares together to look at them.
    fn sites(&self) -> Vec<Site> {
        let trial = Trial::honest();
        assert!(self.equal(&trial), "{} without a mutant", self.layout);
        let looks = |site: &Site| site.at.file().ends_with("layers/src/placement.rs");
        trial.sites(0).into_iter().filter(|site| !looks(site)).collect()
    }
    /// Tries these mutants of these calls.
    fn run(&self, sites: &[Site], mutants: impl IntoIterator<Item = (usize, Mutation)>) -> Tally {
        let mut tally = Tally::default();
        for (n, mutation) in mutants {
            let fate = judge(mutation, &sites[n], sites, |_, trial| self.equal(trial)).unwrap();
            tally.add(mutation, fate, &format!("{}: {}", self.layout, sites[n].words));
        }
        tally
    }
}

/// All mutants that there are of these calls.
fn mutants(sites: &[Site], of: impl Fn(&Site) -> bool) -> Vec<(usize, Mutation)> {
    let there = |site: &Site, m: Mutation| of(site) && site.outlook(m) != Outlook::None;
    let of_site = |(n, site)| Mutation::ALL.iter().filter(move |m| there(site, **m)).map(move |&m| (n, m));
    sites.iter().enumerate().flat_map(of_site).collect()
}

/// Kills: a call whose result no proof of a whole model looks at.
#[test]
fn drawn_mutants_under_every_layout_are_rejected() {
    for (n, layout) in LAYOUTS.into_iter().enumerate() {
        let trials = Trials::of(layout);
        let sites = trials.sites();
        let mut all = mutants(&sites, |_| true);
        let mut salt = n as u64;
        let drawn = std::iter::from_fn(|| {
            salt = mix(salt);
            (!all.is_empty()).then(|| all.swap_remove(salt as usize % all.len()))
        });
        let tally = trials.run(&sites, drawn.take(DRAWN));
        tally.print(&format!("equipart under {layout}"));
        assert!(tally.survivors().is_empty(), "what no proof noticed: {:#?}", tally.survivors());
        assert!(tally.killed() > DRAWN / 2, "{layout}: {} of {DRAWN} killed", tally.killed());
    }
}

/// The loss, the norm and the sums of gradients over data ranks, in both steps. Kills: a loss, norm or gradient that is
/// compared on one rank or in one step only.
#[test]
fn every_mutant_of_the_trainers_calls_is_rejected() {
    for layout in ["dp=2", "tp=2,sp,dp=2"] {
        let trials = Trials::of(layout);
        let sites = trials.sites();
        let label = |site: &Site| site.label.as_deref().unwrap_or_default().to_string();
        let syncs = |site: &Site| site.at.file().ends_with("layers/src/param.rs");
        let own = |site: &Site| ["loss", "norm2"].contains(&&*label(site)) || syncs(site);
        let all = mutants(&sites, own);
        let tally = trials.run(&sites, all);
        tally.print(&format!("the trainer under {layout}"));
        assert!(tally.survivors().is_empty(), "what no proof noticed: {:#?}", tally.survivors());
        let steps = trials.subject.steps.len();
        let calls = |name: &str| sites.iter().filter(|site| label(site) == name).count();
        let tensor_ranks = trials.layout.size(Axis::Tp) > 1;
        assert_eq!((calls("loss"), calls("norm2") > 0), (steps, tensor_ranks), "{layout}");
        assert!(sites.iter().filter(|site| syncs(site)).count() > 5 * steps, "{layout}");
    }
}
