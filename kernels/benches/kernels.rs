//! Kernels on the sizes of a step of shape L on one rank: 4 sequences of 256 tokens, width 512, 8 heads of 64
//! features, 2048 hidden, 8192 ids, f32. `cargo bench -p kernels --bench kernels`, with a part of a name for
//! some of them. Items are floating point operations of products and attention, elements of everything else.
use divan::Bencher;
use divan::counter::ItemsCount;
use kernels::bf16::{self, Way};
use kernels::{
    Activation, Attend, Gate, Heads, Indexable, Indexed, Kernels, LossTerms, Mask, MeanOver, OrderedKernels,
    Qkv, RowShard, Segment, Span, Write, machine,
};
use std::fmt;
use std::hint::black_box;
use tensor::{Bf16, Category, Cpu, Device, Host, Index, Scalar, Tensor, TokenIds, mix};

const SEQUENCES: usize = 4;
const TOKENS: usize = 256;
const ROWS: usize = SEQUENCES * TOKENS;
const WIDTH: usize = 512;
const HIDDEN: usize = 2048;
const VOCABULARY: usize = 8192;
const HEADS: Heads = Heads::new(8, 8, 64);
const EPS: f64 = 1e-5;

fn main() {
    divan::main();
}

type Matrix = Tensor<Cpu<f32>>;

/// Creates a matrix of values between −1 and 1.
fn matrix(rows: usize, cols: usize) -> Matrix {
    let value = |i: usize| (mix(i as u64) % 2001) as f32 / 1000.0 - 1.0;
    Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, value)
}

fn ids() -> TokenIds<Host> {
    let ids: Vec<_> = (0..ROWS as u64).map(|i| (mix(i) % VOCABULARY as u64) as u32).collect();
    TokenIds::new(&Host::default(), &ids, VOCABULARY).expect("below the vocabulary")
}

/// Times one call after the other, each of `items` items.
fn timed(bencher: Bencher, items: usize, mut call: impl FnMut(&Cpu<f32>)) {
    let cpu = Cpu::default();
    bencher.counter(ItemsCount::new(items)).bench_local(|| call(&cpu));
}

/// A product of the model, and which of its factors are transposed.
struct Product {
    name: &'static str,
    size: [usize; 3],
    transposed: [bool; 2],
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = |transposed: bool| if transposed { "ᵀ" } else { "" };
        let ([m, n, k], [a, b]) = (self.size, self.transposed.map(t));
        write!(f, "{} {m}x{n}x{k} A{a}·B{b}", self.name)
    }
}

fn model_products() -> impl Iterator<Item = Product> {
    let sizes = [
        ("qkv", [ROWS, 3 * WIDTH, WIDTH]),
        ("out", [ROWS, WIDTH, WIDTH]),
        ("gate and up", [ROWS, 2 * HIDDEN, WIDTH]),
        ("down", [ROWS, WIDTH, HIDDEN]),
        ("head", [ROWS, VOCABULARY, WIDTH]),
    ];
    let ways = [[false, false], [false, true], [true, false], [true, true]];
    sizes.into_iter().flat_map(move |(name, size)| {
        ways.into_iter().map(move |transposed| Product { name, size, transposed })
    })
}

#[divan::bench(args = model_products(), max_time = 0.3)]
fn product(bencher: Bencher, of: &Product) {
    let ([m, n, k], [at, bt]) = (of.size, of.transposed);
    let lying = |rows, cols, t: bool| if t { matrix(cols, rows) } else { matrix(rows, cols) };
    let (a, b, mut c) = (lying(m, k, at), lying(k, n, bt), matrix(m, n));
    let a = if at { a.view().t() } else { a.view() };
    let b = if bt { b.view().t() } else { b.view() };
    timed(bencher, 2 * m * n * k, |cpu| cpu.gemm(c.view_mut(), a, b, Write::Set));
}

fn index<T: Indexable>(list: Vec<T>) -> Index<Host> {
    Indexed::from(list).on(&Host::default()).clone()
}

fn attend() -> (Attend, Index<Host>, usize) {
    let attend = Attend::of(HEADS, Mask::Causal);
    let span = |sequence: usize| {
        let tokens = Segment { row: sequence * TOKENS, len: TOKENS, position: 0, sequence };
        Span { query: tokens, key: tokens }
    };
    let pairs = SEQUENCES * TOKENS * (TOKENS + 1) / 2;
    (attend, index((0..SEQUENCES).map(span).collect()), pairs * WIDTH)
}

