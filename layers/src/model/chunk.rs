//! A run of consecutive blocks, with or without embedding and head: the whole transformer, or what one stage of a
//! pipeline holds. Parameter names are those of the whole model.
use crate::model::build::positive;
use crate::model::stage::{Half, Input, Of, Output, Room, Stage, Wanted};
use crate::ops::{Stream, last_rows};
use crate::param::weight::RowWeight;
use crate::{
    Block, Builder, Cx, Embedding, Head, Layer, Param, Positions, Result, Rotary, Shape, Uses, embedding,
    head,
};
use comm::{Axis, Group};
use kernels::Kernels;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::Pass;

/// A part of a transformer.
pub struct Chunk<D: Kernels> {
    ends: Ends<D>,
    blocks: Vec<Block<D>>,
    group: Group<D::Place>,
    saved: Vec<Saved<D>>, // of the microbatches in flight
    room: Vec<Kept<D>>,   // for what blocks will save: the lists of microbatches that are back
    listed: Room<D>,
    pending: BTreeMap<usize, Pending<D>>,
}

/// What stands before and after the blocks.
struct Ends<D: Kernels> {
    tables: Tables<D>,
    head: Option<Head<D>>,
}

struct Tables<D: Kernels> {
    embedding: Option<Embedding<D>>,
    other: Option<RowWeight<D>>, // of a tied head whose embedding is in another chunk
    tied: bool,
}

/// What each block saved of a microbatch.
type Kept<D> = Vec<<Block<D> as Layer<D>>::Saved>;
/// What the two are called in a profile, as in the model.
const EMBEDDING: &str = "embedding";
const HEAD: &str = "head";

impl<D: Kernels> Tables<D> {
    /// What a tied head shares with the embedding.
    fn shared(&self) -> Option<&RowWeight<D>> {
        self.other.as_ref().or(self.embedding.as_ref().map(Embedding::rows)).filter(|_| self.tied)
    }
    fn shared_mut(&mut self) -> Option<&mut RowWeight<D>> {
        self.other.as_mut().or(self.embedding.as_mut().map(Embedding::table)).filter(|_| self.tied)
    }
}

impl<D: Kernels> Ends<D> {
    const EMBEDDING: Of<D, Self> = Of { used: Self::of_embedding, own: Self::of_embedding };
    const HEAD: Of<D, Self> = Of { used: Self::used_by_head, own: Self::of_head };

    fn of_embedding<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.tables.embedding.iter_mut().for_each(|embedding| embedding.params(all));
    }
    fn of_head<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.head.iter_mut().for_each(|head| head.params(all));
        all.extend(self.tables.other.as_mut().map(RowWeight::param));
    }
    fn used_by_head<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        self.head.iter_mut().for_each(|head| head.params(all));
        all.extend(self.tables.shared_mut().map(RowWeight::param));
    }
    fn head(&mut self) -> (&mut Head<D>, &mut Tables<D>) {
        (self.head.as_mut().expect("the chunk has a head"), &mut self.tables)
    }
    fn embedding(&mut self) -> &mut Embedding<D> {
        self.tables.embedding.as_mut().expect("the chunk has an embedding")
    }
    fn head_weight(&mut self, cx: &Cx<D>, pending: head::Pending<D>) {
        let _layer = cx.layer(HEAD, Pass::Backward);
        let (head, tables) = self.head();
        head.backward_weight(tables.shared_mut(), pending);
    }
}

