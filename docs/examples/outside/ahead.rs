//! A second forward ahead of the backward, in a table of one's own: a forward keeps nothing but its input
//! (`K`), the forward runs again while the rank would wait for the gradient (`R`), and then the backward.
//!
//! ```text
//! stages 2, microbatches 3        rank 0   K0 K1 R0 ·  ·  B0 K2 R1 ·  B1 R2 ·  ·  B2
//!                                 rank 1   ·  K0 R0 B0─── K1 R1 B1─── K2 R2 B2───
//! ```
//!
//! A rank holds the activations of one microbatch, and for each other one in flight a chunk's input, `B·D`
//! elements. The order is that of interleaved 1F1B, for any number of chunks on a rank.
//!
//! Source: Chen et al., "Training deep nets with sublinear memory cost", §4, arXiv:1604.06174, with the
//! second forward where the table has room for it.
use comm::Axis;
use kernels::Kernels;
use layers::{
    Builder, CellRun, Choice, Design, Hooks, Input, NumberArgument, RunPass, StageRequest, Strategy,
    StrategyInfo,
};
use ops::{DividedSize, DivisionRule, Result};
use parallel::Schedule;
use parallel::pipeline::phases::{B, ChunkPass, in_rounds, phases};
use parallel::step::{Cell, PassKind, Plan};
use std::cell::RefCell;

/// A forward that keeps its input alone.
const LIGHT: PassKind = PassKind { letter: 'K', name: "light forward", ..PassKind::F };
/// A forward that runs again, for what a backward needs. It does no part of its task, and stands behind the
/// forward.
const AGAIN: PassKind = PassKind { letter: 'R', name: "second forward", parts: [1, 1], ..PassKind::F };

const K: ChunkPass = (LIGHT, 0);
const R: ChunkPass = (AGAIN, 0);

/// 1F1B with second forwards.
///
/// **Kinds of cells** ([`PassKind`]) are constants: what a kind does of a task says what its cells need and
/// pass on. What they run is a strategy's, [`SecondForwards`].
///
/// ```
/// use outside::{Ahead, SecondForwards};
/// use parallel::{Layout, Schedule, Scheme};
/// use tensor::{Cpu, F61};
///
/// let layout: Layout = "pp=2".parse()?;
/// let schedule = Some((&Ahead as &dyn Schedule).into());
/// let scheme: Scheme<Cpu<F61>> = Scheme { schedule, ..Scheme::with(&layout, &[&SecondForwards]) };
/// assert_eq!(scheme.to_string(), "pp=2 with second forwards and 1F1B ahead");
/// # Ok::<(), parallel::Error>(())
/// ```
pub struct Ahead;

static TABLE: StrategyInfo = StrategyInfo {
    name: "1F1B ahead",
    word: "ahead",
    takes: NumberArgument::Optional("chunks of each rank"),
    shares: |design, sizes| {
        let over = sizes.number.unwrap_or(1) * sizes.along(Axis::Pp);
        let size = design.parts(sizes.along(Axis::Tp));
        vec![DividedSize { what: "blocks", size, over, by: DivisionRule::AtLeastOne }]
    },
    paper: "Narayanan et al., arXiv:2104.04473",
    hints: &[("", "a backward needs its second forward right before it, in the row of its rank")],
    ..StrategyInfo::of(Some(Axis::Pp), Choice::Schedule)
};

impl Schedule for Ahead {
    fn about(&self) -> &'static StrategyInfo {
        &TABLE
    }
    fn plan(&self, ranks: usize, microbatches: usize, number: Option<usize>) -> Plan {
        Plan { chunks: number.unwrap_or(1), ..Plan::whole(ranks, microbatches) }
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let Plan { ranks, chunks, microbatches, .. } = *plan;
        let passes = microbatches.next_multiple_of(ranks) * chunks;
        let ahead = passes.min((ranks - 1 - rank) * chunks.min(2) + (chunks - 1) * ranks);
        let row: [(usize, &[_]); 3] = [(ahead, &[K]), (passes - ahead, &[K, R, B]), (ahead, &[R, B])];
        phases(plan, row, in_rounds(rank, plan, ranks))
    }
}

/// Runs the cells of [`Ahead`].
///
/// **A strategy's cells** are a method of its [`Hooks`]. It sees every cell of a rank, with all that the
/// executor would use, and leaves alone those that are not its own.
pub struct SecondForwards;

static CELLS: StrategyInfo = StrategyInfo {
    name: "second forwards",
    word: "second-forwards",
    paper: "Chen et al., arXiv:1604.06174",
    hints: &[("", "losses and counts are those of the first forward; the second one repeats it")],
    ..StrategyInfo::of(None, Choice::Recompute)
};

impl<D: Kernels> Strategy<D> for SecondForwards {
    fn about(&self) -> &'static StrategyInfo {
        &CELLS
    }
    fn hooks(&self, _: &Builder<D>, _: &Design) -> Option<Box<dyn Hooks<D>>> {
        Some(Box::new(KeptInputs(RefCell::new(Vec::new()))))
    }
}

/// Inputs and requests of forwards that are to run again, by chunk and microbatch.
struct KeptInputs<D: Kernels>(RefCell<Vec<KeptInput<D>>>);

/// Chunk and microbatch, input and request.
type KeptInput<D> = ([usize; 2], Input<D>, Option<StageRequest<D>>);

impl<D: Kernels> KeptInputs<D> {
    /// Takes what the forward of a cell's task was given.
    fn take(&self, cell: &CellRun<D>) -> RunPass<D> {
        let mut kept = self.0.borrow_mut();
        let index = kept.iter().position(|(key, ..)| *key == key_of(cell));
        let (_, input, wanted) = kept.swap_remove(index.expect("a second forward without its first one"));
        RunPass::Forward(input, wanted)
    }
}

impl<D: Kernels> Hooks<D> for KeptInputs<D> {
    fn run(&self, cell: &mut CellRun<D>) -> Result<bool> {
        if cell.kind == LIGHT.name {
            let Some(RunPass::Forward(input, wanted)) = cell.pass.take() else { return Ok(false) };
            if cell.cx.keeps() {
                self.0.borrow_mut().push((key_of(cell), input.clone(), wanted.clone()));
            }
            cell.output = cell.cx.keeping_nothing(|| (cell.through)(RunPass::Forward(input, wanted)))?;
        } else if cell.kind == AGAIN.name {
            let pass = self.take(cell);
            cell.cx.again(|| (cell.through)(pass))?; // what comes out came out of the first one
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Chunk and microbatch of a cell.
fn key_of<D: Kernels>(cell: &CellRun<D>) -> [usize; 2] {
    [cell.chunk, cell.cx.pass().microbatch]
}

#[cfg(test)]
mod tests;
