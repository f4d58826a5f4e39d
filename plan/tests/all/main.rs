//! The time of a step, and the search for the best, on models small enough to weigh every layout.
mod activations;
mod calls;
mod fits;
mod kinds;
mod machines;
mod peaks;
mod texts;

use comm::Axis;
use kernels::Heads;
use layers::{Balance, Blocks, Design, Experts, Pattern, Shape};
use machines::{KERNELS, LINKS, faster};
use ops::ADAMW;
use parallel::Layout;
use plan::block::{BlockCost, has_halves, staged};
use plan::bound::StageWork;
use plan::clock::{Part, StepClock};
use plan::hold::{StateBytes, StateTimes};
use plan::search::LayoutSearch;
use plan::step::{KnownPrices, StepTime, TrainingJob};
use plan::weighed::{Goal, SearchResult};
use plan::{Machine, advice};
use std::sync::Arc;
use tensor::{Bf16, Clock, Cpu, KernelKind, KernelWork, StoreKind};

const KERNEL: KernelWork = KernelWork {
    name: "add",
    kind: KernelKind::ElementWise,
    dtype: "bf16",
    flops: 0,
    bytes: 1 << 20,
    features: 0,
};

const SHAPE: Shape = Shape {
    width: 512,
    blocks: 8,
    heads: Heads::new(16, 4, 32),
    hidden: 1024,
    vocabulary: 1000,
    ..Shape::LLAMA
};

fn job() -> TrainingJob {
    let optimizer = (ADAMW, Some(1.0).into());
    TrainingJob { design: Design::Transformer(SHAPE), optimizer, seq: 512, batch_size: 16, dtype: "bf16" }
}

fn machine() -> Machine {
    Machine::named("h100").unwrap()
}

fn step(layout: &str, microbatches: usize, machine: &Machine) -> StepTime {
    let layout = layout.parse().unwrap();
    let known = &mut KnownPrices::default();
    known.step::<Cpu<Bf16>>(&layout, &job(), (microbatches, usize::MAX), &Arc::new(machine.clone())).unwrap()
}

const LAYOUTS: [(&str, usize); 10] = [
    ("none", 2),
    ("tp=4,sp", 1),
    ("dp=4:zero3", 2),
    ("cp=4", 2),
    ("pp=4", 8),
    ("pp=2:zb-h1,dp=2:zero1", 4),
    ("pp=2:interleaved/2,tp=2,recompute", 4),
    ("tp=16,dp=2", 2), // over two nodes
    ("dp=4:zero1:offload-host", 2),
    ("dp=4:zero3:offload-file", 2),
];

/// Kills: a kernel or a call that takes less on a slower machine, a level whose speed counts nowhere.
#[test]
fn time_is_monotone_in_speeds_and_adds_up() {
    let fast = machine();
    let change = |change: &dyn Fn(&mut Machine)| {
        let mut slow = fast.clone();
        change(&mut slow);
        slow
    };
    let slow = [
        change(&|m| faster(m, KERNELS, 0.5)),
        change(&|m| m.launch.value *= 2.0),
        change(&|m| m.levels.iter_mut().for_each(|level| level.latency.value *= 2.0)),
        change(&|m| m.levels.iter_mut().for_each(|level| level.bandwidth.value *= 0.5)),
        change(&|m| m.overlap.value *= 0.5),
        change(&|m| m.host.value *= 0.5),
        change(&|m| m.file.value *= 0.5),
    ];
    for (layout, microbatches) in LAYOUTS {
        let best = step(layout, microbatches, &fast);
        let sum = best.parts.iter().sum::<f64>() + best.bubble;
        assert!((sum / best.seconds - 1.0).abs() < 1e-9, "{layout}: {sum} of {}", best.seconds);
        for (i, slow) in slow.iter().enumerate() {
            let seconds = step(layout, microbatches, slow).seconds;
            assert!(seconds >= best.seconds * (1.0 - 1e-12), "{layout}: change {i} makes it faster");
            let counts = match i {
                2 | 3 => layout != "none",
                4 => continue, // counts where calls are started
                5 => layout.contains("offload-host"),
                6 => layout.contains("offload-file"),
                _ => true,
            };
            assert_eq!(counts, seconds > best.seconds, "{layout}: change {i}");
        }
    }
    let both = |m: &Machine| step("none", 2, m).seconds;
    let double = both(&change(&|m| (faster(m, KERNELS, 0.5), m.launch.value *= 2.0).0));
    assert!((double / both(&fast) - 2.0).abs() < 1e-9, "all of a rank alone is kernels");
}