impl<D: Kernels> Block<D> {
    const OWN: Of<D, Self> = Of { used: <Self as Layer<D>>::params, own: <Self as Layer<D>>::params };
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

impl<D: Kernels> Default for Pending<D> {
    fn default() -> Self {
        Self { embedding: None, blocks: Vec::new(), head: None }
    }
}

impl<D: Kernels> Chunk<D> {
    /// The whole model, its features split over the tensor axis.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn whole(at: &Builder<D>, shape: &Shape) -> Result<Self> {
        Self::part(at, shape, 0..shape.blocks, None)
    }
    /// These blocks of it; the first with the embedding, the last with the head. Where the head is tied to a table that is
    /// in another chunk, both chunks hold the table, on the ranks `ends`.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn part(
        at: &Builder<D>,
        shape: &Shape,
        blocks: Range<usize>,
        ends: Option<&Group<D::Place>>,
    ) -> Result<Self> {
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
        let other = || embedding::table(at, axis, EMBEDDING, table);
        let other = (last && tied && !first).then(other).transpose()?;
        let group = at.mesh.group(axis).named("last tokens");
        let (saved, room, listed, pending) = (Vec::new(), Vec::new(), Room::default(), BTreeMap::new());
        let mut tables = Tables { embedding, other, tied };
        if let (Some(table), Some(ends)) = (tables.shared_mut(), ends) {
            table.param().held_with(ends);
        }
        let ends = Ends { tables, head };
        Ok(Self { ends, blocks, group, saved, room, listed, pending })
    }
    /// Embedding and blocks, and what they keep: the blocks in `kept`, if they keep anything.
    fn through(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        kept: &mut Kept<D>,
    ) -> Result<(Stream<D>, Option<embedding::Saved<D>>)> {
        let Self { ends, listed, .. } = self;
        let (mut x, ids) = match x {
            Input::Tokens(ids) if ends.tables.embedding.is_some() => {
                let _layer = cx.layer(EMBEDDING, Pass::Forward);
                let run = |ends: &mut Ends<D>| ends.embedding().forward(cx, ids);
                let (x, ids) = listed.using(uses, (ends, &Ends::EMBEDDING), false, run)?;
                (x, Some(ids))
            }
            Input::Activation(x) if ends.tables.embedding.is_none() => (x, None),
            _ => panic!("tokens for the first chunk, activations for the others"),
        };
        assert_eq!(cx.rows(), x.rows(), "a row for every token");
        for block in &mut self.blocks {
            let (y, s) = listed.using(uses, (block, &Block::OWN), false, |block| block.forward(cx, x))?;
            if cx.keeps() {
                kept.push(s);
            }
            x = y;
        }
        Ok((x, ids))
    }
    /// The loss or logits of what the last block gave, and what the head keeps.
    fn end(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Stream<D>,
        wanted: Option<Wanted<D::Place>>,
    ) -> Result<(Output<D>, Option<head::Saved<D>>)> {
        let Self { ends, listed, group, .. } = self;
        if ends.head.is_none() {
            return Ok((Output::Activation(x), None));
        }
        let _layer = cx.layer(HEAD, Pass::Forward);
        listed.using(uses, (ends, &Ends::HEAD), false, |ends| {
            let (head, tables) = ends.head();
            Ok(match wanted.expect("what is wanted of a head") {
                Wanted::Loss(targets) => {
                    let (loss, saved) = head.forward(cx, tables.shared(), x, targets)?;
                    (Output::Loss(loss), Some(saved))
                }
                // A record has a row for every token.
                Wanted::Logits { all } if all || cx.recording() => {
                    let logits = head.logits(cx, tables.shared(), x)?;
                    (Output::Logits(if all { logits } else { last_rows(cx, &logits) }), None)
                }
                Wanted::Logits { .. } => {
                    let last = last_rows(cx, &x.gather(group)?);
                    (Output::Logits(head.logits(cx, tables.shared(), last.into())?), None)
                }
            })
        })
    }
    /// The head's backward; what its weight half needs goes to `later` where that is not done now.
    fn head_back(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        saved: head::Saved<D>,
        last: bool,
        later: Option<&mut Pending<D>>,
    ) -> Result<Stream<D>> {
        let Self { ends, listed, .. } = self;
        listed.using(uses, (ends, &Ends::HEAD), last, |ends| {
            let layer = cx.layer(HEAD, Pass::Backward);
            let (head, tables) = ends.head();
            let (dx, pending) = head.backward_input(cx, tables.shared(), saved)?;
            drop(layer);
            match later {
                Some(later) => later.head = Some(pending),
                None => ends.head_weight(cx, pending),
            }
            Ok(dx)
        })
    }
}

