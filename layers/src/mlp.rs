//! Feed-forward: columns, an elementwise function, then rows; the hidden features never leave their rank.
//!
//! ```text
//! gated     [G|U][B,2F_t] = X · W_gu,  H[B,F_t] = f(G, U),         Y = Σ_t H · W_d  all-reduce, B·D elements
//! plain     U[B,F_t] = X · W_u,        H[B,F_t] = f(U),            Y = Σ_t H · W_d  all-reduce, B·D elements
//! backward  the mirror image                                                        all-reduce, B·D elements
//! ```
//!
//! `[gate | up]` is one fused weight whose two sections are each cut on their own: cut as one, a rank would
//! hold gates of some features and ups of others. The function needs whole features, not whole rows: it
//! commutes with a cut by columns, so the first product is cut by columns and not by rows.
//!
//! Source: Shazeer, "GLU variants improve transformer", arXiv:2002.05202; split as Megatron-LM §3. Chapter:
//! 3.
use crate::build::part::BoxedLayer;
use crate::build::strategy;
use crate::build::strategy::{Column, Row};
use crate::{Builder, FeedForward, InputHalf, Layer, Params};
use kernels::Kernels;
use ops::{
    Error, KeptValue, PassContext, Result, Section, Split, Stream, activate, activate_backward, gated,
    gated_backward,
};

/// A feed-forward of `F` hidden features, split over the ranks of an axis: `W[D,2F_t]` or `W[D,F_t]`, the
/// elementwise function, and `W[F_t,D]`.
pub type Mlp<D> = (BoxedLayer<D, Stream<D>, Split<D>>, (FeedForward, BoxedLayer<D, Split<D>, Stream<D>>));

/// Builds parameters `name.gate_up` (gated) or `name.up`, and `name.down`, each with a `.bias` if `mlp` has
/// biases.
///
/// # Errors
/// If the ranks do not divide the hidden features, or `mlp` has experts, which only a strategy builds.
pub fn shard<D: Kernels>(at: &Builder<D>, mlp: &strategy::Mlp) -> Result<Mlp<D>> {
    let strategy::Mlp { axis, name, kind, sizes: [width, hidden], bias, experts } = *mlp;
    if let Some(experts) = experts {
        return Err(Error::Strategies(format!("no strategy builds the {} experts of {name}", experts.count)));
    }
    let (up, sections) = first(kind, hidden);
    let [up, down] = [up, "down"].map(|part| format!("{name}.{part}"));
    let up = at.build(&Column { axis, name: &up, inputs: width, sections: &sections, bias })?;
    Ok((up, (kind, at.build(&Row { axis, name: &down, sizes: [hidden, width], bias })?)))
}

/// Returns the name of the first weight, and its columns, section by section, for `hidden` features.
#[must_use]
pub fn first(kind: FeedForward, hidden: usize) -> (&'static str, Vec<Section>) {
    match kind {
        FeedForward::Gated(_) => ("gate_up", vec![hidden.into(); 2]),
        FeedForward::Plain(_) => ("up", vec![hidden.into()]),
    }
}

/// Applies the elementwise function to the first product, `[G|U]` or U: returns H.
#[must_use]
pub fn apply<D: Kernels>(kind: FeedForward, up: &Split<D>) -> Split<D> {
    match kind {
        FeedForward::Gated(f) => gated(up, f),
        FeedForward::Plain(f) => activate(up, f),
    }
}

/// Returns `[dG|dU]` or dU, from the first product and dH.
#[must_use]
pub fn apply_backward<D: Kernels>(kind: FeedForward, up: &Split<D>, dh: &Split<D>) -> Split<D> {
    match kind {
        FeedForward::Gated(f) => gated_backward(up, dh, f),
        FeedForward::Plain(f) => activate_backward(up, dh, f),
    }
}

