//! The time of generating texts, and the search for its layout.
use crate::{SHAPE, machine};
use comm::Axis;
use layers::{Choice, Design};
use ops::TokenShards;
use plan::generation::{GenerationJob, GenerationSearch, GenerationTime, TextsGoal, WeighedTexts, time};
use plan::space::{WORK, divisions, variants};
use plan::{Machine, Part};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::{Bf16, Cpu};

fn job(prompt: usize, new: usize) -> GenerationJob {
    GenerationJob { design: Design::Transformer(SHAPE), prompt, new, texts: 8, dtype: "bf16" }
}

fn of(layout: &str, texts: usize, job: &GenerationJob, machine: &Machine) -> GenerationTime {
    let layout = layout.parse().unwrap();
    time::<Cpu<Bf16>>((&layout, texts), job, &Arc::new(machine.clone())).unwrap()
}

const LAYOUTS: [&str; 7] = ["none", "tp=4", "tp=4,sp", "pp=4", "dp=2", "pp=2,tp=2", "pp=2:interleaved/2"];

/// Kills: a token that is priced with another one's cache, or counted twice.
#[test]
fn later_tokens_see_all_before() {
    let fast = machine();
    let (new, near) = (6001, |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3);
    for layout in LAYOUTS {
        let of = |prompt, new| of(layout, 2, &job(prompt, new), &fast);
        let later = |time: &GenerationTime| time.seconds - time.first;
        let [all, early, late] = [of(64, new), of(64, 2), of(64 + new - 2, 2)];
        let [e, l] = [&early, &late].map(later);
        assert!(l > 1.002 * e, "{layout}: {e} {l}");
        assert!(near(later(&all), (new - 1) as f64 * (e + l) / 2.0), "{layout}: {all:?} {e} {l}");
        assert!(
            near(all.parts.iter().sum(), all.seconds) && near(of(64, 1).seconds, early.first),
            "{layout}"
        );
    }
}

/// Kills: a stage that is left out or counted for another, a wait for other stages that each of them counts.
#[test]
fn stages_follow_one_another() {
    let (fast, job) = (machine(), job(64, 3));
    let alone = of("none", 2, &job, &fast);
    let level = &fast.levels[0];
    for (layout, stages) in [("pp=2", 2.0), ("pp=4", 4.0), ("pp=8", 8.0)] {
        let split = of(layout, 2, &job, &fast);
        for part in [Part::Products, Part::Attention] {
            let [a, b] = [&alone, &split].map(|time| time.parts[part as usize]);
            assert!((a / b - 1.0).abs() < 1e-9, "{layout}: {a} {b}");
        }
        // each stage but the last sends its rows, and the last one the logits of every text
        let rows = (2 * 64 + 2 * (job.new - 1)) as f64;
        let sent = job.new as f64 * level.latency.value + rows * 1024.0 / level.bandwidth.value;
        let logits = f64::log2(stages) * level.latency.value + 2.0 * 2000.0 / level.bandwidth.value;
        let waits = (stages - 1.0) * sent + job.new as f64 * logits;
        let seen = split.parts[Part::Pp as usize];
        assert!((seen / waits - 1.0).abs() < 1e-6, "{layout}: {seen} instead of {waits}");
    }
}

/// Kills: more texts that take less, a number of texts or a layout that is never weighed, a best one by
/// another measure.
#[test]
fn the_search_for_texts_finds_what_weighing_everything_finds() {
    let (job, machine) = (job(64, 4), Arc::new(machine()));
    let work: Vec<Choice> = WORK.iter().copied().filter(|of| *of != Choice::Recompute).collect();
    let all = divisions(4, &job.design, [job.texts, job.prompt]);
    let all = all.into_iter().flat_map(|layout| variants(layout, &work, &job.design, false));
    let texts = |layout: &parallel::Layout| {
        let data = layout.size(TokenShards::SEQUENCES);
        (0..4).map(move |power| data << power).filter(|texts| *texts <= 8)
    };
    let all = all.flat_map(|layout| texts(&layout).map(move |texts| (layout, texts)));
    let all: Vec<WeighedTexts> = all
        .filter_map(|(layout, texts)| {
            let time = time::<Cpu<Bf16>>((&layout, texts), &job, &machine).ok()?;
            Some(WeighedTexts { layout, texts, time })
        })
        .collect();
    assert!(all.iter().any(|of| of.layout.size(Axis::Pp) == 4 && of.texts == 8));
    let least = all.iter().map(|of| of.time.peak).min().unwrap();
    for memory in [usize::MAX, 2 * least] {
        for goal in [TextsGoal::Throughput, TextsGoal::Latency, TextsGoal::Memory] {
            let score = |of: &WeighedTexts| match goal {
                TextsGoal::Throughput => -of.tokens_per_second(&job),
                TextsGoal::Latency => of.time.seconds,
                TextsGoal::Memory => of.time.peak as f64,
            };
            let mut best: BTreeMap<_, f64> = BTreeMap::new(); // of each layout
            for of in all.iter().filter(|of| of.time.peak <= memory) {
                let known = best.entry(of.layout).or_insert(f64::INFINITY);
                *known = known.min(score(of));
            }
            let mut best: Vec<f64> = best.into_values().collect();
            best.sort_by(f64::total_cmp);
            best.truncate(10);
            let search =
                GenerationSearch { job: &job, machine: &machine, memory, ranks: 4, goal, watch: &|_| true };
            let found = search.find::<Cpu<Bf16>>(false);
            assert_eq!(found.best.iter().map(score).collect::<Vec<_>>(), best, "{goal:?}");
            assert!(found.best.iter().all(|of| of.time.peak <= memory && of.layout.ranks() == 4));
        }
    }
    let search = |memory, goal| GenerationSearch {
        job: &job,
        machine: &machine,
        memory,
        ranks: 4,
        goal,
        watch: &|_| true,
    };
    let none = search(least - 1, TextsGoal::Memory).find::<Cpu<Bf16>>(false);
    assert_eq!((none.best.len(), none.least.map(|(peak, _)| peak)), (0, Some(least)));
}
