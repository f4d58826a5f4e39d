//! Checks of `attention.cu` and `attention_backward.cu`. Lengths cross tiles of 64 rows; rows of windows are
//! not adjacent.
use super::{F32, Side, SideKernels, SideMatrix, check, draw};
use kernels::{Attend, Heads, Mask, Qkv, RunningSoftmax, Scores, Segment, Span};
use tensor::{Device, Dropout, Real};

/// Tolerances for scores of up to 256 products and outputs of some hundred terms, each rounded.
const SLACK: f64 = 4.0;

/// Rows after all spans, filled with NaN.
const BEYOND: usize = 2;

/// Queries and keys of several sequences, in calls one after the other; rows outside the spans are padding.
struct AttentionCase {
    attend: Attend,
    calls: Vec<Vec<Span>>,
    /// True if spans of a call share queries.
    shared: bool,
    /// Columns beside those of the heads.
    edge: usize,
}

fn case<const N: usize>(heads: [usize; 3], mask: Mask, spans: [Span; N]) -> AttentionCase {
    let [queries, keys, dim] = heads;
    let attend = Attend { first: 6, ..Attend::of(Heads::new(queries, keys, dim), mask) };
    AttentionCase { attend, calls: vec![spans.to_vec()], shared: false, edge: 3 }
}

fn tokens(row: usize, len: usize, position: usize, sequence: usize) -> Segment {
    Segment { row, len, position, sequence }
}

fn itself(row: usize, len: usize, sequence: usize) -> Span {
    let t = tokens(row, len, 0, sequence);
    Span { query: t, key: t }
}

impl AttentionCase {
    fn with(self, edge: usize, dropout: impl Into<Option<Dropout>>) -> Self {
        Self { attend: Attend { dropout: dropout.into(), ..self.attend }, edge, ..self }
    }
    /// Shape of a matrix of heads, with other columns around it.
    fn shape(&self, of: fn(&Span) -> Segment, cols: usize) -> [usize; 4] {
        let rows = self.calls.iter().flatten().map(|s| of(s).row + of(s).len).max().unwrap_or(0) + BEYOND;
        [rows, cols, cols + 2 * self.edge, self.edge]
    }
}

/// Draws a matrix.
fn drawn(seed: u64, [rows, _, whole, _]: [usize; 4]) -> impl Fn(usize) -> f64 {
    move |i| if i / whole < rows - BEYOND { draw(seed)(i) } else { f64::NAN }
}

/// Makes a running softmax.
fn running<D: Device<Elem: Real>>([out, max, sum]: [&mut SideMatrix<D>; 3]) -> RunningSoftmax<'_, D> {
    RunningSoftmax { out: out.to(), max: max.to(), sum: sum.to() }
}

