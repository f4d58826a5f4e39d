//! Checks of `loss.cu`.
use super::{Side, SideKernels, check, draw, whole};
use kernels::{LossTerms, MeanOver, RowShard};
use tensor::{IGNORED, mix};

/// Draws `n` ids below `most`; some are ignored.
fn drawn(n: usize, most: usize) -> Vec<u32> {
    let id = |i: usize| if i % 11 == 5 { IGNORED } else { (mix(i as u64) % most as u64) as u32 };
    (0..n).map(id).collect()
}

/// Columns, columns of the whole matrix, and the first column.
const SHAPES: [[usize; 3]; 5] = [[64, 64, 0], [24, 40, 8], [61, 70, 3], [1, 4, 2], [1100, 1104, 0]];

/// Returns every shape with vocabulary shards that begin at 0 and elsewhere.
fn sliced(elsewhere: usize) -> impl Iterator<Item = ([usize; 3], usize)> {
    SHAPES.into_iter().flat_map(move |shape| [(shape, 0), (shape, elsewhere)])
}

/// Checks ids of other vocabulary shards, on both sides, and ignored ones: they give zeros. y has one row
/// more.
pub(crate) fn embed<D: SideKernels>(c: &mut Side<D>) {
    for ([cols, wide, at], first) in sliced(7) {
        let all = c.words(&drawn(50, 30));
        let [table, mut y] = [(1, 13), (2, 51)].map(|(seed, rows)| c.of([rows, cols, wide, at], whole(seed)));
        check!(c.embed(y.to(), table.of(), &all, RowShard { first, len: 13 }) => y 0.0);
    }
}

/// Checks sums bit for bit as f32 gives them in the order of the tokens. Ids occur once, often, more often
/// than a block holds, and not at all; the table has more rows than there are blocks.
pub(crate) fn embed_backward<D: SideKernels>(c: &mut Side<D>) {
    let often: Vec<u32> = (0..5000).map(|i| if i % 5 > 0 { 2 } else { i }).collect();
    let lists = [
        (drawn(50, 30), [7, 13]),
        (drawn(300, 300), [0, 280]),
        (often, [1, 5]),
        (drawn(9, 4), [9, 4]),
        (vec![], [0, 4]),
    ];
    for (list, [first, len]) in lists {
        for &[cols, wide, at] in if list.len() > 50 { &SHAPES[2..3] } else { &SHAPES[..] } {
            let dy = c.of([list.len(), cols, wide, at], draw(1));
            let mut dtable = c.wide([len, cols, wide + 1, at + 1], draw(2));
            let (mut wanted, d) = (dtable.read(), dy.read());
            for (i, &id) in list.iter().enumerate() {
                let row = (id as usize).wrapping_sub(first);
                for j in (0..cols).filter(|_| row < len) {
                    let sum = &mut wanted[row * (wide + 1) + at + 1 + j];
                    *sum = f64::from(*sum as f32 + d[i * wide + at + j] as f32);
                }
            }
            check!(c.embed_backward(dtable.to(), dy.of(), &c.words(&list), RowShard { first, len }));
            c.bits("the embedding's gradient", &if c.host { wanted } else { dtable.read() });
        }
    }
}

/// Checks vocabulary shards at odd places, and one without columns; targets here, elsewhere, and ignored.
pub(crate) fn sums<D: SideKernels>(c: &mut Side<D>) {
    for ([cols, wide, at], first) in sliced(9).chain([([0, 3, 1], 0), ([0, 3, 1], 9)]) {
        let (targets, slice) = (c.words(&drawn(40, cols + 20)), RowShard { first, len: cols });
        let logits = c.of([40, cols, wide, at], draw(1));
        let [mut m, mut two, mut three] = [1, 2, 3].map(|n| c.wide([40, n, n + 1, 1], draw(n as u64 + 1)));
        check!(c.row_stab(m.to(), logits.of()) => m 0.0);
        let m = c.wide([40, 1, 2, 1], |i| 2.0 + (i % 5) as f64 / 4.0);
        for sums in [&mut two, &mut three] {
            check!(c.row_sums(sums.to(), logits.of(), m.of(), &targets, slice));
            c.close("sums of logits", sums, 4.0); // of some hundreds of terms
        }
    }
}

const PLAIN: LossTerms =
    LossTerms { mean_over: MeanOver::of(40), smoothing: 0.0, z: 0.0, vocabulary: 70, cap: None };
const TERMS: [LossTerms; 7] = [
    PLAIN,
    LossTerms { smoothing: 0.25, ..PLAIN },
    LossTerms { z: 0.5, ..PLAIN },
    LossTerms { cap: Some(1.5), ..PLAIN },
    LossTerms { smoothing: 0.1, z: 0.01, ..PLAIN },
    LossTerms { mean_over: MeanOver { targets: 40, log2: 2 }, ..PLAIN },
    LossTerms { mean_over: MeanOver::of(0), ..PLAIN },
];

/// Checks fewer rows than threads, and more, and none.
pub(crate) fn cross_entropy<D: SideKernels>(c: &mut Side<D>) {
    for (terms, rows) in TERMS.iter().flat_map(|terms| [0, 1, 40, 1500].map(|rows| (terms, rows))) {
        let targets = c.words(&drawn(rows, 70));
        let terms = LossTerms {
            mean_over: MeanOver { targets: terms.mean_over.targets * rows / 40, ..terms.mean_over },
            ..*terms
        };
        let n = if terms.smoothing == 0.0 { 2 } else { 3 };
        let sums = c.of([rows, n, 4, 1], |i| 0.5 + (i * 7 % 64) as f64 / 8.0);
        let [mut loss, mut m] = [[1, 1, 3, 1], [rows, 1, 4, 2]].map(|shape| c.of(shape, draw(1)));
        // The card's bf16 is squared after it is rounded.
        check!(c.cross_entropy(loss.to(), m.to(), sums.of(), &targets, &terms) => m 1.0, loss 4.0);
    }
}

pub(crate) fn cross_entropy_backward<D: SideKernels>(c: &mut Side<D>) {
    for (terms, ([cols, wide, at], first)) in
        TERMS.iter().flat_map(|terms| sliced(9).map(move |shape| (terms, shape)))
    {
        let (targets, slice) = (c.words(&drawn(40, cols + 20)), RowShard { first, len: cols });
        let mut logits = c.of([40, cols, wide, at], draw(1));
        let lse = c.wide([40, 1, 2, 1], |i| (i % 9) as f64 / 4.0);
        let terms = LossTerms {
            mean_over: MeanOver { targets: terms.mean_over.targets / 8, ..terms.mean_over },
            ..*terms
        };
        check!(c.cross_entropy_backward(logits.to(), lse.of(), &targets, slice, &terms) => logits 2.0);
    }
}

/// Checks means over more elements than are here, and over none. Integers over a power of two are exact.
pub(crate) fn mean_square<D: SideKernels>(c: &mut Side<D>) {
    let shapes = SHAPES.into_iter().flat_map(|shape| [9, 200, 0].map(|rows| (rows, shape)));
    for ((rows, [cols, wide, at]), numbers) in shapes.flat_map(|shape| [0, 32, 4096].map(|n| (shape, n))) {
        let over = MeanOver { targets: numbers, log2: (numbers % 5) as u32 };
        let [mut x, y] = [1, 2].map(|seed| c.of([rows, cols, wide, at], whole(seed)));
        let mut loss = c.wide([1, 1, 3, 1], draw(3));
        check!(c.mean_square(loss.to(), x.to(), y.of(), over) => loss 0.0, x 0.0);
    }
}
