//! A run of consecutive blocks, with or without what stands at the ends of a model: the whole of it, or what one stage of a
//! pipeline holds. Parameter names are those of the whole model.
mod ends;

use ends::MeanSquare;
pub(crate) use ends::{Ends, Tables};

use crate::model::block;
use crate::model::build::positive;
use crate::model::end::{self, AnyEnd};
use crate::model::part;
use crate::model::stage::{Half, Input, Of, Output, Room, Stage, Wanted};
use crate::model::strategy;
use crate::ops::{Region, Stream};
use crate::param::weight::RowWeight;
use crate::{
    Block, Builder, Cx, Design, Embedding, Layer, Param, Positions, Result, Rotary, Shape, TokenShards, Uses,
    embedding,
};
use comm::{Axes, Axis, Group};
use kernels::Kernels;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::Direction;

/// A part of a model whose blocks are layers of type `B`: a transformer's, if it is not said otherwise.
pub struct Chunk<D: Kernels, B: Layer<D> = Block<D>> {
    ends: Ends<D>,
    runs: Vec<Vec<B>>,        // of consecutive blocks
    saved: Vec<Saved<D, B>>,  // of what is in flight
    room: Vec<Vec<B::Saved>>, // for what blocks will save: the lists of microbatches that are back
    listed: Room<D>,
    pending: BTreeMap<Flight, Pending<D, B>>,
}

/// What is in flight: a run of blocks, a microbatch, a slice.
type Flight = (usize, usize, usize);

/// What the embedding is called in a profile, as in the model.
const EMBEDDING: &str = "embedding";
/// Of what nobody wants there is no gradient, and no layer before it that asks.
const WANTED: &str = "the gradient of what a later layer was given";

struct Saved<D: Kernels, B: Layer<D>> {
    of: Flight,
    ids: Option<part::Of<D, Embedding<D>>>,
    blocks: Vec<B::Saved>,
    dx: Option<Stream<D>>, // of what the last block gave, where the end is here
}

struct Pending<D: Kernels, B: Layer<D>> {
    embedding: Option<part::Pending<D, Embedding<D>>>,
    blocks: Vec<B::Pending>, // last block first
}

impl<D: Kernels> Chunk<D> {
    /// The whole model, its features split over the tensor axis.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn whole(at: &Builder<D>, shape: &Shape) -> Result<Self> {
        let all = 0..shape.blocks;
        Self::part(at, shape, &[all], None)
    }
    /// These runs of its blocks, in order; the first block with the embedding, the last with the head. Where the head is tied
    /// to a table that another rank has, both hold the table, on the ranks `ends`.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn part(
        at: &Builder<D>,
        shape: &Shape,
        runs: &[Range<usize>],
        ends: Option<&Group<D::Place>>,
    ) -> Result<Self> {
        positive("the vocabulary", shape.vocabulary)?;
        let ([first, last], tied) = (at_ends(runs, shape.blocks), shape.tied);
        let (axis, name, sizes) = (Axis::LAYERS, EMBEDDING, [shape.vocabulary, shape.width]);
        let runs = transformer(at, shape, runs)?;
        let (padding, context, rate) = (shape.padding, shape.context(), shape.dropout.embedding);
        let ids = strategy::Embedding { axis, name, sizes, padding, context, rate, tied };
        let embedding = first.then(|| at.embedding(&ids)).transpose()?;
        let head = strategy::Head::of(axis, shape);
        let end = last.then(|| at.head(&head)).transpose()?.map(|end| (head.name, end));
        let other = || embedding::table(at, axis, name, sizes);
        let other = (last && tied && !first).then(other).transpose()?;
        let mut tables = Tables { embedding, other, tied };
        if let (Some(table), Some(ends)) = (tables.shared_mut(), ends) {
            table.param().held_with(ends);
        }
        Ok(Self::new(at, (tables, None), runs, end))
    }
    /// These runs of its blocks alone, without embedding and head: rows of features to rows of as many, the loss the mean square of what
    /// is missing. Learned positions, which are the embedding's, it has none.
    ///
    /// # Errors
    /// If a size is 0 or the ranks do not divide what they should share.
    pub fn bare(at: &Builder<D>, shape: &Shape, runs: &[Range<usize>]) -> Result<Self> {
        let [first, last] = at_ends(runs, shape.blocks);
        let runs = transformer(at, shape, runs)?;
        let (over, group) =
            (at.mesh.over(Axes::LOSS)?.axis(), at.mesh.group(Axis::LAYERS).named("last tokens"));
        let front = (Tables::NONE, first.then_some(at.region));
        Ok(Self::new(at, front, runs, last.then(|| ("loss", end::any(MeanSquare { over, group })))))
    }
}

