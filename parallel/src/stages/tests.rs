//! The executor: what it sends, what it has under way, and what it tells where nothing is learnt.
use super::*;
use crate::pipeline::{ALL, looped_bfs::LoopedBfs};
use crate::step::{Action, check, lowered};
use crate::{Batch, Error, Schedule, Sequence, Trainer};
use comm::{CallRecord, Op, Trace, World};
use kernels::Heads;
use layers::{Builder, Shape};
use ops::{PassContext, RandomValues, SGD};
use std::collections::BTreeMap;
use tensor::{Cpu, Device, F61, Key, TokenIds};

const SHAPE: Shape =
    Shape { width: 4, blocks: 5, heads: Heads::new(2, 2, 2), hidden: 4, vocabulary: 8, ..Shape::LLAMA };

/// So many microbatches of a sequence of 4 tokens each, and one more token in the last.
fn batch(microbatches: usize) -> Batch {
    let sequence = |m: usize| {
        let tokens = 4 + u32::from(m + 1 == microbatches);
        let id = |i: u32| (3 * i + m as u32) % 8;
        Sequence::new((0..tokens).map(id).collect(), (1..=tokens).map(id).collect())
    };
    Batch::new((0..microbatches).map(sequence).collect(), microbatches).unwrap()
}

/// Logits of a text's last token and of all, and the loss of a batch, before and after a step.
type Told = ([Vec<F61>; 2], [Vec<F61>; 2]);

fn reported(pipeline: Pipeline, pp: usize, learns: bool) -> Vec<Told> {
    let _key = Key(8).enter();
    let run = |device: Cpu<F61>, mesh: Mesh<_>| {
        let builder = Builder::new(&device, &mesh, &RandomValues { seed: 4 });
        let mut trainer = Trainer::new(&BuildContext { builder, pipeline }, SHAPE, (SGD, None))?;
        let before = trainer.evaluate(&batch(3), &|_| ())?.read().unwrap();
        if learns {
            trainer.step(&batch(3), 0.5)?;
        }
        let after = trainer.evaluate(&batch(3), &|_| ())?.read().unwrap();
        let mut logits = |all| {
            let ids = TokenIds::new(device.place(), &[1, 2, 3, 4, 5], 8)?;
            let cx = PassContext::infer([2, 3]);
            Ok::<_, Error>(trainer.model().logits(&cx, ids, all)?.read().unwrap())
        };
        Ok::<_, Error>(([logits(false)?, logits(true)?], [before, after]))
    };
    World::threads(&[(Axis::Pp, pp)]).unwrap().run(run).unwrap()
}

/// Kills: logits of the last rank and not of the one that has the head, sequences that are cut into slices
/// where nothing is learnt, a loss that stages add up or do not get.
#[test]
fn every_rank_is_told_what_a_model_in_one_stage_says() {
    let whole = [false, true].map(|learns| reported(Pipeline::ALONE, 1, learns).remove(0));
    for schedule in ALL {
        let learns = !schedule.updates_each(); // other updates lead to other weights
        let whole = &whole[usize::from(learns)];
        for (rank, reported) in reported((*schedule).into(), 2, learns).into_iter().enumerate() {
            assert!(reported == *whole, "rank {rank} under {}", schedule.about().word);
        }
    }
}

/// The calls of each rank in a step.
fn calls(
    schedule: &'static dyn Schedule,
    sizes: &[(Axis, usize)],
    microbatches: usize,
) -> Vec<Vec<CallRecord>> {
    let trace = Trace::new();
    let world = World::threads(sizes).unwrap().traced(&trace, "a step");
    let run = |device: Cpu<f32>, mesh: Mesh<_>| {
        let builder = Builder::new(&device, &mesh, &RandomValues { seed: 4 });
        let at = BuildContext { builder, pipeline: schedule.into() };
        Trainer::new(&at, SHAPE, (SGD, None))?.step(&batch(microbatches), 0.5)?;
        Ok::<_, Error>(mesh.calls())
    };
    world.run(run).unwrap()
}

/// Five tokens among two tensor ranks are 3 and 2. Kills: all tokens sent by each tensor rank.
#[test]
fn tensor_ranks_send_their_own_tokens() {
    for (rank, calls) in calls(ALL[0], &[(Axis::Pp, 2), (Axis::Tp, 2)], 1).into_iter().enumerate() {
        let messages = calls.iter().filter(|call| matches!(call.op, Op::Send | Op::Receive));
        let shapes: Vec<_> = messages.map(|call| call.shape).collect();
        assert_eq!(shapes, [[3 - rank % 2, 4]; 2], "rank {rank}");
    }
}

/// A table under which seven messages wait on each rank. Kills: an executor that has room for one of them,
/// and so waits for ever, or takes another of them than a cell needs.
#[test]
fn as_many_messages_wait_as_the_table_has_come_early() {
    let schedule: &'static dyn Schedule = &LoopedBfs;
    let plan = schedule.plan(2, 8, None);
    assert_eq!(check(schedule, &plan).unwrap().waiting, [7, 7]);
    let sent = |calls: &Vec<CallRecord>| calls.iter().filter(|call| call.op == Op::Send).count();
    let sent: Vec<_> = calls(schedule, &[(Axis::Pp, 2)], 8).iter().map(sent).collect();
    assert_eq!(sent, [8 + 8 + 8, 8 + 8 + 8], "forth and back between four chunks");
}

/// Kills: a message that could be taken for another of its kind between the same ranks.
#[test]
fn messages_of_a_kind_are_told_apart() {
    for schedule in ALL {
        for plan in [(2, 5, None), (3, 4, Some(3))].map(|(ranks, m, number)| schedule.plan(ranks, m, number))
        {
            let mut seen = BTreeMap::new();
            let rows = lowered(*schedule, &plan, true).unwrap().into_iter().enumerate();
            for (rank, step) in rows.flat_map(|(rank, row)| row.into_iter().map(move |step| (rank, step))) {
                if let Action::Send(payload, unit, to) = step {
                    let [tag, _] = passed::tags((payload, unit), &plan);
                    let before = seen.insert((rank, to, tag.what, tag.unit), unit);
                    assert_eq!(before, None, "{}, {plan}: {step}", schedule.about().word);
                }
            }
        }
    }
}
