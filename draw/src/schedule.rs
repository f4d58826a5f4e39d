//! Messages of an all-reduce as a table of characters: one row a round, grouped by phase, one column a rank.
//!
//! ```text
//! step  rank 0  rank 1  rank 2
//! reduce-scatter
//!    1  c0 +→1  c1 +→2  c2 +→0
//! ```
use algorithms::{Arrival, CommRound};
use run::collectives::{AllReducePlan, chunk_names};

/// Legend for algorithms in which a rank sends one message in a round.
const LEGEND: &str =
    "c3 +→1: sends chunk 3 to rank 1, which adds it to its own; c3 →1: which replaces its own";
/// Legend for algorithms in which a rank sends to all others in one round.
const LEGEND_OF_ALL: &str = "ci +→i: sends chunk i to every other rank i, which adds it in rank order; c3 →all: sends chunk 3 to all others";

/// Returns the legend of a drawing.
pub fn legend(plan: &AllReducePlan) -> &'static str {
    let several = |step: &CommRound| step.transfers.iter().filter(|t| t.from == 0).count() > 1;
    if plan.schedule.rounds().iter().any(several) { LEGEND_OF_ALL } else { LEGEND }
}

/// Returns the table, without a line break at its end: as many ranks side by side as fit into `columns`, the
/// others below.
pub fn draw(plan: &AllReducePlan, columns: usize) -> String {
    let ranks: Vec<_> = (0..plan.schedule.ranks()).collect();
    let cells = |step| ranks.iter().map(move |rank| cell(step, *rank).chars().count());
    let widest = plan.schedule.rounds().iter().flat_map(cells).max().unwrap_or(0);
    let width = widest.max(format!("rank {}", ranks.len() - 1).len());
    let part = |ranks: &[usize]| {
        let row = |first: &str, cell: &dyn Fn(usize) -> String| {
            let next = |row: String, rank: &usize| row + &format!("  {:<width$}", cell(*rank));
            ranks.iter().fold(format!("{first:>5}"), next).trim_end().to_string()
        };
        let mut lines = vec![row("round", &|rank| format!("rank {rank}"))];
        let mut phase = "";
        for (step, number) in plan.schedule.rounds().iter().zip(1..) {
            if step.phase != phase {
                phase = step.phase;
                lines.push(phase.into());
            }
            lines.push(row(&format!("{number}"), &|rank| cell(step, rank)));
        }
        lines.join("\n")
    };
    let fit = (columns.saturating_sub("round".len()) / (width + 2)).max(1);
    ranks.chunks(ranks.len().div_ceil(ranks.len().div_ceil(fit))).map(part).collect::<Vec<_>>().join("\n\n")
}

/// Messages of a rank in a round: one message, or one to every other rank.
fn cell(step: &CommRound, rank: usize) -> String {
    let sent: Vec<_> = step.transfers.iter().filter(|t| t.from == rank).collect();
    let Some(first) = sent.first() else { return String::new() };
    let mark = if first.how == Arrival::Add { "+" } else { "" };
    match (sent.len(), sent.iter().all(|t| t.chunks == first.chunks)) {
        (1, _) => format!("{} {mark}→{}", chunk_names(&first.chunks), first.to),
        (_, true) => format!("{} {mark}→all", chunk_names(&first.chunks)),
        (_, false) => format!("ci {mark}→i"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drawings of naive, direct, ring, tree and hierarchical.
    fn drawn(ranks: usize) -> [String; 5] {
        let plans = AllReducePlan::all(ranks, None, 100, "5us,25GB/s".parse().unwrap()).unwrap();
        [0, 1, 2, 3, 4].map(|algorithm| draw(&plans[algorithm], 120))
    }

    /// Kills: a cell in the receiver's column, an addition drawn as a copy, a phase without its name.
    #[test]
    fn cells_say_what_is_sent_and_what_becomes_of_it() {
        let wanted = "
round  rank 0  rank 1  rank 2  rank 3
reduce-scatter
    1  c0 +→1  c1 +→2  c2 +→3  c3 +→0
    2  c3 +→1  c0 +→2  c1 +→3  c2 +→0
    3  c2 +→1  c3 +→2  c0 +→3  c1 +→0
all-gather
    4  c1 →1   c2 →2   c3 →3   c0 →0
    5  c0 →1   c1 →2   c2 →3   c3 →0
    6  c3 →1   c0 →2   c1 →3   c2 →0";
        assert_eq!(format!("\n{}", drawn(4)[2]), wanted);
        let wanted = "
round  rank 0    rank 1    rank 2
fold
    1                      c0-1 +→0
reduce-scatter
    2  c1 +→1    c0 +→0
all-gather
    3  c0 →1     c1 →0
unfold
    4  c0-1 →2";
        assert_eq!(format!("\n{}", drawn(3)[3]), wanted);
        let wanted = "
round  rank 0   rank 1   rank 2
reduce-scatter
    1  ci +→i   ci +→i   ci +→i
all-gather
    2  c0 →all  c1 →all  c2 →all";
        assert_eq!(format!("\n{}", drawn(3)[1]), wanted);
    }

    /// Kills: columns too wide for a terminal, a rank missing from the table, rounds if there is one rank.
    #[test]
    fn eight_ranks_fit_a_terminal_and_one_rank_has_no_rounds() {
        for text in drawn(8) {
            assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        }
        assert_eq!(drawn(1), ["round  rank 0"; 5]);
        let plan = &AllReducePlan::all(3, None, 100, "5us,25GB/s".parse().unwrap()).unwrap()[1];
        let wanted = "
round  rank 0   rank 1
reduce-scatter
    1  ci +→i   ci +→i
all-gather
    2  c0 →all  c1 →all

round  rank 2
reduce-scatter
    1  ci +→i
all-gather
    2  c2 →all";
        assert_eq!(format!("\n{}", draw(plan, 23)), wanted);
        assert_eq!(draw(plan, 22).matches("round").count(), 3);
    }
}
