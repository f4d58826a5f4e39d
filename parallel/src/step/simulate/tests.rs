use super::*;
use crate::pipeline::{ALL, gpipe::GPipe};
use crate::step::cell::Task;

fn simulated(schedule: &dyn Schedule, plan: &Plan, times: &CellTimes) -> Simulated {
    simulate(schedule, plan, times, &mut |_, _, _, _| {}).unwrap()
}

/// Kills: a bubble that counts what is before a rank's first cell or after its last, another rank's wait, a
/// chunk or a slice that takes a whole part's time, sums that round; a schedule that is not what its paper
/// says.
#[test]
fn bubbles_are_the_closed_forms_exactly() {
    for schedule in ALL {
        let (word, mut held) = (schedule.about().word, 0);
        let closed = schedule.claims().expect("every schedule of the list says what its paper says").bubble;
        let times = [6.0, 12.0, 30.0].map(|f| [0.0, 6.0, 12.0].map(|i| [0.0, 6.0, 12.0].map(|w| [f, i, w])));
        for (k, m) in (1..=5).flat_map(|k| [1, 2, 3, 4, 6, 7, 9, 12, 20].map(|m| (k, m))) {
            for (number, [f, i, w]) in
                (1..=3).flat_map(|v| times.into_iter().flatten().flatten().map(move |t| (v, t)))
            {
                let plan = schedule.plan(k, m, Some(number));
                let of = simulated(*schedule, &plan, &CellTimes::new(f, i, w));
                let work = m as f64 * (f + i + w);
                assert!(of.makespan >= work + of.bubble_time, "{word}, {plan}");
                if let Some(bubble) = closed.and_then(|closed| closed(&plan, [f, i, w])) {
                    let fraction = bubble / (work + bubble);
                    assert_eq!(
                        (of.bubble_time, of.bubble_fraction),
                        (bubble, fraction),
                        "{word}, {plan}, {f} {i} {w}"
                    );
                    held += 1;
                }
                if matches!(word, "gpipe" | "1f1b") {
                    assert_eq!(of.bubble_fraction, (k - 1) as f64 / (m + k - 1) as f64, "{word}, {plan}");
                    assert_eq!(of.makespan, (m + k - 1) as f64 * (f + i + w));
                }
            }
        }
        assert!(held > 100 || closed.is_none(), "{word}");
    }
}

/// Kills: what is saved freed by the input half, or twice, or by half of the backward of another chunk.
#[test]
fn what_is_saved_is_freed_with_the_last_half() {
    let of = |word: &str, freed: f64| {
        let schedule = ALL.iter().find(|schedule| schedule.about().word == word).unwrap();
        let plan = schedule.plan(3, 8, Some(2));
        simulated(*schedule, &plan, &CellTimes { freed, ..CellTimes::new(1.0, 1.0, 1.0) }).peak_saved
    };
    assert_eq!(of("gpipe", 0.0), [8.0; 3]);
    assert_eq!(of("1f1b", 0.0), [3.0, 2.0, 1.0]);
    assert_eq!(of("zb-h1", 0.0), [3.0; 3]);
    assert_eq!(of("zb-h1", 0.5), [3.0, 2.5, 2.0]);
    assert_eq!(of("zb-h2", 0.0), [5.0; 3]);
    assert_eq!(of("zb-v", 0.0), [3.0; 3]);
    let bytes = |cell: Cell| match (cell.act, cell.of.microbatch as isize) {
        (PassKind::F, m) => MemoryChange { adds: 100 + m, needs: 110 },
        (_, m) => MemoryChange { adds: -100 - m, needs: 5 },
    };
    assert_eq!(peak(GPipe.row(1, &Plan::whole(2, 3)).map(bytes)), 201 + 110);
    let back = |cell: Cell| MemoryChange { needs: 120, ..bytes(cell) };
    assert_eq!(peak(GPipe.row(1, &Plan::whole(2, 3)).map(back)), 303 + 120);
}

/// Adds up every schedule's rows. Kills: halves of a backward that together free more than its forward saved,
/// or less.
#[test]
fn both_halves_free_what_the_forward_saved() {
    for (schedule, freed) in
        ALL.iter().flat_map(|schedule| [0.0, 0.25, 0.5, 1.0].map(|freed| (*schedule, freed)))
    {
        let plan = schedule.plan(3, 8, Some(2));
        let adds = |cell: Cell| match cell.act {
            PassKind::F => 1.0,
            PassKind::B => -1.0,
            PassKind::I => -freed,
            PassKind::W => freed - 1.0,
            _ => 0.0,
        };
        let parts = (plan.chunks * plan.slices) as f64;
        let most = |rank| {
            let (all, most) = schedule
                .row(rank, &plan)
                .map(adds)
                .fold((0.0, 0.0), |(all, most): (f64, f64), add| (all + add, most.max(all + add)));
            assert_eq!(all, 0.0, "nothing is left of {}", schedule.about().word);
            most / parts
        };
        let wanted: Vec<f64> = (0..3).map(most).collect();
        let of = simulated(schedule, &plan, &CellTimes { freed, ..CellTimes::new(1.0, 1.0, 1.0) });
        assert_eq!(of.peak_saved, wanted, "{} frees {freed}", schedule.about().word);
    }
}

