//! Linear layers whose weight is gathered in tiles, on data ranks that each have a shard of it.
use crate::build::strategy::{Column, Row};
use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
use crate::{Builder, ColumnLinear, Layer, RowLinear};
use comm::{Axis, Mesh, Op, World};
use kernels::{Kernels, Meta, Segment};
use ops::{AtRest, Error, PassContext, RandomValues, Result, ShardingStrategy, Split};
use std::rc::Rc;
use tensor::{Category, Cpu, Scalar, Tensor};

/// Returns a builder of layers whose sharded values are gathered in this number of tiles.
fn in_tiles<'a, D: Kernels>(at: &Builder<'a, D>, tiles: usize) -> Builder<'a, D> {
    let [value, gradient, state] = [AtRest::Shard; 3];
    let rests = ShardingStrategy { value, gradient, state, subgroup: None, tiles };
    Builder { rests, strategies: Vec::new(), built: Rc::default(), ..at.clone() }
}

/// Returns the answer of `Y = X · W`.
fn linear<S: Scalar>(g: &LayerInput<S>, shape: [usize; 2]) -> Answer<S> {
    let (dx, dw) = reference::linear_backward(&g.x, &g.weights["w"], &g.dy, shape);
    let y = reference::linear(&g.x, &g.weights["w"], shape);
    Answer { y, dx, gradients: [("w".into(), dw)].into() }
}

/// Elements that data rank `rank` of `ranks` gives for the tiles of a weight of `numbers` elements, in two
/// microbatches: twice its shard in each, forward and backward, and the gradient of all tiles.
fn of_tiles(numbers: usize, (rank, ranks): (usize, usize)) -> Vec<(Op, usize)> {
    let each = numbers.div_ceil(ranks);
    let shard = ((rank + 1) * each).min(numbers) - (rank * each).min(numbers);
    vec![(Op::AllGather, 2 * 2 * shard), (Op::ReduceScatter, 2 * numbers)]
}

/// `W[5,24]` in five tiles of its `24/TENSOR` columns on a tensor rank, over `DATA` data ranks.
struct ColumnTiles<const TENSOR: usize, const DATA: usize>;
impl<const TENSOR: usize, const DATA: usize> Case for ColumnTiles<TENSOR, DATA> {
    type Layer<D: Kernels> = ColumnLinear<D>;
    const RANKS: &'static [usize] = &[1, TENSOR];
    const PREDICTED: bool = TENSOR == 1;
    fn dealers(&self) -> Vec<(Axis, usize)> {
        vec![(Axis::Dp, DATA)]
    }
    fn features(&self) -> [usize; 2] {
        [5, 24]
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<ColumnLinear<D>> {
        let sections = &[24.into()];
        let column = Column { axis: Self::AXIS, name: "w", inputs: 5, sections, bias: false };
        ColumnLinear::shard(&in_tiles(at, 5), &column)
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        linear(g, [5, 24])
    }
    fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllReduce, tokens * 5)] // dX, once for all tiles
    }
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllGather, 2 * share * 5), (Op::ReduceScatter, ranks * share * 5)]
    }
    fn traffic_of_dealt(&self, _: &[Vec<Segment>], place: (usize, usize)) -> Vec<(Op, usize)> {
        of_tiles(5 * 24 / TENSOR, place)
    }
}

/// `W[24,5]` in three tiles, of two, two and one columns.
struct RowTiles<const TENSOR: usize, const DATA: usize>;
impl<const TENSOR: usize, const DATA: usize> Case for RowTiles<TENSOR, DATA> {
    type Layer<D: Kernels> = RowLinear<D>;
    const RANKS: &'static [usize] = &[1, TENSOR];
    const PREDICTED: bool = TENSOR == 1;
    fn dealers(&self) -> Vec<(Axis, usize)> {
        vec![(Axis::Dp, DATA)]
    }
    fn features(&self) -> [usize; 2] {
        [24, 5]
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<RowLinear<D>> {
        let row = Row { axis: Self::AXIS, name: "w", sizes: [24, 5], bias: false };
        RowLinear::shard(&in_tiles(at, 3), &row)
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        linear(g, [24, 5])
    }
    fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllReduce, tokens * 5)] // Y, once for all tiles
    }
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        vec![(Op::ReduceScatter, ranks * share * 5), (Op::AllGather, share * 5)]
    }
    fn traffic_of_dealt(&self, _: &[Vec<Segment>], place: (usize, usize)) -> Vec<(Op, usize)> {
        of_tiles(24 * 5 / TENSOR, place)
    }
}

