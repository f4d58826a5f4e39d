//! Factors that are laid out for many products.
use crate::proof::{filled, matrix};
use kernels::bf16::{Way, product_by};
use kernels::{Kernels, Write};
use tensor::{Bf16, Category, Cpu, Device, Scalar, Tensor, mix};

/// Kills: a factor laid out at its own width but priced at another, a packed product that is another one.
#[test]
fn packed_factors_are_as_large_as_they_say_and_give_the_product() {
    let (cpu, b) = (Cpu::<f32>::default(), matrix(70, 40, |i| (i % 5) as f32));
    let before = cpu.meter().now(Category::Buffers);
    let packed = cpu.pack(b.view().t());
    let bytes = cpu.meter().now(Category::Buffers) - before;
    assert_eq!(bytes, 4 * Cpu::<f32>::packed_len(40, 70));
    let meta = kernels::meta_of::<Cpu<f32>>();
    let priced = meta.pack(Tensor::empty(&meta, Category::Weights, 70, 40).view().t());
    assert_eq!((priced.len() * 4, meta.meter().now(Category::Buffers)), (bytes, bytes));
    let a = matrix(9, 40, |i| (i % 3) as f32);
    let [mut seen, mut wanted] = [(); 2].map(|()| filled(9, 70, 1.0));
    cpu.gemm_packed(seen.view_mut(), a.view(), &packed, Write::Add);
    cpu.gemm(wanted.view_mut(), a.view(), b.view().t(), Write::Add);
    assert_eq!(seen.read(), wanted.read());
}

/// From −3 to 3: sums of some thousand products are exact in f32.
fn integers(salt: u64, rows: usize, cols: usize) -> Tensor<Cpu<Bf16>> {
    matrix(rows, cols, |i| Bf16::from_f64((mix(i as u64 ^ salt << 32) % 7) as f64 - 3.0))
}

/// The generic kernels of bf16 are there, and their product is this one.
#[test]
fn the_device_multiplies_by_the_best_way() {
    let (cpu, a, b) = (Cpu::<Bf16>::default(), integers(1, 12, 30), integers(2, 30, 50));
    let [mut seen, mut packed, mut wanted] = [(); 3].map(|()| integers(3, 12, 50));
    cpu.gemm(seen.view_mut(), a.view(), b.view(), Write::Add);
    let panels = cpu.pack(b.view());
    cpu.gemm_packed(packed.view_mut(), a.view(), &panels, Write::Add);
    product_by(Way::best(), wanted.view_mut(), a.view(), b.view(), Write::Add);
    assert_eq!((seen.read(), packed.read()), (wanted.read(), wanted.read()));
    assert!(Way::all().any(|way| way == Way::best()) && Way::best() == Way::best());
}
