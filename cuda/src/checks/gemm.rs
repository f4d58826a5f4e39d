//! Checks of products: integers, so that every sum is exact. What a product of one row does for the kernels
//! around it has the bits that these kernels give themselves.
use super::{BF16, CheckOutcome, F32, Side, SideKernels, SideMatrix, check, compare, draw, whole};
use crate::device::Cuda;
use crate::gpu::Gpu;
use crate::launches::gemm::Rung;
use crate::launches::{Launches, MatrixView};
use kernels::{Gate, Kernels, Write};
use tensor::{Bf16, Category, Cpu, Device, Place, Real, Scalar, Tensor, View};

/// The factors of a product of this size in a layout (bit 0: A is transposed, bit 1: B is).
struct Factors<D: Device> {
    a: SideMatrix<D>,
    b: SideMatrix<D>,
    size: [usize; 3],
    layout: usize,
}

impl<D: SideKernels> Factors<D> {
    /// Makes factors in windows that begin in column `first`; if that is a multiple of 8, rows are aligned.
    fn new(c: &mut Side<D>, seed: usize, size @ [m, n, k]: [usize; 3], layout: usize, first: usize) -> Self {
        c.case = format!("{size:?}, layout {layout}, from column {first}");
        let side = |seed, rows, cols: usize, turned| {
            let [rows, cols] = if turned { [cols, rows] } else { [rows, cols] };
            let width = (first + cols + 2).next_multiple_of(if first.is_multiple_of(8) { 8 } else { 1 });
            c.of([rows, cols, width, first], whole(seed as u64))
        };
        Self { a: side(seed, m, k, layout & 1 > 0), b: side(seed + 50, k, n, layout & 2 > 0), size, layout }
    }
    /// Returns A and B.
    fn of(&self) -> [View<'_, D>; 2] {
        [(&self.a, 1), (&self.b, 2)].map(|(x, bit)| if self.layout & bit > 0 { x.of().t() } else { x.of() })
    }
    /// Makes the outputs, narrow and wide, and how they are written. Their windows are aligned where the rows
    /// are.
    fn to(&self, c: &Side<D>) -> (SideMatrix<D>, SideMatrix<D::Wide>, Write) {
        let [m, n, _] = self.size;
        let write = if self.layout.is_multiple_of(3) { Write::Add } else { Write::Set };
        (c.of([m, n, n + 24, 8], whole(7)), c.wide([m, n, n + 24, 8], whole(7)), write)
    }
}

/// Checks windows of all four layouts, set and added to; narrow, wide and packed. Sizes are no multiples of
/// anything.
pub(crate) fn products<D: SideKernels>(c: &mut Side<D>) {
    for (at, size) in [[37, 29, 45], [1, 70, 33], [5, 3, 0], [0, 4, 4], [4, 0, 4]].into_iter().enumerate() {
        for layout in 0..4 {
            let [m, n, _] = size;
            let factors = Factors::new(c, at, size, layout, 1);
            let [a, b] = factors.of();
            let mut to = c.of([m, n, n + 4, 2], whole(90));
            let mut wide = c.wide([m, n, n + 2, 1], whole(95));
            for write in [Write::Set, Write::Add] {
                check!(c.gemm(to.to(), a, b, write) => to 0.0);
                check!(c.gemm_wide(wide.to(), a, b, write) => wide 0.0);
            }
            let packed = c.on.pack(b);
            check!(c.gemm_packed(to.to(), a, &packed, Write::Set) => to 0.0);
        }
    }
}

/// Checks every way to compute a product.
pub(crate) fn by_every_rung(gpu: &Gpu) -> Result<(), String> {
    compare::<Cuda<f32>>(gpu, F32, rungs, |c| sizes(c, by_host))?;
    compare::<Cuda<Bf16>>(gpu, BF16, rungs, |c| sizes(c, by_host))
}