/// Kills: moves that are not waited for, that nothing runs beside, or that run beside each other.
#[test]
fn moves_of_state_follow_each_other_beside_kernels() {
    let bytes = 1 << 30;
    let machine = Arc::new(machine());
    let alone = StepClock::new(&machine, 1);
    alone.kernel(&KERNEL);
    let (takes, kernel) = (machine.moves(StoreKind::Host, bytes), alone.lap().seconds);
    let clock = StepClock::new(&machine, 1);
    let of_file = machine.moves(StoreKind::File, bytes);
    let moves = [StoreKind::Host, StoreKind::File].map(|kind| clock.start_move(kind, bytes));
    clock.kernel(&KERNEL);
    for number in moves {
        clock.finish_move(number);
    }
    let lap = clock.lap();
    assert!(kernel < takes && takes < of_file, "{kernel} {takes} {of_file}");
    assert!((lap.seconds / (takes + of_file) - 1.0).abs() < 1e-12);
    assert!(((lap.parts[Part::Offload as usize] + kernel) / lap.seconds - 1.0).abs() < 1e-12);
    assert_eq!(lap.parts[Part::Kernels as usize], kernel);
}

/// Kills: operations of a rank that is counted for others twice, a bubble that is no wait for stages.
#[test]
fn operations_do_not_depend_on_the_layout_and_bubbles_on_stages_alone() {
    let alone = step("none", 2, &machine());
    for (layout, microbatches) in LAYOUTS {
        let of = step(layout, microbatches, &machine());
        // more ranks than KV heads compute some of them again
        let again = layout.contains("recompute") || layout.contains("tp=16");
        assert!(again == (of.flops > alone.flops * 1.01) && of.flops > alone.flops * 0.99, "{layout}");
        assert_eq!(of.bubble > 1e-6 * of.seconds, layout.contains("pp="), "{layout}: {}", of.bubble);
    }
}

fn small() -> TrainingJob {
    let design = Design::Transformer(Shape { blocks: 4, ..SHAPE });
    TrainingJob { design, seq: 128, batch_size: 4, ..job() }
}

fn found(ranks: usize, memory: usize, goal: Goal, all: bool) -> SearchResult {
    found_for(&small(), ranks, memory, goal, all)
}

fn found_for(job: &TrainingJob, ranks: usize, memory: usize, goal: Goal, all: bool) -> SearchResult {
    LayoutSearch { memory, goal, all, ..search(job, &Arc::new(machine()), ranks) }.find::<Cpu<Bf16>>()
}

/// A search for the fastest layouts in any memory.
fn search<'a>(job: &'a TrainingJob, machine: &'a Arc<Machine>, ranks: usize) -> LayoutSearch<'a> {
    let (memory, goal) = (usize::MAX, Goal::Time);
    LayoutSearch { job, machine, memory, ranks, microbatches: None, goal, all: false, watch: &|_| true }
}

fn words(found: &SearchResult) -> Vec<(String, usize, f64)> {
    found.best.iter().map(|of| (of.layout.to_string(), of.microbatches, of.step.seconds)).collect()
}