/// Checks the forward pass if all keys of each query are in one span, then the same with a running softmax;
/// then the gradients, if every query sees a key (`seen`).
fn each<D: SideKernels>(c: &mut Side<D>, case: &AttentionCase, seen: bool) {
    let attend = &case.attend;
    let heads = attend.heads;
    c.case = format!("{attend:?}");
    let [query, output] = [heads.q().len(), heads.gathered()].map(|cols| case.shape(|s| s.query, cols));
    let [key, value] = [heads.k(), heads.v()].map(|of| case.shape(|s| s.key, of.len()));
    let [q, d_o, k, v] =
        [(1, query), (2, output), (3, key), (4, value)].map(|(seed, shape)| c.of(shape, drawn(seed, shape)));
    let qkv = || Qkv { q: q.of(), k: k.of(), v: v.of() };
    let numbers = case.shape(|s| s.query, heads.queries); // one for each query and head
    let room = D::attention_scratch(heads, case.calls.iter().flatten().map(|s| s.key.len).max().unwrap_or(0));
    let scratch = |c: &Side<D>| c.wide([1, room, room, 0], |_| f64::NEG_INFINITY);
    if let ([spans], false) = (&case.calls[..], case.shared) {
        let (mut o, mut lse) = (c.of(output, drawn(5, output)), c.wide(numbers, |i| i as f64));
        let (spans, mut scratch) = (c.index(spans), scratch(c));
        check!(c.attention(attend, &spans, qkv(), o.to(), lse.to(), scratch.to()) => o SLACK, lse SLACK);
        c.near("o of attention", &o);
    }
    let (mut out, mut sum) = (c.wide(output, drawn(6, output)), c.wide(numbers, |_| 0.0));
    let mut max = c.wide(numbers, |_| f64::NEG_INFINITY);
    // Weights are rounded on tensor cores, by half a tolerance of their size. Sums of up to some hundred
    // terms are not yet divided.
    let rounded = 4.0 * SLACK * c.number.tolerance / F32.tolerance;
    for spans in &case.calls {
        let (spans, mut scratch) = (c.index(spans), scratch(c));
        let run = running([&mut out, &mut max, &mut sum]);
        check!(c.attention_block(attend, &spans, qkv(), run, scratch.to())
            => out rounded, max SLACK, sum SLACK);
    }
    let (mut o, run) = (c.of(output, drawn(7, output)), running([&mut out, &mut max, &mut sum]));
    check!(c.attention_finish(heads, o.to(), run) => max SLACK, o SLACK);
    c.near("o of attention_finish", &o);
    if !seen {
        return;
    }
    // Both sides get the same output: the host's, rounded.
    let given = c.of_host(o.read());
    let (o, mut delta) = (c.of(output, |i| given[i]), c.wide(numbers, |i| i as f64));
    check!(c.attention_delta(heads, delta.to(), o.of(), d_o.of()) => delta SLACK);
    let of_heads = [1, heads.queries, heads.queries, 0];
    let (sinks, mut dsinks) = (c.of(of_heads, draw(11)), c.wide(of_heads, draw(12)));
    let [saved, numbers] = [max.of(), delta.of()];
    check!(c.attention_sinks(dsinks.to(), sinks.of(), saved, numbers) => dsinks 4.0 * SLACK);
    // Gradients are added to the values already there.
    let [mut dq, mut dk, mut dv] =
        [(8, query), (9, key), (10, value)].map(|(seed, shape)| c.of(shape, draw(seed)));
    for spans in &case.calls {
        let (spans, mut scratch) = (c.index(spans), scratch(c));
        let (saved, gradients) = ((max.of(), delta.of()), [dq.to(), dk.to(), dv.to()]);
        check!(c.attention_backward(attend, &spans, qkv(), saved, d_o.of(), gradients, scratch.to()));
    }
    for (what, d) in [("dq", &dq), ("dk", &dk), ("dv", &dv)] {
        c.close(what, d, 4.0 * SLACK);
        c.near(what, d);
    }
    let [mut dq, mut dk, mut dv] =
        [(8, query), (9, key), (10, value)].map(|(seed, shape)| c.wide(shape, draw(seed)));
    for spans in &case.calls {
        let (spans, mut scratch) = (c.index(spans), scratch(c));
        let (saved, gradients) = ((max.of(), delta.of()), [dq.to(), dk.to(), dv.to()]);
        // weights are rounded on tensor cores, sums are not
        check!(c.attention_block_backward(attend, &spans, qkv(), saved, d_o.of(), gradients, scratch.to())
            => dq 4.0 * rounded, dk 4.0 * rounded, dv 4.0 * rounded);
    }
}

fn several<D: SideKernels>(c: &mut Side<D>, cases: impl IntoIterator<Item = AttentionCase>) {
    cases.into_iter().for_each(|case| each(c, &case, true));
}

fn dropout() -> Dropout {
    Dropout::new(0.3, 1, 2, "attention")
}

/// Checks texts of several lengths with padding between them.
pub(crate) fn texts<D: SideKernels>(c: &mut Side<D>) {
    let texts = || [itself(0, 70, 3), itself(72, 1, 0), itself(73, 130, 9)];
    let causal = |dim| case([4, 2, dim], Mask::Causal, texts());
    several(c, [causal(16), causal(33).with(3, dropout()), causal(64).with(8, dropout())]);
    // A single text of several tiles, whose queries see all keys of earlier tiles.
    several(c, [64, 128].map(|dim| case([1, 1, dim], Mask::Causal, [itself(0, 258, 1)]).with(8, None)));
}

