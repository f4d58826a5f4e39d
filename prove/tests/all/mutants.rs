//! Sensitivity of a whole model's proof: under layouts of every kind, with one wrong call between ranks,
//! training no longer equals the oracle. A call and a mutation are drawn at random; the trainer's own calls
//! are all tried.
use comm::Axis;
use comm::mutants::{CallSite, ExpectedResult, MutantTally, Mutation, Outcome, Trial, judge};
use kernels::Heads;
use layers::{Balance, Design, Experts, Rates, Shape};
use parallel::Layout;
use prove::cases::fitted;
use prove::{OracleTraces, Subject, prove_in};
use tensor::{Key, mix};

/// More ranks than KV heads, a vocabulary that the ranks do not divide, dropout.
const SHAPE: Shape = Shape {
    width: 6,
    blocks: 1,
    heads: Heads::new(4, 2, 2),
    hidden: 4,
    vocabulary: 11,
    dropout: Rates { embedding: 0.25, attention: 0.25, residual: 0.25 },
    ..Shape::LLAMA
};
const LAYOUTS: [&str; 7] =
    ["tp=4", "tp=4,sp", "dp=3", "tp=2,dp=2", "tp=2,sp,dp=2", "dp=2:zero1,pp=2", "tp=2,dp=2:zero1,pp=2"];
/// Mutants drawn for each layout.
const DRAWN: usize = 20;

/// A program under a layout, tried with mutants.
struct Trials {
    layout: Layout,
    subject: Subject,
    truths: OracleTraces,
}

impl Trials {
    fn of(model: impl Into<Design>, layout: &str) -> Self {
        let layout: Layout = layout.parse().unwrap();
        let mut subject = Subject::small(model, &layout).unwrap();
        // The index of its call identifies a mutant; data ranks make equally many calls if their texts have
        // equal lengths.
        subject.texts.iter_mut().for_each(|(ids, prompt)| (ids.truncate(2), *prompt = 1).1);
        Self { layout, subject, truths: OracleTraces::default() }
    }
    /// Runs the proof under a trial and returns its outcome.
    fn outcome(&self, trial: &Trial) -> Outcome {
        let world = self.layout.world().unwrap().on_trial(trial);
        match prove_in(&world, &self.subject, &self.layout, &[Key(1)], &self.truths, &|_| ()) {
            Err(_) => Outcome::Fails,
            Ok(verdict) if verdict.equal => Outcome::Equal,
            Ok(_) => Outcome::Differs,
        }
    }
    /// Calls of the program, without the calls that gather shards for the proof.
    fn sites(&self) -> Vec<CallSite> {
        let trial = Trial::honest();
        assert_eq!(self.outcome(&trial), Outcome::Equal, "{} without a mutant", self.layout);
        let looks = |site: &CallSite| {
            ["placement.rs", "gathering.rs"].iter().any(|file| site.at.file().ends_with(file))
        };
        trial.meetings().into_iter().filter(|site| !looks(site)).collect()
    }
    /// Tries these mutants of these calls.
    fn run(&self, sites: &[CallSite], mutants: impl IntoIterator<Item = (usize, Mutation)>) -> MutantTally {
        let mut tally = MutantTally::default();
        for (n, mutation) in mutants {
            let fate = judge(mutation, &sites[n], sites, |_, trial| self.outcome(trial)).unwrap();
            tally.add(mutation, fate, &format!("{}: {}", self.layout, sites[n].words));
        }
        tally
    }
}

/// All possible mutants of these calls.
fn mutants(sites: &[CallSite], of: impl Fn(&CallSite) -> bool) -> Vec<(usize, Mutation)> {
    // One of two ranks has all queries: as its neighbour it gets both softmaxes to merge, in the other order.
    let merges = |site: &CallSite, m: Mutation| {
        m == Mutation::Neighbour && site.at.file().ends_with("ring.rs") && site.words.contains("of [0, ")
    };
    let there = |site: &CallSite, m: Mutation| {
        of(site) && site.outlook(m) != ExpectedResult::None && !merges(site, m)
    };
    let of_site = |(n, site)| Mutation::ALL.iter().filter(move |m| there(site, **m)).map(move |&m| (n, m));
    sites.iter().enumerate().flat_map(of_site).collect()
}

