//! All schedules of the list: that there is a table for all sizes, what it needs, what it takes, how it looks.
use super::{ALL, Schedule};
use crate::step::{Act, Cell, Needs, Plan, Unit, check};
use layers::Takes;
use std::collections::BTreeMap;

fn rows(schedule: &dyn Schedule, plan: &Plan) -> Vec<Vec<Cell>> {
    (0..plan.ranks).map(|rank| schedule.row(rank, plan).collect()).collect()
}

fn of(word: &str) -> &'static dyn Schedule {
    *ALL.iter().find(|schedule| schedule.about().word == word).unwrap()
}

/// The numbers that a layout may give a schedule, as far as is tried here.
fn numbers(schedule: &dyn Schedule) -> Vec<Option<usize>> {
    match schedule.about().takes {
        Takes::Nothing => vec![None],
        _ => (1..5).map(Some).collect(),
    }
}

/// What most is saved on a rank, in chunks or slices of it, and how many messages of a kind to a rank wait.
fn needs(word: &str, rank: usize, plan: &Plan) -> (usize, usize) {
    let Plan { ranks, chunks, slices, microbatches } = *plan;
    let all = chunks * slices * microbatches;
    let (saved, under_way) = match word {
        "naive" => (1, 0),
        "gpipe" => (all, 0),
        "looped-bfs" => (all, if chunks == 1 || ranks == 1 { 0 } else { microbatches }),
        "1f1b" | "seq1f1b" => (ranks - rank + slices - 1, 0),
        "interleaved" => (2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, 1),
        "zb-h1" => (ranks, 0),
        "zb-h2" => (2 * ranks - 1, 1),
        "zb-v" => (2 * ranks, 1),
        "dualpipe-v" => (2 * ranks + 1, 1),
        other => panic!("what does {other} need?"),
    };
    (saved.min(all), under_way)
}

/// Kills: a formula that is wrong at an edge: fewer microbatches than ranks, one rank, one chunk, rounds that are not full;
/// a rank that holds more than its paper says; a table that only goes where messages wait, unless it is said to.
#[test]
fn every_schedule_has_a_table_for_all_sizes() {
    for schedule in ALL {
        let word = schedule.about().word;
        for ranks in 1..=16 {
            let edges = [ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 63, 64];
            let mut microbatches: Vec<_> = (1..=64).filter(|m| *m < 8 || edges.contains(m)).collect();
            if std::env::var("ALLM").is_ok() {
                microbatches = (1..=64).collect();
            }
            for (m, number) in
                microbatches.iter().flat_map(|m| numbers(*schedule).into_iter().map(move |n| (*m, n)))
            {
                let plan = schedule.plan(ranks, m, number);
                let found = check(*schedule, &plan).unwrap();
                let expected: Vec<_> = (0..ranks).map(|rank| needs(word, rank, &plan)).collect();
                let more = |(saved, expected): (&usize, &(usize, usize))| *saved > expected.0;
                if found.saved.iter().zip(&expected).any(more) || found.under_way > expected[0].1 {
                    panic!("{word}, {plan:?}: {found:?}, {expected:?}");
                }
            }
        }
    }
}
