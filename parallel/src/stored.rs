//! Parameters in safetensors files: which tensor of a file is which part of which parameter. A rank that
//! builds its local part from files reads only the bytes of that part.
use crate::{Entry, Orientation, Result, Stacked, bail};
use ops::{Draw, ParamValues, ValueSource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use tensor::Scalar;
use tensor::bulk::transpose;
use tensor::quoted::quoted;
use tensor::safetensors::{File, Matrix};

/// Files with their entries: a source of initial values.
pub struct Stored {
    shards: File,
    entries: Vec<Entry>,
    parts: BTreeMap<String, Vec<usize>>, // by parameter: the entries that it is made of
}

impl Stored {
    /// Checks that the files hold exactly these tensors, in these shapes, and beside them only tensors that
    /// are passed over.
    ///
    /// # Errors
    /// Names the first tensor that is missing, unexpected, or of another shape.
    pub fn new(shards: File, entries: Vec<Entry>, is_passed_over: impl Fn(&str) -> bool) -> Result<Self> {
        let mut parts = BTreeMap::<_, Vec<_>>::new();
        for (at, entry) in entries.iter().enumerate() {
            matrix(&shards, entry)?;
            parts.entry(entry.param.clone()).or_default().push(at);
        }
        let known: BTreeSet<_> = entries.iter().map(|entry| &*entry.name).collect();
        if let Some(name) = shards.names().find(|name| !known.contains(name) && !is_passed_over(name)) {
            let name = quoted(name);
            bail!("{}: the tensor {name} is not part of this model", shards.path());
        }
        Ok(Self { shards, entries, parts })
    }
    /// The files.
    pub fn shards(&self) -> &File {
        &self.shards
    }
    /// The entries of the files' tensors.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
    /// Returns one of these tensors, as it is in its file.
    ///
    /// # Errors
    /// If the files have no such tensor of this shape.
    pub fn tensor(&self, entry: &Entry) -> Result<Matrix<'_>> {
        matrix(&self.shards, entry)
    }
}

fn matrix<'a>(shards: &'a File, entry: &Entry) -> Result<Matrix<'a>> {
    let name = &entry.name;
    Ok(match (&entry.within, &entry.shape()[..]) {
        (Some(Stacked::One { stack: [count, of_one], first }), [rows, columns]) => {
            shards.stack(name, [*count, *of_one, *columns])?.band(*first..first + rows)
        }
        (_, [count, rows, columns]) => shards.stack(name, [*count, *rows, *columns])?,
        (_, [rows, columns]) => shards.matrix(name, [*rows, *columns])?,
        (_, columns) => shards.matrix(name, [1, columns[0]])?,
    })
}

