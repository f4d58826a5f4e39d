//! Accuracy, loss and time of a classifier that was trained under several layouts.
use crate::curves::{self, Quantity};
use run::compare::epochs::EpochsRow;
use run::train::epochs::EpochLine;

/// Draws accuracy, loss and time.
#[must_use]
pub fn draw(rows: &[EpochsRow]) -> String {
    let panel = |title: &str, number: fn(&EpochLine) -> f64| {
        let run = |row: &EpochsRow| row.epochs.iter().map(|line| (line.epoch, number(line))).collect();
        Quantity { title: title.to_owned(), from_0: false, runs: rows.iter().map(run).collect() }
    };
    let names: Vec<_> = rows.iter().map(|row| row.layout.clone()).collect();
    let time = |row: &EpochsRow| (row.seconds, format!("{:.2} s, x{:.2}", row.seconds, row.speedup));
    let quantities = [
        panel("accuracy on the test pictures, %", |line| 100.0 * line.accuracy),
        panel("loss, nats", |line| line.loss),
    ];
    let bars: Vec<_> = rows.iter().map(time).collect();
    curves::draw("a classifier, trained under each layout", (&names, "epochs"), &quantities, &bars)
}
