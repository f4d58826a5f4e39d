use super::*;
use crate::model::strategy::{About, Choice, Column, Row, Takes};
use crate::proof::{Answer, Case, Given, proves, proves_in_regions};
use crate::{Activations, FeedForward, Mlp, NormKind, Record, Residual, mlp};
use comm::{Axis, Mesh, Op};
use tensor::{Category, Cpu, F61, Scalar, Tensor, Work};

/// The usual layers, from behind a pointer.
struct Own;
static ABOUT: About = About {
    name: "own",
    axis: Some(Axis::Tp),
    choice: Choice::Layers,
    word: "own",
    takes: Takes::Nothing,
    shares: |_, _| vec![],
    paper: "",
    chapter: None,
    hints: &[("", "")],
};
impl<D: Kernels> Strategy<D> for Own {
    fn about(&self) -> &'static About {
        &ABOUT
    }
    fn column(&self, at: &Builder<D>, c: &Column) -> Result<Option<Other<D, ColumnLinear<D>>>> {
        Ok(Some(Other::new(ColumnLinear::shard(at, c)?)))
    }
    fn row(&self, at: &Builder<D>, r: &Row) -> Result<Option<Other<D, RowLinear<D>>>> {
        Ok(Some(Other::new(RowLinear::shard(at, r)?)))
    }
    fn norm(&self, at: &Builder<D>, n: &strategy::Norm) -> Result<Option<Other<D, Norm<D>>>> {
        Ok(Some(Other::new(Norm::new(at, n)?)))
    }
}

const D: usize = 5;
const F: usize = 24;
const MLP: strategy::Mlp =
    strategy::Mlp { axis: Axis::Tp, name: "mlp", kind: FeedForward::SwiGlu, sizes: [D, F], bias: true };
struct Feed;
impl Case for Feed {
    type Layer<T: Kernels> = Residual<T, Mlp<T>>;
    fn features(&self) -> [usize; 2] {
        [D, D]
    }
    fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Residual<T, Mlp<T>>> {
        let own =
            Builder { region: at.region, ..Builder::new(at.device, at.mesh, at.values).with([&Own as _]) };
        let norm = strategy::Norm { kind: NormKind::Rms, name: "gain", width: D, eps: 0.5 };
        let mlp = mlp::shard(&own, &MLP)?;
        Ok(Residual::around("mlp", own.norm(&norm)?, mlp, 0.0))
    }
    fn oracle<S: Scalar>(&self, g: &Given<S>) -> Answer<S> {
        let w = |name: &str| g.weights[name].as_slice();
        let n = reference::rms_norm(&g.x, w("gain"), 0.5);
        let mut u = reference::linear(&n, w("mlp.gate_up"), [D, 2 * F]);
        reference::add_bias(&mut u, w("mlp.gate_up.bias"));
        let h = reference::swiglu(&u, F);
        let mut y = reference::linear(&h, w("mlp.down"), [F, D]);
        reference::add_bias(&mut y, w("mlp.down.bias"));
        y.iter_mut().zip(&g.x).for_each(|(y, &x)| *y += x);
        let (dh, down) = reference::linear_backward(&h, w("mlp.down"), &g.dy, [F, D]);
        let du = reference::swiglu_backward(&u, &dh, F);
        let (dn, up) = reference::linear_backward(&n, w("mlp.gate_up"), &du, [D, 2 * F]);
        let (mut dx, gain) = reference::rms_norm_backward(&g.x, w("gain"), &dn, 0.5);
        dx.iter_mut().zip(&g.dy).for_each(|(dx, &dy)| *dx += dy);
        let biases = [("mlp.gate_up.bias", &du, 2 * F), ("mlp.down.bias", &g.dy, D)];
        let biases = biases.map(|(name, dy, n)| (name, reference::bias_gradient(dy, n)));
        let all = [("gain", gain), ("mlp.gate_up", up), ("mlp.down", down)].into_iter().chain(biases);
        Answer { y, dx, gradients: all.map(|(name, g)| (name.to_string(), g)).collect() }
    }
    fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllReduce, 2 * tokens * D)]
    }
    fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
        vec![(Op::AllGather, 3 * share * D), (Op::ReduceScatter, 2 * ranks * share * D)]
    }
    fn synced(&self, _: usize, regions: bool) -> usize {
        if regions { 2 * D } else { 0 }
    }
}

/// Kills: what another layer kept, a gradient that goes around and is lost behind the pointer, a parameter that
/// nobody sees.
#[test]
fn layers_behind_a_pointer_equal_the_usual_ones() {
    proves(&Feed);
    proves_in_regions(&Feed);
}

/// Kills: a gradient that a record has without what went around the norm; a layer that shows itself, or is
/// profiled, under another name, or not at all, behind a pointer.
#[test]
fn layers_behind_a_pointer_are_recorded_as_the_usual_ones() {
    let _key = tensor::Key(1).enter();
    let seen = |strategies: Vec<&'static dyn Strategy<Cpu<F61>>>| {
        let (device, mesh) = (Cpu::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &crate::Random { seed: 0 }).with(strategies);
        let norm = strategy::Norm { kind: NormKind::Layer, name: "gain", width: D, eps: 0.5 };
        let mlp = mlp::shard(&at, &MLP).unwrap();
        let mut layer = Residual::around("mlp", at.norm(&norm).unwrap(), mlp, 0.0);
        let record = Record::new(&mesh);
        let cx = Cx::train(0, [3], 1).recorded(Some(record.clone())).profiled(&device);
        let profile = tensor::Device::profile(&device).unwrap();
        profile.begin(0);
        let x = |from: u64| {
            let number = move |i| F61::new(from + 7 * i as u64);
            Stream::from(Tensor::from_fn(&device, Category::Activations, 3, D, number))
        };
        let (_, saved) = Layer::forward(&layer, &cx, x(3)).unwrap();
        let dx = Layer::backward(&mut layer, &cx, saved, x(11)).unwrap();
        let seen = Activations::whole(vec![record.take()]);
        let layer = |work: &Work| matches!(work, Work::Layer { .. });
        let layers: Vec<_> = profile.end().into_iter().map(|w| w.work).filter(layer).collect();
        (dx.gather(mesh.group(Axis::Tp)).unwrap().read().unwrap(), seen, layers)
    };
    let (usual, own) = (seen(vec![]), seen(vec![&Own]));
    assert_eq!(usual, own);
    let (dx, seen, layers) = own;
    assert_eq!(layers.len(), 8, "four layers, forth and back: {layers:?}");
    let (name, rows) = seen.last().unwrap();
    assert_eq!((name.as_str(), rows.values().flatten().copied().collect()), ("gradient of gain.in", dx));
}

/// Kills: one of two that is silently passed over.
#[test]
fn two_strategies_that_build_one_layer_are_refused() {
    let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &crate::Random { seed: 0 }).with([&Own as _, &Own as _]);
    let row = Row { axis: Axis::Tp, name: "w", sizes: [2, 2], bias: false };
    let why = at.row(&row).err().unwrap().to_string();
    assert_eq!(why, "own and own both build w; a layout can have one of them");
}