/// Checks heads of one feature to 256, in windows that are aligned and not.
pub(crate) fn dimensions<D: SideKernels>(c: &mut Side<D>) {
    let of = |dim, edge| case([2, 1, dim], Mask::Causal, [itself(0, 66, 3)]).with(edge, None);
    several(c, [of(1, 0), of(63, 1), of(64, 0), of(65, 0), of(128, 8), of(128, 3), of(200, 4), of(256, 0)]);
}

/// Checks single tokens after many, so that keys are split; also in two calls, and through a window.
pub(crate) fn single<D: SideKernels>(c: &mut Side<D>) {
    let at = |row: usize, position, sequence| tokens(row, 1, position, sequence);
    let of = |row: usize, position| Span { query: at(row, position, 7), key: tokens(row * 530, 530, 0, row) };
    let window = Mask::Window { size: 400, sinks: 5 };
    for (heads, mask, edge) in
        [([2, 1, 40], Mask::Causal, 8), ([6, 1, 65], window, 3), ([2, 2, 130], Mask::All, 0)]
    {
        several(c, [case(heads, mask, [of(0, 529), of(1, 500)]).with(edge, dropout())]);
    }
    let part = |from: usize| Span { query: at(1, 300, 1), key: tokens(from, 150, from, 1) };
    let calls = || vec![vec![part(150)], vec![part(0)]];
    let of =
        |calls, shared| AttentionCase { calls, shared, ..case([4, 2, 64], Mask::Causal, []).with(8, None) };
    several(c, [of(calls(), false), of(vec![calls().concat()], true)]);
}

/// Checks a cache: keys lie in slots of 160 rows.
pub(crate) fn cached<D: SideKernels>(c: &mut Side<D>) {
    let span = |(row, n, past), slot: usize, sequence| Span {
        query: tokens(row, n, past, sequence),
        key: tokens(slot * 160, past + n, 0, sequence),
    };
    let prefill = || [span((0, 3, 4), 0, 1), span((3, 40, 100), 2, 2), span((43, 1, 150), 1, 5)];
    let decode = || [span((0, 1, 150), 0, 1), span((1, 1, 0), 2, 2), span((2, 1, 77), 1, 5)];
    let decode = |heads, edge| case(heads, Mask::Causal, decode()).with(edge, None);
    let prefill = [[3, 1, 20], [2, 2, 64]].map(|heads| case(heads, Mask::Causal, prefill()));
    let decode =
        [decode([8, 1, 24], 0), decode([4, 2, 128], 8), decode([3, 3, 65], 3), decode([2, 1, 256], 0)];
    // A warp's last query is where a tile of keys begins.
    let edges = [64, 128].map(|dim| case([2, 1, dim], Mask::Causal, [span((0, 100, 1), 0, 1)]).with(8, None));
    several(c, prefill.into_iter().chain(decode).chain(edges));
}

/// Checks values that are wider than keys or less wide, on tensor cores and by tiles, of rows and of single
/// tokens.
pub(crate) fn values<D: SideKernels>(c: &mut Side<D>) {
    let sized = |[dim, value]: [usize; 2], edge, spans: [Span; 2]| {
        let AttentionCase { attend, .. } = case([4, 2, dim], Mask::Causal, []);
        let attend = Attend { heads: Heads { value, ..attend.heads }, ..attend };
        AttentionCase { attend, ..case([4, 2, dim], Mask::Causal, spans).with(edge, dropout()) }
    };
    let texts = [itself(0, 66, 3), itself(68, 5, 0)];
    let single = [(0, 529), (1, 500)].map(|(row, position)| Span {
        query: tokens(row, 1, position, 7),
        key: tokens(row * 530, 530, 0, row),
    });
    for sizes in [[24, 16], [40, 72], [192, 128], [7, 65]] {
        several(c, [sized(sizes, 8, texts), sized(sizes, 0, single)]);
    }
}

/// Checks scores that are capped, divided by another root than that of a key's features.
pub(crate) fn caps<D: SideKernels>(c: &mut Side<D>) {
    let single = Span { query: tokens(0, 1, 529, 7), key: tokens(0, 530, 0, 0) };
    for (i, dim) in [20, 64, 200].into_iter().enumerate() {
        for spans in [vec![itself(0, 66, 3)], vec![single]] {
            let given = case([2, 1, dim], Mask::Causal, []).with(8, (i % 2 == 0).then(dropout));
            let scores = Scores { divisor: 9, cap: Some([1.5, 4.0][i % 2]), ..given.attend.scores };
            let attend = Attend { scores, ..given.attend };
            several(c, [AttentionCase { attend, calls: vec![spans], ..given }]);
        }
    }
}

