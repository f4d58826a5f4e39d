//! Whether a table can be: gone through on paper, without numbers, as the [executor](crate::Stages) goes through it.
use super::{Act, Cell, Payload, Plan, Step, Unit, lowered};
use crate::Schedule;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Whether every chunk is gone through once with each microbatch, forward and backward, on its rank, in an order in which
/// no rank waits for ever.
///
/// # Errors
/// One sentence on the first cell that is wrong.
pub fn check(schedule: &dyn Schedule, plan: &Plan) -> Result<(), String> {
    schedule.fits(plan)?;
    let named = |why| format!("the schedule {}, {plan}: {why}", schedule.about().name);
    complete(schedule, plan).and_then(|()| gone_through(schedule, plan)).map_err(named)
}

pub(super) fn units(plan: &Plan) -> impl Iterator<Item = Unit> {
    let Plan { slices, microbatches, .. } = *plan;
    let of = move |chunk| {
        let all = (0..microbatches as u32).flat_map(move |m| (0..slices as u16).map(move |slice| (m, slice)));
        all.map(move |(microbatch, slice)| Unit { slice, ..Unit::new(chunk, microbatch) })
    };
    (0..plan.all_chunks()).flat_map(of)
}

/// Each cell once, on the rank that has its chunk.
fn complete(schedule: &dyn Schedule, plan: &Plan) -> Result<(), String> {
    let mut times = BTreeMap::<_, usize>::new();
    let known: BTreeSet<_> = units(plan).collect();
    for rank in 0..plan.ranks {
        for cell in schedule.row(rank, plan) {
            if !known.contains(&cell.of) {
                return Err(format!("{cell} is none of the step's"));
            }
            let at = schedule.rank_of(cell.of.chunk as usize, plan);
            if at != rank {
                return Err(format!("{cell} is in the row of rank {rank}, and its chunk on rank {at}"));
            }
            *times.entry((cell.of, cell.act as usize)).or_default() += 1;
        }
    }
    for of in known {
        let [f, b, i, w] =
            [Act::F, Act::B, Act::I, Act::W].map(|act| times.get(&(of, act as usize)).copied().unwrap_or(0));
        if f != 1 || !matches!([b, i, w], [1, 0, 0] | [0, 1, 1]) {
            let cell = |act| Cell { act, of };
            return Err(format!(
                "{} comes {f} times, {} {b}, {} {i} and {} {w}; it must be forward once, and backward once, whole or \
                 in both halves",
                cell(Act::F),
                cell(Act::B),
                cell(Act::I),
                cell(Act::W)
            ));
        }
    }
    Ok(())
}

/// All ranks, each as far as it can go without the others, again and again.
fn gone_through(schedule: &dyn Schedule, plan: &Plan) -> Result<(), String> {
    let rows: Vec<Vec<Step>> = (0..plan.ranks).map(|rank| lowered(schedule, plan, rank)).collect();
    let (mut at, mut under_way) = (vec![0; plan.ranks], UnderWay::new());
    let mut done = BTreeSet::new();
    loop {
        let before = at.clone();
        for (rank, row) in rows.iter().enumerate() {
            while let Some(step) = row.get(at[rank]) {
                if !goes(rank, step, (plan, &mut under_way, &mut done))? {
                    break;
                }
                at[rank] += 1;
            }
        }
        let stuck = (0..plan.ranks).find(|&rank| at[rank] < rows[rank].len());
        match stuck {
            None => return Ok(()),
            Some(rank) if at == before => {
                return Err(format!("rank {rank} waits for ever: {}", rows[rank][at[rank]]));
            }
            Some(_) => {}
        }
    }
}

/// What each rank has sent each other that has not come: in order.
type UnderWay = BTreeMap<(usize, usize), VecDeque<(Payload, Unit)>>;

