//! Embedding with its vocabulary split over ranks, and learned positions.
//!
//! ```text
//! forward    E[B,D]       = Σ_t table_t[id], zero where the id lives elsewhere    all-reduce, B·D elements
//!            Y            = dropout(E·√n + positions[position])                   no traffic
//! backward   table_t[id] += dE[B,D],  positions[position] += dE                   no traffic
//! ```
//!
//! If the ranks do not divide the vocabulary, each holds `⌈V/ranks⌉` rows, in whole blocks of the optimizer's
//! state; the last ranks have rows beyond its end, zeros that no id reads and no gradient reaches. The row of
//! a padding id gets no gradient here; a tied head still adds to it. Under sequence parallelism the sum is
//! scattered, positions and dropout apply to this rank's tokens, and `dE` is gathered for the table.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (vocabulary parallel embedding), arXiv:1909.08053; Radford et al.,
//! GPT-2 (positions); `padding_idx` of `PyTorch`'s `Embedding`. Chapter: vocabulary and loss.
use crate::build::{positive, strategy};
use crate::{Builder, InputHalf, Layer, Params};
use comm::{Axis, Group};
use kernels::Kernels;
use ops::{
    Draw, Error, KeptValue, PassContext, Region, Result, RowWeight, Stream, WholeWeight, dropout, embed,
    embed_backward, position_rows, position_rows_backward, stretch,
};
use std::ops::Range;
use tensor::{Device, Tensor, TokenIds};

/// A table of `V` rows, split by rows over the ranks of an axis, with or without a table of positions.
pub struct Embedding<D: Kernels> {
    name: String,
    table: Option<RowWeight<D>>, // [V_t,D]; none while a tied head has it
    padding: Option<usize>,
    root: Option<usize>,
    positions: Option<(WholeWeight<D>, usize)>, // [n,D], n
    rate: f64,
    group: Group<D::Place>,
    region: Region,
}

/// Ids that were looked up, and positions if they are learned.
type Read<P> = (TokenIds<P>, Option<TokenIds<P>>);
/// Values that backward needs.
pub type Saved<D> = KeptValue<Read<<D as Device>::Place>>;
/// Values that the weight half of backward needs: the ids and positions, dY of this rank's tokens, and dY of
/// all tokens.
pub type Pending<D> = (Read<<D as Device>::Place>, Stream<D>, Tensor<D>);

/// Invariant: a tied head has returned the table that it borrowed.
const LENT: &str = "the tied head has returned the table";

fn draw(width: usize) -> Draw {
    Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() }
}

/// Builds the table `name[vocabulary, width]` alone, for a tied head whose embedding is on other ranks.
///
/// # Errors
/// If the values are missing.
pub(crate) fn table<D: Kernels>(
    at: &Builder<D>,
    axis: Axis,
    name: &str,
    sizes: [usize; 2],
) -> Result<RowWeight<D>> {
    RowWeight::cut(at, axis, name, (at.vocabulary(sizes[0]), sizes[1]), draw(sizes[1]))
}

impl<D: Kernels> Embedding<D> {
    /// Builds the parameters that `ids` describes; dropout comes after them.
    ///
    /// # Errors
    /// If the values are missing, a size is 0, or the padding id is outside the vocabulary.
    pub fn shard(at: &Builder<D>, ids: &strategy::Embedding) -> Result<Self> {
        let strategy::Embedding {
            axis, name, sizes: [vocabulary, width], padding, context, root, rate, ..
        } = *ids;
        if let Some(id) = padding.filter(|id| *id >= vocabulary) {
            return Err(Error::size("the padding id", id, format!("below {vocabulary}")));
        }
        let (draw, table) = (draw(width), Some(table(at, axis, name, [vocabulary, width])?));
        let learned = |n: usize| {
            positive("the number of positions", n)?;
            Ok::<_, Error>((WholeWeight::new(at, "positions", [n, width], at.placement(), draw)?, n))
        };
        let positions = context.map(learned).transpose()?;
        let group = at.mesh.group(axis).named(name);
        Ok(Self { name: name.into(), table, padding, root, positions, rate, group, region: at.region })
    }
}

