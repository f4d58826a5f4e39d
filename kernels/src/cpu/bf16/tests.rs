use super::*;
use tensor::{Category, Cpu, Real, Tensor, View, mix};

type Matrix<S> = Tensor<Cpu<S>>;

fn matrix<S: Scalar>(rows: usize, cols: usize, f: impl FnMut(usize) -> S) -> Matrix<S> {
    Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, f)
}

/// From −3 to 3: sums of some thousand products are exact in f32.
fn integers<S: Scalar>(salt: usize, rows: usize, cols: usize) -> Matrix<S> {
    matrix(rows, cols, |i| S::from_f64((mix(i as u64 ^ (salt as u64) << 32) % 7) as f64 - 3.0))
}

/// The definition: C (+)= A·B with sums of f64, rounded once.
fn slowly<S: Real>(c: &mut Matrix<S>, a: View<Cpu<Bf16>>, b: View<Cpu<Bf16>>, write: Write) {
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
        let (a, b) = (turn(a.view(), at), turn(b.view(), bt));
        for write in [Write::Set, Write::Add] {
            let said = format!("{way:?} {m}x{n}x{k} {at} {bt} {write:?}");
            let [mut seen, mut wanted] = [(); 2].map(|()| integers::<f32>(3, m, n));
            product_by(way, seen.view_mut(), a, b, write);
            slowly(&mut wanted, a, b, write);
            assert_eq!(seen.read(), wanted.read(), "{said} wide");
            let [mut seen, mut wanted] = [(); 2].map(|()| integers::<Bf16>(3, m, n));
            product_by(way, seen.view_mut(), a, b, write);
            slowly(&mut wanted, a, b, write);
            assert_eq!(seen.read(), wanted.read(), "{said} narrow");
        }
    }
}

/// Every way that this machine has, all transpositions, both results. Kills: a wrong stride, a lost last row
/// or column, `=` for `+=`, pairs in another order in A than in B, a sum that is rounded on its way.
#[test]
fn products_equal_the_definition_on_integers() {
    for way in Way::all() {
        for shape in SHAPES {
            check(way, shape);
        }
    }
}

/// Few rows of A on both sides of the limit, and of a matrix that is wider than the sums of a pass. Kills: a
/// row of B lost between those that are added together, columns left in the order of their vectors, a pass
/// that begins at another column.
#[test]
fn few_rows_equal_the_definition_on_integers() {
    for way in Way::all() {
        for shape in [
            [1, 33000, 3],
            [3, 500, 8],
            [7, 4700, 15],
            [8, 4130, 9],
            [5, 6, 300],
            [portable::FEW + 1, 70, 40],
        ] {
            check(way, shape);
        }
    }
}

/// 1, and half of a step of 1 in every block of K: rounded after each of them it stays 1. Kills: a block of
/// K, or a result that is added to, that is rounded before the last.
#[test]
fn sums_are_rounded_once() {
    const K: usize = 4096;
    let value = |p: usize| if p == 0 { 4.0 } else { f64::from(u8::from(p % 512 == 511)) / 64.0 };
    let b = matrix(K, 20, |i| Bf16::from_f64(value(i / 20)));
    let turned = matrix(20, K, |i| Bf16::from_f64(value(i % K)));
    for (way, m) in Way::all().flat_map(|way| [(way, 1), (way, 12)]) {
        let a = matrix(m, K, |_| Bf16::from_f64(0.25));
        for (b, write) in [b.view(), turned.view().t()].into_iter().zip([Write::Set, Write::Add]) {
            let mut c = matrix(m, 20, |_| Bf16::ONE);
            product_by(way, c.view_mut(), a.view(), b, write);
            let wanted = 1.0 + 8.0 / 256.0 + f64::from(u8::from(write == Write::Add));
            assert_eq!(c.read().unwrap(), vec![Bf16::from_f64(wanted); m * 20], "{way:?} {m} {write:?}");
        }
    }
    // Half of a step above 1, added to 1: the middle, which is even below; with a little more, the next
    // above.
    for (more, wanted) in [(0.0, 1.0), (2f64.powi(-20), 1.0 + 2f64.powi(-7))] {
        let a = matrix(1, 2, |i| Bf16::from_f64([2f64.powi(-8), more][i]));
        let b = matrix(2, 3, |_| Bf16::ONE);
        for way in Way::all() {
            let mut c = matrix(1, 3, |_| Bf16::ONE);
            product_by(way, c.view_mut(), a.view(), b.view(), Write::Add);
            assert_eq!(c.read().unwrap(), [Bf16::from_f64(wanted); 3], "{way:?}");
        }
    }
}