/// Kills: a tile that is lost or at other columns; dX of the last tile, or
/// reduced for each; dW of one microbatch, of one data rank, or of another tile.
#[test]
fn linear_layers_in_tiles_equal_linear_bit_for_bit() {
    proves(&ColumnTiles::<1, 2>);
    proves(&ColumnTiles::<2, 3>);
    proves(&RowTiles::<1, 3>);
    proves(&RowTiles::<2, 2>);
}

/// Kills: tokens that are gathered for each tile, a sum that is scattered for each.
#[test]
fn linear_layers_in_tiles_equal_linear_under_sequence_parallelism() {
    proves_in_regions(&ColumnTiles::<2, 2>);
    proves_in_regions(&RowTiles::<2, 2>);
}

/// `W[12,80]` and `W[80,10]`, half of each on a tensor rank: 480 and 400 elements, in eight tiles of five
/// columns and in five tiles of two, over two data ranks.
fn costs<D: Kernels<Elem = f32, Wide = D> + Default>(mesh: &Mesh<D::Place>) -> Result<()> {
    let (axis, sections, name) = (Axis::Tp, &[80.into()], "w");
    for (tiles, shard, tile) in [(8, 240, 12 * 5), (5, 200, 40 * 2)] {
        let (device, before) = (D::default(), mesh.ledger());
        let at = in_tiles(&Builder::new(&device, mesh, &RandomValues { seed: 1 }), tiles);
        let cx = PassContext::train(0, [3], 3);
        let x = |width: usize| Tensor::from_fn(&device, Category::Activations, 3, width, |i| i as f32);
        if tiles == 8 {
            let column = Column { axis, name, inputs: 12, sections, bias: false };
            let mut layer = ColumnLinear::shard(&at, &column)?;
            let (y, saved) = layer.forward(&cx, x(12).into())?;
            layer.backward(&cx, saved, y)?;
        } else {
            let mut layer = RowLinear::shard(&at, &Row { axis, name, sizes: [80, 10], bias: false })?;
            let (y, saved) = layer.forward(&cx, Split::cut(&x(80), mesh.group(axis))?)?;
            layer.backward(&cx, saved, y)?;
        }
        let peak = |category| device.meter().peaks_of_all().category[category as usize] / 4;
        assert_eq!([Category::Weights, Category::Gradients].map(peak), [shard, shard]);
        assert_eq!(peak(Category::Buffers), tile + tile / 2, "a tile beside what this rank gives of it");
        let said = mesh.ledger() - &before;
        let said = |axis, op| [said.get(axis, op).calls, said.get(axis, op).elements];
        assert_eq!(said(Axis::Tp, Op::AllReduce), [1, 3 * [10, 12][usize::from(tiles == 8)]], "once");
        assert_eq!(said(Axis::Dp, Op::AllGather), [2 * tiles, 2 * shard], "forward and backward");
        assert_eq!(said(Axis::Dp, Op::ReduceScatter), [tiles, 2 * shard]);
    }
    Ok(())
}

/// Kills: a value or a gradient that is whole after all, a tile that stays until the next one is there, a sum
/// over tensor ranks for each tile.
#[test]
fn tiles_cost_what_is_worked_out_by_hand() {
    let sizes = [(Axis::Dp, 2), (Axis::Tp, 2)];
    World::threads(&sizes).unwrap().run(|_: Cpu<f32>, mesh| costs::<Cpu<f32>>(&mesh)).unwrap();
    for rank in 0..4 {
        costs::<Meta<f32>>(&Mesh::ghost(&sizes, rank).unwrap()).unwrap();
    }
}

/// Kills: tiles of a value that is whole on every rank.
#[test]
fn tiles_need_a_value_in_shards() {
    let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
    let row = Row { axis: Axis::Tp, name: "w", sizes: [2, 2], bias: false };
    let rests = ShardingStrategy { tiles: 4, ..ShardingStrategy::WHOLE };
    let why = RowLinear::shard(&Builder { rests, ..at }, &row).err().map(|why: Error| why.to_string());
    let wanted = "the number of tiles of a value that is not sharded at rest is 4; it must be 1";
    assert_eq!(why.as_deref(), Some(wanted));
}
