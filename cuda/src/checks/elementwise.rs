//! Checks of `elementwise.cu`.
use super::{Side, SideKernels, check, draw, whole};
use kernels::{Activation, Gate, Heads, Segment};
use tensor::{Dropout, Scalar};

/// Rows, columns, columns of the whole matrix, and the first column. The rows are adjacent; apart, but
/// readable by 16 bytes; of odd lengths; at odd columns; of one element; longer than a block has threads. The
/// last shape gives a thread of the host twin's card three times 16 bytes of bf16, two of which it reads
/// together.
const SHAPES: [[usize; 4]; 9] = [
    [9, 64, 64, 0],
    [3, 24, 40, 8],
    [9, 61, 70, 8],
    [5, 64, 72, 3],
    [3, 32, 69, 0],
    [7, 5, 5, 0],
    [300, 1, 4, 2],
    [2, 2100, 2112, 8],
    [150, 1000, 1008, 8],
];

/// Checks windows whose surroundings must stay.
pub(crate) fn sums<D: SideKernels>(c: &mut Side<D>) {
    for shape @ [rows, cols, wide, at] in SHAPES {
        let (mut y, row) = (c.of(shape, whole(1)), c.of([1, cols, wide, at], whole(3)));
        let a = c.of([rows, cols, wide + 8, at], whole(2)); // its layout differs from y's
        let by = c.wide([rows, 1, 1, 0], whole(4));
        check!(c.add(y.to(), a.of()) => y 0.0);
        check!(c.add_row(y.to(), row.of()) => y 0.0);
        check!(c.stab(y.to(), a.of()) => y 0.0);
        check!(c.scale_rows(y.to(), by.of()) => y 0.5); // exact in f32, one rounding in bf16
        check!(c.copy(y.to(), a.part([0, 0, rows, cols])) => y 0.5);
        let x = c.wide([rows, cols, wide + 8, at], draw(5));
        check!(c.narrow(y.to(), x.of()) => y 1.0);
        check!(c.fill(y.to(), D::Elem::from_f64(2.5)) => y 0.5);
    }
}

/// Checks windows into windows, as factors are packed. Kills: a tile's edge that is cut off or overrun.
pub(crate) fn transposes<D: SideKernels>(c: &mut Side<D>) {
    for [rows, cols] in [[32, 64], [33, 31], [70, 5], [1, 40], [129, 97]] {
        let x = c.of([cols, rows, rows + 3, 2], whole(1));
        let mut y = c.of([rows, cols, cols + 5, 3], whole(2));
        check!(c.copy(y.to(), x.of().t()) => y 0.0);
    }
}

/// Checks few rows, and many, in parts.
pub(crate) fn sums_of_rows<D: SideKernels>(c: &mut Side<D>) {
    for [rows, cols] in [[1, 1], [7, 64], [30, 33], [256, 3], [257, 70], [1000, 5], [17_000, 2]] {
        let x = c.of([rows, cols, cols + 2, 2], whole(1));
        let mut sum = c.wide([1, cols, cols + 1, 1], whole(2));
        check!(c.add_rows(sum.to(), x.of()) => sum 0.0);
    }
}

/// Checks activations where they bend, and far from there; h may have more rows. The functions are within
/// about 2 units of f32 of f64's, and the derivatives within 4.
pub(crate) fn activations<D: SideKernels>(c: &mut Side<D>) {
    for f in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        c.case = format!("{f:?}");
        for shape @ [rows, cols, wide, at] in SHAPES {
            let x = c.of(shape, |i| (i % 401) as f64 * 0.05 - 10.0);
            let [dh, mut dx] = [2, 4].map(|seed| c.of(shape, draw(seed)));
            let mut h = c.of([rows + 1, cols, wide, at], draw(3));
            check!(c.activate(h.to(), x.of(), f) => h 1.0);
            check!(c.activate_backward(dx.to(), x.of(), dh.of(), f) => dx 2.0);
        }
        let far = [1, 8, 8, 0];
        let x = c.of(far, |i| [-1e4, -200.0, -89.0, -0.0, 0.0, 89.0, 200.0, 1e4][i]);
        let (dh, mut h) = (c.of(far, |_| 1.0), c.of(far, draw(1)));
        check!(c.activate(h.to(), x.of(), f) => h 1.0);
        check!(c.activate_backward(h.to(), x.of(), dh.of(), f) => h 2.0);
    }
}

