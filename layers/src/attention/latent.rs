//! Multi-head latent attention (MLA): keys and values of all heads are computed from few features of each
//! token, a latent, and so may queries be. Every rank computes all latents; heads are split.
//! Letters: `H_t` this rank's heads, `d` features of a key, `n` its own, `v` of a value; `L`, `L_q` features
//! of the latents; `R` = d − n features that all heads share.
//!
//! ```text
//! forward   Q[B,H_t·d]       = X · W_q,   or norm(X · W_q_a)[B,L_q] · W_q_b
//!           [C|R][B,L+R]     = X · W_kv_a
//!           [K|V][B,H_t·n+v] = norm(C) · W_kv_b,   a key of head h is [K_h | R]
//! backward  d[C|R] = Σ_t ...   all-reduce, B·(L+R); dX of W_q all-reduce, B·D, or of W_q_b, B·L_q
//! ```
//! A cache holds `[C | R]` alone, unless kernels take no heads of so many features: queries are turned to the
//! latent, and outputs from it. Under sequence parallelism a rank computes the latents of its tokens.
//!
//! Source: DeepSeek-AI, "DeepSeek-V2", §2.1, arXiv:2405.04434. Chapter: heads.
use super::self_attention;
use crate::build::part::{BoxedLayer, Ticket};
use crate::build::strategy::{Column, Core, Norm};
use crate::{Builder, InputHalf, Latent, Layer, NormKind, Params, SelfAttention, WholeLinear};
use comm::Group;
use kernels::{Heads, Kernels, ScoreTerms};
use ops::{
    Branches, ColumnWeight, KeptValue, PassContext, Pieces, Result, Rotary, Section, Split, Stream,
    compressed, decompressed, expanded, expanded_backward, join, joined_streams, stream_parts, sum_of_shared,
    up_gradient, up_projected,
};
use std::sync::Arc;
use tensor::Tensor;

/// Attention from latents, from the residual stream to the heads' outputs.
pub struct LatentAttention<D: Kernels> {
    name: Arc<str>,
    queries: BoxedLayer<D, Stream<D>, Split<D>>,
    down: WholeLinear<D>,              // W_kv_a[D, L+R]
    norm: Unbranched<D>,               // of C
    up: ColumnWeight<D>,               // W_kv_b[L, H_t·(n+v)]
    shared: Tensor<D>,                 // sums R of all heads
    group: Group<D::Place>,            // ranks that have the other heads
    heads: Heads,                      // this rank's
    latent: usize,                     // L
    inside: SelfAttention<D>,          // of all heads' own keys
    of_kept: Option<SelfAttention<D>>, // of compressed keys
}

/// Values that backward needs: those of the layers, and norm(C) of this rank's tokens.
pub struct Saved<D: Kernels> {
    queries: Ticket,
    down: KeptValue<Stream<D>>,
    norm: Ticket,
    latent: KeptValue<Stream<D>>,
    inside: self_attention::Saved<D>,
}

/// Values that the weight half needs.
pub struct Pending<D: Kernels> {
    queries: Ticket,
    down: (Stream<D>, Stream<D>),
    norm: Ticket,
    up: (Stream<D>, Split<D>),
    inside: Ticket,
}