/// Kills: a call whose result no proof of a whole model compares.
#[test]
fn drawn_mutants_under_every_layout_are_rejected() {
    let listed = parallel::strategies::all().iter().map(|about| match about.axis {
        Some(_) => about.written(2),
        None => format!("tp=2,{}", about.written(1)), // alone it makes no calls
    });
    for (n, layout) in LAYOUTS.into_iter().map(str::to_string).chain(listed).enumerate() {
        let parsed: Layout = layout.parse().unwrap();
        let blocks = parsed.chunks();
        let shape = fitted(Shape { blocks, ..SHAPE }, &(&parsed).into()).unwrap();
        let trials = Trials::of(shape, &layout);
        let sites = trials.sites();
        let mut all = mutants(&sites, |_| true);
        let mut salt = n as u64;
        let drawn = std::iter::from_fn(|| {
            salt = mix(salt);
            (!all.is_empty()).then(|| all.swap_remove(salt as usize % all.len()))
        });
        let tally = trials.run(&sites, drawn.take(DRAWN));
        tally.print(&format!("equipart under {layout}"));
        assert!(tally.survivors().is_empty(), "mutants that no proof noticed: {:#?}", tally.survivors());
        assert!(tally.killed() > DRAWN / 2, "{layout}: {} of {DRAWN} killed", tally.killed());
    }
}

/// Tries the loss, the norm and the sums of gradients over data ranks, in both steps. Kills: a loss, norm or
/// gradient compared on one rank or in one step only.
#[test]
fn every_mutant_of_the_trainers_calls_is_rejected() {
    for (layout, norms) in [("dp=2", false), ("tp=2,sp,dp=2", true), ("dp=2:zero1,pp=2", true)] {
        let stages = layout.parse::<Layout>().unwrap().size(Axis::Pp);
        let trials = Trials::of(Shape { blocks: stages, ..SHAPE }, layout);
        let sites = trials.sites();
        let label = |site: &CallSite| site.label.as_deref().unwrap_or_default().to_string();
        let syncs = |site: &CallSite| {
            ["keeper.rs", "buckets.rs", "sums.rs", "sharding.rs"]
                .iter()
                .any(|file| site.at.file().ends_with(file))
        };
        let own = |site: &CallSite| ["loss", "norm2"].contains(&&*label(site)) || syncs(site);
        let all = mutants(&sites, own);
        let tally = trials.run(&sites, all);
        tally.print(&format!("the trainer under {layout}"));
        assert!(tally.survivors().is_empty(), "mutants that no proof noticed: {:#?}", tally.survivors());
        let calls = |name: &str| sites.iter().filter(|site| label(site) == name).count();
        assert_eq!((calls("loss"), calls("norm2") > 0), (2, norms), "{layout}");
        assert!(sites.iter().filter(|site| syncs(site)).count() > 5 * 2, "{layout}");
    }
}

/// Tries the rows sent along with activations and gradients, and the sum of choices in between. Kills: a
/// balance loss whose row comes from another microbatch, stage or rank, a balance loss that counts one rank's
/// tokens only.
#[test]
fn every_mutant_of_a_balance_of_all_blocks_is_rejected() {
    let balance = Balance { pooled: 0.5, ..Balance::default() };
    let experts = Experts { count: 3, chosen: 2, hidden: 2, balance, ..Experts::MIXTRAL };
    let shape = Shape { blocks: 2, experts: Some(experts), dropout: Rates::default(), ..SHAPE };
    let trials = Trials::of(shape, "dp=2,pp=2");
    let sites = trials.sites();
    let counts = |site: &CallSite| site.at.file().ends_with("operators/router.rs");
    let rows = |site: &CallSite| site.at.file().ends_with("stages/messages.rs") && site.elements == 3;
    assert!([&counts as &dyn Fn(&CallSite) -> bool, &rows].iter().all(|of| sites.iter().any(*of)));
    let tally = trials.run(&sites, mutants(&sites, |site| counts(site) || rows(site)));
    tally.print("a balance of all blocks");
    assert!(tally.survivors().is_empty(), "mutants that no proof noticed: {:#?}", tally.survivors());
    assert!(tally.killed() > 20, "{}", tally.killed());
}

/// Tries all calls of models of features. Kills: a collective of the gathered layer, of pairs, of the loss
/// over classes or of the mean square over tokens whose result no proof compares.
#[test]
fn every_mutant_of_a_model_of_features_is_rejected() {
    let classifier = |sizes: &[usize]| Design::Classifier { sizes: sizes.to_vec() };
    for (layout, model) in [
        ("tp=2", classifier(&[3, 4, 5])),
        ("tp=2", classifier(&[3, 2, 4, 3])),
        ("dp=2", classifier(&[3, 4, 3])),
        ("pp=2", classifier(&[3, 4, 3])),
        ("tp=2,sp", Design::Blocks(SHAPE)),
    ] {
        let trials = Trials::of(model, layout);
        let sites = trials.sites();
        let tally = trials.run(&sites, mutants(&sites, |_| true));
        tally.print(&format!("{} under {layout}", trials.subject.model));
        assert!(tally.survivors().is_empty(), "mutants that no proof noticed: {:#?}", tally.survivors());
        assert!(tally.killed() > 20, "{layout}: {}", tally.killed());
    }
}
