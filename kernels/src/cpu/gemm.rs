//! C (+)= A·B: plain loops for every number; a library's and an own product for floats; few rows go by rows.
use super::few;
use super::panels::{self, Panels};
#[cfg(target_arch = "x86_64")]
use super::{gemm_avx512, gemv_avx512};
use crate::terms::Write;
use gemm_common::Parallelism;
use tensor::{Cpu, Scalar, View, ViewMut};

/// Products of fewer rows than this stream the other factor once, row by row.
const FEW: usize = 8;

pub(super) fn check<S: Scalar>(c: &ViewMut<Cpu<S>>, a: &View<Cpu<S>>, b: &View<Cpu<S>>) {
    let fit = c.rows() == a.rows() && a.cols() == b.rows() && b.cols() == c.cols();
    assert!(fit && c.col_stride() == 1, "a product of matrices that do not fit");
}

/// The definition.
pub(super) fn plain<S: Scalar>(mut c: ViewMut<Cpu<S>>, a: View<Cpu<S>>, b: View<Cpu<S>>, write: Write) {
    check(&c, &a, &b);
    for i in 0..c.rows() {
        for j in 0..c.cols() {
            let mut sum = if write == Write::Add { c.read().at(i, j) } else { S::ZERO };
            for k in 0..a.cols() {
                sum += a.at(i, k) * b.at(k, j);
            }
            c.set(i, j, sum);
        }
    }
}

/// A strided factor.
pub(super) struct Factor<S> {
    /// Where its first row and column are.
    pub at: *const S,
    pub row: usize,
    pub col: usize,
}

impl<S> Clone for Factor<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Factor<S> {}

impl<S> Factor<S> {
    /// The part that begins at this row and column.
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        Self { at: self.at.wrapping_add(row * self.row + col * self.col), ..self }
    }
    pub(super) fn t(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }
}

/// A product of the library for one number: the crates `gemm-f32` and `gemm-f64`.
type Library<S> = unsafe fn(
    usize,
    usize,
    usize,
    *mut S,
    isize,
    isize,
    bool,
    *const S,
    isize,
    isize,
    *const S,
    isize,
    isize,
    S,
    S,
    bool,
    bool,
    bool,
    Parallelism,
);

/// The library's product. It likes columns, so it is asked for Cᵀ = Bᵀ·Aᵀ.
fn by_library<S: Scalar>(
    product: Library<S>,
    c: ViewMut<Cpu<S>>,
    a: View<Cpu<S>>,
    b: View<Cpu<S>>,
    write: Write,
) {
    check(&c, &a, &b);
    let size = [c.rows(), c.cols(), a.cols()];
    // SAFETY: the windows are valid, of fitting sizes, and `c`, borrowed mutably, does not overlap the others.
    unsafe {
        by_library_raw(product, size, c.raw(), c.row_stride(), factor(&a), factor(&b), write == Write::Add);
    }
}

