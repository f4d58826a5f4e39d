//! Runs of consecutive blocks, with or without the ends of a model: the whole model, or the chunks of a
//! pipeline stage. Parameter names are those of the whole model.
pub(crate) mod build;
mod ends;

use crate::build::part::{Block, Ticket};
use crate::build::stage::{Half, Input, Output, StageRequest, release, using};
use crate::{Layer, Params};
use ends::Ends;
use kernels::Kernels;
use ops::{Keeper, PassContext, Result, Stream};
use std::collections::BTreeMap;
use tensor::Direction;

/// A rank's part of a model: runs of consecutive blocks, numbered from 0 in the model's order. Any number of
/// microbatches can be in flight; their [`PassContext`] identifies them.
pub struct Chunk<D: Kernels> {
    ends: Ends<D>,
    runs: Vec<Vec<Block<D>>>, // of consecutive blocks
    saved: Vec<Saved<D>>,     // of the passes in flight
    room: Vec<Vec<Ticket>>,   // emptied lists of finished microbatches, for reuse
    pending: BTreeMap<PassKey, Pending>,
}

/// A pass in flight: run of blocks, microbatch, slice.
type PassKey = (usize, usize, usize);

/// Name of the embedding in a profile and in the model.
const EMBEDDING: &str = "embedding";
/// Panic text: a later layer did not return the gradient that an earlier one needs.
const WANTED: &str = "a later layer returned no gradient";

struct Saved<D: Kernels> {
    of: PassKey,
    ids: Option<Ticket>,
    blocks: Vec<Ticket>,
    dx: Option<Stream<D>>, // of the last block's output, if the end is in this chunk
}

#[derive(Default)]
struct Pending {
    embedding: Option<Ticket>,
    blocks: Vec<Ticket>, // last block first
}

impl<D: Kernels> Chunk<D> {
    /// Runs the embedding and the blocks; adds to `kept` what the blocks save for backward, if they save
    /// anything.
    fn through(
        &mut self,
        run: usize,
        cx: &PassContext<D>,
        keeper: &mut Keeper<D>,
        x: Input<D>,
        kept: &mut Vec<Ticket>,
    ) -> Result<(Stream<D>, Option<Ticket>)> {
        let Self { ends, .. } = self;
        let first = run == 0 && (ends.embedding.is_some() || ends.rows.is_some());
        let (mut x, ids) = match x {
            Input::Tokens(ids) if first && ends.embedding.is_some() => {
                let _layer = cx.layer(EMBEDDING, Direction::Forward);
                let run = |ends: &mut Ends<D>| ends.embedding().forward(cx, ids);
                let (x, ids) = using(keeper, (ends, Ends::of_embedding), None, false, run)?;
                (x, Some(ids))
            }
            Input::Rows(x) if first && let Some(region) = ends.rows => (Stream::cut(&x, region), None),
            Input::Activation(x) if !first => (x, None),
            _ => panic!("the first chunk takes tokens or features, the others take activations"),
        };
        assert_eq!(cx.rows(), x.rows(), "an activation needs one row per token");
        let mut blocks = &mut self.runs[run][..];
        while let Some((block, rest)) = blocks.split_first_mut() {
            let next = rest.first_mut();
            let (y, s) = using(keeper, (block, Block::params), next, false, |block| block.forward(cx, x))?;
            if cx.keeps() {
                kept.push(s);
            }
            (x, blocks) = (y, rest);
        }
        Ok((x, ids))
    }
    /// Returns whether the model's end follows this run.
    fn ends(&self, run: usize) -> bool {
        self.ends.end.is_some() && run + 1 == self.runs.len()
    }
    /// Computes the loss or logits from the last block's output. If a backward will follow, runs the end's
    /// backward at once, so that only dX is kept for each microbatch in flight.
    fn end(
        &mut self,
        cx: &PassContext<D>,
        keeper: &mut Keeper<D>,
        x: Stream<D>,
        wanted: Option<StageRequest<D>>,
    ) -> Result<(Output<D>, Option<Stream<D>>)> {
        let first = self.ends.rows.is_some() && self.runs.iter().all(Vec::is_empty);
        let Self { ends, .. } = self;
        let name = ends.name.clone();
        let wanted = wanted.expect("the last chunk needs a request for loss or logits");
        ends.lend();
        let ended = using(keeper, (ends, Ends::of_head), None, false, |ends| {
            let layer = cx.layer(&name, Direction::Forward);
            let (output, saved) = ends.forward(cx, x, wanted)?;
            drop(layer);
            let output = output.expect("the end returned neither loss nor logits");
            if saved.is_none() {
                return Ok((output, None));
            }
            let _layer = cx.layer(&name, Direction::Backward);
            Ok((output, ends.back(cx, saved, first)?))
        });
        ends.lend();
        ended
    }
}

