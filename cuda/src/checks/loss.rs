//! Checks of `loss.cu`.
use super::{Both, Check, Number, both, on_both, read, refs, same, words};
use crate::gpu::Gpu;
use kernels::{Kernels, LossTerms, Slice};
use tensor::{Device, IGNORED, mix};

pub(crate) const ALL: &[Check] = &[
    ("embedding", both!(embed)),
    ("embedding backward", both!(embed_backward)),
    ("sums of logits", both!(sums)),
    ("cross-entropy", both!(cross_entropy)),
    ("cross-entropy backward", both!(cross_entropy_backward)),
    ("mean square", both!(mean_square)),
];

/// So many ids below `most`; some are ignored.
fn drawn(n: usize, most: u32) -> Vec<u32> {
    let id = |i: usize| if i % 11 == 5 { IGNORED } else { (mix(i as u64) % u64::from(most)) as u32 };
    (0..n).map(id).collect()
}

/// Columns, columns of what they are a window of, and where it begins.
const SHAPES: [[usize; 3]; 5] = [[64, 64, 0], [24, 40, 8], [61, 70, 3], [1, 4, 2], [1100, 1104, 0]];

/// Ids of elsewhere, on both sides, and ignored ones become zeros; y has a row more.
fn embed<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for ([cols, whole, at], first) in SHAPES.into_iter().flat_map(|shape| [(shape, 0), (shape, 7)]) {
        let (all, slice) = (words(gpu, &drawn(50, 30)), Slice { first, len: 13 });
        let (table, mut y) = (Both::<S>::whole(gpu, 1, 13, whole), Both::<S>::whole(gpu, 2, 51, whole));
        on_both!(gpu: S, embed(y.cut_mut(at, cols), table.cut(at, cols), refs(&all), same(slice)));
        y.equal("an embedding")?;
    }
    Ok(())
}

/// Sums bit for bit as f32 gives them in the order of the tokens: ids that are there once, often, more often than a block holds,
/// and not at all; more of the table's rows than blocks.
fn embed_backward<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let often: Vec<u32> = (0..5000).map(|i| if i % 5 > 0 { 2 } else { i }).collect();
    let lists = [
        (drawn(50, 30), [7, 13]),
        (drawn(300, 300), [0, 280]),
        (often, [1, 5]),
        (drawn(9, 4), [9, 4]),
        (vec![], [0, 4]),
    ];
    for (list, [first, len]) in lists {
        for [cols, whole, at] in if list.len() > 50 { &SHAPES[2..3] } else { &SHAPES[..] }.iter().copied() {
            let (dy, mut dtable) =
                (Both::<S>::draw(gpu, 1, list.len(), whole), Both::<f32>::draw(gpu, 2, len, whole + 1));
            let (mut wanted, d) = (read(&dtable.gpu), read(&dy.gpu));
            for (i, &id) in list.iter().enumerate() {
                let row = (id as usize).wrapping_sub(first);
                for j in (0..cols).filter(|_| row < len) {
                    wanted[row * (whole + 1) + at + 1 + j] += d[i * whole + at + j].to_f64() as f32;
                }
            }
            let to = dtable.gpu.view_mut().take_cols(at + 1, cols);
            S::On::on(gpu).embed_backward(
                to,
                dy.gpu.view().take_cols(at, cols),
                &words(gpu, &list).0,
                Slice { first, len },
            );
            let seen = read(&dtable.gpu);
            if let Some(i) = (0..seen.len()).find(|&i| seen[i].to_bits() != wanted[i].to_bits()) {
                let (row, col) = (i / (whole + 1), i % (whole + 1));
                return Err(format!(
                    "the embedding's gradient in {}: row {row}, column {col} is {}, wanted {}",
                    S::NAME,
                    seen[i],
                    wanted[i]
                ));
            }
        }
    }
    Ok(())
}

