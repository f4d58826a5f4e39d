//! Checks of `elementwise.cu`.
use super::{Both, Check, Number, both, index, on_both, read, refs, same};
use crate::gpu::Gpu;
use kernels::{Activation, Kernels, Segment};
use tensor::{Device, Dropout, Real, Scalar, View};

pub(crate) const ALL: &[Check] = &[
    ("sums and copies", both!(sums)),
    ("transposes", both!(transposes)),
    ("sums of rows", both!(sums_of_rows)),
    ("activations", both!(activations)),
    ("swiglu", both!(swiglu)),
    ("dropout", both!(dropout)),
    ("rotations", both!(rotations)),
    ("matrices without numbers", both!(nothing)),
];

/// Rows, columns, columns of what they are a window of, and where it begins: rows that lie together, rows that a card reads by
/// 16 bytes though they lie apart, rows of odd lengths, of odd places, of one number, of more than a block's threads; so much
/// that a thread of the twin's card has three times 16 bytes of bf16, two of which it reads together.
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

/// Of windows whose surroundings stay.
fn sums<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for [rows, cols, whole, at] in SHAPES {
        let draw = |seed, rows| Both::<S>::whole(gpu, seed, rows, whole);
        let (mut y, row) = (draw(1, rows), draw(3, 1));
        let a = Both::<S>::whole(gpu, 2, rows, whole + 8); // lies in another way than y
        let by = Both::<f32>::whole(gpu, 4, rows, 1);
        on_both!(gpu: S, add(y.cut_mut(at, cols), a.cut(at, cols)));
        y.equal("y += a")?;
        on_both!(gpu: S, add_row(y.cut_mut(at, cols), row.cut(at, cols)));
        y.equal("every row += row")?;
        on_both!(gpu: S, stab(y.cut_mut(at, cols), a.cut(at, cols)));
        y.equal("the larger of y and a")?;
        on_both!(gpu: S, scale_rows(y.cut_mut(at, cols), by.view()));
        y.close("rows times factors", 0.5)?; // exact in f32, one rounding in bf16
        on_both!(gpu: S, copy(y.cut_mut(at, cols), a.cut(0, cols)));
        y.close("y = a", 0.5)?;
        on_both!(gpu: S, fill(y.cut_mut(at, cols), (S::from_f64(2.5), 2.5)));
        y.close("y = 2.5", 0.5)?;
    }
    Ok(())
}

/// Of windows into windows, as factors are packed. Kills: a square's edge cut off, or gone beyond.
fn transposes<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for [rows, cols] in [[32, 64], [33, 31], [70, 5], [1, 40], [129, 97]] {
        let x = Both::<S>::whole(gpu, 1, cols, rows + 3);
        let mut y = Both::<S>::whole(gpu, 2, rows, cols + 5);
        let (to, from) = (y.cut_mut(3, cols), x.cut(2, rows));
        let from = (from.0.t(), from.1.t());
        S::On::on(gpu).copy(to.0, from.0);
        let mut to = to.1;
        (0..rows).for_each(|i| (0..cols).for_each(|j| to.row(i)[j] = from.1.at(i, j)));
        y.equal("a transpose in a window")?;
    }
    Ok(())
}

/// Few rows, and many, in parts.
fn sums_of_rows<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for [rows, cols] in [[1, 1], [7, 64], [30, 33], [256, 3], [257, 70], [1000, 5], [17_000, 2]] {
        let (x, mut sum) =
            (Both::<S>::whole(gpu, 1, rows, cols + 2), Both::<f32>::whole(gpu, 2, 1, cols + 1));
        on_both!(gpu: S, add_rows(sum.cut_mut(1, cols), x.cut(2, cols)));
        sum.equal("a sum of rows")?;
    }
    Ok(())
}

/// Where they bend, and far from there; h may have more rows. The functions are within some 2 steps of f32 of f64's, and the
/// derivatives within 4.
fn activations<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for f in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        for [rows, cols, whole, at] in SHAPES {
            let value = |i: usize| (i % 401) as f64 * 0.05 - 10.0;
            let (x, dh) = (Both::<S>::of(gpu, rows, whole, value), Both::<S>::draw(gpu, 2, rows, whole));
            let (mut h, mut dx) =
                (Both::<S>::draw(gpu, 3, rows + 1, whole), Both::<S>::draw(gpu, 4, rows, whole));
            on_both!(gpu: S, activate(h.cut_mut(at, cols), x.cut(at, cols), same(f)));
            h.close(&format!("{f:?}"), 1.0)?;
            on_both!(gpu: S, activate_backward(
                dx.cut_mut(at, cols), x.cut(at, cols), dh.cut(at, cols), same(f)
            ));
            dx.close(&format!("{f:?}'s derivative"), 2.0)?;
        }
        let x = Both::<S>::of(gpu, 1, 8, |i| [-1e4, -200.0, -89.0, -0.0, 0.0, 89.0, 200.0, 1e4][i]);
        let (dh, mut h) = (Both::<S>::of(gpu, 1, 8, |_| 1.0), Both::<S>::draw(gpu, 1, 1, 8));
        on_both!(gpu: S, activate(h.view_mut(), x.view(), same(f)));
        h.close(&format!("{f:?} far out"), 1.0)?;
        on_both!(gpu: S, activate_backward(h.view_mut(), x.view(), dh.view(), same(f)));
        h.close(&format!("{f:?}'s derivative far out"), 2.0)?;
    }
    Ok(())
}

