//! Speed of kernels on a card, beside a copy of the same bytes and NVIDIA's own library in the same run.
use crate::card::Card;
use crate::cublas::Cublas;
use crate::device::Cuda;
use crate::gpu::Gpu;
use crate::launches::Launches;
use crate::launches::gemm::Rung;
use kernels::{Activation, Attend, Gate, Heads, Indexed, Kernels, Mask, Qkv, Segment, Span, Write};
use std::process::Command;
use tensor::{Bf16, Category, Device, Index, Scalar, Tensor, mix};

/// A measured rate and its baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct CardFigure {
    /// Name of the measured work.
    pub name: String,
    /// Work per second.
    pub rate: f64,
    /// Unit of the rate.
    pub unit: &'static str,
    /// Rate of the baseline, and its name.
    pub beside: Option<(f64, String)>,
    /// Part of the baseline's rate that is wanted.
    pub wanted: f64,
}

impl CardFigure {
    /// Returns the part of the baseline's rate that is reached.
    pub fn part(&self) -> Option<f64> {
        self.beside.as_ref().map(|(beside, _)| self.rate / beside)
    }
}

/// Size of the measurements: full on a card, small on the host twin, where they only have to run.
#[derive(Clone, Copy, Debug)]
pub struct MeasureSize {
    /// Divisor of every side of a matrix.
    pub sides: usize,
    /// Number of tries of each measurement; the best counts.
    pub tries: usize,
}

impl MeasureSize {
    /// Returns the full scale, or a small one that only shows that everything runs.
    pub fn new(small: bool) -> Self {
        if small { Self { sides: 128, tries: 1 } } else { Self { sides: 1, tries: 10 } }
    }
}

type MeasureOutcome<T> = Result<T, String>;

/// Returns the seconds of the best of several tries, after one to warm up.
fn best(card: &Card, scale: MeasureSize, mut work: impl FnMut()) -> MeasureOutcome<f64> {
    Ok(in_turn(card, scale, [&mut work])?[0])
}

/// Returns the seconds of the best of several tries of each. They take turns, as a card that has become warm
/// is slower.
fn in_turn<const N: usize>(
    card: &Card,
    scale: MeasureSize,
    mut work: [&mut dyn FnMut(); N],
) -> MeasureOutcome<[f64; N]> {
    let mut least = [f64::INFINITY; N];
    for work in &mut work {
        work();
    }
    for _ in 0..scale.tries {
        for (work, least) in work.iter_mut().zip(&mut least) {
            *least = least.min(card.seconds(work).map_err(|error| error.to_string())?);
        }
    }
    Ok(least)
}

/// Draws a random matrix: cards run slower on random values than on zeros.
fn draw<D: Device<Place = Gpu>>(gpu: &Gpu, seed: u64, rows: usize, cols: usize) -> Tensor<D> {
    const DRAWN: usize = 1 << 16; // the rest repeats these: drawing on the host is slow
    let some: Vec<_> = (0..DRAWN).map(|i| D::Elem::sample(mix(mix(seed) ^ i as u64), 1.0)).collect();
    Tensor::from_fn(D::on(gpu), Category::Buffers, rows, cols, |i| some[(i + i / DRAWN * 7) % DRAWN])
}

/// Measures all kernels, and reports each figure to `tell`.
///
/// # Errors
/// The driver's.
pub fn all(gpu: &Gpu, scale: MeasureSize, tell: &dyn Fn(&CardFigure)) -> MeasureOutcome<Vec<CardFigure>> {
    let mut figures = Vec::new();
    let mut add = |figure: CardFigure| {
        tell(&figure);
        figures.push(figure);
    };
    let copy = copies(gpu, scale)?;
    add(CardFigure { name: "device copy".into(), rate: copy, unit: "GB/s", beside: None, wanted: 0.0 });
    for (name, rate) in
        streams::<Cuda<f32>>(gpu, scale)?.into_iter().chain(streams::<Cuda<Bf16>>(gpu, scale)?)
    {
        let beside = Some((copy, "a device copy".into()));
        add(CardFigure { name, rate, unit: "GB/s", beside, wanted: 0.9 });
    }
    for narrow in [true, false] {
        add(large_product(gpu, scale, narrow)?);
    }
    ladder(gpu, scale, &mut add)?;
    add(attention(gpu, scale)?);
    Ok(figures)
}

