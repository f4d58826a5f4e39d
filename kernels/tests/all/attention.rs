//! The proof of attention and its backward: against the softmax written out, for every mask, with and without
//! dropout, by blocks of keys in any order.
use crate::proof::{
    Matrix, assert_close, assert_derivative, draw, filled, index, less, matrix, read, under_two_keys,
};
use kernels::{Attend, CpuScalar, Heads, Kernels, Mask, Qkv, RunningSoftmax, Scores, Segment, Span};
use tensor::{Cpu, Dropout, Dual, F61, Host, Scalar};

const MASKS: [Mask; 7] = [
    Mask::All,
    Mask::Causal,
    Mask::Window { size: 1, sinks: 0 },
    Mask::Window { size: 3, sinks: 0 },
    Mask::Window { size: 4, sinks: 2 },
    Mask::Window { size: 2, sinks: 5 },
    Mask::Window { size: 100, sinks: 1 },
];

/// Queries and keys of several sequences, taken in over several calls.
struct Case {
    attend: Attend,
    /// The spans of each call.
    calls: Vec<Vec<Span>>,
}

impl Case {
    fn spans(&self) -> impl Iterator<Item = &Span> {
        self.calls.iter().flatten()
    }
    /// Random q, k, v and dO.
    fn inputs<S: Scalar>(&self) -> [Matrix<S>; 4] {
        let rows = |of: fn(&Span) -> Segment| self.spans().map(|s| of(s).row + of(s).len).max().unwrap_or(0);
        let (heads, q, k) = (self.attend.heads, rows(|s| s.query), rows(|s| s.key));
        [(1, q, heads.q().len()), (2, k, heads.k().len()), (3, k, heads.v().len()), (4, q, heads.gathered())]
            .map(|(seed, rows, columns)| draw(seed, rows, columns))
    }
    fn scratch<S: CpuScalar>(&self) -> Matrix<S>
    where
        Cpu<S>: Kernels<Place = Host, Elem = S, Wide = Cpu<S>>,
    {
        let keys = self.spans().map(|s| s.key.len).max().unwrap_or(0);
        filled(1, Cpu::<S>::attention_scratch(self.attend.heads, keys), S::NEG_INF)
    }
}

/// The output and the log-sum-exp.
fn forward<S: CpuScalar>(case: &Case, [q, k, v, _]: &[Matrix<S>; 4]) -> [Matrix<S>; 2]
where
    Cpu<S>: Kernels<Place = Host, Elem = S, Wide = Cpu<S>>,
{
    let (cpu, Case { attend, calls }) = (Cpu::<S>::default(), case);
    let [rows, heads, outputs] = [q.rows(), attend.heads.queries, attend.heads.gathered()];
    let (mut out, mut max) = (filled(rows, outputs, S::NEG_INF), filled(rows, heads, S::NEG_INF));
    let mut sum = filled(rows, heads, S::ZERO);
    for spans in calls.iter().map(|spans| index(spans.clone())) {
        let spans = &spans;
        let qkv = Qkv { q: q.view(), k: k.view(), v: v.view() };
        let run = RunningSoftmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
        cpu.attention_block(attend, spans, qkv, run, case.scratch().view_mut());
    }
    let mut o = filled(rows, outputs, S::NEG_INF);
    let run = RunningSoftmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
    cpu.attention_finish(attend.heads, o.view_mut(), run);
    if let [spans] = &calls[..] {
        let spans = &index(spans.clone());
        let [mut at_once, mut lse] = [outputs, heads].map(|cols| filled(rows, cols, S::NEG_INF));
        let (qkv, to) = (Qkv { q: q.view(), k: k.view(), v: v.view() }, (at_once.view_mut(), lse.view_mut()));
        cpu.attention(attend, spans, qkv, to.0, to.1, case.scratch().view_mut());
        assert_eq!([read(&at_once), read(&lse)], [read(&o), read(&max)], "at once and carried");
    }
    [o, max]
}

