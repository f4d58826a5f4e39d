//! Element-wise kernels against their definitions.
use crate::proof::{Matrix, assert_derivative, draw, filled, index, matrix, read, under_two_keys};
use kernels::{CpuScalar, Gate, Heads, Kernels, Segment};
use tensor::{Cpu, Dropout, Dual, F61, Key, Scalar};

/// In rows that are pieces, rests, and both. Kills: gate for up, in either, a term of the product rule.
#[test]
fn gates_backward_equals_the_derivative_exactly() {
    fn forward<S: CpuScalar>([gate, up]: [&Matrix<S>; 2], f: Gate) -> Matrix<S>
    where
        Cpu<S>: Kernels<Elem = S, Wide = Cpu<S>>,
    {
        let mut h = filled(gate.rows(), gate.cols(), S::ZERO);
        Cpu::default().gated(h.view_mut(), gate.view(), up.view(), f);
        h
    }
    let gates = [Gate::Silu, Gate::GeluTanh, Gate::Clamped];
    for (f, cols) in gates.into_iter().flat_map(|f| [1, 63, 64, 130].map(|cols| (f, cols))) {
        under_two_keys(|| {
            let [gate, up, dh] = [1, 2, 3].map(|seed| draw::<F61>(seed, 2, cols));
            let moving = [1, 2].map(|seed| draw::<Dual<F61>>(seed, 2, cols));
            let [mut dgate, mut dup] = [(); 2].map(|()| filled(2, cols, F61::ZERO));
            let to = (dgate.view_mut(), dup.view_mut());
            Cpu::default().gated_backward(to.0, to.1, gate.view(), up.view(), dh.view(), f);
            let inputs = [(&moving[0], &dgate), (&moving[1], &dup)];
            assert_derivative(&dh, &forward(moving.each_ref(), f), &inputs);
        });
    }
}

/// Kills: a root of the inverse, a cap that is not divided by before the function.
#[test]
fn factors_and_caps_equal_their_formulas() {
    let x = [-4.0, -0.5, 0.0, 0.25, 3.0];
    let [source, mut y] = [0, 1].map(|_| matrix(1, 5, |i| x[i]));
    Cpu::default().stretch(y.view_mut(), source.view(), 7);
    let near = |seen: Vec<f64>, wanted: [f64; 5]| {
        seen.iter().zip(wanted).for_each(|(y, wanted)| assert!((y - wanted).abs() < 1e-14, "{y} {wanted}"));
    };
    near(read(&y), x.map(|x| x * 7f64.sqrt()));
    let mut y = matrix(1, 5, |i| x[i]);
    Cpu::default().cap(y.view_mut(), 1.5);
    near(read(&y), x.map(|x| 1.5 * (x / 1.5).tanh()));
}

/// Kills: rows for columns, `=` for `+=`, a lost row.
#[test]
fn rows_are_added_to_every_row_and_summed() {
    let _key = Key(1).enter();
    for [rows, cols] in [[4, 3], [1, 1], [3, 40], [0, 2]] {
        let (x, row) = (draw::<F61>(1, rows, cols), draw::<F61>(2, 1, cols));
        let (mut y, mut sum) = (draw::<F61>(1, rows, cols), draw::<F61>(2, 1, cols));
        Cpu::default().add_row(y.view_mut(), row.view());
        Cpu::default().add_rows(sum.view_mut(), x.view());
        let (x, row) = (read(&x), read(&row));
        let wanted: Vec<F61> = (0..rows * cols).map(|i| x[i] + row[i % cols]).collect();
        assert_eq!(read(&y), wanted);
        let column = |j: usize| (0..rows).fold(row[j], |sum, i| sum + x[i * cols + j]);
        assert_eq!(read(&sum), (0..cols).map(column).collect::<Vec<_>>());
    }
}

/// Kills: the other of the two kept, rows or columns beyond the window touched.
#[test]
fn stabilisers_are_joined_element_by_element() {
    let _key = Key(1).enter();
    for [rows, cols] in [[4, 3], [1, 1], [3, 40], [0, 2]] {
        let (x, a) = (draw::<f32>(1, rows, cols + 2), draw::<f32>(2, rows, cols + 2));
        let mut y = draw::<f32>(1, rows, cols + 2);
        Cpu::default().stab(y.view_mut().take_cols(1, cols), a.view().take_cols(1, cols));
        let inside = |i: usize| (1..=cols).contains(&(i % (cols + 2)));
        let join = |(i, (x, a)): (usize, (f32, f32))| if inside(i) { f32::max(x, a) } else { x };
        let wanted: Vec<_> = read(&x).into_iter().zip(read(&a)).enumerate().map(join).collect();
        assert_eq!(read(&y), wanted);
    }
}

const TOKENS: [Segment; 3] = [
    Segment { row: 0, len: 3, position: 4, sequence: 7 },
    Segment { row: 3, len: 0, position: 0, sequence: 8 },
    Segment { row: 3, len: 4, position: 0, sequence: 2 },
];

