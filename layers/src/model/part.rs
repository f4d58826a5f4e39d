//! A layer of a model: the usual one, or what a strategy builds in its place.
//!
//! The usual layers stay what they are, types that the compiler sees through. Only a strategy's own are behind a
//! pointer, with what they keep: a model need not name every layer that anyone may ever write. Either way a profile is
//! told here whose time it is.
use crate::model::strategy::{self, Strategy};
use crate::ops::{Stream, join};
use crate::{Builder, ColumnLinear, Cx, Error, Layer, Norm, Param, Result, RowLinear, norm};
use kernels::Kernels;
use std::any::Any;
use tensor::Pass;

/// A layer that takes and gives what `L` does, whichever it is.
pub type Other<D, L> = Box<dyn Behind<D, <L as Layer<D>>::In, <L as Layer<D>>::Out>>;

/// What a strategy's own layer gives for its struct: `Box::new(layer)` is an [`Other`].
pub trait Behind<D: Kernels, In, Out> {
    /// As [`Layer::forward`], so below.
    ///
    /// # Errors
    /// As there.
    fn forward(&self, cx: &Cx<D>, x: In) -> Result<(Out, Box<dyn Any>)>;
    /// dY to dX.
    ///
    /// # Errors
    /// As above.
    fn backward_input(&mut self, cx: &Cx<D>, saved: Box<dyn Any>, dy: Out) -> Result<(In, Box<dyn Any>)>;
    /// dW.
    ///
    /// # Errors
    /// As above.
    fn backward_weight(&mut self, cx: &Cx<D>, pending: Box<dyn Any>) -> Result<()>;
    /// Both.
    ///
    /// # Errors
    /// As above.
    fn backward(&mut self, cx: &Cx<D>, saved: Box<dyn Any>, dy: Out) -> Result<In>;
    /// Its parameters, in program order.
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>);
}

/// What this very layer gave.
fn own<T: 'static>(any: Box<dyn Any>) -> T {
    *any.downcast().expect("a layer is given back what it gave")
}

impl<D: Kernels, L: Layer<D>> Behind<D, L::In, L::Out> for L
where
    L::Saved: 'static,
    L::Pending: 'static,
{
    fn forward(&self, cx: &Cx<D>, x: L::In) -> Result<(L::Out, Box<dyn Any>)> {
        let (y, saved) = Layer::forward(self, cx, x)?;
        Ok((y, Box::new(saved)))
    }
    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        saved: Box<dyn Any>,
        dy: L::Out,
    ) -> Result<(L::In, Box<dyn Any>)> {
        let (dx, pending) = Layer::backward_input(self, cx, own(saved), dy)?;
        Ok((dx, Box::new(pending)))
    }
    fn backward_weight(&mut self, cx: &Cx<D>, pending: Box<dyn Any>) -> Result<()> {
        Layer::backward_weight(self, cx, own(pending))
    }
    fn backward(&mut self, cx: &Cx<D>, saved: Box<dyn Any>, dy: L::Out) -> Result<L::In> {
        Layer::backward(self, cx, own(saved), dy)
    }
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        Layer::params(self, into);
    }
}

/// The usual layer `L`, or another in its place, with its name.
pub struct Part<D: Kernels, L: Layer<D>> {
    name: String,
    layer: Which<D, L>,
}

enum Which<D: Kernels, L: Layer<D>> {
    Usual(L),
    Other(Other<D, L>), // a strategy's own
}

/// What one or the other keeps.
pub enum Held<T> {
    /// Of `L`.
    Usual(T),
    /// Of a strategy's own.
    Other(Box<dyn Any>),
}

/// What part `L` of a model keeps for backward.
pub type Of<D, L> = Held<<L as Layer<D>>::Saved>;
/// What it keeps for the weight half.
pub type Pending<D, L> = Held<<L as Layer<D>>::Pending>;

const MIXED: &str = "what a layer kept goes back to that layer";

impl<D: Kernels, L: Layer<D>> Layer<D> for Part<D, L> {
    type In = L::In;
    type Out = L::Out;
    type Saved = Held<L::Saved>;
    type Pending = Held<L::Pending>;

