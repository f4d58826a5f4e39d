//! Checks of `top_k.cu`.
use super::{Both, Check, Number, both, on_both, read, refs_mut, room, same_list};
use crate::gpu::Gpu;
use kernels::Selects;
use tensor::mix;

pub(crate) const ALL: &[Check] = &[("the numbers of a row that come first", both!(first_of_rows))];

const SPECIAL: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Number `i`, in column `j`, of a kind of rows: draws, rising, falling, few different ones, all equal, both zeros, with numbers
/// that are none.
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

/// Values bit for bit (a NaN is itself, −0 is not 0) and columns, of windows of rows of all kinds and many lengths.
fn first_of_rows<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let lengths = [(1, 1), (2, 1), (7, 3), (33, 33), (130, 64), (300, 7), (1100, 50), (1500, 1500)];
    for (kind, (cols, k)) in (0..7).flat_map(|kind| lengths.map(|length| (kind, length))) {
        let x = Both::<S>::of(gpu, 2, cols + 3, |i| number(kind, i, i % (cols + 3)));
        let mut values = Both::<S>::of(gpu, 2, k + 2, |_| 77.0);
        let mut columns = room(gpu, 2 * k);
        on_both!(gpu: S, top_k(values.cut_mut(1, k), refs_mut(&mut columns), x.cut(2, cols)));
        let what = format!("{k} of {cols}, kind {kind}");
        let bits = |x: Vec<f64>| x.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let seen = read(&values.gpu).into_iter().map(S::to_f64).collect();
        if bits(seen) != bits(read(&values.host)) {
            return Err(format!("{what} in {}: other values", S::NAME));
        }
        same_list(&format!("{what} in {}: columns", S::NAME), &columns)?;
    }
    Ok(())
}
