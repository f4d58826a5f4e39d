use super::*;
use crate::proof::{Matrix, matrix};
use tensor::{Scalar, Tensor, mix};

/// From −3 to 3: sums of some thousand products are exact in f32.
fn integers<S: Scalar>(salt: usize, rows: usize, cols: usize) -> Matrix<S> {
    matrix(rows, cols, |i| S::from_f64((mix(i as u64 ^ (salt as u64) << 32) % 7) as f64 - 3.0))
}

/// The definition: C (+)= A·B with sums of f64, rounded once.
fn slowly<S: Scalar>(c: &mut Tensor<Cpu<S>>, a: View<Cpu<Bf16>>, b: View<Cpu<Bf16>>, write: Write)
where
    S: tensor::Real,
{
    for i in 0..a.rows() {
        for j in 0..b.cols() {
            let sum: f64 = (0..a.cols()).map(|k| f64::from(a.at(i, k).widen() * b.at(k, j).widen())).sum();
            let before = if write == Write::Add { c.view().at(i, j).to_f64() } else { 0.0 };
            c.view_mut().set(i, j, S::from_f64(before + sum));
        }
    }
}

/// Shapes on both sides of every tile and block, and none at all.
const SHAPES: [[usize; 3]; 19] = [
    [1, 1, 1],
    [1, 40, 33],
    [3, 70, 5],
    [8, 33, 130],
    [2, 600, 6],
    [9, 16, 32],
    [12, 32, 16],
    [13, 33, 17],
    [16, 48, 64],
    [50, 300, 131],
    [70, 100, 513],
    [17, 530, 270],
    [25, 47, 1025],
    [1030, 20, 40],
    [4, 5, 0],
    [12, 20, 0],
    [4, 0, 5],
    [12, 0, 40],
    [0, 3, 4],
];

fn check(way: Way, [m, n, k]: [usize; 3]) {
    for [at, bt] in [[false, false], [false, true], [true, false], [true, true]] {
        let lying = |salt, rows, cols, t: bool| {
            if t { integers::<Bf16>(salt, cols, rows) } else { integers(salt, rows, cols) }
        };
        let (a, b) = (lying(1, m, k, at), lying(2, k, n, bt));
        let a = if at { a.view().t() } else { a.view() };
        let b = if bt { b.view().t() } else { b.view() };
        for write in [Write::Set, Write::Add] {
            let said = format!("{way:?} {m}x{n}x{k} {at} {bt} {write:?}");
            let [mut seen, mut wanted] = [(); 2].map(|()| integers::<f32>(3, m, n));
            product_by(way, Out::Wide(seen.view_mut()), a, b, write);
            slowly(&mut wanted, a, b, write);
            assert_eq!(seen.read(), wanted.read(), "{said} wide");
            let [mut seen, mut wanted] = [(); 2].map(|()| integers::<Bf16>(3, m, n));
            product_by(way, Out::Narrow(seen.view_mut()), a, b, write);
            slowly(&mut wanted, a, b, write);
            assert_eq!(seen.read(), wanted.read(), "{said} narrow");
        }
    }
}

/// Every way that this machine has, all transpositions, both results. Kills: a wrong stride, a lost last row or column, `=`
/// for `+=`, pairs in another order in A than in B, a sum that is rounded on its way.
#[test]
fn products_equal_the_definition_on_integers() {
    for way in Way::all() {
        SHAPES.into_iter().for_each(|shape| check(way, shape));
    }
}
