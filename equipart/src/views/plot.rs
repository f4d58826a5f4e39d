//! Curves: the records of runs over their first column, one panel for each column with a curve, as SVG.
use super::RunView;
use crate::draw::curves::{self, Quantity};
use parallel::Result;
use run::event::{Curve, RecordColumn, RunEvent, RunRecord};
use std::path::PathBuf;
use tensor::files;

/// The points of a run, for each column: those of the first column, and the column's.
#[derive(Default)]
pub struct Points {
    name: String,
    columns: &'static [RecordColumn],
    of_columns: Vec<Vec<(usize, f64)>>,
}

impl Points {
    /// The points of records.
    pub fn of<'a>(name: String, records: impl IntoIterator<Item = &'a (impl RunRecord + 'a)>) -> Self {
        let mut points = Self { name, ..Self::default() };
        records.into_iter().for_each(|record| points.add(record));
        points
    }
    /// Adds a record.
    pub fn add(&mut self, record: &dyn RunRecord) {
        let (at, cells) = (record.number(), record.cells());
        self.columns = record.columns();
        self.of_columns.resize(cells.len(), Vec::new());
        for (points, cell) in self.of_columns.iter_mut().zip(cells) {
            points.extend(cell.number().map(|number| (at, number)));
        }
    }
}

/// Draws the points of runs, as the text of an SVG file.
pub fn picture(runs: &[Points]) -> String {
    let columns = runs.first().map_or(&[][..], |run| run.columns);
    let quantity = |(at, column): (usize, &RecordColumn)| {
        let of = |run: &Points| run.of_columns.get(at).cloned().unwrap_or_default();
        let from_0 = column.curve? == Curve::FromZero;
        Some(Quantity { title: column.heading(), from_0, runs: runs.iter().map(of).collect() })
    };
    let quantities: Vec<_> = columns.iter().enumerate().filter_map(quantity).collect();
    let names: Vec<_> = runs.iter().map(|run| run.name.clone()).collect();
    curves::draw("training", (&names, "steps"), &quantities, &[])
}

/// A view that draws the records of one kind to a file, at the run's end.
pub struct Plot {
    kind: &'static str,
    file: PathBuf,
    points: Points,
}

impl Plot {
    /// Makes the view; `points` may have those of an earlier run.
    pub fn new(kind: &'static str, file: PathBuf, points: Points) -> Self {
        Self { kind, file, points }
    }
}

impl RunView for Plot {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Record(record) = event
            && record.kind() == self.kind
        {
            self.points.add(*record);
        }
        Ok(())
    }
    fn end(&mut self) -> Result<()> {
        let picture = picture(&[std::mem::take(&mut self.points)]);
        Ok(files::replace_file(&self.file, picture.as_bytes())?)
    }
}