pub(crate) fn windows<D: SideKernels>(c: &mut Side<D>) {
    let windows = [(1, 0), (3, 2), (40, 3), (64, 70), (500, 1)];
    let windows = windows.map(|(size, sinks)| Mask::Window { size, sinks });
    let windowed = |(i, mask)| {
        let dim = [8, 64][i % 2];
        case([2, 1, dim], mask, [itself(0, 10, 1), itself(10, 200, 2)]).with(8, (i % 3 == 0).then(dropout))
    };
    several(c, windows.into_iter().enumerate().map(windowed));
}

/// Checks queries that see all keys, of which there are more or fewer than queries.
pub(crate) fn memory<D: SideKernels>(c: &mut Side<D>) {
    let of = |heads| {
        let first = Span { query: tokens(0, 4, 0, 1), key: tokens(0, 90, 0, 1) };
        let second = Span { query: tokens(4, 75, 0, 2), key: tokens(90, 2, 0, 2) };
        case(heads, Mask::All, [first, second])
    };
    several(c, [of([2, 2, 5]), of([4, 1, 64]).with(8, dropout()), of([2, 1, 128]).with(8, None)]);
    // A tile of queries of one span, which see all keys: fewer than a tile of keys.
    let span = Span { query: tokens(0, 128, 0, 1), key: tokens(0, 100, 0, 1) };
    several(c, [64, 128].map(|dim| case([1, 1, dim], Mask::All, [span]).with(8, None)));
}

/// Checks the two ends of a text, whose keys come in three calls, or in one call of several spans on the same
/// queries.
pub(crate) fn parts<D: SideKernels>(c: &mut Side<D>) {
    let ends = [tokens(0, 80, 0, 6), tokens(80, 50, 150, 6)];
    let keys = [tokens(100, 70, 130, 6), tokens(0, 80, 0, 6), tokens(170, 50, 80, 6)]; // of 200
    for (heads, dropout) in [([2, 1, 12], None), ([2, 1, 64], Some(dropout()))] {
        let of = |calls: Vec<_>| AttentionCase {
            shared: calls.len() == 1,
            calls,
            ..case(heads, Mask::Causal, []).with(8, dropout)
        };
        let call = |key| ends.map(|query| Span { query, key }).to_vec();
        several(c, [of(keys.map(call).to_vec()), of(vec![keys.map(call).concat()])]);
    }
}

/// Checks running softmaxes that are merged: of rows that have seen keys on both sides, on one, or on none.
pub(crate) fn merged<D: SideKernels>(c: &mut Side<D>) {
    let heads = Heads::new(3, 1, 40);
    let (out, one) = ([5, 120, 126, 3], [5, 3, 5, 1]);
    let max = |seed: u64, none: usize| {
        move |i: usize| if i.is_multiple_of(none) { f64::NEG_INFINITY } else { draw(seed)(i) }
    };
    let [mut o, o2] = [1, 4].map(|seed| c.of(out, draw(seed)));
    let [mut m, m2] = [(2, 3), (5, 4)].map(|(seed, none)| c.of(one, max(seed, none)));
    let [mut l, l2] = [3, 6].map(|seed| c.of(one, |i| 1.0 + draw(seed)(i).abs()));
    let run = RunningSoftmax { out: o.to(), max: m.to(), sum: l.to() };
    check!(c.attention_merge(heads, run, (o2.of(), m2.of(), l2.of())) => o SLACK, m SLACK, l SLACK);
}

/// Checks rows that see no key: their running softmax stays as at its start, their output is NaN.
pub(crate) fn nothing<D: SideKernels>(c: &mut Side<D>) {
    let spans = || {
        let early = Span { query: tokens(0, 6, 0, 1), key: tokens(0, 5, 3, 1) };
        [early, Span { query: tokens(6, 2, 0, 1), key: tokens(5, 0, 0, 1) }]
    };
    for dim in [7, 64] {
        each(c, &case([2, 1, dim], Mask::Causal, spans()), false);
    }
}
