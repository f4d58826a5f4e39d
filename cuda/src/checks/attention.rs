//! Checks of `attention.cu` and `attention_backward.cu`. Lengths cross tiles of 64 rows, windows do not lie together.
use super::{Both, Check, Number, Read, Written, both, index, on_both, read, refs, same};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Attend, Heads, Kernels, Mask, Qkv, Segment, Softmax, Span};
use tensor::{Category, Cpu, Device, Dropout, Scalar, Tensor, mix};

pub(crate) const ALL: &[Check] = &[
    ("attention of texts", both!(texts)),
    ("attention of dimensions", both!(dimensions)),
    ("attention of new tokens after cached ones", both!(cached)),
    ("attention of single rows", both!(single)),
    ("attention by windows", both!(windows)),
    ("attention to a memory", both!(memory)),
    ("attention by parts", both!(parts)),
    ("attention to nothing", both!(nothing)),
];

/// Scores are sums of up to 256 products, outputs of some hundred, each rounded.
const SLACK: f64 = 4.0;

/// Rows after all spans: they hold no numbers.
const BEYOND: usize = 2;

/// Queries and keys of several sequences, in calls one after the other; rows beyond the spans are padding.
struct Case {
    attend: Attend,
    calls: Vec<Vec<Span>>,
    /// Whether spans of a call share queries.
    shared: bool,
    /// Columns beside the heads'.
    edge: usize,
}

fn case<const N: usize>(heads: [usize; 3], mask: Mask, spans: [Span; N]) -> Case {
    let [queries, keys, dim] = heads;
    let attend = Attend { heads: Heads { queries, keys, dim }, first: 6, mask, dropout: None };
    Case { attend, calls: vec![spans.to_vec()], shared: false, edge: 3 }
}

fn tokens(row: usize, len: usize, position: usize, sequence: usize) -> Segment {
    Segment { row, len, position, sequence }
}

fn itself(row: usize, len: usize, sequence: usize) -> Span {
    let t = tokens(row, len, 0, sequence);
    Span { query: t, key: t }
}

/// A matrix of heads in the midst of others.
struct Part<S: Number> {
    all: Both<S>,
    edge: usize,
    cols: usize,
}

impl<S: Number> Part<S> {
    fn of(&self) -> Read<'_, S> {
        self.all.cut(self.edge, self.cols)
    }
    fn to(&mut self) -> Written<'_, S> {
        self.all.cut_mut(self.edge, self.cols)
    }
}

impl Case {
    fn with(self, edge: usize, dropout: impl Into<Option<Dropout>>) -> Self {
        Self { attend: Attend { dropout: dropout.into(), ..self.attend }, edge, ..self }
    }
    fn rows(&self, of: fn(&Span) -> Segment) -> usize {
        self.calls.iter().flatten().map(|s| of(s).row + of(s).len).max().unwrap_or(0) + BEYOND
    }
    fn part<S: Number>(&self, gpu: &Gpu, seed: u64, of: fn(&Span) -> Segment, cols: usize) -> Part<S> {
        let (rows, width) = (self.rows(of), cols + 2 * self.edge);
        let draw = |i| f64::sample(mix(mix(seed) ^ i as u64), 1.0);
        let all = Both::of(gpu, rows, width, |i| if i / width < rows - BEYOND { draw(i) } else { f64::NAN });
        Part { all, edge: self.edge, cols }
    }
    /// Queries and gradients of outputs; keys and values.
    fn inputs<S: Number>(&self, gpu: &Gpu) -> [Part<S>; 4] {
        let Heads { queries, keys, dim } = self.attend.heads;
        let queries = [1, 2].map(|seed| self.part(gpu, seed, |s| s.query, queries * dim));
        let keys = [3, 4].map(|seed| self.part(gpu, seed, |s| s.key, keys * dim));
        let ([q, d_o], [k, v]) = (queries, keys);
        [q, d_o, k, v]
    }
    /// Scratch on both sides, of what each wants.
    fn scratch<S: Number>(&self, gpu: &Gpu) -> (Tensor<Cuda<f32>>, Tensor<Cpu<f64>>) {
        let (heads, keys) = (self.attend.heads, self.calls.iter().flatten().map(|s| s.key.len).max());
        let (keys, kind) = (keys.unwrap_or(0), Category::Buffers);
        let host = Tensor::empty(&Cpu::default(), kind, 1, Cpu::<f64>::attention_scratch(heads, keys));
        (Tensor::empty(Cuda::on(gpu), kind, 1, S::On::attention_scratch(heads, keys)), host)
    }
    /// A number for each query and head, on both sides.
    fn numbers(&self, gpu: &Gpu, f: impl Fn(usize) -> f64) -> Part<f32> {
        let (rows, cols) = (self.rows(|s| s.query), self.attend.heads.queries);
        Part { all: Both::of(gpu, rows, cols + 2 * self.edge, f), edge: self.edge, cols }
    }
}

