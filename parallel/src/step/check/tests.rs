use super::*;
use crate::pipeline::{ALL, gpipe::GPipe, looped_bfs::LoopedBfs};
use layers::StrategyInfo;

/// A schedule whose table something was done to.
struct Changed(&'static dyn Schedule, Vec<Vec<Cell>>);

impl Schedule for Changed {
    fn about(&self) -> &'static StrategyInfo {
        self.0.about()
    }
    fn rank_of(&self, chunk: usize, plan: &Plan) -> usize {
        self.0.rank_of(chunk, plan)
    }
    fn row(&self, rank: usize, _: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        Box::new(self.1[rank].clone().into_iter())
    }
    fn updates_each(&self) -> bool {
        self.0.updates_each()
    }
    fn version(&self, cell: Cell, plan: &Plan) -> usize {
        self.0.version(cell, plan)
    }
}

fn rows(schedule: &dyn Schedule, plan: &Plan) -> Vec<Vec<Cell>> {
    (0..plan.ranks).map(|rank| schedule.row(rank, plan).collect()).collect()
}

fn changed(
    schedule: &'static dyn Schedule,
    plan: &Plan,
    change: impl FnOnce(&mut Vec<Vec<Cell>>),
) -> Result<PeakNeeds, String> {
    let mut rows = rows(schedule, plan);
    change(&mut rows);
    check(&Changed(schedule, rows), plan)
}

/// Returns true if a table can run, as the words say it: a cell goes as soon as all that it needs has gone,
/// whoever has it, and messages are needed in the order in which they are given.
fn goes(schedule: &dyn Schedule, rows: &[Vec<Cell>], plan: &Plan) -> bool {
    let (mut at, mut did, mut given) = (vec![0; rows.len()], Vec::new(), Vec::<(Cell, usize)>::new());
    let has = |did: &[Cell], cell: Cell| {
        did.contains(&cell) || cell.act == PassKind::B && did.contains(&Cell { act: PassKind::I, ..cell })
    };
    let on = |cell: Cell| schedule.rank_of(cell.of.chunk as usize, plan);
    loop {
        let next = (0..rows.len()).find(|&rank| {
            let cell = rows[rank].get(at[rank]);
            cell.is_some_and(|cell| needed(*cell, plan).all(|(before, _)| has(&did, before)))
        });
        let Some(rank) = next else { break };
        let cell = rows[rank][at[rank]];
        for (before, _) in needed(cell, plan).filter(|(before, by)| by.is_some() && on(*before) != rank) {
            let way = |cell: &Cell, to: usize| (on(*cell), to, cell.act == PassKind::F);
            let first = given.iter().position(|(cell, to)| way(cell, *to) == way(&before, rank)).unwrap();
            if given.remove(first).0.of != before.of {
                return false;
            }
        }
        let chunk =
            if cell.act == PassKind::F { Some(cell.of.chunk + 1) } else { cell.of.chunk.checked_sub(1) };
        let to = chunk.filter(|chunk| (*chunk as usize) < plan.all_chunks() && cell.act.passes());
        given.extend(to.map(|to| (cell, schedule.rank_of(to as usize, plan))).filter(|(_, to)| *to != rank));
        did.push(cell);
        at[rank] += 1;
    }
    did.len() == rows.iter().map(Vec::len).sum::<usize>()
        && rows.iter().all(|row| !schedule.updates_each() || versions_go(schedule, row, plan))
}

/// Returns true if updates of a row are in order, each after its own backward and no other one, and each cell
/// reads a version that is made before it, and that no update before it drops.
fn versions_go(schedule: &dyn Schedule, row: &[Cell], plan: &Plan) -> bool {
    let at = |act, m: usize| row.iter().position(|cell| (cell.act, cell.of.microbatch as usize) == (act, m));
    let reads = |m: usize| {
        let of = Task { microbatch: m as u32, ..row[0].of };
        schedule.version(Cell { act: PassKind::F, of }, plan)
    };
    (0..plan.microbatches).all(|m| {
        let [f, b, u] = [PassKind::F, PassKind::B, PassKind::U].map(|act| at(act, m).unwrap());
        let is_before =
            |version: usize, cell: usize| version == 0 || at(PassKind::U, version - 1) < Some(cell);
        let kept =
            |cell| (0..m).all(|other| at(PassKind::U, other) > Some(cell) || reads(other + 1) <= reads(m));
        let after_last = m == 0 || at(PassKind::U, m - 1) < Some(b);
        after_last && b < u && is_before(reads(m), f) && kept(f) && kept(b)
    })
}