/// Runs `each` on aligned windows and others, partial tiles, several tiles each way, few steps and many, few
/// rows.
fn sizes<D: SideKernels>(c: &mut Side<D>, mut each: impl FnMut(&mut Side<D>, &Factors<D>)) {
    let sizes = [[130, 264, 200], [20, 70, 33], [9, 64, 0], [4, 72, 264], [1, 40, 1032], [7, 33, 24]];
    for (at, size) in sizes.into_iter().enumerate() {
        for (layout, first) in (0..4).flat_map(|layout| [(layout, 8), (layout, 1)]) {
            let factors = Factors::new(c, at, size, layout, first);
            each(c, &factors);
        }
    }
}

fn by_host(c: &mut Side<Cpu<f64>>, factors: &Factors<Cpu<f64>>) {
    let ([a, b], (mut own, mut wide, write)) = (factors.of(), factors.to(c));
    c.on.gemm(own.to(), a, b, write);
    c.on.gemm_wide(wide.to(), a, b, write);
    c.of_host(own.read());
    c.of_host(wide.read());
}

/// Checks every rung that can compute such windows.
fn rungs<D: SideKernels<Place = Gpu, Elem: Scalar<Wide = f32>>>(c: &mut Side<D>) {
    let mut tried = [false; Rung::ALL.len()];
    sizes(c, |c, factors| {
        // Other rungs take long on one row, and would show nothing new.
        let suits = |rung: &Rung| factors.size[0] > 1 || matches!(rung, Rung::Row | Rung::Few);
        let now = by_rungs(c, factors, suits);
        tried.iter_mut().zip(now).for_each(|(tried, now)| *tried |= now);
    });
    for (rung, tried) in Rung::ALL.into_iter().zip(tried) {
        if !tried && (D::Elem::NARROW != matches!(rung, Rung::Tiled)) {
            c.wrong(format!("{rung:?} computed none of the products in {}", D::Elem::NAME));
        }
    }
}

/// Computes C (+)= A·B by each of these rungs that can; returns which did.
fn by_rungs<D: SideKernels<Place = Gpu, Elem: Scalar<Wide = f32>>>(
    c: &mut Side<D>,
    factors: &Factors<D>,
    suits: impl Fn(&Rung) -> bool,
) -> [bool; Rung::ALL.len()] {
    let [of_own, of_wide] = [(); 2].map(|()| c.of_host(Vec::new()));
    let [a, b] = factors.of().map(|x| MatrixView::from(&x));
    Rung::ALL.map(|rung| {
        let (mut own, mut wide, write) = factors.to(c);
        let gpu = c.on.place().clone();
        let by = |to: MatrixView, wide| {
            suits(&rung) && Launches::<D::Elem>::on(&gpu).product(Some(rung), [to, a, b], wide, write)
        };
        let done = [by((&own.to()).into(), false), by((&wide.to()).into(), true)];
        if done[0] {
            c.beside(&format!("a product by {rung:?}"), &own, &of_own, 0.0);
        }
        if done[1] {
            c.beside(&format!("a wide product by {rung:?}"), &wide, &of_wide, 0.0);
        }
        done[0] | done[1]
    })
}

/// Checks a norm, SwiGLU and a sum around products, in f32 and bf16, of few columns and of many.
pub(crate) fn with_others(gpu: &Gpu) -> CheckOutcome {
    for columns in [40, 32 * (gpu.card().about.processors + 1)] {
        same_bits::<Cuda<f32>>(gpu, columns)?;
        same_bits::<Cuda<Bf16>>(gpu, columns)?;
    }
    Ok(())
}

