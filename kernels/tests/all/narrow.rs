//! The proof of narrow numbers: every kernel on a float of 16 bits gives bit for bit what the same kernel
//! gives on the same values in f32, rounded once where the result is narrow. So all that is proven of the
//! wide kernel holds of the narrow one, but for one rounding a number. Products alone add up in another
//! order; their own tests judge them.
use crate::proof::{Matrix, draw, filled, index, matrix, read};
use kernels::{
    Activation, Attend, Gate, Heads, Kernels, LossTerms, Mask, MeanOver, OrderedKernels, Qkv, RowShard,
    RunningSoftmax, Segment, Span, Write,
};
use tensor::{Cpu, Dropout, Host, IGNORED, Index, Rope, Scalar};

type Wide = Matrix<f32>;

/// The host's kernels of a float of 16 bits.
trait Kernels16<N>: OrderedKernels<Elem = N, Place = Host, Wide = Cpu<f32>> + Default {}
impl<N, D: OrderedKernels<Elem = N, Place = Host, Wide = Cpu<f32>> + Default> Kernels16<N> for D {}

/// Tests of both floats of 16 bits.
macro_rules! both {
    ($($name:ident)*) => {
        mod bf16 {
            $(#[test]
            fn $name() {
                super::$name::<tensor::Bf16>();
            })*
        }
        mod f16 {
            $(#[test]
            fn $name() {
                super::$name::<tensor::F16>();
            })*
        }
    };
}
both! {
    element_wise_kernels_round_once positions_and_dropout_round_once norms_round_once_and_keep_wide_statistics
    attention_rounds_once loss_and_embedding_round_once optimizers_move_the_master_and_round_it_once
    wide_products_are_not_rounded the_first_of_narrow_numbers_are_those_of_wide_ones
}

/// The same values as wide numbers.
fn wide<N: Scalar<Wide = f32>>(x: &Matrix<N>) -> Wide {
    let values = read(x);
    matrix(x.rows(), x.cols(), |i| values[i].widen())
}

fn equal<N: Scalar<Wide = f32>>(seen: &Matrix<N>, wanted: &Wide, what: &str) {
    let wanted: Vec<_> = read(wanted).into_iter().map(N::narrow).collect();
    assert!(wanted.iter().any(|x| x.widen() != 0.0), "{what}: nothing to compare");
    assert_eq!(read(seen), wanted, "{what}");
}

fn same(seen: &Wide, wanted: &Wide, what: &str) {
    assert!(read(wanted).iter().any(|&x| x != 0.0), "{what}: nothing to compare");
    assert_eq!(read(seen), read(wanted), "{what}");
}

fn cpus<N: Scalar<Wide = f32>>() -> (Cpu<N>, Cpu<f32>) {
    (Cpu::default(), Cpu::default())
}

const ROWS: usize = 7;
const COLS: usize = 70; // more than the lanes of a sum, and a rest

fn inputs<N: Scalar<Wide = f32>, const COUNT: usize>(
    rows: usize,
    cols: usize,
) -> ([Matrix<N>; COUNT], [Wide; COUNT]) {
    let narrow = std::array::from_fn(|i| draw::<N>(i as u64 + 1, rows, cols));
    let widened = narrow.each_ref().map(wide);
    (narrow, widened)
}

