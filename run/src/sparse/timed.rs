//! Times of one layer on thread ranks over a slow link: dense with an all-reduce, and sparse.
use algorithms::Link;
use comm::{Axis, Mesh, World};
use layers::build::strategy::Row;
use layers::{Builder, Layer, RowLinear};
use ops::{ColumnWeight, EvenValues, PassContext, Split, matmul};
use parallel::Result;
use parallel::tensor::sparse::shard;
use std::time::Instant;
use tensor::{Category, Cpu, Host, Tensor};

/// Timed turns; the best one counts.
const TURNS: usize = 12;

/// Tokens and features of a layer, which has as many outputs as inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerSize {
    pub(super) ranks: usize,
    pub(super) tokens: usize,
    pub(super) features: usize,
}

/// Seconds of a sparse layer, without and with the gathering of its outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SparseTimes {
    pub(super) columns: f64,
    pub(super) whole: f64,
}

impl LayerSize {
    fn row(&self) -> Row<'static> {
        Row { axis: Axis::Tp, name: "w", sizes: [self.features; 2], bias: false }
    }
    /// Returns the seconds of the slowest rank in the best turn; ranks begin each turn together.
    fn seconds(
        &self,
        link: Option<Link>,
        work: impl Fn(
            (&Builder<Cpu<f32>>, &Mesh<Host>),
            &Tensor<Cpu<f32>>,
        ) -> ops::Result<Box<dyn FnMut() -> ops::Result<()>>>
        + Sync,
    ) -> Result<f64> {
        let mut world = World::threads(&[(Axis::Tp, self.ranks)])?;
        if let Some(link) = link {
            world = world.link(Axis::Tp, link);
        }
        let ranks = world.run(|device: Cpu<f32>, mesh| {
            let builder = Builder::new(&device, &mesh, &EvenValues);
            let x = Tensor::from_fn(&device, Category::Activations, self.tokens, self.features, |i| {
                (i % 256) as f32 / 256.0
            });
            let mut work = work((&builder, &mesh), &x)?;
            work()?;
            let mut turn = || {
                mesh.barrier()?;
                let start = Instant::now();
                work()?;
                Ok::<_, ops::Error>(start.elapsed().as_secs_f64())
            };
            (0..TURNS).map(|_| turn()).collect::<ops::Result<Vec<_>>>()
        })?;
        let slowest = |turn: usize| ranks.iter().map(|rank| rank[turn]).fold(0.0, f64::max);
        Ok((0..TURNS).map(slowest).fold(f64::INFINITY, f64::min))
    }
    /// Measures a rank's products in the dense layer, while all ranks compute theirs.
    ///
    /// # Errors
    /// If a rank fails.
    pub(super) fn products(&self) -> Result<f64> {
        self.seconds(None, |(at, _), x| {
            let w = ColumnWeight::new(at, Axis::Tp, "w", self.features, &[self.features.into()])?;
            let x = x.clone();
            Ok(Box::new(move || matmul(&x, &w.columns()?).map(drop)))
        })
    }
    /// Measures the layer that sums with an all-reduce.
    ///
    /// # Errors
    /// If a rank fails.
    pub(super) fn dense(&self, link: Link) -> Result<f64> {
        self.seconds(Some(link), |(at, mesh), x| {
            let (layer, x) = (RowLinear::shard(at, &self.row())?, Split::cut(x, mesh.group(Axis::Tp))?);
            let cx = PassContext::infer(vec![self.tokens]);
            Ok(Box::new(move || layer.forward(&cx, x.clone()).map(drop)))
        })
    }
    /// Measures the layer that leaves out `percent` of the features.
    ///
    /// # Errors
    /// If a rank fails.
    pub(super) fn sparse(&self, link: Link, percent: usize) -> Result<SparseTimes> {
        let columns = self.seconds(Some(link), |(at, mesh), x| {
            let ((layer, _), x) = (shard(at, &self.row(), percent)?, Split::cut(x, mesh.group(Axis::Tp))?);
            let cx = PassContext::infer(vec![self.tokens]);
            Ok(Box::new(move || layer.forward(&cx, x.clone()).map(drop)))
        })?;
        let whole = self.seconds(Some(link), |(at, mesh), x| {
            let (layer, x) = (shard(at, &self.row(), percent)?, Split::cut(x, mesh.group(Axis::Tp))?);
            let cx = PassContext::infer(vec![self.tokens]);
            Ok(Box::new(move || layer.forward(&cx, x.clone()).map(drop)))
        })?;
        Ok(SparseTimes { columns, whole })
    }
}
