//! A run of consecutive blocks, with or without what stands at the ends of a model: the whole of it, or what one stage of a
//! pipeline holds. Parameter names are those of the whole model.
mod ends;

pub(crate) use ends::{End, Ends, Tables};

use crate::model::build::positive;
use crate::model::stage::{Half, Input, Of, Output, Room, Stage, Wanted};
use crate::ops::{Region, Stream};
use crate::param::weight::RowWeight;
use crate::{
    Block, Builder, Cx, Design, Embedding, Head, Layer, Param, Positions, Result, Rotary, Shape, Uses,
    embedding, head,
};
use comm::{Axes, Axis, Group};
use kernels::Kernels;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::Direction;

/// A part of a model whose blocks are layers of type `B`: a transformer's, if it is not said otherwise.
pub struct Chunk<D: Kernels, B: Layer<D> = Block<D>> {
    ends: Ends<D>,
    blocks: Vec<B>,
    saved: Vec<Saved<D, B>>,  // of the microbatches in flight
    room: Vec<Vec<B::Saved>>, // for what blocks will save: the lists of microbatches that are back
    listed: Room<D>,
    pending: BTreeMap<usize, Pending<D, B>>,
}

/// What the embedding is called in a profile, as in the model.
const EMBEDDING: &str = "embedding";
/// Of what nobody wants there is no gradient, and no layer before it that asks.
const WANTED: &str = "the gradient of what a later layer was given";

struct Saved<D: Kernels, B: Layer<D>> {
    microbatch: usize,
    ids: Option<embedding::Saved<D>>,
    blocks: Vec<B::Saved>,
    end: Option<ends::Saved<D>>,
}

struct Pending<D: Kernels, B: Layer<D>> {
    embedding: Option<embedding::Pending<D>>,
    blocks: Vec<B::Pending>, // last block first
    head: Option<head::Pending<D>>,
}

impl<D: Kernels, B: Layer<D>> Default for Pending<D, B> {
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
        positive("the vocabulary", shape.vocabulary)?;
        let (first, last, tied) = (blocks.start == 0, blocks.end == shape.blocks, shape.tied);
        let (axis, table) = (Axis::LAYERS, [shape.vocabulary, shape.width]);
        let blocks = transformer(at, shape, blocks)?;
        let rate = shape.dropout.embedding;
        let embedding = || Embedding::shard(at, axis, EMBEDDING, table, shape.padding, shape.context(), rate);
        let embedding = first.then(embedding).transpose()?;
        let head = last.then(|| Head::shard(at, axis, shape)).transpose()?.map(Box::new);
        let other = || embedding::table(at, axis, EMBEDDING, table);
        let other = (last && tied && !first).then(other).transpose()?;
        let mut tables = Tables { embedding, other, tied };
        if let (Some(table), Some(ends)) = (tables.shared_mut(), ends) {
            table.param().held_with(ends);
        }
        Ok(Self::new(at, (tables, None), blocks, head.map(End::Head)))
    }
    /// These blocks alone, without embedding and head: rows of features to rows of as many, the loss the mean square of what
    /// is missing. Learned positions, which are the embedding's, it has none.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn bare(at: &Builder<D>, shape: &Shape, blocks: Range<usize>) -> Result<Self> {
        let (first, last) = (blocks.start == 0, blocks.end == shape.blocks);
        let blocks = transformer(at, shape, blocks)?;
        let over = at.mesh.over(Axes::LOSS)?.axis();
        let front = (Tables::NONE, first.then_some(at.region));
        Ok(Self::new(at, front, blocks, last.then_some(End::MeanSquare(over))))
    }
}

/// These blocks of a transformer.
fn transformer<D: Kernels>(at: &Builder<D>, shape: &Shape, blocks: Range<usize>) -> Result<Vec<Block<D>>> {
    for (what, size) in [
        ("the width", shape.width),
        ("the number of blocks", shape.blocks),
        ("the head size", shape.heads.dim),
        ("the hidden size", shape.hidden),
    ] {
        positive(what, size)?;
    }
    let rotary = match shape.positions {
        Positions::Rotary(rope) => Some(Rotary::new(shape.heads.dim, rope)),
        Positions::Learned(_) => None,
    };
    blocks.map(|i| Block::shard(at, Axis::LAYERS, shape, i, rotary.clone())).collect()
}

