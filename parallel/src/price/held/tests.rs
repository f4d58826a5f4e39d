use super::*;
use crate::price::{STEPS, training};
use crate::{Layout, Sequence};
use kernels::{Heads, Meta};
use layers::{OptimizerKind, Shape};
use ops::{ADAMW, RandomValues};
use tensor::Cpu;

type Float = Cpu<f32>;

const SHAPE: Shape =
    Shape { width: 8, blocks: 6, heads: Heads::new(2, 2, 4), hidden: 12, vocabulary: 30, ..Shape::LLAMA };

const TIED: Shape = Shape { tied: true, ..SHAPE };

const OPTIMIZER: (OptimizerKind, Option<f64>) = (ADAMW, Some(1.0));

/// So many microbatches of two sequences of six tokens.
fn equal(microbatches: usize) -> Batch {
    Batch::new(vec![Sequence::new(vec![1; 6], vec![2; 6]); 2 * microbatches], microbatches).unwrap()
}

fn measure(layout: &Layout, rank: usize, design: &Design, batch: &Batch) -> MoveCosts {
    MoveCosts::new::<Float>((layout, rank), design, OPTIMIZER, batch, (None, || ())).unwrap()
}

/// The peak of every rank, by its meter, after steps on numbers.
fn measured(layout: &Layout, design: &Design, batch: &Batch) -> Vec<usize> {
    let program = |at: BuildContext<Float>| {
        let optimizer = (OPTIMIZER.0, at.pipeline.clip(OPTIMIZER.1));
        let mut trainer = Trainer::new(&at, design, optimizer)?;
        (0..STEPS).try_for_each(|_| trainer.step(batch, 0.5).map(drop))?;
        Ok(at.device.meter().peaks_of_all().total)
    };
    session::run((layout, &layout.world().unwrap()), &RandomValues { seed: 1 }, program).unwrap()
}

/// A step of few microbatches shows what one of many holds: as the price has it, and as the meter of a run.
/// Kills: a message, a context, a sum of losses or what a cell needs while it lasts left out; what is freed a
/// cell too early or too late; a first or a last microbatch taken for one between.
#[test]
fn few_microbatches_tell_what_many_hold_to_the_byte() {
    let mut different = std::collections::BTreeSet::new();
    let more = [(2, ",tp=2", SHAPE), (2, ",tp=2,sp", TIED), (2, ",dp=2", SHAPE)];
    for schedule in crate::pipeline::ALL.iter().filter(|schedule| !schedule.updates_each()) {
        let word = schedule.about().word;
        let more = if matches!(word, "1f1b" | "zb-v") { &more[..] } else { &[] };
        for (ranks, rest, shape) in [(2, "", SHAPE), (3, "", TIED)].iter().chain(more) {
            let layout = format!("pp={ranks}:{word}{rest}").parse::<Layout>().unwrap();
            let (design, few) = ((*shape).into(), if word == "dualpipe-v" { 2 * ranks + 1 } else { 3 });
            let of = |rank| measure(&layout, rank, &design, &equal(few));
            let held: Vec<_> = (0..layout.ranks()).map(of).collect();
            let one = (0..layout.ranks())
                .map(|rank| held[rank].peak(*schedule, &layout.pipeline().plan(*ranks, 1)));
            assert!(
                one.into_iter().all(|peak| peak.is_err()),
                "{layout}: one microbatch is its own first and last"
            );
            for many in [few, few + 1, 11] {
                let plan = layout.pipeline().plan(*ranks, many);
                let peaks: Vec<_> = held.iter().map(|held| held.peak(*schedule, &plan).unwrap()).collect();
                assert_eq!(peaks, measured(&layout, &design, &equal(many)), "{layout}, {plan}");
                let price = training::<Float>(&layout, &design, OPTIMIZER, &equal(many), |_, _| Ok(()));
                assert_eq!(price.unwrap().largest.total, *peaks.iter().max().unwrap(), "{layout}, {plan}");
                different.insert(peaks);
            }
        }
    }
    assert!(different.len() > 40, "schedules hold different amounts: {}", different.len());
}

/// A table of halves shows what whole cells do not, and the other way round. Kills: a kind that was not seen
/// taken for nothing; what is said of a cell that is another's.
#[test]
fn what_was_not_seen_is_told_and_what_was_is_asked_for() {
    let of = |word: &str| {
        let layout = format!("pp=2:{word}").parse::<Layout>().unwrap();
        let held = |rank| measure(&layout, rank, &SHAPE.into(), &equal(3));
        [held(0), held(1)]
    };
    let ([whole, last], [halves, _], plan) = (of("1f1b"), of("zb-h1"), Plan::whole(2, 9));
    let [one, zb] =
        ["1f1b", "zb-h1"].map(|word| format!("pp=2:{word}").parse::<Layout>().unwrap().pipeline());
    let why = whole.peak(zb.schedule, &plan).unwrap_err().why;
    assert_eq!(why, "the memory to run 0I0 is not known; measure a step with more microbatches");
    assert_eq!(
        whole.peak(&crate::pipeline::gpipe::GPipe, &plan).unwrap(),
        of("gpipe")[0].peak(&crate::pipeline::gpipe::GPipe, &plan).unwrap()
    );
    let cost = |held: &MoveCosts, act, chunk| {
        let cell = Cell { act, of: Task::new(chunk, 0) };
        held.cost(Action::Run { cell, last: false, done: false }, false).map(|(change, ())| change.adds)
    };
    let adds = |held: &MoveCosts, act, chunk| cost(held, act, chunk).unwrap();
    let [f, b] = [PassKind::F, PassKind::B].map(|act| adds(&whole, act, 0));
    let indices = 2 * 4 * (4 + 8); // a sequence's place, and what it sees: freed with the microbatch
    assert!(f > 12 * 8 * 4 + indices && f + b == indices, "{f} {b}");
    let [i, w] = [PassKind::I, PassKind::W].map(|act| adds(&halves, act, 0));
    assert_eq!((i + w, adds(&halves, PassKind::F, 0)), (b, f));
    assert_eq!((cost(&whole, PassKind::I, 0), cost(&whole, PassKind::F, 1)), (None, None));
    assert!(adds(&last, PassKind::F, 1) > 0 && one.schedule.about().word == "1f1b");
}