/// Links are slow, so that a step is mostly sums of gradients. Kills: sums that are counted twice, in another
/// state than they are made, of one end alone, or not at all.
#[test]
fn bounds_with_slow_sums_of_gradients_are_below_the_step_and_close() {
    let mut machine = machine();
    faster(&mut machine, LINKS, 0.01);
    let (machine, job) = (Arc::new(machine), small());
    for (layout, microbatches) in
        [("dp=4", 1), ("dp=4:zero1", 1), ("dp=2,pp=2", 2), ("dp=2:zero1,pp=2:gpipe", 2)]
    {
        let layout: Layout = layout.parse().unwrap();
        let (stages, unlike) = staged(&layout).unwrap();
        let sequences = (job.batch_size / microbatches, true);
        let cost = BlockCost::new::<Cpu<Bf16>>((&stages, unlike), &job, sequences, &machine).unwrap();
        let state = StateBytes::new::<Cpu<Bf16>>(&layout, &job, &machine).unwrap();
        let (pipeline, halves) = (layout.pipeline(), has_halves(&layout));
        let plan = pipeline.plan(layout.size(Axis::Pp), microbatches);
        let bound = cost.seconds(&StageWork::of_ranks(&pipeline, 4, &plan), &plan, halves, &state.times);
        let limits = (microbatches, usize::MAX);
        let step = KnownPrices::default().step::<Cpu<Bf16>>(&layout, &job, limits, &machine).unwrap().seconds;
        let of_blocks = StateTimes { sums: 0.0, sums_of_ends: [0.0; 2], ..state.times };
        let without = cost.seconds(&StageWork::of_ranks(&pipeline, 4, &plan), &plan, halves, &of_blocks);
        assert!((0.82..=1.0).contains(&(bound / step)), "{layout}: {bound} of {step}");
        assert!(without < 0.5 * step, "{layout}: {without} of {step} are no sums");
    }
}

/// The best ten layouts of two ranks are those of weighing every layout, for either goal and in memory that
/// most layouts do not fit into. Kills: a bound above what it bounds, a best layout that is pruned, ties in
/// another order, a layout that does not fit among the best.
#[test]
fn the_search_finds_what_weighing_everything_finds() {
    let wide = found(2, usize::MAX, Goal::Time, true);
    assert_eq!((wide.best.len(), wide.bounded), (10, 0));
    let least = found(2, usize::MAX, Goal::Memory, true);
    let narrow = usize::midpoint(least.best[0].step.peak, wide.best[0].step.peak);
    for (memory, goal) in [(usize::MAX, Goal::Time), (usize::MAX, Goal::Memory), (narrow, Goal::Time)] {
        let (all, some) = (found(2, memory, goal, true), found(2, memory, goal, false));
        assert_eq!(words(&some), words(&all), "{goal:?}, {memory}");
        assert!(some.best.iter().all(|of| of.step.peak <= memory));
        assert!(some.weighed < all.weighed, "{} of {} were weighed", some.weighed, all.weighed);
    }
    assert!(
        found(2, least.best[0].step.peak - 1, Goal::Time, false)
            .best
            .iter()
            .all(|of| { of.layout.offload().is_some() || of.layout.rests().tiles > 1 })
    );
}

/// Three models with experts, on four ranks: few wide experts, many narrow ones with a balance of sequences,
/// and some that drop copies. Kills: blocks of fewer data ranks that are not alike, a
/// state that is taken for another, sums of gradients that hide behind more than a backward.
#[test]
fn the_search_finds_what_weighing_everything_finds_for_experts() {
    let few = Experts { count: 4, chosen: 2, hidden: 1024, ..Experts::MIXTRAL };
    let balance = Balance { sequence: 0.01, ..few.balance };
    let many = Experts { count: 16, chosen: 4, hidden: 128, balance, ..few };
    let some = Experts { count: 6, capacity: Some(1.25), ..few };
    for experts in [few, many, some] {
        let design = Design::Transformer(Shape { blocks: 2, experts: Some(experts), ..SHAPE });
        let job = TrainingJob { design, seq: 64, batch_size: 2, ..job() };
        let [all, some] = [true, false].map(|all| found_for(&job, 4, usize::MAX, Goal::Time, all));
        assert_eq!(words(&some), words(&all), "{experts:?}");
        assert!(some.weighed * 2 < all.weighed, "{} of {} were weighed", some.weighed, all.weighed);
    }
}

