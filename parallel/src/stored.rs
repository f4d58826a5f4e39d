//! Parameters in safetensors files: which tensor of a file is which part of which parameter. A rank that builds its
//! share from here touches only the bytes of that share.
use crate::Result;
use crate::bail;
use layers::model::build::Element;
use layers::{Draw, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tensor::Scalar;
use tensor::quoted::quoted;
use tensor::safetensors::{Matrix, Shards};

/// How a part lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// `[rows, columns]`, as in the parameter.
    Same,
    /// `[columns, rows]`: the other way round.
    Transposed,
    /// `[columns]`: a parameter of one row.
    Vector,
}

/// One tensor of a file: these columns of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the file.
    pub name: String,
    /// The parameter's canonical name.
    pub param: String,
    /// Rows of the parameter.
    pub rows: usize,
    /// Which of its columns.
    pub columns: Range<usize>,
    /// How they lie.
    pub orientation: Orientation,
}

impl Entry {
    /// The tensor's shape in the file.
    pub fn shape(&self) -> Vec<usize> {
        match self.orientation {
            Orientation::Same => vec![self.rows, self.columns.len()],
            Orientation::Transposed => vec![self.columns.len(), self.rows],
            Orientation::Vector => vec![self.columns.len()],
        }
    }
    /// The part's values in the order of the file, out of the whole parameter `[rows, cols]`, row-major.
    pub fn arrange<E: Scalar, T>(&self, whole: &[E], to: impl Fn(E) -> T) -> Vec<T> {
        let cols = whole.len() / self.rows;
        let by_columns = self.orientation == Orientation::Transposed;
        let [outer, inner] = if by_columns {
            [self.columns.clone(), 0..self.rows]
        } else {
            [0..self.rows, self.columns.clone()]
        };
        let index = |o: usize, i: usize| if by_columns { i * cols + o } else { o * cols + i };
        outer.flat_map(|o| inner.clone().map(move |i| (o, i))).map(|(o, i)| to(whole[index(o, i)])).collect()
    }
}

/// Files together with their meaning: a source of initial values.
pub struct Stored {
    shards: Shards,
    entries: Vec<Entry>,
    parts: BTreeMap<String, Vec<usize>>, // which entries a parameter is made of
}

impl Stored {
    /// Checks that the files hold exactly these tensors, in these shapes, and besides them only what is passed over.
    ///
    /// # Errors
    /// Naming the first tensor that is missing, too much, or of another shape.
    pub fn new(
        shards: impl Into<Shards>,
        entries: Vec<Entry>,
        is_passed_over: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let shards = shards.into();
        let mut parts = BTreeMap::<_, Vec<_>>::new();
        for (at, entry) in entries.iter().enumerate() {
            matrix(&shards, entry)?;
            parts.entry(entry.param.clone()).or_default().push(at);
        }
        let known: BTreeSet<_> = entries.iter().map(|entry| &*entry.name).collect();
        if let Some(name) = shards.names().find(|name| !known.contains(name) && !is_passed_over(name)) {
            let (path, name) = (shards.path(), quoted(name));
            bail!("{path}: there is a tensor {name} that is no part of this model");
        }
        Ok(Self { shards, entries, parts })
    }
    /// The files.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }
    /// Which tensors of theirs are which parts.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
    /// One of these tensors, as it lies in its file.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn tensor(&self, entry: &Entry) -> Result<Matrix<'_>> {
        matrix(&self.shards, entry)
    }
}

fn matrix<'a>(shards: &'a Shards, entry: &Entry) -> Result<Matrix<'a>> {
    let shape = entry.shape();
    Ok(shards.matrix(&entry.name, if shape.len() == 1 { [1, shape[0]] } else { [shape[0], shape[1]] })?)
}

impl<E: Scalar> Values<E> for Stored {
    fn of(&self, name: &str, shape: [usize; 2], _: Draw) -> layers::Result<Element<'_, E>> {
        let fail = layers::Error::Cannot;
        let mut parts = Vec::new();
        let mut covered = 0;
        for entry in self.parts.get(name).into_iter().flatten().map(|at| &self.entries[*at]) {
            if entry.rows != shape[0] || entry.columns.start != covered {
                return Err(fail(format!("the parts of {name} in the file do not make up {shape:?}")));
            }
            covered = entry.columns.end;
            let matrix = self.tensor(entry).map_err(|why| fail(why.to_string()))?;
            parts.push((entry.columns.clone(), matrix, entry.orientation == Orientation::Transposed));
        }
        if covered != shape[1] {
            return Err(fail(format!("the file holds {covered} of the {} columns of {name}", shape[1])));
        }
        Ok(Box::new(move |[row, column]| {
            let found = parts.iter().find(|(columns, ..)| columns.contains(&column));
            let (columns, matrix, transposed) = found.expect("all columns are covered");
            let column = column - columns.start;
            E::from_f64(if *transposed { matrix.get(column, row) } else { matrix.get(row, column) })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(orientation: Orientation) -> Entry {
        Entry { name: "theirs".into(), param: "ours".into(), rows: 2, columns: 1..3, orientation }
    }

    /// Kills: a part written or read from the wrong columns, a transpose forgotten on one of the two ways.
    #[test]
    fn parts_lie_as_their_entries_say() {
        let whole: Vec<f64> = (0..8).map(f64::from).collect(); // [2, 4]
        assert_eq!(entry(Orientation::Same).arrange(&whole, |x| x), [1.0, 2.0, 5.0, 6.0]);
        assert_eq!(entry(Orientation::Transposed).arrange(&whole, |x| x), [1.0, 5.0, 2.0, 6.0]);
        let vector = Entry { rows: 1, columns: 0..8, ..entry(Orientation::Vector) };
        assert_eq!((vector.arrange(&whole, |x| x), vector.shape()), (whole, vec![8]));
    }
}
