//! Checks of `norm.cu`.
use super::{F32, Side, SideKernels, SideMatrix, check, compare, draw};
use crate::card::KernelName;
use crate::device::Cuda;
use crate::gpu::Gpu;
use crate::launches::Launches;
use tensor::{Device, View, ViewMut, mix};

/// Rows, columns, columns of the whole matrix, and the first column: as in `elementwise`, and more rows than
/// blocks, more columns than fit in shared memory, no rows at all.
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

pub(crate) fn rms<D: SideKernels>(c: &mut Side<D>) {
    rms_by(c, |on, y, r, x, gain| on.rms_norm(y, r, x, gain, EPS));
}

fn rms_by<D: SideKernels>(
    c: &mut Side<D>,
    compute: impl Fn(&D, ViewMut<D>, ViewMut<D::Wide>, View<D>, View<D>),
) {
    for [rows, cols, whole, at] in SHAPES {
        let of = |seed, rows| c.of([rows, cols, whole, at], draw(seed));
        let (x, gain, mut y, mut r) = (of(1, rows), of(2, 1), of(3, rows), c.wide([rows, 1, 3, 1], draw(4)));
        compute(&c.on, y.to(), r.to(), x.of(), gain.of());
        c.close("1 / the root of the mean square", &r, 0.5);
        c.close("rms norm", &y, 1.0);
    }
}

/// Checks the kernel written by hand, if there is a card. Its results are those of the compiled one, but for
/// the order of sums.
pub(crate) fn by_hand(gpu: &Gpu) -> Result<(), String> {
    const KERNEL: KernelName = ("rms_norm_by_hand", "");
    let launch = |c: &mut Side<Cuda<f32>>| {
        rms_by(c, |on, y, r, x, gain| Launches::on(on.place()).rms_norm_as(KERNEL, y, r, x, gain, EPS));
    };
    if gpu.card().kernels.has(KERNEL) { compare(gpu, F32, launch, rms) } else { Ok(()) }
}

/// Tolerances for the roundings of a sum over rows: some for each stage that adds a few values.
fn sums(rows: usize) -> f64 {
    1.0 + (rows as f64).sqrt() / 2.0
}

/// Draws values around a mean of some deviations, which a difference of two large sums would lose.
fn far(i: usize) -> f64 {
    8.0 + (mix(1 << 40 | i as u64) % 64) as f64 / 16.0
}

/// Returns every shape without a skip connection, and with one of another layout.
fn skips() -> impl Iterator<Item = ([usize; 4], Option<[usize; 4]>)> {
    SHAPES.into_iter().flat_map(|[rows, cols, whole, at]| {
        let odd = 3 * (rows % 2);
        [None, Some([rows, cols, whole + odd, at + odd])].map(|skip| ([rows, cols, whole, at], skip))
    })
}

pub(crate) fn rms_backward<D: SideKernels>(c: &mut Side<D>) {
    for (shape @ [rows, cols, whole, at], skip) in skips() {
        let [x, dy, mut dx] = [1, 3, 5].map(|seed| c.of(shape, draw(seed)));
        let gain = c.of([1, cols, whole, at], draw(2));
        let skip = skip.map(|s| c.of(s, draw(4)));
        let stats = c.wide([rows, 1, 3, 1], |i| 0.5 + (i % 7) as f64 / 8.0);
        let (mut dgain, skip) = (c.wide([1, cols, cols + 1, 1], draw(6)), skip.as_ref().map(SideMatrix::of));
        check!(c.rms_norm_backward(dx.to(), dgain.to(), x.of(), stats.of(), gain.of(), dy.of(), skip)
            => dx 3.0, dgain sums(rows));
    }
}

/// Kills: s where there is no z, the other statistic, a part's own count of columns.
pub(crate) fn parts<D: SideKernels>(c: &mut Side<D>) {
    for (shape @ [rows, cols, whole, at], z) in skips() {
        let (x, mut y, gain) =
            (c.of(shape, draw(1)), c.of(shape, draw(3)), c.of([1, cols, whole, at], draw(2)));
        let stats = c.wide([rows, 2, 5, 1], |i| 0.5 + (i % 7) as f64 / 8.0);
        let z = z.map(|z| c.of(z, draw(4)));
        let z = z.as_ref().map(SideMatrix::of);
        check!(c.norm_part(y.to(), x.of(), stats.of(), gain.of(), z, 3 * cols) => y 3.0);
    }
}

pub(crate) fn roots<D: SideKernels>(c: &mut Side<D>) {
    for rows in [0, 1, 7, 300] {
        let mut r = c.of([rows, 1, 3, 1], |i| (i % 11) as f64);
        check!(c.inverse_rms(r.to(), 5, EPS) => r 1.0);
    }
}

pub(crate) fn layer<D: SideKernels>(c: &mut Side<D>) {
    for shape @ [rows, cols, whole, at] in SHAPES {
        let [gain, bias] = [2, 3].map(|seed| c.of([1, cols, whole, at], draw(seed)));
        let (x, mut y, mut stats) =
            (c.of(shape, far), c.of(shape, draw(4)), c.wide([rows, 2, 4, 1], draw(5)));
        check!(c.layer_norm(y.to(), stats.to(), x.of(), gain.of(), bias.of(), EPS) => stats 1.0, y 4.0);
    }
}

pub(crate) fn layer_backward<D: SideKernels>(c: &mut Side<D>) {
    for (shape @ [rows, cols, whole, at], skip) in skips() {
        let (x, gain) = (c.of(shape, far), c.of([1, cols, whole, at], draw(2)));
        let (dy, mut dx, skip) = (c.of(shape, draw(3)), c.of(shape, draw(5)), skip.map(|s| c.of(s, draw(4))));
        let stats = c.wide([rows, 2, 4, 1], |i| if i % 4 == 1 { 10.0 } else { 0.5 + (i % 7) as f64 / 8.0 });
        let [mut dgain, mut dbias] = [6, 7].map(|seed| c.wide([1, cols, cols + 1, 1], draw(seed)));
        let (sides, skip) = ([dgain.to(), dbias.to()], skip.as_ref().map(SideMatrix::of));
        check!(c.layer_norm_backward(dx.to(), sides, x.of(), stats.of(), gain.of(), dy.of(), skip)
            => dx 6.0, dgain sums(rows), dbias sums(rows));
    }
}