/// Whether the first and the last of so many parts are among these runs of them.
pub(crate) fn at_ends(runs: &[Range<usize>], parts: usize) -> [bool; 2] {
    [runs.first().is_some_and(|run| run.start == 0), runs.last().is_some_and(|run| run.end == parts)]
}

/// These blocks of a transformer.
fn transformer<D: Kernels>(
    at: &Builder<D>,
    shape: &Shape,
    runs: &[Range<usize>],
) -> Result<Vec<Vec<Block<D>>>> {
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
    let block = |i| block::shard(at, Axis::LAYERS, shape, i, rotary.clone());
    runs.iter().map(|run| run.clone().map(block).collect()).collect()
}

impl<D: Kernels, B: Layer<D, In = Stream<D>, Out = Stream<D>>> Chunk<D, B> {
    const BLOCK: Of<D, B> = Of { used: B::params, own: B::params };

    /// These runs of blocks between these ends, the last with its name. Where rows of features enter, whole on every rank, they
    /// become those of a region.
    pub(crate) fn new(
        at: &Builder<D>,
        (tables, rows): (Tables<D>, Option<Region>),
        runs: Vec<Vec<B>>,
        end: Option<(&str, AnyEnd<D>)>,
    ) -> Self {
        let (name, end) = end.unzip();
        let ends = Ends {
            tables,
            rows,
            end,
            name: name.unwrap_or_default().into(),
            group: at.mesh.group(Axis::LAYERS).named("last tokens"),
            sharers: TokenShards::sharers(at.mesh).named("last tokens"),
        };
        let (saved, room, listed, pending) = (Vec::new(), Vec::new(), Room::default(), BTreeMap::new());
        Self { ends, runs, saved, room, listed, pending }
    }
    /// Embedding and blocks, and what they keep: the blocks in `kept`, if they keep anything.
    fn through(
        &mut self,
        run: usize,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        kept: &mut Vec<B::Saved>,
    ) -> Result<(Stream<D>, Option<part::Of<D, Embedding<D>>>)> {
        let Self { ends, listed, .. } = self;
        let first = run == 0 && (ends.tables.embedding.is_some() || ends.rows.is_some());
        let (mut x, ids) = match x {
            Input::Tokens(ids) if first && ends.tables.embedding.is_some() => {
                let _layer = cx.layer(EMBEDDING, Direction::Forward);
                let run = |ends: &mut Ends<D>| ends.embedding().forward(cx, ids);
                let (x, ids) = listed.using(uses, (ends, &Ends::EMBEDDING), false, run)?;
                (x, Some(ids))
            }
            Input::Rows(x) if first && let Some(region) = ends.rows => (Stream::cut(&x, region), None),
            Input::Activation(x) if !first => (x, None),
            _ => panic!("tokens or features for the first chunk, activations for the others"),
        };
        assert_eq!(cx.rows(), x.rows(), "a row for every token");
        let blocks = &mut self.runs[run];
        for i in 0..blocks.len() {
            if let Some(next) = blocks.get_mut(i + 1).filter(|_| uses.moves()) {
                listed.with(|all| (Self::BLOCK.used)(next, all), |params| uses.ahead(params))?;
            }
            let block = &mut blocks[i];
            let (y, s) = listed.using(uses, (block, &Self::BLOCK), false, |block| block.forward(cx, x))?;
            if cx.keeps() {
                kept.push(s);
            }
            x = y;
        }
        Ok((x, ids))
    }
    /// Whether the end stands behind a run.
    fn ends(&self, run: usize) -> bool {
        self.ends.end.is_some() && run + 1 == self.runs.len()
    }
    /// The loss or logits of what the last block gave. Where a backward will follow, the end's own is done at once, so that
    /// only dX is kept of it, however many microbatches are in flight.
    fn end(
        &mut self,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Stream<D>,
        wanted: Option<Wanted<D>>,
    ) -> Result<(Output<D>, Option<Stream<D>>)> {
        let first = self.ends.rows.is_some() && self.runs.iter().all(Vec::is_empty);
        let Self { ends, listed, .. } = self;
        let (name, wanted) = (ends.name.clone(), wanted.expect("what is wanted of the end"));
        listed.using(uses, (ends, &Ends::HEAD), false, |ends| {
            let layer = cx.layer(&name, Direction::Forward);
            let (output, saved) = ends.forward(cx, x, wanted)?;
            drop(layer);
            if saved.is_none() {
                return Ok((output, None));
            }
            let _layer = cx.layer(&name, Direction::Backward);
            let (dx, pending) = ends.back(cx, saved, first)?;
            ends.backward_weight(cx, pending)?;
            Ok((output, dx))
        })
    }
}