#[divan::bench(max_time = 0.3)]
fn attention_forward(bencher: Bencher) {
    let (attend, spans, pairs) = attend();
    let [q, k, v, mut out] = [(); 4].map(|()| matrix(ROWS, WIDTH));
    let mut lse = matrix(ROWS, HEADS.queries);
    let mut scratch = matrix(1, Cpu::<f32>::attention_scratch(HEADS, TOKENS));
    timed(bencher, 4 * pairs, |cpu| {
        let qkv = Qkv { q: q.view(), k: k.view(), v: v.view() };
        cpu.attention(&attend, &spans, qkv, out.view_mut(), lse.view_mut(), scratch.view_mut());
    });
}

#[divan::bench(max_time = 0.3)]
fn attention_backward(bencher: Bencher) {
    let (attend, spans, pairs) = attend();
    let [q, k, v, o, d_o, mut dq, mut dk, mut dv] = [(); 8].map(|()| matrix(ROWS, WIDTH));
    let mut delta = matrix(ROWS, HEADS.queries);
    // A log-sum-exp that keeps all probabilities below 1.
    let lse = Tensor::from_fn(&Cpu::default(), Category::Buffers, ROWS, HEADS.queries, |_| 10.0);
    let mut scratch = matrix(1, Cpu::<f32>::attention_scratch(HEADS, TOKENS));
    timed(bencher, 10 * pairs, |cpu| {
        cpu.attention_delta(HEADS, delta.view_mut(), o.view(), d_o.view());
        let qkv = Qkv { q: q.view(), k: k.view(), v: v.view() };
        let dqkv = [dq.view_mut(), dk.view_mut(), dv.view_mut()];
        let saved = (lse.view(), delta.view());
        cpu.attention_backward(&attend, &spans, qkv, saved, d_o.view(), dqkv, scratch.view_mut());
    });
}

#[divan::bench(max_time = 0.3)]
fn rms_norm(bencher: Bencher) {
    let (x, gain) = (matrix(ROWS, WIDTH), matrix(1, WIDTH));
    let (mut y, mut r) = (matrix(ROWS, WIDTH), matrix(ROWS, 1));
    timed(bencher, x.len(), |cpu| cpu.rms_norm(y.view_mut(), r.view_mut(), x.view(), gain.view(), EPS));
}

#[divan::bench(max_time = 0.3)]
fn rms_norm_backward(bencher: Bencher) {
    let [x, dy, skip, mut dx] = [(); 4].map(|()| matrix(ROWS, WIDTH));
    let (r, gain, mut dgain) = (matrix(ROWS, 1), matrix(1, WIDTH), matrix(1, WIDTH));
    timed(bencher, x.len(), |cpu| {
        let (given, skip) = ((x.view(), r.view()), Some(skip.view()));
        cpu.rms_norm_backward(
            dx.view_mut(),
            dgain.view_mut(),
            given.0,
            given.1,
            gain.view(),
            dy.view(),
            skip,
        );
    });
}

#[divan::bench(max_time = 0.3)]
fn layer_norm(bencher: Bencher) {
    let (x, [gain, bias]) = (matrix(ROWS, WIDTH), [(); 2].map(|()| matrix(1, WIDTH)));
    let (mut y, mut stats) = (matrix(ROWS, WIDTH), matrix(ROWS, 2));
    timed(bencher, x.len(), |cpu| {
        cpu.layer_norm(y.view_mut(), stats.view_mut(), x.view(), gain.view(), bias.view(), EPS);
    });
}

#[divan::bench(max_time = 0.3)]
fn layer_norm_backward(bencher: Bencher) {
    let [x, dy, skip, mut dx] = [(); 4].map(|()| matrix(ROWS, WIDTH));
    let (stats, [gain, mut dgain, mut dbias]) = (matrix(ROWS, 2), [(); 3].map(|()| matrix(1, WIDTH)));
    timed(bencher, x.len(), |cpu| {
        let (sums, skip) = ([dgain.view_mut(), dbias.view_mut()], Some(skip.view()));
        cpu.layer_norm_backward(dx.view_mut(), sums, x.view(), stats.view(), gain.view(), dy.view(), skip);
    });
}

#[divan::bench(max_time = 0.3)]
fn swiglu(bencher: Bencher) {
    let [gate, up, mut h] = [(); 3].map(|()| matrix(ROWS, HIDDEN));
    timed(bencher, gate.len(), |cpu| cpu.gated(h.view_mut(), gate.view(), up.view(), Gate::Silu));
}