fn turn(x: View<Cpu<Bf16>>, t: bool) -> View<Cpu<Bf16>> {
    if t { x.t() } else { x }
}

/// Elements beside a window are neither read, where they are NaN, nor written. Kills: a read beyond the last
/// of an odd number of steps, a mask that is too wide, a stride for a width.
#[test]
fn what_is_outside_has_no_influence() {
    let nan = Bf16::from_f64(f64::NAN);
    let framed = |rows: usize, cols: usize| {
        let inside =
            move |i: usize| (1..=rows).contains(&(i / (cols + 3))) && (1..=cols).contains(&(i % (cols + 3)));
        matrix(
            rows + 2,
            cols + 3,
            move |i| if inside(i) { Bf16::from_f64((i % 5) as f64 - 2.0) } else { nan },
        )
    };
    for [m, n, k] in [[1, 7, 5], [3, 65, 33], [13, 21, 1], [20, 50, 67]] {
        for [at, bt] in [[false, false], [false, true], [true, false], [true, true]] {
            let lying = |rows, cols, t: bool| if t { framed(cols, rows) } else { framed(rows, cols) };
            let (a, b) = (lying(m, k, at), lying(k, n, bt));
            let window = |x: &Matrix<Bf16>, [rows, cols]: [usize; 2], t: bool| {
                let [rows, cols] = if t { [cols, rows] } else { [rows, cols] };
                let values: Vec<_> =
                    (0..rows * cols).map(|i| x.view().at(1 + i / cols, 1 + i % cols)).collect();
                matrix(rows, cols, move |i| values[i])
            };
            let (alone_a, alone_b) = (window(&a, [m, k], at), window(&b, [k, n], bt));
            let (alone_a, alone_b) = (turn(alone_a.view(), at), turn(alone_b.view(), bt));
            let a = turn(a.view(), at).take_rows(1, m).take_cols(1, k);
            let b = turn(b.view(), bt).take_rows(1, k).take_cols(1, n);
            let mut wanted = integers::<Bf16>(3, m, n);
            slowly(&mut wanted, alone_a, alone_b, Write::Add);
            for way in Way::all() {
                let mut c = matrix(m + 2, n + 3, |_| Bf16::from_f64(9.0));
                let inside = integers::<Bf16>(3, m, n);
                let mut place = c.view_mut().take_rows(1, m).take_cols(1, n);
                (0..m).for_each(|i| place.row(i).copy_from_slice(inside.view().row(i)));
                product_by(way, place, a, b, Write::Add);
                let said = format!("{way:?} {m}x{n}x{k} {at} {bt}");
                for (i, j) in (0..m + 2).flat_map(|i| (0..n + 3).map(move |j| (i, j))) {
                    let within = (1..=m).contains(&i) && (1..=n).contains(&j);
                    let wanted = if within { wanted.view().at(i - 1, j - 1) } else { Bf16::from_f64(9.0) };
                    assert_eq!(c.view().at(i, j), wanted, "{said} at {i}, {j}");
                }
            }
        }
    }
}

/// Infinities and NaN go where the definition has them, and nowhere else. Kills: a number that is multiplied
/// with its neighbour's zero.
#[test]
fn infinities_stay_in_their_columns() {
    for (m, turned) in [(1, false), (1, true), (20, false), (20, true)] {
        let (k, n) = (37, 40);
        let value = |p: usize, j: usize| match (p, j) {
            (3, 5) => f64::INFINITY,
            (36, 30) => f64::NAN,
            _ => 1.0,
        };
        let b = if turned {
            matrix(n, k, |i| Bf16::from_f64(value(i % k, i / k)))
        } else {
            matrix(k, n, |i| Bf16::from_f64(value(i / n, i % n)))
        };
        let (a, b) = (matrix(m, k, |_| Bf16::ONE), if turned { b.view().t() } else { b.view() });
        for way in Way::all() {
            let mut c = matrix(m, n, |_| 0.0);
            product_by(way, c.view_mut(), a.view(), b, Write::Set);
            for (i, x) in c.read().unwrap().into_iter().enumerate() {
                let right = match i % n {
                    5 => x == f32::INFINITY,
                    30 => x.is_nan(),
                    _ => x == k as f32,
                };
                assert!(right, "{way:?} {m} {turned}: {x} in column {}", i % n);
            }
        }
    }
}

#[test]
#[should_panic(expected = "the shapes do not fit")]
fn factors_fit() {
    let (a, b, mut c) = (integers::<Bf16>(1, 2, 3), integers::<Bf16>(2, 4, 5), integers::<f32>(3, 2, 5));
    product(c.view_mut(), a.view(), b.view(), Write::Set);
}
