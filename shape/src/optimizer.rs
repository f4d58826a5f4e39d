//! Description of optimizers: a rule's name, its constants, and the state that it keeps for each parameter.
//! The rules themselves, and their list, are in the crate `layers`.
mod constants;

pub use constants::{Constant, Range};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt;

/// The most numbers in all constants of a rule.
const MOST: usize = 12;

/// Description of a rule by which optimizers change parameters.
#[derive(Debug)]
pub struct OptimizerInfo {
    /// Its name in flags and files: `adamw`.
    pub name: &'static str,
    /// Its name in sentences: `AdamW`.
    pub title: &'static str,
    /// Its description, for help.
    pub about: &'static str,
    /// Its source.
    pub paper: &'static str,
    /// Its constants.
    pub constants: &'static [Constant],
    /// The tensors that it keeps for each parameter, given the values of its constants.
    pub states: fn(&[f64]) -> &'static [StateInfo],
    /// The tensors that it keeps for each matrix of a block, if it updates these as whole matrices.
    pub matrices: Option<&'static [StateInfo]>,
}

impl OptimizerInfo {
    /// A rule without name, constants and state: the rest of a description that gives a few of them.
    pub const BARE: Self =
        Self { name: "", title: "", about: "", paper: "", constants: &[], states: |_| &[], matrices: None };
}

/// An optimizer: a rule, and values of its constants.
#[derive(Clone, Copy)]
pub struct OptimizerKind {
    info: &'static OptimizerInfo,
    values: [f64; MOST], // of all constants, in their order
}

impl OptimizerKind {
    /// Returns the rule's optimizer with the usual constants.
    pub const fn usual(info: &'static OptimizerInfo) -> Self {
        let (mut values, mut len, mut i) = ([0.0; MOST], 0, 0);
        while i < info.constants.len() {
            let mut j = 0;
            while j < info.constants[i].usual.len() {
                values[len] = info.constants[i].usual[j];
                (len, j) = (len + 1, j + 1);
            }
            i += 1;
        }
        Self { info, values }
    }
    /// Sets the first constants to these values, in the order of the rule's list.
    #[must_use]
    pub const fn with(mut self, values: &[f64]) -> Self {
        let mut i = 0;
        while i < values.len() {
            self.values[i] = values[i];
            i += 1;
        }
        self
    }
    /// Sets one constant.
    ///
    /// # Errors
    /// In one sentence: the rule has no such constant, or the values are out of range.
    pub fn set(mut self, key: &str, values: &[f64]) -> Result<Self, String> {
        let named = |(constant, _, _): &(&Constant, usize, &[f64])| constant.key == key;
        let found = self.each().find(named).map(|(constant, at, _)| (constant, at));
        let (constant, first) = found.ok_or_else(|| format!("{} has no constant {key}", self.info.title))?;
        constant.check(values)?;
        self.values[first..first + values.len()].copy_from_slice(values);
        Ok(self)
    }
    /// Returns the optimizer with blocks of half as many elements; `None` if it has no smaller ones.
    pub fn halved(mut self) -> Option<Self> {
        let is_larger =
            |range: &Range, n: f64| matches!(range, Range::PowerOfTwo([least, _]) if n > *least as f64);
        let (_, at, _) = self.each().find(|(constant, _, values)| is_larger(&constant.range, values[0]))?;
        self.values[at] /= 2.0;
        Some(self)
    }
    /// Returns the rule.
    pub const fn info(self) -> &'static OptimizerInfo {
        self.info
    }
    /// Returns the optimizer's name in files.
    pub fn name(self) -> &'static str {
        self.info.name
    }
    /// Returns the tensors that it keeps for each parameter.
    pub fn states(self) -> RuleStates {
        let others = (self.info.states)(&self.values);
        RuleStates { others, matrices: self.info.matrices.unwrap_or(others) }
    }
    /// Returns the values of the first constants, in the order of the rule's list.
    pub fn constants<const N: usize>(self) -> [f64; N] {
        std::array::from_fn(|i| self.values[i])
    }
    /// Returns the values of a constant; `None` if the rule has no such constant.
    pub fn get(&self, key: &str) -> Option<&[f64]> {
        self.each().find(|(constant, ..)| constant.key == key).map(|(_, _, values)| values)
    }
    /// Returns each constant, the place of its first value, and its values.
    fn each(&self) -> impl Iterator<Item = (&'static Constant, usize, &[f64])> {
        self.info.constants.iter().scan(0, |end, constant| {
            let begin = *end;
            *end += constant.usual.len();
            Some((constant, begin, &self.values[begin..*end]))
        })
    }
}

impl PartialEq for OptimizerKind {
    fn eq(&self, other: &Self) -> bool {
        self.info.name == other.info.name && self.values == other.values
    }
}

impl fmt::Debug for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for OptimizerKind {
    /// Writes the title and the constants: `AdamW, betas 0.9,0.95, eps 1e-8, weight decay 0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.title)?;
        self.each().try_for_each(|(constant, _, values)| {
            write!(f, ", {} {}", constant.key.replace('-', " "), constant.text(values))
        })
    }
}

/// Values of a constant in files.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenValues {
    One(f64),
    Many(Vec<f64>),
    Name(String),
}

