use super::*;
use crate::block::{BlockKinds, has_halves};
use layers::{Experts, Shape};
use parallel::{Layout, pipeline};

fn cost(random: &mut impl FnMut() -> f64, halves: bool, slices: usize) -> BlockCost {
    let mut block = || {
        let [f, b, i, w] = std::array::from_fn(|_| 0.5 + random());
        let acts = if halves { [f, b, i, w] } else { [f, b, 0.0, 0.0] };
        BlockTime { acts: vec![acts; slices], ..BlockTime::default() }
    };
    let blocks = vec![block(), block()];
    let message = [0.3 * random(), 0.1 * random()];
    BlockCost { blocks, head: random(), message, ..BlockCost::default() }
}

/// The bounds of all schedules with random times: the one that simulates the first microbatches alone is not
/// above the whole simulation, and with whole cells close to it; the one without simulation is not above
/// either. Kills: a bound that counts the wait for more stages than there are, the head twice, the rank with
/// most blocks for every rank; a slope above that of the table.
#[test]
fn bounds_are_below_what_they_bound() {
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    let mut close = 0;
    for schedule in pipeline::ALL.iter().filter(|schedule| !schedule.updates_each()) {
        let words = [schedule.about().word.to_owned(), format!("{}/4", schedule.about().word)];
        for (ranks, word) in [2, 3, 4].into_iter().flat_map(|k| words.iter().map(move |word| (k, word))) {
            let Ok(layout) = format!("pp={ranks}:{word}").parse::<Layout>() else { continue };
            let pipeline = layout.pipeline();
            let plan = pipeline.plan(ranks, 32 * ranks);
            if pipeline.schedule.fits(&plan).is_err() {
                continue;
            }
            for blocks in [plan.all_chunks(), plan.all_chunks() + 1, 2 * plan.all_chunks() + 3] {
                let cost = cost(&mut random, has_halves(&layout), plan.slices);
                let of = |most| cost.simulated_first(most, &pipeline, (blocks, 0.0), &plan).unwrap();
                let (few, all) = (of(0), of(usize::MAX));
                let works = StageWork::of_ranks(&pipeline, blocks, &plan);
                let closed = cost.seconds(&works, &plan, has_halves(&layout), &StateTimes::default());
                assert!(few <= all * (1.0 + 1e-9), "{layout}, {blocks} blocks: {few} is above {all}");
                assert!(closed <= all * (1.0 + 1e-9), "{layout}, {blocks} blocks: {closed} is above {all}");
                close += usize::from(few > 0.97 * all && closed > 0.8 * all);
            }
        }
    }
    assert!(close > 50, "{close} bounds are close");
}

/// Works a step out by hand: a forward of 1 s and a backward of 2 s a block, three microbatches. Kills: sums
/// of gradients that hide behind more than the last backward, or behind nothing; those of another end of the
/// model; an update that is counted beside sums.
#[test]
fn sums_of_gradients_begin_with_the_last_backward() {
    let block = BlockTime { acts: vec![[1.0, 2.0, 0.0, 0.0]], ..BlockTime::default() };
    let cost = BlockCost { blocks: vec![block], head: 0.5, ..BlockCost::default() };
    let rank = |has_head, first| StageWork { chunks: vec![4], has_head, before: 0, first };
    let of = |rank: &StageWork, sums, sums_of_ends, update| {
        let state = StateTimes { update, sums, sums_of_ends, ..StateTimes::default() };
        let seconds = cost.seconds(std::slice::from_ref(rank), &Plan::whole(1, 3), false, &state);
        (seconds / BELOW * 1e6).round() / 1e6
    };
    let inner = rank(false, 1);
    assert_eq!(of(&inner, 0.0, [0.0; 2], 0.0), 36.0);
    assert_eq!(of(&inner, 2.0, [9.0; 2], 0.0), 36.0, "as long as the last backward");
    assert_eq!(of(&inner, 3.5, [9.0; 2], 0.0), 42.0);
    assert_eq!(of(&inner, 3.5, [9.0; 2], 0.25), 43.0);
    assert_eq!(of(&rank(false, 0), 3.5, [9.0, 100.0], 0.0), 51.0);
    assert_eq!(of(&rank(true, 1), 3.5, [100.0, 9.0], 0.0), 42.0 + 9.0 + 2.0 * 0.5);
}

/// Blocks of two kinds in any order: the closed bound of a rank alone is the cheapest choice of as many
/// blocks that the model has, of all choices. Kills: dense blocks taken for the cheaper ones, more blocks
/// of a kind than there are, the same kind for all.
#[test]
fn bounds_with_two_kinds_of_blocks_are_the_cheapest_of_all_choices() {
    const ALL: usize = 7;
    let block = |seconds: f64| BlockTime { acts: vec![[seconds, 0.0, 0.0, 0.0]], ..BlockTime::default() };
    for dense in [vec![0], vec![6, 2], vec![1, 3, 4, 5, 6], (1..ALL).collect()] {
        let experts = Experts { dense: dense.clone().into(), ..Experts::MIXTRAL };
        let shape = Shape { blocks: ALL, experts: Some(experts), ..Shape::LLAMA };
        for seconds in [[5.0, 1.0], [1.0, 5.0], [2.0, 2.0]] {
            let cost = BlockCost {
                blocks: vec![block(seconds[0])],
                others: vec![block(seconds[1])],
                kinds: BlockKinds::of(&shape.into()),
                ..BlockCost::default()
            };
            for n in 1..=ALL {
                let of = |block: usize| seconds[usize::from(!dense.contains(&block))];
                let choices = (0..1usize << ALL).filter(|choice| choice.count_ones() as usize == n);
                let sum = |choice: usize| (0..ALL).filter(|i| choice >> i & 1 == 1).map(of).sum::<f64>();
                let wanted = choices.map(sum).fold(f64::INFINITY, f64::min);
                let rank = StageWork { chunks: vec![n], ..StageWork::default() };
                let state = StateTimes::default();
                let seen = cost.seconds(&[rank], &Plan::whole(1, 1), false, &state) / BELOW;
                assert!((seen / wanted - 1.0).abs() < 1e-12, "{n}, {dense:?}, {seconds:?}: {seen} {wanted}");
            }
        }
    }
}
