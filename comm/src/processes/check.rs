//! What another process tells is checked before it is used: a rank, a place in a group, a length, a list, a range. What passes
//! here no kernel, copy or sum can be led astray by; what it means is compared with what this process' rank means, as among
//! threads.
use super::frame::{Way, no_frame, wanted};
use crate::{Call, Counts, Op};
use std::io;
use tensor::quoted::sentence;

/// Bytes of one element, at most.
const LARGEST: usize = 64;

fn holds(is_so: bool) -> io::Result<()> {
    if is_so { Ok(()) } else { Err(no_frame()) }
}

/// The place of a rank in a group of these members, of a world of so many ranks.
pub(super) fn place(members: &[usize], rank: usize, ranks: usize) -> io::Result<usize> {
    let mut seen = vec![false; ranks];
    for &member in members {
        holds(member < ranks && !std::mem::replace(&mut seen[member], true))?;
    }
    members.iter().position(|&member| member == rank).ok_or_else(no_frame)
}

/// A call that a rank at this place of a group of so many tells of, in a world of so many ranks; its sentence is cut.
pub(super) fn call(call: &mut Call, way: Way, place: usize, [members, ranks]: [usize; 2]) -> io::Result<()> {
    let size = |factors: &[usize]| {
        let all = factors.iter().try_fold(1usize, |all, factor| all.checked_mul(*factor));
        all.filter(|all| isize::try_from(*all).is_ok())
    };
    // Every product of sizes that a call has to do with, and room for all members' blocks.
    holds(size(&[call.rows.max(1), call.cols.max(1), call.elem.size, members]).is_some())?;
    holds((1..=LARGEST).contains(&call.elem.size) && call.root < members)?;
    holds(call.peer.is_none_or(|peer| peer < ranks))?;
    let is_message = matches!(call.op, Op::Send | Op::Receive);
    let reduces = matches!(call.op, Op::AllReduce | Op::ReduceScatter);
    match way {
        Way::Values => holds(call.elem.join.is_none() && matches!(call.op, Op::AllGather | Op::AllReduce))?,
        Way::Post => holds(call.elem.join.is_some() && is_message && call.root != place)?,
        Way::Now | Way::Start => {
            holds(call.elem.join.is_some() && !is_message && reduces == call.reduce.is_some())?;
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
    call.told = call.told.take().map(|told| sentence(&told).into());
    Ok(())
}

/// Bytes that come with a call: those that the member at `to`, if this process' rank is one, takes of them; nothing where a place
/// joins. They begin `at` bytes behind the rank's window.
pub(super) fn carried(
    call: &Call,
    way: Way,
    [at, len]: [usize; 2],
    (members, from, to): (usize, usize, Option<usize>),
    joins: bool,
) -> io::Result<()> {
    let range = match to.filter(|_| way == Way::Values || !joins) {
        None => 0..0,
        Some(_) if way == Way::Values => 0..call.elements(),
        Some(to) => wanted(call, members, from, to),
    };
    let [first, bytes] = [range.start, range.len()].map(|elements| elements * call.elem.size);
    holds(len == bytes && (at == first || way == Way::Values))
}
