//! Tests of whole models with the strategies of this crate: proofs
//! (`prove::cases::certify_panel(scheme, …)`), mutants of each call between ranks (`comm::mutants`), memory
//! (`parallel::price`). No test depends on what a strategy computes.
pub(crate) mod proven;

use crate::{InRounds, JustInTime, OwnRows};
use comm::mutants::{CallSite, MutantTally, Mutation, Outcome, Trial, judge};
use comm::{Axis, Reduce};
use kernels::{Heads, Kernels};
use layers::build::strategy::Norm;
use layers::{BoxedLayer, Builder, Layer, Params, Shape, Strategy, StrategyInfo};
use ops::{Branches, PassContext, RandomValues, Result, SGD, Stream};
use parallel::step::{Cell, PeakNeeds, Plan, check};
use parallel::{Batch, BuildContext, Layout, Network, Schedule, Scheme, Sequence, Trainer, price, session};
use prove::cases::certify_panel;
use prove::{OracleTraces, Subject, prove, prove_in};
use tensor::{Cpu, Device, F61, Key, mix};

const SHAPE: Shape =
    Shape { width: 6, blocks: 2, heads: Heads::new(4, 2, 2), hidden: 4, vocabulary: 11, ..Shape::LLAMA };
const TP: &str = "tp=2";

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

fn both(layout: &Layout) -> Scheme<'_, Cpu<F61>> {
    Scheme::with(layout, &[&OwnRows, &JustInTime])
}

/// Kills: a strategy that is right alone but wrong in a model of some family, a strategy that is wrong under
/// sequence parallelism, a strategy that is wrong with data ranks.
#[test]
fn the_panel_is_equal_under_all_three() {
    for text in [TP, "tp=4", "tp=2,sp,dp=2"] {
        let proof = certify_panel(both(&layout(text)), &[Key(1)], (&Network::default(), &|_| ())).unwrap();
        assert!(proof.verdict.equal, "{}", proof.statement());
    }
    let layout = layout("tp=2,pp=2");
    let scheme = Scheme { schedule: Some((&InRounds as &dyn Schedule).into()), ..both(&layout) };
    let proof = certify_panel(scheme, &[Key(1)], (&Network::default(), &|_| ())).unwrap();
    let says = proof.statement();
    assert!(
        proof.verdict.equal
            && says.contains("tp=2,pp=2 with own rows and weights just in time and GPipe in rounds"),
        "{says}"
    );
}

/// Kills: a call of a strategy's layers, or a message of a schedule, whose result no proof of a model
/// compares.
#[test]
fn mutants_of_what_ranks_exchange_are_rejected() {
    let (tensor, stages) = (layout(TP), layout("pp=2"));
    for scheme in [both(&tensor), Scheme::scheduled(&stages, &InRounds)] {
        let mut subject = Subject::small(SHAPE, scheme.layout).unwrap();
        subject.texts.iter_mut().for_each(|(ids, prompt)| (ids.truncate(2), *prompt = 1).1);
        let truths = OracleTraces::default();
        let outcome = |trial: &Trial| {
            let world = scheme.layout.world().unwrap().on_trial(trial);
            match prove_in(&world, &subject, scheme, &[Key(1)], &truths, &|_| ()) {
                Err(_) => Outcome::Fails,
                Ok(verdict) if verdict.equal => Outcome::Equal,
                Ok(_) => Outcome::Differs,
            }
        };
        let honest = Trial::honest();
        assert_eq!(outcome(&honest), Outcome::Equal);
        let looks = |site: &CallSite| site.at.file().ends_with("ops/src/param/placement.rs");
        let sites: Vec<_> = honest.sites(0).into_iter().filter(|site| !looks(site)).collect();
        let all = sites.iter().flat_map(|site| Mutation::ALL.iter().map(move |mutation| (site, *mutation)));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(
            |(site, mutation)| mix((site.call * Mutation::ALL.len() + *mutation as usize) as u64),
        );
        let mut tally = MutantTally::default();
        for (site, mutation) in all.into_iter().take(100) {
            let fate = judge(mutation, site, &sites, |_, trial| outcome(trial)).unwrap();
            tally.add(mutation, fate, &format!("{scheme}: {}", site.words));
        }
        tally.print(&scheme.to_string());
        assert!(tally.survivors().is_empty(), "mutants that no proof noticed: {:#?}", tally.survivors());
        assert!(tally.killed() >= 15, "{scheme}: {} killed", tally.killed());
    }
}

/// `GPipe` in rounds, with these rows instead of its own for one plan.
struct Changed(Plan, Vec<Vec<Cell>>);

impl Schedule for Changed {
    fn about(&self) -> &'static StrategyInfo {
        InRounds.about()
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        if *plan == self.0 {
            return Box::new(self.1[rank].clone().into_iter());
        }
        InRounds.row(rank, plan)
    }
}