/// Returns the amounts that backward adds to the gradients of q, k and v.
fn backward<S: CpuScalar>(case: &Case, inputs: &[Matrix<S>; 4]) -> [Matrix<S>; 3]
where
    Cpu<S>: Kernels<Place = Host, Elem = S, Wide = Cpu<S>>,
{
    let (cpu, Case { attend, calls }, [q, k, v, d_o]) = (Cpu::<S>::default(), case, inputs);
    let [out, lse] = forward(case, inputs);
    let mut delta = filled(q.rows(), attend.heads.queries, S::NEG_INF);
    cpu.attention_delta(attend.heads, delta.view_mut(), out.view(), d_o.view());
    let begin = || [(5, q), (6, k), (7, v)].map(|(seed, x)| draw::<S>(seed, x.rows(), x.cols()));
    let ([mut dq, mut dk, mut dv], mut in_wide) = (begin(), begin());
    for spans in calls.iter().map(|spans| index(spans.clone())) {
        let spans = &spans;
        let qkv = Qkv { q: q.view(), k: k.view(), v: v.view() };
        let (saved, dqkv) = ((lse.view(), delta.view()), [dq.view_mut(), dk.view_mut(), dv.view_mut()]);
        cpu.attention_backward(attend, spans, qkv, saved, d_o.view(), dqkv, case.scratch().view_mut());
        let (qkv, dqkv) =
            (Qkv { q: q.view(), k: k.view(), v: v.view() }, in_wide.each_mut().map(Matrix::view_mut));
        let saved = (lse.view(), delta.view());
        cpu.attention_block_backward(attend, spans, qkv, saved, d_o.view(), dqkv, case.scratch().view_mut());
    }
    assert_eq!([&dq, &dk, &dv].map(read), in_wide.each_ref().map(read), "in the dtype and in the wide one");
    let [q, k, v] = begin();
    [less(&dq, &q), less(&dk, &k), less(&dv, &v)]
}

/// As `forward`, each call's keys on their own, merged in this order, with softmaxes of no keys on both
/// sides.
fn merged<S: CpuScalar>(case: &Case, [q, k, v, _]: &[Matrix<S>; 4], back: bool) -> [Matrix<S>; 2]
where
    Cpu<S>: Kernels<Place = Host, Elem = S, Wide = Cpu<S>>,
{
    let (cpu, Case { attend, calls }) = (Cpu::<S>::default(), case);
    let [rows, heads, outputs] = [q.rows(), attend.heads.queries, attend.heads.gathered()];
    let nothing =
        || [filled(rows, outputs, S::NEG_INF), filled(rows, heads, S::NEG_INF), filled(rows, heads, S::ZERO)];
    let [mut out, mut max, mut sum] = nothing();
    let mut order: Vec<_> = [vec![]].iter().chain(calls).chain([&vec![]]).cloned().collect();
    if back {
        order.reverse();
    }
    for spans in order {
        let [mut of_out, mut of_max, mut of_sum] = nothing();
        let of = RunningSoftmax { out: of_out.view_mut(), max: of_max.view_mut(), sum: of_sum.view_mut() };
        let qkv = Qkv { q: q.view(), k: k.view(), v: v.view() };
        cpu.attention_block(attend, &index(spans), qkv, of, case.scratch().view_mut());
        let run = RunningSoftmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
        cpu.attention_merge(attend.heads, run, (of_out.view(), of_max.view(), of_sum.view()));
    }
    let mut o = filled(rows, outputs, S::NEG_INF);
    let run = RunningSoftmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
    cpu.attention_finish(attend.heads, o.view_mut(), run);
    [o, max]
}

/// The definition: one query, one head, one key at a time, without a stabiliser.
fn by_definition<S: Scalar>(case: &Case, [q, k, v, _]: &[Matrix<S>; 4]) -> [Vec<S>; 2] {
    let Heads { queries, keys, dim, value, .. } = case.attend.heads;
    let Scores { divisor, factor, cap, mask } = case.attend.scores;
    let cap = cap.map(S::from_f64);
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for (row, head) in (0..q.rows()).flat_map(|row| (0..queries).map(move |head| (row, head))) {
        let feature = |x: &Matrix<S>, row, head, f| x.view().at(row, head * dim + f);
        let (mut total, mut o, group) = (S::ZERO, vec![S::ZERO; value], head / (queries / keys));
        for Span { query, key } in
            case.spans().filter(|s| (s.query.row..s.query.row + s.query.len).contains(&row))
        {
            let at = query.position + row - query.row;
            for j in (0..key.len).filter(|j| mask.sees(at, key.position + j)) {
                let product = |f| feature(q, row, head, f) * feature(k, key.row + j, group, f);
                let sum = (0..dim).fold(S::ZERO, |sum, f| sum + product(f));
                let score = sum * S::inv_sqrt(divisor) * S::from_f64(factor);
                let score = cap.map_or(score, |cap| cap * (score * cap.inv()).tanh());
                let weight = S::exp_sub(score, S::ZERO);
                total += weight;
                let pair = Dropout::pair(case.attend.first + head, key.position + j);
                let kept = case.attend.dropout.map_or(S::ONE, |dropout| {
                    if dropout.keeps(query.sequence, at, pair) { dropout.scale() } else { S::ZERO }
                });
                for f in 0..value {
                    o[f] += kept * weight * v.view().at(key.row + j, group * value + f);
                }
            }
        }
        out.extend(o.iter().map(|&o| o * total.inv()));
        lse.push(S::lse(S::ZERO, total));
    }
    [out, lse]
}

