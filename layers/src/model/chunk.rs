//! A run of consecutive blocks, with or without embedding and head: the whole model, or what one stage of a
//! pipeline holds. Parameter names are those of the whole model.
use crate::model::build::positive;
use crate::ops::{Partial, Stream, last_rows};
use crate::param::weight::RowWeight;
use crate::{
    Block, Builder, Cx, Embedding, Error, Head, Layer, Mode, Param, Positions, Result, Rotary, Shape, Uses,
    embedding, head,
};
use comm::{Axis, Group};
use kernels::Kernels;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::{Ids, Pass, Tensor};

/// What enters a chunk: the first takes tokens.
pub enum Input<D: Kernels> {
    /// Token ids `[B]`.
    Tokens(Ids<D::Place>),
    /// `X[B,D]` from the chunk before.
    Activation(Stream<D>),
}

/// What leaves it.
pub enum Output<D: Kernels> {
    /// From the last, given targets: this microbatch's share of the mean loss, an addend on each data rank.
    Loss(Partial<D::Wide>),
    /// `X[B,D]` for the chunk after.
    Activation(Stream<D>),
}

/// A part of the model that a schedule can drive: any number of microbatches in flight, told apart by their `Cx`.
pub struct Chunk<D: Kernels> {
    embedding: Option<Embedding<D>>,
    blocks: Vec<Block<D>>,
    head: Option<Head<D>>,
    tied: bool,
    group: Group<D::Place>,
    saved: Vec<Saved<D>>,               // of the microbatches in flight
    room: Vec<Kept<D>>,                 // for what blocks will save: the lists of microbatches that are back
    listed: Vec<&'static mut Param<D>>, // for a list of parameters; empty
    pending: BTreeMap<usize, Pending<D>>,
}

/// What each block saved of a microbatch.
type Kept<D> = Vec<<Block<D> as Layer<D>>::Saved>;
/// What the two are called in a profile, as in the model.
const EMBEDDING: &str = "embedding";
const HEAD: &str = "head";

/// What a tied head shares with the embedding.
fn table<D: Kernels>(embedding: Option<&Embedding<D>>, tied: bool) -> Option<&RowWeight<D>> {
    embedding.filter(|_| tied).map(Embedding::rows)
}

struct Saved<D: Kernels> {
    microbatch: usize,
    ids: Option<embedding::Saved<D>>,
    blocks: Kept<D>,
    head: Option<head::Saved<D>>,
}

struct Pending<D: Kernels> {
    embedding: Option<embedding::Pending<D>>,
    blocks: Vec<<Block<D> as Layer<D>>::Pending>, // last block first
    head: Option<head::Pending<D>>,
}

