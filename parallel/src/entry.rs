//! Tensors of a file as parts of parameters: rows and columns, and how they lie.
use std::ops::Range;
use tensor::Scalar;
use tensor::safetensors::Matrix;

/// Orientation of a part in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// `[rows, columns]`, as in the parameter.
    Same,
    /// `[columns, rows]`: transposed.
    Transposed,
    /// `[rows, columns]`, whose columns are, in turn, one of the first half of these and one of the second.
    Alternate,
    /// `[columns]`: a parameter of one row.
    Vector,
}

/// One tensor of a file: some rows and columns of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the file.
    pub name: String,
    /// The parameter's canonical name.
    pub param: String,
    /// Number of rows of the parameter.
    pub height: usize,
    /// The parameter's rows in the tensor.
    pub rows: Range<usize>,
    /// The parameter's columns in the tensor.
    pub columns: Range<usize>,
    /// Orientation in the file.
    pub orientation: Orientation,
    /// Place of the matrix, or its cut, if the tensor of this name stacks several.
    pub within: Option<Stacked>,
    /// True if the parameter is the tensor plus 1.
    pub plus_one: bool,
}

/// Matrices that are one tensor `[count, rows, columns]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stacked {
    /// The part is one of them, or some rows of one.
    One {
        /// The tensor's `count` and `rows`.
        stack: [usize; 2],
        /// The part's first row, of all `count × rows`.
        first: usize,
    },
    /// The part is all of them: so many, each in the part's orientation, one below the other.
    All(usize),
}

impl Entry {
    /// A tensor that is a whole parameter of this shape, with the same name and orientation.
    pub fn whole(name: String, [height, width]: [usize; 2]) -> Self {
        let (param, orientation) = (name.clone(), Orientation::Same);
        let [rows, columns] = [height, width].map(|n| 0..n);
        Self { name, param, height, rows, columns, orientation, within: None, plus_one: false }
    }
    /// The tensor's shape in the file, or that of its part.
    pub fn shape(&self) -> Vec<usize> {
        let count = if let Some(Stacked::All(count)) = self.within { Some(count) } else { None };
        let [rows, columns] = [self.rows.len() / count.unwrap_or(1), self.columns.len()];
        let of_one = match self.orientation {
            Orientation::Same | Orientation::Alternate => vec![rows, columns],
            Orientation::Transposed => vec![columns, rows],
            Orientation::Vector => vec![columns],
        };
        count.into_iter().chain(of_one).collect()
    }
    /// Returns the parameter's rows that are turned together: those of each matrix; if none is turned, all.
    pub(crate) fn bands(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let count = match (self.orientation, &self.within) {
            (Orientation::Transposed, Some(Stacked::All(count))) => *count,
            _ => 1,
        };
        let first = self.rows.start;
        let n = self.rows.len() / count;
        (0..count).map(move |i| first + i * n..first + (i + 1) * n)
    }
    /// Returns the rows of the file that hold these rows of the parameter, which are turned together.
    pub(crate) fn matrix_of<'a>(&self, matrix: Matrix<'a>, rows: &Range<usize>) -> Matrix<'a> {
        if self.orientation != Orientation::Transposed {
            return matrix;
        }
        let first = (rows.start - self.rows.start) / rows.len() * self.columns.len();
        matrix.band(first..first + self.columns.len())
    }
    /// Returns the part's columns, counted from its first, in the order of the file.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let n = self.columns.len();
        let half = if self.orientation == Orientation::Alternate { n / 2 } else { 0 };
        (0..n).map(move |j| if half > 0 { j % 2 * half + j / 2 } else { j })
    }
    /// Returns the part's values in the order of the file, from the whole parameter `[height, cols]`,
    /// row-major.
    pub fn arrange<E: Scalar, T>(&self, whole: &[E], to: impl Fn(E) -> T) -> Vec<T> {
        let cols = whole.len() / self.height;
        let columns = self.order().map(|column| self.columns.start + column);
        let value = |row: usize, column: usize| to(whole[row * cols + column]);
        let mut values = Vec::with_capacity(self.rows.len() * self.columns.len());
        for rows in self.bands() {
            if self.orientation == Orientation::Transposed {
                columns.clone().for_each(|column| values.extend(rows.clone().map(|row| value(row, column))));
            } else {
                rows.for_each(|row| values.extend(columns.clone().map(|column| value(row, column))));
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(orientation: Orientation) -> Entry {
        Entry {
            name: "theirs".into(),
            param: "ours".into(),
            height: 4,
            rows: 1..3,
            columns: 1..3,
            orientation,
            within: None,
            plus_one: false,
        }
    }

    /// Kills: a part written or read from the wrong columns, a transpose forgotten on one of the two ways.
    #[test]
    fn parts_lie_as_their_entries_say() {
        let whole: Vec<f64> = (0..16).map(f64::from).collect(); // [4, 4]
        assert_eq!(entry(Orientation::Same).arrange(&whole, |x| x), [5.0, 6.0, 9.0, 10.0]);
        assert_eq!(entry(Orientation::Transposed).arrange(&whole, |x| x), [5.0, 9.0, 6.0, 10.0]);
        let vector = Entry { height: 1, rows: 0..1, columns: 0..16, ..entry(Orientation::Vector) };
        assert_eq!((vector.arrange(&whole, |x| x), vector.shape()), (whole.clone(), vec![16]));
        let all = Entry::whole("x".into(), [2, 8]);
        assert_eq!((all.arrange(&whole, |x| x), all.shape()), (whole.clone(), vec![2, 8]));
        let both = |orientation| {
            let of = Entry { orientation, within: Some(Stacked::All(2)), ..Entry::whole("x".into(), [4, 4]) };
            (of.shape(), of.arrange(&whole, |x| x as u32))
        };
        let turned = vec![0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];
        let alternate = vec![0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15];
        assert_eq!(both(Orientation::Transposed), (vec![2, 4, 2], turned));
        assert_eq!(both(Orientation::Alternate), (vec![2, 2, 4], alternate));
    }
}
