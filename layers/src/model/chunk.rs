//! A run of consecutive blocks, with or without embedding and head: the whole model, or what one stage of a
//! pipeline holds. Parameter names are those of the whole model.
use crate::model::build::positive;
use crate::ops::{Partial, Stream, last_rows};
use crate::param::weight::RowWeight;
use crate::{
    Block, Builder, Cx, Embedding, Error, Head, Layer, Mode, Param, Positions, Result, Rotary, Shape,
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
        let (axis, table) = (Axis::LAYERS, [shape.vocabulary, shape.width]);
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
        let (x, _) = self.through(cx, Input::Tokens(ids), &mut Vec::new())?;
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
        &self,
        cx: &Cx<D>,
        x: Input<D>,
        kept: &mut Kept<D>,
    ) -> Result<(Stream<D>, Option<embedding::Saved<D>>)> {
        let (mut x, ids) = match (&self.embedding, x) {
            (Some(embedding), Input::Tokens(ids)) => {
                let _layer = cx.layer(EMBEDDING, Pass::Forward);
                let (x, ids) = embedding.forward(cx, ids)?;
                (x, Some(ids))
            }
            (None, Input::Activation(x)) => (x, None),
            _ => panic!("tokens for the first chunk, activations for the others"),
        };
        assert_eq!(cx.rows(), x.rows(), "a row for every token");
        for block in &self.blocks {
            let (y, s) = block.forward(cx, x)?;
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
        let microbatch = cx.microbatch();
        assert!(
            self.saved.iter().all(|s| s.microbatch != microbatch),
            "microbatch {microbatch} is in flight"
        );
        let mut blocks = self.room.pop().unwrap_or_default();
        let (x, ids) = self.through(cx, x, &mut blocks)?;
        let (output, head) = match &self.head {
            None => (Output::Activation(x), None),
            Some(head) => {
                let _layer = cx.layer(HEAD, Pass::Forward);
                let shared = table(self.embedding.as_ref(), self.tied);
                let (loss, saved) = head.forward(cx, shared, x, targets.expect("targets for the loss"))?;
                (Output::Loss(loss), Some(saved))
            }
        };
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
        self.back(cx, dy, false, None)
    }
    /// Both halves, layer by layer, so that what a layer saved is gone before the next begins.
    ///
    /// # Errors
    /// As above.
    pub fn backward(&mut self, cx: &Cx<D>, dy: Option<Stream<D>>) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, true, None)
    }
    /// The same of a step's last microbatch: tells the parameters of a unit (head, block or embedding) to `complete` when the
    /// unit is done, that is, when nothing more is added to their gradients in this step.
    ///
    /// # Errors
    /// As above, and those of `complete`.
    pub fn backward_last(
        &mut self,
        cx: &Cx<D>,
        dy: Option<Stream<D>>,
        complete: Complete<D>,
    ) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, true, Some(complete))
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
        mut complete: Option<Complete<D>>,
    ) -> Result<Option<Stream<D>>> {
        let at = self.saved.iter().position(|s| s.microbatch == cx.microbatch());
        let mut saved = self.saved.swap_remove(at.expect("a forward of this microbatch"));
        let mut later = Pending { embedding: None, blocks: Vec::new(), head: None };
        let mut dx = match (&mut self.head, saved.head) {
            (Some(head), Some(saved)) => {
                let layer = cx.layer(HEAD, Pass::Backward);
                let shared = table(self.embedding.as_ref(), self.tied);
                let (dx, pending) = head.backward_input(cx, shared, saved)?;
                drop(layer);
                if now {
                    self.head_weight(cx, pending);
                    let head = self.head.as_mut().expect("seen above");
                    tell(&mut self.listed, |all| head.params(all), &mut complete)?;
                } else {
                    later.head = Some(pending);
                }
                dx
            }
            _ => dy.expect("the gradient from the chunk after"),
        };
        for block in self.blocks.iter_mut().rev() {
            let saved = saved.blocks.pop().expect("what each block saved");
            dx = if now {
                let dx = block.backward(cx, saved, dx)?;
                tell(&mut self.listed, |all| block.params(all), &mut complete)?;
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
                    tell(&mut self.listed, |all| embedding.params(all), &mut complete)?;
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

/// What is told of the parameters of a unit, whose gradients are complete.
pub type Complete<'a, D> = &'a mut dyn FnMut(&mut [&mut Param<D>]) -> Result<()>;

/// Tells the parameters of a unit to `complete`, if there is one; the list is made in `room`, which is empty.
fn tell<'a, D: Kernels>(
    room: &mut Vec<&'static mut Param<D>>,
    list: impl FnOnce(&mut Vec<&'a mut Param<D>>),
    complete: &mut Option<Complete<D>>,
) -> Result<()> {
    let Some(complete) = complete else { return Ok(()) };
    let mut all = std::mem::take(room);
    list(&mut all);
    let outcome = complete(&mut all);
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