/// The elementwise function between the two products.
impl<D: Kernels> Layer<D> for FeedForward {
    type In = Split<D>; // [G|U] or U
    type Out = Split<D>; // H
    type Saved = KeptValue<Split<D>>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, up: Split<D>) -> Result<(Split<D>, Self::Saved)> {
        Ok((apply(*self, &up), cx.keep(up)))
    }

    fn backward_input(&mut self, _: &PassContext<D>, up: Self::Saved, dh: Split<D>) -> InputHalf<D, Self> {
        Ok((apply_backward(*self, &up.open(), &dh), ()))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }

    fn params<'a>(&'a mut self, _: &mut Params<'a, D>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
    use comm::{Axis, Op};
    use kernels::{Activation, Gate};
    use reference::{add_bias, bias_gradient, linear, linear_backward};
    use tensor::Scalar;

    const D: usize = 5;
    const F: usize = 24;
    struct Feed(FeedForward, bool);

    impl Feed {
        fn names(&self) -> [&'static str; 2] {
            if self.gate().is_some() {
                ["mlp.gate_up", "mlp.gate_up.bias"]
            } else {
                ["mlp.up", "mlp.up.bias"]
            }
        }
        fn plain(&self) -> Activation {
            if let FeedForward::Plain(f) = self.0 { f } else { panic!("a gate is of pairs of numbers") }
        }
        fn gate(&self) -> Option<Gate> {
            if let FeedForward::Gated(f) = self.0 { Some(f) } else { None }
        }
    }
    impl Case for Feed {
        type Layer<T: Kernels> = Mlp<T>;
        fn features(&self) -> [usize; 2] {
            [D, D]
        }
        fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Mlp<T>> {
            let mlp = strategy::Mlp {
                axis: Axis::Tp,
                name: "mlp",
                kind: self.0,
                sizes: [D, F],
                bias: self.1,
                experts: None,
            };
            shard(at, &mlp)
        }
        fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
            let ([up, up_bias], gate) = (self.names(), self.gate());
            let (n, wd) = (if gate.is_some() { 2 * F } else { F }, &g.weights["mlp.down"]);
            let mut u = linear(&g.x, &g.weights[up], [D, n]);
            if self.1 {
                add_bias(&mut u, &g.weights[up_bias]);
            }
            let h = match gate {
                Some(gate) => reference::gated(&u, F, gate),
                None => reference::activate(&u, self.plain()),
            };
            let mut y = linear(&h, wd, [F, D]);
            let (dh, ddown) = linear_backward(&h, wd, &g.dy, [F, D]);
            let du = match gate {
                Some(gate) => reference::gated_backward(&u, &dh, F, gate),
                None => reference::activate_backward(&u, &dh, self.plain()),
            };
            let (dx, dup) = linear_backward(&g.x, &g.weights[up], &du, [D, n]);
            let mut gradients = [(up.into(), dup), ("mlp.down".into(), ddown)].into();
            if self.1 {
                add_bias(&mut y, &g.weights["mlp.down.bias"]);
                let all: &mut std::collections::BTreeMap<String, Vec<S>> = &mut gradients;
                all.insert(up_bias.into(), bias_gradient(&du, n));
                all.insert("mlp.down.bias".into(), bias_gradient(&g.dy, D));
            }
            Answer { y, dx, gradients }
        }
        fn traffic(&self, tokens: usize, _: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllReduce, 2 * tokens * D)] // Y and dX
        }
        fn traffic_in_regions(&self, share: usize, ranks: usize) -> Vec<(Op, usize)> {
            vec![(Op::AllGather, 3 * share * D), (Op::ReduceScatter, 2 * ranks * share * D)] // X×2, dY; Y, dX
        }
        fn synced(&self, _: usize, regions: bool) -> usize {
            if regions && self.1 { D } else { 0 } // the bias of rows
        }
    }

    /// Kills: `[gate | up]` cut as one section, gate and up exchanged, a wrong derivative, one GeLU for the
    /// other, a bias dropped or counted once per rank.
    #[test]
    fn mlp_equals_its_formula_bit_for_bit() {
        for gate in [Gate::Silu, Gate::GeluTanh, Gate::Clamped] {
            proves(&Feed(FeedForward::Gated(gate), false));
            proves(&Feed(FeedForward::Gated(gate), true));
        }
        for f in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
            proves(&Feed(FeedForward::Plain(f), true));
        }
    }

    #[test]
    fn mlp_equals_its_formula_under_sequence_parallelism() {
        proves_in_regions(&Feed(FeedForward::SWIGLU, false));
        proves_in_regions(&Feed(FeedForward::Plain(Activation::GeluTanh), true));
    }
}