impl<D: Kernels, B: Layer<D, In = Stream<D>, Out = Stream<D>>> Chunk<D, B> {
    const BLOCK: Of<D, B> = Of { used: B::params, own: B::params };

    /// These blocks between these ends. Where rows of features enter, whole on every rank, they become those of a region.
    pub(crate) fn new(
        at: &Builder<D>,
        (tables, rows): (Tables<D>, Option<Region>),
        blocks: Vec<B>,
        end: Option<End<D>>,
    ) -> Self {
        let name = if let Some(End::Head(head)) = &end { head.name().clone() } else { "loss".into() };
        let ends = Ends { tables, rows, end, name, group: at.mesh.group(Axis::LAYERS).named("last tokens") };
        let (saved, room, listed, pending) = (Vec::new(), Vec::new(), Room::default(), BTreeMap::new());
        Self { ends, blocks, saved, room, listed, pending }
    }
    /// Embedding and blocks, and what they keep: the blocks in `kept`, if they keep anything.
    fn through(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        kept: &mut Vec<B::Saved>,
    ) -> Result<(Stream<D>, Option<embedding::Saved<D>>)> {
        let Self { ends, listed, .. } = self;
        let first = ends.tables.embedding.is_some() || ends.rows.is_some();
        let (mut x, ids) = match x {
            Input::Tokens(ids) if ends.tables.embedding.is_some() => {
                let _layer = cx.layer(EMBEDDING, Direction::Forward);
                let run = |ends: &mut Ends<D>| ends.embedding().forward(cx, ids);
                let (x, ids) = listed.using(uses, (ends, &Ends::EMBEDDING), false, run)?;
                (x, Some(ids))
            }
            Input::Rows(x) if let Some(region) = ends.rows => (Stream::cut(&x, region), None),
            Input::Activation(x) if !first => (x, None),
            _ => panic!("tokens or features for the first chunk, activations for the others"),
        };
        assert_eq!(cx.rows(), x.rows(), "a row for every token");
        for block in &mut self.blocks {
            let (y, s) = listed.using(uses, (block, &Self::BLOCK), false, |block| block.forward(cx, x))?;
            if cx.keeps() {
                kept.push(s);
            }
            x = y;
        }
        Ok((x, ids))
    }
    /// The loss or logits of what the last block gave, and what the end keeps.
    fn end(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Stream<D>,
        wanted: Option<Wanted<D>>,
    ) -> Result<(Output<D>, Option<ends::Saved<D>>)> {
        let Self { ends, listed, .. } = self;
        if ends.end.is_none() {
            return Ok((Output::Activation(x), None));
        }
        let (name, wanted) = (ends.name.clone(), wanted.expect("what is wanted of the end"));
        let _layer = cx.layer(&name, Direction::Forward);
        listed.using(uses, (ends, &Ends::HEAD), false, |ends| ends.forward(cx, x, wanted))
    }
    /// The end's backward; what its weight half needs goes to `later` where that is not done now.
    fn end_back(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        saved: ends::Saved<D>,
        last: bool,
        later: Option<&mut Pending<D, B>>,
    ) -> Result<Option<Stream<D>>> {
        let first = self.blocks.is_empty() && self.ends.rows.is_some();
        let Self { ends, listed, .. } = self;
        let name = ends.name.clone();
        let _layer = cx.layer(&name, Direction::Backward);
        let last = last && matches!(ends.end, Some(End::Head(_))); // the other has no parameters
        listed.using(uses, (ends, &Ends::HEAD), last, |ends| {
            let (dx, pending) = ends.backward_input(cx, saved, first)?;
            match later {
                Some(later) => later.head = pending,
                None => ends.backward_weight(pending),
            }
            Ok(dx)
        })
    }
}

