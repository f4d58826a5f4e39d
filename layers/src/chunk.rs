//! A run of consecutive blocks, with or without embedding and head: the whole model, or what one stage of a
//! pipeline holds. Parameter names are those of the whole model.
use crate::build::positive;
use crate::ops::{Partial, Stream, last_rows};
use crate::weight::RowWeight;
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
    Tokens(Ids<D>),
    /// `X[B,D]` from the chunk before.
    Activation(Stream<D>),
}

/// What leaves it.
pub enum Output<D: Kernels> {
    /// From the last, given targets: this microbatch's share of the mean loss, an addend on each data rank.
    Loss(Partial<D>),
    /// `X[B,D]` for the chunk after.
    Activation(Stream<D>),
}

/// A part of the model that a schedule can drive: any number of microbatches in flight, told apart by their `Cx`.
pub struct Chunk<D: Kernels> {
    embedding: Option<Embedding<D>>,
    blocks: Vec<Block<D>>,
    head: Option<Head<D>>,
    tied: bool,
    group: Group<D>,
    saved: BTreeMap<usize, Saved<D>>,
    pending: BTreeMap<usize, Pending<D>>,
}

/// What the two are called in a profile, as in the model.
const EMBEDDING: &str = "embedding";
const HEAD: &str = "head";

/// What a tied head shares with the embedding.
fn table<D: Kernels>(embedding: Option<&Embedding<D>>, tied: bool) -> Option<&RowWeight<D>> {
    embedding.filter(|_| tied).map(Embedding::rows)
}

struct Saved<D: Kernels> {
    ids: Option<embedding::Saved<D>>,
    blocks: Vec<<Block<D> as Layer<D>>::Saved>,
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
        let embedding = || Embedding::shard(at, axis, EMBEDDING, table, shape.context(), rate);
        let embedding = first.then(embedding).transpose()?;
        let block = |i| Block::shard(at, axis, shape, i, rotary.clone());
        let blocks = blocks.map(block).collect::<Result<_>>()?;
        let head = last.then(|| Head::shard(at, axis, shape)).transpose()?;
        let group = at.mesh.group(axis).named("last tokens");
        let (saved, pending) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { embedding, blocks, head, tied, group, saved, pending })
    }
    /// Parameters, in program order.
    pub fn params(&mut self) -> Vec<&mut Param<D>> {
        let mut all = Vec::new();
        if let Some(embedding) = &mut self.embedding {
            embedding.params(&mut all);
        }
        for block in &mut self.blocks {
            block.params(&mut all);
        }
        if let Some(head) = &mut self.head {
            head.params(&mut all);
        }
        all
    }
    /// Logits `[sequences, V]` of the last token of every sequence that has one, the same on every tensor rank;
    /// with `all`, of every token `[B, V]`. For a model in one piece.
    ///
    /// # Errors
    /// If ranks do not meet; so it is below.
    ///
    /// # Panics
    /// If this chunk has no head.
    pub fn logits(&mut self, cx: &Cx<D>, ids: Ids<D>, all: bool) -> Result<Tensor<D>> {
        let (x, _, _) = self.through(cx, Input::Tokens(ids))?;
        let head = self.head.as_ref().expect("logits come from the last chunk");
        let shared = table(self.embedding.as_ref(), self.tied);
        let _layer = cx.layer(HEAD, Pass::Forward);
        if all || cx.recording() {
            let logits = head.logits(cx, shared, x)?; // a record has a row for every token
            return Ok(if all { logits } else { last_rows(cx, &logits) });
        }
        head.logits(cx, shared, last_rows(cx, &x.gather(&self.group)?).into())
    }
    /// Embedding and blocks, and what they keep.
    #[allow(clippy::type_complexity)] // the three are unpacked at once
    fn through(
        &self,
        cx: &Cx<D>,
        x: Input<D>,
    ) -> Result<(Stream<D>, Option<embedding::Saved<D>>, Vec<<Block<D> as Layer<D>>::Saved>)> {
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
        let mut saved = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let (y, s) = block.forward(cx, x)?;
            if cx.mode() == Mode::Train {
                saved.push(s);
            }
            x = y;
        }
        Ok((x, ids, saved))
    }
    /// One microbatch forward; the last chunk needs its targets.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Panics
    /// If the microbatch is in flight already, or the last chunk has no targets.
    pub fn forward(&mut self, cx: &Cx<D>, x: Input<D>, targets: Option<Ids<D>>) -> Result<Output<D>> {
        let (x, ids, blocks) = self.through(cx, x)?;
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
            let before = self.saved.insert(cx.microbatch(), Saved { ids, blocks, head });
            assert!(before.is_none(), "microbatch {} is in flight", cx.microbatch());
        }
        Ok(output)
    }
    /// The input half: dX now (none for tokens); `dy` from the chunk after (none after a loss).
    ///
    /// # Errors
    /// As above.
    pub fn backward_input(&mut self, cx: &Cx<D>, dy: Option<Stream<D>>) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, false)
    }
    /// Both halves, layer by layer, so that what a layer saved is gone before the next begins.
    ///
    /// # Errors
    /// As above.
    pub fn backward(&mut self, cx: &Cx<D>, dy: Option<Stream<D>>) -> Result<Option<Stream<D>>> {
        self.back(cx, dy, true)
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
    fn back(&mut self, cx: &Cx<D>, dy: Option<Stream<D>>, now: bool) -> Result<Option<Stream<D>>> {
        let saved = self.saved.remove(&cx.microbatch()).expect("a forward of this microbatch");
        let mut later = Pending { embedding: None, blocks: Vec::new(), head: None };
        let mut dx = match (&mut self.head, saved.head) {
            (Some(head), Some(saved)) => {
                let layer = cx.layer(HEAD, Pass::Backward);
                let shared = table(self.embedding.as_ref(), self.tied);
                let (dx, pending) = head.backward_input(cx, shared, saved)?;
                drop(layer);
                if now {
                    self.head_weight(cx, pending);
                } else {
                    later.head = Some(pending);
                }
                dx
            }
            _ => dy.expect("the gradient from the chunk after"),
        };
        for (block, saved) in self.blocks.iter_mut().zip(saved.blocks).rev() {
            dx = if now {
                block.backward(cx, saved, dx)?
            } else {
                let (dx, pending) = block.backward_input(cx, saved, dx)?;
                later.blocks.push(pending);
                dx
            };
        }
        let dx = match (&mut self.embedding, saved.ids) {
            (Some(embedding), Some(ids)) => {
                let _layer = cx.layer(EMBEDDING, Pass::Backward);
                let (_, pending) = embedding.backward_input(cx, ids, dx)?;
                if now {
                    embedding.backward_weight(cx, pending)?;
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