/// That no number is off by more than `slack` tolerances, and all together by half of one in the root of the mean square:
/// where hundreds of rounded weights are added up, a few sums are off by more than others.
fn near<S: Number>(part: &Part<S>, what: &str, slack: f64) -> Result<(), String> {
    part.all.close(what, slack)?;
    let (seen, wanted) = (read(&part.all.gpu), read(&part.all.host));
    let off = |(seen, wanted): (&S, &f64)| ((seen.to_f64() - wanted) / wanted.abs().max(1.0)).powi(2);
    let off = seen.iter().zip(&wanted).filter(|(_, wanted)| wanted.is_finite()).map(off).sum::<f64>();
    let off = (off / seen.len() as f64).sqrt() / S::TOLERANCE;
    if off < 0.5 {
        Ok(())
    } else {
        Err(format!("{what} in {}: off by {off} tolerances all together", S::NAME))
    }
}

/// Forward, if all keys of each query are in one span; then the same carried, and the gradients.
fn all<S: Number>(gpu: &Gpu, case: &Case) -> Result<(), String> {
    let inputs = case.inputs::<S>(gpu);
    if let ([spans], false) = (&case.calls[..], case.shared) {
        forward(gpu, case, spans, &inputs)?;
    }
    let (o, lse) = carried(gpu, case, &inputs)?;
    gradients(gpu, case, &inputs, (o, lse))
}

/// Both sides' queries, keys and values.
fn qkv<S: Number>([q, _, k, v]: &[Part<S>; 4]) -> (Qkv<'_, S::On>, Qkv<'_, Cpu<f64>>) {
    let [(gq, hq), (gk, hk), (gv, hv)] = [q.of(), k.of(), v.of()];
    (Qkv { q: gq, k: gk, v: gv }, Qkv { q: hq, k: hk, v: hv })
}

fn forward<S: Number>(gpu: &Gpu, case: &Case, spans: &[Span], inputs: &[Part<S>; 4]) -> Result<(), String> {
    let (mut o, mut lse) =
        (case.part::<S>(gpu, 5, |s| s.query, inputs[0].cols), case.numbers(gpu, |i| i as f64));
    let (spans, mut scratch) = (index(gpu, spans), case.scratch::<S>(gpu));
    on_both!(gpu: S, attention(
        same(&case.attend), refs(&spans), qkv(inputs), o.to(), lse.to(),
        (scratch.0.view_mut(), scratch.1.view_mut())
    ));
    near(&o, "attention", SLACK)?;
    lse.all.close("log-sum-exp", SLACK)
}

/// The output and the log-sum-exp by [`Kernels::attention_block`] and [`Kernels::attention_finish`].
fn carried<S: Number>(gpu: &Gpu, case: &Case, inputs: &[Part<S>; 4]) -> Result<(Part<S>, Part<f32>), String> {
    // Weights are rounded to S on tensor cores, half a tolerance of their size; sums are not.
    let rounded = S::TOLERANCE / f32::TOLERANCE;
    let attend = &case.attend;
    let mut out = case.part::<f32>(gpu, 6, |s| s.query, inputs[0].cols);
    let (mut max, mut sum) = (case.numbers(gpu, |_| f64::NEG_INFINITY), case.numbers(gpu, |_| 0.0));
    for spans in &case.calls {
        let (spans, mut scratch) = (index(gpu, spans), case.scratch::<S>(gpu));
        let run = running(&mut out, &mut max, &mut sum);
        on_both!(gpu: S, attention_block(
            same(attend), refs(&spans), qkv(inputs), run, (scratch.0.view_mut(), scratch.1.view_mut())
        ));
        out.all.close("running out", SLACK * 4.0 * rounded)?; // not yet divided by a sum of up to some hundred
        max.all.close("running max", SLACK)?;
        sum.all.close("running sum", SLACK)?;
    }
    let mut o = case.part::<S>(gpu, 7, |s| s.query, inputs[0].cols);
    let run = running(&mut out, &mut max, &mut sum);
    on_both!(gpu: S, attention_finish(same(attend.heads), o.to(), run));
    max.all.close("log-sum-exp of a running softmax", SLACK)?;
    near(&o, "output of a running softmax", SLACK)?;
    Ok((o, max))
}