/// Every cell of every schedule deleted, doubled, moved to another row, or swapped with its neighbour. Kills:
/// a cell that is missing, comes twice or on another rank and is not refused; an order that ranks cannot keep
/// and that is not refused, one that they can keep and that is.
#[test]
fn mutants_of_tables_are_refused_or_go() {
    let (mut refused, mut go) = (0, 0);
    for (schedule, (ranks, m)) in
        ALL.iter().flat_map(|s| [(1, 2), (2, 1), (2, 3), (3, 2), (3, 4)].map(|of| (*s, of)))
    {
        let plan = schedule.plan(ranks, m, None);
        let whole = rows(schedule, &plan);
        for (rank, n) in (0..ranks).flat_map(|rank| (0..whole[rank].len()).map(move |n| (rank, n))) {
            let says = |change: &dyn Fn(&mut Vec<Vec<Cell>>)| changed(schedule, &plan, |rows| change(rows));
            let word = schedule.about().word;
            assert!(says(&|rows| _ = rows[rank].remove(n)).is_err(), "{word} {plan}: {rank} {n} deleted");
            let double = says(&|rows| rows[rank].insert(n, whole[rank][n]));
            assert!(double.is_err(), "{word} {plan}: {rank} {n} doubled");
            let moved = says(&|rows| {
                let cell = rows[rank].remove(n);
                rows[(rank + 1) % ranks].push(cell);
            });
            assert!(ranks == 1 || moved.is_err(), "{word} {plan}: {rank} {n} moved");
            if n > 0 {
                let mut swapped = whole.clone();
                swapped[rank].swap(n - 1, n);
                let says = check(&Changed(schedule, swapped.clone()), &plan);
                assert_eq!(
                    says.is_ok(),
                    goes(schedule, &swapped, &plan),
                    "{word} {plan}: {rank} {n} swapped: {says:?}"
                );
                *(if says.is_ok() { &mut go } else { &mut refused }) += 1;
            }
        }
    }
    assert!(refused > 100 && go > 100, "{refused} refused, {go} go");
}

/// Kills: a refusal that does not say which cell, or why.
#[test]
fn what_is_wrong_with_cells_is_said() {
    let plan = Plan::whole(2, 1);
    let says = |change: fn(&mut Vec<Vec<Cell>>)| changed(&GPipe, &plan, change).unwrap_err();
    let missing = says(|rows| _ = rows[1].pop());
    let wanted = "the schedule GPipe, 2 ranks, 1 microbatch: the numbers of cells of a task are 1F0 1, \
                  1B0 0, 1I0 0 and 1W0 0; it must have one forward, and one backward or both of its halves";
    assert_eq!(missing, wanted);
    let moved = says(|rows| rows.swap(0, 1));
    assert!(moved.ends_with("1F0 is in the row of rank 0, but its chunk is on rank 1"), "{moved}");
    let beyond = says(|rows| rows[0][0].of.microbatch = 7);
    assert!(beyond.ends_with("0F7 is outside of the step"), "{beyond}");
    let early = says(|rows| rows[1].swap(0, 1));
    assert!(early.ends_with(": rank 1 has 1B0 before 1F0"), "{early}");
    let halves = says(|rows| {
        rows[1] = vec![(PassKind::W, 0), (PassKind::F, 0), (PassKind::I, 0)].into_iter().map(cell).collect();
    });
    assert!(halves.ends_with(": rank 1 has 1W0 before 1I0"), "{halves}");
}