pub(crate) fn gates<D: SideKernels>(c: &mut Side<D>) {
    for (f, shape) in
        [Gate::Silu, Gate::GeluTanh, Gate::Clamped].into_iter().flat_map(|f| SHAPES.map(|shape| (f, shape)))
    {
        c.case = format!("{f:?}");
        let of = |seed: u64| c.of(shape, |i| 4.0 * f64::sample(seed << 32 | i as u64, 1.0));
        let [gate, up, dh, mut h, mut dgate, mut dup] = [1, 2, 3, 4, 5, 6].map(of);
        check!(c.gated(h.to(), gate.of(), up.of(), f) => h 2.0);
        check!(c.gated_backward(dgate.to(), dup.to(), gate.of(), up.of(), dh.of(), f) => dgate 4.0, dup 2.0);
    }
}

pub(crate) fn factors<D: SideKernels>(c: &mut Side<D>) {
    for shape in SHAPES {
        let [x, mut y] = [1, 2].map(|seed| c.of(shape, draw(seed)));
        check!(c.stretch(y.to(), x.of(), 7) => y 1.0);
        check!(c.cap(y.to(), 1.5) => y 2.0);
    }
}

/// Tokens in more segments than a warp has threads, some segments empty, not ordered by row; rows from 90 on
/// are padding.
fn tokens() -> Vec<Segment> {
    let part = |row, len, position, sequence| Segment { row, len, position, sequence };
    let mut parts: Vec<_> = (0..40).map(|i| part(i, 1, 3 * i, 70_000 + i)).collect();
    parts.extend([part(70, 20, 65_530, 1), part(40, 0, 9, 9), part(40, 30, 4, 2)]);
    parts
}

/// Checks masks bit for bit. Kills: a row taken for a position, a sequence without its number, a feature
/// counted from elsewhere, hashes of 32 bits, padding that is touched.
pub(crate) fn dropout<D: SideKernels>(c: &mut Side<D>) {
    let tokens = c.index(&tokens());
    for (rate, [first, rows]) in
        [(0.0, [0, 100]), (0.5, [0, 100]), (0.1, [33, 60]), (0.9, [89, 5]), (0.3, [95, 9])]
    {
        c.case = format!("of {rate}");
        for [cols, wide, at] in [[64, 64, 0], [70, 80, 8], [600, 608, 0], [9, 20, 5]] {
            let dropout = Dropout::new(rate, 3, 2, "blocks.0.mlp");
            let mut x = c.of([rows, cols, wide, at], |i| 1.0 + (i % 9) as f64);
            check!(c.dropout(x.to(), &tokens, first, &dropout) => x 1.0);
            let exited: Vec<f64> = x.read().into_iter().map(|x| f64::from(x == 0.0)).collect();
            c.close("which elements dropout drops", &exited, 0.0);
        }
    }
}

/// Checks matrices without elements, as a rank without a local part has: a card changes nothing.
pub(crate) fn nothing<D: SideKernels>(c: &mut Side<D>) {
    let tokens = c.index::<Segment>(&[]);
    for [rows, cols] in [[0, 4], [3, 0]] {
        let [mut y, x] = [1, 2].map(|seed| c.of([3, 4, 4, 0], whole(seed)));
        let at = [0, 4 - cols, rows, cols];
        let (mut sum, by) = (c.wide([1, cols, 4, 0], whole(3)), c.wide([rows, 1, 1, 0], whole(4)));
        let none = x.part(at);
        if !c.host {
            c.on.fill(y.part_mut(at), D::Elem::ONE);
            c.on.copy(y.part_mut(at), none);
            c.on.add(y.part_mut(at), none);
            c.on.stab(y.part_mut(at), none);
            c.on.add_row(y.part_mut(at), x.part([0, 4 - cols, 1, cols]));
            c.on.add_rows(sum.to(), none);
            c.on.scale_rows(y.part_mut(at), by.of());
            c.on.gated(y.part_mut(at), none, none, Gate::Clamped);
            c.on.activate(y.part_mut(at), none, Activation::Relu);
            c.on.dropout(y.part_mut(at), &tokens, 0, &Dropout::new(0.5, 1, 1, "here"));
            c.on.rotate(y.part_mut(at), by.of(), &tokens, Heads::new(1, 1, 2), false);
            c.on.put_rows(y.part_mut(at), none, &tokens);
        }
        c.close("a matrix around an empty window", &y, 0.0);
        c.close("a sum of no elements", &sum, 0.0);
    }
}