/// A wide dense block and narrow experts in one model, or a narrow one and wide experts, in much memory and
/// in little. Kills: a bound that takes all blocks for those of one kind, which need not be the cheapest; a
/// layout that does not fit.
#[test]
fn the_search_finds_what_weighing_everything_finds_for_both_kinds_of_blocks() {
    for (hidden, of_expert) in [(8192, 64), (64, 2048)] {
        let experts = Some(Experts { count: 8, chosen: 2, hidden: of_expert, ..Experts::MIXTRAL });
        let pattern = Pattern { dense: Blocks::FIRST, ..Pattern::NONE };
        let design = Design::Transformer(Shape { blocks: 3, hidden, experts, pattern, ..SHAPE });
        let job = TrainingJob { design, seq: 64, batch_size: 2, ..job() };
        let least = found_for(&job, 2, usize::MAX, Goal::Memory, true).best[0].step.peak;
        for memory in [usize::MAX, least / 2 * 3, least / 16 * 17] {
            let [all, some] = [true, false].map(|all| found_for(&job, 2, memory, Goal::Time, all));
            assert_eq!(words(&some), words(&all), "{hidden}, {memory}");
        }
    }
}

/// A run's number of microbatches is part of its mathematics. A search tries two for four sequences anyway;
/// of three, some have one sequence, so two data ranks cannot share them. Kills: a given number that is not
/// kept, is only tried where it is a usual one, or is pruned by a bound for another; data ranks without a
/// sequence.
#[test]
fn a_given_number_of_microbatches_is_kept() {
    let design = Design::Transformer(Shape { blocks: 1, ..SHAPE }); // no stages
    let (job, machine) = (TrainingJob { design, ..small() }, Arc::new(machine()));
    let of = |microbatches, all| {
        let search = LayoutSearch { microbatches, all, ..search(&job, &machine, 2) };
        let best = search.find::<Cpu<Bf16>>().best.into_iter();
        best.map(|of| (of.layout.to_string(), of.microbatches)).collect::<Vec<_>>()
    };
    for given in [2, 3] {
        let found = of(Some(given), false);
        assert_eq!(found, of(Some(given), true));
        assert!(!found.is_empty() && found.iter().all(|(_, number)| *number == given), "{found:?}");
        assert_eq!(found.iter().any(|(layout, _)| layout.contains("dp=2")), given == 2, "{found:?}");
    }
    let usual = of(None, false).into_iter().find(|(_, number)| *number == 2);
    assert!(usual.is_none_or(|usual| usual == of(Some(2), false)[0]));
    assert!(of(Some(5), false).is_empty());
}

/// Kills: a number that is read as another, a missing number that is not named, an unordered table.
#[test]
fn what_is_no_machine_is_said_in_one_sentence() {
    let text = serde_json::to_string(&machine()).unwrap();
    assert_eq!(Machine::read(&text, "m").unwrap(), machine());
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut why = |change: &dyn Fn(&mut serde_json::Value)| {
        let before = value.clone();
        change(&mut value);
        let why = Machine::read(&value.to_string(), "m").unwrap_err().why;
        value = before;
        why
    };
    for name in ["memory", "launch", "kernels", "levels", "peak", "host", "file", "overlap"] {
        let says = why(&|v| drop(v.as_object_mut().unwrap().remove(name)));
        assert!(says.starts_with(&format!("m is not a machine: missing field `{name}`")), "{says}");
    }
    let number = why(&|v| v["levels"][0]["bandwidth"]["value"] = 0.into());
    assert_eq!(number, "m is not a machine: bandwidth has the number 0.0; it must be 10^-9 to 10^30");
    let rest = why(&|v| drop(v["kernels"].as_object_mut().unwrap().remove("*")));
    assert_eq!(rest, "m is not a machine: kernels lacks \"*\" with bytes, the rate of all other kernels");
    let table = why(&|v| v["kernels"]["product"]["operations"][1] = serde_json::json!([1.0, 1.0]));
    assert!(table.contains("must rise"), "{table}");
    let levels = why(&|v| v["levels"][1]["ranks"] = 8.into());
    assert!(levels.contains("more and more ranks"), "{levels}");
    let why = Machine::named("h900").unwrap_err().why;
    assert_eq!(why, "\"h900\" is neither a machine (a100, a100-2022, h100, h200) nor a file");
}