/// Kills: a row for a position, a sequence that begins at 0 where it goes on, another pair of features, a
/// sign, plain features that are turned.
#[test]
fn rotation_turns_pairs_by_the_angle_of_their_position() {
    let _key = Key(1).enter();
    let whole = Heads::new(1, 1, 4);
    let (table, x) = (draw::<F61>(1, 8, 4), draw::<F61>(2, 9, 16)); // two heads, 2 angles
    for (heads, back) in [false, true].into_iter().flat_map(|back| {
        let part = Heads { plain: 3, ..Heads { dim: 8, ..whole } };
        [whole, part, Heads { neighbours: true, ..part }].map(move |heads| (heads, back))
    }) {
        let row = heads.turned().len();
        let narrow = |x: &Matrix<F61>| matrix(9, row, |i| x.view().at(i / row, i % row));
        let mut seen = narrow(&x);
        let mut wanted = read(&seen); // rows 7 and 8 are padding and stay
        Cpu::default().rotate(seen.view_mut(), table.view(), &index(TOKENS), heads, back);
        for (t, i) in TOKENS.iter().flat_map(|t| (0..t.len).map(move |i| (t, i))) {
            for (head, f) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let [cos, sin] = [f, 2 + f].map(|column| table.view().at(t.position + i, column));
                let [f, apart] = if heads.neighbours { [2 * f, 1] } else { [f, 2] };
                let first = (t.row + i) * row + head * heads.dim + heads.plain + f;
                let sin = if back { -sin } else { sin };
                let (a, b) = (wanted[first], wanted[first + apart]);
                (wanted[first], wanted[first + apart]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
        assert_eq!(read(&seen), wanted);
    }
}

fn dropped(x: &Matrix<F61>, first_row: usize, n: usize, dropout: &Dropout) -> Vec<F61> {
    let part = read(x)[first_row * x.cols()..][..n * x.cols()].to_vec();
    let mut part = matrix(n, x.cols(), |i| part[i]);
    Cpu::default().dropout(part.view_mut(), &index(TOKENS), first_row, dropout);
    read(&part)
}

/// Kills: a row for a position, a sequence's number for its place, a feature counted from elsewhere, a scale
/// that is lost or turned over, padding that is touched.
#[test]
fn dropout_asks_by_sequence_position_and_feature() {
    let _key = Key(1).enter();
    let (x, dropout) = (draw::<F61>(1, 9, 5), Dropout::new(0.25, 3, 1, "here"));
    let seen = dropped(&x, 0, 9, &dropout);
    let mut wanted = read(&x); // rows 7 and 8 are padding and stay
    for t in TOKENS {
        for (i, j) in (0..t.len).flat_map(|i| (0..5).map(move |j| (i, j))) {
            let x = &mut wanted[(t.row + i) * 5 + j];
            let keep = dropout.keeps(t.sequence, t.position + i, j as u64);
            *x = if keep { *x * F61::from_f64(0.75).inv() } else { F61::ZERO };
        }
    }
    assert_eq!(seen, wanted);
    let exited = seen.iter().filter(|&&x| x == F61::ZERO).count();
    assert!((1..20).contains(&exited), "{exited} of 35 are gone");
}

/// Sequence parallelism's shards. Kills: a first row that moves the mask along, bounds off by one.
#[test]
fn dropout_of_any_rows_equals_these_rows_of_the_whole() {
    let _key = Key(1).enter();
    let (x, dropout) = (draw::<F61>(1, 12, 5), Dropout::new(0.5, 3, 1, "here"));
    let whole = dropped(&x, 0, 12, &dropout);
    for (first, n) in (0..12).flat_map(|first| (0..=12 - first).map(move |n| (first, n))) {
        assert_eq!(dropped(&x, first, n, &dropout), whole[first * 5..][..n * 5], "{n} rows from {first} on");
    }
}

/// Matrices without columns, as on a rank without a local part. Kills: a first column taken for granted.
#[test]
fn matrices_without_columns_are_matrices() {
    let (mut y, x, cpu) = (filled(2, 3, 1.0f32), filled(2, 4, 2.0f32), Cpu::default());
    for at in [0, 3] {
        cpu.copy(y.view_mut().take_cols(at, 0), x.view().take_cols(at, 0));
        cpu.fill(y.view_mut().take_cols(at, 0), 5.0);
        cpu.add(y.view_mut().take_cols(at, 0), x.view().take_cols(at, 0));
        cpu.add_row(y.view_mut().take_cols(at, 0), x.view().take_rows(0, 1).take_cols(at, 0));
        cpu.add_rows(y.view_mut().take_rows(0, 1).take_cols(at, 0), x.view().take_cols(at, 0));
    }
    cpu.copy(filled(2, 0, 0.0f32).view_mut(), filled(2, 0, 0.0).view());
    assert_eq!(read(&y), [1.0; 6]);
}
