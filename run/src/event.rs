//! Events of a run: progress, words, pictures, and records, which describe themselves. Whoever shows a run
//! observes its events, and knows no run.
use parallel::Result;
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
    /// The run has this number of steps.
    Steps(usize),
    /// A milestone: so many of `of` parts are done, or of a number that is not known, if it is 0.
    Reached {
        /// The milestone, in a sentence; it may be empty.
        words: &'a str,
        /// Number of parts that are done.
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
        heads: &'a [&'a str],
        /// The cells of each row.
        rows: &'a [Vec<String>],
        /// True if cells are sentences.
        is_text: bool,
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

/// A result: an object for scripts; if it is a row of a table or lies on a curve, cells; words for people.
pub trait RunRecord: erased_serde::Serialize {
    /// Kind of the result; records of a kind have the same columns.
    fn kind(&self) -> &'static str;
    /// The columns, each with its value; none, if it is no row of a table.
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        Vec::new()
    }
    /// The number of the record, its first value: curves go over it.
    fn number(&self) -> usize {
        self.cells().first().and_then(|(_, value)| value.number()).unwrap_or_default() as usize
    }
    /// True if it is a step of a run: the curves of a run go over its steps, and progress shows them.
    fn is_step(&self) -> bool {
        false
    }
    /// The result in a few words.
    fn words(&self) -> String {
        String::new()
    }
    /// True if people should see it where most results of its kind are left out.
    fn is_notable(&self) -> bool {
        false
    }
    /// True if only logs and curves show it, because other records say the same in fewer lines.
    fn is_detail(&self) -> bool {
        false
    }
    /// The record itself, for who observes runs of one kind.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

erased_serde::serialize_trait_object!(RunRecord);

impl dyn RunRecord + '_ {
    /// The whole object, as JSON on one line.
    ///
    /// # Panics
    /// If a map of it has keys that are no words.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain values")
    }
}

/// Declares the kinds of results that are no rows of a table.
#[macro_export]
macro_rules! records {
    ($($Type:ty: $kind:literal),* $(,)?) => {
        $(impl $crate::event::RunRecord for $Type {
            fn kind(&self) -> &'static str {
                $kind
            }
        })*
    };
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

/// An observer of a run: rank 0 calls it, from its own thread. An error ends the run.
pub trait Observe: Sync {
    /// Sees an event.
    ///
    /// # Errors
    /// If it cannot be shown.
    fn see(&self, event: &RunEvent) -> Result<()>;
    /// True if it shows words and tables for people; what takes long to say is made only then.
    fn wants_words(&self) -> bool {
        true
    }
    /// True if it shows details, which are made only then.
    fn wants_details(&self) -> bool {
        false
    }
    /// Sees a detail.
    ///
    /// # Errors
    /// If it cannot be shown.
    fn see_detail(&self, _: &RunEvent) -> Result<()> {
        Ok(())
    }
}

impl<F: Fn(&RunEvent) -> Result<()> + Sync> Observe for F {
    fn see(&self, event: &RunEvent) -> Result<()> {
        self(event)
    }
}

/// An observer of any kind.
pub type Observer<'a> = dyn Observe + 'a;

/// All errors are the observer's.
impl dyn Observe + '_ {
    /// Tells what is being done, for a while that is not known; nothing any more, if `what` is empty.
    ///
    /// # Errors
    /// See above.
    pub fn doing(&self, what: &str) -> Result<()> {
        self.see(&RunEvent::Progress { what, done: 0, of: 0 })
    }
    /// Tells the number of the run's steps.
    ///
    /// # Errors
    /// See above.
    pub fn steps(&self, steps: usize) -> Result<()> {
        self.see(&RunEvent::Steps(steps))
    }
    /// Tells how many parts of some work are done.
    ///
    /// # Errors
    /// See above.
    pub fn progress(&self, what: &str, done: usize, of: usize) -> Result<()> {
        self.see(&RunEvent::Progress { what, done, of })
    }
    /// Tells a sentence about the run.
    ///
    /// # Errors
    /// See above.
    pub fn note(&self, words: &str) -> Result<()> {
        self.see(&RunEvent::Note(words))
    }
    /// Tells words about the results.
    ///
    /// # Errors
    /// See above.
    pub fn say(&self, words: &str) -> Result<()> {
        self.see(&RunEvent::Text(words))
    }
    /// Tells a result.
    ///
    /// # Errors
    /// See above.
    pub fn record(&self, record: &impl RunRecord) -> Result<()> {
        self.see(&RunEvent::Record(record))
    }
    /// Tells results.
    ///
    /// # Errors
    /// See above.
    pub fn records<'r>(&self, records: impl IntoIterator<Item = &'r (impl RunRecord + 'r)>) -> Result<()> {
        records.into_iter().try_for_each(|record| self.record(record))
    }
    /// Tells results, and the table that people see of them.
    ///
    /// # Errors
    /// See above.
    pub fn rows(&self, rows: &[impl RunRecord]) -> Result<()> {
        self.records(rows)?;
        self.table_of(rows)
    }
    /// Tells the table that people see of results.
    ///
    /// # Errors
    /// See above.
    pub fn table_of<'r>(&self, rows: impl IntoIterator<Item = &'r (impl RunRecord + 'r)>) -> Result<()> {
        let rows: Vec<_> = rows.into_iter().map(RunRecord::cells).collect();
        let Some(first) = rows.first() else { return Ok(()) };
        let is_shown = |&at: &usize| rows.iter().any(|row| !row[at].0.is_hidden);
        let shown: Vec<_> = (0..first.len()).filter(is_shown).collect();
        let heads: Vec<_> = shown.iter().map(|&at| &*first[at].0.title).collect();
        let words = |row: &Vec<(_, CellValue)>| shown.iter().map(|&at| row[at].1.shown()).collect();
        self.table(&heads, rows.iter().map(words))
    }
    /// Tells a table of words.
    ///
    /// # Errors
    /// See above.
    pub fn table(&self, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        self.see(&RunEvent::Table { heads, rows: &rows.into_iter().collect::<Vec<_>>(), is_text: false })
    }
    /// Tells a table whose cells are sentences.
    ///
    /// # Errors
    /// See above.
    pub fn text_table(&self, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        self.see(&RunEvent::Table { heads, rows: &rows.into_iter().collect::<Vec<_>>(), is_text: true })
    }
    /// Tells a picture of the results.
    ///
    /// # Errors
    /// See above.
    pub fn picture(&self, title: &str, svg: &str) -> Result<()> {
        self.see(&RunEvent::Picture { title, svg })
    }
    /// Tells details, if they are shown. Where they cannot be made, says why, and the run goes on.
    ///
    /// # Errors
    /// See above.
    pub fn details(&self, tell: impl FnOnce(&Observer) -> Result<()>) -> Result<()> {
        let show = |event: &RunEvent| self.see_detail(event);
        match if self.wants_details() { tell(&show) } else { Ok(()) } {
            Ok(()) => Ok(()),
            Err(why) => show(&RunEvent::Note(&format!("note: the report lacks details: {why}"))),
        }
    }
}