#[divan::bench(max_time = 0.3)]
fn swiglu_backward(bencher: Bencher) {
    let [gate, up, dh, mut dgate, mut dup] = [(); 5].map(|()| matrix(ROWS, HIDDEN));
    timed(bencher, gate.len(), |cpu| {
        cpu.gated_backward(dgate.view_mut(), dup.view_mut(), gate.view(), up.view(), dh.view(), Gate::Silu);
    });
}

#[divan::bench(max_time = 0.3)]
fn gelu(bencher: Bencher) {
    let [x, mut h] = [(); 2].map(|()| matrix(ROWS, HIDDEN));
    timed(bencher, x.len(), |cpu| cpu.activate(h.view_mut(), x.view(), Activation::GeluTanh));
}

#[divan::bench(max_time = 0.3)]
fn loss(bencher: Bencher) {
    let (logits, targets) = (matrix(ROWS, VOCABULARY), ids());
    let (mut loss, mut m, mut sums) = (matrix(1, 1), matrix(ROWS, 1), matrix(ROWS, 2));
    let slice = RowShard { first: 0, len: VOCABULARY };
    timed(bencher, logits.len(), |cpu| {
        cpu.row_stab(m.view_mut(), logits.view());
        cpu.row_sums(sums.view_mut(), logits.view(), m.view(), targets.index(), slice);
        cpu.cross_entropy(loss.view_mut(), m.view_mut(), sums.view(), targets.index(), &TERMS);
    });
}

const TERMS: LossTerms =
    LossTerms { mean_over: MeanOver::of(ROWS), smoothing: 0.0, z: 0.0, vocabulary: VOCABULARY, cap: None };

#[divan::bench(max_time = 0.3)]
fn loss_backward(bencher: Bencher) {
    let (mut logits, targets) = (matrix(ROWS, VOCABULARY), ids());
    let lse = Tensor::from_fn(&Cpu::default(), Category::Buffers, ROWS, 1, |_| 10.0);
    let slice = RowShard { first: 0, len: VOCABULARY };
    timed(bencher, logits.len(), |cpu| {
        cpu.cross_entropy_backward(logits.view_mut(), lse.view(), targets.index(), slice, &TERMS);
    });
}

/// Selects the first logits of a token, as greedy decoding and sampling from the first 50 do.
#[divan::bench(args = [1, 2, 50, 51], max_time = 0.3)]
fn top_k(bencher: Bencher, k: usize) {
    let (x, mut values) = (matrix(1, VOCABULARY), matrix(1, k));
    let mut columns = Index::empty(x.device().place(), k);
    timed(bencher, VOCABULARY, |cpu| cpu.top_k(values.view_mut(), &mut columns, x.view()));
}

/// Reads the whole row instead, and finds the largest logit in it if `choose`.
#[divan::bench(args = [false, true], max_time = 0.3)]
fn whole_row(bencher: Bencher, choose: bool) {
    let (x, mut row) = (matrix(1, VOCABULARY), Vec::new());
    timed(bencher, VOCABULARY, |_| {
        assert!(x.read_into(&mut row));
        if choose {
            let first = (1..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best });
            black_box(first);
        }
    });
}

#[divan::bench(max_time = 0.3)]
fn sgd(bencher: Bencher) {
    let [mut w, g] = [(); 2].map(|()| matrix(2 * HIDDEN, WIDTH));
    let factor = matrix(1, 1);
    timed(bencher, g.len(), |cpu| cpu.sgd(w.view_mut(), None, g.view(), factor.view(), [1e-4, 0.0]));
}

#[divan::bench(max_time = 0.3)]
fn adamw(bencher: Bencher) {
    let [mut w, mut m, mut v, g] = [(); 4].map(|()| matrix(2 * HIDDEN, WIDTH));
    v.device().clone().fill(v.view_mut(), 1.0); // squares
    let factor = matrix(1, 1);
    let constants = [1e-4, 0.9, 0.95, 1e-8, 0.1];
    timed(bencher, g.len(), |cpu| {
        cpu.adamw(w.view_mut(), None, (m.view_mut(), v.view_mut()), g.view(), factor.view(), (constants, 1));
    });
}

/// Beside `adamw`: with moments of 8 bits, in blocks of 256.
#[divan::bench(max_time = 0.3)]
fn adamw_8bit(bencher: Bencher) {
    let [mut w, g] = [(); 2].map(|()| matrix(2 * HIDDEN, WIDTH));
    let zeros =
        |n: usize| Tensor::from_fn(&Cpu::default(), Category::Buffers, 2 * HIDDEN, WIDTH / n, |_| 0.0);
    let mut states = [4, 256, 4, 256].map(zeros);
    let (factor, constants) = (matrix(1, 1), ([1e-4, 0.9, 0.95, 1e-8, 0.1], [1, 256]));
    timed(bencher, g.len(), |cpu| {
        let states = states.each_mut().map(Tensor::view_mut);
        cpu.adamw_8bit(w.view_mut(), None, states, g.view(), factor.view(), constants);
    });
}