/// Returns the positions of the tokens `mine` of a call.
fn places<D: Kernels>(
    cx: &PassContext<D>,
    at: &D::Place,
    mine: &Range<usize>,
    context: usize,
) -> Result<TokenIds<D::Place>> {
    if cx.positions() > context {
        let wanted = format!("at most {context}, the number of learned positions");
        return Err(Error::size("the length of a sequence", cx.positions(), wanted));
    }
    let numbers = cx.tokens().iter().flat_map(|t| t.position as u32..(t.position + t.len) as u32);
    Ok(TokenIds::new(at, numbers.skip(mine.start).take(mine.len()), context)?)
}

impl<D: Kernels> Layer<D> for Embedding<D> {
    type In = TokenIds<D::Place>;
    type Out = Stream<D>; // Y[B,D], the same on every rank, or this rank's tokens
    type Saved = Saved<D>;
    type Pending = Pending<D>;

    fn forward(&self, cx: &PassContext<D>, ids: TokenIds<D::Place>) -> Result<(Stream<D>, Saved<D>)> {
        let rank = self.group.rank();
        let mut y =
            embed(&self.table.as_ref().expect(LENT).rows()?, rank, &ids).reduce(&self.group, self.region)?;
        if let Some(n) = self.root {
            y = stretch(&y, n);
        }
        let mut positions = None;
        if let Some((table, context)) = &self.positions {
            let rows = places(cx, ids.place(), &y.mine(), *context)?;
            y = position_rows(y, &table.whole()?, &rows);
            positions = Some(rows);
        }
        y = dropout(cx, y, cx.dropout(self.rate, &self.name).as_ref());
        cx.record(&self.name, "out", &y)?;
        Ok((y, cx.keep((ids, positions))))
    }

    /// Returns the ids themselves: they have no gradient.
    fn backward_input(&mut self, cx: &PassContext<D>, saved: Saved<D>, dy: Stream<D>) -> InputHalf<D, Self> {
        let read = saved.open();
        let dy = dropout(cx, dy, cx.dropout(self.rate, &self.name).as_ref());
        let d_e = if let Some(n) = self.root { stretch(&dy, n) } else { dy.clone() };
        let whole = d_e.gather(&self.group)?;
        Ok((read.0.clone(), (read, dy, whole)))
    }

