use super::*;
use crate::card::argument::{Argument, LaunchConfig, LaunchRules, NamedMemory};
use crate::launches::MatrixView;
use crate::launches::rotary::RotaryRules;
use crate::launches::row::RowRules;
use crate::twin;
use std::sync::Arc;

const SHAPE: LaunchConfig = LaunchConfig { blocks: [1; 3], threads: 512, shared: 0 };
const NONE: MatrixView = MatrixView::NONE;

/// A card, unless there is no host twin, and its say.
fn card() -> Option<Arc<Card>> {
    twin::install().map_err(|reason| twin::skipped(&reason)).ok().map(|_| Card::open(0).unwrap())
}
/// A matrix of bf16 somewhere; it is never read.
fn at(at: u64, rows: u32, cols: u32) -> MatrixView {
    MatrixView { at, row_stride: 64, col_stride: 1, rows, cols }
}
fn product(card: &Card, [c, a, b]: [MatrixView; 3], how: u32) -> CardLaunch {
    let bytes = |x: MatrixView| crate::launches::SizedMatrix(x, 2);
    let (c, a, b) = (bytes(c), bytes(a), bytes(b));
    card.kernels.prepare(("gemm_row_hopper_16", "bf16"), SHAPE, &[&c, &a, &b, &how, &NONE]).under(&RowRules)
}
fn copy(card: &Card, to: MatrixView, from: MatrixView) -> CardLaunch {
    card.kernels.prepare(("copy", "bf16"), SHAPE, &[&to, &from])
}
const A: u64 = 1 << 20;
const B: u64 = 2 << 20;
const C: u64 = 3 << 20;
const D: u64 = 4 << 20;

/// Kills: a product that reads its matrix before a kernel that was given that memory has ended, directly
/// before it or further back; one that never reads early; any other kernel that begins early.
#[test]
fn a_product_reads_early_only_what_no_kernel_uses() {
    let Some(card) = card() else { return };
    let [a, b, c] = [at(A, 1, 8), at(B, 8, 64), at(C, 1, 64)];
    let early = |before: &[&CardLaunch]| {
        let mut queue = LaunchQueue::default();
        for launch in before {
            let beside = queue.ordered(&card, (*launch).clone()).1;
            assert_eq!(beside, launch.kernel.0 != "copy");
        }
        let (launch, beside) = queue.ordered(&card, product(&card, [c, a, b], 0));
        assert!(beside);
        launch.argument::<u32>(&card.kernels, 3) == 4
    };
    let (elsewhere, last) = (at(D, 8, 64), at(B + 2 * (7 * 64 + 63) - 64, 1, 8));
    let [to_b, from_b] = [copy(&card, last, elsewhere), copy(&card, elsewhere, b)];
    let other = product(&card, [at(D, 1, 64), a, at(5 << 20, 8, 64)], 0);
    let writes_b = product(&card, [at(B, 1, 64), a, at(5 << 20, 8, 64)], 0);
    let plain = copy(&card, a, elsewhere);
    assert!(early(&[]) && early(&[&plain]) && early(&[&to_b, &plain]));
    assert!(!early(&[&to_b]) && !early(&[&from_b]) && !early(&[&to_b, &other]));
    assert!(!early(&[&writes_b]) && !early(&[&writes_b, &other]) && early(&[&to_b, &plain, &other]));
    let mut unknown = copy(&card, a, elsewhere);
    unknown.touched = None;
    assert!(!early(&[&unknown]) && matches!(0u64.touched(), NamedMemory::Unknown));
}