/// Creates a bf16 matrix of values between −1 and 1.
fn narrow(rows: usize, cols: usize) -> Tensor<Cpu<Bf16>> {
    let value = |i: usize| Bf16::from_f64((mix(i as u64) % 2001) as f64 / 1000.0 - 1.0);
    Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, value)
}

const CUBE: usize = 1024;

fn ways() -> Vec<Way> {
    Way::all().collect()
}

/// Times both results: in f32 and in bf16.
#[divan::bench(args = ways(), consts = [false, true], max_time = 0.5)]
fn bf16_cube<const NARROW: bool>(bencher: Bencher, way: Way) {
    let (a, b) = (narrow(CUBE, CUBE), narrow(CUBE, CUBE));
    let (mut c, mut rounded) = (matrix(CUBE, CUBE), narrow(CUBE, CUBE));
    timed(bencher, 2 * CUBE * CUBE * CUBE, |_| {
        if NARROW {
            bf16::product_by(way, rounded.view_mut(), a.view(), b.view(), Write::Set);
        } else {
            bf16::product_by(way, c.view_mut(), a.view(), b.view(), Write::Set);
        }
    });
}

#[divan::bench(max_time = 0.5)]
fn f32_cube(bencher: Bencher) {
    let (a, b, mut c) = (matrix(CUBE, CUBE), matrix(CUBE, CUBE), matrix(CUBE, CUBE));
    timed(bencher, 2 * CUBE * CUBE * CUBE, |cpu| cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set));
}

/// Peak rate of the machine: multiply-adds in registers alone.
#[divan::bench(max_time = 0.3)]
fn peak_f32(bencher: Bencher) {
    timed(bencher, machine::multiply_adds(10_000) as usize, |_| {
        black_box(machine::multiply_adds(10_000));
    });
}

/// Peak rate with pairs of bf16; nothing if the machine has no instruction for them.
#[divan::bench(max_time = 0.3)]
fn peak_bf16(bencher: Bencher) {
    let operations = machine::bf16_multiply_adds(10_000).unwrap_or(0);
    timed(bencher, operations as usize, |_| {
        black_box(machine::bf16_multiply_adds(10_000));
    });
}

/// Rows of a matrix that no cache holds, and of one that many caches hold in part.
const DEEP: usize = 8192;
const SHALLOW: usize = 2048;

/// Decoding: `rows` rows times a row-major matrix of `deep` rows. Items are bytes of the matrix.
#[divan::bench(args = [(1, SHALLOW), (1, DEEP), (2, DEEP), (4, DEEP), (8, DEEP)], max_time = 0.5)]
fn bf16_few_rows(bencher: Bencher, (rows, deep): (usize, usize)) {
    let (a, b, mut c) = (narrow(rows, deep), narrow(deep, 8192), narrow(rows, 8192));
    timed(bencher, 2 * b.len(), |_| {
        bf16::product(c.view_mut(), a.view(), b.view(), Write::Set);
    });
}

/// Decoding with a column-major matrix.
#[divan::bench(args = [1, 2, 4, 8], max_time = 0.5)]
fn bf16_few_rows_by_columns(bencher: Bencher, rows: usize) {
    let (a, b, mut c) = (narrow(rows, DEEP), narrow(8192, DEEP), narrow(rows, 8192));
    timed(bencher, 2 * b.len(), |_| {
        bf16::product(c.view_mut(), a.view(), b.view().t(), Write::Set);
    });
}

/// Reads as many bytes and computes nothing else.
#[divan::bench(args = [SHALLOW, DEEP], max_time = 0.5)]
fn read(bencher: Bencher, deep: usize) {
    let x = matrix(deep / 2, 8192);
    timed(bencher, 4 * x.len(), |_| {
        black_box(machine::read(x.view().reshape(1, x.len()).row(0)));
    });
}

#[divan::bench(args = [1, 8], max_time = 0.5)]
fn f32_few_rows(bencher: Bencher, rows: usize) {
    let (a, b, mut c) = (matrix(rows, DEEP / 2), matrix(DEEP / 2, 8192), matrix(rows, 8192));
    timed(bencher, 4 * b.len(), |cpu| cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set));
}
