//! Searches on drawn machines, on odd numbers of devices, and searches that are cut.
use crate::{SHAPE, job, machine, search, small, words};
use layers::{Design, Shape};
use plan::search::LayoutSearch;
use plan::step::TrainingJob;
use plan::watch::SearchEvent;
use plan::weighed::SearchResult;
use plan::{Machine, morphing};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tensor::{Bf16, Cpu};

/// Numbers that repeat with the seed.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
    /// A factor from 1/8 to 8.
    fn factor(&mut self) -> f64 {
        2f64.powi(self.below(7) as i32 - 3)
    }
}

/// Parts of a machine whose speed is drawn.
const PARTS: usize = 6;

/// The part that is the rates of all kernels.
pub(crate) const KERNELS: usize = 0;
/// The part that is the bandwidth of all links.
pub(crate) const LINKS: usize = 3;

/// Multiplies the speed of a part.
pub(crate) fn faster(machine: &mut Machine, part: usize, by: f64) {
    match part {
        KERNELS => {
            let all = machine.kernels.values_mut();
            let rows = all.flat_map(|rates| rates.operations.iter_mut().chain(&mut rates.bytes));
            rows.for_each(|row| row[1] *= by);
        }
        1 => machine.launch.value /= by,
        2 => machine.levels.iter_mut().for_each(|level| level.latency.value /= by),
        LINKS => machine.levels.iter_mut().for_each(|level| {
            let links = level.operations.values_mut().chain([&mut level.bandwidth]);
            links.for_each(|link| link.value *= by);
        }),
        4 => machine.overlap.value = (machine.overlap.value * by).min(1.0),
        _ => machine.host.value *= by,
    }
}

fn searched(job: &TrainingJob, machine: &Machine, memory: usize, all: bool) -> SearchResult {
    let machine = Arc::new(machine.clone());
    LayoutSearch { memory, all, ..search(job, &machine, 2) }.find::<Cpu<Bf16>>()
}

/// Small jobs with a large head or none to speak of, on machines with drawn speeds, in memory that some of
/// the layouts fit into, on cores of their own or shared ones: the best layouts are those of weighing all,
/// and more memory or a faster part never makes the best one slower. Kills: a bound that cuts too much where
/// the head, memory or cores decide; a speed that counts the wrong way.
#[test]
fn the_best_of_a_drawn_machine_is_that_of_weighing_everything_and_no_slower_on_a_better_one() {
    let mut draws = Draws(11);
    for case in 0..6 {
        let mut machine = machine();
        for part in 0..PARTS {
            faster(&mut machine, part, draws.factor());
        }
        machine.cores = (case % 3 == 2).then_some(1 + draws.below(3) as usize);
        let vocabulary = [64, 40_000][case % 2];
        let design = Design::Transformer(Shape { blocks: 3, vocabulary, ..SHAPE });
        let job = TrainingJob { design, seq: 64, batch_size: 4, ..job() };
        let wide = searched(&job, &machine, usize::MAX, true);
        let peaks = || wide.best.iter().map(|of| of.step.peak);
        let [least, most] = [peaks().min().unwrap(), peaks().max().unwrap()];
        let narrow = least + (most - least) / 2;
        let of = |machine: &Machine, memory| searched(&job, machine, memory, false);
        let first = |found: &SearchResult| found.best[0].step.seconds;
        assert_eq!(words(&of(&machine, usize::MAX)), words(&wide), "case {case}");
        let some = of(&machine, narrow);
        assert_eq!(words(&some), words(&searched(&job, &machine, narrow, true)), "case {case}, {narrow}");
        assert!(first(&some) >= first(&wide), "case {case}: more memory is slower");
        let part = draws.below(PARTS as u64) as usize;
        let mut better = machine.clone();
        faster(&mut better, part, 1.5);
        let faster = first(&of(&better, narrow));
        assert!(
            faster <= first(&some) * (1.0 + 1e-12),
            "case {case}: a better part {part} is slower: {faster}"
        );
    }
}

/// Kills: a cut that is not heard, or not told of; layouts that are lost, or that are weighed after it.
#[test]
fn a_cut_search_returns_the_best_so_far() {
    let (job, machine) = (small(), Arc::new(machine()));
    let (priced, weighed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cut_after = |prices: usize, steps: usize| {
        priced.store(0, Relaxed);
        weighed.store(0, Relaxed);
        let watch = &|event: &SearchEvent| match event {
            SearchEvent::Pricing { .. } => priced.fetch_add(1, Relaxed) < prices,
            SearchEvent::Weighing { found, left, .. } => {
                weighed.store(found.weighed, Relaxed);
                priced.load(Relaxed) < prices && (found.weighed < steps || left() == 0)
            }
            SearchEvent::WeighingTexts { .. } => true,
        };
        LayoutSearch { watch, ..search(&job, &machine, 2) }.find::<Cpu<Bf16>>()
    };
    let whole = cut_after(usize::MAX, usize::MAX);
    assert!(!whole.cut && whole.best.len() == 10);
    let some = cut_after(usize::MAX, 1);
    assert!(some.cut && !some.best.is_empty() && some.weighed < whole.weighed, "{some:?}");
    assert_eq!(some.weighed, weighed.load(Relaxed));
    assert!(some.best[0].step.seconds >= whole.best[0].step.seconds);
    let none = cut_after(3, 1);
    assert!(none.cut && none.best.is_empty() && none.weighed == 0, "{none:?}");
}

/// Five ranks divide neither 4 sequences nor 4 blocks nor 16 heads; three divide 4 sequences unevenly. Kills:
/// a layout of fewer ranks that is not found, or is kept where more ranks are faster; the best of several
/// numbers of ranks one number after the other, and not by their times.
#[test]
fn fewer_devices_are_tried_where_more_do_not_divide() {
    let (job, machine) = (small(), Arc::new(machine()));
    let of = |ranks| search(&job, &machine, ranks);
    let first = |found: &SearchResult| found.best[0].layout.to_string();
    assert!(of(5).find::<Cpu<Bf16>>().best.is_empty());
    assert_eq!(morphing::divisible(5, &job.design, [job.batch_size, job.seq]), Some(4));
    let four = of(4).find::<Cpu<Bf16>>();
    assert_eq!(first(&morphing::find::<Cpu<Bf16>>(&of(5))), first(&four));
    let [three, two] = [3, 2].map(|ranks| of(ranks).find::<Cpu<Bf16>>().best[0].step.seconds);
    assert_eq!(morphing::find::<Cpu<Bf16>>(&of(3)).best[0].step.seconds, three.min(two));
    // of one sequence, layouts of three ranks and of two are among the best
    let job = TrainingJob { batch_size: 1, ..small() };
    let best = morphing::find::<Cpu<Bf16>>(&LayoutSearch { job: &job, ..of(3) }).best;
    let plans: Vec<_> = best.iter().map(|plan| (plan.step.seconds, plan.layout.ranks())).collect();
    assert!(plans.iter().any(|plan| plan.1 == 2) && plans.iter().any(|plan| plan.1 == 3), "{plans:?}");
    assert!(plans.is_sorted_by(|a, b| a.0 <= b.0), "{plans:?}");
}
