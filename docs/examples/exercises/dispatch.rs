//! Exercise `dispatch`: rows of tokens sent to the ranks of their experts, and back.
//!
//! ```text
//! out    the list of (token, choice) pairs, sorted by expert    all-to-all
//! back   Y[token] = Σ_choices gate · the expert's row           all-to-all
//! ```
//! Expert `e` of `E` is on rank `e / (E/n)` of `n`. Chapter: experts.
use crate::check::{Compared, Verdict, drawn, judge};
use crate::ranks::{Result, unsolved};
use comm::Op;
use tensor::{F61, Scalar, mix};

/// Returns the number of rows for each rank, and the rows in the order in which they are sent: element `s` is
/// the position in `experts` of the row sent at place `s`. Rows of one expert keep their order.
///
/// `experts` lists the chosen expert of token 0's first choice, of its second, of token 1's first, and so on.
///
/// # Errors
/// None.
pub fn order(experts: &[usize], all: usize, ranks: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    unsolved((experts, all, ranks)) // your code takes this line's place
}

/// Returns `Y`: for each token the sum over its choices of gate times row. `rows` came back in the order in
/// which they were sent; `gates` are in the order of the list; a token has `choices` choices and a row has
/// `width` elements.
///
/// # Errors
/// None.
pub fn combine(
    rows: &[F61],
    order: &[usize],
    gates: &[F61],
    [choices, width]: [usize; 2],
) -> Result<Vec<F61>> {
    unsolved((rows, order, gates, choices, width)) // and this line's
}

/// Functions to write.
#[derive(Clone, Copy)]
pub struct Attempt {
    /// The order of rows.
    pub order: fn(&[usize], usize, usize) -> Result<(Vec<usize>, Vec<usize>)>,
    /// The sum of what came back.
    pub combine: fn(&[F61], &[usize], &[F61], [usize; 2]) -> Result<Vec<F61>>,
}

/// Sends 11 tokens of each rank, of 5 features, to 2 of 24 experts; an expert multiplies by a number of its
/// own.
pub fn check(attempt: Attempt) -> Verdict {
    const T: usize = 11;
    const K: usize = 2;
    const D: usize = 5;
    const E: usize = 24;
    let scale = |expert: usize| F61::from_usize(expert + 2);
    let experts = |rank: usize| -> Vec<usize> {
        let choose = |at: usize| mix((rank * T + at / K) as u64) as usize % E;
        (0..T * K).map(|at| (choose(at) + 7 * (at % K)) % E).collect()
    };
    judge(
        |rank, n| {
            let received = (0..n).flat_map(experts).filter(|expert| expert / (E / n) == rank).count();
            vec![(Op::AllToAll, (T * K + received) * D)]
        },
        |ranks| {
            let (rank, n) = (ranks.rank(), ranks.size());
            let (x, gates, list) =
                (drawn(rank as u64, T * D), drawn(100 + rank as u64, T * K), experts(rank));
            let (counts, order) = (attempt.order)(&list, E, n)?;
            let (right_counts, right_order) = sorted(&list, E / n, n);
            let ordered = [
                Compared::new("counts", numbers(&counts), numbers(&right_counts)),
                Compared::new("order", numbers(&order), numbers(&right_order)),
            ];
            if (&counts, &order) != (&right_counts, &right_order) {
                return Ok(ordered.into());
            }
            let sent: Vec<F61> = order.iter().flat_map(|&at| &x[at / K * D..][..D]).copied().collect();
            // What the experts of this rank compute: from every rank, rows sorted by expert.
            let own = |from: usize| -> Vec<usize> {
                let (list, (_, order)) = (experts(from), sorted(&experts(from), E / n, n));
                order.iter().map(|&at| list[at]).filter(|expert| expert / (E / n) == rank).collect()
            };
            let back: Vec<usize> = (0..n).map(|from| own(from).len()).collect();
            let mut rows = ranks.all_to_all(&sent, D, [&counts, &back])?;
            for (row, expert) in rows.chunks_mut(D).zip((0..n).flat_map(own)) {
                for x in row {
                    *x = *x * scale(expert);
                }
            }
            let rows = ranks.all_to_all(&rows, D, [&back, &counts])?;
            let got = (attempt.combine)(&rows, &order, &gates, [K, D])?;
            let choice = |at: usize| gates[at] * scale(list[at]);
            let gate = |token: usize| (0..K).fold(F61::ZERO, |sum, k| sum + choice(token * K + k));
            let wanted = (0..T * D).map(|i| x[i] * gate(i / D)).collect();
            Ok(ordered.into_iter().chain([Compared::new("Y", got, wanted)]).collect())
        },
    )
}

/// Counts by rank and order of a list, where each rank has `share` experts: sorts pairs instead of positions.
fn sorted(list: &[usize], share: usize, ranks: usize) -> (Vec<usize>, Vec<usize>) {
    let mut pairs: Vec<(usize, usize)> = list.iter().copied().zip(0..).collect();
    pairs.sort_unstable();
    let of = |rank| list.iter().filter(|&&expert| expert / share == rank).count();
    ((0..ranks).map(of).collect(), pairs.into_iter().map(|(_, at)| at).collect())
}

fn numbers(counts: &[usize]) -> Vec<F61> {
    counts.iter().map(|&n| F61::from_usize(n)).collect()
}
