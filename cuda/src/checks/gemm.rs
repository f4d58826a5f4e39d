//! Checks of products: whole numbers, so that every sum is exact.
use super::{Both, Check, Number, both};
use crate::gpu::Gpu;
use kernels::{Kernels, Write};
use tensor::{Cpu, Device};

pub(crate) const ALL: &[Check] = &[("products", both!(products))];

/// Of windows of all four layouts, set and added to; narrow, wide and packed. Sizes are no multiples of anything.
fn products<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    for (at, [m, n, k]) in
        [[37, 29, 45], [1, 70, 33], [5, 3, 0], [0, 4, 4], [4, 0, 4]].into_iter().enumerate()
    {
        for layout in 0..4 {
            let seed = (at * 4 + layout) as u64;
            let sides = |rows: usize, cols: usize, turned| if turned { [cols, rows] } else { [rows, cols] };
            let ([ar, ac], [br, bc]) = (sides(m, k, layout & 1 > 0), sides(k, n, layout & 2 > 0));
            let (a, b) =
                (Both::<S>::whole(gpu, seed, ar, ac + 3), Both::<S>::whole(gpu, seed + 50, br, bc + 5));
            let (mut c, mut wide) =
                (Both::<S>::whole(gpu, seed + 90, m, n + 4), Both::<f32>::whole(gpu, seed + 95, m, n + 2));
            let (ag, ah) = (a.gpu.view().take_cols(1, ac), a.host.view().take_cols(1, ac));
            let (bg, bh) = (b.gpu.view().take_cols(4, bc), b.host.view().take_cols(4, bc));
            let (ag, ah) = if layout & 1 > 0 { (ag.t(), ah.t()) } else { (ag, ah) };
            let (bg, bh) = if layout & 2 > 0 { (bg.t(), bh.t()) } else { (bg, bh) };
            let (packed, packed_host) = (gpus.pack(bg), host.pack(bh));
            for write in [Write::Set, Write::Add] {
                let what = format!("{write:?} [{m}, {n}, {k}], layout {layout}");
                gpus.gemm(c.gpu.view_mut().take_cols(2, n), ag, bg, write);
                host.gemm(c.host.view_mut().take_cols(2, n), ah, bh, write);
                c.equal(&what)?;
                gpus.gemm_wide(wide.gpu.view_mut().take_cols(1, n), ag, bg, write);
                host.gemm_wide(wide.host.view_mut().take_cols(1, n), ah, bh, write);
                wide.equal(&format!("wide {what}"))?;
            }
            gpus.gemm_packed(c.gpu.view_mut().take_cols(2, n), ag, &packed, Write::Set);
            host.gemm_packed(c.host.view_mut().take_cols(2, n), ah, &packed_host, Write::Set);
            c.equal("packed")?;
        }
    }
    Ok(())
}