    fn backward_weight(
        &mut self,
        _: &PassContext<D>,
        ((ids, positions), dy, whole): Pending<D>,
    ) -> Result<()> {
        embed_backward(self.table.as_mut().expect(LENT), self.group.rank(), &ids, self.padding, &whole);
        if let (Some((table, _)), Some(at)) = (&mut self.positions, &positions) {
            position_rows_backward(table, at, &dy);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.extend(self.table.as_mut().map(RowWeight::param));
        into.extend(self.positions.as_mut().map(|(table, _)| table.param()));
    }
    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        Some(&mut self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, SEED, proves, proves_in_regions};
    use comm::{Mesh, Op, World};
    use ops::RandomValues;
    use std::collections::BTreeMap;
    use tensor::{Category, Cpu, Device, Dropout, F61, Key, Scalar};

    const WIDTH: usize = 5;
    struct Table {
        vocabulary: usize,
        padding: Option<usize>,
        context: Option<usize>,
        root: Option<usize>,
        rate: f64,
    }
    const PLAIN: Table = Table { vocabulary: 24, padding: None, context: None, root: None, rate: 0.0 };
    impl Case for Table {
        type Layer<D: Kernels> = Embedding<D>;
        fn features(&self) -> [usize; 2] {
            [self.vocabulary, WIDTH]
        }
        fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Embedding<D>> {
            let sizes = [self.vocabulary, WIDTH];
            let Table { padding, context, rate, .. } = *self;
            let (axis, name) = (Axis::Tp, "table");
            Embedding::shard(
                at,
                &strategy::Embedding {
                    axis,
                    name,
                    sizes,
                    padding,
                    context,
                    root: self.root,
                    rate,
                    tied: false,
                },
            )
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let mut y = reference::embed(&g.weights["table"], &g.ids, WIDTH);
            let numbers = (g.first..).take(g.lengths.len()).collect();
            let tokens = reference::Tokens { lengths: g.lengths.clone(), numbers };
            let dropped = |mut x: Vec<S>| {
                let dropout = Dropout::new(self.rate, SEED, g.step, "table");
                reference::dropout(&mut x, WIDTH, &tokens, &dropout);
                x
            };
            let stretched = |x: &[S]| {
                let root = self.root.map_or(S::ONE, |n| S::from_usize(n) * S::inv_sqrt(n));
                x.iter().map(|x| *x * root).collect::<Vec<_>>()
            };
            y = stretched(&y);
            let dy = dropped(g.dy.clone());
            let dtable =
                reference::embed_backward(&stretched(&dy), &g.ids, [self.vocabulary, WIDTH], self.padding);
            let mut gradients = [("table".to_string(), dtable)].into();
            if let Some(n) = self.context {
                let at: Vec<u32> = g.lengths.iter().flat_map(|&n| 0..n as u32).collect();
                let rows = reference::embed(&g.weights["positions"], &at, WIDTH);
                y.iter_mut().zip(rows).for_each(|(y, row)| *y += row);
                let all: &mut BTreeMap<_, _> = &mut gradients;
                all.insert("positions".into(), reference::embed_backward(&dy, &at, [n, WIDTH], None));
            }
            Answer { y: dropped(y), dx: vec![], gradients }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, tokens * WIDTH)] // Y
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllGather, share * WIDTH), (Op::ReduceScatter, ranks * share * WIDTH)] // dY; Y
        }
        fn has_no_gradient(&self, name: &str, row: usize) -> bool {
            name == "table" && Some(row) == self.padding
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            if regions { self.context.map_or(0, |n| n * WIDTH) } else { 0 }
        }
    }

    /// Kills: a mask off by one, rows of other ranks not zero, an id that comes twice counted once, padding
    /// that is part of the table, positions by row, ranks without any row; a factor of positions, or of
    /// one of the two ways only; dropout before positions are added, or of one of the two ways only.
    #[test]
    fn embedding_equals_embedding_bit_for_bit() {
        proves(&PLAIN);
        for (vocabulary, rate, root) in [(5, 0.0, None), (7, 0.25, Some(6)), (9, 0.0, None)] {
            proves(&Table { vocabulary, context: Some(8), rate, root, ..PLAIN });
        }
    }

    /// Ids of padding that are read: on every rank, in the first and the last row of a share, alone in one.
    /// Kills: a row of padding that learns, its neighbours that do not, a row counted in the share and not in
    /// the table, padding of the table of positions.
    #[test]
    fn embedding_equals_embedding_with_padding() {
        for padding in 0..5 {
            proves(&Table { vocabulary: 5, padding: Some(padding), context: Some(8), ..PLAIN });
        }
        proves_in_regions(&Table { vocabulary: 7, padding: Some(3), ..PLAIN });
    }

    /// Kills: positions of other ranks' tokens, a table of positions whose gradient is not summed, or is
    /// dropped at other places than the tokens.
    #[test]
    fn embedding_equals_embedding_under_sequence_parallelism() {
        for rate in [0.0, 0.25] {
            proves_in_regions(&Table { vocabulary: 7, context: Some(8), root: Some(3), rate, ..PLAIN });
        }
    }

    /// Data ranks with their own sequences of a step. Kills: positions or dropout by a rank's own numbering,
    /// a table of positions, or of ids, whose gradient stays on its data rank.
    #[test]
    fn embedding_over_data_ranks_equals_embedding_bit_for_bit() {
        const LENGTHS: [usize; 3] = [4, 1, 2];
        let _key = Key(3).enter();
        let table = Table { vocabulary: 7, context: Some(6), rate: 0.25, ..PLAIN };
        let ids: Vec<u32> = (0..7).map(|i| (3 * i + 1) % 7).collect();
        let dy: Vec<F61> = (0..7 * WIDTH as u64).map(|i| F61::sample(i, 1.0)).collect();
        for ranks in [1, 3] {
            let run = |device: Cpu<F61>, mesh: Mesh<_>| {
                let (tp, rank) = (mesh.group(Axis::Tp), mesh.group(Axis::Dp).rank());
                let mut layer = table.build(&Builder::new(&device, &mesh, &RandomValues { seed: 1 }))?;
                let mut params = crate::Params::new();
                layer.params(&mut params);
                let whole = |p: &&mut ops::Param<_>| Ok((p.name().to_string(), p.gather(&mesh)?.unwrap()));
                let weights = params.iter().map(whole).collect::<Result<_>>()?;
                let (first, n) = (rank * 3 / ranks, 3 / ranks);
                let row: usize = LENGTHS[..first].iter().sum();
                let rows = row..row + LENGTHS[first..first + n].iter().sum::<usize>();
                let cx = PassContext::train(0, &LENGTHS[first..first + n], 1)
                    .numbered_from(first)
                    .dropping(SEED, 2);
                drop(params);
                let (y, saved) = layer.forward(&cx, TokenIds::new(device.place(), &ids[rows.clone()], 7)?)?;
                let number = |i| dy[row * WIDTH + i];
                let mine = Tensor::from_fn(&device, Category::Activations, rows.len(), WIDTH, number);
                layer.backward(&cx, saved, mine.into())?;
                let mut params = crate::Params::new();
                layer.params(&mut params);
                let mut gradients = BTreeMap::new();
                for param in params {
                    param.sync()?;
                    gradients.insert(param.name().to_string(), param.gather_gradient(&mesh)?.unwrap());
                }
                let given = LayerInput {
                    step: 2,
                    first: 0,
                    lengths: LENGTHS.to_vec(),
                    tokens: vec![],
                    shards: None,
                    x: vec![],
                    memory_lengths: vec![],
                    memory: vec![],
                    ids: ids.clone(),
                    dy: dy.clone(),
                    weights,
                };
                let answer = table.oracle(&given);
                let mine = &answer.y[rows.start * WIDTH..rows.end * WIDTH];
                assert_eq!(y.gather(tp)?.read().unwrap(), mine, "rank {rank} of {ranks}");
                assert_eq!(gradients, answer.gradients, "rank {rank} of {ranks}");
                Ok::<_, Error>(())
            };
            World::threads(&[(Axis::Dp, ranks), (Axis::Tp, 2)]).unwrap().run(run).unwrap();
        }
    }

    #[test]
    fn sequences_beyond_the_learned_positions_are_refused() {
        let (device, mesh) = (tensor::Cpu::<f32>::default(), comm::Mesh::alone());
        let at = Builder::new(&device, &mesh, &ops::RandomValues { seed: 0 });
        let table = Table { vocabulary: 4, context: Some(3), ..PLAIN }.build(&at).unwrap();
        assert!(
            table
                .forward(&PassContext::infer([3]), TokenIds::new(device.place(), &[1; 3], 4).unwrap())
                .is_ok(),
            "all of them"
        );
        let ids = TokenIds::new(device.place(), &[1; 4], 4).unwrap();
        let why = table.forward(&PassContext::infer([4]), ids).err().unwrap().to_string();
        let wanted = "at most 3, the number of learned positions";
        assert_eq!(why, format!("the length of a sequence is 4; it must be {wanted}"));
        let beyond = Table { vocabulary: 4, padding: Some(4), ..PLAIN }.build(&at).err().unwrap();
        assert_eq!(beyond.to_string(), "the padding id is 4; it must be below 4");
    }
}
