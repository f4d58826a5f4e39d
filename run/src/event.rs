//! Events of a run: progress, words, pictures, and records, which describe themselves. Whoever shows a run
//! observes its events, and knows no run.
use parallel::Result;
use serde::Serialize;
use std::any::Any;
use std::borrow::Cow;
use tensor::readable;

/// Something that happens in a run.
pub enum RunEvent<'a> {
    /// Work goes on: `done` of `of` parts; of 0, if their number is not known.
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
    /// Results side by side, in words.
    Table {
        /// Heads of the columns.
        heads: &'a [String],
        /// The cells of each row.
        rows: &'a [Vec<String>],
    },
    /// Words for people about the results.
    Text(&'a str),
    /// A picture in the letters of a terminal; others are shown a picture.
    Screen(&'a str),
    /// A picture of the results.
    Picture {
        /// Words on its subject.
        title: &'a str,
        /// The picture, as the text of an SVG file.
        svg: &'a str,
    },
}

/// A result: an object for scripts, cells for tables and curves, and words for people.
pub trait RunRecord: Any {
    /// Kind of the result; records of a kind have the same columns.
    fn kind(&self) -> &'static str;
    /// The columns, each with its value.
    fn cells(&self) -> Vec<(RecordColumn, CellValue)>;
    /// The number of the record, its first value: curves go over it.
    fn number(&self) -> usize {
        self.cells().first().and_then(|(_, value)| value.number()).unwrap_or_default() as usize
    }
    /// The whole object, as JSON on one line.
    fn json(&self) -> String;
    /// The result in a few words.
    fn words(&self) -> String {
        String::new()
    }
    /// True if people should see it where most results of its kind are left out.
    fn is_notable(&self) -> bool {
        false
    }
}

/// Returns a value as JSON on one line.
///
/// # Panics
/// If a map of it has keys that are no words.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values")
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordColumn {
    /// Name for scripts, that of the JSON's field.
    pub key: &'static str,
    /// Head of the column in tables of people.
    pub title: Cow<'static, str>,
    /// The curve that is drawn through its values, if one is, and its name with the unit.
    pub curve: Option<(Curve, &'static str)>,
    /// True if a table of people needs it only where another of its records shows it.
    pub is_hidden: bool,
}

/// Makes a column without a curve.
#[must_use]
pub fn column(key: &'static str, title: impl Into<Cow<'static, str>>) -> RecordColumn {
    RecordColumn { key, title: title.into(), curve: None, is_hidden: false }
}

/// Makes a column for scripts, which tables of people do not have.
#[must_use]
pub fn hidden(key: &'static str) -> RecordColumn {
    column(key, key).hidden_if(true)
}

/// A curve's axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// The axis begins at 0.
    FromZero,
    /// The axis begins at the lowest value.
    FromLowest,
    /// The axis begins at 0, and the values are measurements, which have a median and a spread.
    Measured,
}

impl RecordColumn {
    /// Hides it, if its value is not worth a column.
    #[must_use]
    pub fn hidden_if(self, is_hidden: bool) -> Self {
        Self { is_hidden, ..self }
    }
    /// Gives it a curve with a name.
    #[must_use]
    pub fn drawn(self, curve: Curve, name: &'static str) -> Self {
        Self { curve: Some((curve, name)), ..self }
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
    /// A number, and how people read it.
    Shown(f64, String),
    /// No value.
    None,
}

impl CellValue {
    /// Makes a cell of a number that may be missing.
    #[must_use]
    pub fn of(number: Option<f64>) -> Self {
        number.map_or(Self::None, Self::Number)
    }
    /// Makes a cell of a word.
    #[must_use]
    pub fn word(word: impl Into<String>) -> Self {
        Self::Word(word.into())
    }
    /// Makes a cell of a number of bytes.
    #[must_use]
    pub fn bytes(bytes: u128) -> Self {
        Self::Shown(bytes as f64, readable(bytes))
    }
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) | Self::Shown(number, _) => Some(*number),
            Self::Word(_) | Self::None => None,
        }
    }
    /// The value for scripts; empty, if there is none.
    #[must_use]
    pub fn plain(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            Self::Count(count) => count.to_string(),
            Self::Number(number) | Self::Shown(number, _) => number.to_string(),
            Self::None => String::new(),
        }
    }
    /// The value for people; a dash, if there is none.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Shown(_, words) => words.clone(),
            Self::None => "-".into(),
            other => other.plain(),
        }
    }
}

/// Tells an observer the table that people see of records.
///
/// # Errors
/// That of the observer.
pub fn tell_table<'a>(
    rows: impl IntoIterator<Item = &'a (impl RunRecord + 'a)>,
    observer: &Observer,
) -> Result<()> {
    let rows: Vec<_> = rows.into_iter().map(RunRecord::cells).collect();
    let Some(first) = rows.first() else { return Ok(()) };
    let shown: Vec<_> = (0..first.len()).filter(|&at| rows.iter().any(|row| !row[at].0.is_hidden)).collect();
    let heads: Vec<_> = shown.iter().map(|&at| first[at].0.title.to_string()).collect();
    let words = |row: &Vec<(_, CellValue)>| shown.iter().map(|&at| row[at].1.shown()).collect();
    let rows: Vec<Vec<_>> = rows.iter().map(words).collect();
    observer(&RunEvent::Table { heads: &heads, rows: &rows })
}

/// A result that is no row of a table: an object for scripts alone.
struct ObjectRecord(String);

impl RunRecord for ObjectRecord {
    fn kind(&self) -> &'static str {
        "object"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        Vec::new()
    }
    fn json(&self) -> String {
        self.0.clone()
    }
}

/// An observer of a run: rank 0 calls it, from its own thread. An error ends the run.
pub type Observer<'a> = dyn Fn(&RunEvent) -> Result<()> + Sync + 'a;

/// Tells an observer what is being done, for a while that is not known.
///
/// # Errors
/// That of the observer.
pub fn doing(what: &str, observer: &Observer) -> Result<()> {
    observer(&RunEvent::Progress { what, done: 0, of: 0 })
}

/// Tells an observer words for people.
///
/// # Errors
/// That of the observer.
pub fn say(words: &str, observer: &Observer) -> Result<()> {
    observer(&RunEvent::Text(words))
}

/// Tells an observer a table of words.
///
/// # Errors
/// That of the observer.
pub fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>, observer: &Observer) -> Result<()> {
    let heads: Vec<_> = heads.iter().map(|&head| head.to_owned()).collect();
    observer(&RunEvent::Table { heads: &heads, rows: &rows.into_iter().collect::<Vec<_>>() })
}

/// Tells an observer an object for scripts.
///
/// # Errors
/// That of the observer.
pub fn object(value: &impl Serialize, observer: &Observer) -> Result<()> {
    observer(&RunEvent::Record(&ObjectRecord(json(value))))
}