/// Kills: a function of a rounded argument, a sum of rounded terms, a second rounding.
fn element_wise_kernels_round_once<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let ([x, g, u], [wx, wg, wu]) = inputs::<N, 3>(ROWS, COLS);
    for f in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        let (mut y, mut wy) = (filled(ROWS, COLS, N::ZERO), filled(ROWS, COLS, 0.0));
        cpu.activate(y.view_mut(), x.view(), f);
        f32s.activate(wy.view_mut(), wx.view(), f);
        equal(&y, &wy, "activate");
        cpu.activate_backward(y.view_mut(), x.view(), g.view(), f);
        f32s.activate_backward(wy.view_mut(), wx.view(), wg.view(), f);
        equal(&y, &wy, "activate backward");
    }
    let ([mut y, mut z], [mut wy, mut wz]) = inputs::<N, 2>(ROWS, COLS);
    for f in [Gate::Silu, Gate::GeluTanh, Gate::Clamped] {
        cpu.gated(y.view_mut(), g.view(), u.view(), f);
        f32s.gated(wy.view_mut(), wg.view(), wu.view(), f);
        equal(&y, &wy, "gated");
        cpu.gated_backward(y.view_mut(), z.view_mut(), g.view(), u.view(), x.view(), f);
        f32s.gated_backward(wy.view_mut(), wz.view_mut(), wg.view(), wu.view(), wx.view(), f);
        equal(&y, &wy, "dgate");
        equal(&z, &wz, "dup");
    }
    cpu.add(y.view_mut(), x.view());
    let sum: Vec<_> = read(&z).iter().zip(read(&x)).map(|(a, b)| a.widen() + b.widen()).collect();
    cpu.copy(y.view_mut(), z.view());
    cpu.add(y.view_mut(), x.view());
    equal(&y, &matrix(ROWS, COLS, |i| sum[i]), "add");
    cpu.stab(y.view_mut(), u.view());
    let most: Vec<_> = read(&u).iter().zip(&sum).map(|(a, b)| a.widen().max(N::narrow(*b).widen())).collect();
    equal(&y, &matrix(ROWS, COLS, |i| most[i]), "stab");
    let (mut y, mut wy, row) = (draw::<N>(1, ROWS, COLS), wide(&draw(1, ROWS, COLS)), draw::<N>(9, 1, COLS));
    cpu.add_row(y.view_mut(), row.view());
    f32s.add_row(wy.view_mut(), wide(&row).view());
    equal(&y, &wy, "add row");
    let [mut sums, mut wsums] = [(); 2].map(|()| filled(1, COLS, 0.25f32));
    cpu.add_rows(sums.view_mut(), x.view());
    f32s.add_rows(wsums.view_mut(), wx.view());
    same(&sums, &wsums, "add rows");
    cpu.fill(y.view_mut(), N::from_f64(0.1));
    equal(&y, &filled(ROWS, COLS, N::from_f64(0.1).widen()), "fill");
}

fn tokens(row: usize, len: usize, sequence: usize) -> Segment {
    Segment { row, len, position: 0, sequence }
}

/// Kills: a table of angles that is narrow, a scale of dropout that is rounded before it is used.
fn positions_and_dropout_round_once<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let (all, dim, rope) = (index(vec![tokens(0, 5, 0), tokens(5, 2, 1)]), 10, Rope::from(100.0));
    let angles: Vec<_> = (0..5).flat_map(|p| (0..2 * (dim / 2)).map(move |i| (p, i))).collect();
    let table = matrix(5, dim, |i| {
        let ((position, i), half) = (angles[i], dim / 2);
        let (cos, sin) = f32::rotary(position, i % half, dim, &rope);
        if i < half { cos } else { sin }
    });
    for back in [false, true] {
        let (mut x, mut wx) = (draw::<N>(1, ROWS, COLS), wide(&draw(1, ROWS, COLS)));
        cpu.rotate(x.view_mut(), table.view(), &all, Heads::new(1, 0, dim), back);
        f32s.rotate(wx.view_mut(), table.view(), &all, Heads::new(1, 0, dim), back);
        equal(&x, &wx, "rotate");
    }
    let (mut x, mut wx) = (draw::<N>(1, ROWS, COLS), wide(&draw(1, ROWS, COLS)));
    let dropout = Dropout::new(0.3, 1, 2, "x");
    cpu.dropout(x.view_mut(), &all, 0, &dropout);
    f32s.dropout(wx.view_mut(), &all, 0, &dropout);
    equal(&x, &wx, "dropout");
}

