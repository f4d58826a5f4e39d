use super::*;
use crate::block::has_halves;
use crate::hold::StateBytes;
use parallel::{Layout, pipeline};

/// Number of blocks of a model that is large enough.
const ALL: usize = 200;

fn cost(random: &mut impl FnMut() -> f64, halves: bool, slices: usize) -> BlockCost {
    let mut block = || {
        let [f, b, i, w] = std::array::from_fn(|_| 0.5 + random());
        let acts = if halves { [f, b, i, w] } else { [f, b, 0.0, 0.0] };
        BlockTime { acts: vec![acts; slices], ..BlockTime::default() }
    };
    let blocks = vec![block(), block()];
    let message = [0.3 * random(), 0.1 * random()];
    let kinds = vec![blocks];
    BlockCost { kinds, of_blocks: vec![0; ALL], head: random(), message }
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
    let kinds = vec![vec![block]];
    let cost = BlockCost { kinds, of_blocks: vec![0; 4], head: 0.5, ..BlockCost::default() };
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

/// Blocks of up to five kinds in any order: the closed bound of a rank alone is the cheapest run of as many
/// consecutive blocks, and its bytes are those of the cheapest choice. Kills: blocks of one kind taken for
/// the cheaper ones, more blocks of a kind than there are, one kind for all, the kind of the block before.
#[test]
fn bounds_with_several_kinds_of_blocks_are_the_cheapest_run_of_blocks() {
    let block = |seconds: f64| BlockTime { acts: vec![[seconds, 0.0, 0.0, 0.0]], ..BlockTime::default() };
    let seconds = [5.0, 1.0, 3.0, 8.0, 2.0];
    for of_blocks in [vec![0, 1, 1, 1], vec![0, 1, 0, 2, 0, 1, 3], vec![0, 1, 2, 3, 4, 3, 2, 1, 0]] {
        let count = |kind: usize| of_blocks.iter().filter(|of| **of == kind).count();
        let kinds = (0..5).filter(|kind| count(*kind) > 0);
        let held = |kind: usize| ([0, seconds[kind] as usize], count(kind));
        let state = StateBytes { blocks: kinds.clone().map(held).collect(), ..StateBytes::default() };
        let kinds = kinds.map(|kind| vec![block(seconds[kind])]).collect();
        let cost = BlockCost { kinds, of_blocks: of_blocks.clone(), ..BlockCost::default() };
        let costs: Vec<_> = of_blocks.iter().map(|kind| seconds[*kind]).collect();
        let mut sorted = costs.clone();
        sorted.sort_by(f64::total_cmp);
        for n in 1..=of_blocks.len() {
            let runs = (0..=of_blocks.len() - n).map(|first| costs[first..first + n].iter().sum::<f64>());
            let wanted = runs.fold(f64::INFINITY, f64::min);
            let rank = StageWork { chunks: vec![n], ..StageWork::default() };
            let seen = cost.seconds(&[rank], &Plan::whole(1, 1), false, &StateTimes::default()) / BELOW;
            assert!((seen / wanted - 1.0).abs() < 1e-12, "{n} of {of_blocks:?}: {seen} {wanted}");
            assert_eq!(state.least(n, 1), sorted[..n].iter().sum::<f64>() as usize, "{n} of {of_blocks:?}");
        }
    }
}
