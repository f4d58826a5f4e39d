//! Embedding, loss and logits: values and gradients against definitions.
use crate::proof::{Matrix, assert_close, assert_derivative, draw, filled, matrix, read, under_two_keys};
use kernels::{CpuScalar, Kernels, LossTerms, MeanOver, RowShard};
use tensor::{Cpu, Dual, F61, Host, IGNORED, Index, Key, Scalar};

const V: usize = 7;
const TARGETS: [u32; 5] = [3, IGNORED, 0, 6, 3];
const PLAIN: LossTerms =
    LossTerms { mean_over: MeanOver::of(9), smoothing: 0.0, z: 0.0, vocabulary: V, cap: None };
const ALL: [LossTerms; 5] = [
    PLAIN,
    LossTerms { smoothing: 0.25, ..PLAIN },
    LossTerms { z: 0.5, ..PLAIN },
    LossTerms { smoothing: 0.25, z: 0.5, ..PLAIN },
    LossTerms { smoothing: 0.25, z: 0.5, cap: Some(1.5), ..PLAIN },
];

fn index(ids: &[u32]) -> Index<Host> {
    Index::new(&Host::default(), ids.len(), ids.iter().copied())
}

/// Loss, log-sum-exps and gradient by the ranks' slices, joined as ranks join them, of logits before their
/// cap.
fn split<S: CpuScalar>(
    logits: &Matrix<S>,
    targets: &[u32],
    lens: &[usize],
    terms: &LossTerms,
) -> [Matrix<S>; 3]
where
    Cpu<S>: Kernels<Elem = S, Place = Host, Wide = Cpu<S>>,
{
    let (cpu, rows, mut first) = (Cpu::<S>::default(), logits.rows(), 0);
    let slice = |&len: &usize| {
        first += len;
        RowShard { first: first - len, len }
    };
    let slices: Vec<RowShard> = lens.iter().map(slice).collect();
    let capped = || {
        let mut capped = logits.beside(rows, logits.cols());
        cpu.copy(capped.view_mut(), logits.view());
        terms.cap.iter().for_each(|cap| cpu.cap(capped.view_mut(), *cap));
        capped
    };
    let (logits, mut d) = (capped(), capped());
    let share = |s: RowShard| logits.view().take_cols(s.first, s.len);
    let (mut m, wide) = (filled(rows, 1, S::NEG_INF), if terms.smoothing == 0.0 { 2 } else { 3 });
    for &s in &slices {
        let mut own = filled(rows, 1, S::ZERO);
        cpu.row_stab(own.view_mut(), share(s));
        let joined: Vec<S> = read(&m).into_iter().zip(read(&own)).map(|(a, b)| S::stab(a, b)).collect();
        m.write(&mut |i| joined[i]);
    }
    let (mut sums, targets) = (filled(rows, wide, S::ZERO), index(targets));
    for &s in &slices {
        let mut own = filled(rows, wide, S::ONE);
        cpu.row_sums(own.view_mut(), share(s), m.view(), &targets, s);
        cpu.add(sums.view_mut(), own.view());
    }
    let mut loss = filled(1, 1, S::ONE);
    cpu.cross_entropy(loss.view_mut(), m.view_mut(), sums.view(), &targets, terms);
    for &s in &slices {
        let share = d.view_mut().take_cols(s.first, s.len);
        cpu.cross_entropy_backward(share, m.view(), &targets, s, terms);
    }
    [loss, m, d]
}

/// Ids of 6 rows of which rows 2 to 4 are here; some come twice, one is ignored. Kills: a slice off by one,
/// rows of elsewhere that are not zero, an id that comes twice counted once, a gradient that was there lost.
#[test]
fn embedding_takes_and_gives_the_rows_of_its_slice() {
    let _key = Key(1).enter();
    let (ids, here, cpu) =
        (vec![2, 5, 4, 1, 4, IGNORED, 2], RowShard { first: 2, len: 3 }, Cpu::<F61>::default());
    let (table, dy) = (draw::<F61>(1, 3, 5), draw::<F61>(2, 7, 5));
    let (mut y, mut dtable) = (draw::<F61>(3, 7, 5), draw::<F61>(4, 3, 5));
    let mut wanted = [vec![F61::ZERO; 7 * 5], read(&dtable)];
    for (i, &id) in ids.iter().enumerate().filter(|(_, id)| (2..5).contains(*id)) {
        for c in 0..5 {
            let at = (id as usize - 2) * 5 + c;
            wanted[0][i * 5 + c] = read(&table)[at];
            wanted[1][at] += read(&dy)[i * 5 + c];
        }
    }
    let ids = index(&ids);
    cpu.embed(y.view_mut(), table.view(), &ids, here);
    cpu.embed_backward(dtable.view_mut(), dy.view(), &ids, here);
    assert_eq!([read(&y), read(&dtable)], wanted);
}

