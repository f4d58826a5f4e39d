//! C (+)= A·B: plain loops for every dtype; a library's product for floats.
use super::factor::{Factor, Sums, check};
use super::matrices::{In, Out};
use crate::Write;
use gemm_common::Parallelism;
use tensor::Scalar;

/// Computes the product by its definition.
pub(super) fn plain<S: Scalar>(mut c: Out<S>, a: In<S>, b: In<S>, write: Write) {
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

macro_rules! by_library {
    ($name:ident, $number:ident, $library:ident) => {
        /// C\[m,n\] (+)= A\[m,k\]·B\[k,n\] by a library, which prefers columns: it computes Cᵀ = Bᵀ·Aᵀ.
        ///
        /// # Safety
        /// The windows are valid, and C overlaps neither factor.
        pub(super) unsafe fn $name(
            [m, n, k]: [usize; 3],
            c: Sums<$number>,
            a: Factor<$number>,
            b: Factor<$number>,
        ) {
            let product = $library::gemm::$number::get_gemm_fn();
            let [ld, b_row, b_col, a_row, a_col] =
                [c.ld, b.row, b.col, a.row, a.col].map(|stride| stride as isize);
            let before = if c.add { 1.0 } else { 0.0 };
            // SAFETY: the caller's promise.
            unsafe {
                product(
                    n,
                    m,
                    k,
                    c.at,
                    ld,
                    1,
                    c.add,
                    b.at,
                    b_row,
                    b_col,
                    a.at,
                    a_row,
                    a_col,
                    before,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    };
}
by_library!(f32_by_library, f32, gemm_f32);
by_library!(f64_by_library, f64, gemm_f64);

/// True if this crate's own product runs here.
pub(super) fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::factor::{factor, sums};
    use crate::cpu::few;
    use crate::cpu::scalar::CpuScalar;
    use tensor::{Category, Cpu, Dual, F61, Field, Key, Tensor, mix};

    /// Small integers make every sum exact in every number, so all products must agree with the definition,
    /// for all transpositions and ragged shapes. Kills: a wrong edge, stride, mask, panel or reduction.
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

    /// Products of machines without AVX-512. Kills: a row lost between the places that are read from, `=` for
    /// `+=`.
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
                let (size, c, a) = ([m, n, k], fast.view_mut(), a.view());
                let (to, factors) = (sums(&c, write), (factor(&a), factor(&b)));
                match way {
                    // SAFETY: windows of fitting sizes, and C overlaps none.
                    0 => unsafe { few::by_rows::<_, few::Plain>(size, to, factors.0, factors.1) },
                    // SAFETY: as above.
                    1 => unsafe { few::by_columns(size, to, factors.0, factors.1) },
                    // SAFETY: as above.
                    2 => unsafe { f32_by_library(size, to, factors.0, factors.1) },
                    _ => f32::gemm(c, a, b, write),
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

    /// Shapes on both sides of every blocking constant of the packed product, on integers. Kills: a block of
    /// A or of B that is another's.
    #[test]
    fn the_packed_product_crosses_its_blocks() {
        let cpu = Cpu::<f32>::default();
        for (m, n, k) in [
            (130, 530, 270),
            (20, 336, 1025),
            (25, 47, 1025),
            (70, 1100, 600),
            (2060, 33, 70),
            (17, 112, 300),
        ] {
            let matrix = |salt: usize, rows: usize, cols: usize| {
                Tensor::from_fn(&cpu, Category::Buffers, rows, cols, |i| small(i, salt))
            };
            let ([a, at], [b, bt]) = (
                [[m, k], [k, m]].map(|[r, c]| matrix(1, r, c)),
                [[k, n], [n, k]].map(|[r, c]| matrix(2, r, c)),
            );
            let (a, b) = ([a.view(), at.view().t()], [b.view(), bt.view().t()]);
            for (i, write) in [Write::Add, Write::Set, Write::Set, Write::Add].into_iter().enumerate() {
                let (mut fast, mut truth, [a, b]) = (matrix(3, m, n), matrix(3, m, n), [a[i % 2], b[i / 2]]);
                f32::gemm(fast.view_mut(), a, b, write);
                plain(truth.view_mut(), a, b, write);
                assert_eq!(fast.read(), truth.read(), "{m}x{n}x{k} {write:?}, way {i}");
            }
        }
    }
}