fn tokens(row: usize, len: usize, position: usize, sequence: usize) -> Segment {
    Segment { row, len, position, sequence }
}

/// Texts of several lengths; new tokens after cached ones; keys of one text in three calls, the last first.
fn layouts() -> [Vec<Vec<Span>>; 3] {
    let itself = |t| Span { query: t, key: t };
    let texts = [tokens(0, 5, 0, 3), tokens(5, 1, 0, 0), tokens(6, 7, 0, 9)].map(itself);
    let cached = [
        Span { query: tokens(0, 3, 4, 1), key: tokens(0, 7, 0, 1) },
        Span { query: tokens(3, 1, 8, 2), key: tokens(12, 9, 0, 2) },
        Span { query: tokens(4, 2, 0, 5), key: tokens(24, 2, 0, 5) },
    ];
    let ends = [tokens(0, 4, 0, 6), tokens(4, 3, 8, 6)]; // one rank's queries: the text's begin and its end
    let keys = [tokens(7, 4, 7, 6), tokens(0, 4, 0, 6), tokens(4, 3, 4, 6)];
    let call = |key| ends.map(|query| Span { query, key }).to_vec();
    [vec![texts.to_vec()], vec![cached.to_vec()], keys.map(call).to_vec()]
}

fn cases() -> Vec<Case> {
    let memory = [(tokens(0, 4, 0, 1), tokens(0, 9, 0, 1)), (tokens(4, 5, 0, 2), tokens(9, 2, 0, 2))];
    let memory = vec![memory.map(|(query, key)| Span { query, key }).to_vec()];
    let layouts = MASKS.into_iter().flat_map(|mask| layouts().map(|calls| (mask, calls)));
    let layouts: Vec<_> = layouts.chain([(Mask::All, memory)]).collect();
    let dropouts = [None, Some(Dropout::new(0.4, 1, 2, "attention"))];
    let both = dropouts.into_iter().flat_map(|dropout| layouts.iter().map(move |layout| (dropout, layout)));
    let case = |(i, (dropout, (mask, calls))): (usize, (_, &(Mask, Vec<Vec<Span>>)))| {
        let heads = Heads { value: [3, 5, 2][i % 3], ..Heads::new(4, 2, 3) };
        let [divisor, cap] = [[3, 7][i / 3 % 2], i / 2 % 2];
        let factor = [1.0, 1.25][i / 3 % 2];
        let scores = Scores { divisor, factor, cap: [None, Some(1.5)][cap], mask: *mask };
        Case { attend: Attend { first: 6, dropout, heads, scores }, calls: calls.clone() }
    };
    both.enumerate().map(case).collect()
}

/// Kills: a mask by rows for one by positions, a strip's unseen keys that count, a strip without seen keys
/// that ends what ran before, dropout before the softmax, its mask by this rank's heads or another sequence.
#[test]
fn attention_equals_the_softmax_written_out_exactly() {
    under_two_keys(|| {
        for case in cases() {
            let inputs = case.inputs::<F61>();
            let seen = forward(&case, &inputs).map(|t| read(&t));
            assert_eq!(seen, by_definition(&case, &inputs), "{:?}", case.attend);
        }
    });
}