impl<D: Kernels> Chunk<D> {
    /// Returns its parameters, in program order.
    pub fn params(&mut self) -> Params<'_, D> {
        let Self { ends: Ends { embedding, end, .. }, runs, .. } = self;
        let mut found = Params::new();
        if let Some(embedding) = embedding {
            embedding.params(&mut found);
        }
        runs.iter_mut().flatten().for_each(|block| block.params(&mut found));
        if let Some(end) = end {
            end.params(&mut found);
        }
        found
    }
    /// Runs one microbatch forward through run `run`. The last stage receives `wanted`, the request for loss
    /// or logits.
    ///
    /// # Errors
    /// If ranks do not meet.
    ///
    /// # Panics
    /// If the microbatch is already in flight.
    pub fn forward(
        &mut self,
        run: usize,
        cx: &PassContext<D>,
        keeper: &mut Keeper<D>,
        x: Input<D>,
        wanted: Option<StageRequest<D>>,
    ) -> Result<Output<D>> {
        let of = flight(run, cx);
        assert!(self.saved.iter().all(|s| s.of != of), "microbatch {} is in flight", cx.pass().microbatch);
        let mut blocks = self.room.pop().unwrap_or_default();
        let (x, ids) = self.through(run, cx, keeper, x, &mut blocks)?;
        let (output, dx) =
            if self.ends(run) { self.end(cx, keeper, x, wanted)? } else { (Output::Activation(x), None) };
        if cx.keeps() {
            self.saved.push(Saved { of, ids, blocks, dx });
        } else {
            self.room.push(blocks);
        }
        Ok(output)
    }
    /// Runs the backward of a microbatch. Returns dX for the previous stage (`None` for the input of the
    /// model); `dy` is the gradient from the next stage (`None` after a loss). If it is the `last` of the
    /// step, calls `keeper` for each module (the head, a block, the embedding) whose gradients are complete.
    ///
    /// # Errors
    /// If ranks do not meet, and the errors of `keeper`.
    ///
    /// # Panics
    /// If this microbatch had no forward.
    pub fn backward(
        &mut self,
        run: usize,
        cx: &PassContext<D>,
        keeper: &mut Keeper<D>,
        dy: Option<Stream<D>>,
        half: Half,
        last: bool,
    ) -> Result<Option<Stream<D>>> {
        let of = flight(run, cx);
        let at = self.saved.iter().position(|s| s.of == of);
        let mut saved = self.saved.swap_remove(at.expect("backward of a microbatch that had no forward"));
        let mut later = (half == Half::Input).then(Pending::default);
        let last = last && later.is_none();
        let at_end = self.ends(run);
        let mut dx = if at_end { saved.dx } else { Some(dy.expect("the next chunk sent no gradient")) };
        let Self { ends, .. } = self;
        if last && at_end {
            release(keeper, (ends, Ends::of_head), true)?;
        }
        let mut blocks = &mut self.runs[run][..];
        while let Some((block, before)) = blocks.split_last_mut() {
            let saved = saved.blocks.pop().expect("a block saved nothing");
            let dy = dx.take().expect(WANTED);
            let first = run == 0 && before.is_empty() && ends.rows.is_some();
            let later = later.as_mut().map(|later| &mut later.blocks);
            dx = using(keeper, (block, Block::params), before.last_mut(), last, |block| {
                back(block, cx, saved, dy, !first, later)
            })?;
            blocks = before;
        }
        self.room.push(saved.blocks);
        let dx = match saved.ids {
            None => dx,
            Some(ids) => using(keeper, (ends, Ends::of_embedding), None, last, |ends| {
                let _layer = cx.layer(EMBEDDING, Direction::Backward);
                let (_, pending) = ends.embedding().backward_input(cx, ids, dx.expect(WANTED))?;
                match &mut later {
                    Some(later) => later.embedding = Some(pending),
                    None => ends.embedding().backward_weight(cx, pending)?,
                }
                Ok(None)
            })?,
        };
        self.pending.extend(later.map(|later| (of, later)));
        Ok(dx)
    }
    /// Runs the weight half of a microbatch whose input half has run.
    ///
    /// # Errors
    /// If ranks do not meet, and the errors of `keeper`.
    ///
    /// # Panics
    /// If its input half has not run.
    pub fn backward_weight(
        &mut self,
        run: usize,
        cx: &PassContext<D>,
        keeper: &mut Keeper<D>,
        last: bool,
    ) -> Result<()> {
        let pending = self.pending.remove(&flight(run, cx));
        let Pending { embedding, blocks } = pending.expect("weight half without its input half");
        let at_end = self.ends(run);
        let Self { ends, .. } = self;
        if last && at_end {
            release(keeper, (ends, Ends::of_head), true)?;
        }
        let mut left = &mut self.runs[run][..];
        for pending in blocks {
            let (block, before) = left.split_last_mut().expect("a block for each input half");
            using(keeper, (block, Block::params), before.last_mut(), last, |block| {
                block.backward_weight(cx, pending)
            })?;
            left = before;
        }
        if let Some(pending) = embedding {
            let _layer = cx.layer(EMBEDDING, Direction::Backward);
            let run = |ends: &mut Ends<D>| ends.embedding().backward_weight(cx, pending);
            using(keeper, (ends, Ends::of_embedding), None, last, run)?;
        }
        Ok(())
    }
}

/// Runs the backward of a block: to dX if `wanted`, and to the gradients of its parameters, at once or
/// `later`.
fn back<D: Kernels>(
    block: &mut Block<D>,
    cx: &PassContext<D>,
    saved: Ticket,
    dy: Stream<D>,
    wanted: bool,
    later: Option<&mut Vec<Ticket>>,
) -> Result<Option<Stream<D>>> {
    let (dx, pending) = if !wanted {
        (None, block.backward_without_dx(cx, saved, dy)?)
    } else if later.is_none() {
        return block.backward(cx, saved, dy).map(Some);
    } else {
        let (dx, pending) = block.backward_input(cx, saved, dy)?;
        (Some(dx), pending)
    };
    match later {
        Some(later) => later.push(pending),
        None => block.backward_weight(cx, pending)?,
    }
    Ok(dx)
}

/// Returns the key of a pass in flight.
fn flight<D: Kernels>(run: usize, cx: &PassContext<D>) -> PassKey {
    (run, cx.pass().microbatch, cx.pass().slice)
}

#[cfg(test)]
pub(crate) mod tests;