impl<D: Kernels> Stage<D> for Chunk<D> {
    fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        let Self { ends: Ends { tables, head }, blocks, .. } = self;
        tables.embedding.iter_mut().for_each(|embedding| embedding.params(all));
        blocks.iter_mut().for_each(|block| block.params(all));
        head.iter_mut().for_each(|head| head.params(all));
        all.extend(tables.other.as_mut().map(RowWeight::param));
    }
    fn forward(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        wanted: Option<Wanted<D::Place>>,
    ) -> Result<Output<D>> {
        let microbatch = cx.microbatch();
        let in_flight = self.saved.iter().any(|s| s.microbatch == microbatch);
        assert!(!in_flight, "microbatch {microbatch} is in flight");
        let mut blocks = self.room.pop().unwrap_or_default();
        let (x, ids) = self.through(cx, uses, x, &mut blocks)?;
        let (output, head) = self.end(cx, uses, x, wanted)?;
        if cx.keeps() {
            self.saved.push(Saved { microbatch, ids, blocks, head });
        } else {
            self.room.push(blocks);
        }
        Ok(output)
    }
    fn backward(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        dy: Option<Stream<D>>,
        half: Half,
        last: bool,
    ) -> Result<Option<Stream<D>>> {
        let at = self.saved.iter().position(|s| s.microbatch == cx.microbatch());
        let mut saved = self.saved.swap_remove(at.expect("a forward of this microbatch"));
        let mut later = (half == Half::Input).then(Pending::default);
        let last = last && later.is_none();
        let mut dx = match saved.head {
            Some(saved) => self.head_back(cx, uses, saved, last, later.as_mut())?,
            None => dy.expect("the gradient from the chunk after"),
        };
        let Self { ends, listed, .. } = self;
        for block in self.blocks.iter_mut().rev() {
            let saved = saved.blocks.pop().expect("what each block saved");
            dx = listed.using(uses, (block, &Block::OWN), last, |block| {
                let Some(later) = &mut later else { return block.backward(cx, saved, dx) };
                let (dx, pending) = block.backward_input(cx, saved, dx)?;
                later.blocks.push(pending);
                Ok(dx)
            })?;
        }
        self.room.push(saved.blocks);
        let dx = match saved.ids {
            None => Some(dx),
            Some(ids) => listed.using(uses, (ends, &Ends::EMBEDDING), last, |ends| {
                let _layer = cx.layer(EMBEDDING, Pass::Backward);
                let (_, pending) = ends.embedding().backward_input(cx, ids, dx)?;
                match &mut later {
                    Some(later) => later.embedding = Some(pending),
                    None => ends.embedding().backward_weight(cx, pending)?,
                }
                Ok(None)
            })?,
        };
        self.pending.extend(later.map(|later| (cx.microbatch(), later)));
        Ok(dx)
    }
    fn backward_weight(&mut self, cx: &Cx<D>, uses: &mut dyn Uses<D>, last: bool) -> Result<()> {
        let Pending { embedding, blocks, head } =
            self.pending.remove(&cx.microbatch()).expect("an input half of this microbatch");
        let Self { ends, listed, .. } = self;
        if let Some(pending) = head {
            let run = |ends: &mut Ends<D>| {
                ends.head_weight(cx, pending);
                Ok(())
            };
            listed.using(uses, (ends, &Ends::HEAD), last, run)?;
        }
        for (block, pending) in self.blocks.iter_mut().rev().zip(blocks) {
            listed.using(uses, (block, &Block::OWN), last, |block| block.backward_weight(cx, pending))?;
        }
        if let Some(pending) = embedding {
            let _layer = cx.layer(EMBEDDING, Pass::Backward);
            let run = |ends: &mut Ends<D>| ends.embedding().backward_weight(cx, pending);
            listed.using(uses, (ends, &Ends::EMBEDDING), last, run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
