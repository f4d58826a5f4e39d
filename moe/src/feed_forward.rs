//! The layer of experts: a router, this rank's experts, and a shared one.
//!
//! ```text
//! forward   T = B, cut over the tensor ranks, gathered over etp    R[N,D], g[N] = out over ep
//!           U[N,2F_t] = R_e · W_up[e]    H = g · act(U)    O[N,D] = Σ_t H · W_down[e]ᵀ
//!           Y = back over ep, scattered over etp
//! backward  dO = out(dY)    dH = dO · W_down[e]    dg = Σ_t ⟨dH, act(U)⟩
//!           dX = back(Σ_t dU · W_up[e]ᵀ) + dL · W_rᵀ
//! ```
//! Gates multiply the hidden features, before the product that is a partial sum over etp, so that of the
//! experts' activations only R and U are kept for backward. Source: Megatron-LM, `moe/experts.py`, on the
//! place of the gates; Qwen Team, "Qwen1.5-MoE", on the gated shared expert.
use crate::balance::{self, BIAS, Balancing, ChoiceCounts};
use crate::biases::ExpertBiases;
use crate::dispatch::{Dispatch, RowCapacity, RowKind, TokenDispatcher};
use crate::routing::{self, Routing, TokenNumbers};
use crate::shared::SharedFeedForward;
use comm::{Axes, Axis, Group, Mesh, Request};
use kernels::{Kernels, MeanOver, RouterNoise, RouterTerms};
use layers::build::strategy;
use layers::mlp::{apply, apply_backward, first};
use layers::{
    BoxedLayer, Builder, Design, Experts, FeedForward, Hooks, InputHalf, Layer, Params, Strategy,
    StrategyInfo,
};
use ops::{
    Draw, ExpertWeight, KeptValue, Partial, PassContext, Placed, Region, Result, RouterLoss, Section, Split,
    Stream, WholeWeight, choose, expert_bias_gradient, expert_biased, expert_columns, expert_gradient,
    expert_rows, gates, join, logit_bias_gradient, logits, plus, router_backward, whole_gradient,
    whole_input_gradient,
};
use std::sync::Arc;
use tensor::{Device, Index, Tensor};

/// A strategy that builds layers of experts with this dispatcher, in models that have experts.
#[derive(Clone, Copy)]
pub struct WithExperts<X>(pub X);

impl<D: Kernels, X: TokenDispatcher<D> + TokenDispatcher<D::Wide> + Copy + 'static> Strategy<D>
    for WithExperts<X>
{
    fn about(&self) -> &'static StrategyInfo {
        <X as TokenDispatcher<D>>::about(&self.0)
    }
    fn hooks(&self, at: &Builder<D>, design: &Design) -> Option<Box<dyn Hooks<D>>> {
        Some(Box::new(Balancing::of(at.mesh, design.shape()?)?))
    }
    fn feed_forward(
        &self,
        at: &Builder<D>,
        mlp: &strategy::Mlp,
    ) -> Result<Option<BoxedLayer<D, Stream<D>, Stream<D>>>> {
        let Some(experts) = mlp.experts else { return Ok(None) };
        Ok(Some(BoxedLayer::new(ExpertFeedForward::new(at, mlp, experts, self.0)?)))
    }
}

/// Experts in place of a feed-forward.
pub struct ExpertFeedForward<D: Kernels, X> {
    pub(crate) experts: Experts,
    terms: RouterTerms,
    kind: FeedForward,
    name: Arc<str>, // of the router
    router: WholeWeight<D>,
    bias: Option<WholeWeight<D>>, // of the choice
    biases: Option<ExpertBiases<D>>,
    up: ExpertWeight<D>,   // W[E·D,2F_t]
    down: ExpertWeight<D>, // W[E·D,F_t]
    shared: Option<SharedFeedForward<D>>,
    exchange: X,
    pub(crate) room: RowCapacity,
    shares: Option<Vec<usize>>, // each expert's share of the copies in a stated routing
    region: Region,             // the tokens of this rank
    mesh: Mesh<D::Place>,
    tp: Group<D::Place>,
    ep: Group<D::Place>,
    etp: Group<D::Place>,
}

