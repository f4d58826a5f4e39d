//! Embedding with its vocabulary split over ranks, and learned positions.
//!
//! ```text
//! forward    E[B,D]       = Σ_t table_t[id], zero where the id lives elsewhere    all-reduce, B·D elements
//!            Y            = dropout(E + positions[position])                      no traffic
//! backward   table_t[id] += dE[B,D],  positions[position] += dE                   no traffic
//! ```
//!
//! Ranks that do not divide the vocabulary hold `⌈V/ranks⌉` rows, the last ones beyond its end: zeros that no id asks
//! for and no gradient reaches. The row of a padding id learns nothing here; a tied head still adds to it. In a sequence region the sum is scattered, positions and dropout are those of this
//! rank's tokens, and `dE` is gathered for the table.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (vocabulary parallel embedding), arXiv:1909.08053; Radford et al., GPT-2
//! (positions); `padding_idx` of `PyTorch`'s `Embedding`. Chapters: 6, 7.
use crate::build::positive;
use crate::ops::{Region, Stream, dropout, embed, embed_backward, position_rows, position_rows_backward};
use crate::placement::Pieces;
use crate::weight::{RowWeight, WholeWeight};
use crate::{Builder, Cx, Draw, Error, Kept, Layer, Param, Result};
use comm::{Axis, Group};
use kernels::Kernels;
use std::ops::Range;
use tensor::{Ids, Tensor};

/// A table of `V` rows, split by rows over the ranks of an axis, with or without a table of positions.
pub struct Embedding<D: Kernels> {
    name: String,
    table: RowWeight<D>, // [V_t,D]
    padding: Option<usize>,
    positions: Option<(WholeWeight<D>, usize)>, // [n,D], n
    rate: f64,
    group: Group<D>,
    region: Region,
}

/// What backward needs.
pub struct Saved<D: Kernels> {
    ids: Kept<Ids<D>>,
    positions: Option<Ids<D>>,
}

/// What the weight half needs.
pub struct Pending<D: Kernels> {
    ids: Ids<D>,
    positions: Option<Ids<D>>,
    dy: Stream<D>,
    whole: Tensor<D>,
}

impl<D: Kernels> Embedding<D> {
    /// The parameters `name[vocabulary, width]`, with or without an id of padding, and, where positions are learned,
    /// `positions[context, width]`; dropout of this rate after them.
    ///
    /// # Errors
    /// If there are no such values, a size is 0, or the vocabulary lacks the padding.
    pub fn shard(
        at: &Builder<D>,
        axis: Axis,
        name: &str,
        [vocabulary, width]: [usize; 2],
        padding: Option<usize>,
        context: Option<usize>,
        rate: f64,
    ) -> Result<Self> {
        if let Some(id) = padding.filter(|id| *id >= vocabulary) {
            let (what, seen, wanted) = ("the id of padding", id.to_string(), format!("below {vocabulary}"));
            return Err(Error::Size { what: what.into(), seen, wanted });
        }
        let draw = Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        let table = RowWeight::new(at, axis, name, [vocabulary, width], Pieces::Padded, draw)?;
        let learned = |n: usize| {
            positive("the number of positions", n)?;
            Ok::<_, Error>((WholeWeight::new(at, "positions", [n, width], at.region.placement(), draw)?, n))
        };
        let (positions, group) = (context.map(learned).transpose()?, at.mesh.group(axis).named(name));
        Ok(Self { name: name.into(), table, padding, positions, rate, group, region: at.region })
    }
    /// The table, for a head that is tied to it.
    pub fn table(&mut self) -> &mut RowWeight<D> {
        &mut self.table
    }
    /// The table, to read.
    pub(crate) fn rows(&self) -> &RowWeight<D> {
        &self.table
    }
}

/// The positions of these of a call's tokens.
fn places<D: Kernels>(cx: &Cx<D>, device: &D, mine: &Range<usize>, context: usize) -> Result<Ids<D>> {
    if cx.positions() > context {
        return Err(Error::Size {
            what: "the length of a sequence".into(),
            seen: cx.positions().to_string(),
            wanted: format!("at most {context}, as many positions as the model has learned"),
        });
    }
    let all = cx.tokens().iter().flat_map(|t| t.position as u32..(t.position + t.len) as u32);
    Ok(Ids::new(device, all.skip(mine.start).take(mine.len()), context)?)
}

impl<D: Kernels> Layer<D> for Embedding<D> {
    type In = Ids<D>;
    type Out = Stream<D>; // Y[B,D], the same on every rank, or this rank's tokens
    type Saved = Saved<D>;
    type Pending = Pending<D>;

    fn forward(&self, cx: &Cx<D>, ids: Ids<D>) -> Result<(Stream<D>, Saved<D>)> {
        let rank = self.group.rank();
        let mut y = embed(&self.table.rows()?, rank, &ids).reduce(&self.group, self.region)?;
        let mut positions = None;
        if let Some((table, context)) = &self.positions {
            let at = places(cx, ids.device(), &y.mine(), *context)?;
            y = position_rows(y, &table.whole()?, &at);
            positions = Some(at);
        }
        y = dropout(cx, y, cx.dropout(self.rate, &self.name).as_ref());
        cx.saw(&self.name, "out", |_| Ok(y.seen()))?;
        Ok((y, Saved { ids: cx.keep(ids), positions }))
    }

