//! Checks of `optimizer.cu`.
use super::{Both, Check, Number, both, on_both, only, same};
use crate::gpu::Gpu;
use kernels::{AdamW, Kernels};

pub(crate) const ALL: &[Check] = &[
    ("norms of gradients", both!(norms)),
    ("sums of many blocks come out the same every time", |gpu| many_blocks(gpu)),
    ("the factor that clips", both!(clips)),
    ("sgd", both!(steps_of_sgd)),
    ("AdamW", both!(steps_of_adamw)),
];

/// Whole numbers: together, in a window, one row, a few, none. It adds to what is there.
fn norms<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let mut sum = Both::<S>::of(gpu, 2, 3, |i| i as f64);
    for (rows, cols, first, take) in
        [(3, 3, 0, 3), (40, 13, 0, 13), (40, 13, 2, 9), (1, 50, 3, 46), (0, 8, 0, 8), (1, 2, 0, 2)]
    {
        // Of bf16 all sums stay below 257, the least whole number that it has not.
        let x = Both::<S>::of(gpu, rows, cols, |i| f64::from(u8::from(i % 11 == 4)) * (1 + i % 2) as f64);
        on_both!(gpu: S, add_norm2(sum.part_mut([1, 2, 1, 1]), x.cut(first, take)));
        sum.equal(&format!("norm² of [{rows}, {take}]"))?;
    }
    Ok(())
}

/// Of more numbers than all threads take at once, twice over.
fn many_blocks(gpu: &Gpu) -> Result<(), String> {
    type S = f32;
    let x = Both::<f32>::draw(gpu, 1, 301, 1031);
    let sum = || {
        let mut sum = Both::<f32>::of(gpu, 1, 1, |_| 0.5);
        on_both!(gpu: S, add_norm2(sum.view_mut(), x.view()));
        sum.close("norm²", 2.0).map(|()| super::read(&sum.gpu)[0].to_bits())
    };
    let first = sum()?;
    if sum()? == first { Ok(()) } else { Err("the same sum has other bits".into()) }
}

/// Norms above the limit, below it, none, and one that is no number.
fn clips<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let norms = Both::<S>::of(gpu, 1, 5, |i| [4.0, 0.25, 0.0, 3.0, f64::NAN][i]);
    let mut factors = Both::<S>::of(gpu, 1, 5, |_| 9.0);
    for i in 0..5 {
        on_both!(gpu: S, clip_factor(factors.cut_mut(i, 1), norms.cut(i, 1), same(0.75)));
    }
    factors.close("factor", if S::NARROW { 1.0 } else { 0.1 })
}

/// Windows of these: row and column where they begin, and how much of 7·13 they are. The first lies together.
const WINDOWS: [[usize; 4]; 3] = [[0, 0, 7, 13], [1, 3, 5, 9], [0, 1, 7, 12]];

fn steps_of_sgd<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (g, factor) = (Both::<f32>::whole(gpu, 2, 7, 13), Both::<f32>::of(gpu, 1, 1, |_| 0.5));
    for at in WINDOWS {
        for with_master in [false, true] {
            let (mut w, mut master) = (Both::<S>::whole(gpu, 1, 7, 13), Both::<f32>::whole(gpu, 1, 7, 13));
            let of_master = only(with_master, master.part_mut(at));
            on_both!(gpu: S, sgd(w.part_mut(at), of_master, g.part(at), factor.view(), same(2f64.powi(-12))));
            w.equal("w")?;
            master.equal("the master")?;
        }
    }
    Ok(())
}

/// Three steps. The constants are exact in f32, so that all that differs is the rounding of each operation.
fn steps_of_adamw<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let factor = Both::<f32>::of(gpu, 1, 1, |_| 0.5);
    for at in WINDOWS {
        for with_master in [false, true] {
            let mut w = Both::<S>::draw(gpu, 1, 7, 13);
            let mut master = Both::<f32>::of(gpu, 7, 13, |i| f64::from(super::read(&w.host)[i] as f32));
            let [mut m, mut v] = [(); 2].map(|()| Both::<f32>::of(gpu, 7, 13, |_| 0.0));
            for step in 1..=3 {
                let g = Both::<f32>::draw(gpu, 9 + step as u64, 7, 13);
                let constants =
                    AdamW { lr: 0.125, beta1: 0.875, beta2: 0.9375, eps: 0.0625, decay: 0.25, step };
                let of_master = only(with_master, master.part_mut(at));
                let ((m_gpu, m_host), (v_gpu, v_host)) = (m.part_mut(at), v.part_mut(at));
                let moments = ((m_gpu, v_gpu), (m_host, v_host));
                on_both!(gpu: S, adamw(
                    w.part_mut(at), of_master, moments, g.part(at), factor.view(), same(constants)
                ));
            }
            w.close("w", [0.3, if with_master { 1.01 } else { 3.03 }][usize::from(S::NARROW)])?;
            master.close("the master", 0.3)?;
            m.close("m", 0.2)?;
            v.close("v", 0.2)?;
        }
    }
    Ok(())
}