/// Deletes, doubles or swaps with another cell of its row every cell of the table. Kills: a wrong table that
/// is accepted.
#[test]
fn mutants_of_the_table_are_refused_or_equal() {
    let (layout, plan) = (layout("pp=2"), Plan::whole(2, 2));
    let (subject, truths) = (Subject::small(SHAPE, &layout).unwrap(), OracleTraces::default());
    let least = PeakNeeds { saved: vec![2, 2], waiting: vec![1, 1], versions: vec![1, 1] };
    assert_eq!([2, 4, 5].map(|m| check(&InRounds, &Plan::whole(2, m))), [2, 4, 5].map(|_| Ok(least.clone())));
    let row = |rank| InRounds.row(rank, &plan).collect::<Vec<_>>();
    let (mut refused, mut equal) = (0, 0);
    let mut judge = |rows: Vec<Vec<Cell>>| {
        let changed: &'static Changed = Box::leak(Box::new(Changed(plan, rows)));
        let scheme = Scheme::scheduled(&layout, changed);
        match (check(changed, &plan), prove(&subject, scheme, &[Key(1)], &truths)) {
            (Err(why), Err(error)) => refused += usize::from(error.why == why),
            (Ok(_), Ok(verdict)) => equal += usize::from(verdict.equal),
            (checked, proven) => panic!("{checked:?}, and {:?}", proven.map(|verdict| verdict.equal)),
        }
    };
    let (rows, mut tried) = ([row(0), row(1)], 0);
    for (rank, n) in (0..2).flat_map(|rank| (0..4).map(move |n| (rank, n))) {
        let mut changed = |change: &dyn Fn(&mut Vec<Cell>)| {
            let mut all = rows.to_vec();
            change(&mut all[rank]);
            tried += 1;
            judge(all);
        };
        changed(&|row| _ = row.remove(n));
        changed(&|row| row.extend_from_within(n..=n));
        (n + 1..4).for_each(|other| changed(&|row| row.swap(n, other)));
    }
    assert_eq!((tried, refused + equal), (28, 28), "{refused} refused, {equal} equal");
    assert!(equal > 0 && refused >= 16, "{refused} refused, {equal} equal");
}

fn batch(microbatches: usize) -> Batch {
    let sequence = || Sequence::new(vec![1, 2, 3, 4, 5, 6, 7, 8], vec![2, 3, 4, 5, 6, 7, 8, 9]);
    Batch::new((0..microbatches).map(|_| sequence()).collect(), microbatches).unwrap()
}

/// Kills: a price computed from the layout alone, a price that differs from the measured memory.
#[test]
fn what_is_priced_is_what_is_held() {
    let (tensor, stages, sgd, batch) = (layout(TP), layout("pp=2"), (SGD, None), batch(4));
    let (rows, on_time) = (Scheme::with(&tensor, &[&OwnRows]), Scheme::with(&tensor, &[&JustInTime]));
    let gpipe = layout("pp=2:gpipe");
    let rounds = Scheme::scheduled(&stages, &InRounds);
    let priced =
        |scheme: Scheme<Cpu<f32>>| price::training(scheme, SHAPE, sgd, &batch, |_, _| Ok(())).unwrap();
    for scheme in [rows, on_time, rounds] {
        let held = session::run(
            (scheme, &scheme.layout.world().unwrap()),
            &RandomValues { seed: 0 },
            |at: BuildContext<Cpu<f32>>| {
                let mut trainer = Trainer::new(&at, SHAPE, sgd)?;
                (0..price::STEPS).try_for_each(|_| trainer.step(&batch, 1.0).map(drop))?;
                Ok(at.device.meter().peaks_of_all().total)
            },
        );
        let held = held.unwrap();
        let price = priced(scheme);
        assert_eq!(price.all, held.iter().map(|bytes| *bytes as u128).sum::<u128>(), "{scheme}: {held:?}");
        assert_eq!(Some(&price.largest.total), held.iter().max(), "{scheme}");
    }
    let [usual, turns, gpipe] = [&tensor, &stages, &gpipe].map(|layout| priced(layout.into()));
    assert_eq!(priced(rows), usual);
    assert!(priced(on_time).all >= usual.all, "what is gathered is held");
    let rounds = priced(rounds);
    assert!(rounds.all < gpipe.all, "two microbatches are held, not four: {rounds:?}, {gpipe:?}");
    assert!(turns.all < rounds.all, "by the last stage one, not two: {turns:?}, {rounds:?}");
}

/// Strategy whose norms sum their input over ranks in place.
struct Hasty;

struct InPlace<D: Kernels>(layers::Norm<D>, comm::Group<D::Place>);

impl<D: Kernels> Strategy<D> for Hasty {
    fn about(&self) -> &'static StrategyInfo {
        Strategy::<D>::about(&OwnRows)
    }
    fn norm(&self, at: &Builder<D>, norm: &Norm) -> Result<Option<BoxedLayer<D, Stream<D>, Branches<D>>>> {
        let usual = layers::Norm::new(at, norm)?;
        Ok(Some(BoxedLayer::new(InPlace(usual, at.mesh.group(Axis::Tp).named(norm.name)))))
    }
}

impl<D: Kernels> Layer<D> for InPlace<D> {
    type In = Stream<D>;
    type Out = Branches<D>;
    type Saved = <layers::Norm<D> as Layer<D>>::Saved;
    type Pending = <layers::Norm<D> as Layer<D>>::Pending;

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Branches<D>, Self::Saved)> {
        let mut whole = x.gather(&self.1)?; // all tokens are here already: a second owner of X
        self.1.all_reduce(&mut whole, Reduce::Sum)?;
        self.0.forward(cx, x)
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Branches<D>,
    ) -> Result<(Stream<D>, Self::Pending)> {
        self.0.backward_input(cx, saved, dy)
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Self::Pending) -> Result<()> {
        self.0.backward_weight(cx, pending)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
    }
}

/// Kills: a collective that overwrites memory with another owner, an error that does not name the call, the
/// layer and the fix.
#[test]
fn a_tensor_with_two_owners_names_layer_collective_and_cure() {
    let layout = layout(TP);
    let subject = Subject::small(SHAPE, &layout).unwrap();
    let scheme = Scheme::with(&layout, &[&Hasty]);
    let why = prove(&subject, scheme, &[Key(1)], &OracleTraces::default()).unwrap_err().why;
    let parts = [
        "all_reduce(sum) over tp of ",
        " for blocks.0.norm1 at ",
        " writes a tensor with two owners: drop the other before the call, or give the call a copy",
    ];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    assert!(why.ends_with("(forward through blocks.0.norm1)"), "{why}");
}
