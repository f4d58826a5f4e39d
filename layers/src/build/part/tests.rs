use super::*;
use crate::build::strategy;
use crate::build::strategy::{Choice, Column, NumberArgument, Row, StrategyInfo};
use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
use crate::{
    Builder, Chunk, ColumnLinear, Embedding, Ending, FeedForward, Half, Head, Mlp, Norm, NormKind, Objective,
    Output, Params, Residual, RowLinear, Shape, StageRequest, Strategy, Targets, mlp,
};
use comm::{Axes, Axis, Mesh, Op, World};
use ops::{Activations, Branches, Error, Keeper, Record, Split};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tensor::{Category, Cpu, Device, F61, Key, Scalar, Tensor, TokenIds, Work};

/// The usual layers, from behind a pointer.
struct Own;
static ABOUT: StrategyInfo = StrategyInfo {
    name: "own",
    axis: Some(Axis::Tp),
    choice: Choice::Layers,
    word: "own",
    takes: NumberArgument::Nothing,
    needs: None,
    tries: crate::Tries::Always(&[]),
    shares: |_, _| vec![],
    alone: false,
    paper: "",
    chapter: None,
    hints: &[("", "")],
};
impl<D: Kernels> Strategy<D> for Own {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn column(&self, at: &Builder<D>, c: &Column) -> Result<Option<BoxedLayer<D, Stream<D>, Split<D>>>> {
        Ok(Some(BoxedLayer::new(ColumnLinear::shard(at, c)?)))
    }
    fn row(&self, at: &Builder<D>, r: &Row) -> Result<Option<BoxedLayer<D, Split<D>, Stream<D>>>> {
        Ok(Some(BoxedLayer::new(RowLinear::shard(at, r)?)))
    }
    fn norm(
        &self,
        at: &Builder<D>,
        n: &strategy::Norm,
    ) -> Result<Option<BoxedLayer<D, Stream<D>, Branches<D>>>> {
        Ok(Some(BoxedLayer::new(Norm::new(at, n)?)))
    }
}

const D: usize = 5;
const F: usize = 24;
const MLP: strategy::Mlp = strategy::Mlp {
    axis: Axis::Tp,
    name: "mlp",
    kind: FeedForward::SWIGLU,
    sizes: [D, F],
    bias: true,
    experts: None,
};
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
        Ok(Residual::around("mlp", [Some(own.build(&norm)?), None], mlp, 0.0))
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let w = |name: &str| g.weights[name].as_slice();
        let n = reference::rms_norm(&g.x, w("gain"), 0.5);
        let mut u = reference::linear(&n, w("mlp.gate_up"), [D, 2 * F]);
        reference::add_bias(&mut u, w("mlp.gate_up.bias"));
        let h = reference::gated(&u, F, kernels::Gate::Silu);
        let mut y = reference::linear(&h, w("mlp.down"), [F, D]);
        reference::add_bias(&mut y, w("mlp.down.bias"));
        y.iter_mut().zip(&g.x).for_each(|(y, &x)| *y += x);
        let (dh, down) = reference::linear_backward(&h, w("mlp.down"), &g.dy, [F, D]);
        let du = reference::gated_backward(&u, &dh, F, kernels::Gate::Silu);
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

/// Kills: what another layer kept, a gradient that goes around and is lost behind the pointer, a parameter
/// that nobody sees.
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
        let at = Builder::new(&device, &mesh, &ops::RandomValues { seed: 0 }).with(strategies);
        let norm = strategy::Norm { kind: NormKind::Layer, name: "gain", width: D, eps: 0.5 };
        let mlp = mlp::shard(&at, &MLP).unwrap();
        let mut layer = Residual::around("mlp", [Some(at.build(&norm).unwrap()), None], mlp, 0.0);
        let record = Record::new(&mesh);
        let cx = PassContext::train(0, [3], 1).recorded(Some(record.clone())).profiled(&device);
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
    let at = Builder::new(&device, &mesh, &ops::RandomValues { seed: 0 }).with([&Own as _, &Own as _]);
    let row = Row { axis: Axis::Tp, name: "w", sizes: [2, 2], bias: false };
    let why = at.build(&row).err().unwrap().to_string();
    assert_eq!(why, "own and own both build w; a layout can have one of them");
    let ends = Ends::default();
    let shape = Shape { width: 2, vocabulary: 3, ..Shape::LLAMA };
    let at = Builder::new(&device, &mesh, &ops::RandomValues { seed: 0 }).with([&ends as _, &ends as _]);
    let why = at.build(&strategy::Head::of(Axis::Tp, &shape)).err().unwrap().to_string();
    assert_eq!(why, "own and own both build head; a layout can have one of them");
}

