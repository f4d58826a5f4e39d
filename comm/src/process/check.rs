//! Checks of reports from another process, before they are used: a rank, a place in a group, a length, a
//! list, a range. A report that passes cannot lead a kernel, copy or sum out of bounds. Its meaning is
//! compared with the call of this process' rank, as among threads.
use super::frame::{EngineFunction, GroupCalls, no_frame};
use crate::{Call, Counts, Op};
use std::io;
use tensor::quoted::sentence;

/// Largest size of one element, in bytes.
const LARGEST: usize = 64;

fn holds(is_so: bool) -> io::Result<()> {
    if is_so { Ok(()) } else { Err(no_frame()) }
}

/// Checks calls that a rank reports, in a world of `ranks`; returns its place in their group.
pub(super) fn calls(calls: &mut GroupCalls, rank: usize, ranks: usize) -> io::Result<usize> {
    let GroupCalls { way, members, calls } = calls;
    let place = place(members, rank, ranks)?;
    holds(calls.len() == 1 || *way == EngineFunction::Start && !calls.is_empty())?;
    calls.iter_mut().try_for_each(|reported| call(reported, *way, place, [members.len(), ranks]))?;
    Ok(place)
}

/// Returns the place of a rank in a group of these members, in a world of `ranks` ranks.
fn place(members: &[usize], rank: usize, ranks: usize) -> io::Result<usize> {
    let mut seen = vec![false; ranks];
    for &member in members {
        holds(member < ranks && !std::mem::replace(&mut seen[member], true))?;
    }
    members.iter().position(|&member| member == rank).ok_or_else(no_frame)
}

/// Checks a call that the rank at `place` of `members` ranks reports, in a world of `ranks`; shortens its
/// sentence.
fn call(call: &mut Call, way: EngineFunction, place: usize, [members, ranks]: [usize; 2]) -> io::Result<()> {
    let size = |factors: &[usize]| {
        let product = factors.iter().try_fold(1usize, |all, factor| all.checked_mul(*factor));
        product.filter(|all| isize::try_from(*all).is_ok())
    };
    // Every product of sizes that the call uses, and room for the blocks of all members.
    holds(size(&[call.rows.max(1), call.cols.max(1), call.elem.size, members]).is_some())?;
    holds((1..=LARGEST).contains(&call.elem.size) && call.root < members)?;
    holds(call.peer.is_none_or(|peer| peer < ranks))?;
    let reduces = matches!(call.op, Op::AllReduce | Op::ReduceScatter);
    match way {
        EngineFunction::Values => {
            holds(call.elem.join.is_none() && matches!(call.op, Op::AllGather | Op::AllReduce))?;
        }
        EngineFunction::Post => holds(call.elem.join.is_some() && call.is_message() && call.root != place)?,
        EngineFunction::Now | EngineFunction::Start => {
            holds(call.elem.join.is_some() && !call.is_message() && reduces == call.reduce.is_some())?;
        }
    }
    let rows = |counts: &[usize]| {
        holds(counts.len() == members)?;
        let sum =
            counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count)).ok_or_else(no_frame)?;
        holds(size(&[sum.max(1), call.cols.max(1), call.elem.size]).is_some())?;
        Ok::<_, io::Error>(sum)
    };
    match &call.counts {
        None => {}
        Some(Counts::Of(counts)) => {
            let sum = rows(counts)?;
            holds(match call.op {
                Op::ReduceScatter => sum == call.rows,
                Op::AllGather => counts[place] == call.rows,
                _ => false,
            })?;
        }
        Some(Counts::Between(give, take)) => {
            let (given, _) = (rows(give)?, rows(take)?);
            holds(call.op == Op::AllToAll && given == call.rows)?;
        }
        Some(Counts::Columns(n)) => {
            let room = call.cols.checked_mul(members).is_some_and(|all| *n <= all);
            holds(
                call.op == Op::AllGather && room && size(&[call.rows.max(1), *n, call.elem.size]).is_some(),
            )?;
        }
    }
    call.reported = call.reported.take().map(|reported| sentence(&reported).into());
    Ok(())
}

