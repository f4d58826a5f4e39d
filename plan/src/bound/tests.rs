use super::*;

fn cost(random: &mut impl FnMut() -> f64, halves: bool, slices: usize) -> BlockCost {
    let mut block = || {
        let [f, b, i, w] = std::array::from_fn(|_| 0.5 + random());
        let acts = if halves { [f, b, i, w] } else { [f, b, 0.0, 0.0] };
        BlockTime { acts: vec![acts; slices], ..BlockTime::default() }
    };
    let blocks = vec![block(), block()];
    BlockCost { blocks, head: random(), message: [0.3 * random(), 0.1 * random()] }
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
                let closed = cost.seconds(&works, &plan, (has_halves(&layout), [0.0; 2], 0.0));
                assert!(few <= all * (1.0 + 1e-9), "{layout}, {blocks} blocks: {few} is above {all}");
                assert!(closed <= all * (1.0 + 1e-9), "{layout}, {blocks} blocks: {closed} is above {all}");
                close += usize::from(few > 0.97 * all && closed > 0.8 * all);
            }
        }
    }
    assert!(close > 50, "{close} bounds are close");
}
