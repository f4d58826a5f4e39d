//! Canonical names ↔ Hugging Face names. Our fused matrices are several of theirs side by side. Their names
//! end in `.weight` or `.bias`; ours only in `.bias`. Most of their linear layers are `[outputs, inputs]`,
//! ours are `[inputs, outputs]`. A family's file lists its names
//! ([`Family::entries`](crate::config::Family::entries)).
use crate::Config;
use layers::{NormKind, Shape};
use parallel::{Entry, Orientation};
use std::fmt::Display;
use std::ops::Range;

/// Name of the head, in every family.
pub const HEAD: &str = "lm_head.weight";

/// Returns every tensor of a file in the Hugging Face layout, in the program order of our parameters.
pub fn entries(config: &Config) -> Vec<Entry> {
    config.family.entries(&config.shape)
}

/// Returns the same entries under a file's own names: GPT-2's may lack their prefix, and experts may be
/// fused.
pub fn entries_in<'a>(config: &Config, names: impl Iterator<Item = &'a str>) -> Vec<Entry> {
    let mut entries = entries(config);
    config.family.rename(&mut entries, &config.shape, &names.collect::<Vec<_>>());
    entries
}

/// Returns the name of the embedding's table, in a file with these entries.
pub fn embedding(entries: &[Entry]) -> &str {
    &entries.iter().find(|entry| entry.param == "embedding").expect("every model has one").name
}

/// Returns true if a file may hold this tensor besides the parameters: masks and frequencies, which older
/// versions of `transformers` wrote and no version reads, blocks that predict further tokens, and the head of
/// a model that uses the embedding's table.
pub fn is_ignored(config: &Config, name: &str) -> bool {
    if name == HEAD { config.shape.tied } else { config.family.is_spare(&config.shape, name) }
}

/// List of entries under construction, for a model of this shape.
pub(crate) struct Entries<'a> {
    all: Vec<Entry>,
    pub(crate) shape: &'a Shape,
    linear: Orientation,
    /// Prefixes of their names, and of ours.
    pub(crate) within: [String; 2],
    /// True if files have gains of norms less 1.
    pub(crate) plus_one: bool,
}

impl<'a> Entries<'a> {
    /// Begins a list for a family whose linear layers have this orientation.
    pub(crate) fn of(shape: &'a Shape, linear: Orientation) -> Self {
        Self { all: Vec::new(), shape, linear, within: Default::default(), plus_one: false }
    }
    /// Adds the head, unless it is tied, and returns the whole list.
    pub(crate) fn with_head(mut self) -> Vec<Entry> {
        let Shape { width, vocabulary, tied, .. } = *self.shape;
        if !tied {
            self.add(HEAD, "head", width, 0..vocabulary, Orientation::Transposed);
        }
        self.all
    }
    /// Adds a feed-forward with `f` hidden features and a gate; theirs has gate and up as one matrix if it is
    /// `fused`.
    pub(crate) fn gated(&mut self, theirs: &str, ours: &str, f: usize, fused: bool) {
        let Shape { width: d, bias, .. } = *self.shape;
        let parts = if fused { vec![("gate_up", 0..2 * f)] } else { vec![("gate", 0..f), ("up", f..2 * f)] };
        let named = |(name, columns)| (format!("{theirs}.{name}_proj"), columns);
        let parts: Vec<_> = parts.into_iter().map(named).collect();
        self.linear(&parts, &format!("{ours}.gate_up"), d, bias.mlp);
        self.linear(&[named(("down", 0..d))], &format!("{ours}.down"), f, bias.mlp);
    }
    /// Adds a table with this number of rows.
    pub(crate) fn table(&mut self, theirs: &str, ours: &str, rows: usize) {
        self.add(&format!("{theirs}.weight"), ours, rows, 0..self.shape.width, Orientation::Same);
    }
    /// Adds the gain of a norm over this number of features, and its bias if norms have one.
    pub(crate) fn norm(&mut self, theirs: &str, ours: &str, features: usize) {
        self.vector(&format!("{theirs}.weight"), ours, 0..features);
        self.all.iter_mut().last().expect("just added").plus_one = self.plus_one;
        if self.shape.norm == NormKind::Layer {
            self.bias(theirs, ours, 0..features);
        }
    }
    /// Adds a linear layer with this number of inputs. `theirs` are side by side, each with its columns of
    /// ours; their biases follow if `has_bias`.
    pub(crate) fn linear(
        &mut self,
        theirs: &[(impl Display, Range<usize>)],
        ours: &str,
        inputs: usize,
        has_bias: bool,
    ) {
        for (name, columns) in theirs {
            self.add(&format!("{name}.weight"), ours, inputs, columns.clone(), self.linear);
        }
        for (name, columns) in theirs.iter().filter(|_| has_bias) {
            self.bias(name, ours, columns.clone());
        }
    }
    fn bias(&mut self, theirs: impl Display, ours: &str, columns: Range<usize>) {
        self.vector(&format!("{theirs}.bias"), &format!("{ours}.bias"), columns);
    }
    /// Adds a vector that holds these columns of a parameter.
    pub(crate) fn vector(&mut self, name: &str, param: &str, columns: Range<usize>) {
        self.add(name, param, 1, columns, Orientation::Vector);
    }
    fn add(
        &mut self,
        name: &str,
        param: &str,
        height: usize,
        columns: Range<usize>,
        orientation: Orientation,
    ) {
        let (name, param, rows) = (name.to_owned(), param.to_owned(), 0..height);
        self.push(Entry { name, param, height, rows, columns, orientation, within: None, plus_one: false });
    }
    /// Adds an entry; its names get the prefixes.
    pub(crate) fn push(&mut self, entry: Entry) {
        let [theirs, ours] = &self.within;
        let (name, param) = (theirs.clone() + &entry.name, ours.clone() + &entry.param);
        self.all.push(Entry { name, param, ..entry });
    }
}

#[cfg(test)]
pub(crate) mod tests;