/// c·tanh(x/c) by its definition.
fn cap(x: F61, c: f64) -> F61 {
    let c = F61::from_f64(c);
    c * (x * c.inv()).tanh()
}

/// Kills: ε of the target's logit alone, V of one rank, λ over all rows, an ignored row that counts, a rank
/// without columns that says something, a mean over what is at hand.
#[test]
fn cross_entropy_equals_its_formula_exactly() {
    under_two_keys(|| {
        let x = draw::<F61>(1, 5, V);
        for terms in ALL {
            let (e, z) = (F61::from_f64(terms.smoothing), F61::from_f64(terms.z));
            let (mut loss, mut all) = (F61::ZERO, Vec::new());
            for (i, &target) in TARGETS.iter().enumerate() {
                let x: Vec<F61> =
                    x.view().row(i).iter().map(|&x| terms.cap.map_or(x, |c| cap(x, c))).collect();
                let (one, sum) = x.iter().fold((F61::ZERO, F61::ZERO), |(one, sum), &x| {
                    (one + F61::exp_sub(x, F61::ZERO), sum + x)
                });
                let lse = F61::lse(F61::ZERO, one);
                all.push(lse);
                if target != IGNORED {
                    let own = (F61::ONE - e) * x[target as usize];
                    loss += lse - own - e * F61::from_usize(V).inv() * sum + z * lse * lse;
                }
            }
            for lens in [&[V][..], &[3, 4], &[0, 2, 5, 0]] {
                let [seen, lse, _] = split(&x, &TARGETS, lens, &terms);
                assert_eq!(read(&seen), [loss * F61::from_usize(9).inv()], "{lens:?} {terms:?}");
                assert_eq!(read(&lse), all);
            }
        }
    });
}

/// Kills: λ for 2λ, a softmax without its λ, ε/V on the target only, an ignored row with a gradient.
#[test]
fn cross_entropy_backward_equals_the_derivative_exactly() {
    under_two_keys(|| {
        let (x, moving) = (draw::<F61>(1, 5, V), draw::<Dual<F61>>(1, 5, V));
        for terms in ALL {
            for lens in [&[V][..], &[0, 2, 5, 0]] {
                let ([_, _, d], [loss, ..]) =
                    (split(&x, &TARGETS, lens, &terms), split(&moving, &TARGETS, lens, &terms));
                assert_derivative(&filled(1, 1, F61::ONE), &loss, &[(&moving, &d)]);
                assert_eq!(d.view().row(1), [F61::ZERO; V], "ignored");
            }
        }
    });
}

/// Kills: a mean over the rows, or over what is at hand; a gradient without its 2, or of the other sign; 1/0.
#[test]
fn mean_squares_equal_their_formula_and_derivative_exactly() {
    fn run<S: CpuScalar>(over: MeanOver) -> [Matrix<S>; 2]
    where
        Cpu<S>: Kernels<Elem = S, Place = Host, Wide = Cpu<S>>,
    {
        let (mut loss, mut d) = (filled(1, 1, S::ONE), draw::<S>(1, 3, V));
        let y = matrix(3, V, |i| S::from_usize(31 * i % 17));
        Cpu::<S>::default().mean_square(loss.view_mut(), d.view_mut(), y.view(), over);
        [loss, d]
    }
    under_two_keys(|| {
        let x = draw::<F61>(1, 3, V);
        let far = read(&x).into_iter().enumerate().map(|(i, x)| x - F61::from_usize(31 * i % 17));
        let (far, share) = (far.collect::<Vec<_>>(), F61::from_usize(50).inv());
        let [loss, d] = run::<F61>(MeanOver::of(50));
        assert_eq!(read(&loss), [far.iter().fold(F61::ZERO, |sum, &far| sum + far * far) * share]);
        assert_eq!(read(&d), far.iter().map(|&far| far * share + far * share).collect::<Vec<_>>());
        let moving = draw::<Dual<F61>>(1, 3, V);
        assert_derivative(&filled(1, 1, F61::ONE), &run(MeanOver::of(50))[0], &[(&moving, &d)]);
        assert_eq!(run::<F61>(MeanOver::of(0)).map(|x| read(&x)), [vec![F61::ZERO], vec![F61::ZERO; 3 * V]]);
    });
}