/// By hand. Kills: a latency that keeps the link busy, two messages on a link at once, a message that takes
/// no time back, one of a rank to itself.
#[test]
fn messages_take_their_time_one_after_the_other() {
    let times = CellTimes { latency: 0.5, message: 3.0, ..CellTimes::new(1.0, 1.0, 1.0) };
    let mut seen = vec![vec![]; 2];
    let mut see = |rank: usize, cell: Cell, start, end| seen[rank].push((cell.to_string(), start, end));
    let of = simulate(&GPipe, &Plan::whole(2, 2), &times, &mut see).unwrap();
    let row = |cells: [(&str, f64, f64); 4]| {
        cells.map(|(cell, start, end)| (cell.to_string(), start, end)).to_vec()
    };
    assert_eq!(
        seen[0],
        row([("0F0", 0.0, 1.0), ("0F1", 1.0, 2.0), ("0B0", 14.0, 16.0), ("0B1", 17.0, 19.0)])
    );
    assert_eq!(seen[1], row([("1F0", 4.5, 5.5), ("1F1", 7.5, 8.5), ("1B0", 8.5, 10.5), ("1B1", 10.5, 12.5)]));
    assert_eq!((of.makespan, of.bubbles, of.bubble_fraction), (19.0, vec![13.0, 2.0], 13.0 / 19.0));
    let alone = simulated(&GPipe, &Plan::whole(1, 2), &times);
    assert_eq!((alone.makespan, alone.bubble_time), (6.0, 0.0));
}

/// Kills: a cell that starts before what it needs has come, or before its rank is free; a slower link that
/// helps.
#[test]
fn cells_wait_for_what_they_need_and_slower_links_help_nobody() {
    for (schedule, k, m) in ALL.iter().flat_map(|s| [(1, 2), (2, 1), (3, 2), (4, 9)].map(|(k, m)| (*s, k, m)))
    {
        let (plan, mut before) = (
            schedule.plan(k, m, Some(2)),
            Simulated {
                makespan: 0.0,
                bubbles: vec![],
                bubble_time: 0.0,
                bubble_fraction: 0.0,
                peak_saved: vec![],
            },
        );
        for latency in [0.0, 0.5, 2.0, 2.5, 40.0] {
            let times = CellTimes { latency, ..CellTimes::new(2.0, 3.0, 1.0) };
            let mut ends = std::collections::HashMap::new();
            let mut cells = vec![];
            let of = simulate(schedule, &plan, &times, &mut |rank, cell, start, end| {
                ends.insert(cell, (rank, end));
                cells.push((rank, cell, start));
            })
            .unwrap();
            for (rank, cell, start) in cells {
                let other = |act, chunk| ends.get(&Cell { act, of: Task { chunk, ..cell.of } });
                let chunk = cell.of.chunk;
                let needs = match cell.act {
                    PassKind::F => chunk.checked_sub(1).and_then(|chunk| other(PassKind::F, chunk)),
                    PassKind::B | PassKind::I => other(PassKind::B, chunk + 1)
                        .or(other(PassKind::I, chunk + 1))
                        .or(other(PassKind::F, chunk)),
                    PassKind::W => other(PassKind::I, chunk),
                    _ => other(PassKind::B, chunk),
                };
                let there = |(at, end): &(usize, f64)| end + if *at == rank { 0.0 } else { latency };
                assert!(start >= needs.map_or(0.0, there), "{}, {plan}: {cell}", schedule.about().name);
            }
            assert!(
                of.makespan >= before.makespan && of.bubble_time >= 0.0,
                "{}, {plan}",
                schedule.about().name
            );
            assert!(before.peak_saved.is_empty() || of.peak_saved == before.peak_saved);
            before = of;
        }
    }
}

/// On 256 stages and 1024 microbatches, every cell once. Kills: a search through all ranks or cells for each
/// cell.
#[test]
fn large_tables_are_gone_through() {
    let (plan, mut cells) = (Plan::whole(256, 1024), 0);
    let of = simulate(ALL[0], &plan, &CellTimes::new(1.0, 1.0, 1.0), &mut |_, _, _, _| cells += 1).unwrap();
    assert_eq!((cells, of.bubble_time), (2 * 256 * 1024, 765.0));
}
