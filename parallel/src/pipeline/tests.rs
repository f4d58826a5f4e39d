//! All schedules of the list: that there is a table for all sizes, what it needs, what it takes, how it looks.
#[path = "../../../docs/tests/all/rewrites.rs"]
mod rewrites;

use super::{ALL, Pipeline, Schedule};
use crate::step::simulate::{Times, simulate};
use crate::step::{Cell, Needs, Plan, Step, check, lowered, meet};
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

/// What is saved on a rank, in chunks or slices of it, and how many messages wait there for their cells: of a step of 2K
/// microbatches or more. Of fewer it is no more.
fn needs(word: &str, rank: usize, plan: &Plan) -> (usize, usize) {
    let Plan { ranks, chunks, slices, microbatches } = *plan;
    let all = chunks * slices * microbatches;
    let early = (microbatches + 1).saturating_sub(ranks).max(1); // of the next chunk, while the first rank has not begun with it
    let (saved, [first, between, last]) = match word {
        "naive" => (1, [1; 3]),
        "gpipe" => (all, [1; 3]),
        "1f1b" | "seq1f1b" => (ranks - rank + slices - 1, [1, 2, 1]),
        "interleaved" => {
            let waiting = if chunks == 1 { [1, 2, 2] } else { [ranks.div_ceil(2).max(2) + 2; 3] }; // or less
            (2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, waiting)
        }
        "looped-bfs" => (all, if chunks == 1 { [1; 3] } else { [early, 1, early] }),
        "zb-h1" => (ranks, [1, 2, 1]),
        "zb-h2" => (2 * ranks - 1, [1, 2, 2]),
        "zb-v" => (2 * ranks, [1, 3, 2]),
        "dualpipe-v" => (2 * ranks + 1, [2; 3]),
        other => panic!("what does {other} need?"),
    };
    let waiting = match rank {
        0 if ranks == 1 => 0,
        0 => first,
        _ if rank + 1 == ranks => last,
        _ => between,
    };
    (saved.min(all), waiting)
}

/// Kills: a formula that is wrong at an edge (fewer microbatches than ranks, one rank, one chunk, rounds that are not full); a
/// rank that holds more than its paper says, or has not what it says; messages that need a buffer in training or in forwards
/// alone, or come earlier than they must. Edges alone, all of them; with `EQUIPART_ALL=1` every number of microbatches.
#[test]
fn every_schedule_has_a_table_for_all_sizes() {
    for (schedule, ranks) in ALL.iter().flat_map(|schedule| (1..=16).map(move |ranks| (*schedule, ranks))) {
        let edges = [1, 2, ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 2 * ranks + 1, 64];
        for m in (1..=64).filter(|m| edges.contains(m) || std::env::var_os("EQUIPART_ALL").is_some()) {
            for plan in numbers(schedule).into_iter().map(|number| schedule.plan(ranks, m, number)) {
                let (word, found) = (schedule.about().word, check(schedule, &plan));
                assert!(found.is_ok(), "{found:?}");
                let found = found.unwrap();
                let (saved, waiting) = (0..ranks).map(|rank| needs(word, rank, &plan)).unzip();
                let most = Needs { saved, waiting };
                if m >= 2 * ranks {
                    assert_eq!(found.saved, most.saved, "{word}, {plan:?}");
                }
                if m >= 2 * ranks && (word != "interleaved" || plan.chunks == 1) {
                    assert_eq!(found.waiting, most.waiting, "{word}, {plan:?}");
                }
                let no_more = |found: &[usize], most: &[usize]| found.iter().zip(most).all(|(a, b)| a <= b);
                let no_more = no_more(&found.saved, &most.saved) && no_more(&found.waiting, &most.waiting);
                assert!(no_more, "{word}, {plan:?}: {found:?}");
                let forwards = lowered(schedule, &Plan { slices: 1, ..plan }, false).unwrap();
                assert_eq!(meet(&forwards), Ok(()), "{word}, {plan:?}");
            }
        }
    }
}

/// Kills: a message that is received in another order than it is sent in, from one rank to another: one of a kind passes no
/// other of it.
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
                        Step::Send(what, of, to) => {
                            ways.entry((rank, to, what as usize)).or_default()[0].push(of);
                        }
                        Step::Receive(what, of, from) => {
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

/// Evenly and by hand. Kills: a block of no chunk or of two, a chunk without one, where chunks do not divide the blocks.
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

/// Time that a rank waits, at most, between its first cell and its last: a cell takes these times, and messages take none.
fn waits(schedule: &dyn Schedule, plan: &Plan, times: [usize; 3]) -> usize {
    let [f, i, w] = times.map(|time| (time * plan.chunks * plan.slices) as f64);
    simulate(schedule, plan, &Times::new(f, i, w), &mut |_, _, _, _| {}).unwrap().bubble_time as usize
}

/// The closed forms of the papers, and the conditions under which they hold. Times are those of a chunk or slice, which is the
/// part of a rank divided by so many. Kills: a forward too few or too many ahead, a weight half too early or too late.
#[test]
fn ranks_wait_as_long_as_the_papers_say() {
    for (ranks, [f, i, w]) in
        (1..=6).flat_map(|k| [[1, 1, 1], [2, 3, 1], [3, 2, 2], [2, 2, 3], [1, 4, 3]].map(|t| (k, t)))
    {
        let per = |time: usize| (ranks - 1) * time;
        let waits = |word, m, number| {
            let schedule = of(word);
            waits(schedule, &schedule.plan(ranks, m, number), [f, i, w])
        };
        for m in 1..=3 * ranks {
            assert_eq!(waits("naive", m, None), m * per(f + i + w), "{ranks} {m}");
            assert_eq!(waits("gpipe", m, None), per(f + i + w), "{ranks} {m}");
            if m >= ranks {
                assert_eq!(waits("1f1b", m, None), per(f + i + w), "{ranks} {m}");
                assert_eq!(waits("zb-h1", m, None), per(i + f.saturating_sub(w)), "{ranks} {m}");
            }
            if m >= ranks && f + i + w == 3 * f {
                assert_eq!(waits("seq1f1b", m, Some(3)), per(f + i + w), "{ranks} {m}");
            }
            if m >= 2 * ranks - 1 {
                let most = (f + i).saturating_sub(2 * w).max(i.saturating_sub(f));
                assert_eq!(waits("zb-h2", m, None), per(most), "{ranks} {m}");
                if [f, i, w] == [1, 1, 1] {
                    assert_eq!(waits("zb-v", m, None), 0, "{ranks} {m}");
                }
            }
            for chunks in [1, 2, 3] {
                if m % ranks == 0 {
                    assert_eq!(waits("interleaved", m, Some(chunks)), per(f + i + w), "{ranks} {m}");
                }
                if m >= ranks {
                    assert_eq!(waits("looped-bfs", m, Some(chunks)), per(f + i + w), "{ranks} {m}");
                }
            }
        }
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
