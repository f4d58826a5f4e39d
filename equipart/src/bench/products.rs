//! Products of f32 on one core.
use super::scale::Scale;
use kernels::{Kernels, Write};
use std::time::Instant;
use tensor::{Category, Cpu, Tensor, mix};

/// FLOPs of M×K by K×N.
pub(super) fn flops(size: [usize; 3], scale: &Scale) -> f64 {
    size.into_iter().map(|n| scale.of(n) as f64).product::<f64>() * 2.0
}

fn matrix(cpu: &Cpu<f32>, salt: u64, rows: usize, cols: usize) -> Tensor<Cpu<f32>> {
    let value = |i: usize| (mix(salt ^ i as u64) % 2001) as f32 / 1000.0 - 1.0;
    Tensor::from_fn(cpu, Category::Buffers, rows, cols, value)
}

/// C = A·B, all of them by rows.
pub(super) fn product(size: [usize; 3], scale: &Scale) -> f64 {
    let (cpu, [m, n, k]) = (Cpu::default(), size.map(|n| scale.of(n)));
    let (a, b, mut c) =
        (matrix(&cpu, 1 << 40, m, k), matrix(&cpu, 2 << 40, k, n), matrix(&cpu, 3 << 40, m, n));
    fastest(scale, || cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set))
}

/// Y = X·Wᵀ, the weight W[N,K] as models keep it; what can be made of it beforehand is.
pub(super) fn linear(size: [usize; 3], scale: &Scale) -> f64 {
    let (cpu, [m, n, k]) = (Cpu::default(), size.map(|n| scale.of(n)));
    let (x, w, mut y) =
        (matrix(&cpu, 1 << 40, m, k), matrix(&cpu, 2 << 40, n, k), matrix(&cpu, 3 << 40, m, n));
    fastest(scale, || cpu.gemm(y.view_mut(), x.view(), w.view().t(), Write::Set))
}

/// The time of one of many calls, after one to warm up.
fn fastest(scale: &Scale, mut call: impl FnMut()) -> f64 {
    call();
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || begin.elapsed().as_secs_f64() < scale.seconds {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
