//! Checks of `norm.cu`.
use super::{Both, Check, Number, both, on_both, only, same};
use crate::card::KernelName;
use crate::gpu::Gpu;
use crate::launches::Launches;
use kernels::Kernels;
use tensor::Cpu;

pub(crate) const ALL: &[Check] = &[
    ("rms norm", both!(rms)),
    ("rms norm by hand", rms_by_hand),
    ("rms norm backward", both!(rms_backward)),
    ("layer norm", both!(layer)),
    ("layer norm backward", both!(layer_backward)),
];

/// Rows, columns, columns of what they are a window of, and where it begins: as those of `elementwise`, and more rows than
/// blocks, columns for which shared memory has no room, no rows at all.
const SHAPES: [[usize; 4]; 9] = [
    [9, 64, 64, 0],
    [3, 24, 40, 8],
    [9, 61, 70, 8],
    [1, 1, 1, 0],
    [5, 64, 72, 3],
    [300, 7, 9, 2],
    [3, 2100, 2112, 8],
    [0, 8, 8, 0],
    [2, 12_600, 12_600, 0],
];
const EPS: f64 = 0.01;

fn rms<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for [rows, cols, whole, at] in SHAPES {
        let draw = |seed, rows| Both::<S>::draw(gpu, seed, rows, whole);
        let (x, gain, mut y) = (draw(1, rows), draw(2, 1), draw(3, rows));
        let mut stats = Both::<f32>::draw(gpu, 4, rows, 3);
        on_both!(gpu: S, rms_norm(
            y.cut_mut(at, cols), stats.cut_mut(1, 1), x.cut(at, cols), gain.cut(at, cols), same(EPS)
        ));
        stats.close("1 / the root of the mean square", 0.5)?;
        y.close("rms norm", 1.0)?;
    }
    Ok(())
}

/// The kernel that is written by hand and the compiled one, where there is a card: the same but for the order of sums.
fn rms_by_hand(gpu: &Gpu) -> Result<(), String> {
    const KERNEL: KernelName = ("rms_norm_by_hand", "");
    for [rows, cols, whole, at] in SHAPES.into_iter().filter(|_| gpu.card().has(KERNEL)) {
        let (x, gain) = (Both::<f32>::draw(gpu, 1, rows, whole), Both::<f32>::draw(gpu, 2, 1, whole));
        let (mut y, mut r) = (Both::<f32>::draw(gpu, 3, rows, whole), Both::<f32>::draw(gpu, 4, rows, 3));
        let ((to, wanted), (scale, scales)) = (y.cut_mut(at, cols), r.cut_mut(1, 1));
        let (from, by) = (x.cut(at, cols), gain.cut(at, cols));
        Launches::on(gpu).rms_norm_as(KERNEL, to, scale, from.0, by.0, EPS);
        Cpu::<f64>::default().rms_norm(wanted, scales, from.1, by.1, EPS);
        r.close("1 / the root of the mean square, by hand", 0.5)?;
        y.close("rms norm by hand", 1.0)?;
    }
    Ok(())
}

fn rms_backward<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for ([rows, cols, whole, at], skipped) in
        SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)])
    {
        let draw = |seed, rows| Both::<S>::draw(gpu, seed, rows, whole);
        let (x, gain, dy, mut dx) = (draw(1, rows), draw(2, 1), draw(3, rows), draw(5, rows));
        let odd = 3 * (rows % 2); // a skip that lies in another way than the rest
        let skip = Both::<S>::draw(gpu, 4, rows, whole + odd);
        let stats = Both::<f32>::of(gpu, rows, 3, |i| 0.5 + (i % 7) as f64 / 8.0);
        let mut dgain = Both::<f32>::draw(gpu, 6, 1, cols + 1);
        on_both!(gpu: S, rms_norm_backward(
            dx.cut_mut(at, cols), dgain.cut_mut(1, cols), x.cut(at, cols), stats.cut(1, 1),
            gain.cut(at, cols), dy.cut(at, cols), only(skipped, skip.cut(at + odd, cols))
        ));
        dx.close("dx of rms norm", 3.0)?;
        dgain.close("dgain of rms norm", sums(rows))?;
    }
    Ok(())
}

/// How many roundings a sum over rows may have: some for each of the steps in which few numbers are added.
fn sums(rows: usize) -> f64 {
    1.0 + (rows as f64).sqrt() / 2.0
}

/// A mean of some deviations, which a difference of two large sums would lose.
fn far<S: Number>(gpu: &Gpu, seed: u64, rows: usize, whole: usize) -> Both<S> {
    Both::of(gpu, rows, whole, |i| 8.0 + (tensor::mix(seed << 40 | i as u64) % 64) as f64 / 16.0)
}

fn layer<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for [rows, cols, whole, at] in SHAPES {
        let draw = |seed, rows| Both::<S>::draw(gpu, seed, rows, whole);
        let (x, gain, bias, mut y) = (far::<S>(gpu, 1, rows, whole), draw(2, 1), draw(3, 1), draw(4, rows));
        let mut stats = Both::<f32>::draw(gpu, 5, rows, 4);
        on_both!(gpu: S, layer_norm(
            y.cut_mut(at, cols), stats.cut_mut(1, 2), x.cut(at, cols), gain.cut(at, cols), bias.cut(at, cols),
            same(EPS)
        ));
        stats.close("mean and 1 / deviation", 1.0)?;
        y.close("layer norm", 4.0)?;
    }
    Ok(())
}

fn layer_backward<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for ([rows, cols, whole, at], skipped) in
        SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)])
    {
        let draw = |seed, rows| Both::<S>::draw(gpu, seed, rows, whole);
        let (x, gain, dy) = (far::<S>(gpu, 1, rows, whole), draw(2, 1), draw(3, rows));
        let (mut dx, odd) = (draw(5, rows), 3 * (rows % 2));
        let skip = Both::<S>::draw(gpu, 4, rows, whole + odd);
        let stats =
            Both::<f32>::of(gpu, rows, 4, |i| if i % 4 == 1 { 10.0 } else { 0.5 + (i % 7) as f64 / 8.0 });
        let [mut dgain, mut dbias] = [6, 7].map(|seed| Both::<f32>::draw(gpu, seed, 1, cols + 1));
        let [dgains, dbiases] = [dgain.cut_mut(1, cols), dbias.cut_mut(1, cols)];
        on_both!(gpu: S, layer_norm_backward(
            dx.cut_mut(at, cols), ([dgains.0, dbiases.0], [dgains.1, dbiases.1]), x.cut(at, cols),
            stats.cut(1, 2), gain.cut(at, cols), dy.cut(at, cols), only(skipped, skip.cut(at + odd, cols))
        ));
        dx.close("dx of layer norm", 6.0)?;
        dgain.close("dgain of layer norm", sums(rows))?;
        dbias.close("dbias of layer norm", sums(rows))?;
    }
    Ok(())
}
