//! All schedules of the list: that there is a table for all sizes, what it needs, what it takes, how it
//! looks.
#[path = "../../../docs/tests/all/rewrites.rs"]
mod rewrites;

use super::{ALL, Pipeline};
use crate::step::simulate::{CellTimes, simulate};
use crate::step::{Action, Cell, Claims, PeakNeeds, Plan, Schedule, Waiting, check, lowered, meet};
use layers::NumberArgument;
use std::collections::BTreeMap;

fn rows(schedule: &dyn Schedule, plan: &Plan) -> Vec<Vec<Cell>> {
    (0..plan.ranks).map(|rank| schedule.row(rank, plan).collect()).collect()
}

/// The numbers that a layout may give a schedule, as far as is tried here.
fn numbers(schedule: &dyn Schedule) -> Vec<Option<usize>> {
    match schedule.about().takes {
        NumberArgument::Nothing => vec![None],
        _ => (1..5).map(Some).collect(),
    }
}

/// The claims of a schedule's paper about a rank's needs in a step: what is saved, in chunks or slices of it,
/// and how many messages wait there for their cells; and whether these are as many, not fewer.
fn needs(claims: &Claims, rank: usize, plan: &Plan) -> ([usize; 2], bool) {
    let (of_ranks, exact) = match (claims.waiting)(plan) {
        Waiting::Exactly(of_ranks) => (of_ranks, true),
        Waiting::AtMost(of_ranks) => (of_ranks, false),
    };
    let waiting = match rank {
        0 if plan.ranks == 1 => 0,
        0 => of_ranks[0],
        _ if rank + 1 == plan.ranks => of_ranks[2],
        _ => of_ranks[1],
    };
    let all = plan.chunks * plan.slices * plan.microbatches;
    ([(claims.saved)(rank, plan).min(all), waiting], exact)
}

/// Kills: a formula that is wrong at an edge (fewer microbatches than ranks, one rank, one chunk, rounds that
/// are not full); a rank that holds more than its paper says, or has not what it says; messages that need a
/// buffer in training or in forwards alone, or come earlier than they must. Edges alone, all of them; with
/// `EQUIPART_ALL=1` every number of microbatches.
#[test]
fn every_schedule_has_a_table_for_all_sizes() {
    for (schedule, ranks) in ALL.iter().flat_map(|schedule| (1..=16).map(move |ranks| (*schedule, ranks))) {
        let edges = [1, 2, ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 64];
        for m in (1..=64).filter(|m| edges.contains(m) || std::env::var_os("EQUIPART_ALL").is_some()) {
            for plan in numbers(schedule).into_iter().map(|number| schedule.plan(ranks, m, number)) {
                let (word, found) = (schedule.about().word, check(schedule, &plan));
                assert!(found.is_ok(), "{found:?}");
                let found = found.unwrap();
                let claims = schedule.claims().unwrap_or_else(|| panic!("{word} does not say what it needs"));
                let of_ranks: Vec<_> = (0..ranks).map(|rank| needs(&claims, rank, &plan)).collect();
                let [saved, waiting] = [0, 1].map(|n| of_ranks.iter().map(|(needs, _)| needs[n]).collect());
                let versions: Vec<_> = (0..ranks).map(|rank| schedule.versions(rank, &plan)).collect();
                let (most, exact) = (PeakNeeds { saved, waiting, versions }, of_ranks[0].1);
                if m >= 2 * ranks {
                    assert_eq!(found.saved, most.saved, "{word}, {plan:?}");
                    assert_eq!(found.versions, most.versions, "{word}, {plan:?}");
                }
                if m >= 2 * ranks && exact {
                    assert_eq!(found.waiting, most.waiting, "{word}, {plan:?}");
                }
                let no_more = |found: &[usize], most: &[usize]| found.iter().zip(most).all(|(a, b)| a <= b);
                let no_more = no_more(&found.saved, &most.saved)
                    && no_more(&found.waiting, &most.waiting)
                    && no_more(&found.versions, &most.versions);
                assert!(no_more, "{word}, {plan:?}: {found:?}");
                let forwards = lowered(schedule, &Plan { slices: 1, ..plan }, false).unwrap();
                assert_eq!(meet(&forwards), Ok(()), "{word}, {plan:?}");
            }
        }
    }
}