/// Routing of this rank's tokens, and the plan of their dispatch.
struct Routed<D: Kernels> {
    chosen: Index<D::Place>,
    loss: Option<RouterLoss<D::Wide>>,
    plan: Dispatch<D::Place>,
    rows: [Vec<usize>; 2], // numbers of tokens, and of copies, of each etp rank
}

/// Values of forward that backward needs.
pub struct Saved<D: Kernels> {
    x: Stream<D>,
    scores: [Tensor<D::Wide>; 2], // logits and their log-sum-exp
    dispatched: Routed<D>,
    rows: Tensor<D>,     // R
    up: Split<D>,        // U
    by: Tensor<D::Wide>, // g of each row
}

/// Values of the input half that the weight half needs.
pub struct Pending<D: Kernels> {
    x: Stream<D>,
    dlogits: Tensor<D>,
    counts: Vec<usize>,
    up: (Tensor<D>, Split<D>),   // R and dU
    down: (Tensor<D>, Split<D>), // dO and H
    biases: Option<Split<D>>,    // this rank's columns of g·dO
}

impl<D: Kernels, X: TokenDispatcher<D> + TokenDispatcher<D::Wide> + Copy> ExpertFeedForward<D, X> {
    /// Builds parameters `name.router[D,E]`, `name.router.bias[1,E]` if the choice has a bias,
    /// `name.experts.gate_up[E·D,2F]` or `.up[E·D,F]`, `name.experts.down[E·D,F]`, and those of the shared
    /// expert.
    ///
    /// # Errors
    /// If sizes do not fit, or the ranks do not divide the hidden features.
    pub fn new(at: &Builder<D>, mlp: &strategy::Mlp, experts: Experts, exchange: X) -> Result<Self> {
        let strategy::Mlp { name, kind, sizes: [width, _], bias, .. } = *mlp;
        routing::fits(&experts, bias)?;
        let Experts { count, hidden, .. } = experts;
        let tp = at.mesh.group(Axis::Tp);
        let region = if let Region::Whole = at.region { Region::tokens(tp) } else { at.region };
        let everywhere = at.placement().on(Axis::Tp, Placed::Partial);
        let whole = |what: &str, rows, placement, draw| {
            WholeWeight::new(at, format!("{name}.{what}"), [rows, count], placement, draw)
        };
        let draw = |inputs: usize| Draw { mean: 0.0, std: 1.0 / (inputs as f64).sqrt() };
        let untrained = everywhere.clone().untrained();
        let bias = || whole(BIAS, 1, untrained, Draw { mean: 0.0, std: 0.02 });
        let (up, sections) = first(kind, hidden);
        let expert = |what: &str, sections: (&[Section], bool), draw| {
            ExpertWeight::new(at, format!("{name}.experts.{what}"), [count, width], sections, draw)
        };
        let biases = |up| ExpertBiases::new(at, (name, everywhere.clone()), [count, width], (up, &sections));
        let router: Arc<str> = format!("{name}.router").into();
        Ok(Self {
            terms: routing::terms(&experts),
            kind,
            router: whole("router", width, everywhere.clone(), draw(width))?,
            biases: experts.biases.then(|| biases(up)).transpose()?,
            bias: experts.bias.map(|_| bias()).transpose()?,
            up: expert(up, (&sections, false), draw(width))?,
            down: expert("down", (&[hidden.into()], true), draw(hidden))?,
            shared: experts.shared.map(|shared| SharedFeedForward::new(at, mlp, shared)).transpose()?,
            experts,
            exchange,
            room: RowCapacity::default(),
            shares: at.counts.and_then(|counts| counts.of(name)).map(<[_]>::to_vec),
            region,
            mesh: at.mesh.clone(),
            tp: tp.named(name),
            ep: at.mesh.group(Axis::Ep).named(name),
            etp: at.mesh.group(Axis::Etp).named(name),
            name: router,
        })
    }
    /// Returns the experts of this rank's tokens, for kernels and as a list, and true if the list is a stated
    /// one, as on the meta device.
    fn choice(
        &self,
        cx: &PassContext<D>,
        (x, first): (&Stream<D>, usize),
        logits: &Tensor<D::Wide>,
    ) -> Result<(Index<D::Place>, Routing, bool)> {
        let (device, experts, k) = (x.device(), &self.experts, self.experts.copies());
        if experts.by_experts {
            let rows = logits.rows();
            let ids = 0..experts.count as u32;
            let chosen = Index::new(device.place(), rows * k, (0..rows).flat_map(|_| ids.clone()));
            let (p, _) = gates(logits, &chosen, &RouterTerms { scale: 1.0, ..self.terms });
            if let Some(own) = Routing::by_experts(&self.mesh, experts, (&p, cx))? {
                return Ok((chosen, own, false));
            }
        } else if !experts.forced {
            let bias = self.bias.as_ref().map(WholeWeight::whole).transpose()?;
            let tokens = cx.tokens_on(device.place());
            let noise = cx.noise(experts.noise, &self.name).map(|noise| RouterNoise { noise, tokens, first });
            let chosen = choose(device, logits, bias.as_ref(), noise, &self.terms);
            if let Some(own) = routing::read(&chosen, k) {
                return Ok((chosen, own, false));
            }
        }
        let numbers = TokenNumbers::of(&self.mesh, cx)?;
        let routing = Routing::stated(experts, self.shares.as_deref(), numbers.all());
        let routing = routing.part(&numbers.of_rank(&self.mesh, self.mesh.rank()));
        let chosen = Index::new(device.place(), routing.len(), routing.experts());
        let read = routing::read(&chosen, k);
        let stated = read.is_none();
        Ok((chosen, read.unwrap_or(routing), stated))
    }
    /// Routes this rank's tokens, and plans their dispatch.
    fn route(&self, cx: &PassContext<D>, x: &Stream<D>, logits: &Tensor<D::Wide>) -> Result<Routed<D>> {
        let (device, experts, k) = (x.device(), &self.experts, self.experts.copies());
        let first = self.region.mine(x.rows()).start;
        let (chosen, mut own, stated) = self.choice(cx, (x, first), logits)?;
        if !stated {
            cx.count(self.name.trim_end_matches(".router"), &own.counts(experts.count));
        }
        let learns = cx.pass().learns;
        if learns && experts.balance.pooled != 0.0 {
            balance::pool(cx, device, &own.counts(experts.count));
        }
        let drops = experts.capacity.is_some() && !experts.by_experts;
        let counted = drops || learns && experts.balance.microbatch != 0.0;
        let counts = counted.then(|| ChoiceCounts::of(&self.mesh, cx, experts.count, &own)).transpose()?;
        let mean_over = if learns { cx.pass().mean_over } else { MeanOver::of(0) };
        let loss =
            balance::loss(device, &self.mesh, experts, (&own, counts.as_ref()), (cx, first), mean_over)?;
        let most = |tokens| experts.capacity_of(tokens).filter(|_| drops);
        let stated = stated.then(|| {
            let numbers = TokenNumbers::stated(&self.mesh, cx);
            let of = numbers.all();
            let mut routing = Routing::stated(experts, self.shares.as_deref(), of);
            most(of).inspect(|&most| routing.drop_beyond(most, [(of, vec![0; experts.count])]));
            (routing, numbers)
        });
        if let (Some(counts), None) = (counts, &stated)
            && let Some(most) = most(counts.tokens)
        {
            own.drop_beyond(most, counts.before);
        }
        let routings = routing::of_all(&self.mesh, &own, stated.as_ref())?;
        let rows = [k, 1].map(|each| routings[self.ep.rank()].iter().map(|of| of.len() / each).collect());
        let all: Vec<_> = routings.iter().map(|of| Routing::together(of)).collect();
        let experts = (experts.count, &self.room);
        let plan = <X as TokenDispatcher<D>>::plan(&self.exchange, &self.ep, &all, experts, device.place());
        Ok(Routed { chosen, loss, plan, rows })
    }
    /// Adds the loss of this rank's rows to the context's loss.
    fn add_loss(
        &self,
        cx: &PassContext<D>,
        loss: &RouterLoss<D::Wide>,
        scores: (&Tensor<D::Wide>, &Tensor<D::Wide>),
    ) -> Result<()> {
        let over = self.mesh.over(Axes::LOSS)?.axis();
        let tokens = cx.tokens_on(scores.0.device().place());
        cx.add_loss(loss.of(scores, tokens, self.terms.sigmoid, (&self.tp, over))?);
        Ok(())
    }
    /// Starts to send a row of every token of this rank and its etp peers to their experts.
    fn begin(&self, dispatched: &Routed<D>, x: &Tensor<D>) -> Result<Request<D>> {
        let x = self.etp.all_gather_v(x, &dispatched.rows[RowKind::Tokens as usize])?;
        self.exchange.begin(&dispatched.plan, x, RowKind::Tokens)
    }
    /// Returns, for each of this rank's tokens, the sum of its experts' results (or gradients of their
    /// inputs).
    fn back(&self, dispatched: &Routed<D>, y: Partial<D>) -> Result<Tensor<D>> {
        let y = y.through(|y| self.exchange.back(&dispatched.plan, y, RowKind::Tokens))?;
        y.reduce_scatter_v(&self.etp, &dispatched.rows[RowKind::Tokens as usize])
    }
    /// Returns the same sum for the gate of each copy.
    fn back_to_gates(&self, dispatched: &Routed<D>, by: Partial<D::Wide>) -> Result<Tensor<D::Wide>> {
        let by = by.through(|by| self.exchange.back(&dispatched.plan, by, RowKind::Copies))?;
        by.reduce_scatter_v(&self.etp, &dispatched.rows[RowKind::Copies as usize])
    }
    /// Gathers `y` over the tensor ranks if the stream `x` has all tokens.
    fn like(&self, x: &Stream<D>, y: Stream<D>) -> Result<Stream<D>> {
        Ok(if x.region() == Region::Whole { y.gather(&self.tp)?.into() } else { y })
    }
}

