//! Events of a run: progress, notes for people, and records, which describe themselves. Whoever shows a run
//! observes its events, and knows no run.
use parallel::Result;
use std::any::Any;

/// Something that happens in a run.
pub enum RunEvent<'a> {
    /// Work goes on: `done` of `of` parts.
    Progress {
        /// The parts, in words.
        what: &'a str,
        /// Number of those that are done.
        done: usize,
        /// Number of all.
        of: usize,
    },
    /// A sentence about the run, for people.
    Note(&'a str),
    /// A result, such as a step.
    Record(&'a dyn RunRecord),
}

/// A result: an object for scripts, cells for tables and curves, and words for people.
pub trait RunRecord: Any {
    /// Kind of the result; records of a kind have the same columns.
    fn kind(&self) -> &'static str;
    /// The columns.
    fn columns(&self) -> &'static [RecordColumn];
    /// The values, one for each column.
    fn cells(&self) -> Vec<CellValue>;
    /// The number of the record, its first value: curves go over it.
    fn number(&self) -> usize {
        self.cells().first().and_then(CellValue::number).unwrap_or_default() as usize
    }
    /// The whole object, as JSON on one line.
    fn json(&self) -> String;
    /// The result in a few words.
    fn words(&self) -> String;
    /// True if people should see it where most results of its kind are left out.
    fn is_notable(&self) -> bool {
        false
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordColumn {
    /// Name for scripts, that of the JSON's field.
    pub key: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Unit, or an empty word.
    pub unit: &'static str,
    /// The curve that is drawn through its values, if one is.
    pub curve: Option<Curve>,
}

/// A curve's axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// The axis begins at 0.
    FromZero,
    /// The axis begins at the lowest value.
    FromLowest,
}

impl RecordColumn {
    /// Title and unit.
    #[must_use]
    pub fn heading(&self) -> String {
        if self.unit.is_empty() { self.title.to_owned() } else { format!("{}, {}", self.title, self.unit) }
    }
}

/// A value in a column.
#[derive(Clone, Debug, PartialEq)]
pub enum CellValue {
    /// Words.
    Word(String),
    /// A whole number.
    Count(usize),
    /// A number.
    Number(f64),
    /// No value.
    None,
}

impl CellValue {
    /// Makes a cell of a number that may be missing.
    #[must_use]
    pub fn of(number: Option<f64>) -> Self {
        number.map_or(Self::None, Self::Number)
    }
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            Self::Word(_) | Self::None => None,
        }
    }
}

/// An observer of a run: rank 0 calls it, from its own thread. An error ends the run.
pub type Observer<'a> = dyn Fn(&RunEvent) -> Result<()> + Sync + 'a;

/// A number of tokens or pictures a second: `17.0k`.
#[must_use]
pub fn speed(per_second: f64) -> String {
    match per_second {
        x if x < 1e4 => format!("{x:.0}"),
        x if x < 1e6 => format!("{:.1}k", x / 1e3),
        x => format!("{:.1}M", x / 1e6),
    }
}