impl<D: Kernels> LatentAttention<D> {
    /// Builds parameters `name.kv_a`, `name.kv_norm`, `name.kv_b`, and `name.q` or `name.q_a`, `name.q_norm`,
    /// `name.q_b`. `core` describes the core of this rank's heads.
    ///
    /// # Errors
    /// If the ranks do not divide the heads, or a value is missing.
    pub fn new(
        at: &Builder<D>,
        (name, width): (&str, usize),
        latent: Latent,
        (core, queries): (&Core, Section),
        rotary: Option<&Rotary<D>>,
    ) -> Result<Self> {
        let Core { axis, heads, scores, .. } = *core;
        let named = |part: &str| format!("{name}.{part}");
        let norm = |part: &str, width| Unbranched::new(at, &named(part), width, latent.eps);
        let whole = |part: &str, outputs| WholeLinear::new(at, &named(part), [width, outputs]);
        let column = |part: &str, inputs| {
            let sections = [queries];
            at.build(&Column { axis, name: &named(part), inputs, sections: &sections, bias: false })
        };
        let queries = match latent.queries {
            None => column("q", width)?,
            Some(n) => BoxedLayer::new((whole("q_a", n)?, (norm("q_norm", n)?, column("q_b", n)?))),
        };
        let group = at.mesh.group(axis);
        let each = heads.plain + heads.value;
        let size = each * heads.queries * group.size();
        let up = Section { size, pieces: Pieces::Even, grain: each };
        let divisor = Some(scores.divisor.unwrap_or(heads.dim));
        let kept =
            Core { heads: heads.compressed(latent.keys), scores: ScoreTerms { divisor, ..scores }, ..*core };
        let inside = |core: &Core| SelfAttention::new(at, core, None, rotary);
        Ok(Self {
            queries,
            down: whole("kv_a", latent.keys + heads.dim - heads.plain)?,
            norm: norm("kv_norm", latent.keys)?,
            up: ColumnWeight::new(at, axis, named("kv_b"), latent.keys, &[up])?,
            shared: sum_of_shared(at.device, heads),
            inside: inside(core)?,
            of_kept: Some(inside(&kept)?),
            name: named("kv_b").into(),
            group: group.named(name),
            heads,
            latent: latent.keys,
        })
    }
}

impl<D: Kernels> Layer<D> for LatentAttention<D> {
    type In = Stream<D>; // X[B,D]
    type Out = Split<D>; // O[B,H_t·v]
    type Saved = Saved<D>;
    type Pending = Pending<D>;

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Split<D>, Saved<D>)> {
        let (q, queries) = self.queries.forward(cx, x.clone())?;
        let (c, down) = self.down.forward(cx, x)?;
        let [latent, shared] = stream_parts(&c, self.latent);
        let (latent, norm) = self.norm.forward(cx, latent)?;
        cx.record(&self.name, "in", &latent)?;
        let kept = joined_streams([&latent, &shared]);
        let gathered = kept.gather(&self.group)?;
        let up = self.up.columns()?;
        let of_kept = self.of_kept.as_ref().filter(|of| cx.remembers() && of.fits(latent.device()));
        let (o, inside) = if let Some(of_kept) = of_kept {
            let (o, inside) = of_kept.forward(cx, compressed(&q, &up, &gathered, self.heads)?)?;
            (decompressed(&o, &up, self.heads)?, inside)
        } else {
            let expansion = up_projected(&gathered, &up)?;
            cx.record(&self.name, "out", &(&expansion, &self.up))?;
            self.inside.forward(cx, expanded(&q, &expansion, &gathered, self.heads)?)?
        };
        Ok((o, Saved { queries, down, norm, latent: cx.keep(latent), inside }))
    }

    fn backward_input(&mut self, cx: &PassContext<D>, saved: Saved<D>, d_o: Split<D>) -> InputHalf<D, Self> {
        let latent = saved.latent.open();
        let (d, inside) = self.inside.backward_input(cx, saved.inside, d_o)?;
        let (dq, dup, dkept) = expanded_backward(&d, &self.up.columns()?, &self.shared, self.heads)?;
        cx.record_gradient(&self.name, "out", &(&dup, &self.up))?;
        let [dlatent, dshared] = stream_parts(&dkept.reduce_as(&self.group, &latent)?, self.latent);
        cx.record_gradient(&self.name, "in", &dlatent)?;
        let (dlatent, norm) = self.norm.backward_input(cx, saved.norm, dlatent)?;
        let dc = joined_streams([&dlatent, &dshared]);
        let (dx, down) = self.down.backward_input(cx, saved.down, dc)?;
        let (of_queries, queries) = self.queries.backward_input(cx, saved.queries, dq)?;
        Ok((join(dx, &of_queries), Pending { queries, down, norm, up: (latent, dup), inside }))
    }

    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Pending<D>) -> Result<()> {
        self.inside.backward_weight(cx, pending.inside)?;
        let (latent, dup) = pending.up;
        up_gradient(&mut self.up, &latent.gather(&self.group)?, &dup);
        self.norm.backward_weight(cx, pending.norm)?;
        self.down.backward_weight(cx, pending.down)?;
        self.queries.backward_weight(cx, pending.queries)
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.queries.params(into);
        self.down.params(into);
        self.norm.params(into);
        into.push(self.up.param());
        self.inside.params(into);
    }
}

