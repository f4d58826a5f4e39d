//! Products on one processor.
use super::machine::Hardware;
use super::scale::Scale;
use kernels::{Kernels, Write};
use parallel::dtype::RunDevice;
use std::time::Instant;
use tensor::{Category, Device, Place, Scalar, Tensor, mix};

/// FLOPs of M×K by K×N.
pub(super) fn flops(size: [usize; 3], scale: &Scale) -> f64 {
    size.into_iter().map(|n| scale.of(n) as f64).product::<f64>() * 2.0
}

pub(super) fn matrix<D: RunDevice>(device: &D, salt: u64, rows: usize, cols: usize) -> Tensor<D> {
    let value = |i: usize| D::Elem::from_f64((mix(salt ^ i as u64) % 2001) as f64 / 1000.0 - 1.0);
    Tensor::from_fn(device, Category::Buffers, rows, cols, value)
}

/// Seconds of C = A·B, all row-major.
pub(super) fn product<H: Hardware, D: RunDevice>(size: [usize; 3], scale: &Scale) -> f64 {
    let (device, [m, n, k]) = (D::default(), size.map(|n| scale.of(n)));
    let [a, b, mut c] =
        [(1, m, k), (2, k, n), (3, m, n)].map(|(salt, rows, cols)| matrix(&device, salt << 40, rows, cols));
    fastest::<H>(scale, device.place(), || device.gemm(c.view_mut(), a.view(), b.view(), Write::Set))
}

/// Seconds of Y = X·Wᵀ with the weight W[N,K] as models store it; it is packed before the timing.
pub(super) fn linear<H: Hardware>(size: [usize; 3], scale: &Scale) -> f64 {
    let (device, [m, n, k]) = (H::F32::default(), size.map(|n| scale.of(n)));
    let [x, w, mut y] =
        [(1, m, k), (2, n, k), (3, m, n)].map(|(salt, rows, cols)| matrix(&device, salt << 40, rows, cols));
    let packed = device.pack(w.view().t());
    fastest::<H>(scale, device.place(), || device.gemm_packed(y.view_mut(), x.view(), &packed, Write::Set))
}

/// The least seconds of a call, after one warm-up; asynchronous calls are timed in groups of `H::CALLS`
/// between two waits.
pub(super) fn fastest<H: Hardware>(scale: &Scale, place: &impl Place, mut call: impl FnMut()) -> f64 {
    let calls = scale.of(H::CALLS);
    call();
    place.settle();
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || begin.elapsed().as_secs_f64() < scale.seconds {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        place.settle();
        best = best.min(start.elapsed().as_secs_f64() / calls as f64);
    }
    best
}