    /// Ids have no gradient; they come back themselves.
    fn backward_input(&mut self, cx: &Cx<D>, saved: Saved<D>, dy: Stream<D>) -> Result<(Ids<D>, Pending<D>)> {
        let ids = saved.ids.open();
        let dy = dropout(cx, dy, cx.dropout(self.rate, &self.name).as_ref());
        let whole = dy.gather(&self.group)?;
        Ok((ids.clone(), Pending { ids, positions: saved.positions, dy, whole }))
    }

    fn backward_weight(&mut self, _: &Cx<D>, p: Pending<D>) -> Result<()> {
        embed_backward(&mut self.table, self.group.rank(), &p.ids, self.padding, &p.whole);
        if let (Some((table, _)), Some(at)) = (&mut self.positions, &p.positions) {
            position_rows_backward(table, at, &p.dy);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        into.push(self.table.param());
        into.extend(self.positions.as_mut().map(|(table, _)| table.param()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, Given, proves, proves_in_regions};
    use comm::Op;
    use tensor::Scalar;

    const WIDTH: usize = 5;
    struct Table {
        vocabulary: usize,
        padding: Option<usize>,
        context: Option<usize>,
    }
    impl Case for Table {
        type Layer<D: Kernels> = Embedding<D>;
        fn features(&self) -> [usize; 2] {
            [self.vocabulary, WIDTH]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Embedding<D>> {
            let shape = [self.vocabulary, WIDTH];
            Embedding::shard(at, Axis::Tp, "table", shape, self.padding, self.context, 0.0)
        }
        fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
            let mut y = reference::embed(&g.weights["table"], &g.ids, WIDTH);
            let dtable = reference::embed_backward(&g.dy, &g.ids, [self.vocabulary, WIDTH], self.padding);
            let mut gradients = [("table".to_string(), dtable)].into();
            if let Some(n) = self.context {
                let at: Vec<u32> = g.lengths.iter().flat_map(|&n| 0..n as u32).collect();
                let rows = reference::embed(&g.weights["positions"], &at, WIDTH);
                y.iter_mut().zip(rows).for_each(|(y, row)| *y += row);
                let all: &mut std::collections::BTreeMap<_, _> = &mut gradients;
                all.insert("positions".into(), reference::embed_backward(&g.dy, &at, [n, WIDTH], None));
            }
            Answer { y, dx: vec![], gradients }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * WIDTH)] // Y
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllGather, share * WIDTH), (Op::ReduceScatter, ranks * share * WIDTH)] // dY; Y
        }
        fn is_still(&self, name: &str, row: usize) -> bool {
            name == "table" && Some(row) == self.padding
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            if regions { self.context.map_or(0, |n| n * WIDTH) } else { 0 }
        }
    }

    /// Kills: a mask off by one, rows of other ranks not zero, an id that comes twice counted once, padding that is
    /// part of the table, positions by row, ranks without any row.
    #[test]
    fn embedding_equals_embedding_bit_for_bit() {
        proves(&Table { vocabulary: 24, padding: None, context: None });
        for vocabulary in [5, 7, 9] {
            proves(&Table { vocabulary, padding: None, context: Some(6) });
        }
    }

    /// Ids of padding that are read: on every rank, in the first and the last row of a share, alone in one. Kills: a row
    /// of padding that learns, its neighbours that do not, a row counted in the share and not in the table, padding of
    /// the table of positions.
    #[test]
    fn embedding_equals_embedding_with_padding() {
        for padding in 0..5 {
            proves(&Table { vocabulary: 5, padding: Some(padding), context: Some(6) });
        }
        proves_in_regions(&Table { vocabulary: 7, padding: Some(3), context: None });
    }

    /// Kills: positions of other ranks' tokens, a table of positions whose gradient is not summed.
    #[test]
    fn embedding_equals_embedding_in_sequence_regions() {
        proves_in_regions(&Table { vocabulary: 7, padding: None, context: Some(6) });
    }

    #[test]
    fn sequences_beyond_the_learned_positions_are_refused() {
        let (device, mesh) = (tensor::Cpu::<f32>::default(), comm::Mesh::alone());
        let at = Builder::new(&device, &mesh, &crate::Random { seed: 0 });
        let table = Table { vocabulary: 4, padding: None, context: Some(3) }.build(&at).unwrap();
        let ids = Ids::new(&device, &[1; 4], 4).unwrap();
        let why = table.forward(&Cx::infer([4]), ids).err().unwrap().to_string();
        let wanted = "at most 3, as many positions as the model has learned";
        assert_eq!(why, format!("the length of a sequence is 4; it must be {wanted}"));
        let beyond = Table { vocabulary: 4, padding: Some(4), context: None }.build(&at).err().unwrap();
        assert_eq!(beyond.to_string(), "the id of padding is 4; it must be below 4");
    }
}