/// Kills: a sum or an output that is not rescaled, rescaled by the other's maximum, or merged where there is
/// nothing to merge.
#[test]
fn merged_softmaxes_equal_the_whole() {
    under_two_keys(|| {
        for case in cases() {
            let inputs = case.inputs::<F61>();
            let whole = forward(&case, &inputs).map(|t| read(&t));
            for back in [false, true] {
                assert_eq!(merged(&case, &inputs, back).map(|t| read(&t)), whole, "{:?}", case.attend);
            }
        }
    });
    // e^200 overflows f32, in which the field sees nothing
    let ([text, rest], heads) = ([tokens(0, 40, 0, 0), tokens(40, 30, 40, 0)], Heads::new(1, 1, 1));
    let calls = vec![vec![Span { query: text, key: text }], vec![Span { query: text, key: rest }]];
    let case = Case { attend: Attend::of(heads, Mask::All), calls };
    // half of the queries have scores of −210 in the first call and of 210 in the second
    let sign = |i: usize| if i.is_multiple_of(2) { 1.0f32 } else { -1.0 };
    let [q, v, d_o] =
        [(14.5, 40), (1.0, 70), (1.0, 40)].map(|(most, rows)| matrix(rows, 1, |i| most * sign(i)));
    let inputs = [q, matrix(70, 1, |i| if i < 40 { -14.5 } else { 14.5 }), v, d_o];
    for back in [false, true] {
        for (seen, wanted) in merged(&case, &inputs, back).iter().zip(&forward(&case, &inputs)) {
            let wanted = matrix(wanted.rows(), wanted.cols(), |i| f64::from(read(wanted)[i]));
            assert!(read(&wanted).iter().all(|x| x.is_finite()));
            assert_close(seen, &wanted, 1e-6);
        }
    }
}

/// Kills: a mask forgotten or applied twice on the way back, δ of unmasked outputs, a tile's keys skipped.
#[test]
fn attention_backward_equals_the_derivative_exactly() {
    under_two_keys(|| {
        for case in cases() {
            let (moving, inputs) = (case.inputs::<Dual<F61>>(), case.inputs::<F61>());
            let ([o, _], [dq, dk, dv]) = (forward(&case, &moving), backward(&case, &inputs));
            let [q, k, v, _] = &moving;
            assert_derivative(&inputs[3], &o, &[(q, &dq), (k, &dk), (v, &dv)]);
        }
    });
}

/// A stabiliser must not see what is hidden: in the field it would cancel, in floats it takes all digits.
/// Kills: hidden scores in the maximum; rows that begin with a strip of nothing but hidden keys.
#[test]
fn hidden_keys_leave_floats_alone() {
    let case = |mask, key| {
        let heads = Heads::new(1, 1, 1);
        let query = tokens(0, 2, 5, 0);
        Case { attend: Attend::of(heads, mask), calls: vec![vec![Span { query, key }]] }
    };
    let (causal, window) = (Mask::Causal, Mask::Window { size: 2, sinks: 1 });
    // The second query sees key 6, the first does not; no query sees the other keys named here.
    for (mask, large) in [(causal, &[6, 7][..]), (window, &[1, 2, 3, 6, 7])] {
        let case = case(mask, tokens(0, 8, 0, 0));
        let key = |i: usize| if large.contains(&i) { 1e4f32 } else { 0.5 };
        let inputs = [filled(2, 1, 1.0), matrix(8, 1, key), filled(8, 1, 3.0), filled(2, 1, 1.0)];
        assert_close(&forward(&case, &inputs)[0], &filled(2, 1, 3.0), 1e-6);
        assert!(backward(&case, &inputs).iter().flat_map(read).all(|d| d.abs() < 10.0), "{mask:?}");
    }
}

/// Shapes that cross the tiles of floats, 64 × 256.
fn large(mask: Mask, dropout: Option<Dropout>) -> Case {
    let texts =
        [tokens(0, 150, 0, 0), tokens(150, 70, 0, 1), tokens(300, 400, 0, 2)].map(|key| match key.row {
            300 => Span { query: tokens(220, 80, 320, 2), key },
            _ => Span { query: key, key },
        });
    let heads = Heads::new(2, 1, 8);
    Case { attend: Attend { dropout, ..Attend::of(heads, mask) }, calls: vec![texts.to_vec()] }
}

/// Queries and keys that end with a tile (remainder 0) or one beyond it (1), of floats' tiles: 32 or 64
/// queries, 256 keys. The last text's keys come in two calls, of which the second has one key.
fn at_edges(mask: Mask, dropout: Option<Dropout>) -> Case {
    let [mut row, mut first] = [0; 2];
    let mut span = |queries, keys| {
        let query = tokens(row, queries, keys - queries, row);
        let span = Span { query, key: tokens(first, keys, 0, row) };
        (row, first) = (row + queries, first + keys);
        span
    };
    let texts = [(64, 256), (65, 257), (33, 33), (1, 1), (64, 512), (64, 513)].map(|(q, k)| span(q, k));
    let Span { query, key } = span(32, 257);
    let part = |from, len| Span { query, key: Segment { row: key.row + from, len, position: from, ..key } };
    let calls = vec![[&texts[..], &[part(0, 256)]].concat(), vec![part(256, 1)]];
    let heads = Heads::new(2, 1, 8);
    Case { attend: Attend { dropout, ..Attend::of(heads, mask) }, calls }
}

