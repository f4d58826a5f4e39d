//! A comparison for people: a table for each kind of work, and what its columns mean.
use super::row::{LayoutRow, Workload};
use super::work::Comparison;
use crate::event::Observer;
use layers::counted;
use parallel::Result;
use parallel::dtype::DtypeName;
use std::collections::BTreeSet;

/// Tells the rows of a comparison in this dtype.
pub(super) fn tell(
    of: &Comparison,
    number: DtypeName,
    rows: &[LayoutRow],
    observer: &Observer,
) -> Result<()> {
    let step = rows.iter().find_map(|row| row.microbatches).map(|n| counted(n, "microbatch"));
    let step = step.map_or_else(String::new, |n| format!("\nA training step has {n}."));
    observer.say(&format!("The model is {}, the run in {number}.{step}", of.model.origin))?;
    for workload in [Workload::Inference, Workload::Training] {
        let of_this = || rows.iter().filter(|row| row.workload == workload);
        if of_this().next().is_some() {
            observer.say("")?;
            observer.table_of(of_this())?;
        }
    }
    for words in dominating(rows).into_iter().chain(unsteady(rows.iter().filter_map(|row| row.spread))) {
        observer.say(&words)?;
    }
    for row in rows.iter().filter(|row| row.workload == Workload::Inference) {
        if let Some(t) = &row.tie {
            let words = format!(
                "{}: text {} differs from token {} on, a tie within rounding (margin {:.1e}, bound {:.1e}).",
                row.name, t.sequence, t.token, t.margin, t.bound
            );
            observer.say(&words)?;
        }
        row.note.iter().try_for_each(|note| observer.say(&format!("{}: {note}.", row.name)))?;
    }
    for text in FOOTNOTES {
        observer.say(&text.replace("token/s", rows.first().map_or("token/s", |row| row.rate.unit())))?;
    }
    if number == DtypeName::F64 {
        observer.say(
            "In f64 the unsplit run's error is 0; there the unit is one rounding of the largest value.",
        )?;
    }
    let never: BTreeSet<_> = rows.iter().flat_map(|row| &row.never_ran).collect();
    if never.is_empty() {
        return Ok(());
    }
    let words = format!(
        "This covers this model and this work only: {} of other models and steps did not run here\n\
         (--json lists them); `equipart prove` without a model proves them, on small models.",
        counted(never.len(), "feature")
    );
    observer.say(&words)
}

/// One line for each row that holds at most 0.6 of the unsplit model's memory on a rank, holds less than
/// `standard`, and is faster than `standard`.
fn dominating(rows: &[LayoutRow]) -> Vec<String> {
    let named = |name| rows.iter().find(|row| row.name == name);
    let (Some(unsplit), Some(standard)) = (named("unsplit"), named("standard")) else { return Vec::new() };
    let beats = |row: &&LayoutRow| {
        row.most_bytes() <= 0.6 * unsplit.most_bytes()
            && row.most_bytes() < standard.most_bytes()
            && row.is_faster(standard)
    };
    let words = |row: &LayoutRow| {
        format!(
            "{} dominates standard: {:.2} of the unsplit model's memory ({:.2} of standard's), x{:.2} of standard's tokens.",
            row.name,
            row.most_bytes() / unsplit.most_bytes(),
            row.most_bytes() / standard.most_bytes(),
            row.rate.number() / standard.rate.number()
        )
    };
    rows.iter().filter(beats).map(words).collect()
}

/// Spread from which on a comparison's speeds are doubted.
const UNSTEADY: f64 = 0.25;

/// Warns of speeds that differ much from run to run, as they do where other programs use the cores.
fn unsteady(spreads: impl Iterator<Item = f64>) -> Option<String> {
    let most = spreads.fold(0.0, f64::max);
    let words = || {
        let part = 100.0 * most;
        format!(
            "Speeds differ by ±{part:.0} % from run to run: other programs use the cores; compare on idle ones."
        )
    };
    (most > UNSTEADY).then(words)
}

/// Footnotes that explain the columns of a comparison.
const FOOTNOTES: [&str; 7] = [
    "\ntoken/s: median of the runs, ± half of their interquartile range; rows whose ± overlap are equally",
    "fast. holds: peak of the fullest rank; in another dtype, as priced. sent: by all ranks. field: the",
    "same work in the field of 2^61 - 1, where nothing rounds, equals the unsplit oracle bit for bit: in",
    "generation the logits that choose each token, read with a cache, one token at a time; in training",
    "the loss, the norm, gradients and new weights. tokens: as in the unsplit run. error: against f64,",
    "as a multiple of the unsplit run's error (on stale weights, or on fewer, against the same in f64).",
    "--json has exact bytes, seconds, and memory by phase.",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a busy machine whose speeds look as those of an idle one, a warning of an idle one.
    #[test]
    fn speeds_that_differ_from_run_to_run_are_doubted() {
        assert!(unsteady([0.03, 1.51].into_iter()).is_some_and(|words| words.contains("±151 %")));
        assert_eq!(unsteady([0.25, 0.0].into_iter()), None);
    }
}