/// Kills: a message that is received in another order than it is sent in, from one rank to another: one of a
/// kind passes no other of it.
#[test]
fn messages_of_a_kind_keep_their_order() {
    for (schedule, ranks) in ALL.iter().flat_map(|schedule| [2, 3, 5].map(move |ranks| (*schedule, ranks))) {
        for m in [1, 2, 3, 7, 12] {
            for plan in numbers(schedule).into_iter().map(|number| schedule.plan(ranks, m, number)) {
                let mut ways = BTreeMap::<_, [Vec<_>; 2]>::new();
                let rows = lowered(schedule, &plan, true).unwrap().into_iter().enumerate();
                for (rank, step) in rows.flat_map(|(rank, row)| row.into_iter().map(move |step| (rank, step)))
                {
                    match step {
                        Action::Send(what, of, to) => {
                            ways.entry((rank, to, what as usize)).or_default()[0].push(of);
                        }
                        Action::Receive(what, of, from) => {
                            ways.entry((from, rank, what as usize)).or_default()[1].push(of);
                        }
                        _ => {}
                    }
                }
                for (way, [sent, received]) in ways {
                    assert_eq!(sent, received, "{}, {plan:?}, {way:?}", schedule.about().word);
                }
            }
        }
    }
}

/// Evenly and by hand. Kills: a block of no chunk or of two, a chunk without one, where chunks do not divide
/// the blocks.
#[test]
fn every_block_is_of_one_chunk() {
    let one_after_the_other = |pipeline: Pipeline, n: usize, chunks: usize| {
        let parts: Vec<_> = (0..chunks).map(|chunk| pipeline.blocks(n, chunk, chunks)).collect();
        assert!(parts.iter().all(|part| !part.is_empty()), "{n} blocks in {parts:?}");
        assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
    };
    for (n, chunks) in (1..=17).flat_map(|n| (1..=n).map(move |chunks| (n, chunks))) {
        one_after_the_other(Pipeline::ALONE, n, chunks);
    }
    for split in [&[3, 5][..], &[1, 1, 4], &[6]] {
        let pipeline = Pipeline { split: Some(split), ..Pipeline::ALONE };
        one_after_the_other(pipeline, split.iter().sum(), split.len());
    }
}

/// Time that a rank waits, at most, between its first cell and its last: a cell takes these times, and
/// messages take none.
fn waits(schedule: &dyn Schedule, plan: &Plan, times: [usize; 3]) -> usize {
    let [f, i, w] = times.map(|time| (time * plan.chunks * plan.slices) as f64);
    simulate(schedule, plan, &CellTimes::new(f, i, w), &mut |_, _, _, _| {}).unwrap().bubble_time as usize
}

/// The closed forms of the papers, where they hold. Times are those of a chunk or slice, which is the part of
/// a rank divided by so many. Kills: a forward too few or too many ahead, a weight half too early or too
/// late.
#[test]
fn ranks_wait_as_long_as_the_papers_say() {
    for (schedule, bubble) in ALL.iter().filter_map(|s| Some((s, s.claims()?.bubble?))) {
        let mut held = 0;
        for (ranks, times) in
            (1..=6).flat_map(|k| [[1, 1, 1], [2, 3, 1], [3, 2, 2], [2, 2, 3], [1, 4, 3]].map(|t| (k, t)))
        {
            for (m, number) in (1..=3 * ranks).flat_map(|m| [1, 2, 3].map(|number| (m, number))) {
                let plan = schedule.plan(ranks, m, Some(number));
                let of_part = times.map(|time| (time * plan.chunks * plan.slices) as f64);
                if let Some(bubble) = bubble(&plan, of_part) {
                    assert_eq!(waits(*schedule, &plan, times) as f64, bubble, "{plan}, {times:?}");
                    held += 1;
                }
            }
        }
        assert!(held > 90, "{}: {held}", schedule.about().word);
    }
}

/// Kills: a change of a table that nobody meant. `EQUIPART_REWRITE=1` writes them anew.
#[test]
fn tables_are_those_that_were_looked_at() {
    for schedule in ALL {
        let word = schedule.about().word;
        let plan = schedule.plan(4, 8, None);
        let row = |row: &Vec<Cell>| row.iter().map(Cell::to_string).collect::<Vec<_>>().join(" ") + "\n";
        let table: String = rows(*schedule, &plan).iter().map(row).collect();
        let file = format!("{}/src/pipeline/golden/{word}.txt", env!("CARGO_MANIFEST_DIR"));
        if rewrites::rewrites() {
            std::fs::write(&file, &table).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&file).unwrap_or_default(),
            table,
            "{file}: EQUIPART_REWRITE=1 writes it anew"
        );
    }
}