impl<D: Kernels, B: Layer<D, In = Stream<D>, Out = Stream<D>>> Stage<D> for Chunk<D, B> {
    fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        let Self { ends: Ends { tables, end, .. }, blocks, .. } = self;
        if let Some(embedding) = &mut tables.embedding {
            embedding.params(all);
        }
        for block in blocks {
            block.params(all);
        }
        if let Some(end) = end {
            end.params(all);
        }
        all.extend(tables.other.as_mut().map(RowWeight::param));
    }
    fn forward(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        wanted: Option<Wanted<D>>,
    ) -> Result<Output<D>> {
        let microbatch = cx.microbatch();
        let in_flight = self.saved.iter().any(|s| s.microbatch == microbatch);
        assert!(!in_flight, "microbatch {microbatch} is in flight");
        let mut blocks = self.room.pop().unwrap_or_default();
        let (x, ids) = self.through(cx, uses, x, &mut blocks)?;
        let (output, end) = self.end(cx, uses, x, wanted)?;
        if cx.keeps() {
            self.saved.push(Saved { microbatch, ids, blocks, end });
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
        let mut dx = match saved.end {
            Some(saved) => self.end_back(cx, uses, saved, last, later.as_mut())?,
            None => Some(dy.expect("the gradient from the chunk after")),
        };
        let Self { ends, listed, .. } = self;
        for (i, block) in self.blocks.iter_mut().enumerate().rev() {
            let saved = saved.blocks.pop().expect("what each block saved");
            let (dy, first) = (dx.take().expect(WANTED), i == 0 && ends.rows.is_some());
            dx = listed.using(uses, (block, &Self::BLOCK), last, |block| {
                let (dx, pending) = match &later {
                    _ if first => (None, block.backward_first(cx, saved, dy)?),
                    None => return block.backward(cx, saved, dy).map(Some),
                    Some(_) => {
                        block.backward_input(cx, saved, dy).map(|(dx, pending)| (Some(dx), pending))?
                    }
                };
                match &mut later {
                    Some(later) => later.blocks.push(pending),
                    None => block.backward_weight(cx, pending)?,
                }
                Ok(dx)
            })?;
        }
        self.room.push(saved.blocks);
        let dx = match saved.ids {
            None => dx,
            Some(ids) => listed.using(uses, (ends, &Ends::EMBEDDING), last, |ends| {
                let _layer = cx.layer(EMBEDDING, Direction::Backward);
                let (_, pending) = ends.embedding().backward_input(cx, ids, dx.expect(WANTED))?;
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
            let name = ends.name.clone();
            let _layer = cx.layer(&name, Direction::Backward);
            let run = |ends: &mut Ends<D>| {
                ends.backward_weight(Some(pending));
                Ok(())
            };
            listed.using(uses, (ends, &Ends::HEAD), last, run)?;
        }
        for (block, pending) in self.blocks.iter_mut().rev().zip(blocks) {
            listed.using(uses, (block, &Self::BLOCK), last, |block| block.backward_weight(cx, pending))?;
        }
        if let Some(pending) = embedding {
            let _layer = cx.layer(EMBEDDING, Direction::Backward);
            let run = |ends: &mut Ends<D>| ends.embedding().backward_weight(cx, pending);
            listed.using(uses, (ends, &Ends::EMBEDDING), last, run)?;
        }
        Ok(())
    }
}

impl Design {
    /// These parts of the model, on this rank. `ends` are the ranks that have its first and last part, where this is one of them
    /// and they are two.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide what they should share.
    pub fn stage<D: Kernels>(
        &self,
        at: &Builder<D>,
        parts: Range<usize>,
        ends: Option<&Group<D::Place>>,
    ) -> Result<Box<dyn Stage<D>>> {
        Ok(match self {
            Self::Transformer(shape) => Box::new(Chunk::part(at, shape, parts, ends)?),
            Self::Classifier { sizes } => Box::new(Chunk::classifier(at, sizes, parts)?),
            Self::Blocks(shape) => Box::new(Chunk::bare(at, shape, parts)?),
        })
    }
}

#[cfg(test)]
mod tests;