/// A norm without a residual branch around what follows it.
struct Unbranched<D: Kernels>(BoxedLayer<D, Stream<D>, Branches<D>>);

impl<D: Kernels> Unbranched<D> {
    fn new(at: &Builder<D>, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Self(at.build(&Norm { kind: NormKind::Rms, name, width, eps })?))
    }
}

impl<D: Kernels> Layer<D> for Unbranched<D> {
    type In = Stream<D>;
    type Out = Stream<D>;
    type Saved = Ticket;
    type Pending = Ticket;

    fn forward(&self, cx: &PassContext<D>, x: Stream<D>) -> Result<(Stream<D>, Ticket)> {
        let ((y, _), saved) = self.0.forward(cx, x)?;
        Ok((y, saved))
    }
    fn backward_input(&mut self, cx: &PassContext<D>, saved: Ticket, dy: Stream<D>) -> InputHalf<D, Self> {
        self.0.backward_input(cx, saved, (dy, None))
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Ticket) -> Result<()> {
        self.0.backward_weight(cx, pending)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.0.params(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::strategy::Row;
    use comm::{Axis, Mesh};
    use kernels::Mask;
    use ops::RandomValues;
    use tensor::{Category, Cpu, F61, Key};

    /// Kills: a device whose kernels take few features that is given many, keys of one kind read as those of
    /// the other.
    #[test]
    fn a_cache_of_expanded_keys_gives_what_one_of_latents_gives() {
        const D: usize = 5;
        let _key = Key(3).enter();
        let (device, mesh, values) = (Cpu::<F61>::default(), Mesh::alone(), RandomValues { seed: 7 });
        let given = |n: usize| {
            let number = |i: usize| F61::new((i * i % 13) as u64);
            Stream::from(Tensor::from_fn(&device, Category::Activations, n, D, number))
        };
        let heads = Heads { plain: 1, rotated: 2, value: 2, ..Heads::new(2, 2, 3) };
        let generated = |expands: bool| {
            let at = Builder::new(&device, &mesh, &values);
            let queries = Section { size: heads.q().len(), pieces: Pieces::Even, grain: heads.dim };
            let latent = Latent { keys: 4, queries: None, eps: 0.125 };
            let core = Core::of("scores", heads, Mask::Causal);
            let mut layer = LatentAttention::new(&at, ("a", D), latent, (&core, queries), None).unwrap();
            if expands {
                layer.of_kept = None;
            }
            let row = Row { axis: Axis::Tp, name: "out", sizes: [heads.gathered(), D], bias: false };
            let row: BoxedLayer<_, Split<_>, Stream<_>> = at.build(&row).unwrap();
            let mut cx = PassContext::infer([3]).with_cache(4);
            let forward = |cx: &PassContext<_>, n| {
                let o = layer.forward(cx, given(n)).unwrap().0;
                row.forward(cx, o).unwrap().0.share().read()
            };
            let prompt = forward(&cx, 3);
            cx.advance(&[1]);
            [prompt, forward(&cx, 1)]
        };
        assert_eq!(generated(true), generated(false));
    }
}
