//! The work of a cell: a pass through a chunk, or that of a strategy which takes the cell.
use crate::step::PassKind;
use crate::{Error, Result};
use kernels::Kernels;
use layers::{CellRun, Chunk, Half, Hooks, Input, Output, RunPass, StageRequest};
use ops::{Keeper, PassContext, Stream};

/// Runs a cell of a chunk of the model, which is a run of the stage: by the first strategy that takes it, or
/// else as the pass that it is. Returns the output of a forward, or dX of a backward.
pub(super) fn run<D: Kernels>(
    (act, chunk): (PassKind, usize),
    (stage, run): (&mut Chunk<D>, usize),
    (cx, keeper): (&PassContext<D>, &mut Keeper<D>),
    (input, wanted): (Option<Input<D>>, Option<StageRequest<D>>),
    (dy, last): (Option<Stream<D>>, bool),
    hooks: &[Box<dyn Hooks<D>>],
) -> Result<Option<Output<D>>> {
    let half = if act.adds() { Half::Both } else { Half::Input };
    let pass = match input {
        Some(x) => Some(RunPass::Forward(x, wanted)),
        None if act.passes() => Some(RunPass::Backward(dy, half, last)),
        None => act.adds().then_some(RunPass::Weight(last)),
    };
    let through = &mut |pass| match pass {
        RunPass::Forward(x, wanted) => stage.forward(run, cx, keeper, x, wanted).map(Some),
        RunPass::Backward(dy, half, last) => {
            stage.backward(run, cx, keeper, dy, half, last).map(|dx| dx.map(Output::Activation))
        }
        RunPass::Weight(last) => stage.backward_weight(run, cx, keeper, last).map(|()| None),
    };
    let mut cell = CellRun { kind: act.name, chunk, cx, pass, through, output: None };
    for hooks in hooks {
        if hooks.run(&mut cell)? {
            return Ok(cell.output);
        }
    }
    let none = || Error::new(format!("no strategy runs a cell that is a {}", act.name));
    Ok((cell.through)(cell.pass.ok_or_else(none)?)?)
}