/// Of slices at odd places, of one without columns; targets here, elsewhere, and ignored.
fn sums<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for ([cols, whole, at], first) in
        SHAPES.into_iter().chain([[0, 3, 1]]).flat_map(|shape| [(shape, 0), (shape, 9)])
    {
        let (targets, slice) = (words(gpu, &drawn(40, cols as u32 + 20)), Slice { first, len: cols });
        let logits = Both::<S>::draw(gpu, 1, 40, whole);
        let [mut m, mut two, mut three] = [2, 3, 4].map(|n| Both::<f32>::draw(gpu, n as u64, 40, n));
        on_both!(gpu: S, row_stab(m.cut_mut(1, 1), logits.cut(at, cols)));
        m.equal("the largest logit")?;
        let m = Both::<f32>::of(gpu, 40, 2, |i| 2.0 + (i % 5) as f64 / 4.0);
        for (sums, n) in [(&mut two, 2), (&mut three, 3)] {
            on_both!(gpu: S, row_sums(
                sums.cut_mut(1, n), logits.cut(at, cols), m.cut(1, 1), refs(&targets), same(slice)
            ));
            sums.close("sums of logits", 4.0)?; // of some hundreds
        }
    }
    Ok(())
}

const PLAIN: LossTerms = LossTerms { mean_over: 40, smoothing: 0.0, z: 0.0, vocabulary: 70 };
const TERMS: [LossTerms; 5] = [
    PLAIN,
    LossTerms { smoothing: 0.25, ..PLAIN },
    LossTerms { z: 0.5, ..PLAIN },
    LossTerms { smoothing: 0.1, z: 0.01, ..PLAIN },
    LossTerms { mean_over: 0, ..PLAIN },
];

/// Fewer rows than threads, and more; none.
fn cross_entropy<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for (terms, rows) in TERMS.iter().flat_map(|terms| [0, 1, 40, 1500].map(|rows| (terms, rows))) {
        let targets = words(gpu, &drawn(rows, 70));
        let terms = LossTerms { mean_over: terms.mean_over * rows / 40, ..*terms };
        let sums = Both::<S>::of(gpu, rows, 4, |i| 0.5 + (i * 7 % 64) as f64 / 8.0);
        let [mut loss, mut m] = [[3, 1], [4, rows]].map(|[cols, rows]| Both::<S>::draw(gpu, 1, rows, cols));
        let n = if terms.smoothing == 0.0 { 2 } else { 3 };
        on_both!(gpu: S, cross_entropy(
            loss.cut_mut(1, 1), m.cut_mut(2, 1), sums.cut(1, n), refs(&targets), same(&terms)
        ));
        m.close("a log-sum-exp", 1.0)?;
        loss.close("a loss", 4.0)?; // the card's bf16 is squared after it is rounded
    }
    Ok(())
}

fn cross_entropy_backward<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for terms in &TERMS {
        for ([cols, whole, at], first) in SHAPES.into_iter().flat_map(|shape| [(shape, 0), (shape, 9)]) {
            let (targets, slice) = (words(gpu, &drawn(40, cols as u32 + 20)), Slice { first, len: cols });
            let (mut logits, lse) =
                (Both::<S>::draw(gpu, 1, 40, whole), Both::<f32>::of(gpu, 40, 2, |i| (i % 9) as f64 / 4.0));
            let terms = LossTerms { mean_over: terms.mean_over / 8, ..*terms };
            on_both!(gpu: S, cross_entropy_backward(
                logits.cut_mut(at, cols), lse.cut(1, 1), refs(&targets), same(slice), same(&terms)
            ));
            logits.close("the gradient of logits", 2.0)?;
        }
    }
    Ok(())
}

/// Also of more numbers than are at hand, and of none.
fn mean_square<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for (rows, [cols, whole, at]) in
        SHAPES.into_iter().flat_map(|shape| [(9, shape), (200, shape), (0, shape)])
    {
        for numbers in [0, 32, 4096] {
            let (mut x, y) = (Both::<S>::whole(gpu, 1, rows, whole), Both::<S>::whole(gpu, 2, rows, whole));
            let mut loss = Both::<f32>::draw(gpu, 3, 1, 3);
            on_both!(gpu: S, mean_square(
                loss.cut_mut(1, 1), x.cut_mut(at, cols), y.cut(at, cols), same(numbers)
            ));
            loss.equal("a mean square")?; // of whole numbers, over a power of two
            x.equal("the gradient of a mean square")?;
        }
    }

    Ok(())
}