/// # Safety
/// The windows are valid, and `c` (row-major, stride `ldc`) overlaps neither factor.
unsafe fn by_library_raw<S: Scalar>(
    product: Library<S>,
    [m, n, k]: [usize; 3],
    c: *mut S,
    ldc: usize,
    a: Factor<S>,
    b: Factor<S>,
    add: bool,
) {
    let before = if add { S::ONE } else { S::ZERO };
    let [b_row, b_col, a_row, a_col] = [b.row, b.col, a.row, a.col].map(|stride| stride as isize);
    // SAFETY: the caller's promise.
    unsafe {
        product(
            n,
            m,
            k,
            c,
            ldc as isize,
            1,
            add,
            b.at,
            b_row,
            b_col,
            a.at,
            a_row,
            a_col,
            before,
            S::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// C (+)= A·B in f32 by the library, of what lies outside of tensors.
///
/// # Safety
/// The windows are valid, and `c` (row-major, stride `ldc`) overlaps neither factor.
pub(super) unsafe fn library_raw(
    size: [usize; 3],
    c: *mut f32,
    ldc: usize,
    a: Factor<f32>,
    b: Factor<f32>,
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { by_library_raw(gemm_f32::gemm::f32::get_gemm_fn(), size, c, ldc, a, b, add) };
}

/// C (+)= A·B in f32, where neither own product applies.
fn library(c: ViewMut<Cpu<f32>>, a: View<Cpu<f32>>, b: View<Cpu<f32>>, write: Write) {
    by_library(gemm_f32::gemm::f32::get_gemm_fn(), c, a, b, write);
}

/// C (+)= A·B in f64.
pub(super) fn f64(c: ViewMut<Cpu<f64>>, a: View<Cpu<f64>>, b: View<Cpu<f64>>, write: Write) {
    by_library(gemm_f64::gemm::f64::get_gemm_fn(), c, a, b, write);
}

/// The product for f32: by rows or columns where there are few, the own packed one where it runs, else the library's.
#[inline(always)]
pub(super) fn f32(c: ViewMut<Cpu<f32>>, a: View<Cpu<f32>>, b: View<Cpu<f32>>, write: Write) {
    check(&c, &a, &b);
    let by_rows = b.col_stride() == 1;
    if c.rows() <= FEW && (by_rows || b.row_stride() == 1 && a.col_stride() == 1) {
        let (size, add) = ([c.rows(), c.cols(), a.cols()], write == Write::Add);
        let (to, ld, a, b) = (c.raw(), c.row_stride(), factor(&a), factor(&b));
        // SAFETY: valid windows of fitting sizes; `c` is borrowed mutably, so it overlaps neither factor.
        return unsafe {
            match by_rows {
                #[cfg(target_arch = "x86_64")]
                true if has_avx512() => gemv_avx512::product(size, to, ld, a, b, add),
                true => few::by_rows(size, to, ld, a, b, add),
                false => few::by_columns(size, to, ld, a, b, add),
            }
        };
    }
    if a.cols() > 0 && has_avx512() {
        #[cfg(target_arch = "x86_64")]
        return avx512(c, a, gemm_avx512::Right::Strided(factor(&b)), write);
    }
    library(c, a, b, write);
}

/// Whether the own product runs here.
pub(super) fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A view as a product reads it.
pub(super) fn factor<S: Scalar>(v: &View<Cpu<S>>) -> Factor<S> {
    Factor { at: v.raw(), row: v.row_stride(), col: v.col_stride() }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn avx512(c: ViewMut<Cpu<f32>>, a: View<Cpu<f32>>, b: gemm_avx512::Right, write: Write) {
    let (size, add) = ([c.rows(), c.cols(), a.cols()], write == Write::Add);
    // SAFETY: valid windows of fitting sizes, as the callers checked; `c` is borrowed mutably, so it overlaps neither
    // factor; the CPU has what the product needs, as its panels, or the call, show.
    unsafe { gemm_avx512::product(size, c.raw(), c.row_stride(), factor(&a), b, add) };
}

/// The factor's panels, for [`panels_f32`].
#[inline(always)]
pub(super) fn pack_f32(to: ViewMut<Cpu<f32>>, b: View<Cpu<f32>>) {
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        use super::micro_avx512::NR;
        assert!(to.is_contiguous() && to.cols() == NR);
        assert_eq!(to.rows(), b.cols().div_ceil(NR) * b.rows());
        // SAFETY: valid windows, of fitting sizes; `to` is borrowed mutably, so it does not overlap the factor.
        return unsafe { gemm_avx512::pack_panels::<NR>(to.raw(), factor(&b), b.rows(), b.cols()) };
    }
    panels::pack(to, b);
}

/// The product with panels: they are read as they lie.
#[inline(always)]
pub(super) fn panels_f32(c: ViewMut<Cpu<f32>>, a: View<Cpu<f32>>, b: &Panels<f32>, write: Write) {
    #[cfg(target_arch = "x86_64")]
    if let Some((first, apart)) = b.first().filter(|_| has_avx512() && a.cols() > 0) {
        assert!([a.cols(), c.cols()] == b.size() && c.rows() == a.rows() && c.col_stride() == 1);
        return avx512(c, a, gemm_avx512::Right::Panels { first: first.raw(), apart }, write);
    }
    panels::product(c, a, b, write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuScalar;
    use tensor::{Category, Dual, F61, Field, Key, Tensor, mix};

    /// Small integers make every sum exact in every number, so all products must agree with the definition, for
    /// all transpositions and ragged shapes. Kills: a wrong edge, stride, mask, panel or reduction.
    fn equals_plain<S: CpuScalar>(integer: impl Fn(i64) -> S) {
        let cpu = Cpu::<S>::default();
        let full = [(1, 1, 1), (1, 40, 33), (3, 70, 5), (12, 32, 16), (13, 33, 17), (50, 300, 130)];
        let empty = [(4, 5, 0), (12, 20, 0), (4, 0, 5), (12, 0, 40), (0, 3, 4)];
        let shapes = full.into_iter().chain(empty);
        for (m, n, k) in shapes {
            for (at, bt) in [(false, false), (false, true), (true, false), (true, true)] {
                let matrix = |salt: usize, rows: usize, cols: usize| {
                    let value = |i: usize| integer(((i * 7919 + salt * 31) % 7) as i64 - 3);
                    Tensor::from_fn(&cpu, Category::Buffers, rows, cols, value)
                };
                let a = if at { matrix(1, k, m) } else { matrix(1, m, k) };
                let b = if bt { matrix(2, n, k) } else { matrix(2, k, n) };
                let a = if at { a.view().t() } else { a.view() };
                let b = if bt { b.view().t() } else { b.view() };
                for write in [Write::Set, Write::Add] {
                    let (mut fast, mut truth) = (matrix(3, m, n), matrix(3, m, n));
                    S::gemm(fast.view_mut(), a, b, write);
                    plain(truth.view_mut(), a, b, write);
                    assert_eq!(fast.read(), truth.read(), "{} {m}x{n}x{k} {at} {bt} {write:?}", S::NAME);
                }
            }
        }
    }

    #[test]
    fn products_equal_the_definition_on_integers() {
        let _key = Key(3).enter();
        equals_plain(|i| i as f32);
        equals_plain(|i| i as f64);
        equals_plain(|i| F61::from_f64(i as f64));
        equals_plain(|i| Field::<17>::from_f64(i as f64));
        equals_plain(|i| Field::<7>::from_f64(i as f64));
        equals_plain(|i| Dual::<F61>::from_f64(i as f64));
    }

    /// From −2 to 2; rows of any length differ.
    fn small(i: usize, salt: usize) -> f32 {
        (mix(i as u64 ^ (salt as u64) << 32) % 5) as f32 - 2.0
    }

    /// What machines without AVX-512 run. Kills: a row lost between the places that are read from, `=` for `+=`.
    #[test]
    fn every_way_to_multiply_equals_the_definition() {
        let cpu = Cpu::<f32>::default();
        for (m, n, k) in [(1, 40, 33), (3, 7, 1), (8, 33, 130), (2, 600, 6), (1, 5, 0)] {
            let matrix = |salt: usize, rows: usize, cols: usize| {
                Tensor::from_fn(&cpu, Category::Buffers, rows, cols, |i| small(i, salt))
            };
            let (a, b) = (matrix(1, m, k), matrix(2, k, n));
            for (write, way) in
                [Write::Set, Write::Add].into_iter().flat_map(|w| [(w, 0), (w, 1), (w, 2), (w, 3)])
            {
                let (mut fast, mut truth) = (matrix(3, m, n), matrix(3, m, n));
                let turned = matrix(2, n, k); // another B, for the way that wants it by columns
                let b = if way == 1 { turned.view().t() } else { b.view() };
                let (size, add, c) = ([m, n, k], write == Write::Add, fast.view_mut());
                let (to, a, factors) = (c.raw(), a.view(), (factor(&a.view()), factor(&b)));
                match way {
                    // SAFETY: windows of fitting sizes, and C overlaps none.
                    0 => unsafe { few::by_rows(size, to, n, factors.0, factors.1, add) },
                    // SAFETY: as above.
                    1 => unsafe { few::by_columns(size, to, n, factors.0, factors.1, add) },
                    2 => library(c, a, b, write),
                    _ => f32(c, a, b, write),
                }
                plain(truth.view_mut(), a, b, write);
                assert_eq!(fast.read(), truth.read(), "{m}x{n}x{k} {write:?}, way {way}");
            }
        }
    }

    /// Two hundred products near p² before a reduction would overflow 128 bits.
    #[test]
    fn field_products_do_not_overflow() {
        let cpu = Cpu::<F61>::default();
        let a = Tensor::from_fn(&cpu, Category::Buffers, 1, 200, |_| F61::new(F61::P - 1));
        let mut c = Tensor::empty(&cpu, Category::Buffers, 1, 1);
        F61::gemm(c.view_mut(), a.view(), a.view().t(), Write::Set);
        assert_eq!(c.read().unwrap(), [F61::new(200)]);
    }

    /// Shapes on both sides of every blocking constant of the packed product, on integers. Kills: a block of A or of B that
    /// is another's.
    #[test]
    fn the_packed_product_crosses_its_blocks() {
        let cpu = Cpu::<f32>::default();
        for (m, n, k) in [(130, 530, 270), (25, 47, 1025), (70, 1100, 600), (2060, 33, 70), (17, 112, 300)] {
            let matrix = |salt: usize, rows: usize, cols: usize| {
                Tensor::from_fn(&cpu, Category::Buffers, rows, cols, |i| small(i, salt))
            };
            let (a, turned, b) = (matrix(1, m, k), matrix(1, k, m), matrix(2, n, k));
            for (a, write) in [(a.view(), Write::Add), (turned.view().t(), Write::Set)] {
                let (mut fast, mut truth) = (matrix(3, m, n), matrix(3, m, n));
                f32::gemm(fast.view_mut(), a, b.view().t(), write);
                plain(truth.view_mut(), a, b.view().t(), write);
                assert_eq!(fast.read(), truth.read(), "{m}x{n}x{k} {write:?}");
            }
        }
    }
}