impl<D: Kernels, B: Layer<D, In = Stream<D>, Out = Stream<D>>> Stage<D> for Chunk<D, B> {
    fn list<'a>(&'a mut self, all: &mut Vec<&'a mut Param<D>>) {
        let Self { ends: Ends { tables, end, .. }, runs, .. } = self;
        if let Some(embedding) = &mut tables.embedding {
            embedding.params(all);
        }
        for block in runs.iter_mut().flatten() {
            block.params(all);
        }
        if let Some(end) = end {
            end.params(all);
        }
        all.extend(tables.other.as_mut().map(RowWeight::param));
    }
    fn forward(
        &mut self,
        run: usize,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        x: Input<D>,
        wanted: Option<Wanted<D>>,
    ) -> Result<Output<D>> {
        let of = flight(run, cx);
        assert!(self.saved.iter().all(|s| s.of != of), "microbatch {} is in flight", cx.microbatch());
        let mut blocks = self.room.pop().unwrap_or_default();
        let (x, ids) = self.through(run, cx, uses, x, &mut blocks)?;
        let (output, dx) =
            if self.ends(run) { self.end(cx, uses, x, wanted)? } else { (Output::Activation(x), None) };
        if cx.keeps() {
            self.saved.push(Saved { of, ids, blocks, dx });
        } else {
            self.room.push(blocks);
        }
        Ok(output)
    }
    fn backward(
        &mut self,
        run: usize,
        cx: &Cx<D>,
        uses: &mut dyn Uses<D>,
        dy: Option<Stream<D>>,
        half: Half,
        last: bool,
    ) -> Result<Option<Stream<D>>> {
        let of = flight(run, cx);
        let at = self.saved.iter().position(|s| s.of == of);
        let mut saved = self.saved.swap_remove(at.expect("a forward of this microbatch"));
        let none = || Pending { embedding: None, blocks: Vec::new() };
        let mut later = (half == Half::Input).then(none);
        let (last, at_end) = (last && later.is_none(), self.ends(run));
        let mut dx = if at_end { saved.dx } else { Some(dy.expect("the gradient from the chunk after")) };
        let Self { ends, listed, .. } = self;
        if last && at_end {
            listed.complete(uses, (ends, &Ends::HEAD))?;
        }
        for (i, block) in self.runs[run].iter_mut().enumerate().rev() {
            let saved = saved.blocks.pop().expect("what each block saved");
            let (dy, first) = (dx.take().expect(WANTED), run == 0 && i == 0 && ends.rows.is_some());
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
        self.pending.extend(later.map(|later| (of, later)));
        Ok(dx)
    }
    fn backward_weight(&mut self, run: usize, cx: &Cx<D>, uses: &mut dyn Uses<D>, last: bool) -> Result<()> {
        let pending = self.pending.remove(&flight(run, cx));
        let (Pending { embedding, blocks }, at_end) =
            (pending.expect("an input half of this microbatch"), self.ends(run));
        let Self { ends, listed, .. } = self;
        if last && at_end {
            listed.complete(uses, (ends, &Ends::HEAD))?;
        }
        for (block, pending) in self.runs[run].iter_mut().rev().zip(blocks) {
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

/// What is in flight.
fn flight<D: Kernels>(run: usize, cx: &Cx<D>) -> Flight {
    (run, cx.microbatch(), cx.pass().slice)
}

impl Design {
    /// These runs of parts of the model, in order, on this rank. `ends` are the ranks that have its first and last part, where this is one of them
    /// and they are two.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide what they should share.
    pub fn stage<D: Kernels>(
        &self,
        at: &Builder<D>,
        parts: &[Range<usize>],
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
pub(crate) mod tests;