/// Kills: a launch merged with one that does not read its result, that another block would read too late, or
/// that is no plain product; a launch that is not merged though it could be.
#[test]
fn launches_merge_only_where_nothing_can_tell() {
    let Some(card) = card() else { return };
    let [x, gain, y, r] = [at(A, 1, 64), at(A + 4096, 1, 64), at(C, 1, 64), at(C + 4096, 1, 1)];
    let b = at(B, 64, 64);
    let norm = card
        .kernels
        .prepare(("rms_norm", "bf16"), SHAPE, &[&y, &r, &x, &gain, &0.5f32, &1e-5f32])
        .under(&RowRules);
    let swiglu = card.kernels.prepare(("swiglu", "bf16"), SHAPE, &[&y, &x, &gain]).under(&RowRules);
    let merged = |held: &CardLaunch, next: &CardLaunch| {
        held.rules
            .may_merge(&card.kernels, held)
            .then(|| held.rules.merged(&card.kernels, held, next))
            .flatten()
            .map(|both| both.kernel.0)
    };
    let of = |c, a| product(&card, [c, a, b], 0);
    let z = at(D, 1, 64);
    assert_eq!(merged(&norm, &of(z, y)), Some("gemm_row_normed_16"));
    assert_eq!(merged(&swiglu, &of(z, y)), Some("gemm_row_gated_16"));
    for next in
        [of(z, x), of(x, y), of(gain, y), of(at(A + 64, 1, 64), y), of(z, at(C, 1, 56)), copy(&card, z, y)]
    {
        assert_eq!([merged(&norm, &next), merged(&swiglu, &next)], [None; 2]);
    }
    assert_eq!(merged(&norm, &product(&card, [z, y, b], 2)), None, "a wide product");
    assert!(merged(&norm, &product(&card, [z, y, b], 1)).is_some(), "a product that adds");
    let sum = |to: MatrixView, more: MatrixView| card.kernels.prepare(("add", "bf16"), SHAPE, &[&to, &more]);
    assert_eq!(merged(&of(z, y), &sum(z, x)), Some("gemm_row_hopper_16"));
    let both = RowRules.merged(&card.kernels, &norm, &of(z, y)).unwrap();
    assert_eq!(merged(&both, &sum(z, gain)), Some("gemm_row_normed_16"));
    for next in [sum(x, z), sum(x, gain), sum(z, y), sum(z, at(D + 64, 1, 64)), copy(&card, z, x)] {
        assert_eq!(merged(&of(z, y), &next), None);
    }
    assert_eq!(merged(&product(&card, [z, y, b], 1), &sum(z, x)), None, "a product that adds");
    let twice = RowRules.merged(&card.kernels, &of(z, y), &sum(z, x)).unwrap();
    assert_eq!(merged(&twice, &sum(z, gain)), None);
}

/// A rotary embedding of `[Q | K | V]`'s first two parts, and the write of its last two to a cache.
fn turn_and_put(card: &Card, x: MatrixView, [y, kv]: [MatrixView; 2], segments: u64) -> [CardLaunch; 2] {
    let table = MatrixView { at: B, row_stride: 8, col_stride: 1, rows: 9, cols: 8 };
    let list = |at| crate::launches::Words { at, len: 8 };
    let bytes = |x: MatrixView| crate::launches::SizedMatrix(x, 2);
    let heads = crate::launches::HeadsArgs::from(kernels::Heads::new(4, 2, 8));
    let arguments: [&dyn Argument; 5] = [&bytes(x), &table, &list(B + 4096), &heads, &0u32];
    let turn = card.kernels.prepare(("rotate", "bf16"), SHAPE, &arguments);
    [
        turn.under(&RotaryRules),
        card.kernels.prepare(("put_rows", "bf16"), SHAPE, &[&bytes(y), &bytes(kv), &list(segments)]),
    ]
}

/// Kills: a cache's write merged with a rotation, though it reads or overwrites what other blocks turn, or
/// lists of either; a write that is not merged though it could be; rows of both that are not the same.
#[test]
fn a_rotation_writes_to_a_cache_what_its_own_blocks_turned() {
    let Some(card) = card() else { return };
    let merged = |x, y, kv, segments| {
        let [held, next] = turn_and_put(&card, x, [y, kv], segments);
        let both = held
            .rules
            .may_merge(&card.kernels, &held)
            .then(|| held.rules.merged(&card.kernels, &held, &next))
            .flatten();
        both.map(|both| {
            assert!(both.rules.begins_early(&both) && both.touched.as_ref().unwrap().len() == 6);
            both.kernel.0
        })
    };
    let (x, y, lists) = (at(A, 3, 32), at(C, 9, 32), D);
    let in_x = |rows, cols| at(A + 2 * 16, rows, cols);
    assert_eq!(merged(x, y, in_x(3, 32), lists), Some("rotate_put"));
    assert_eq!(merged(x, y, in_x(3, 48), lists), Some("rotate_put"), "up to the end of a row");
    assert_eq!(merged(x, y, at(5 << 20, 3, 32), lists), Some("rotate_put"), "keys elsewhere");
    assert_eq!(merged(at(A, 1, 32), y, at(A + 2 * 16, 1, 49), lists), Some("rotate_put"), "one block");
    let longer = MatrixView { row_stride: 128, ..in_x(3, 32) };
    for (y, kv, segments) in [
        (y, in_x(2, 32), lists),
        (y, in_x(3, 49), lists),
        (y, at(A + 2 * 64, 3, 32), lists),
        (y, longer, lists),
        (at(A + 2 * 32, 3, 32), in_x(3, 32), lists),
        (at(B + 16, 3, 32), in_x(3, 32), lists),
        (at(B + 4096, 3, 32), in_x(3, 32), lists),
        (at(D, 9, 32), in_x(3, 32), lists),
        (y, in_x(3, 32), A + 64),
        (at(5 << 20, 3, 32), at((5 << 20) + 64, 3, 32), lists),
    ] {
        assert_eq!(merged(x, y, kv, segments), None);
    }
    let [held, _] = turn_and_put(&card, x, [y, x], lists);
    assert!(RotaryRules.merged(&card.kernels, &held, &copy(&card, y, x)).is_none());
}