/// Whether a rank can do a step now; if so, it is done.
fn goes(
    rank: usize,
    step: &Step,
    (plan, under_way, done): (&Plan, &mut UnderWay, &mut BTreeSet<(Unit, usize)>),
) -> Result<bool, String> {
    match *step {
        Step::Run { cell: cell @ Cell { act, of }, .. } => {
            let has = |act: Act, of: Unit| done.contains(&(of, act as usize));
            let next = Unit { chunk: of.chunk + 1, ..of };
            let last = next.chunk as usize == plan.all_chunks();
            let ready = match act {
                Act::F => of.chunk == 0 || has(Act::F, Unit { chunk: of.chunk - 1, ..of }),
                Act::B | Act::I => has(Act::F, of) && (last || has(Act::B, next) || has(Act::I, next)),
                Act::W => has(Act::I, of),
            };
            if !ready {
                return Err(format!("{cell} comes before what it needs"));
            }
            done.insert((of, act as usize));
        }
        Step::Send(what, of, to) => {
            let still = |((from, _), all): (&(usize, usize), &VecDeque<(Payload, Unit)>)| {
                *from == rank && all.iter().any(|(kind, _)| *kind == what)
            };
            if under_way.iter().any(still) {
                return Ok(false); // a rank has one of a kind under way
            }
            under_way.entry((rank, to)).or_default().push_back((what, of));
        }
        Step::Receive(what, of, from) => match under_way.entry((from, rank)).or_default().pop_front() {
            None => return Ok(false),
            Some(came) if came == (what, of) => {}
            Some((kind, other)) => {
                let sent = Step::Send(kind, other, rank);
                return Err(format!("rank {from} is first to {sent}, and rank {rank} to {step}"));
            }
        },
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::gpipe::GPipe;
    use std::sync::Mutex;

    /// `GPipe`, whose table something was done to.
    struct Changed(Mutex<Vec<Vec<Cell>>>);

    impl Schedule for Changed {
        fn about(&self) -> &'static layers::About {
            GPipe.about()
        }
        fn row(&self, rank: usize, _: &Plan) -> Box<dyn Iterator<Item = Cell>> {
            Box::new(self.0.lock().unwrap()[rank].clone().into_iter())
        }
    }

    fn changed(plan: &Plan, change: impl FnOnce(&mut Vec<Vec<Cell>>)) -> Result<(), String> {
        let mut rows = (0..plan.ranks).map(|rank| GPipe.row(rank, plan).collect()).collect();
        change(&mut rows);
        check(&Changed(Mutex::new(rows)), plan)
    }

    /// Kills: a cell that is missing, comes twice or on another rank and is not refused; a table that is refused for no
    /// reason.
    #[test]
    fn every_cell_is_there_once() {
        for plan in [Plan::whole(1, 1), Plan::whole(2, 3), Plan::whole(3, 2)] {
            assert_eq!(check(&GPipe, &plan), Ok(()));
            for (rank, n) in
                (0..plan.ranks).flat_map(|rank| (0..2 * plan.microbatches).map(move |n| (rank, n)))
            {
                assert!(changed(&plan, |rows| _ = rows[rank].remove(n)).is_err(), "{rank} {n}");
                assert!(changed(&plan, |rows| rows[rank].extend_from_within(n..=n)).is_err(), "{rank} {n}");
            }
        }
        let plan = Plan::whole(2, 1);
        let says = |change: fn(&mut Vec<Vec<Cell>>)| changed(&plan, change).unwrap_err();
        let missing = says(|rows| _ = rows[1].pop());
        assert!(missing.contains(", 2 ranks, 1 microbatch: 1F0 comes 1 times, 1B0 0, "), "{missing}");
        let moved = says(|rows| rows.swap(0, 1));
        assert!(moved.ends_with("1F0 is in the row of rank 0, and its chunk on rank 1"), "{moved}");
        let beyond = says(|rows| rows[0][0].of.microbatch = 7);
        assert!(beyond.ends_with("0F7 is none of the step's"), "{beyond}");
    }

    /// Kills: an order that a rank cannot keep and that is not refused, one that it can keep and that is.
    #[test]
    fn cells_come_after_what_they_need() {
        let plan = Plan::whole(2, 2);
        let says = |change: fn(&mut Vec<Vec<Cell>>)| changed(&plan, change).unwrap_err();
        let early = says(|rows| rows[1].swap(0, 2));
        assert!(early.ends_with("1B0 comes before what it needs"), "{early}");
        let crossed = says(|rows| rows[1].swap(0, 1));
        let wanted = "rank 0 is first to send activation of 0 to rank 1 for chunk 1, and rank 1 to receive activation of 1 \
                      from rank 0 for chunk 1";
        assert!(crossed.ends_with(wanted), "{crossed}");
        let waits = says(|rows| rows[0].swap(1, 2));
        assert!(
            waits.ends_with("rank 0 waits for ever: receive gradient of 0 from rank 1 for chunk 0"),
            "{waits}"
        );
        let other_way = changed(&plan, |rows| rows.iter_mut().for_each(|row| row[2..].reverse()));
        assert_eq!(other_way, Ok(()), "the last microbatch back first");
    }
}
