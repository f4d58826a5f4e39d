//! Checks of products: whole numbers, so that every sum is exact.
use super::{Both, Check, Number, Read, both, on_both, refs, same};
use crate::gpu::Gpu;
use crate::launches::gemm::Rung;
use crate::launches::{Launches, Window};
use kernels::{Kernels, Write};
use tensor::{Cpu, Device, View};

pub(crate) const ALL: &[Check] =
    &[("products", both!(products)), ("every way to compute a product", both!(rungs))];

/// The factors of a product of this size in a layout (bit 0: A is transposed, bit 1: B is), as windows of what this holds.
struct Factors<S: Number> {
    a: Both<S>,
    b: Both<S>,
    size: [usize; 3],
    layout: usize,
    first: usize,
}

impl<S: Number> Factors<S> {
    /// The windows begin in this column; where that is a multiple of 8, so are the numbers of a row.
    fn new(gpu: &Gpu, seed: usize, [m, n, k]: [usize; 3], layout: usize, first: usize) -> Self {
        let whole = |seed, rows, cols, turned| {
            let [rows, cols] = if turned { [cols, rows] } else { [rows, cols] };
            let width = first + cols + 2;
            Both::whole(
                gpu,
                seed as u64,
                rows,
                if first.is_multiple_of(8) { width.next_multiple_of(8) } else { width },
            )
        };
        let (a, b) = (whole(seed, m, k, layout & 1 > 0), whole(seed + 50, k, n, layout & 2 > 0));
        Self { a, b, size: [m, n, k], layout, first }
    }
    /// Both sides' A and B.
    fn of(&self) -> [Read<'_, S>; 2] {
        fn window<D: Device>(
            x: View<D>,
            first: usize,
            [cols, turned_cols]: [usize; 2],
            turned: bool,
        ) -> View<D> {
            if turned { x.take_cols(first, turned_cols).t() } else { x.take_cols(first, cols) }
        }
        let ([m, n, k], first) = (self.size, self.first);
        let sides = [(&self.a, [k, m], self.layout & 1 > 0), (&self.b, [n, k], self.layout & 2 > 0)];
        sides.map(|(x, cols, turned)| {
            (window(x.gpu.view(), first, cols, turned), window(x.host.view(), first, cols, turned))
        })
    }
}

/// Of windows of all four layouts, set and added to; narrow, wide and packed. Sizes are no multiples of anything.
fn products<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for (at, size) in [[37, 29, 45], [1, 70, 33], [5, 3, 0], [0, 4, 4], [4, 0, 4]].into_iter().enumerate() {
        for layout in 0..4 {
            let [m, n, _] = size;
            let factors = Factors::<S>::new(gpu, at, size, layout, 1);
            let [a, b] = factors.of();
            let mut c = Both::<S>::whole(gpu, 90, m, n + 4);
            let mut wide = Both::<f32>::whole(gpu, 95, m, n + 2);
            for write in [Write::Set, Write::Add] {
                let what = format!("{write:?} {size:?}, layout {layout}");
                on_both!(gpu: S, gemm(c.cut_mut(2, n), a, b, same(write)));
                c.equal(&what)?;
                on_both!(gpu: S, gemm_wide(wide.cut_mut(1, n), a, b, same(write)));
                wide.equal(&format!("wide {what}"))?;
            }
            let packed = (S::On::on(gpu).pack(b.0), Cpu::<f64>::default().pack(b.1));
            on_both!(gpu: S, gemm_packed(c.cut_mut(2, n), a, refs(&packed), same(Write::Set)));
            c.equal("packed")?;
        }
    }
    Ok(())
}

/// Every rung that is for such windows: aligned ones and others, tiles that are not full, several tiles each way, few steps
/// and many, few rows.
fn rungs<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let sizes = [[130, 264, 200], [20, 70, 33], [9, 64, 0], [4, 72, 264], [1, 40, 1032], [7, 33, 24]];
    let mut tried = [false; Rung::ALL.len()];
    for (at, size) in sizes.into_iter().enumerate() {
        for (layout, first) in (0..4).flat_map(|layout| [(layout, 8), (layout, 1)]) {
            let factors = Factors::<S>::new(gpu, at, size, layout, first);
            for (rung, tried) in Rung::ALL.into_iter().zip(&mut tried) {
                if size[0] == 1 && !matches!(rung, Rung::Few) {
                    continue; // long, for what it would say
                }
                let what = format!("{rung:?}, {size:?}, layout {layout}, from column {first}");
                *tried |= by_rung::<S, S>(gpu, rung, &factors, &what)?;
                *tried |= by_rung::<S, f32>(gpu, rung, &factors, &format!("wide {what}"))?;
            }
        }
    }
    for (rung, tried) in Rung::ALL.into_iter().zip(tried) {
        if !tried && (S::NARROW != matches!(rung, Rung::Tiled)) {
            return Err(format!("{rung:?} is for no product that was tried"));
        }
    }
    Ok(())
}

/// One product of Hopper's own.
#[cfg(test)]
pub(super) fn on_hopper(gpu: &Gpu) -> Result<(), String> {
    let factors = Factors::<tensor::Bf16>::new(gpu, 1, [130, 264, 40], 0, 8);
    let computed = by_rung::<tensor::Bf16, tensor::Bf16>(gpu, Rung::Hopper, &factors, "a product")?;
    if computed { Ok(()) } else { Err("Hopper's rung is not for it".into()) }
}

/// C (+)= A·B by this rung, if it is for these factors; C's window is aligned where its rows are.
fn by_rung<S: Number, C: Number>(
    gpu: &Gpu,
    rung: Rung,
    factors: &Factors<S>,
    what: &str,
) -> Result<bool, String> {
    let ([(a, a_host), (b, b_host)], [m, n, _]) = (factors.of(), factors.size);
    let mut c = Both::<C>::whole(gpu, 7, m, n + 24);
    let write = if factors.layout.is_multiple_of(3) { Write::Add } else { Write::Set };
    let of = [Window::from(&c.gpu.view_mut().take_cols(8, n)), (&a).into(), (&b).into()];
    let computed = Launches::<S>::on(gpu).product(Some(rung), of, C::NARROW != S::NARROW, write);
    if computed {
        Cpu::<f64>::default().gemm(c.host.view_mut().take_cols(8, n), a_host, b_host, write);
        c.equal(what)?;
    }
    Ok(computed)
}