/// Kills: statistics in narrow numbers, a gradient rounded before the residual path's is added to it.
fn norms_round_once_and_keep_wide_statistics<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let ([x, dy, skip], [wx, wdy, wskip]) = inputs::<N, 3>(ROWS, COLS);
    let ([gain, bias], [wgain, wbias]) = inputs::<N, 2>(1, COLS);
    let new = |cols| (filled(ROWS, cols, N::ZERO), filled(ROWS, cols, 0.0));
    let ((mut y, mut wy), (mut dx, mut wdx)) = (new(COLS), new(COLS));
    let stats = || [1, 2].map(|cols| filled(ROWS, cols, 0.0f32));
    let ([mut r, mut s], [mut wr, mut ws]) = (stats(), stats());
    let sums = || [(); 3].map(|()| filled(1, COLS, 0.5f32));
    let ([mut dg, mut dgain, mut dbias], [mut wdg, mut wdgain, mut wdbias]) = (sums(), sums());
    cpu.rms_norm(y.view_mut(), r.view_mut(), x.view(), gain.view(), 0.01);
    f32s.rms_norm(wy.view_mut(), wr.view_mut(), wx.view(), wgain.view(), 0.01);
    equal(&y, &wy, "rms norm");
    same(&r, &wr, "1/rms");
    cpu.layer_norm(y.view_mut(), s.view_mut(), x.view(), gain.view(), bias.view(), 0.01);
    f32s.layer_norm(wy.view_mut(), ws.view_mut(), wx.view(), wgain.view(), wbias.view(), 0.01);
    equal(&y, &wy, "layer norm");
    same(&s, &ws, "mean and 1/deviation");
    for (skip, wskip) in [(None, None), (Some(skip.view()), Some(wskip.view()))] {
        let (r, wr, s, ws, gain, wgain) =
            (r.view(), wr.view(), s.view(), ws.view(), gain.view(), wgain.view());
        cpu.rms_norm_backward(dx.view_mut(), dg.view_mut(), x.view(), r, gain, dy.view(), skip);
        f32s.rms_norm_backward(wdx.view_mut(), wdg.view_mut(), wx.view(), wr, wgain, wdy.view(), wskip);
        equal(&dx, &wdx, "dx of rms norm");
        same(&dg, &wdg, "dgain of rms norm");
        let [to, wto] =
            [[&mut dgain, &mut dbias], [&mut wdgain, &mut wdbias]].map(|to| to.map(Wide::view_mut));
        cpu.layer_norm_backward(dx.view_mut(), to, x.view(), s, gain, dy.view(), skip);
        f32s.layer_norm_backward(wdx.view_mut(), wto, wx.view(), ws, wgain, wdy.view(), wskip);
        equal(&dx, &wdx, "dx of layer norm");
        same(&dgain, &wdgain, "dgain of layer norm");
        same(&dbias, &wdbias, "dbias of layer norm");
    }
}

/// Keys that fill several blocks, and few that are not laid out. Kills: scores or weights that are rounded,
/// an output rounded before it is divided, scratch that is too small.
fn attention_rounds_once<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let heads = Heads::new(4, 2, 6);
    for (mask, len) in [(Mask::Causal, 300), (Mask::Window { size: 40, sinks: 3 }, 290), (Mask::All, 9)] {
        let dropout = (len == 300).then(|| Dropout::new(0.1, 1, 2, "x"));
        let attend = Attend { dropout, ..Attend::of(heads, mask) };
        let last = Segment { position: len - 1, ..tokens(len, 1, 1) };
        let spans =
            [tokens(0, len, 0), last].map(|query| Span { query, key: tokens(0, len, query.sequence) });
        let [first, spans] = [index(spans[..1].to_vec()), index(spans.to_vec())];
        let ([q, d_o, mut o, mut dq], [wq, wd_o, mut wo, mut wdq]) = inputs::<N, 4>(len + 1, 24);
        let ([k, v, mut dk, mut dv], [wk, wv, mut wdk, mut wdv]) = inputs::<N, 4>(len, 12);
        let (qkv, wqkv) = (
            || Qkv { q: q.view(), k: k.view(), v: v.view() },
            || Qkv { q: wq.view(), k: wk.view(), v: wv.view() },
        );
        let scratch = |n| filled(1, n, f32::NAN);
        let (mut room, mut wroom) = (
            scratch(Cpu::<N>::attention_scratch(heads, len)),
            scratch(Cpu::<f32>::attention_scratch(heads, len)),
        );
        assert_eq!(
            room.len() - wroom.len(),
            2 * len * 6,
            "room for one head's keys and values in wide numbers"
        );
        let [mut lse, mut wlse, mut delta, mut wdelta, mut sum] =
            [(); 5].map(|()| filled(len + 1, 4, 0.0f32));
        cpu.attention(&attend, &spans, qkv(), o.view_mut(), lse.view_mut(), room.view_mut());
        f32s.attention(&attend, &spans, wqkv(), wo.view_mut(), wlse.view_mut(), wroom.view_mut());
        equal(&o, &wo, "attention");
        same(&lse, &wlse, "log-sum-exp");
        let (mut max, mut out) = (filled(len + 1, 4, f32::NEG_INFINITY), filled(len + 1, 24, 0.0f32));
        let run = RunningSoftmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
        cpu.attention_block(&attend, &spans, qkv(), run, room.view_mut());
        let run = RunningSoftmax { out: out.view_mut(), max: max.view_mut(), sum: sum.view_mut() };
        cpu.attention_finish(heads, dq.view_mut(), run);
        assert_eq!(read(&dq), read(&o), "carried and at once");
        same(&max, &lse, "carried and at once");
        cpu.fill(dq.view_mut(), N::ZERO);
        f32s.fill(wdq.view_mut(), 0.0);
        cpu.attention_delta(heads, delta.view_mut(), o.view(), d_o.view());
        f32s.attention_delta(heads, wdelta.view_mut(), wide(&o).view(), wd_o.view());
        same(&delta, &wdelta, "delta");
        // One text: what is added twice is rounded twice.
        let mut in_wide = [&dq, &dk, &dv].map(wide);
        let (saved, to) = ((lse.view(), delta.view()), [dq.view_mut(), dk.view_mut(), dv.view_mut()]);
        cpu.attention_backward(&attend, &first, qkv(), saved, d_o.view(), to, room.view_mut());
        let to = [wdq.view_mut(), wdk.view_mut(), wdv.view_mut()];
        f32s.attention_backward(&attend, &first, wqkv(), saved, wd_o.view(), to, wroom.view_mut());
        let (saved, to) = ((lse.view(), delta.view()), in_wide.each_mut().map(|x| x.view_mut()));
        cpu.attention_block_backward(&attend, &first, qkv(), saved, d_o.view(), to, room.view_mut());
        let three = [("dq", &dq, &wdq), ("dk", &dk, &wdk), ("dv", &dv, &wdv)];
        for ((what, seen, wanted), in_wide) in three.into_iter().zip(&in_wide) {
            equal(seen, wanted, what);
            same(in_wide, wanted, what);
            let mut rounded = filled(seen.rows(), seen.cols(), N::ZERO);
            cpu.narrow(rounded.view_mut(), in_wide.view());
            equal(&rounded, wanted, what);
        }
    }
}

