//! Builds a chunk: its blocks, its ends, and the table that ties the ends.
use super::ends::{Ends, LastLayer, MeanSquare};
use super::{Chunk, EMBEDDING};
use crate::build::part::{Block, BoxedLayer};
use crate::build::{positive, strategy};
use crate::model::block;
use crate::{Builder, Design, Layer, Shape, embedding};
use comm::{Axes, Axis, Group};
use kernels::Kernels;
use ops::{Error, Region, Result, RootExchange, Rotary, RowWeight, Stream, TokenShards};
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::TokenIds;

impl<D: Kernels> Chunk<D> {
    /// Builds the whole model, its features split over the tensor axis.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide a size that they must divide.
    pub fn whole(at: &Builder<D>, shape: &Shape) -> Result<Self> {
        let all = 0..shape.blocks;
        Self::part(at, shape, &[all], None)
    }
    /// Builds these runs of its blocks, in order: the first block with the embedding, the last with the head.
    /// If the head is tied to a table of another rank, both ranks hold a copy of the table; `ends` is the
    /// group of these ranks.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide a size that they must divide.
    pub fn part(
        at: &Builder<D>,
        shape: &Shape,
        runs: &[Range<usize>],
        ends: Option<&Group<D::Place>>,
    ) -> Result<Self> {
        positive("the vocabulary", shape.vocabulary)?;
        let [first, last] = at_ends(runs, shape.blocks);
        let tied = shape.tied;
        let (axis, name, sizes) = (Axis::Tp, EMBEDDING, [shape.vocabulary, shape.width]);
        let runs = transformer(at, shape, runs)?;
        let (padding, context, rate) = (shape.padding, shape.context(), shape.dropout.embedding);
        let root = shape.embedding_root;
        let ids = strategy::Embedding { axis, name, sizes, padding, context, root, rate, tied };
        let mut embedding = first.then(|| at.build(&ids)).transpose()?;
        let head = strategy::Head::of(axis, shape);
        let mut end = last.then(|| at.build(&head)).transpose()?;
        if tied {
            let of_ids = embedding.as_mut().map(|embedding| table_of(at, name, embedding)).transpose()?;
            let of_end = end.as_mut().map(|end| table_of(at, head.name, end)).transpose()?;
            let table = match (of_ids, of_end) {
                (None, Some(of_end)) => Some(of_end.insert(embedding::table(at, axis, name, sizes)?)),
                (of_ids, _) => of_ids.and_then(Option::as_mut),
            };
            if let (Some(table), Some(ends)) = (table, ends) {
                table.param().tie_with(ends);
            }
        }
        Ok(Self::new(at, (embedding, None), runs, end.map(|end| (head.name, end)), tied))
    }
    /// Builds these runs of blocks without embedding and head: rows of features to rows of the same width,
    /// with the mean squared error (MSE) as loss. Learned positions belong to the embedding and are left out.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide a size that they must divide.
    pub fn bare(at: &Builder<D>, shape: &Shape, runs: &[Range<usize>]) -> Result<Self> {
        let [first, last] = at_ends(runs, shape.blocks);
        let runs = transformer(at, shape, runs)?;
        let over = at.mesh.over(Axes::LOSS)?.axis();
        let group = at.mesh.group(Axis::Tp).named("last tokens");
        let root = RootExchange::new(at.rests, at.mesh, "outputs");
        let end = last.then(|| ("loss", BoxedLayer::new(MeanSquare { over, group, root })));
        Ok(Self::new(at, (None, first.then_some(at.region)), runs, end, false))
    }
    /// Assembles these runs of blocks between these ends, the last with its name, tied to each other or not.
    /// If rows of features enter, whole on every rank, they are cut to this region.
    pub(crate) fn new(
        at: &Builder<D>,
        (embedding, rows): (Option<BoxedLayer<D, TokenIds<D::Place>, Stream<D>>>, Option<Region>),
        runs: Vec<Vec<Block<D>>>,
        end: Option<(&str, LastLayer<D>)>,
        tied: bool,
    ) -> Self {
        let (name, end) = end.unzip();
        let ends = Ends {
            embedding,
            rows,
            end,
            tied,
            name: name.unwrap_or_default().into(),
            group: at.mesh.group(Axis::Tp).named("last tokens"),
            sharers: TokenShards::sharers(at.mesh).named("last tokens"),
        };
        Self { ends, runs, saved: Vec::new(), room: Vec::new(), pending: BTreeMap::new() }
    }
}

/// Returns the slot of the table that ties this part to the other end of the model.
fn table_of<'a, D: Kernels, X: 'static, Y: 'static>(
    at: &Builder<D>,
    name: &str,
    part: &'a mut BoxedLayer<D, X, Y>,
) -> Result<&'a mut Option<RowWeight<D>>> {
    part.table().ok_or_else(|| {
        let built = at.built.borrow();
        let by = built.iter().rev().find(|(of, _)| of == name).map_or("nobody", |(_, by)| by);
        let tied = "without the table that a tied head needs; use a model whose head is not tied";
        Error::Strategies(format!("{by} builds {name} {tied}"))
    })
}

/// Returns whether the first and the last of the model's `parts` are among these runs.
pub(crate) fn at_ends(runs: &[Range<usize>], parts: usize) -> [bool; 2] {
    [runs.first().is_some_and(|run| run.start == 0), runs.last().is_some_and(|run| run.end == parts)]
}

/// Builds these blocks of a transformer.
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
    if let Some(why) = shape.attention_conflict() {
        return Err(Error::Cannot(why));
    }
    let mut tables = Vec::new();
    let mut build = |i| {
        let block = shape.block(i);
        let rotary = block.rope.map(|rope| Rotary::among(&mut tables, block.heads.rotated, rope));
        block::shard::shard(at, Axis::Tp, &block, i, rotary.as_ref())
    };
    runs.iter().map(|run| run.clone().map(&mut build).collect()).collect()
}

impl Design {
    /// Builds these runs of the model's [parts](Self::parts), in order, on this rank. `ends` is the group of
    /// the two ranks that have the model's first and last part, if this rank is one of them.
    ///
    /// # Errors
    /// If a size is 0, or the ranks do not divide a size that they must divide.
    pub fn stage<D: Kernels>(
        &self,
        at: &Builder<D>,
        parts: &[Range<usize>],
        ends: Option<&Group<D::Place>>,
    ) -> Result<Chunk<D>> {
        let start = |part| self.start(part, at.mesh.group(Axis::Tp).size());
        let runs: Vec<_> = parts.iter().map(|run| start(run.start)..start(run.end)).collect();
        match self {
            Self::Transformer(shape) => Chunk::part(at, shape, &runs, ends),
            Self::Classifier { sizes } => Chunk::classifier(at, sizes, &runs),
            Self::Blocks(shape) => Chunk::bare(at, shape, &runs),
        }
    }
}
