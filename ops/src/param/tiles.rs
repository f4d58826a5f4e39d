//! Tiles of a weight that is sharded at rest: columns of its local part `W[I,O_t]`, gathered tile after tile.
//! So neither the whole value nor the whole gradient is ever on a rank.
//!
//! ```text
//! tile     W[I,O_j]    = the ranks' elements of it     all-gather, I·O_j elements, before each product
//!          dW_d[I,O_j] = Σ_d X[B,I]ᵀ · dY[B,O_j]       reduce-scatter, I·O_j elements
//! ```
//!
//! A shard is consecutive elements of the local part, row by row, so its elements of a tile are consecutive
//! in the tile, too: in rank order, the parts that ranks give are the tile itself. Tiles of rows would need
//! no copy, but each would lie on one rank or two, which would send all of it.
//!
//! Source: Rajbhandari et al., "`ZeRO-Infinity`", §5.1.3, arXiv:2104.07857.
use crate::Result;
use crate::param::placement::Band;
use crate::param::shards::{Rectangle, Shards, rectangles};
use comm::Group;
use kernels::Kernels;
use tensor::{Category, Place, Tensor};

/// The tiles of a weight, from this rank's point of view.
pub(crate) struct WeightTiles<P: Place> {
    /// The ranks that have one shard each.
    pub(crate) group: Group<P>,
    shard: [usize; 2], // length of a shard, and the index of this rank's first element in the local part
    /// Shape of the local part.
    pub(crate) local: [usize; 2],
    /// The tiles; together they are all columns.
    pub(crate) all: Vec<WeightTile>,
}

/// Some columns of a weight.
pub(crate) struct WeightTile {
    /// The columns.
    pub(crate) columns: Band,
    /// Number of its elements in each rank's shard.
    pub(crate) counts: Vec<usize>,
}

impl<P: Place> WeightTiles<P> {
    /// Cuts the columns of a local part into `n` tiles, or into as many as there are columns.
    pub(crate) fn new(shards: &Shards<P>, local: [usize; 2], n: usize, name: &str) -> Self {
        let [rows, cols] = local;
        let n = n.min(cols);
        let tile = |i: usize| {
            let (each, more) = (cols / n, cols % n);
            let [start, len] = [each * i + more.min(i), each + usize::from(i < more)];
            let before = |rank: usize| {
                let element = (rank * shards.len).min(rows * cols);
                element / cols * len + (element % cols).clamp(start, start + len) - start
            };
            let counts = (0..shards.group.size()).map(|rank| before(rank + 1) - before(rank)).collect();
            WeightTile { columns: Band { dim: 1, start, len }, counts }
        };
        let all = (0..n).map(tile).collect();
        Self { group: shards.group.named(name), shard: [shards.len, shards.from()], local, all }
    }
    /// Splits this rank's elements of a tile into rectangles of its shard: each with its columns in the tile,
    /// counted from the rectangle's first, and the number of elements before it.
    pub(crate) fn parts(&self, tile: &WeightTile) -> impl Iterator<Item = (Rectangle, Band, usize)> {
        let (columns, mut end, [len, from]) = (tile.columns, 0, self.shard);
        rectangles(len, from, self.local).filter_map(move |of| {
            let part = columns.within(Band { dim: 1, start: of.begin[1], len: of.shape[1] })?;
            let first = end;
            end += of.shape[0] * part.len;
            Some((of, part, first))
        })
    }
    /// Gathers a tile from the ranks' shards: `W[I,O_j]`, freed with the result.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn gather<D: Kernels<Place = P>>(
        &self,
        shard: &Tensor<D>,
        tile: &WeightTile,
    ) -> Result<Tensor<D>> {
        let device = shard.device();
        let mut given = Tensor::empty(device, Category::Buffers, tile.counts[self.group.rank()], 1);
        for (rectangle, columns, first) in self.parts(tile) {
            let part = columns.of(rectangle.of(shard.view()));
            let [rows, cols] = [part.rows(), part.cols()];
            device.copy(given.view_mut().take_rows(first, rows * cols).reshape(rows, cols), part);
        }
        Ok(self.group.all_gather_v(&given, &tile.counts)?.reshaped(self.local[0], tile.columns.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::origin::ParamOrigin;
    use crate::{AtRest, Draw, Error, Param, RandomValues, ShardingStrategy};
    use comm::{Axis, Mesh, World};
    use tensor::{Cpu, F61, Host, Key, Scalar};

    /// Shapes that neither ranks nor tiles divide, shards of less than a row and of nothing, more tiles than
    /// columns. Kills: a tail that is lost, elements of another rank, row or column; a gradient that is set
    /// where it should be added, or in another order than the value.
    #[test]
    fn tiles_are_the_columns_of_the_whole() {
        let _key = Key(4).enter();
        let number = |i: usize| F61::sample(i as u64, 1.0);
        for (ranks, [rows, cols], n) in
            [(2, [5, 7], 3), (3, [4, 8], 5), (3, [7, 3], 2), (4, [1, 6], 9), (4, [2, 3], 2), (2, [3, 4], 4)]
        {
            let run = |device: Cpu<F61>, mesh: Mesh<Host>| {
                let [value, gradient, state] = [AtRest::Shard; 3];
                let rests = ShardingStrategy { value, gradient, state, subgroup: None, tiles: n };
                let at = ParamOrigin { rests, ..ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 }) };
                let draw = Draw { mean: 0.0, std: 1.0 };
                let mut param = Param::new(&at, "w", [rows, cols], at.placement(), draw)?.tiled();
                let whole = param.gather(&mesh)?.unwrap();
                let (shard, tiles) = param.value_or_tiles();
                let (tiles, mut end) = (tiles.expect("sharded"), 0);
                for tile in &tiles.all {
                    let Band { start, len, .. } = tile.columns;
                    assert_eq!((start, tiles.all.len()), (end, n.min(cols)));
                    let wanted = (0..rows * len).map(|i| whole[i / len * cols + start + i % len]);
                    let seen = tiles.gather(&shard, tile)?.read().unwrap();
                    assert!(seen.into_iter().eq(wanted), "{ranks} ranks, {rows}x{cols} in {n} tiles");
                    end = start + len;
                }
                assert_eq!(end, cols);
                for tile in tiles.all.iter().chain(&tiles.all) {
                    let Band { start, len, .. } = tile.columns;
                    let own = |i: usize| number(i / len * cols + start + i % len + 100 * mesh.rank());
                    let dw = Tensor::from_fn(&device, Category::Buffers, rows, len, own);
                    param.add_tile(&tiles, tile, dw)?;
                }
                let sum = |i| (0..ranks).fold(F61::ZERO, |sum, rank| sum + number(i + 100 * rank));
                let wanted = (0..rows * cols).map(|i| sum(i) + sum(i));
                assert!(param.gather_gradient(&mesh)?.unwrap().into_iter().eq(wanted), "{ranks} ranks");
                assert!(param.gradient_padding().into_iter().all(|padding| padding == F61::ZERO));
                Ok::<_, Error>(())
            };
            World::threads(&[(Axis::Dp, ranks)]).unwrap().run(run).unwrap();
        }
    }
}