fn running<'a>(
    out: &'a mut Part<f32>,
    max: &'a mut Part<f32>,
    sum: &'a mut Part<f32>,
) -> (Softmax<'a, Cuda<f32>>, Softmax<'a, Cpu<f64>>) {
    let [(out_g, out_h), (max_g, max_h), (sum_g, sum_h)] = [out.to(), max.to(), sum.to()];
    (Softmax { out: out_g, max: max_g, sum: sum_g }, Softmax { out: out_h, max: max_h, sum: sum_h })
}

/// The gradients, which are added to what is there.
fn gradients<S: Number>(
    gpu: &Gpu,
    case: &Case,
    inputs: &[Part<S>; 4],
    (o, lse): (Part<S>, Part<f32>),
) -> Result<(), String> {
    let (attend, [q, d_o, k, _]) = (&case.attend, inputs);
    let mut delta = case.numbers(gpu, |i| i as f64);
    // Both sides are given the same output: the card's is rounded.
    let seen = read(&o.all.gpu);
    let o = Part { all: Both::of(gpu, o.all.gpu.rows(), o.all.gpu.cols(), |i| seen[i].to_f64()), ..o };
    on_both!(gpu: S, attention_delta(same(attend.heads), delta.to(), o.of(), d_o.of()));
    delta.all.close("delta", SLACK)?;
    let [mut dq, mut dk, mut dv] = [(8, q), (9, k), (10, k)].map(|(seed, of)| {
        let all = Both::<S>::draw(gpu, seed, of.all.gpu.rows(), of.all.gpu.cols());
        Part { all, ..*of }
    });
    for spans in &case.calls {
        let (spans, mut scratch) = (index(gpu, spans), case.scratch::<S>(gpu));
        let ((lse_g, lse_h), (delta_g, delta_h)) = (lse.of(), delta.of());
        let [(dq_g, dq_h), (dk_g, dk_h), (dv_g, dv_h)] = [dq.to(), dk.to(), dv.to()];
        let saved = ((lse_g, delta_g), (lse_h, delta_h));
        let to = ([dq_g, dk_g, dv_g], [dq_h, dk_h, dv_h]);
        on_both!(gpu: S, attention_backward(
            same(attend), refs(&spans), qkv(inputs), saved, d_o.of(), to,
            (scratch.0.view_mut(), scratch.1.view_mut())
        ));
    }
    for (what, d) in [("dq", &dq), ("dk", &dk), ("dv", &dv)] {
        near(d, what, 4.0 * SLACK)?;
    }
    Ok(())
}

fn several<S: Number>(gpu: &Gpu, cases: impl IntoIterator<Item = Case>) -> Result<(), String> {
    cases.into_iter().try_for_each(|case| {
        let of = format!("{:?}", case.attend);
        all::<S>(gpu, &case).map_err(|error| format!("{error}; {of}"))
    })
}

fn dropout() -> Dropout {
    Dropout::new(0.3, 1, 2, "attention")
}

/// Texts of several lengths with padding between them.
fn texts<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let texts = || [itself(0, 70, 3), itself(72, 1, 0), itself(73, 130, 9)];
    let causal = |dim| case([4, 2, dim], Mask::Causal, texts());
    several::<S>(gpu, [causal(16), causal(33).with(3, dropout()), causal(64).with(8, dropout())])?;
    // Tiles of one text alone, which see all keys of other tiles.
    several::<S>(gpu, [64, 128].map(|dim| case([1, 1, dim], Mask::Causal, [itself(0, 258, 1)]).with(8, None)))
}

/// From one feature to 256, in windows that are aligned and not.
fn dimensions<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let of = |dim, edge| case([2, 1, dim], Mask::Causal, [itself(0, 66, 3)]).with(edge, None);
    several::<S>(
        gpu,
        [of(1, 0), of(63, 1), of(64, 0), of(65, 0), of(128, 8), of(128, 3), of(200, 4), of(256, 0)],
    )
}

/// One token after many, whose keys are split; in two calls, too, and through a window.
fn single<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let at = |row: usize, position, sequence| tokens(row, 1, position, sequence);
    let of = |row: usize, position| Span { query: at(row, position, 7), key: tokens(row * 530, 530, 0, row) };
    let window = Mask::Window { size: 400, sinks: 5 };
    for (heads, mask, edge) in
        [([2, 1, 40], Mask::Causal, 8), ([6, 1, 65], window, 3), ([2, 2, 130], Mask::All, 0)]
    {
        several::<S>(gpu, [case(heads, mask, [of(0, 529), of(1, 500)]).with(edge, dropout())])?;
    }
    let part = |from: usize| Span { query: at(1, 300, 1), key: tokens(from, 150, from, 1) };
    let calls = || vec![vec![part(150)], vec![part(0)]];
    let of = |calls, shared| Case { calls, shared, ..case([4, 2, 64], Mask::Causal, []).with(8, None) };
    several::<S>(gpu, [of(calls(), false), of(vec![calls().concat()], true)])
}