/// The usual embedding and head, which count what they are called for. One of them may be another than is
/// asked for.
#[derive(Clone, Default)]
struct Ends {
    calls: Arc<[AtomicUsize; 2]>,
    wrong: Option<&'static str>,
    at_any_rate: bool, // an embedding where a head is tied, too
}
struct Counted<L>(L, Arc<[AtomicUsize; 2]>);

impl<D: Kernels> Strategy<D> for Ends {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn embedding(
        &self,
        at: &Builder<D>,
        ids: &strategy::Embedding,
    ) -> Result<Option<BoxedLayer<D, TokenIds<D::Place>, Stream<D>>>> {
        let padding = if self.wrong == Some(ids.name) { Some(1) } else { ids.padding };
        let usual = Embedding::shard(at, &strategy::Embedding { padding, ..*ids })?;
        Ok((!ids.tied || self.at_any_rate).then(|| BoxedLayer::new(Counted(usual, self.calls.clone()))))
    }
    fn head(
        &self,
        at: &Builder<D>,
        head: &strategy::Head,
    ) -> Result<Option<BoxedLayer<D, Ending<D>, Option<Output<D>>>>> {
        let wrong = Objective { smoothing: 0.5, z: 0.0 };
        let objective = if self.wrong == Some(head.name) { wrong } else { head.objective };
        let usual = Head::shard(at, &strategy::Head { objective, ..*head })?;
        Ok(Some(BoxedLayer::new(Counted(usual, self.calls.clone()))))
    }
}

impl<D: Kernels> Layer<D> for Counted<Embedding<D>> {
    type In = TokenIds<D::Place>;
    type Out = Stream<D>;
    type Saved = <Embedding<D> as Layer<D>>::Saved;
    type Pending = <Embedding<D> as Layer<D>>::Pending;

    fn forward(&self, cx: &PassContext<D>, ids: TokenIds<D::Place>) -> Result<(Stream<D>, Self::Saved)> {
        self.1[0].fetch_add(1, Relaxed);
        self.0.forward(cx, ids)
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Stream<D>,
    ) -> InputHalf<D, Self> {
        self.1[0].fetch_add(10, Relaxed);
        self.0.backward_input(cx, saved, dy)
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Self::Pending) -> Result<()> {
        self.1[0].fetch_add(100, Relaxed);
        self.0.backward_weight(cx, pending)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
    }
}

impl<D: Kernels> Layer<D> for Counted<Head<D>> {
    type In = Ending<D>;
    type Out = Option<Output<D>>;
    type Saved = <Head<D> as Layer<D>>::Saved;
    type Pending = <Head<D> as Layer<D>>::Pending;

    fn forward(&self, cx: &PassContext<D>, (x, wanted): Ending<D>) -> Result<(Self::Out, Self::Saved)> {
        let calls = if let Some(StageRequest::Logits { .. }) = wanted { 1000 } else { 1 };
        self.1[1].fetch_add(calls, Relaxed);
        self.0.forward(cx, (x, wanted))
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Self::Out,
    ) -> InputHalf<D, Self> {
        self.1[1].fetch_add(10, Relaxed);
        self.0.backward_input(cx, saved, dy)
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, kept: Self::Pending) -> Result<()> {
        self.1[1].fetch_add(100, Relaxed);
        self.0.backward_weight(cx, kept)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
    }
    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        self.0.table()
    }
}

/// Logits, losses and gradients; traffic; what strategies built.
type Seen = (Vec<Vec<F61>>, String, Vec<String>);