fn swiglu<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for [rows, cols, whole, at] in SHAPES {
        let draw =
            |seed: u64| Both::<S>::of(gpu, rows, whole, |i| 3.0 * f64::sample(seed << 32 | i as u64, 1.0));
        let ([gate, up, dh], [mut h, mut dgate, mut dup]) = ([1, 2, 3].map(draw), [4, 5, 6].map(draw));
        on_both!(gpu: S, swiglu(h.cut_mut(at, cols), gate.cut(at, cols), up.cut(at, cols)));
        h.close("swiglu", 1.0)?;
        on_both!(gpu: S, swiglu_backward(
            dgate.cut_mut(at, cols), dup.cut_mut(at, cols), gate.cut(at, cols), up.cut(at, cols),
            dh.cut(at, cols)
        ));
        dgate.close("swiglu's dgate", 2.0)?;
        dup.close("swiglu's dup", 2.0)?;
    }
    Ok(())
}

/// More segments than a warp has threads, some without tokens, not by row; rows 90 and on are padding.
fn tokens() -> Vec<Segment> {
    let part = |row, len, position, sequence| Segment { row, len, position, sequence };
    let mut all: Vec<_> = (0..40).map(|i| part(i, 1, 3 * i, 70_000 + i)).collect();
    all.extend([part(70, 20, 65_530, 1), part(40, 0, 9, 9), part(40, 30, 4, 2)]);
    all
}

/// Masks bit for bit. Kills: a row for a position, a sequence without its number, a feature counted from elsewhere, hashes of 32
/// bits, padding that is touched.
fn dropout<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let tokens = index(gpu, &tokens());
    for (rate, [first, rows]) in
        [(0.0, [0, 100]), (0.5, [0, 100]), (0.1, [33, 60]), (0.9, [89, 5]), (0.3, [95, 9])]
    {
        for [cols, whole, at] in [[64, 64, 0], [70, 80, 8], [600, 608, 0], [9, 20, 5]] {
            let dropout = Dropout::new(rate, 3, 2, "blocks.0.mlp");
            let mut x = Both::<S>::of(gpu, rows, whole, |i| 1.0 + (i % 9) as f64);
            on_both!(gpu: S, dropout(x.cut_mut(at, cols), refs(&tokens), same(first), same(&dropout)));
            x.close(&format!("dropout of {rate}"), 1.0)?;
            let zeros = |values: &[f64]| values.iter().map(|&x| x == 0.0).collect::<Vec<_>>();
            let seen: Vec<f64> = read(&x.gpu).into_iter().map(Real::to_f64).collect();
            if zeros(&seen) != zeros(&read(&x.host)) {
                return Err(format!("dropout of {rate} takes other elements away"));
            }
        }
    }
    Ok(())
}

/// Even and odd dims, heads whose halves are read by 16 bytes and others, more heads than a block takes at once.
fn rotations<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let tokens = index(
        gpu,
        &[(0, 3, 4, 7), (3, 0, 0, 8), (3, 4, 0, 2)].map(|(row, len, position, sequence)| Segment {
            row,
            len,
            position,
            sequence,
        }),
    );
    for [dim, heads] in [[128, 3], [32, 40], [16, 1], [2, 9], [7, 3], [1, 4], [24, 5], [1040, 2]] {
        let table = Both::<f32>::draw(gpu, 1, 9, 2 * (dim / 2));
        for [more, at] in [[0, 0], [16, 8], [3, 1]] {
            for back in [false, true] {
                let mut x = Both::<S>::draw(gpu, 2, 9, dim * heads + more);
                on_both!(gpu: S, rotate(
                    x.cut_mut(at, dim * heads), table.view(), refs(&tokens), same(dim), same(back)
                ));
                x.close("a rotation", 2.0)?; // of sums up to some 8
            }
        }
    }
    Ok(())
}

/// What a rank without a share holds.
fn nothing<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (on, tokens) = (S::On::on(gpu), index::<Segment>(gpu, &[]));
    for [rows, cols] in [[0, 4], [3, 0]] {
        let (mut y, x) = (Both::<S>::whole(gpu, 1, 3, 4), Both::<S>::whole(gpu, 2, 3, 4));
        let none: View<S::On> = x.gpu.view().take_rows(0, rows).take_cols(4 - cols, cols);
        let mut sum = Both::<f32>::whole(gpu, 3, 1, 4);
        let by = Both::<f32>::whole(gpu, 4, rows, 1);
        macro_rules! none_mut {
            () => {
                y.gpu.view_mut().take_rows(0, rows).take_cols(4 - cols, cols)
            };
        }
        on.fill(none_mut!(), S::ONE);
        on.copy(none_mut!(), none);
        on.add(none_mut!(), none);
        on.stab(none_mut!(), none);
        on.add_row(none_mut!(), x.gpu.view().take_rows(0, 1).take_cols(4 - cols, cols));
        on.add_rows(sum.gpu.view_mut().take_cols(0, cols), none);
        on.scale_rows(none_mut!(), by.gpu.view());
        on.swiglu(none_mut!(), none, none);
        on.activate(none_mut!(), none, Activation::Relu);
        on.dropout(none_mut!(), &tokens.0, 0, &Dropout::new(0.5, 1, 1, "here"));
        on.rotate(none_mut!(), by.gpu.view(), &tokens.0, 2, false);
        y.equal("a matrix beside one without numbers")?;
        sum.equal("a sum of no rows")?;
    }
    Ok(())
}
