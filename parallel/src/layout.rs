//! How a model is split: how many ranks along each axis, as the user writes it.
//!
//! ```text
//! layout = "none" | part { "," part }       part = axis "=" ranks | word
//! ```
//! Axes and words are the keys of the [list of strategies](layers::strategies). An axis left out has one rank. A word
//! goes with the ranks of an axis: `sp`, sequence regions, needs tensor ranks, and has no number of its own (`sp=2` is
//! taken where it is that of `tp`). Printed: the axes that are split, innermost first (the one whose ranks talk most
//! comes first, as in `tp=2,dp=2`), each with its words; `none` if there is none. What is printed reads back as the
//! same layout.
mod entry;

pub use entry::Entry;

use crate::At;
use comm::{Axis, CommError, Mesh, World};
use kernels::{Kernels, Meta};
use layers::model::strategy::{About, Key, Shared};
use layers::{Block, Builder, Random, Shape, Values, Wide, strategies};
use std::fmt;
use std::str::FromStr;
use tensor::Cpu;
use tensor::count::Uncountable;

/// The most ranks a layout may have.
pub const MAX_RANKS: usize = 1024;

const AXES: usize = Axis::ALL.len();

/// How many ranks there are along each axis: pure data. The default is the unsplit model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    sizes: [usize; AXES], // by `Axis as usize`; each at least 1, the product at most MAX_RANKS
    words: u64,           // bit i: the list's strategy i, named by a word; only where its axis is split
    limit: Option<usize>, // bytes that each rank may hold
}

/// Why a layout is none, or does not fit a model: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Nothing was written.
    #[error("the layout is empty; write none, or ranks along axes, such as {}", example())]
    Empty,
    /// Not `axis=ranks`: a comma too many, no `=`.
    #[error("{part:?} is no part of a layout; write axis=ranks, such as {}{}", example(), or_words())]
    Part {
        /// What stands between two commas.
        part: String,
    },
    /// Neither an axis nor a word.
    #[error("{key:?} is no axis of a layout; the axes are {}{}", either(&names(), "and"), beside_them())]
    Unknown {
        /// What stands before the `=`.
        key: String,
    },
    /// An axis given twice.
    #[error("the {axis} axis is given twice; give each axis once")]
    Twice {
        /// The axis.
        axis: Axis,
    },
    /// A word without ranks of its axis, or with another number.
    #[error("{seen} {}; {word} ({name}) goes with the ranks of {axis}: write {}",
        if *ranks > 1 { format!("is written beside {axis}={ranks}") } else { format!("needs {axis} ranks") },
        if *ranks > 1 { (*word).to_string() } else { format!("{axis}=2,{word}") })]
    Beside {
        /// What was written.
        seen: String,
        /// The word.
        word: &'static str,
        /// The strategy's name.
        name: &'static str,
        /// The axis that it goes with.
        axis: Axis,
        /// The ranks of that axis.
        ranks: usize,
    },
    /// A word given twice.
    #[error("{word} is written twice; write it once")]
    Again {
        /// The word.
        word: String,
    },
    /// Two strategies that would build the same layer.
    #[error("{0}")]
    Both(String),
    /// Ranks that are no number of at least 1.
    #[error("{axis} is {seen:?}; it must be a whole number of ranks, 1 or more")]
    Size {
        /// The axis.
        axis: Axis,
        /// What stands after the `=`.
        seen: String,
    },
    /// More ranks than there may be.
    #[error("{seen} makes more than {MAX_RANKS} ranks; the product of all axes must be at most {MAX_RANKS}")]
    Many {
        /// The sizes, as they were given.
        seen: String,
    },
    /// `none` beside an axis.
    #[error("none stands alone: it cannot be combined with {with:?}")]
    Combined {
        /// Another part of the layout.
        with: String,
    },
    /// A model that the ranks of an axis cannot share.
    #[error("{axis}={ranks} does not fit {shared}: {axis} can be {}", either(possible, "or"))]
    Fit {
        /// The axis.
        axis: Axis,
        /// Its ranks.
        ranks: usize,
        /// What they cannot share, with its size: "4 KV heads".
        shared: String,
        /// The numbers of ranks that would fit, all else unchanged.
        possible: Vec<usize>,
    },
}

impl Default for Layout {
    fn default() -> Self {
        Self::UNSPLIT
    }
}

impl Layout {
    /// The model in one piece, on one rank.
    pub const UNSPLIT: Self = Self { sizes: [1; AXES], words: 0, limit: None };