impl<D: Kernels, X: TokenDispatcher<D> + TokenDispatcher<D::Wide> + Copy> Layer<D>
    for ExpertFeedForward<D, X>
{
    type In = Stream<D>; // X[B,D]
    type Out = Stream<D>; // Y[B,D]
    type Saved = (KeptValue<Saved<D>>, Option<<SharedFeedForward<D> as Layer<D>>::Saved>);
    type Pending = (Pending<D>, Option<<SharedFeedForward<D> as Layer<D>>::Pending>);

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        let own = x.clone().in_region(self.region);
        cx.record(&self.name, "in", &own)?;
        let bias = self.biases.as_ref().map(|biases| biases.logits.whole()).transpose()?;
        let logits = logits(own.share(), &self.router.whole()?, bias.as_ref());
        let dispatched = cx.take_choice(&self.name).map_or_else(|| self.route(cx, &x, &logits), Ok)?;
        let (gates, lse) = gates(&logits, &dispatched.chosen, &self.terms);
        if let Some(loss) = &dispatched.loss {
            self.add_loss(cx, loss, (&logits, &lse))?;
        }
        let rows = self.begin(&dispatched, own.share())?;
        // Overlaps the dispatch.
        let shared = self.shared.as_ref().map(|layer| layer.forward(cx, x.clone())).transpose()?;
        let rows = self.exchange.end(&dispatched.plan, rows.wait()?, RowKind::Tokens);
        let copies = gates.rows() * self.experts.copies();
        let by =
            self.etp.all_gather_v(&gates.reshaped(copies, 1), &dispatched.rows[RowKind::Copies as usize])?;
        let by = self.exchange.begin(&dispatched.plan, by, RowKind::Copies)?.wait()?;
        let by = self.exchange.end(&dispatched.plan, by, RowKind::Copies);
        let counts = &dispatched.plan.counts;
        let mut up = expert_columns(&rows, counts, &self.up.matrices()?);
        if let Some(biases) = &self.biases {
            up = expert_biased(up, counts, &biases.up.matrices()?)?;
        }
        let hidden = apply(self.kind, &up).scaled(&by);
        let mut y = expert_rows(&hidden, counts, &self.down.matrices()?.t())?;
        drop(hidden);
        if let Some(biases) = &self.biases {
            y = biases.of_outputs((&rows, counts), &self.etp)?.add_to(y, &by)?;
        }
        let y = own.with(self.back(&dispatched, y)?);
        let y = self.like(&x, y)?;
        let (other, shared) = shared.unzip();
        let y = other.iter().fold(y, join);
        if !cx.keeps() {
            cx.keep_choice(&self.name, dispatched);
            return Ok((y, (KeptValue::default(), shared)));
        }
        Ok((y, (cx.keep(Saved { x: own, scores: [logits, lse], dispatched, rows, up, by }), shared)))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        (saved, shared): Self::Saved,
        dy: Stream<D>,
    ) -> InputHalf<D, Self> {
        let Saved { x, scores: [logits, lse], mut dispatched, rows, up, by } = saved.open();
        if let Some(weights) = cx.beside().as_ref() {
            let loss = RouterLoss::alike(weights, cx.tokens().len(), x.mine().start);
            self.add_loss(cx, &loss, (&logits, &lse))?;
            dispatched.loss =
                Some(if let Some(own) = dispatched.loss.take() { own.plus(&loss) } else { loss });
        }
        let counts = &dispatched.plan.counts;
        let own = dy.clone().in_region(self.region);
        let d_out = self.begin(&dispatched, own.share())?;
        let both = self.shared.as_mut().zip(shared);
        // Overlaps the dispatch.
        let shared = both.map(|(layer, saved)| layer.backward_input(cx, saved, dy.clone())).transpose()?;
        let d_out = self.exchange.end(&dispatched.plan, d_out.wait()?, RowKind::Tokens);
        let dh = expert_columns(&d_out, counts, &self.down.matrices()?);
        let hidden = apply(self.kind, &up);
        let mut d_by = dh.dots(&hidden)?;
        let mut biases = None;
        if let Some(own) = &self.biases {
            let (sum, part) = own.of_outputs((&rows, counts), &self.etp)?.backward(d_by, &d_out, &by)?;
            (d_by, biases) = (sum, Some(part));
        }
        let hidden = hidden.scaled(&by);
        let dup = apply_backward(self.kind, &up, &dh.scaled(&by));
        drop(up);
        let dx = expert_rows(&dup, counts, &self.up.matrices()?.t())?;
        let dx = self.back(&dispatched, dx)?;
        let dgates = self.back_to_gates(&dispatched, d_by)?.reshaped(x.share().rows(), self.experts.copies());
        let tokens = cx.tokens_on(dx.device().place());
        let loss = dispatched.loss.as_ref().map(|loss| (loss, tokens));
        let (scores, of) = ((&logits, &lse), (&dgates, &dispatched.chosen));
        let dlogits: Tensor<D> = router_backward(&dx.device().clone(), scores, of, loss, &self.terms);
        let dx = plus(dx, &whole_input_gradient(&dlogits, &self.router.whole()?));
        let dx = self.like(&dy, own.with(dx))?;
        let (other, shared) = shared.unzip();
        let dx = other.iter().fold(dx, join);
        let counts = dispatched.plan.counts;
        let pending = Pending { x, dlogits, counts, up: (rows, dup), down: (d_out, hidden), biases };
        Ok((dx, (pending, shared)))
    }

    fn backward_weight(&mut self, cx: &PassContext<D>, (pending, shared): Self::Pending) -> Result<()> {
        let Pending { x, dlogits, counts, up, down, biases } = pending;
        if let (Some(own), Some(outputs)) = (&mut self.biases, &biases) {
            logit_bias_gradient(&mut own.logits, &dlogits);
            expert_bias_gradient(&mut own.up, &counts, &up.1);
            expert_bias_gradient(&mut own.down, &counts, outputs);
        }
        expert_gradient(&mut self.down, &counts, &down.0, &down.1);
        drop(down);
        expert_gradient(&mut self.up, &counts, &up.0, &up.1);
        whole_gradient(&mut self.router, x.share(), &dlogits);
        if let (Some(layer), Some(pending)) = (&mut self.shared, shared) {
            layer.backward_weight(cx, pending)?;
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.router.param());
        into.extend(self.bias.as_mut().map(WholeWeight::param));
        into.extend([self.up.param(), self.down.param()]);
        into.extend(self.biases.iter_mut().flat_map(ExpertBiases::params));
        if let Some(shared) = &mut self.shared {
            shared.params(into);
        }
    }
}
