//! A matrix in a file: elements read from where they lie, one by one or as part of a row or a column.
use super::digest::TensorBlocks;
use crate::dtype::{Dtype, FileFloats, size};
use crate::files::seen::ReadTally;
use crate::{Scalar, bulk};
use std::ops::Range;

/// A matrix in a file. It reads exactly the bytes of the elements requested.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    bytes: &'a [u8],
    dtype: Dtype,
    rows: usize,
    cols: usize,
    watched: ReadChecks<'a>,
}

/// The tensor of a matrix, for checks of what is read.
#[derive(Clone, Copy, Default)]
pub(super) struct ReadChecks<'a> {
    pub(super) tally: Option<&'a ReadTally>,
    /// Digests, and all bytes of the tensor.
    pub(super) blocks: Option<(&'a TensorBlocks, &'a [u8])>,
    /// Index in the tensor of the matrix's first element.
    pub(super) first: usize,
}

impl<'a> Matrix<'a> {
    /// Interprets these bytes as a float matrix, row-major.
    pub(super) fn new(
        bytes: &'a [u8],
        dtype: Dtype,
        [rows, cols]: [usize; 2],
        watched: ReadChecks<'a>,
    ) -> Self {
        Self { bytes, dtype, rows, cols, watched }
    }
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Returns one element, exactly as in the file.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn get(&self, row: usize, col: usize) -> f64 {
        let mut one = [0.0];
        self.row(row, col, &mut one);
        one[0]
    }
    /// Reads columns `from..from + out.len()` of a row, each converted as a constant: as it is in the file if
    /// the dtype holds it.
    ///
    /// # Panics
    /// If the matrix does not have all of them.
    pub fn row<E: Scalar>(&self, row: usize, from: usize, out: &mut [E]) {
        let cols = from..from.checked_add(out.len()).expect("the columns overflow");
        assert!(row < self.rows && cols.end <= self.cols, "row {row}, columns {cols:?} outside of {self:?}");
        self.convert(row * self.cols + from, out);
    }
    /// Converts elements from element `first` on.
    fn convert<E: Scalar>(&self, first: usize, out: &mut [E]) {
        let size = size(self.dtype);
        let begin = self.watched.first + first;
        let bytes = self.bytes.get(first * size..).unwrap_or_default();
        self.digest(begin..begin + out.len());
        bulk::read(FileFloats { bytes, dtype: self.dtype }, out);
        if let Some(tally) = self.watched.tally {
            tally.count(begin, &bytes[..out.len() * size], size);
        }
    }
    /// Checks the digests of these elements of the tensor, unless they were read before.
    fn digest(&self, elements: Range<usize>) {
        if let Some((blocks, tensor)) = self.watched.blocks {
            let size = size(self.dtype);
            blocks.read(tensor, elements.start * size..elements.end * size);
        }
    }
    /// Returns only these rows.
    ///
    /// # Panics
    /// If the matrix does not have all of them.
    #[must_use]
    pub fn band(self, rows: Range<usize>) -> Self {
        let width = self.cols * size(self.dtype);
        assert!(rows.end <= self.rows, "rows {rows:?} outside of {self:?}");
        let watched = ReadChecks { first: self.watched.first + rows.start * self.cols, ..self.watched };
        Self { bytes: &self.bytes[rows.start * width..rows.end * width], rows: rows.len(), watched, ..self }
    }
    /// Dtype of the elements in the file.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// Bytes of all elements, as they lie.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.digest(self.watched.first..self.watched.first + self.rows * self.cols);
        self.bytes
    }
}

impl std::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a matrix [{}, {}] of {}", self.rows, self.cols, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::Dtype;
    use crate::safetensors::adversary::assemble;
    use crate::safetensors::file::File;

    /// `[2, 3]` of −3, −2, …, 2 as every kind of float, and the same numbers as other kinds.
    fn six(dtype: Dtype) -> Vec<u8> {
        let one = |x: i32| match dtype {
            Dtype::F64 => f64::from(x).to_le_bytes().to_vec(),
            Dtype::F32 => (x as f32).to_le_bytes().to_vec(),
            Dtype::BF16 => (x as f32).to_le_bytes()[2..].to_vec(),
            _ => [0xC200u16, 0xC000, 0xBC00, 0, 0x3C00, 0x4000][(x + 3) as usize].to_le_bytes().to_vec(),
        };
        (-3..3).flat_map(one).collect()
    }
    /// Kills: a cast that wants aligned data, a stride that is not the row's, a kind read as another.
    #[test]
    fn every_float_reads_the_same_wherever_it_lies() {
        for dtype in [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16] {
            let (data, wanted) = (six(dtype), [-3.0f64, -2.0, -1.0, 0.0, 1.0, 2.0]);
            for shift in 0..8 {
                let end = data.len();
                let header =
                    format!(r#"{{"w":{{"dtype":"{dtype}","shape":[2,3],"data_offsets":[0,{end}]}}}}"#);
                let file = File::from_memory(assemble(&(header + &" ".repeat(shift)), &data)).unwrap();
                let w = file.matrix("w", [2, 3]).unwrap();
                assert_eq!((w.rows(), w.cols()), (2, 3));
                let mut rows = [0.0; 6];
                w.row(0, 0, &mut rows[..3]);
                w.row(1, 0, &mut rows[3..5]);
                w.row(1, 2, &mut rows[5..]);
                assert_eq!(rows.map(f64::to_bits), wanted.map(f64::to_bits), "{dtype} at {shift}");
                for (i, wanted) in wanted.into_iter().enumerate() {
                    assert_eq!(w.get(i / 3, i % 3), wanted);
                }
            }
        }
    }

    #[test]
    fn wide_floats_are_exact_and_nan_stays() {
        let data: Vec<u8> = [0.1f64, f64::NAN].iter().flat_map(|x| x.to_le_bytes()).collect();
        let header = r#"{"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}"#;
        let file = File::from_memory(assemble(header, &data)).unwrap();
        let w = file.matrix("w", [1, 2]).unwrap();
        assert_eq!(w.get(0, 0), 0.1);
        assert!(w.get(0, 1).is_nan());
    }

    /// Kills: a check of the place in the buffer instead of the place in the matrix.
    #[test]
    fn numbers_outside_a_matrix_are_refused() {
        let header = r#"{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
        let file = File::from_memory(assemble(header, &six(Dtype::F32))).unwrap();
        let w = file.matrix("w", [2, 3]).unwrap();
        let row = |row, from, n| w.row(row, from, &mut vec![0.0; n]);
        let attempts: [&dyn Fn(); 5] = [
            &|| assert!(w.get(0, 3) < 9.0),
            &|| assert!(w.get(2, 0) < 9.0),
            &|| row(0, 2, 2),
            &|| row(2, 0, 0),
            &|| row(0, usize::MAX, 0),
        ];
        for attempt in attempts {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).unwrap_err();
            assert!(panic.downcast::<String>().unwrap().ends_with(" of a matrix [2, 3] of F32"));
        }
        row(1, 3, 0);
    }
}