/// Keys lie in slots of 160 rows.
fn cached<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let of = |(row, n, past), slot: usize, sequence| Span {
        query: tokens(row, n, past, sequence),
        key: tokens(slot * 160, past + n, 0, sequence),
    };
    let prefill = || [of((0, 3, 4), 0, 1), of((3, 40, 100), 2, 2), of((43, 1, 150), 1, 5)];
    let decode = || [of((0, 1, 150), 0, 1), of((1, 1, 0), 2, 2), of((2, 1, 77), 1, 5)];
    let decode = |heads, edge| case(heads, Mask::Causal, decode()).with(edge, None);
    let prefill = [[3, 1, 20], [2, 2, 64]].map(|heads| case(heads, Mask::Causal, prefill()));
    let decode =
        [decode([8, 1, 24], 0), decode([4, 2, 128], 8), decode([3, 3, 65], 3), decode([2, 1, 256], 0)];
    // A warp's last query stands where a block of keys begins.
    let edges = [64, 128].map(|dim| case([2, 1, dim], Mask::Causal, [of((0, 100, 1), 0, 1)]).with(8, None));
    several::<S>(gpu, prefill.into_iter().chain(decode).chain(edges))
}

fn windows<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let windows = [(1, 0), (3, 2), (40, 3), (64, 70), (500, 1)];
    let windows = windows.map(|(size, sinks)| Mask::Window { size, sinks });
    let of = |(i, mask)| {
        let dim = [8, 64][i % 2];
        case([2, 1, dim], mask, [itself(0, 10, 1), itself(10, 200, 2)]).with(8, (i % 3 == 0).then(dropout))
    };
    several::<S>(gpu, windows.into_iter().enumerate().map(of))
}

/// Queries see all keys, of which there are more or fewer.
fn memory<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let of = |heads| {
        let first = Span { query: tokens(0, 4, 0, 1), key: tokens(0, 90, 0, 1) };
        let second = Span { query: tokens(4, 75, 0, 2), key: tokens(90, 2, 0, 2) };
        case(heads, Mask::All, [first, second])
    };
    several::<S>(gpu, [of([2, 2, 5]), of([4, 1, 64]).with(8, dropout()), of([2, 1, 128]).with(8, None)])?;
    // A tile of queries of one span, all of which see all keys, of which there are fewer than come at a time.
    let span = Span { query: tokens(0, 128, 0, 1), key: tokens(0, 100, 0, 1) };
    several::<S>(gpu, [64, 128].map(|dim| case([1, 1, dim], Mask::All, [span]).with(8, None)))
}

/// A text's begin and its end look at its keys, which come in three calls, or in one call of several spans on the same
/// queries.
fn parts<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let ends = [tokens(0, 80, 0, 6), tokens(80, 50, 150, 6)];
    let keys = [tokens(100, 70, 130, 6), tokens(0, 80, 0, 6), tokens(170, 50, 80, 6)]; // of 200
    for (heads, dropout) in [([2, 1, 12], None), ([2, 1, 64], Some(dropout()))] {
        let of = |calls: Vec<_>| Case {
            shared: calls.len() == 1,
            calls,
            ..case(heads, Mask::Causal, []).with(8, dropout)
        };
        let call = |key| ends.map(|query| Span { query, key }).to_vec();
        several::<S>(gpu, [of(keys.map(call).to_vec()), of(vec![keys.map(call).concat()])])?;
    }
    Ok(())
}

/// Rows that see no key: of the running softmax as at its begin, of an output no numbers.
fn nothing<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let spans = || {
        let early = Span { query: tokens(0, 6, 0, 1), key: tokens(0, 5, 3, 1) };
        [early, Span { query: tokens(6, 2, 0, 1), key: tokens(5, 0, 0, 1) }]
    };
    for dim in [7, 64] {
        let case = case([2, 1, dim], Mask::Causal, spans());
        let inputs = case.inputs::<S>(gpu);
        forward(gpu, &case, &case.calls[0], &inputs)?;
        carried(gpu, &case, &inputs)?;
    }
    Ok(())
}