fn cell((act, microbatch): (PassKind, u32)) -> Cell {
    Cell { act, of: Task::new(1, microbatch) }
}

/// Deadlocks made by hand, of two ranks and of three, one beside ranks that wait for them and are not part of
/// it. Kills: an order that is refused for no reason, a cycle that is not the shortest or not one, messages
/// that are taken for others.
#[test]
fn a_deadlock_is_a_cycle_of_ranks() {
    let says = |schedule, plan: &Plan, change: fn(&mut Vec<Vec<Cell>>)| changed(schedule, plan, change);
    let plan = Plan::whole(4, 2);
    let two = says(&GPipe, &plan, |rows| rows[1].swap(1, 2)).unwrap_err();
    let wanted = ": rank 1 waits to receive gradient of 0 from rank 2 for chunk 1, to run 1B0, and rank 2 \
                  waits to receive activation of 1 from rank 1 for chunk 2, to run 2F1";
    assert!(two.ends_with(wanted), "{two}");
    let three =
        says(&LoopedBfs, &LoopedBfs.plan(3, 1, None), |rows| rows.iter_mut().for_each(|row| row.swap(0, 1)));
    let wanted = ": rank 0 waits to receive activation of 0 from rank 2 for chunk 3, to run 3F0, and rank 2 \
                  waits to receive activation of 0 from rank 1 for chunk 5, to run 5F0, and rank 1 waits to \
                  receive activation of 0 from rank 0 for chunk 4, to run 4F0";
    assert!(three.as_ref().is_err_and(|why| why.ends_with(wanted)), "{three:?}");
    let other_way = says(&GPipe, &plan, |rows| rows.iter_mut().for_each(|row| row[2..].reverse()));
    assert_eq!(
        other_way,
        Ok(PeakNeeds { saved: vec![2; 4], waiting: vec![1; 4], versions: vec![1; 4] }),
        "the last microbatch back first"
    );
    let crossed = says(&GPipe, &Plan::whole(2, 2), |rows| rows[1].swap(0, 1)).unwrap_err();
    let wanted = ": rank 0 is first to send activation of 0 to rank 1 for chunk 1, at 0F0, but rank 1 is \
                  first to receive activation of 1 from rank 0 for chunk 1, at 1F1";
    assert!(crossed.ends_with(wanted), "{crossed}");
}

/// By hand: each of two ranks has a message for the other, and posts both in one batch, or the receive behind
/// a cell. Kills: a send that something keeps for its receiver, a batch that ends with its first message or
/// goes beyond the next cell, a message that is taken for another.
#[test]
fn a_batch_is_posted_together_and_waited_for() {
    let (forth, back) = (Task::new(1, 0), Task::new(0, 0));
    let run = |chunk| Action::Run {
        cell: Cell { act: PassKind::W, of: Task::new(chunk, 0) },
        last: false,
        done: false,
    };
    let sends = [Action::Send(Payload::Activation, forth, 1), Action::Send(Payload::Gradient, back, 0)];
    let receives =
        [Action::Receive(Payload::Gradient, back, 1), Action::Receive(Payload::Activation, forth, 0)];
    let together = [0, 1].map(|rank| vec![run(rank), sends[rank], receives[rank], run(rank)]);
    assert_eq!(meet::meet(&together), Ok(()));
    let other_way = [0, 1].map(|rank| vec![receives[rank], sends[rank]]);
    assert_eq!(meet::meet(&other_way), Ok(()));
    let apart = [0, 1].map(|rank| vec![sends[rank], run(rank), receives[rank]]);
    let why = "rank 0 waits for ever to send activation of 0 to rank 1 for chunk 1";
    assert_eq!(meet::meet(&apart), Err(why.into()));
    let nobody = [vec![sends[0]], vec![run(1)]];
    assert_eq!(meet::meet(&nobody), Err(why.into()));
    let other = [vec![sends[0]], vec![Action::Receive(Payload::Activation, Task::new(1, 7), 0)]];
    let why = "rank 0 is to send activation of 0 to rank 1 for chunk 1, but rank 1 is to receive activation \
               of 7 from rank 0 for chunk 1";
    assert_eq!(meet::meet(&other), Err(why.into()));
}

