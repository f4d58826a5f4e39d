//! Ladder of one product: C = A·B of 1024×1024 by 1024×1024 in f32 on one core, from the definition to the
//! product of this crate, rung by rung. `cargo bench -p kernels --bench ladder`. Chapter: speed.
//!
//! A and B hold small integers, so that every order of sums gives the same bits: each rung is compared with
//! the definition before it is timed. Rungs take turns, and the best turn of each counts.
mod plain;
#[cfg(target_arch = "x86_64")]
mod registers;

use kernels::{Kernels, Write, machine};
use std::time::Instant;
use tensor::{Category, Cpu, Tensor, View, ViewMut, mix};

/// Rows and columns of all three matrices.
const N: usize = 1024;
/// Rows of a product with few rows whose right factor is reused: a linear layer with a small batch.
const FEW: usize = 32;
const FEATURES: usize = 512;
const TURNS: usize = 30;
/// Seconds after which a rung has no more turns.
const ENOUGH: f64 = 0.7;

type Matrix = Tensor<Cpu<f32>>;
type V<'a> = View<'a, Cpu<f32>>;
type M<'a> = ViewMut<'a, Cpu<f32>>;

/// Writes A·B to C.
type Product<'a> = Box<dyn FnMut(M, V, V) + 'a>;

/// One way to compute a product.
struct Rung<'a> {
    name: &'static str,
    run: Product<'a>,
    best: f64,  // seconds
    spent: f64, // seconds
}

impl Rung<'_> {
    /// Times `calls` calls, back to back.
    fn time(&mut self, calls: usize, mut c: M, [a, b]: [V; 2]) {
        let start = Instant::now();
        (0..calls).for_each(|_| (self.run)(c.again(), a, b));
        let seconds = start.elapsed().as_secs_f64();
        self.best = self.best.min(seconds / calls as f64);
        self.spent += seconds;
    }
}

fn rung<'a>(name: &'static str, run: impl FnMut(M, V, V) + 'a) -> Rung<'a> {
    Rung { name, run: Box::new(run), best: f64::INFINITY, spent: 0.0 }
}

fn matrix(rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> Matrix {
    Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, value)
}

/// Integers from −3 to 3.
fn integers(rows: usize, cols: usize, salt: u64) -> Matrix {
    matrix(rows, cols, |i| (mix(i as u64 ^ salt << 32) % 7) as f32 - 3.0)
}

fn main() {
    let (a, b) = (integers(N, N, 1), integers(N, N, 2));
    let packed = Cpu::default().pack(b.view());
    let mut rungs = vec![
        rung("the definition", plain::definition),
        rung("by rows", plain::rows),
        rung("by rows, widest vectors", plain::wide_rows),
        rung("by blocks of B", plain::blocks),
    ];
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        let (mut both, mut one) = (registers::Room::new(), registers::Room::new());
        rungs.push(rung("12×32 in registers, both packed", move |c, a, b| both.both_packed(c, a, b)));
        rungs.push(rung("A as it lies", move |c, a, b| one.a_as_it_lies(c, a, b)));
    }
    if rungs.len() == 4 {
        println!("Without AVX-512 there are no register rungs, and the crate's product is the library's.");
    }
    rungs.push(rung("8×48, fetched ahead: the crate's", the_crates));
    rungs.push(rung("B packed once", |c, a, _| Cpu::default().gemm_packed(c, a, &packed, Write::Set)));
    climb(&format!("{N}×{N}×{N}"), &mut rungs, a.view(), b.view());

    let (a, b) = (integers(FEW, FEATURES, 1), integers(FEATURES, FEATURES, 2));
    let packed = Cpu::default().pack(b.view().t());
    let mut rungs = vec![
        rung("the definition", plain::definition),
        rung("the crate's, which packs B", the_crates),
        rung("B packed once", |c, a, _| Cpu::default().gemm_packed(c, a, &packed, Write::Set)),
    ];
    climb(&format!("{FEW}×{FEATURES}×{FEATURES}, B transposed"), &mut rungs, a.view(), b.view().t());
}

fn the_crates(c: M, a: V, b: V) {
    Cpu::default().gemm(c, a, b, Write::Set);
}

/// Checks every rung, times them in turns, and prints the best time of each beside the peak measured between
/// turns.
fn climb(what: &str, rungs: &mut [Rung], a: V, b: V) {
    let mut c = matrix(a.rows(), b.cols(), |_| f32::NAN);
    let flops = 2.0 * (a.rows() * a.cols() * b.cols()) as f64;
    let calls = (1e8 / flops).ceil() as usize; // per turn; a single call could be too short to measure
    let (mut truth, mut peak) = (None, 0.0f64);
    for turn in 0..TURNS {
        peak = peak.max(measured_peak());
        for rung in rungs.iter_mut().filter(|rung| rung.spent < ENOUGH) {
            if turn == 0 {
                check(rung, &mut c, [a, b], &mut truth);
            } else {
                rung.time(calls, c.view_mut(), [a, b]);
            }
        }
    }
    println!("\n{what}; the peak is {peak:.0} GFLOP/s\n");
    println!("{:34}{:>10}{:>9}{:>8}", "rung", "ms", "GFLOP/s", "share");
    for Rung { name, best, .. } in rungs {
        let rate = flops / *best / 1e9;
        println!("{name:34}{:>10.3}{rate:>9.1}{:>8.3}", *best * 1e3, rate / peak);
    }
}

/// Runs the first call: the first rung defines the product, and the others must give the same values.
fn check(rung: &mut Rung, c: &mut Matrix, [a, b]: [V; 2], truth: &mut Option<Vec<f32>>) {
    c.write(&mut |_| f32::NAN);
    rung.time(1, c.view_mut(), [a, b]);
    let seen = c.read().expect("the host has values");
    let truth = truth.get_or_insert_with(|| seen.clone());
    assert!(seen == *truth, "{}: the product differs from the definition's", rung.name);
}

/// Measures GFLOP/s of multiply-adds in registers alone.
fn measured_peak() -> f64 {
    let start = Instant::now();
    let flops = std::hint::black_box(machine::multiply_adds(1 << 18));
    flops as f64 / start.elapsed().as_secs_f64() / 1e9
}