    fn forward(&self, cx: &Cx<D>, x: L::In) -> Result<(L::Out, Self::Saved)> {
        let _layer = cx.layer(&self.name, Pass::Forward);
        Ok(match &self.layer {
            Which::Usual(layer) => {
                let (y, saved) = layer.forward(cx, x)?;
                (y, Held::Usual(saved))
            }
            Which::Other(layer) => {
                let (y, saved) = layer.forward(cx, x)?;
                (y, Held::Other(saved))
            }
        })
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        saved: Self::Saved,
        dy: L::Out,
    ) -> Result<(L::In, Self::Pending)> {
        let _layer = cx.layer(&self.name, Pass::Backward);
        Ok(match (&mut self.layer, saved) {
            (Which::Usual(layer), Held::Usual(saved)) => {
                let (dx, pending) = layer.backward_input(cx, saved, dy)?;
                (dx, Held::Usual(pending))
            }
            (Which::Other(layer), Held::Other(saved)) => {
                let (dx, pending) = layer.backward_input(cx, saved, dy)?;
                (dx, Held::Other(pending))
            }
            _ => panic!("{MIXED}"),
        })
    }

    fn backward_first(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Result<Self::Pending> {
        let _layer = cx.layer(&self.name, Pass::Backward);
        Ok(match (&mut self.layer, saved) {
            (Which::Usual(layer), Held::Usual(saved)) => Held::Usual(layer.backward_first(cx, saved, dy)?),
            (Which::Other(layer), Held::Other(saved)) => Held::Other(layer.backward_input(cx, saved, dy)?.1),
            _ => panic!("{MIXED}"),
        })
    }

    fn backward_weight(&mut self, cx: &Cx<D>, pending: Self::Pending) -> Result<()> {
        let _layer = cx.layer(&self.name, Pass::Backward);
        match (&mut self.layer, pending) {
            (Which::Usual(layer), Held::Usual(pending)) => layer.backward_weight(cx, pending),
            (Which::Other(layer), Held::Other(pending)) => layer.backward_weight(cx, pending),
            _ => panic!("{MIXED}"),
        }
    }

    fn backward(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Result<L::In> {
        let _layer = cx.layer(&self.name, Pass::Backward);
        match (&mut self.layer, saved) {
            (Which::Usual(layer), Held::Usual(saved)) => layer.backward(cx, saved, dy),
            (Which::Other(layer), Held::Other(saved)) => layer.backward(cx, saved, dy),
            _ => panic!("{MIXED}"),
        }
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        match &mut self.layer {
            Which::Usual(layer) => layer.params(into),
            Which::Other(layer) => layer.params(into),
        }
    }
}

impl<D: Kernels> Part<D, Norm<D>> {
    /// As [`Norm::backward_onto`], shown in a record with what went around.
    ///
    /// # Errors
    /// As there.
    pub fn backward_onto(
        &mut self,
        cx: &Cx<D>,
        saved: Held<norm::Saved<D>>,
        dy: &Stream<D>,
        skip: Option<&Stream<D>>,
    ) -> Result<Stream<D>> {
        let _layer = cx.layer(&self.name, Pass::Backward);
        let dx = match (&mut self.layer, saved) {
            (Which::Usual(norm), Held::Usual(saved)) => norm.backward_onto(saved, dy, skip)?,
            (Which::Other(norm), Held::Other(saved)) => {
                let dx = norm.backward(cx, saved, dy.clone())?;
                if let Some(skip) = skip { join(dx, skip) } else { dx }
            }
            _ => panic!("{MIXED}"),
        };
        cx.saw_gradient(&self.name, "in", |_| Ok(dx.seen()))?;
        Ok(dx)
    }
}

impl<D: Kernels> Builder<'_, D> {
    /// A column layer, as the layout's strategies have it.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it; so it is below.
    pub fn column(&self, column: &strategy::Column) -> Result<Part<D, ColumnLinear<D>>> {
        let strategy::Column { axis, name, inputs, sections, bias } = *column;
        let usual = || ColumnLinear::shard(self, axis, name, inputs, sections, bias);
        self.built(name, |s| s.column(self, column), usual)
    }
    /// A row layer.
    ///
    /// # Errors
    /// As above.
    pub fn row(&self, row: &strategy::Row) -> Result<Part<D, RowLinear<D>>> {
        let strategy::Row { axis, name, sizes, bias } = *row;
        self.built(name, |s| s.row(self, row), || RowLinear::shard(self, axis, name, sizes, bias))
    }
    /// A norm.
    ///
    /// # Errors
    /// As above.
    pub fn norm(&self, norm: &strategy::Norm) -> Result<Part<D, Norm<D>>> {
        let strategy::Norm { kind, name, width, eps } = *norm;
        self.built(name, |s| s.norm(self, norm), || Norm::new(self, kind, name, width, eps))
    }
    fn built<L: Layer<D>>(
        &self,
        name: &str,
        build: impl Fn(&dyn Strategy<D>) -> Result<Option<Other<D, L>>>,
        usual: impl FnOnce() -> Result<L>,
    ) -> Result<Part<D, L>> {
        let mut built: Option<(Other<D, L>, &'static str)> = None;
        for strategy in &self.strategies {
            let Some(layer) = build(*strategy)? else { continue };
            let by = strategy.about().name;
            if let Some((_, first)) = built {
                return Err(Error::Twice { name: name.into(), one: first.into(), other: by.into() });
            }
            built = Some((layer, by));
        }
        let layer = match built {
            Some((layer, by)) => {
                self.built.borrow_mut().push((name.to_string(), by));
                Which::Other(layer)
            }
            None => Which::Usual(usual()?),
        };
        Ok(Part { name: name.to_string(), layer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::strategy::{About, Column, Key, Row};
    use crate::proof::{Answer, Case, Given, proves, proves_in_regions};
    use crate::{Activations, FeedForward, Mlp, NormKind, Record, Residual};
    use comm::{Axis, Mesh, Op};
    use tensor::{Category, Cpu, F61, Scalar, Tensor, Work};

    /// The usual layers, from behind a pointer.
    struct Own;
    static ABOUT: About = About {
        name: "own",
        key: Key::Beside("own", Axis::Tp),
        splits: "as ever",
        shares: |_| vec![],
        paper: "",
        chapter: None,
        hints: &[("", "")],
    };
    impl<D: Kernels> Strategy<D> for Own {
        fn about(&self) -> &'static About {
            &ABOUT
        }
        fn column(&self, at: &Builder<D>, c: &Column) -> Result<Option<Other<D, ColumnLinear<D>>>> {
            Ok(Some(Box::new(ColumnLinear::shard(at, c.axis, c.name, c.inputs, c.sections, c.bias)?)))
        }
        fn row(&self, at: &Builder<D>, r: &Row) -> Result<Option<Other<D, RowLinear<D>>>> {
            Ok(Some(Box::new(RowLinear::shard(at, r.axis, r.name, r.sizes, r.bias)?)))
        }
        fn norm(&self, at: &Builder<D>, n: &strategy::Norm) -> Result<Option<Other<D, Norm<D>>>> {
            Ok(Some(Box::new(Norm::new(at, n.kind, n.name, n.width, n.eps)?)))
        }
    }

    const D: usize = 5;
    const F: usize = 24;
    struct Feed;
    impl Case for Feed {
        type Layer<T: Kernels> = Residual<T, Mlp<T>>;
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Residual<T, Mlp<T>>> {
            let own = Builder {
                region: at.region,
                ..Builder::new(at.device, at.mesh, at.values).with([&Own as _])
            };
            let norm = strategy::Norm { kind: NormKind::Rms, name: "gain", width: D, eps: 0.5 };
            let mlp = Mlp::shard(&own, Axis::Tp, "mlp", FeedForward::SwiGlu, [D, F], true)?;
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
            let mlp = Mlp::shard(&at, Axis::Tp, "mlp", FeedForward::SwiGlu, [D, F], true).unwrap();
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
}