impl<E: Scalar> ValueSource<E> for Stored {
    fn of(&self, name: &str, shape: [usize; 2], _: Draw) -> ops::Result<ParamValues<'_, E>> {
        let fail = ops::Error::Cannot;
        let unlike = || fail(format!("the parts of {name} in the file do not make up {shape:?}"));
        let mut parts = Vec::new();
        let mut band = 0..0;
        let mut covered = shape[1]; // rows of side-by-side parts, and columns so far
        for entry in self.parts.get(name).into_iter().flatten().map(|at| &self.entries[*at]) {
            if covered == shape[1] {
                (band, covered) = (band.end..entry.rows.end, 0);
            }
            if entry.height != shape[0] || entry.rows != band || entry.columns.start != covered {
                return Err(unlike());
            }
            covered = entry.columns.end;
            parts.push((entry, self.tensor(entry).map_err(|why| fail(why.to_string()))?));
        }
        if covered != shape[1] || band.end != shape[0] {
            return Err(unlike());
        }
        let names: Vec<_> = parts.iter().map(|(part, _)| &part.name).collect();
        let not_finite = Arc::new(OnceLock::new());
        let seen = not_finite.clone();
        let intact = move || {
            names
                .iter()
                .try_for_each(|name| self.shards.intact(name).map_err(|why| fail(why.to_string())))?;
            seen.get().map_or(Ok(()), |(name, x): &(&String, f64)| {
                let (path, name, kind) = (self.shards.path(), quoted(name), E::NAME);
                let why =
                    if x.is_finite() { format!("is too large for {kind}") } else { "is not finite".into() };
                Err(fail(format!("{path}: tensor {name} has the value {x}, which {why}")))
            })
        };
        let values = ParamValues::rows(move |begin, [cols, stride], to: &mut [E]| {
            let end = [begin[0] + to.len().div_ceil(stride), begin[1] + cols];
            let bands = |(part, matrix)| Entry::bands(part).map(move |rows| (part, matrix, rows));
            for (part, matrix, rows) in parts.iter().map(|(part, matrix)| (*part, *matrix)).flat_map(bands) {
                let ranges = [&rows, &part.columns];
                let [from, to_end] = [
                    [0, 1].map(|dim| ranges[dim].start.max(begin[dim])),
                    [0, 1].map(|dim| ranges[dim].end.min(end[dim])),
                ];
                if from[0] < to_end[0] && from[1] < to_end[1] {
                    let to = &mut to[(from[0] - begin[0]) * stride + from[1] - begin[1]..];
                    let shape = [to_end[0] - from[0], to_end[1] - from[1]];
                    let offset = [from[0] - ranges[0].start, from[1] - ranges[1].start];
                    let matrix = part.matrix_of(matrix, &rows);
                    set(&matrix, part.orientation, offset, shape, (to, stride));
                    if part.plus_one {
                        to[..shape[1]].iter_mut().for_each(|x| *x += E::ONE); // gains are one row
                    }
                    if let Some([row, column]) = find_not_finite(to, stride, shape) {
                        let mut value = [0.0];
                        let offset = [offset[0] + row, offset[1] + column];
                        set(&matrix, part.orientation, offset, [1, 1], (&mut value, 1));
                        let _ = not_finite.set((&part.name, value[0]));
                    }
                }
            }
        });
        Ok(values.checked(intact))
    }
}

/// Returns the place of a value that is not finite among these rows, which are `stride` apart.
fn find_not_finite<E: Scalar>(of: &[E], stride: usize, [rows, cols]: [usize; 2]) -> Option<[usize; 2]> {
    let mut lines = of.chunks(stride).take(rows).enumerate();
    let place = |(row, line): (usize, &[E])| Some([row, line[..cols].iter().position(|x| !x.is_finite())?]);
    lines.find_map(place)
}

/// Sets rows that are `stride` apart from a rectangle of a matrix of the file in this orientation.
fn set<E: Scalar>(
    matrix: &Matrix,
    orientation: Orientation,
    [row, column]: [usize; 2],
    shape: [usize; 2],
    (to, stride): (&mut [E], usize),
) {
    let end = column + shape[1];
    if orientation == Orientation::Alternate {
        let half = matrix.cols() / 2;
        let mut room = vec![E::ZERO; 2 * shape[1]];
        for (to, row) in to.chunks_mut(stride).zip(row..row + shape[0]) {
            for (i, begin) in [0, half].into_iter().enumerate() {
                let columns = column.max(begin)..end.min(begin + half);
                if !columns.is_empty() {
                    let room = &mut room[..2 * columns.len() - 1];
                    matrix.row(row, 2 * (columns.start - begin) + i, room);
                    let some = to[columns.start - column..].iter_mut().zip(room.iter().step_by(2));
                    some.for_each(|(to, x)| *to = *x);
                }
            }
        }
        return;
    }
    if orientation != Orientation::Transposed {
        let lines = to.chunks_mut(stride).zip(row..row + shape[0]);
        return lines.for_each(|(to, row)| matrix.row(row, column, &mut to[..shape[1]]));
    }
    // a band of the file's rows at a time, which are columns here
    let mut room = vec![E::ZERO; BAND.min(shape[1]) * shape[0]];
    for columns in (0..shape[1]).step_by(BAND).map(|at| at..shape[1].min(at + BAND)) {
        for (line, at) in room.chunks_mut(shape[0]).zip(columns.clone()) {
            matrix.row(column + at, row, line);
        }
        transpose(&room, shape[0], [columns.len(), shape[0]], &mut to[columns.start..], stride);
    }
}