/// Under every schedule and without one: an evaluation of equal microbatches holds what its largest batch
/// does, and one of unequal microbatches holds no more. Kills: activations on their way to a stage, or a sum
/// of losses, that an evaluation of few microbatches does not hold together.
#[test]
fn the_largest_batch_tells_what_an_evaluation_holds() {
    let staged = |word: &'static str| [2, 3].map(|ranks| format!("pp={ranks}:{word}"));
    let all = crate::pipeline::ALL.iter().flat_map(|schedule| staged(schedule.about().word));
    for layout in all.chain(["none".into(), "tp=2".into()]) {
        let layout: Layout = layout.parse().unwrap();
        let largest = |batch: &Batch| batch.largest(layout.size(Axis::Pp));
        let held = |batch: &Batch| {
            let alone = |rank| {
                session::ghost::<Float, _>(&layout, (rank, None), |at: BuildContext<Meta<f32>>| {
                    let optimizer = (OPTIMIZER.0, at.pipeline.clip(OPTIMIZER.1));
                    Trainer::new(&at, SHAPE, optimizer)?.evaluate(batch, &|_| ())?;
                    Ok(at.device.meter().peaks_of_all().total)
                })
            };
            (0..layout.ranks()).map(|rank| alone(rank).unwrap()).collect::<Vec<_>>()
        };
        let (seven, uneven) = (equal(7), vec![Sequence::new(vec![1; 6], vec![2; 6]); 13]);
        assert_eq!(held(&seven), held(&largest(&seven)), "{layout}");
        let uneven = Batch::new(uneven, 7).unwrap();
        let priced = held(&largest(&uneven));
        assert!(zip(held(&uneven), &priced).all(|(held, most)| held <= *most), "{layout}: {priced:?}");
    }
}

/// A full pipeline, with fewer microbatches than stages or more. Kills: versions of weights that are not
/// metered, kept too long or copied too early; a price of a pipeline that is empty between steps; a rank with
/// the versions of another.
#[test]
fn versions_of_a_full_pipeline_are_priced_to_the_byte() {
    for (layout, microbatches) in
        ["pp=3:pipedream", "pp=3:pipedream-vertical", "pp=2:pipedream,tp=2", "pp=2:pipedream,dp=2:zero1"]
            .iter()
            .flat_map(|layout| [1, 2, 5].map(|m| (layout, m)))
    {
        let (layout, batch) = (layout.parse::<Layout>().unwrap(), equal(microbatches));
        let optimizer = (ADAMW, None);
        let program = |at: BuildContext<Float>| {
            let mut trainer = Trainer::new(&at, SHAPE, optimizer)?;
            let mut running = None;
            for _ in 0..9 {
                if let Some(before) = running.replace(trainer.start_step(&batch, 0.5)?) {
                    before.wait()?; // as a training run does
                }
            }
            trainer.drain()?;
            running.unwrap().wait()?;
            Ok(at.device.meter().peaks_of_all())
        };
        let world = layout.world().unwrap();
        let held = session::run((&layout, &world), &RandomValues { seed: 1 }, program).unwrap();
        let priced =
            crate::price::training::<Float>(&layout, SHAPE, optimizer, &batch, |_, _| Ok(())).unwrap();
        let all: usize = held.iter().map(|held| held.total).sum();
        assert_eq!(priced.all, all as u128, "{layout}, {microbatches} microbatches");
        let few = |rank| {
            let costs = MoveCosts::new::<Float>((&layout, rank), SHAPE, optimizer, &equal(7), (None, || ()));
            costs
                .unwrap()
                .peak(layout.pipeline().schedule, &layout.pipeline().plan(layout.size(Axis::Pp), 50))
                .unwrap()
        };
        let few: Vec<_> = (0..layout.ranks()).map(few).collect();
        assert_eq!(few, measured(&layout, &SHAPE.into(), &equal(11)), "{layout}");
    }
}

/// Kills: a peak while the model is built that does not count.
#[test]
fn a_peak_is_that_of_building_or_of_the_fullest_move() {
    let held =
        MoveCosts::<()> { stage: 0, own: vec![0], built: 100, rests: 10, whole: None, seen: HashMap::new() };
    let peak = |needs| held.peak_over([MemoryChange { adds: 5, needs: 20 }, MemoryChange { adds: 0, needs }]);
    assert_eq!([peak(10), peak(90)], [100, 105]);
}