/// Every named machine is whole, and each of its numbers has a source. Kills: a file that does not parse, a
/// number from nowhere.
#[test]
fn named_machines_have_sources() {
    for name in ["a100", "a100-2022", "h100", "h200"] {
        let machine = Machine::named(name).unwrap();
        let levels = machine.levels.iter().flat_map(|level| [&level.latency, &level.bandwidth]);
        let moves = [&machine.host, &machine.file];
        let all = levels.chain(moves).chain([&machine.memory, &machine.launch, &machine.overlap]);
        assert!(all.chain(machine.peak.values()).all(|known| known.source.len() > 3), "{name}");
        assert!(machine.kernels.values().all(|rates| rates.source.len() > 3), "{name}");
    }
}

/// By hand: a call within a node, and one between nodes that eight links carry side by side. Kills: a
/// collective at the wrong level, a block's links that are not shared.
#[test]
fn calls_cross_the_level_of_their_ranks() {
    let sum = |layout: &str| step(layout, 1, &machine()).parts;
    let inside: Layout = "tp=8".parse().unwrap();
    assert_eq!(inside.size(Axis::Tp), 8);
    let [near, far] = ["tp=8", "tp=8,dp=2,order=dp.tp"].map(|layout| sum(layout)[plan::Part::Tp as usize]);
    assert!(far > 1.3 * near, "every second rank is on the other node: {near} {far}");
}

/// The same job in more and less memory, on one node and two. Kills: a branch of a tree that is taken for
/// another, a figure that is not the price's.
#[test]
fn decision_trees_follow_memory_and_nodes() {
    let (job, fast) = (job(), Arc::new(machine()));
    let best = found(2, usize::MAX, Goal::Time, false).best.swap_remove(0);
    let said = |ranks: usize, memory: usize| {
        let search = LayoutSearch { memory, ..search(&job, &fast, ranks) };
        advice::steps::<Cpu<Bf16>>(&search, &best).unwrap()
    };
    let questions = |steps: &[advice::DecisionStep]| -> Vec<_> {
        steps.iter().map(|step| step.question.split(' ').next().unwrap()).collect()
    };
    let alone = |layout: &str, microbatches| step(layout, microbatches, &fast);
    let (eight, one) = (alone("none", 2).peak, alone("none", 16).peak);
    let yes = &said(1, eight)[0].answer;
    assert!(yes.ends_with(&format!("it holds {}, so yes.", tensor::readable(eight as u128))), "{yes}");
    let saves = &said(1, one)[0].answer;
    let bytes = tensor::readable((eight - one) as u128);
    assert!(
        saves.contains(&format!("One sequence in each of 16 microbatches saves {bytes} for +")),
        "{saves}"
    );
    assert!(saves.ends_with("of time, and it fits."), "{saves}");
    let steps = said(8, eight);
    assert_eq!(questions(&steps)[..2], ["Does", "DP"]);
    let peak = plan::clock::time(alone("dp=8", 1).seconds);
    assert!(steps[1].answer.contains(&format!("dp=8 takes {peak} and holds ")), "{}", steps[1].answer);
    let steps = said(16, one / 3);
    assert_eq!(questions(&steps)[..4], ["Does", "PP,", "Does", "ZeRO,"]);
    assert!(steps[0].answer.contains("So no: "), "{}", steps[0].answer);
    assert!(steps[2].answer.ends_with("no layer has to be split."), "{}", steps[2].answer);
}