/// A receive that stood right before the cell that needs it would do for some tables alone. Kills: a play of
/// messages in which none waits for another, one in which tables wait that need not.
#[test]
fn tables_that_run_ahead_need_receives_in_the_tick_of_their_sends() {
    let meets = |schedule: &&&dyn Schedule| {
        let plan = schedule.plan(4, 12, None);
        let mut rows = lowered(**schedule, &plan, true).unwrap();
        assert_eq!(meet::meet(&rows), Ok(()));
        for row in &mut rows {
            let receives: Vec<_> = row.extract_if(.., |step| matches!(step, Action::Receive(..))).collect();
            for receive in receives {
                let is_for =
                    |step: &Action| matches!(step, Action::Run { cell, .. } if receive.is_for(*cell));
                let at = row.iter().position(is_for).unwrap();
                row.insert(at, receive);
            }
        }
        meet::meet(&rows).is_ok()
    };
    let words: Vec<_> = ALL.iter().filter(meets).map(|schedule| schedule.about().word).collect();
    for (word, meets) in
        [("1f1b", true), ("naive", true), ("gpipe", true), ("zb-h1", true), ("seq1f1b", true)]
            .into_iter()
            .chain(["interleaved", "looped-bfs", "zb-h2", "zb-v", "dualpipe-v"].map(|word| (word, false)))
    {
        assert_eq!(words.contains(&word), meets, "{word}");
    }
}

/// Steps, not cells. Kills: a message that is sent into nowhere, or received from nobody; gradients that are
/// complete too early, too late or never; a cell whose message is not there.
#[test]
fn steps_are_checked_and_not_believed() {
    let plan = Plan::whole(2, 2);
    let rank_of = |chunk: u16| chunk as usize;
    let says = |change: &dyn Fn(&mut Vec<Vec<Action>>)| {
        let mut rows = lowered(&GPipe, &plan, true).unwrap();
        change(&mut rows);
        steps(&plan, rank_of, &rows)
    };
    assert_eq!(says(&|_| ()), Ok(PeakNeeds { saved: vec![2, 2], waiting: vec![1, 1], versions: Vec::new() }));
    for (rank, n) in (0..2).flat_map(|rank| (0..8).map(move |n| (rank, n))) {
        let step = lowered(&GPipe, &plan, true).unwrap()[rank][n];
        let exited = says(&|rows| _ = rows[rank].remove(n));
        assert!(exited.is_err() || matches!(step, Action::Run { .. }), "{step}");
        let flagged = says(&|rows| {
            if let Action::Run { last, .. } = &mut rows[rank][n] {
                *last = !*last;
            }
        });
        assert!(flagged.is_err() || !matches!(step, Action::Run { .. }), "{step}");
        let elsewhere = says(&|rows| {
            if let Action::Send(_, _, peer) | Action::Receive(_, _, peer) = &mut rows[rank][n] {
                *peer = rank;
            }
        });
        assert!(elsewhere.is_err() || matches!(step, Action::Run { .. }), "{step}");
    }
    let early = says(&|rows| rows[0].swap(0, 1));
    assert_eq!(
        early,
        Err("rank 0 is to send activation of 0 to rank 1 for chunk 1 before the cell that gives it".into())
    );
    let twice = says(&|rows| {
        let of = Task::new(1, 0);
        rows[0].insert(2, Action::Send(Payload::Activation, of, 1));
        rows[1].insert(0, Action::Receive(Payload::Activation, of, 0));
    });
    assert_eq!(
        twice,
        Err("rank 0 is to send activation of 0 to rank 1 for chunk 1 before the cell that gives it".into())
    );
    let more = says(&|rows| rows[1].insert(0, Action::Receive(Payload::Gradient, Task::new(0, 0), 0)));
    assert_eq!(more, Err("rank 1 receives 1 messages more than its cells need".into()));
}