/// Rows of the file that are turned at a time.
const BAND: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use tensor::F16;
    use tensor::dtype::Dtype;
    use tensor::safetensors::Writer;

    /// Reads every rectangle of several matrices in one tensor. Kills: a matrix that begins where another
    /// does, a half of the columns for the other, a column beside the one that is asked for.
    #[test]
    fn matrices_in_one_tensor_are_read_alike() {
        for orientation in [Orientation::Same, Orientation::Transposed, Orientation::Alternate] {
            let within = Some(Stacked::All(3));
            let entry = Entry { orientation, within, ..Entry::whole("ours".into(), [6, 4]) };
            let (_folder, stored) = stored(vec![entry]);
            let draw = Draw { mean: 0.0, std: 0.0 };
            let numbers = ValueSource::<f64>::of(&stored, "ours", [6, 4], draw).unwrap();
            for (row, column) in (0..24).map(|i| (i / 4, i % 4)) {
                for (rows, cols) in
                    (1..=6 - row).flat_map(|rows| (1..=4 - column).map(move |cols| (rows, cols)))
                {
                    let mut some = vec![-1.0; rows * cols];
                    numbers.set_rows([row, column], [cols, cols], &mut some);
                    let wanted = (0..rows * cols).map(|i| (4 * (row + i / cols) + column + i % cols) as f64);
                    assert!(some.into_iter().eq(wanted), "{orientation:?} {row} {column}: {rows} × {cols}");
                }
            }
        }
    }

    /// A parameter of five rows and three columns, in parts of so many rows and columns, one below and beside
    /// the other.
    fn parts(cuts: [&[usize]; 2]) -> Vec<Entry> {
        let ranges = |cuts: &[usize]| cuts.windows(2).map(|two| two[0]..two[1]).collect::<Vec<_>>();
        let [rows, columns] = cuts.map(ranges);
        let both = rows.iter().flat_map(|rows| columns.iter().map(move |columns| (rows, columns)));
        let of = |(i, (rows, columns)): (usize, (&Range<usize>, &Range<usize>))| Entry {
            name: i.to_string(),
            param: "ours".into(),
            height: 5,
            rows: rows.clone(),
            columns: columns.clone(),
            orientation: [Orientation::Same, Orientation::Transposed][i % 2],
            within: None,
            plus_one: false,
        };
        both.enumerate().map(of).collect()
    }
    fn stored(entries: Vec<Entry>) -> (tempfile::TempDir, Stored) {
        stored_of(entries, |i| i as f64)
    }
    fn stored_of(entries: Vec<Entry>, number: impl Fn(usize) -> f64) -> (tempfile::TempDir, Stored) {
        let folder = tempfile::tempdir().unwrap();
        let header: Vec<_> = entries.iter().map(|e| (&e.name, Dtype::F64, e.shape())).collect();
        let mut writer = Writer::create(&folder.path().join("x"), &BTreeMap::new(), &header).unwrap();
        let numbers = entries.iter().map(|entry| entry.height * entry.columns.end).max().unwrap_or(0);
        let whole: Vec<f64> = (0..numbers).map(number).collect();
        for entry in &entries {
            writer.tensor(&entry.name, &entry.arrange(&whole, |x| x)).unwrap();
        }
        writer.finish().unwrap();
        let file = File::open(&folder.path().join("x")).unwrap();
        (folder, Stored::new(file, entries, |_| false).unwrap())
    }

    /// Kills: a number out of the part above or beside, a part of other rows taken for one below.
    #[test]
    fn every_number_is_found_in_its_part() {
        for rows in [&[0, 5][..], &[0, 2, 5], &[0, 1, 2, 4, 5]] {
            for columns in [&[0, 3][..], &[0, 1, 3], &[0, 1, 2, 3]] {
                let (_folder, stored) = stored(parts([rows, columns]));
                let draw = Draw { mean: 0.0, std: 0.0 };
                let numbers = ValueSource::<f64>::of(&stored, "ours", [5, 3], draw).unwrap();
                for (first, end) in [(0, 3), (0, 1), (1, 3), (1, 2), (2, 3), (1, 1)] {
                    for row in 0..5 {
                        let mut some = vec![-1.0; end - first];
                        numbers.set([row, first], &mut some);
                        let wanted = (first..end).map(|column| (3 * row + column) as f64);
                        assert!(some.into_iter().eq(wanted), "{rows:?} × {columns:?}");
                    }
                }
            }
        }
    }

    /// Kills: a value that is infinite in a narrow dtype and passes, another one that is named, one of a part
    /// that was not read.
    #[test]
    fn values_that_a_dtype_cannot_hold_are_named() {
        let draw = Draw { mean: 0.0, std: 0.0 };
        for orientation in [Orientation::Same, Orientation::Transposed] {
            let entry = Entry { orientation, ..Entry::whole("ours".into(), [4, 3]) };
            for (value, says) in [
                (-1e5, "tensor \"ours\" has the value -100000, which is too large for f16"),
                (f64::NAN, "tensor \"ours\" has the value NaN, which is not finite"),
            ] {
                let (_folder, stored) =
                    stored_of(vec![entry.clone()], |i| if i == 7 { value } else { i as f64 });
                let read = |[row, column]: [usize; 2]| {
                    let values = ValueSource::<F16>::of(&stored, "ours", [4, 3], draw).unwrap();
                    values.set_rows([row, column], [2, 2], &mut [F16::ZERO; 4]);
                    values.check().map_err(|why| why.to_string())
                };
                assert!(read([1, 1]).unwrap_err().ends_with(says), "{:?}", read([1, 1]));
                assert_eq!(read([0, 0]), Ok(()), "the value is in another row");
            }
        }
    }

    /// Kills: what is read at a time begins where the last began.
    #[test]
    fn long_rows_are_read_piece_by_piece() {
        for orientation in [Orientation::Same, Orientation::Transposed] {
            let entry = Entry { orientation, ..Entry::whole("ours".into(), [2, 1300]) };
            let (_folder, stored) = stored(vec![entry]);
            let numbers =
                ValueSource::<f64>::of(&stored, "ours", [2, 1300], Draw { mean: 0.0, std: 0.0 }).unwrap();
            let mut row = vec![0.0; 1299];
            numbers.set([1, 1], &mut row);
            assert!(row.into_iter().eq((1301..2600).map(f64::from)), "{orientation:?}");
        }
    }

    /// Kills: a digest that is checked of the first of several tensors only.
    #[test]
    fn every_tensor_of_a_parameter_is_checked_against_its_digest() {
        let draw = Draw { mean: 0.0, std: 0.0 };
        let (folder, stored) = stored(parts([&[0, 2, 5], &[0, 1, 3]]));
        let path = folder.path().join("x");
        let (whole, data) = (std::fs::read(&path).unwrap(), 8 * 15);
        drop(stored);
        let altered = |at: usize| {
            let mut bytes = whole.clone();
            bytes[whole.len() - data + at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let file = File::open(&path).unwrap();
            let stored = Stored::new(file, parts([&[0, 2, 5], &[0, 1, 3]]), |_| false).unwrap();
            let values = ValueSource::<f64>::of(&stored, "ours", [5, 3], draw).unwrap();
            values.set_rows([0, 0], [3, 3], &mut [0.0; 15]);
            values.check().unwrap_err().to_string()
        };
        for (tensor, first) in [0, 2, 6, 9].into_iter().enumerate() {
            let why = altered(8 * first);
            assert!(why.contains(&format!("tensor \"{tensor}\" is torn or altered")), "{why}");
        }
    }

    #[test]
    fn parts_that_are_not_all_of_a_parameter_are_refused() {
        let whole = || parts([&[0, 2, 5], &[0, 1, 3]]);
        let refused = |change: &dyn Fn(&mut Vec<Entry>)| {
            let mut entries = whole();
            change(&mut entries);
            let (_folder, stored) = stored(entries);
            let why =
                ValueSource::<f64>::of(&stored, "ours", [5, 3], Draw { mean: 0.0, std: 0.0 }).err().unwrap();
            assert_eq!(why.to_string(), "the parts of ours in the file do not make up [5, 3]");
        };
        for i in 0..4 {
            refused(&|entries| drop(entries.remove(i)));
        }
        refused(&|entries| entries.clear());
        refused(&|entries| entries.swap(1, 2));
        refused(&|entries| entries[0].rows = 0..1);
        refused(&|entries| entries[3].rows = 3..5);
        refused(&|entries| entries[3].columns = 1..2);
    }
}
