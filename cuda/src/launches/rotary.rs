//! Launches of `rotary.cuh`. On Hopper one kernel does the rotary embedding and the cache's write.
use super::row::{bytes_of, meet};
use super::{HeadsArgs, Launches, MatrixIn, MatrixOut, MatrixView, Words, across};
use crate::card::{Argument, BeginsEarly, CardLaunch, LaunchRules, LoadedKernels};
use crate::gpu::Gpu;
use kernels::Heads;
use std::ops::Range;
use tensor::{Index, Scalar};

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn rotate(
        &self,
        x: MatrixOut<S>,
        table: MatrixIn<f32>,
        tokens: &Index<Gpu>,
        heads: Heads,
        back: bool,
    ) {
        let arguments: [&dyn Argument; 5] = [&x, &table, tokens, &HeadsArgs::from(heads), &u32::from(back)];
        self.launch_under(&RotaryRules, "rotate", across(&x), &arguments);
    }

    pub(crate) fn put_rows(&self, y: MatrixOut<S>, x: MatrixIn<S>, segments: &Index<Gpu>) {
        self.launch("put_rows", across(&x), &[&y, &x, segments]);
    }
}

/// Rules of a rotary embedding: it writes the keys that it turned to their cache, too.
pub(crate) struct RotaryRules;

/// The kernel that does both.
const BOTH: &str = "rotate_put";

impl LaunchRules for RotaryRules {
    fn may_merge(&self, kernels: &LoadedKernels, launch: &CardLaunch) -> bool {
        kernels.has((BOTH, launch.kernel.1))
    }

    fn merged(&self, kernels: &LoadedKernels, held: &CardLaunch, next: &CardLaunch) -> Option<CardLaunch> {
        if next.kernel != ("put_rows", held.kernel.1) {
            return None;
        }
        let ranges = |of: &CardLaunch| -> Option<[Range<u64>; 3]> { of.touched.clone()?.try_into().ok() };
        let [x, table, tokens] = ranges(held)?;
        let [y, kv, segments] = ranges(next)?;
        let apart = |of: &Range<u64>, all: &[&Range<u64>]| all.iter().all(|other| !meet(of, other));
        let (turned, given): (MatrixView, MatrixView) =
            (held.argument(kernels, 0), next.argument(kernels, 1));
        // A row's block reads no row that another block turns.
        let (stride, first) = (turned.row_stride, kv.start.wrapping_sub(x.start) / bytes_of(held));
        let in_row = given.row_stride == stride && first.saturating_add(given.cols.into()) <= stride;
        let fits = turned.rows == given.rows
            && (turned.rows == 1 || in_row || apart(&x, &[&kv]))
            && apart(&x, &[&table, &tokens, &segments])
            && apart(&y, &[&x, &kv, &table, &tokens, &segments]);
        fits.then(|| {
            let arguments: [&dyn Argument; 8] = [
                &turned,
                &held.argument::<MatrixView>(kernels, 1),
                &held.argument::<Words>(kernels, 2),
                &held.argument::<HeadsArgs>(kernels, 3),
                &held.argument::<u32>(kernels, 4),
                &next.argument::<MatrixView>(kernels, 0),
                &given,
                &next.argument::<Words>(kernels, 2),
            ];
            let both = kernels.prepare((BOTH, held.kernel.1), held.shape, &arguments);
            both.under(&BeginsEarly).touching(held, next)
        })
    }
}