/// Kills: a probability rounded before its target's 1 is taken away, sums of a row in narrow numbers.
fn loss_and_embedding_round_once<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let ids = |ids: &[u32]| Index::<Host>::new(&Host::default(), ids.len(), ids.iter().copied());
    let (targets, slice) = (ids(&[3, IGNORED, 0, 69, 12, 5, 3]), RowShard { first: 0, len: COLS });
    let ([x, dy], [wx, wdy]) = inputs::<N, 2>(ROWS, COLS);
    for smoothing in [0.0, 0.25] {
        let terms = LossTerms { mean_over: MeanOver::of(6), smoothing, z: 0.01, vocabulary: COLS, cap: None };
        let state = || (filled(ROWS, 1, 0.0f32), filled(ROWS, 3, 0.0f32));
        let ((mut m, mut sums), (mut wm, mut wsums)) = (state(), state());
        cpu.row_stab(m.view_mut(), x.view());
        f32s.row_stab(wm.view_mut(), wx.view());
        same(&m, &wm, "stabiliser");
        cpu.row_sums(sums.view_mut(), x.view(), m.view(), &targets, slice);
        f32s.row_sums(wsums.view_mut(), wx.view(), wm.view(), &targets, slice);
        same(&sums, &wsums, "sums");
        let (mut d, mut wd) = (draw::<N>(1, ROWS, COLS), wide(&draw(1, ROWS, COLS)));
        cpu.cross_entropy_backward(d.view_mut(), m.view(), &targets, slice, &terms);
        f32s.cross_entropy_backward(wd.view_mut(), wm.view(), &targets, slice, &terms);
        equal(&d, &wd, "gradient of the logits");
    }
    let [mut loss, mut wloss] = [(); 2].map(|()| filled(1, 1, 0.0f32));
    let (mut d, mut wd) = (draw::<N>(1, ROWS, COLS), wide(&draw(1, ROWS, COLS)));
    cpu.mean_square(loss.view_mut(), d.view_mut(), dy.view(), MeanOver::of(500));
    f32s.mean_square(wloss.view_mut(), wd.view_mut(), wdy.view(), MeanOver::of(500));
    same(&loss, &wloss, "mean square");
    equal(&d, &wd, "its gradient");
    let (mut y, mut wy) = (filled(ROWS, COLS, N::ZERO), filled(ROWS, COLS, 0.0));
    let (table, ids) = (draw::<N>(7, 20, COLS), ids(&[3, 19, 0, 4, 3, 5, 3]));
    let slice = RowShard { first: 2, len: 17 };
    cpu.embed(y.view_mut(), table.view(), &ids, slice);
    f32s.embed(wy.view_mut(), wide(&table).view(), &ids, slice);
    equal(&y, &wy, "embed");
    let [mut d, mut wd] = [(); 2].map(|()| filled(20, COLS, 0.125f32));
    cpu.embed_backward(d.view_mut(), dy.view(), &ids, slice);
    f32s.embed_backward(wd.view_mut(), wdy.view(), &ids, slice);
    same(&d, &wd, "gradient of the table");
}

