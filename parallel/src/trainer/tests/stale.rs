//! Training under schedules that update after each microbatch, compared with the oracle on stale weights.
use super::*;
use ops::ADAMW;
use reference::{StaleTrainer, Staleness};
use std::collections::BTreeMap;

fn weights(trainer: &mut Trainer<Cpu<F61>>, mesh: &Mesh<tensor::Host>) -> Result<BTreeMap<String, Vec<F61>>> {
    let (mut all, design) = (BTreeMap::new(), trainer.model().design().clone());
    let (params, device) = (trainer.model().params(), Cpu::default());
    for of in crate::named(&design, &params, mesh)? {
        let whole = crate::whole(&device, &of, mesh, |i| params[i].gather(mesh))?;
        all.insert(of.name, whole.expect("the host has values"));
    }
    Ok(all)
}

/// Trains for some steps with a full pipeline, drains it, then for some more, under layouts `[pp, dp, tp,
/// sp]` with the values' state as `ZeRO`-1 if `zero`.
fn stale_steps(
    (schedule, split): (&'static dyn Schedule, Option<&'static [usize]>),
    shape: Shape,
    (microbatches, runs): (usize, &[usize]),
    ([pp, dp, tp, sp], zero): ([usize; 4], bool),
) {
    let _key = Key(9).enter();
    let sequence =
        |n: u32| Sequence::new((0..n).collect(), (1..=n).map(|i| if i == 3 { IGNORED } else { i }).collect());
    let batch = |step: usize| {
        let lengths = (0..=microbatches).map(|i| 2 + ((i + step) % 4) as u32);
        Batch::new(lengths.map(sequence).collect(), microbatches).unwrap().idling(true)
    };
    let reported = |s: &Sequence| reference::Sequence {
        ids: s.ids.to_vec(),
        targets: s.targets.to_vec(),
        ..reference::Sequence::default()
    };
    let kind = ADAMW.with(&[0.5, 0.75, 0.5, 0.25]);
    let state = if zero { AtRest::Shard } else { AtRest::Whole };
    let rests = ShardingStrategy { state, ..ShardingStrategy::WHOLE };
    let run = |device: Cpu<F61>, mesh: Mesh<_>| {
        let builder = Builder { rests, ..Builder::new(&device, &mesh, &RandomValues { seed: 2 }) };
        let builder = if sp > 0 { builder.in_regions() } else { builder };
        let pipeline = Pipeline { split, ..schedule.into() };
        let mut trainer = Trainer::new(&BuildContext { builder, pipeline }, shape, (kind, None))?.seeded(3);
        let start = weights(&mut trainer, &mesh)?;
        let stages = (0..pp).map(|stage| pipeline.blocks(shape.blocks, stage, pp).len()).collect();
        let staleness = Staleness { stages, vertical: schedule.about().word == "pipedream-vertical" };
        let oracle = reference::Model::from(shape);
        let mut truth =
            StaleTrainer::new(reference::Trainer::new(oracle, kind, None, start).seeded(3), staleness);
        let at = format!("{}, {pp} {dp} {tp} {sp}, {microbatches} microbatches", schedule.about().word);
        let mut step = 0;
        for steps in runs {
            let (mut running, mut seen, mut wanted) = (None, Vec::new(), Vec::new());
            for _ in 0..*steps {
                let lr = 0.5 + step as f64; // an update has the rate of its own step
                let batch = batch(step);
                seen.extend(trainer.next_step(&mut running, &batch, lr)?);
                let of = |m: &Vec<Sequence>| m.iter().map(reported).collect::<Vec<_>>();
                let theirs: Vec<_> = batch.microbatches().iter().map(of).collect();
                let losses = truth.step_recorded(&theirs, lr, &mut |_, _, _| {}).losses;
                wanted.push(losses.into_iter().fold(F61::ZERO, |sum, loss| sum + loss));
                step += 1;
            }
            seen.extend(trainer.last_step(running)?);
            let seen: Vec<_> = seen.iter().flat_map(|report| report.loss.read().unwrap()).collect();
            assert_eq!(seen, wanted, "losses of {steps} steps, {at}");
            assert!(weights(&mut trainer, &mesh)? == *truth.weights(), "weights after {steps} steps, {at}");
            truth.drain();
        }
        Ok::<_, crate::Error>(())
    };
    World::threads(&[(Axis::Pp, pp), (Axis::Dp, dp), (Axis::Tp, tp)]).unwrap().run(run).unwrap();
}

/// At least 3K updates with a full pipeline on K stages, then drained and begun again, by microbatches that
/// fill it, or not; with dropout. Kills: another version for backward than for forward, or at start-up; an
/// update between two microbatches of one version; versions that a drain leaves; the rate, the dropout or the
/// targets of another step; a microbatch that is taken for one a step before; a loss that is not a mean.
#[test]
fn steps_on_stale_weights_equal_their_oracle_bit_for_bit() {
    let all: Vec<_> =
        crate::pipeline::ALL.iter().copied().filter(|schedule| schedule.updates_each()).collect();
    assert_eq!(all.len(), 2);
    for schedule in all {
        for (m, runs, layout, zero) in [
            (3, &[3, 2][..], [2, 1, 1, 0], false),
            (1, &[12, 1, 2], [4, 1, 1, 0], false),
            (2, &[5, 4], [3, 1, 2, 1], false),
            (5, &[2, 1], [2, 2, 1, 0], false),
            (4, &[2, 2], [2, 2, 1, 0], true),
            (2, &[2], [1, 1, 1, 0], false),
        ] {
            let shape = Shape { dropout: RATES, blocks: 5, ..SHAPE };
            stale_steps((schedule, None), shape, (m, runs), (layout, zero));
        }
        let shape = Shape { blocks: 4, ..SHAPE };
        stale_steps((schedule, Some(&[3, 1])), shape, (3, &[3]), ([2, 1, 1, 0], false));
    }
}