/// An optimizer in files: its name, or its name and its constants.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenOptimizer {
    Name(String),
    Constants(BTreeMap<String, BTreeMap<String, WrittenValues>>),
}

impl Serialize for OptimizerKind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let written = |(constant, _, values): (&Constant, usize, &[f64])| {
            let values = match values {
                _ if matches!(constant.range, Range::OneOf(_)) => WrittenValues::Name(constant.text(values)),
                [one] => WrittenValues::One(*one),
                many => WrittenValues::Many(many.to_vec()),
            };
            (constant.key.replace('-', "_"), values)
        };
        let constants: BTreeMap<_, _> = self.each().map(written).collect();
        let name = self.info.name.to_owned();
        let is_plain = constants.is_empty();
        let written = if is_plain {
            WrittenOptimizer::Name(name)
        } else {
            WrittenOptimizer::Constants([(name, constants)].into())
        };
        written.serialize(to)
    }
}

impl OptimizerKind {
    /// Reads an optimizer of this list; constants that are left out have their usual values.
    ///
    /// # Errors
    /// If the list has no such rule, the rule has no such constant, or a value is out of range.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        list: &[&'static OptimizerInfo],
        from: D,
    ) -> Result<Self, D::Error> {
        let (name, constants) = match WrittenOptimizer::deserialize(from)? {
            WrittenOptimizer::Name(name) => (name, BTreeMap::new()),
            WrittenOptimizer::Constants(all) if all.len() == 1 => all.into_iter().next().expect("one entry"),
            WrittenOptimizer::Constants(all) => {
                return Err(de::Error::custom(format!("{} optimizers; wanted one", all.len())));
            }
        };
        let info = list.iter().find(|info| info.name == name);
        let info = info.ok_or_else(|| de::Error::custom(format!("there is no optimizer {name}")))?;
        let set = |kind: Self, (key, values): (String, WrittenValues)| {
            let key = key.replace('_', "-");
            let values = match values {
                WrittenValues::One(one) => vec![one],
                WrittenValues::Many(many) => many,
                WrittenValues::Name(name) => {
                    let constant = info.constants.iter().find(|constant| constant.key == key);
                    constant.ok_or_else(|| format!("{} has no constant {key}", info.title))?.parse(&name)?
                }
            };
            kind.set(&key, &values)
        };
        constants.into_iter().try_fold(Self::usual(info), set).map_err(de::Error::custom)
    }
}

/// The tensors of optimizer state that a rule keeps for each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleStates {
    /// Tensors of matrices of blocks.
    pub matrices: &'static [StateInfo],
    /// Tensors of all other parameters.
    pub others: &'static [StateInfo],
}

impl RuleStates {
    /// No state.
    pub const NONE: Self = Self { matrices: &[], others: &[] };

    /// Returns the tensors of the parameter `name` of this shape.
    pub fn of(self, name: &str, shape: [usize; 2]) -> &'static [StateInfo] {
        if is_matrix_of_block(name, shape) { self.matrices } else { self.others }
    }
    /// Number of elements of a row that no cut may separate: those of the largest block of state.
    pub fn grain(self) -> usize {
        let states = self.others.iter().chain(self.matrices);
        states.map(|state| if let Like::Blocks(n) = state.like { n } else { 1 }).max().unwrap_or(1)
    }
}

impl From<&'static [StateInfo]> for RuleStates {
    /// The same tensors for all parameters.
    fn from(all: &'static [StateInfo]) -> Self {
        Self { matrices: all, others: all }
    }
}

/// Returns true if a parameter is a matrix of a block, or several: neither a bias nor a gain, nor a matrix of
/// the embedding or the head.
pub fn is_matrix_of_block(name: &str, shape: [usize; 2]) -> bool {
    name.starts_with("blocks.") && shape[0] > 1 && name.rsplit('.').next() != Some("bias")
}

/// A tensor of optimizer state that a rule keeps for each parameter, in the wide dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Its name, in files before the parameter's: `m.head`.
    pub name: &'static str,
    /// Its elements.
    pub like: Like,
}

impl StateInfo {
    /// A tensor with one element for each of the value's.
    pub const fn like_value(name: &'static str) -> Self {
        Self { name, like: Like::Value }
    }
}

/// The elements of a parameter's tensor, by those of its value `[R, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// One for each of the value's: `[R, C]`.
    Value,
    /// One for each block of so many consecutive elements of a row; the last block of a row may be smaller:
    /// `[R, ⌈C/n⌉]`.
    Blocks(usize),
    /// One for the whole parameter, the same on every rank: `[1, 1]`. A parameter is updated in parts, so
    /// each of them sets this number, and none adds to it.
    One,
}

impl Like {
    /// Returns the tensor's shape for a value of this shape.
    pub fn shape(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Value => [rows, columns],
            Self::Blocks(n) => [rows, columns.div_ceil(n)],
            Self::One => [1, 1],
        }
    }
    /// Returns the number of its elements before element `of_value` of the value, counted row by row in rows
    /// of `columns` elements: the begin of a block, if elements are in blocks.
    pub fn before(self, of_value: usize, columns: usize) -> usize {
        match self {
            Self::Value => of_value,
            Self::Blocks(n) => of_value / columns * columns.div_ceil(n) + of_value % columns / n,
            Self::One => 0,
        }
    }
}