    /// The sizes in any order; axes left out have one rank.
    ///
    /// # Errors
    /// If an axis has no ranks or is given twice, or there are more than [`MAX_RANKS`] ranks.
    pub fn new(sizes: &[(Axis, usize)]) -> Result<Self, LayoutError> {
        let mut given = [None; AXES];
        for &(axis, size) in sizes {
            if size == 0 {
                return Err(LayoutError::Size { axis, seen: "0".into() });
            }
            if given[axis as usize].replace(size).is_some() {
                return Err(LayoutError::Twice { axis });
            }
        }
        let sizes_of = given.map(|size| size.unwrap_or(1));
        let ranks = sizes_of.iter().try_fold(1usize, |ranks, &size| ranks.checked_mul(size));
        if ranks.is_none_or(|ranks| ranks > MAX_RANKS) {
            let seen: Vec<_> = sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
            return Err(LayoutError::Many { seen: seen.join(",") });
        }
        Ok(Self { sizes: sizes_of, words: 0, limit: None })
    }
    /// The same with the strategy of a word, such as `sp`.
    ///
    /// # Errors
    /// If the list has no such word, or its axis has one rank only.
    pub fn with(self, word: &str) -> Result<Self, LayoutError> {
        self.beside(word, word)
    }
    /// The same with a word, which was written as `seen`: alone or with the number of its axis' ranks.
    fn beside(self, word: &str, seen: &str) -> Result<Self, LayoutError> {
        let found = strategies::all().into_iter().enumerate().find_map(|(i, about)| match about.key {
            Key::Beside(key, axis) if key == word => Some((i, key, axis, about.name)),
            _ => None,
        });
        let (i, word, axis, name) = found.ok_or_else(|| LayoutError::Unknown { key: word.into() })?;
        let ranks = self.size(axis);
        let number = seen.split_once('=').map(|(_, n)| n.trim());
        if ranks == 1 || number.is_some_and(|n| n != ranks.to_string()) {
            return Err(LayoutError::Beside { seen: seen.into(), word, name, axis, ranks });
        }
        Ok(Self { words: self.words | 1 << i, ..self })
    }
    /// What is said of its strategies: those of axes that are split, and those of its words; in the list's order.
    pub fn strategies(&self) -> Vec<&'static About> {
        let all = strategies::all().into_iter().enumerate();
        all.filter(|(i, about)| self.takes(*i, about.key)).map(|(_, about)| about).collect()
    }
    fn takes(&self, i: usize, key: Key) -> bool {
        match key {
            Key::Ranks(axis) => self.size(axis) > 1,
            Key::Beside(..) => self.words >> i & 1 == 1,
        }
    }
    /// The place where this layout's ranks build a model.
    pub fn place<'a, D: Kernels>(
        &self,
        device: &'a D,
        mesh: &'a Mesh<D::Place>,
        values: &'a dyn Values<Wide<D>>,
    ) -> At<'a, D> {
        let all = strategies::on::<D>().into_iter().enumerate();
        let taken = all.filter(|(i, strategy)| self.takes(*i, strategy.about().key));
        Builder::new(device, mesh, values).with(taken.map(|(_, strategy)| strategy)).into()
    }
    /// How many ranks there are in all.
    pub fn ranks(&self) -> usize {
        self.sizes.iter().product()
    }
    /// How many ranks there are along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }
    /// Every axis that a strategy splits along with its ranks, outermost first: what a world is made of.
    pub fn axes(&self) -> Vec<(Axis, usize)> {
        split_axes().map(|axis| (axis, self.size(axis))).collect()
    }
    /// The world of its ranks, threads of this process.
    ///
    /// # Errors
    /// If there are more ranks than a world can have.
    pub fn world(&self) -> Result<World, CommError> {
        let world = World::threads(&self.axes())?;
        Ok(match self.limit {
            Some(bytes) => world.memory_limit(bytes),
            None => world,
        })
    }
    /// The same layout on ranks of which each may hold so many bytes at once; any number, if none is said. Not printed.
    #[must_use]
    pub fn limited(self, bytes: Option<usize>) -> Self {
        Self { limit: bytes, ..self }
    }
    /// Bytes that each rank may hold at once, if that is limited.
    pub fn memory_limit(&self) -> Option<usize> {
        self.limit
    }
    /// The numbers of ranks along an axis that `fit`, all else unchanged.
    pub fn possible(&self, axis: Axis, fit: impl Fn(usize) -> bool) -> Vec<usize> {
        let limit = MAX_RANKS / (self.ranks() / self.size(axis));
        (1..=limit).filter(|n| fit(*n)).collect()
    }
    /// Whether the ranks of every axis can share a model of this shape.
    ///
    /// # Errors
    /// If an axis has ranks that do not divide what they share; says which numbers do.
    pub fn fits(&self, shape: &Shape) -> Result<(), LayoutError> {
        for (axis, ranks) in self.axes() {
            let shared = self.shared(axis, shape);
            let bad: Vec<_> =
                shared.iter().filter(|s| !s.fits(ranks)).map(|s| format!("{} {}", s.size, s.what)).collect();
            if !bad.is_empty() {
                let possible = self.possible(axis, |n| shared.iter().all(|s| s.fits(n)));
                return Err(LayoutError::Fit { axis, ranks, shared: either(&bad, "and"), possible });
            }
        }
        self.conflict(shape).map_or(Ok(()), |why| Err(LayoutError::Both(why)))
    }
    /// Why two of its words cannot stand together, if so: both would build the same layer of a model of this shape.
    pub fn conflict(&self, shape: &Shape) -> Option<String> {
        if self.words.count_ones() < 2 {
            return None;
        }
        let (device, values) = (Meta::<Cpu<f32>>::default(), Random { seed: 0 });
        let mesh = Mesh::ghost(&self.axes(), 0).ok()?;
        let at = self.place(&device, &mesh, &values);
        let built = Uncountable::caught(|| Block::shard(&at, Axis::Tp, shape, 0, None)).ok()?;
        built.err().filter(|why| matches!(why, layers::Error::Twice { .. })).map(|why| why.to_string())
    }
    /// How many things of a model of this shape the ranks of their axes cannot share.
    pub fn misfits(&self, shape: &Shape) -> usize {
        let of = |(axis, ranks)| self.shared(axis, shape).iter().filter(|s| !s.fits(ranks)).count();
        self.axes().into_iter().map(of).sum()
    }
    /// What the ranks of an axis share, as its strategies say.
    fn shared(&self, axis: Axis, shape: &Shape) -> Vec<Shared> {
        let along = self.strategies().into_iter().filter(|about| about.key.axis() == axis);
        along.flat_map(|about| (about.shares)(shape)).collect()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (axis, size) in self.axes().into_iter().rev().filter(|&(_, size)| size > 1) {
            parts.push(format!("{axis}={size}"));
            parts.extend(self.strategies().into_iter().filter_map(|about| match about.key {
                Key::Beside(word, with) if with == axis => Some(word.to_string()),
                _ => None,
            }));
        }
        f.pad(&if parts.is_empty() { "none".into() } else { parts.join(",") })
    }
}

