//! Products on one core.
use super::scale::Scale;
use kernels::{Kernels, Write};
use parallel::number::Runs;
use std::time::Instant;
use tensor::{Category, Cpu, Scalar, Tensor, mix};

/// FLOPs of M×K by K×N.
pub(super) fn flops(size: [usize; 3], scale: &Scale) -> f64 {
    size.into_iter().map(|n| scale.of(n) as f64).product::<f64>() * 2.0
}

pub(super) fn matrix<D: Runs>(cpu: &D, salt: u64, rows: usize, cols: usize) -> Tensor<D> {
    let value = |i: usize| D::Elem::from_f64((mix(salt ^ i as u64) % 2001) as f64 / 1000.0 - 1.0);
    Tensor::from_fn(cpu, Category::Buffers, rows, cols, value)
}

/// C = A·B, all of them by rows.
pub(super) fn product<D: Runs>(size: [usize; 3], scale: &Scale) -> f64 {
    let (cpu, [m, n, k]) = (D::default(), size.map(|n| scale.of(n)));
    let (a, b, mut c) =
        (matrix(&cpu, 1 << 40, m, k), matrix(&cpu, 2 << 40, k, n), matrix(&cpu, 3 << 40, m, n));
    fastest(scale, || cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set))
}

/// Y = X·Wᵀ, the weight W[N,K] as models keep it; what can be made of it beforehand is.
pub(super) fn linear(size: [usize; 3], scale: &Scale) -> f64 {
    let (cpu, [m, n, k]) = (Cpu::<f32>::default(), size.map(|n| scale.of(n)));
    let (x, w, mut y) =
        (matrix(&cpu, 1 << 40, m, k), matrix(&cpu, 2 << 40, n, k), matrix(&cpu, 3 << 40, m, n));
    let packed = cpu.pack(w.view().t());
    fastest(scale, || cpu.gemm_packed(y.view_mut(), x.view(), &packed, Write::Set))
}

/// The time of one of many calls, after one to warm up.
pub(super) fn fastest(scale: &Scale, mut call: impl FnMut()) -> f64 {
    call();
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || begin.elapsed().as_secs_f64() < scale.seconds {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
