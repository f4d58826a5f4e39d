//! Work on many elements that other crates ask for. A generic function is compiled where it is used, and
//! crates that only pass elements on are built fast, not to be fast. So these functions are compiled here for
//! the floats.
use crate::dtype::FileFloats;
use crate::{Real, Scalar, every_float};
use std::any::TypeId;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// Rows and columns of a tile that is transposed at a time.
const TILE: usize = 64;

/// Returns a slice as one of another type, if that is its own type.
fn is<A: 'static, B: 'static>(of: &[A]) -> Option<&[B]> {
    let is = TypeId::of::<A>() == TypeId::of::<B>();
    // SAFETY: it is the same type.
    is.then(|| unsafe { from_raw_parts(of.as_ptr().cast(), of.len()) })
}
fn is_mut<A: 'static, B: 'static>(of: &mut [A]) -> Option<&mut [B]> {
    let is = TypeId::of::<A>() == TypeId::of::<B>();
    // SAFETY: as above.
    is.then(|| unsafe { from_raw_parts_mut(of.as_mut_ptr().cast(), of.len()) })
}

/// Defines the functions, each with its instances of the floats.
macro_rules! compiled {
    ($($variant:ident $of:ty, $about:literal;)*) => {
        /// Converts elements of a file, as constants.
        pub(crate) fn read<E: Scalar>(floats: FileFloats, to: &mut [E]) {
            $({
                fn read(floats: FileFloats, to: &mut [$of]) {
                    floats.convert(to);
                }
                if let Some(to) = is_mut(to) {
                    return read(floats, to);
                }
            })*
            floats.convert(to);
        }
        /// Sets `to[columns, rows]` to the transpose of `from[rows, columns]`; their rows lie `stride` and
        /// `apart` elements apart.
        pub fn transpose<E: Scalar>(from: &[E], stride: usize, shape: [usize; 2], to: &mut [E], apart: usize) {
            $({
                fn transpose(from: &[$of], stride: usize, shape: [usize; 2], to: &mut [$of], apart: usize) {
                    tiles(from, stride, shape, to, apart);
                }
                if let (Some(from), Some(to)) = (is(from), is_mut(to)) {
                    return transpose(from, stride, shape, to, apart);
                }
            })*
            tiles(from, stride, shape, to, apart);
        }
        /// Rounds values to f32; returns false if a result is not finite.
        pub fn finite_f32<E: Real>(values: &[E], to: &mut [f32]) -> bool {
            $({
                fn all(values: &[$of], to: &mut [f32]) -> bool {
                    finite(values, to)
                }
                if let Some(values) = is(values) {
                    return all(values, to);
                }
            })*
            finite(values, to)
        }
    };
}
every_float!(compiled);

/// Transposes through a tile that stays in the cache: rows a power of two apart would displace each other
/// there.
#[inline(always)]
fn tiles<E: Scalar>(from: &[E], stride: usize, [rows, columns]: [usize; 2], to: &mut [E], apart: usize) {
    let tiles = |n: usize| (0..n).step_by(TILE).map(move |at| at..n.min(at + TILE));
    let mut tile = [E::ZERO; TILE * TILE];
    for rows in tiles(rows) {
        for columns in tiles(columns) {
            for (i, row) in rows.clone().enumerate() {
                let line = &from[row * stride + columns.start..][..columns.len()];
                for (x, at) in line.iter().zip((i..).step_by(TILE)) {
                    tile[at] = *x;
                }
            }
            for (column, line) in columns.zip(tile.chunks(TILE)) {
                to[column * apart + rows.start..][..rows.len()].copy_from_slice(&line[..rows.len()]);
            }
        }
    }
}

#[inline(always)]
fn finite<E: Real>(values: &[E], to: &mut [f32]) -> bool {
    let mut finite = true;
    for (to, value) in to.iter_mut().zip(values) {
        *to = value.to_f64() as f32;
        finite &= to.is_finite();
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::F61;

    /// Kills: a tile at the edge that is lost, a row or column of another, elements beside the matrix that
    /// are written.
    #[test]
    fn a_transpose_has_each_element_once() {
        for [rows, columns, stride, apart] in
            [[1, 1, 1, 1], [3, 200, 201, 5], [130, 65, 65, 130], [64, 128, 130, 70]]
        {
            let from: Vec<f32> = (0..rows * stride).map(|i| i as f32).collect();
            let exact: Vec<F61> = from.iter().map(|x| F61::from_usize(*x as usize)).collect();
            let (mut to, mut of_field) = (vec![-1.0; columns * apart], vec![F61::ZERO; columns * apart]);
            transpose(&from, stride, [rows, columns], &mut to, apart);
            transpose(&exact, stride, [rows, columns], &mut of_field, apart);
            for (at, x) in to.iter().enumerate() {
                let (column, row) = (at / apart, at % apart);
                let wanted = if row < rows { (row * stride + column) as f32 } else { -1.0 };
                assert_eq!(*x, wanted, "{rows}x{columns}: {row}, {column}");
                assert!(row >= rows || of_field[at] == F61::from_usize(wanted as usize));
            }
        }
    }

    /// Kills: a result of the last value, or of the first.
    #[test]
    fn a_value_that_is_not_finite_is_seen_wherever_it_is() {
        fn seen<E: Real>() {
            let of = |bad: f64, at: usize| (0..70).map(move |i| E::from_f64(if i == at { bad } else { 1.0 }));
            let finite = |bad, at| finite_f32(&of(bad, at).collect::<Vec<E>>(), &mut [0.0; 70]);
            for at in 0..70 {
                assert!(finite(2.0, at));
                for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    assert!(!finite(bad, at), "{bad} at {at}");
                }
            }
        }
        seen::<f32>();
        seen::<f64>();
        seen::<crate::F16>();
        assert!(!finite_f32(&[1.0, 1e39, 1.0], &mut [0.0; 3]), "it is finite in f64 only");
    }
}