impl<D: Kernels> Chunk<D> {
    /// The whole model, its features split over the tensor axis.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn whole(at: &Builder<D>, shape: &Shape) -> Result<Self> {
        Self::part(at, shape, 0..shape.blocks)
    }
    /// These blocks of it; the first with the embedding, the last with the head.
    ///
    /// # Errors
    /// As above; and if the head is tied to a table that is in another chunk.
    pub fn part(at: &Builder<D>, shape: &Shape, blocks: Range<usize>) -> Result<Self> {
        for (what, size) in [
            ("the width", shape.width),
            ("the number of blocks", shape.blocks),
            ("the head size", shape.heads.dim),
            ("the hidden size", shape.hidden),
            ("the vocabulary", shape.vocabulary),
        ] {
            positive(what, size)?;
        }
        let (first, last, tied) = (blocks.start == 0, blocks.end == shape.blocks, shape.tied);
        if tied && first != last {
            return Err(Error::Size {
                what: "the number of chunks of a model with a tied head".into(),
                seen: "more than one".into(),
                wanted: "1".into(),
            });
        }
        let (axis, table) = (Axis::Tp, [shape.vocabulary, shape.width]);
        let rotary = match shape.positions {
            Positions::Rotary(rope) => Some(Rotary::new(shape.heads.dim, rope)),
            Positions::Learned(_) => None,
        };
        let rate = shape.dropout.embedding;
        let embedding = || Embedding::shard(at, axis, EMBEDDING, table, shape.padding, shape.context(), rate);
        let embedding = first.then(embedding).transpose()?;
        let block = |i| Block::shard(at, axis, shape, i, rotary.clone());
        let blocks = blocks.map(block).collect::<Result<_>>()?;
        let head = last.then(|| Head::shard(at, axis, shape)).transpose()?;
        let group = at.mesh.group(axis).named("last tokens");
        let (saved, room, listed, pending) = (Vec::new(), Vec::new(), Vec::new(), BTreeMap::new());
        Ok(Self { embedding, blocks, head, tied, group, saved, room, listed, pending })
    }
    /// Parameters, in program order.
    pub fn params(&mut self) -> Vec<&mut Param<D>> {
        let mut all = Vec::new();
        self.list(&mut all);
        all
    }
    /// Appends them to a list.
    pub fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        if let Some(embedding) = &mut self.embedding {
            embedding.params(all);
        }
        for block in &mut self.blocks {
            block.params(all);
        }
        if let Some(head) = &mut self.head {
            head.params(all);
        }
    }
    /// Logits `[sequences, V]` of the last token of every sequence that has one, the same on every tensor rank;
    /// with `all`, of every token `[B, V]`. For a model in one piece.
    ///
    /// # Errors
    /// If ranks do not meet; so it is below.
    ///
    /// # Panics
    /// If this chunk has no head.
    pub fn logits(&mut self, cx: &Cx<D>, ids: Ids<D::Place>, all: bool) -> Result<Tensor<D>> {
        self.logits_with(cx, ids, all, &mut ())
    }
    /// The same, of parameters that `uses` keeps.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn logits_with(
        &mut self,
        cx: &Cx<D>,
        ids: Ids<D::Place>,
        all: bool,
        uses: &mut dyn Uses<D>,
    ) -> Result<Tensor<D>> {
        let (x, _) = self.through(cx, Input::Tokens(ids), &mut Vec::new(), uses)?;
        self.head_moves(uses, true)?;
        let logits = self.logits_of(cx, x, all)?;
        self.head_moves(uses, false)?;
        Ok(logits)
    }
    /// Tells of the head, and of a table that it shares, before it is used or after.
    fn head_moves(&mut self, uses: &mut dyn Uses<D>, before: bool) -> Result<()> {
        let Some(head) = self.head.as_mut().filter(|_| uses.moves()) else { return Ok(()) };
        let table = self.embedding.as_mut().filter(|_| self.tied).map(Embedding::table);
        let list = |all: &mut Vec<_>| {
            head.params(all);
            all.extend(table.map(RowWeight::param));
        };
        tell_if(true, &mut self.listed, list, |all| if before { uses.before(all) } else { uses.after(all) })
    }
    fn logits_of(&self, cx: &Cx<D>, x: Stream<D>, all: bool) -> Result<Tensor<D>> {
        let head = self.head.as_ref().expect("logits come from the last chunk");
        let shared = table(self.embedding.as_ref(), self.tied);
        let _layer = cx.layer(HEAD, Pass::Forward);
        if all || cx.recording() {
            let logits = head.logits(cx, shared, x)?; // a record has a row for every token
            return Ok(if all { logits } else { last_rows(cx, &logits) });
        }
        head.logits(cx, shared, last_rows(cx, &x.gather(&self.group)?).into())
    }
    /// Embedding and blocks, and what they keep: the blocks in `kept`, if they keep anything.
    fn through(
        &mut self,
        cx: &Cx<D>,
        x: Input<D>,
        kept: &mut Kept<D>,
        uses: &mut dyn Uses<D>,
    ) -> Result<(Stream<D>, Option<embedding::Saved<D>>)> {
        let (moves, listed) = (uses.moves(), &mut self.listed);
        let (mut x, ids) = match (&mut self.embedding, x) {
            (Some(embedding), Input::Tokens(ids)) => {
                let _layer = cx.layer(EMBEDDING, Pass::Forward);
                tell_if(moves, listed, |all| embedding.params(all), |all| uses.before(all))?;
                let (x, ids) = embedding.forward(cx, ids)?;
                tell_if(moves, listed, |all| embedding.params(all), |all| uses.after(all))?;
                (x, Some(ids))
            }
            (None, Input::Activation(x)) => (x, None),
            _ => panic!("tokens for the first chunk, activations for the others"),
        };
        assert_eq!(cx.rows(), x.rows(), "a row for every token");
        for block in &mut self.blocks {
            tell_if(moves, listed, |all| block.params(all), |all| uses.before(all))?;
            let (y, s) = block.forward(cx, x)?;
            tell_if(moves, listed, |all| block.params(all), |all| uses.after(all))?;
            if cx.mode() == Mode::Train {
                kept.push(s);
            }
            x = y;
        }
        Ok((x, ids))
    }
    /// One microbatch forward; the last chunk needs its targets.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Panics
    /// If the microbatch is in flight already, or the last chunk has no targets.
    pub fn forward(&mut self, cx: &Cx<D>, x: Input<D>, targets: Option<Ids<D::Place>>) -> Result<Output<D>> {
        self.forward_with(cx, x, targets, &mut ())
    }
    /// The same, of parameters that `uses` keeps.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn forward_with(
        &mut self,
        cx: &Cx<D>,
        x: Input<D>,
        targets: Option<Ids<D::Place>>,
        uses: &mut dyn Uses<D>,
    ) -> Result<Output<D>> {
        let microbatch = cx.microbatch();
        assert!(
            self.saved.iter().all(|s| s.microbatch != microbatch),
            "microbatch {microbatch} is in flight"
        );
        let mut blocks = self.room.pop().unwrap_or_default();
        let (x, ids) = self.through(cx, x, &mut blocks, uses)?;
        self.head_moves(uses, true)?;
        let (output, head) = match &self.head {
            None => (Output::Activation(x), None),
            Some(head) => {
                let _layer = cx.layer(HEAD, Pass::Forward);
                let shared = table(self.embedding.as_ref(), self.tied);
                let (loss, saved) = head.forward(cx, shared, x, targets.expect("targets for the loss"))?;
                (Output::Loss(loss), Some(saved))
            }
        };
        self.head_moves(uses, false)?;
        if cx.mode() == Mode::Train {
            self.saved.push(Saved { microbatch, ids, blocks, head });
        } else {
            self.room.push(blocks);
        }
        Ok(output)
    }
    /// The input half: dX now (none for tokens); `dy` from the chunk after (none after a loss).
    ///
    /// # Errors
    /// As above.
    pub fn backward_input(&mut self, cx: &Cx<D>, dy: Option<Stream<D>>) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, false, (&mut (), false))
    }
    /// Both halves, layer by layer, so that what a layer saved is gone before the next begins.
    ///
    /// # Errors
    /// As above.
    pub fn backward(&mut self, cx: &Cx<D>, dy: Option<Stream<D>>) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, true, (&mut (), false))
    }
    /// The same, of parameters that `uses` keeps; of a step's `last` microbatch tells it that a unit (head, block or
    /// embedding) is complete when nothing more is added to its gradients.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn backward_with(
        &mut self,
        cx: &Cx<D>,
        dy: Option<Stream<D>>,
        uses: &mut dyn Uses<D>,
        last: bool,
    ) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, true, (uses, last))
    }
    /// The weight half of a microbatch whose input half is done.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Panics
    /// If its input half is not done.
    pub fn backward_weight(&mut self, cx: &Cx<D>) -> Result<()> {
        let Pending { embedding, blocks, head } =
            self.pending.remove(&cx.microbatch()).expect("an input half of this microbatch");
        if let Some(pending) = head {
            self.head_weight(cx, pending);
        }
        for (block, pending) in self.blocks.iter_mut().rev().zip(blocks) {
            block.backward_weight(cx, pending)?;
        }
        if let (Some(layer), Some(pending)) = (&mut self.embedding, embedding) {
            let _layer = cx.layer(EMBEDDING, Pass::Backward);
            layer.backward_weight(cx, pending)?;
        }
        Ok(())
    }
    fn head_weight(&mut self, cx: &Cx<D>, pending: head::Pending<D>) {
        let _layer = cx.layer(HEAD, Pass::Backward);
        let table = self.embedding.as_mut().filter(|_| self.tied).map(Embedding::table);
        self.head.as_mut().expect("a head").backward_weight(table, pending);
    }
    fn back(
        &mut self,
        cx: &Cx<D>,
        dy: Option<Stream<D>>,
        now: bool,
        (uses, last): (&mut dyn Uses<D>, bool),
    ) -> Result<Option<Stream<D>>> {
        let at = self.saved.iter().position(|s| s.microbatch == cx.microbatch());
        let mut saved = self.saved.swap_remove(at.expect("a forward of this microbatch"));
        let moves = uses.moves();
        if saved.head.is_some() {
            self.head_moves(uses, true)?;
        }
        let mut later = Pending { embedding: None, blocks: Vec::new(), head: None };
        let mut dx = match (&mut self.head, saved.head) {
            (Some(head), Some(saved)) => {
                let layer = cx.layer(HEAD, Pass::Backward);
                let shared = table(self.embedding.as_ref(), self.tied);
                let (dx, pending) = head.backward_input(cx, shared, saved)?;
                drop(layer);
                if now {
                    self.head_weight(cx, pending);
                    self.head_moves(uses, false)?;
                    let head = self.head.as_mut().expect("seen above");
                    tell_if(last, &mut self.listed, |all| head.params(all), |all| uses.complete(all))?;
                } else {
                    later.head = Some(pending);
                }
                dx
            }
            _ => dy.expect("the gradient from the chunk after"),
        };
        for block in self.blocks.iter_mut().rev() {
            let saved = saved.blocks.pop().expect("what each block saved");
            tell_if(moves, &mut self.listed, |all| block.params(all), |all| uses.before(all))?;
            dx = if now {
                let dx = block.backward(cx, saved, dx)?;
                tell_if(moves, &mut self.listed, |all| block.params(all), |all| uses.after(all))?;
                tell_if(last, &mut self.listed, |all| block.params(all), |all| uses.complete(all))?;
                dx
            } else {
                let (dx, pending) = block.backward_input(cx, saved, dx)?;
                later.blocks.push(pending);
                dx
            };
        }
        self.room.push(saved.blocks);
        let dx = match (&mut self.embedding, saved.ids) {
            (Some(embedding), Some(ids)) => {
                let _layer = cx.layer(EMBEDDING, Pass::Backward);
                let (_, pending) = embedding.backward_input(cx, ids, dx)?;
                if now {
                    embedding.backward_weight(cx, pending)?;
                    tell_if(moves, &mut self.listed, |all| embedding.params(all), |all| uses.after(all))?;
                    tell_if(last, &mut self.listed, |all| embedding.params(all), |all| uses.complete(all))?;
                } else {
                    later.embedding = Some(pending);
                }
                None
            }
            _ => Some(dx),
        };
        if !now {
            self.pending.insert(cx.microbatch(), later);
        }
        Ok(dx)
    }
}

/// Tells of the parameters of a unit, if somebody wants to know; the list is made in `room`, which is empty.
fn tell_if<'a, D: Kernels>(
    wanted: bool,
    room: &mut Vec<&'static mut Param<D>>,
    list: impl FnOnce(&mut Vec<&'a mut Param<D>>),
    told: impl FnOnce(&mut [&mut Param<D>]) -> Result<()>,
) -> Result<()> {
    if !wanted {
        return Ok(());
    }
    let mut all = std::mem::take(room);
    list(&mut all);
    let outcome = told(&mut all);
    *room = emptied(all);
    outcome
}

/// A list without elements in the memory of another, whatever that one's elements may be borrowed from.
pub fn emptied<'b, T>(mut list: Vec<&mut T>) -> Vec<&'b mut T> {
    list.clear();
    list.into_iter().map(|_| unreachable!("it is empty")).collect() // in place: that it is, is tested
}

#[cfg(test)]
mod tests;
