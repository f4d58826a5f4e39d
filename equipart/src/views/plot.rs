//! Curves: the records of runs over their first column, one panel for each column with a curve, as SVG.
use super::view::{CURVES, RunView, ViewInfo};
use draw::curves::{self, Quantity};
use parallel::Result;
use run::event::{CellValue, Curve, RecordColumn, RunEvent, RunRecord};
use std::path::PathBuf;
use tensor::files;

/// The points of a run, for each column with a curve: those of the first column, and the column's.
#[derive(Clone, Default)]
pub struct Points {
    name: String,
    columns: Vec<(RecordColumn, Vec<(usize, f64)>)>,
}

impl Points {
    /// Makes points of a run with this name, of no record yet.
    pub fn new(name: String) -> Self {
        Self { name, columns: Vec::new() }
    }
    /// The points of records.
    pub fn of<'a>(name: String, records: impl IntoIterator<Item = &'a (impl RunRecord + 'a)>) -> Self {
        let mut points = Self::new(name);
        records.into_iter().for_each(|record| points.add(record));
        points
    }
    /// Adds a record.
    pub fn add(&mut self, record: &dyn RunRecord) {
        let cells = record.cells();
        let x = cells.first().and_then(|(_, cell)| cell.number()).unwrap_or_default() as usize;
        let drawn: Vec<_> = cells.into_iter().filter(|(column, _)| column.curve.is_some()).collect();
        if self.columns.is_empty() {
            self.columns.extend(drawn.iter().map(|(column, _)| (column.clone(), Vec::new())));
        }
        for ((_, points), (_, cell)) in self.columns.iter_mut().zip(&drawn) {
            points.extend(CellValue::number(cell).map(|number| (x, number)));
        }
    }
    /// The columns, each with its points.
    pub fn columns(&self) -> &[(RecordColumn, Vec<(usize, f64)>)] {
        &self.columns
    }
}

/// Draws the points of runs over their `steps`, or epochs, under a title, as the text of an SVG file.
pub fn picture(title: &str, runs: &[Points], steps: &str) -> String {
    let columns = runs.first().map_or(&[][..], |run| &run.columns);
    let quantity = |(at, (column, _)): (usize, &(RecordColumn, _))| {
        let values = |run: &Points| run.columns.get(at).map_or_else(Vec::new, |(_, points)| points.clone());
        let (curve, name) = column.curve.expect("a column with a curve");
        Quantity {
            title: name.into(),
            from_0: curve != Curve::FromLowest,
            runs: runs.iter().map(values).collect(),
        }
    };
    let quantities: Vec<_> = columns.iter().enumerate().map(quantity).collect();
    let names: Vec<_> = runs.iter().map(|run| run.name.clone()).collect();
    curves::draw(title, (&names, steps), &quantities, &[])
}

/// The view and its flag.
pub static PLOT: ViewInfo = ViewInfo {
    flag: "plot",
    value: "FILE",
    help: "Draw loss, learning rate and speed over the steps to this file at the end, as SVG",
    needs: CURVES,
    wants_details: false,
    open: |path, context| {
        let points = Points::new(context.name.to_owned());
        Ok(Box::new(Plot { title: context.title.to_owned(), file: path.to_owned(), points }))
    },
};

/// A view that draws steps to a file, at the run's end.
struct Plot {
    title: String,
    file: PathBuf,
    points: Points,
}

impl RunView for Plot {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Record(record) = event {
            self.earlier(*record);
        }
        Ok(())
    }
    fn earlier(&mut self, record: &dyn RunRecord) {
        if record.is_step() {
            self.points.add(record);
        }
    }
    fn end(&mut self, failure: Option<&str>) -> Result<()> {
        if failure.is_none() {
            let picture = picture(&self.title, &[std::mem::take(&mut self.points)], "steps");
            files::replace_file(&self.file, picture.as_bytes())?;
        }
        Ok(())
    }
}