impl FromStr for Layout {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        if text.trim().is_empty() {
            return Err(LayoutError::Empty);
        }
        let parts: Vec<_> = text.split(',').map(str::trim).collect();
        if parts.contains(&"none") {
            let other =
                (parts.len() > 1).then(|| parts.iter().find(|part| **part != "none").unwrap_or(&"none"));
            return other
                .map_or(Ok(Self::UNSPLIT), |with| Err(LayoutError::Combined { with: (*with).to_owned() }));
        }
        let is_word = |part: &&str| words().contains(&key_of(part));
        let (words, axes): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_word);
        let layout = Self::new(&axes.into_iter().map(split).collect::<Result<Vec<_>, _>>()?)?;
        let keys: Vec<_> = words.iter().map(|part| key_of(part)).collect();
        if let Some((_, twice)) = keys.iter().enumerate().find(|(i, key)| keys[..*i].contains(key)) {
            return Err(LayoutError::Again { word: (*twice).into() });
        }
        words.into_iter().try_fold(layout, |layout, part| layout.beside(key_of(part), part))
    }
}

/// What stands before the `=`, if there is one.
fn key_of(part: &str) -> &str {
    part.split('=').next().unwrap_or(part).trim()
}

/// `axis=ranks`.
fn split(part: &str) -> Result<(Axis, usize), LayoutError> {
    let (key, size) = part.split_once('=').ok_or_else(|| LayoutError::Part { part: part.into() })?;
    let (key, size) = (key.trim(), size.trim());
    let axis = split_axes().find(|axis| axis.name() == key);
    let axis = axis.ok_or_else(|| LayoutError::Unknown { key: key.into() })?;
    if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(LayoutError::Size { axis, seen: size.into() });
    }
    let size = size.parse().map_err(|_| LayoutError::Many { seen: format!("{axis}={size}") })?;
    Ok((axis, size))
}

/// Axes that some strategy splits along, outermost first.
pub fn split_axes() -> impl DoubleEndedIterator<Item = Axis> {
    let has = |axis: &Axis| strategies::all().iter().any(|about| about.key == Key::Ranks(*axis));
    Axis::ALL.iter().copied().filter(has)
}

/// Their names, innermost first.
fn names() -> Vec<&'static str> {
    split_axes().rev().map(Axis::name).collect()
}

/// Words that go beside an axis.
fn words() -> Vec<&'static str> {
    let word = |about: &'static About| match about.key {
        Key::Beside(word, _) => Some(word),
        Key::Ranks(_) => None,
    };
    strategies::all().into_iter().filter_map(word).collect()
}

fn or_words() -> String {
    let words = words();
    if words.is_empty() { String::new() } else { format!(", and beside them {}", either(&words, "or")) }
}

fn beside_them() -> String {
    let words = words();
    if words.is_empty() { String::new() } else { format!(", and beside them {}", either(&words, "and")) }
}

/// How a layout is written, for `--help`.
#[must_use]
pub fn grammar() -> String {
    let mut said: Vec<_> = names().iter().map(|axis| format!("{axis}=2")).collect();
    said.push(example());
    let of = |about: &About| match about.key {
        Key::Beside(word, axis) => Some(format!("; {word} for {}: {axis}=2,{word}", about.name)),
        Key::Ranks(_) => None,
    };
    let beside: String = strategies::all().into_iter().filter_map(of).collect();
    format!("Ranks along each axis: none, {}, ...{beside}", said.join(", "))
}

fn example() -> String {
    names().iter().map(|name| format!("{name}=2")).collect::<Vec<_>>().join(",")
}

/// "1", "1 or 2", "1, 2 or 4".
fn either<T: fmt::Display>(all: &[T], last: &str) -> String {
    let words: Vec<_> = all.iter().map(T::to_string).collect();
    match words.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests;