/// Kills: a master that is rounded, a value that is moved beside its master, moments in narrow numbers.
fn optimizers_move_the_master_and_round_it_once<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let start = draw::<N>(1, ROWS, COLS);
    let constants = [1e-3, 0.9, 0.95, 1e-8, 0.1];
    let (factor, zero) = (filled(1, 1, 0.7f32), || filled(ROWS, COLS, 0.0f32));
    for rule in ["sgd", "adamw", "lion"] {
        let (mut w, mut free) = (draw::<N>(1, ROWS, COLS), draw::<N>(1, ROWS, COLS));
        let (mut master, mut truth) = (wide(&start), wide(&start));
        let mut moments = [(); 3].map(|()| [zero(), zero()]);
        for step in 1..=5 {
            let (g, before) = (draw::<f32>(10 + step as u64, ROWS, COLS), wide::<N>(&free));
            let (g, factor) = (g.view(), factor.view());
            let [a, b, c] = moments.each_mut().map(|[m, v]| (m.view_mut(), v.view_mut()));
            let mut alone = before;
            if rule == "adamw" {
                cpu.adamw(w.view_mut(), Some(master.view_mut()), a, g, factor, (constants, step));
                f32s.adamw(truth.view_mut(), None, b, g, factor, (constants, step));
                cpu.adamw(free.view_mut(), None, c, g, factor, (constants, step));
            } else if rule == "lion" {
                let constants = [1e-3, 0.9, 0.95, 0.1];
                cpu.lion(w.view_mut(), Some(master.view_mut()), a.0, g, factor, constants);
                f32s.lion(truth.view_mut(), None, b.0, g, factor, constants);
                cpu.lion(free.view_mut(), None, c.0, g, factor, constants);
            } else {
                cpu.sgd(w.view_mut(), Some(master.view_mut()), g, factor, [1e-3, 0.0]);
                f32s.sgd(truth.view_mut(), None, g, factor, [1e-3, 0.0]);
                cpu.sgd(free.view_mut(), None, g, factor, [1e-3, 0.0]);
                f32s.sgd(alone.view_mut(), None, g, factor, [1e-3, 0.0]);
                equal(&free, &alone, "without a master");
            }
            same(&master, &truth, "master");
            equal(&w, &truth, "value");
        }
        assert_ne!(read(&w), read(&free), "small steps are lost without a master");
    }
}

/// Small integers, which both dtypes sum exactly. Kills: a sum rounded where it is asked for as it is.
fn wide_products_are_not_rounded<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let (cpu, f32s) = cpus::<N>();
    let integers = |rows, cols| matrix(rows, cols, |i| N::from_f64(((i * 7919) % 201) as f64));
    for (m, n, k) in [(1, 40, 33), (9, 70, 130), (70, 9, 300)] {
        let (a, b) = (integers(m, k), integers(k, n));
        let [mut seen, mut wanted] = [(); 2].map(|()| filled(m, n, 0.5f32));
        let mut narrow = filled(m, n, N::ZERO);
        cpu.gemm_wide(seen.view_mut(), a.view(), b.view(), Write::Add);
        f32s.gemm(wanted.view_mut(), wide(&a).view(), wide(&b).view(), Write::Add);
        same(&seen, &wanted, "wide product");
        cpu.gemm(narrow.view_mut(), a.view(), b.view(), Write::Set);
        f32s.gemm(wanted.view_mut(), wide(&a).view(), wide(&b).view(), Write::Set);
        equal(&narrow, &wanted, "product");
    }
}

/// Kills: an order of another number's.
fn the_first_of_narrow_numbers_are_those_of_wide_ones<N: Scalar<Wide = f32>>()
where
    Cpu<N>: Kernels16<N>,
{
    let ((cpu, f32s), x) = (cpus::<N>(), draw::<N>(1, 3, 300));
    let new = || Index::<Host>::new(&Host::default(), 15, std::iter::repeat_n(0, 15));
    let (mut y, mut wy, mut at, mut wat) = (filled(3, 5, N::ZERO), filled(3, 5, 0.0), new(), new());
    cpu.top_k(y.view_mut(), &mut at, x.view());
    f32s.top_k(wy.view_mut(), &mut wat, wide(&x).view());
    equal(&y, &wy, "values");
    assert_eq!(at.words(), wat.words());
}