/// Measures a product that keeps the card busy, in bf16 or f32, beside the library's.
fn large_product(gpu: &Gpu, scale: MeasureSize, narrow: bool) -> MeasureOutcome<CardFigure> {
    let library = Cublas::on(gpu.card());
    if narrow {
        return products::<Cuda<Bf16>>(gpu, scale, 8192 / scale.sides, 0.95, &library);
    }
    products::<Cuda<f32>>(gpu, scale, 4096 / scale.sides, 0.8, &library)
}

/// Returns the floating-point operations per second of the fastest known product, ours or the library's, in
/// bf16 or f32.
///
/// # Errors
/// The driver's.
pub fn peak(gpu: &Gpu, scale: MeasureSize, narrow: bool) -> MeasureOutcome<f64> {
    let CardFigure { rate, beside, .. } = large_product(gpu, scale, narrow)?;
    Ok(beside.map_or(rate, |(theirs, _)| theirs.max(rate)) * 1e12)
}

/// Returns the GB per second that a copy reads and writes.
///
/// # Errors
/// The driver's.
pub fn copies(gpu: &Gpu, scale: MeasureSize) -> MeasureOutcome<f64> {
    let bytes = (1usize << 30) / (scale.sides * scale.sides);
    let [from, to] = [(); 2].map(|()| Tensor::empty(Cuda::<f32>::on(gpu), Category::Buffers, 1, bytes / 4));
    let address = |x: &Tensor<Cuda<f32>>| x.view().ptr().0;
    let seconds = best(gpu.card(), scale, || {
        gpu.card().copy(address(&from), address(&to), bytes).expect("both buffers have this size");
    })?;
    Ok(2.0 * bytes as f64 / seconds / 1e9)
}

/// Measures memory-bound kernels, in GB per second that each must read and write.
fn streams<D: Kernels<Place = Gpu>>(gpu: &Gpu, scale: MeasureSize) -> MeasureOutcome<Vec<(String, f64)>> {
    let [rows, cols] = [16384, 8192].map(|side| side / scale.sides);
    let on = D::on(gpu);
    let [x, z, mut y] = [1, 2, 3].map(|seed| draw::<D>(gpu, seed, rows, cols));
    let (gain, mut r) = (draw::<D>(gpu, 4, 1, cols), draw::<D::Wide>(gpu, 5, rows, 1));
    let bytes = (rows * cols * size_of::<D::Elem>()) as f64;
    let mut figures = Vec::new();
    let mut measured = |name: &str, passes: f64, work: &mut dyn FnMut()| -> MeasureOutcome<()> {
        let seconds = best(gpu.card(), scale, work)?;
        figures.push((format!("{name}, {}", D::Elem::NAME), passes * bytes / seconds / 1e9));
        Ok(())
    };
    measured("sum", 3.0, &mut || on.add(y.view_mut(), x.view()))?;
    measured("RMSNorm", 2.0, &mut || on.rms_norm(y.view_mut(), r.view_mut(), x.view(), gain.view(), 1e-5))?;
    measured("SwiGLU", 3.0, &mut || on.gated(y.view_mut(), x.view(), z.view(), Gate::Silu))?;
    measured("GELU", 2.0, &mut || on.activate(y.view_mut(), x.view(), Activation::Gelu))?;
    Ok(figures)
}

/// Measures a square product beside the library's.
fn products<D: Kernels<Place = Gpu>>(
    gpu: &Gpu,
    scale: MeasureSize,
    n: usize,
    wanted: f64,
    library: &MeasureOutcome<Cublas>,
) -> MeasureOutcome<CardFigure> {
    let [a, b, mut c] = [1, 2, 3].map(|seed| draw::<D>(gpu, seed, n, n));
    let flops = 2.0 * (n as f64).powi(3);
    let addresses = [c.view().ptr().0, a.view().ptr().0, b.view().ptr().0];
    let mut gemm = || D::on(gpu).gemm(c.view_mut(), a.view(), b.view(), Write::Set);
    let (ours, theirs) = match library {
        Err(_) => (best(gpu.card(), scale, gemm)?, None),
        Ok(library) => {
            let mut outcome = Ok(());
            let mut of_library = || outcome = library.product(D::Elem::NARROW, [n; 3], addresses);
            let [gemm, theirs] = in_turn(gpu.card(), scale, [&mut gemm, &mut of_library])?;
            outcome?;
            (gemm, Some(theirs))
        }
    };
    Ok(CardFigure {
        name: format!("product {n}^3, {}", D::Elem::NAME),
        rate: flops / ours / 1e12,
        unit: "TFLOP/s",
        beside: theirs.map(|theirs| (flops / theirs / 1e12, "cuBLAS".to_string())),
        wanted,
    })
}