/// Returns the bytes that come with a call: those that the member at `to`, if this process' rank is one,
/// takes; their start in the rank's window, and their number. No elements come if the place joins (`joins`).
pub(super) fn carried(
    call: &Call,
    way: EngineFunction,
    members: usize,
    from: usize,
    to: Option<usize>,
    joins: bool,
) -> [usize; 2] {
    let range = match to.filter(|_| way == EngineFunction::Values || !joins) {
        None => 0..0,
        Some(_) if way == EngineFunction::Values => 0..call.elements(),
        Some(to) => call.wanted(members, from, to),
    };
    [range.start, range.len()].map(|elements| elements * call.elem.size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reduce;
    use crate::call::Elem;
    use std::sync::Arc;

    const GROUP: [usize; 2] = [3, 8];

    fn sum(rows: usize, cols: usize) -> Call {
        Call { op: Op::AllReduce, reduce: Some(Reduce::Sum), rows, cols, ..Call::barrier() }
    }
    fn list(counts: &[usize]) -> Arc<[usize]> {
        counts.into()
    }
    /// True if a call passes that the second of three ranks reports.
    fn passes(reported: &Call, way: EngineFunction) -> bool {
        call(&mut reported.clone(), way, 1, GROUP).is_ok()
    }

    /// Kills: a group with a rank that is not there, is there twice, or without the one who tells.
    #[test]
    fn a_rank_has_one_place_in_its_group() {
        assert_eq!(place(&[5, 2, 0], 2, 6).unwrap(), 1);
        for (members, rank) in
            [(&[5, 2, 6][..], 2), (&[5, 2, 5], 2), (&[5, 0], 2), (&[], 2), (&[usize::MAX, 2], 2)]
        {
            assert!(place(members, rank, 6).is_err(), "{members:?}");
        }
    }

    /// Kills: a field of a call that is used unchecked.
    #[test]
    fn each_field_of_a_call_is_checked() {
        let values = Call { elem: Elem { join: None, ..sum(2, 2).elem }, op: Op::AllGather, ..sum(2, 2) };
        let send = Call { op: Op::Send, reduce: None, peer: Some(7), root: 2, ..sum(2, 2) };
        let scatter = |counts: &[usize], rows| Call {
            op: Op::ReduceScatter,
            counts: Some(Counts::Of(list(counts))),
            ..sum(rows, 2)
        };
        let gather = |counts| Call { op: Op::AllGather, reduce: None, counts, ..sum(4, 2) };
        let of = |counts: &[usize]| gather(Some(Counts::Of(list(counts))));
        let all_to_all = |give: &[usize], take: &[usize]| Call {
            op: Op::AllToAll,
            ..gather(Some(Counts::Between(list(give), list(take))))
        };
        let right = [
            (sum(2, 3), EngineFunction::Now),
            (sum(0, 3), EngineFunction::Start),
            (values.clone(), EngineFunction::Values),
            (send.clone(), EngineFunction::Post),
            (scatter(&[1, 0, 2], 3), EngineFunction::Now),
            (of(&[1, 4, 0]), EngineFunction::Start),
            (gather(Some(Counts::Columns(6))), EngineFunction::Now),
            (all_to_all(&[1, 3, 0], &[0, 9, 1]), EngineFunction::Now),
        ];
        for (call, way) in &right {
            assert!(passes(call, *way), "{call} {way:?}");
        }
        let max = usize::MAX;
        let sized = |size| Call { elem: Elem { size, ..sum(2, 2).elem }, ..sum(2, 2) };
        let wrong = [
            (sum(max, 2), EngineFunction::Now),
            (sum(1 << 40, 1 << 22), EngineFunction::Now),
            (sized(0), EngineFunction::Now),
            (sized(LARGEST + 1), EngineFunction::Now),
            (Call { root: 3, ..sum(2, 2) }, EngineFunction::Now),
            (Call { peer: Some(8), ..sum(2, 2) }, EngineFunction::Now),
            (Call { reduce: None, ..sum(2, 2) }, EngineFunction::Now),
            (Call { op: Op::AllGather, ..sum(2, 2) }, EngineFunction::Now),
            (sum(2, 2), EngineFunction::Values), // its window would be read as a list
            (values, EngineFunction::Now),
            (send.clone(), EngineFunction::Now),
            (Call { root: 1, ..send }, EngineFunction::Post),
            (sum(2, 2), EngineFunction::Post),
            (scatter(&[1, 2], 3), EngineFunction::Now),
            (scatter(&[1, 1, 2], 3), EngineFunction::Now),
            (scatter(&[max, 2, 2], 3), EngineFunction::Now),
            (of(&[1, 3, 0]), EngineFunction::Now),
            (of(&[1 << 62, 4, 0]), EngineFunction::Now),
            (gather(Some(Counts::Columns(7))), EngineFunction::Now),
            (Call { counts: Some(Counts::Columns(1)), ..sum(2, 2) }, EngineFunction::Now),
            (all_to_all(&[1, 2, 0], &[0, 9, 1]), EngineFunction::Now),
            (all_to_all(&[1, 3, 0], &[0, 9]), EngineFunction::Now),
            (all_to_all(&[1, 3, 0], &[0, 1 << 60, 1]), EngineFunction::Now),
        ];
        for (call, way) in &wrong {
            assert!(!passes(call, *way), "{call} {way:?}");
        }
        let reported = Some(format!("\u{1b}[31m{}", "x".repeat(9999)).into());
        let mut long = Call { reported, ..sum(2, 2) };
        call(&mut long, EngineFunction::Now, 1, GROUP).unwrap();
        let reported = long.reported.unwrap();
        assert!(reported.starts_with("\\u{1b}[31mxx") && reported.len() < 400, "{reported}");
    }

    /// Kills: elements that a rank does not take and waits for, or takes from another place.
    #[test]
    fn what_comes_with_a_call_follows_from_it() {
        let scatter = Call { op: Op::ReduceScatter, ..sum(6, 5) };
        let arrives = |way, to, joins| carried(&scatter, way, 3, 1, to, joins);
        let own = [2 * 10 * 4, 10 * 4]; // the third rank's block of ten elements
        assert_eq!(arrives(EngineFunction::Now, Some(2), false), own);
        assert_eq!(arrives(EngineFunction::Now, None, false)[1], 0, "no member");
        assert_eq!(arrives(EngineFunction::Now, Some(2), true)[1], 0, "the place joins");
        for joins in [false, true] {
            assert_eq!(arrives(EngineFunction::Values, Some(2), joins), [0, 120]);
        }
    }
}
