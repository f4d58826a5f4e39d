//! The shared expert, which all tokens go through: a usual feed-forward, its output times a gate if it has
//! one.
//!
//! ```text
//! Y[B,D] = sigmoid(X[B,D]·W_s[D,1]) · FFN(X)      no traffic besides the feed-forward's
//! ```
//! The gate is a router of one expert. Source: Qwen Team, "Qwen1.5-MoE", 2024; Dai et al., `DeepSeekMoE`,
//! §3.2, arXiv:2401.06066, without a gate.
use kernels::{Kernels, RouterTerms};
use layers::build::part::Ticket;
use layers::build::strategy;
use layers::{BoxedLayer, Builder, InputHalf, Layer, Params, SharedExpert};
use ops::{
    Draw, KeptValue, PassContext, Result, Stream, WholeWeight, dots, gates, join, logits, router_backward,
    scaled, whole_gradient, whole_input_gradient,
};
use tensor::{Index, Tensor};

/// A router of one expert: a gate.
const GATE: RouterTerms =
    RouterTerms { chosen: 1, sigmoid: true, normalize: false, scale: 1.0, groups: None };

/// A feed-forward with or without a gate.
pub struct SharedFeedForward<D: Kernels> {
    mlp: BoxedLayer<D, Stream<D>, Stream<D>>,
    gate: Option<WholeWeight<D>>,
}

/// Values that backward needs if there is a gate.
pub struct Gated<D: Kernels> {
    x: Stream<D>,
    y: Stream<D>,                 // output of the feed-forward
    scores: [Tensor<D::Wide>; 3], // logits, their log-sum-exp, gates
    one: Index<D::Place>,         // the expert of each row
}

impl<D: Kernels> SharedFeedForward<D> {
    /// Builds parameters `name.shared.…`, those of a feed-forward, and `name.shared.gate[D,1]` if it has a
    /// gate.
    pub(crate) fn new(at: &Builder<D>, mlp: &strategy::Mlp, shared: SharedExpert) -> Result<Self> {
        let name = format!("{}.shared", mlp.name);
        let width = mlp.sizes[0];
        let spec = strategy::Mlp { name: &name, sizes: [width, shared.hidden], experts: None, ..*mlp };
        let draw = Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        let gate = || WholeWeight::new(at, format!("{name}.gate"), [width, 1], at.placement(), draw);
        Ok(Self { mlp: at.build(&spec)?, gate: shared.gated.then(gate).transpose()? })
    }
}

impl<D: Kernels> Layer<D> for SharedFeedForward<D> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = (Ticket, Option<KeptValue<Gated<D>>>);
    type Pending = (Ticket, Option<(Stream<D>, Tensor<D>)>);

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Self::Saved)> {
        let (y, mlp) = self.mlp.forward(cx, x.clone())?;
        let Some(gate) = &self.gate else { return Ok((y, (mlp, None))) };
        let logits = logits(x.share(), &gate.whole()?, None);
        let rows = logits.rows();
        let one = Index::new(x.device().place(), rows, std::iter::repeat_n(0, rows));
        let (gates, lse) = gates(&logits, &one, &GATE);
        let gated = y.with(scaled(y.share(), &gates));
        Ok((gated, (mlp, Some(cx.keep(Gated { x, y, scores: [logits, lse, gates], one })))))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        (mlp, gated): Self::Saved,
        dy: Stream<D>,
    ) -> InputHalf<D, Self> {
        let (Some(gate), Some(gated)) = (&self.gate, gated) else {
            let (dx, pending) = self.mlp.backward_input(cx, mlp, dy)?;
            return Ok((dx, (pending, None)));
        };
        let Gated { x, y, scores: [logits, lse, gates], one } = gated.open();
        let d_gates = dots(dy.share(), y.share());
        let dlogits: Tensor<D> = router_backward(x.device(), (&logits, &lse), (&d_gates, &one), None, &GATE);
        let w = gate.whole()?;
        let (dx, pending) = self.mlp.backward_input(cx, mlp, dy.with(scaled(dy.share(), &gates)))?;
        Ok((join(dx, &x.with(whole_input_gradient(&dlogits, &w))), (pending, Some((x, dlogits)))))
    }

    fn backward_weight(&mut self, cx: &PassContext<D>, (mlp, gated): Self::Pending) -> Result<()> {
        self.mlp.backward_weight(cx, mlp)?;
        if let (Some(gate), Some((x, dlogits))) = (&mut self.gate, gated) {
            whole_gradient(gate, x.share(), &dlogits);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.mlp.params(into);
        into.extend(self.gate.as_mut().map(WholeWeight::param));
    }
}