/// Measures the rungs of the ladder of bf16 products, on the same matrices.
fn ladder(gpu: &Gpu, scale: MeasureSize, add: &mut dyn FnMut(CardFigure)) -> MeasureOutcome<()> {
    let n = 4096 / scale.sides;
    let [a, b, mut c] = [1, 2, 3].map(|seed| draw::<Cuda<Bf16>>(gpu, seed, n, n));
    for rung in [Rung::Naive, Rung::Small, Rung::Tensor, Rung::Hopper] {
        let mut there = true;
        let mut work = || {
            let matrices = [(&c.view_mut()).into(), (&a.view()).into(), (&b.view()).into()];
            there = Launches::<Bf16>::on(gpu).product(Some(rung), matrices, false, Write::Set);
        };
        let seconds = best(gpu.card(), scale, &mut work)?;
        if there {
            let rate = 2.0 * (n as f64).powi(3) / seconds / 1e12;
            let name = format!("product {n}^3, bf16, rung {rung:?}");
            add(CardFigure { name, rate, unit: "TFLOP/s", beside: None, wanted: 0.0 });
        }
    }
    Ok(())
}

/// Measures causal attention forward in bf16: 4 sequences of 4096 tokens, 16 heads of 128 features.
fn attention(gpu: &Gpu, scale: MeasureSize) -> MeasureOutcome<CardFigure> {
    let (len, heads) = (4096 / scale.sides, Heads::new(16, 16, 128));
    let (sequences, width) = (4, heads.gathered());
    let segment = |i| Segment { row: i * len, len, position: 0, sequence: i };
    let spans: Vec<_> = (0..sequences).map(|i| Span { query: segment(i), key: segment(i) }).collect();
    let attend = Attend::of(heads, Mask::Causal);
    let pairs: usize = spans.iter().map(|span| attend.scores.mask.pairs(span)).sum();
    let spans: Index<Gpu> = Indexed::from(spans).on(gpu).clone();
    let [q, k, v, mut o] = [1, 2, 3, 4].map(|seed| draw::<Cuda<Bf16>>(gpu, seed, sequences * len, width));
    let mut lse = draw::<Cuda<f32>>(gpu, 5, sequences * len, heads.queries);
    let on = Cuda::<Bf16>::on(gpu);
    let mut scratch = draw::<Cuda<f32>>(gpu, 6, 1, <Cuda<Bf16> as Kernels>::attention_scratch(heads, len));
    let seconds = best(gpu.card(), scale, || {
        let qkv = Qkv { q: q.view(), k: k.view(), v: v.view() };
        on.attention(&attend, &spans, qkv, o.view_mut(), lse.view_mut(), scratch.view_mut());
    })?;
    let rate = |seconds| 4.0 * (pairs * width) as f64 / seconds / 1e12;
    let beside = pytorchs_attention(len)
        .map(|seconds| (rate(seconds), "PyTorch's scaled_dot_product_attention".into()));
    let name = format!("attention forward, {sequences} x {len} tokens, causal, bf16");
    Ok(CardFigure { name, rate: rate(seconds), unit: "TFLOP/s", beside, wanted: 0.7 })
}

/// Returns the seconds that PyTorch takes for the same attention, if Python has it and a card.
fn pytorchs_attention(len: usize) -> Option<f64> {
    let script = format!(
        "import torch, torch.nn.functional as F\n\
         q, k, v = (torch.randn(4, 16, {len}, 128, device='cuda', dtype=torch.bfloat16) for _ in range(3))\n\
         best = 1e9\n\
         for _ in range(20):\n\
         \x20   a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n\
         \x20   a.record(); F.scaled_dot_product_attention(q, k, v, is_causal=True); b.record()\n\
         \x20   torch.cuda.synchronize(); best = min(best, a.elapsed_time(b))\n\
         print(best / 1000)"
    );
    let output = Command::new("python3").args(["-c", &script]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}