/// Logits, the losses of two microbatches in flight at once, gradients and traffic of a small model on two
/// ranks, and what of it strategies built.
fn small(tied: bool, later: bool, ends: Option<&Ends>) -> std::result::Result<Seen, String> {
    let run = |device: Cpu<F61>, mesh: Mesh<_>| {
        let heads = kernels::Heads::new(2, 2, 2);
        let shape = Shape { width: 4, heads, hidden: 6, blocks: 1, vocabulary: 7, tied, ..Shape::LLAMA };
        let at = Builder::new(&device, &mesh, &ops::RandomValues { seed: 4 });
        let at = at.with(ends.map(|ends| ends as &dyn Strategy<_>));
        let mut model = Chunk::whole(&at, &shape)?;
        let ids = |salt| TokenIds::new(device.place(), &[salt, 1, 6, 1], 7);
        let (cxs, mut seen) = ([0, 1].map(|m| PassContext::train(m, [3, 1], 8)), Vec::new());
        let logits = Some(StageRequest::Logits { all: true });
        if let Output::Logits(y) =
            model.forward(0, &PassContext::infer([3, 1]), &mut Keeper::default(), ids(2)?.into(), logits)?
        {
            seen.extend(y.read());
        }
        for cx in &cxs {
            let (x, targets) = (ids(cx.pass().microbatch as u32)?, Targets::Ids(ids(5)?));
            if let Output::Loss(loss) =
                model.forward(0, cx, &mut Keeper::default(), x.into(), Some(StageRequest::Loss(targets)))?
            {
                seen.extend(loss.all_reduce(&mesh.over(Axes::LOSS)?)?.read());
            }
        }
        let half = if later { Half::Input } else { Half::Both };
        for cx in &cxs {
            model.backward(0, cx, &mut Keeper::default(), None, half, false)?;
        }
        for cx in cxs.iter().rev().filter(|_| later) {
            model.backward_weight(0, cx, &mut Keeper::default(), false)?;
        }
        for param in model.params() {
            seen.extend(param.gather_gradient(&mesh)?);
        }
        let built = at.built.borrow().iter().map(|(name, by)| format!("{name} by {by}")).collect();
        Ok((seen, format!("{:?}", mesh.ledger()), built))
    };
    let seen = World::threads(&[(Axis::Tp, 2)]).unwrap().run::<_, _, Error>(run);
    seen.map(|mut seen| seen.swap_remove(0)).map_err(|why| why.to_string())
}

/// Kills: an own embedding or head that is not asked, or not for all; microbatches mixed up behind the
/// pointer; a table that a tied head of a strategy is not given.
#[test]
fn an_own_embedding_and_head_are_the_models() {
    let _key = Key(6).enter();
    for (tied, later) in [(false, false), (false, true), (true, false), (true, true)] {
        let ends = Ends::default();
        let (usual, own) = (small(tied, later, None).unwrap(), small(tied, later, Some(&ends)).unwrap());
        assert_eq!((&own.0, &own.1), (&usual.0, &usual.1), "tied {tied}, later {later}");
        assert!(usual.2.is_empty());
        let built: &[_] = if tied { &["head by own"] } else { &["embedding by own", "head by own"] };
        assert_eq!(own.2, built);
        let calls = [0, 1].map(|end| ends.calls[end].load(Relaxed));
        // on each of two ranks: logits, and two microbatches there and back
        let embedded = if tied { 0 } else { 3 + 20 + 200 };
        assert_eq!(calls, [2 * embedded, 2 * (2 + 20 + 200 + 1000)], "tied {tied}, later {later}");
    }
}

/// Kills: an own embedding or head whose result is not what the model goes on with.
#[test]
fn a_wrong_embedding_or_head_is_seen() {
    let _key = Key(6).enter();
    let usual = small(false, false, None).unwrap().0;
    let wrong = |wrong| small(false, false, Some(&Ends { wrong, ..Ends::default() })).unwrap().0;
    let differ = |seen: Vec<Vec<F61>>| (0..usual.len()).filter(|i| seen[*i] != usual[*i]).collect::<Vec<_>>();
    assert_eq!(differ(wrong(None)), Vec::<usize>::new());
    assert_eq!(differ(wrong(Some("embedding"))), [3], "a row learns nothing: the table's gradient alone");
    let all = (1..usual.len()).collect::<Vec<_>>();
    assert_eq!(differ(wrong(Some("head"))), all, "a smoothed loss: all but logits");
}

/// Kills: a head that is tied to a table which is nobody's.
#[test]
fn an_own_embedding_of_a_tied_model_is_refused() {
    let _key = Key(6).enter();
    let why = small(true, false, Some(&Ends { at_any_rate: true, ..Ends::default() })).unwrap_err();
    let wanted =
        "own builds embedding without the table that a tied head needs; use a model whose head is not tied";
    assert!(why.contains(wanted), "{why}");
}

/// Kills: what was kept and nobody takes, which stays until the layer goes; a place that is not used again; a
/// ticket that frees what has come after.
#[test]
fn a_ticket_that_is_dropped_frees_what_was_kept() {
    let (slots, kept) = (Rc::<Slots<_>>::default(), Rc::new(()));
    let tickets = [(); 3].map(|()| slots.keep(kept.clone()));
    assert_eq!((Rc::strong_count(&kept), tickets.each_ref().map(|t| t.at)), (4, [0, 1, 2]));
    let [first, second, third] = tickets;
    drop(second);
    assert_eq!(Rc::strong_count(&kept), 3);
    drop(slots.take(Some(first)));
    assert_eq!((Rc::strong_count(&kept), slots.keep(kept.clone()).at, third.at), (2, 0, 2));
}
