//! Checks of `top_k.cu`.
use super::{Side, SideKernels, check};
use tensor::mix;

const SPECIAL: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Returns element `i`, in column `j`, of a kind of rows: draws, rising, falling, few distinct values, all
/// equal, both zeros, or few values with NaN and infinities.
fn number(kind: u64, i: usize, j: usize) -> f64 {
    let hash = mix(mix(kind) ^ i as u64);
    let few = (hash % 5) as f64 - 2.0;
    match kind {
        0 => f64::from_bits(hash >> 12 | 0x3ff << 52) - 1.5,
        1 => j as f64,
        2 => -(j as f64),
        3 => few,
        4 => 0.25,
        5 => [0.0, -0.0, few][(hash >> 32) as usize % 3],
        _ if hash % 11 < 3 => SPECIAL[(hash % 11) as usize],
        _ => few,
    }
}

/// Checks values bit for bit and columns, in windows of rows of all kinds and many lengths.
pub(crate) fn first_of_rows<D: SideKernels>(c: &mut Side<D>) {
    let lengths = [(1, 1), (2, 1), (7, 3), (33, 33), (130, 64), (300, 7), (1100, 50), (1500, 1500)];
    for (kind, (cols, k)) in (0..7).flat_map(|kind| lengths.map(|length| (kind, length))) {
        c.case = format!("{k} of {cols}, kind {kind}");
        let x = c.of([2, cols, cols + 3, 2], |i| number(kind, i, i % (cols + 3)));
        let (mut values, mut columns) = (c.of([2, k, k + 2, 1], |_| 77.0), c.room(2 * k));
        check!(c.top_k(values.to(), &mut columns, x.of()) => columns 0.0);
        c.bits("values of top_k", &values.read());
    }
}