/// Each mask, with and without dropout. The last 32 of 512 queries look at 256 keys through a window of 225,
/// those of 513 at 257 through one of 226; the last 64 through windows of 193 and 194. Sinks end with a block
/// of keys, or one beyond it.
fn large_cases() -> impl Iterator<Item = Case> {
    let masks = [Mask::All, Mask::Causal, Mask::Window { size: 40, sinks: 3 }];
    let dropouts = [None, Some(Dropout::new(0.1, 1, 1, "a"))];
    let large = masks.into_iter().flat_map(move |mask| dropouts.map(|dropout| large(mask, dropout)));
    let windows = [(225, 1), (226, 0), (193, 3), (194, 0), (40, 256), (40, 257)];
    let windows = windows.map(|(size, sinks)| Mask::Window { size, sinks });
    let masks = [Mask::All, Mask::Causal].into_iter().chain(windows).enumerate();
    large.chain(masks.map(move |(i, mask)| at_edges(mask, dropouts[i / 2 % 2])))
}

/// Kills: a tile's bounds where tiles are large, a mask that vectors apply differently.
#[test]
fn attention_in_floats_equals_the_softmax_written_out() {
    for case in large_cases() {
        let (single, inputs) = (forward(&case, &case.inputs::<f32>()), case.inputs::<f64>());
        let seen = forward(&case, &inputs);
        for ((single, seen), wanted) in single.iter().zip(&seen).zip(by_definition(&case, &inputs)) {
            let wanted = matrix(seen.rows(), seen.cols(), |i| wanted[i]);
            assert_close(single, &wanted, 1e-5);
            let off = read(&less(seen, &wanted)).into_iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            assert!(off < 1e-12, "{off} {:?}", case.attend);
        }
    }
}

/// Backward's tiles are those of f64, its judge's those of duals. Kills: a tile's
/// bounds where tiles are large, a mask that vectors apply differently.
#[test]
fn attention_backward_in_floats_equals_the_derivative() {
    for case in large_cases() {
        let (moving, inputs) = (case.inputs::<Dual<f64>>(), case.inputs::<f64>());
        let gradients = backward(&case, &inputs);
        for (single, double) in backward(&case, &case.inputs::<f32>()).iter().zip(&gradients) {
            assert_close(single, double, 1e-4);
        }
        let along = |d: &Matrix<f64>, x: &Matrix<Dual<f64>>| {
            read(d).iter().zip(read(x)).map(|(d, x)| d * x.tangent).sum::<f64>()
        };
        let forward = along(&inputs[3], &forward(&case, &moving)[0]);
        let backward: f64 = gradients.iter().zip(&moving).map(|(d, x)| along(d, x)).sum();
        assert!((forward - backward).abs() < 1e-9 * forward.abs(), "{forward} {backward} {:?}", case.attend);
    }
}

/// The field cannot see a stabiliser that is missing or that only looks at a tile: e^200 overflows f32.
#[test]
fn scores_of_two_hundred_do_not_overflow() {
    fn run<S: CpuScalar>(mask: Mask) -> [Matrix<S>; 5]
    where
        Cpu<S>: Kernels<Place = Host, Elem = S, Wide = Cpu<S>>,
    {
        let (text, heads) = (tokens(0, 300, 0, 0), Heads::new(1, 1, 4));
        let calls = vec![vec![Span { query: text, key: text }]];
        let case = Case { attend: Attend::of(heads, mask), calls };
        let value = |i: usize, salt: usize| ((i * 7919 + salt * 104_729) % 2001) as f64 / 1000.0 - 1.0;
        let inputs = [(14.0, 1), (14.0, 2), (1.0, 3)];
        let [q, k, v] = inputs
            .map(|(scale, salt)| matrix(300, 4, |i| S::from_f64(f64::from((scale * value(i, salt)) as f32))));
        let inputs = [q, k, v, filled(300, 4, S::ONE)];
        let ([out, lse], [dq, dk, dv]) = (forward(&case, &inputs), backward(&case, &inputs));
        [out, lse, dq, dk, dv]
    }
    for mask in [Mask::All, Mask::Causal, Mask::Window { size: 30, sinks: 2 }] {
        let (single, double) = (run::<f32>(mask), run::<f64>(mask));
        let largest = double.iter().flat_map(read).fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(largest > 150.0 && largest.is_finite(), "{largest}");
        for (single, double) in single.iter().zip(&double) {
            assert_close(single, double, 4e-3);
        }
    }
}
