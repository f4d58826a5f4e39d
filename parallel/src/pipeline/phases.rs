//! Shared parts of schedules: rows in phases, as in papers; the V of two chunks per rank; descriptions.
use crate::step::{Cell, PassKind, Plan, Task};
use comm::Axis;
use layers::{Choice, Design, Sizes, StrategyInfo};
use ops::{DividedSize, DivisionRule};

/// An act on the first or on the second chunk of a rank.
pub type ChunkPass = (PassKind, usize);

/// Forward through the first chunk, or through a rank's only one. Rows are made of these turns.
pub const F: ChunkPass = (PassKind::F, 0);
/// The whole backward of the first chunk.
pub const B: ChunkPass = (PassKind::B, 0);
/// The input half of the backward of the first chunk.
pub const I: ChunkPass = (PassKind::I, 0);
/// The weight half of the backward of the first chunk.
pub const W: ChunkPass = (PassKind::W, 0);
/// Update of a rank's only chunk.
pub const U: ChunkPass = (PassKind::U, 0);
/// Forward through the second chunk.
pub const F2: ChunkPass = (PassKind::F, 1);
/// The whole backward of the second chunk.
pub const B2: ChunkPass = (PassKind::B, 1);
/// The input half of the backward of the second chunk.
pub const I2: ChunkPass = (PassKind::I, 1);
/// The weight half of the backward of the second chunk.
pub const W2: ChunkPass = (PassKind::W, 1);

/// Returns a row in phases: the turns of each phase, repeated its number of times. The n-th forward, input
/// half, weight half or update of a chunk is of the task that `of` returns; a whole backward counts as both
/// halves, and a kind without a part is of the task whose backward comes next. Phases may be those of more
/// microbatches than the step has: cells of the extra ones are left out, which takes nothing from a table
/// that other cells need.
pub fn phases<const N: usize>(
    plan: &Plan,
    phases: [(usize, &'static [ChunkPass]); N],
    of: impl Fn(ChunkPass, usize) -> Task + 'static,
) -> Box<dyn Iterator<Item = Cell>> {
    let mut so_far = [[0; 4]; 2];
    let microbatches = plan.microbatches as u32;
    let turns = phases.into_iter().flat_map(|(times, turns)| (0..times).flat_map(move |_| turns));
    let cell = move |&(act, chunk): &ChunkPass| {
        let n = so_far[chunk][act.parts().start];
        so_far[chunk][act.parts()].iter_mut().for_each(|n| *n += 1);
        Cell { act, of: of((act, chunk), n) }
    };
    Box::new(turns.map(cell).filter(move |cell| cell.of.microbatch < microbatches))
}

/// Returns the time that a microbatch needs from the first rank to the last and back, less the work of one
/// rank: K − 1 forwards and backwards of a chunk or a slice, which takes its fraction of a whole part's
/// times.
pub fn one_after_the_other(plan: &Plan, times: [f64; 3]) -> f64 {
    (plan.ranks - 1) as f64 * times.into_iter().sum::<f64>() / (plan.chunks * plan.slices) as f64
}

/// Microbatches in order, each through one chunk of the model: for a rank with one chunk.
pub fn in_order(chunk: usize) -> impl Fn(ChunkPass, usize) -> Task {
    move |_, n| Task::new(chunk, n as u32)
}

/// Microbatches in order, through the two chunks that a rank has on a V.
pub fn on_v(rank: usize, plan: &Plan) -> impl Fn(ChunkPass, usize) -> Task + use<> {
    let chunks = [rank, 2 * plan.ranks - 1 - rank];
    move |(_, chunk), n| Task::new(chunks[chunk], n as u32)
}

/// Microbatches in rounds of `round`, each round through all chunks of a rank, forward in order and backward
/// in reverse.
pub fn in_rounds(rank: usize, plan: &Plan, round: usize) -> impl Fn(ChunkPass, usize) -> Task + use<> {
    let Plan { ranks, chunks, .. } = *plan;
    move |(act, _), n| {
        let forth = n / round % chunks;
        let chunk = if act.does(PassKind::F) { forth } else { chunks - 1 - forth };
        Task::new(chunk * ranks + rank, (n / (round * chunks) * round + n % round) as u32)
    }
}

/// Returns the rank of a chunk if chunks go down the ranks and up again, two on each. The last rank passes
/// its output to itself, and the first rank has embedding and head.
pub fn rank_on_v(chunk: usize, plan: &Plan) -> usize {
    chunk.min(2 * plan.ranks - 1 - chunk)
}

/// Describes a schedule that splits a model into stages of blocks, one chunk per rank: name, word, paper,
/// file of its chapter.
pub(crate) const fn about([name, word, paper, chapter]: [&'static str; 4]) -> StrategyInfo {
    let info = StrategyInfo::of(Some(Axis::Pp), Choice::Schedule);
    StrategyInfo { name, word, shares: blocks::<1>, paper, chapter: Some(chapter), hints: HINTS, ..info }
}

const HINTS: &[(&str, &str)] = &[
    ("loss", "the loss comes from the last stage; the other stages add 0"),
    ("gradient of", "a stage's gradients are sums over all microbatches, complete after the last backward"),
    ("", "each stage has consecutive blocks, and receives what its predecessor sent for the same microbatch"),
];

/// Blocks, with `CHUNKS` chunks of them on each rank.
pub(super) fn blocks<const CHUNKS: usize>(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let tp = sizes.along(Axis::Tp);
    let (what, size) = (design.of_parts(tp), design.parts(tp));
    vec![DividedSize { what, size, over: CHUNKS * sizes.along(Axis::Pp), by: DivisionRule::AtLeastOne }]
}

/// Default number of chunks per rank, or of slices per sequence.
pub(super) const USUAL: usize = 2;

/// Blocks, with the layout's number of chunks of them on each rank.
pub(crate) fn chunks(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let more =
        |shared: DividedSize| DividedSize { over: sizes.number.unwrap_or(USUAL) * shared.over, ..shared };
    blocks::<1>(design, sizes).into_iter().map(more).collect()
}

/// Quantities that experts compute over a whole microbatch, if any. Each of `over` slices sees only a part of
/// the microbatch, so slices cannot share them.
pub(crate) fn of_whole_microbatches(design: &Design, over: usize) -> Option<DividedSize> {
    let together =
        design.shape().and_then(|shape| shape.experts).is_some_and(|experts| experts.depends_on_microbatch());
    let what = "capacity or balance of experts over a whole microbatch, of which a slice sees only a part";
    together.then_some(DividedSize { what, size: 1, over, by: DivisionRule::Equally })
}