/// A step of padding only is a mean over nothing. Kills: a division by zero.
#[test]
fn a_loss_of_no_targets_is_zero() {
    under_two_keys(|| {
        for terms in ALL.map(|terms| LossTerms { mean_over: MeanOver::of(0), ..terms }) {
            let [loss, _, d] = split(&draw::<F61>(1, 2, V), &[IGNORED; 2], &[3, 4], &terms);
            assert_eq!((read(&loss), read(&d)), (vec![F61::ZERO], vec![F61::ZERO; 2 * V]));
        }
    });
    let [loss, ..] =
        split(&draw::<f32>(1, 1, V), &[IGNORED], &[V], &LossTerms { mean_over: MeanOver::of(0), ..PLAIN });
    assert_eq!(read(&loss), [0.0]);
}

/// Kills: a loss or a gradient that is not scaled, or scaled twice.
#[test]
fn a_scaled_loss_and_its_gradient_are_multiples() {
    under_two_keys(|| {
        let scale = F61::from_usize(1 << 16);
        let scaled = |x: &Matrix<F61>| read(x).into_iter().map(|x| scale * x).collect::<Vec<_>>();
        for terms in ALL {
            let of = |log2| {
                let mean_over = MeanOver { log2, ..terms.mean_over };
                split(&draw::<F61>(1, 5, V), &TARGETS, &[3, 4], &LossTerms { mean_over, ..terms })
            };
            let ([loss, lse, d], [scaled_loss, same_lse, scaled_d]) = (of(0), of(16));
            assert_eq!((read(&scaled_loss), read(&scaled_d)), (scaled(&loss), scaled(&d)), "{terms:?}");
            assert_eq!(read(&same_lse), read(&lse));
        }
        let of = |log2| {
            let (mut loss, mut d, y) =
                (filled(1, 1, F61::ONE), draw::<F61>(1, 3, V), matrix(3, V, F61::from_usize));
            let over = MeanOver { targets: 50, log2 };
            Cpu::<F61>::default().mean_square(loss.view_mut(), d.view_mut(), y.view(), over);
            [loss, d]
        };
        assert_eq!(of(16).map(|x| read(&x)), of(0).map(|x| scaled(&x)));
    });
}

/// Rows longer than the lanes. Kills: a remainder lost, 1/V or λ that is rounded away.
#[test]
fn single_precision_equals_double() {
    for terms in ALL.map(|terms| LossTerms { vocabulary: 100, ..terms }) {
        let (single, double) = (draw(1, 5, 100), draw(1, 5, 100));
        let single = split::<f32>(&single, &TARGETS, &[37, 63], &terms);
        let double = split::<f64>(&double, &TARGETS, &[37, 63], &terms);
        for (single, double) in single.iter().zip(&double) {
            assert_close(single, double, 1e-6);
        }
    }
}

/// Logits of ±200 in f32, by hand: the loss is the distance to the largest, the gradient ±1 over the tokens.
#[test]
fn logits_of_two_hundred_do_not_overflow() {
    let rows = [[200.0, -200.0, 0.0], [-200.0, -200.0, -200.0]];
    let logits = matrix(2, 3, |i| rows[i / 3][i % 3]);
    let terms = LossTerms { mean_over: MeanOver::of(2), vocabulary: 3, ..PLAIN };
    let [loss, _, d] = split::<f32>(&logits, &[2, 1], &[3], &terms);
    let wanted = 100.0 + 3.0f32.ln() / 2.0;
    assert!((read(&loss)[0] - wanted).abs() < 1e-3, "{:?} {wanted}", read(&loss));
    let third = 1.0 / 6.0;
    assert_close(&d, &matrix(2, 3, |i| [0.5, 0.0, -0.5, third, third - 0.5, third][i]), 1e-4);
}