fn same_bits<D: Kernels<Place = Gpu, Elem: Real, Wide: Device<Elem = f32>>>(
    gpu: &Gpu,
    columns: usize,
) -> CheckOutcome {
    let launches = || gpu.card().launches();
    let (before, alone) = (launches(), around::<D>(gpu, columns, true));
    let (between, together) = (launches(), around::<D>(gpu, columns, false));
    let [alone_in, together_in] = [between - before, launches() - between];
    if let Some(at) = alone.iter().zip(&together).position(|(a, b)| a != b) {
        return Err(format!(
            "output {at} of a product of {columns} columns and the kernels around it has other bits"
        ));
    }
    // On Hopper, 4 of 11 launches are left out: a norm, SwiGLU, and the sums after their products.
    let saved = if gpu.card().kernels.has(("gemm_row_normed_8", "f32")) { 4 } else { 0 };
    if alone_in != together_in + saved {
        return Err(format!("{together_in} launches, alone {alone_in}; wanted {saved} fewer"));
    }
    Ok(())
}

/// Runs products of one row, with kernels before and after them; each `alone`, or as they come. Returns the
/// bits of all outputs.
fn around<D: Kernels<Place = Gpu, Elem: Real, Wide: Device<Elem = f32>>>(
    gpu: &Gpu,
    n: usize,
    alone: bool,
) -> Vec<Vec<u64>> {
    const K: usize = 1096; // more than the threads of a block read at a time
    let on = D::on(gpu);
    let tensor = |seed: u64, rows: usize, cols: usize| {
        Tensor::<D>::from_fn(on, Category::Buffers, rows, cols, |i| D::Elem::from_f64(draw(seed)(i)))
    };
    let [x, gain, gate, up, more] =
        [(1, K), (2, K), (3, K), (4, K), (5, n)].map(|(seed, cols)| tensor(seed, 1, cols));
    let (b, mut y, mut h) = (tensor(6, K, n), tensor(7, 1, K), tensor(8, 1, K));
    let mut r = [(); 2].map(|()| Tensor::from_fn(D::Wide::on(gpu), Category::Buffers, 1, 1, |_| 0.0));
    let mut c = [10, 11, 12, 13].map(|seed| tensor(seed, 1, n));
    let then = || {
        if alone {
            gpu.settle();
        }
    };
    on.rms_norm(y.view_mut(), r[0].view_mut(), x.view(), gain.view(), 1e-5);
    then();
    on.gemm(c[0].view_mut(), y.view(), b.view(), Write::Set);
    then();
    on.add(c[0].view_mut(), more.view());
    then();
    on.gated(h.view_mut(), gate.view(), up.view(), Gate::Silu);
    then();
    on.gemm(c[1].view_mut(), h.view(), b.view(), Write::Set);
    then();
    on.add(c[1].view_mut(), more.view());
    then();
    // A norm whose result this product does not read; a product that adds; a sum of another matrix.
    on.rms_norm(h.view_mut(), r[1].view_mut(), x.view(), gain.view(), 1e-3);
    then();
    on.gemm(c[2].view_mut(), y.view(), b.view(), Write::Set);
    then();
    on.add(c[3].view_mut(), more.view());
    then();
    on.gemm(c[3].view_mut(), y.view(), b.view(), Write::Add);
    then();
    on.add(c[3].view_mut(), more.view());
    then();
    let bits = |x: &Tensor<D>| {
        x.read().expect("a card has values").into_iter().map(|x| x.to_f64().to_bits()).collect()
    };
    let mut out: Vec<Vec<u64>> = c.iter().chain([&y, &h]).map(bits).collect();
    for r in r {
        out.push(r.read().expect("a card has values").into_iter().map(|x| u64::from(x.to_bits())).collect());
    }
    out
}

/// Checks one product of Hopper's own.
#[cfg(test)]
pub(super) fn on_hopper(gpu: &Gpu) -> Result<(), String> {
    fn factors<D: SideKernels>(c: &mut Side<D>) -> Factors<D> {
        Factors::new(c, 1, [130, 264, 40], 0, 8)
    }
    let on_card = |c: &mut Side<Cuda<Bf16>>| {
        let factors = factors(c);
        if !by_rungs(c, &factors, |rung| matches!(rung, Rung::Hopper)).contains(&true) {
            c.wrong("Hopper's rung does not take this product".into());
        }
    };
    compare(gpu, BF16, on_card, |c| {
        let factors = factors(c);
        by_host(c, &factors);
    })
}
