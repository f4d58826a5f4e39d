//! Final norm, logits over a split vocabulary, and cross-entropy without gathering them.
//!
//! ```text
//! forward   Z[B,V_t] = norm(X) · W_t                                                no traffic
//!           m[B] = stab_t stab(Z_t)                                                 all-reduce, B elements
//!           l[B], z[B] = Σ_t (Σ exp(Z_t − m), the target's logit or 0)              all-reduce, 2·B elements
//!           loss = Σ_B (m + ln l − z) / tokens                                      no traffic
//! backward  dZ[B,V_t] = (softmax(Z)_t − one-hot_t) / tokens                         no traffic
//!           dX = norm backward of Σ_t dZ · W_tᵀ                                     all-reduce, B·D elements
//! ```
//!
//! No rank ever holds a row of all logits in training: 3·B elements replace B·V. A tied head uses the embedding's
//! table, whose rows are this layer's columns, and adds to its gradient.
//!
//! Source: Shoeybi et al., Megatron-LM, §3 (parallel cross-entropy), arXiv:1909.08053. Chapter: 3.
use crate::ops::{self, Partial, Split, cross_entropy, cross_entropy_backward, matmul, row_stab, row_sums};
use crate::weight::{ColumnWeight, RowWeight};
use crate::{Builder, Cx, Draw, Kept, Layer, Param, Result, RmsNorm, norm};
use comm::{Axis, Group};
use kernels::Kernels;
use tensor::{Ids, Tensor};

/// Final norm, output projection and loss, the vocabulary split over the ranks of an axis.
pub struct Head<D: Kernels> {
    norm: RmsNorm<D>,
    weight: Option<ColumnWeight<D>>, // W[D,V_t]; none where it is the embedding's table
    group: Group<D>,
}

/// What backward needs.
pub struct Saved<D: Kernels> {
    norm: norm::Saved<D>,
    x: Kept<Tensor<D>>,
    logits: Kept<Split<D>>,
    lse: Kept<Tensor<D>>,
    targets: Ids<D>,
}

/// What the weight half needs.
pub type Pending<D> = (Tensor<D>, Split<D>);

impl<D: Kernels> Head<D> {
    /// Parameters `norm` and, unless tied, `head[width, vocabulary]`.
    ///
    /// # Errors
    /// If the ranks do not divide the vocabulary.
    pub fn shard(
        at: &Builder<D>,
        axis: Axis,
        [width, vocabulary]: [usize; 2],
        eps: f64,
        tied: bool,
    ) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        let weight = || ColumnWeight::new(at, axis, "head", width, &[vocabulary], draw);
        Ok(Self {
            norm: RmsNorm::new(at, "norm", width, eps)?,
            weight: if tied { None } else { Some(weight()?) },
            group: at.mesh.group(axis).named("head"),
        })
    }
    fn columns(&self, table: Option<&RowWeight<D>>) -> Result<ops::Columns<D>> {
        match (&self.weight, table) {
            (Some(weight), _) => weight.columns(),
            (None, table) => Ok(table.expect("a tied head is given the embedding's table").rows()?.t()),
        }
    }
    /// `X[B,D]` to logits `[B,V]`, all of them on every rank: for choosing the next token.
    ///
    /// # Errors
    /// If ranks do not meet; so it is below.
    pub fn logits(&self, cx: &Cx<D>, table: Option<&RowWeight<D>>, x: Tensor<D>) -> Result<Tensor<D>> {
        let (n, _) = self.norm.forward(cx, x)?;
        matmul(&n, &self.columns(table)?).all_gather(&self.group)
    }
    /// `X[B,D]` to this microbatch's share of the mean loss: data ranks each have an addend.
    ///
    /// # Errors
    /// As above.
    pub fn forward(
        &self,
        cx: &Cx<D>,
        table: Option<&RowWeight<D>>,
        x: Tensor<D>,
        targets: Ids<D>,
    ) -> Result<(Partial<D>, Saved<D>)> {
        let (n, norm) = self.norm.forward(cx, x)?;
        let logits = matmul(&n, &self.columns(table)?);
        let m = row_stab(&logits).all_reduce(&self.group)?;
        let sums = row_sums(&logits, &m, self.group.rank(), &targets).all_reduce(&self.group)?;
        let (loss, lse) = cross_entropy(m, &sums, cx.mean_over());
        Ok((loss, Saved { norm, x: cx.keep(n), logits: cx.keep(logits), lse: cx.keep(lse), targets }))
    }
    /// The input half: `dX[B,D]`.
    ///
    /// # Errors
    /// As above.
    pub fn backward_input(
        &mut self,
        cx: &Cx<D>,
        table: Option<&RowWeight<D>>,
        s: Saved<D>,
    ) -> Result<(Tensor<D>, Pending<D>)> {
        let lse = s.lse.open();
        let rank = self.group.rank();
        let dlogits = cross_entropy_backward(s.logits.open(), &lse, rank, &s.targets, cx.mean_over());
        let dn = dlogits.matmul(&self.columns(table)?.t())?.all_reduce(&self.group)?;
        Ok((self.norm.backward_onto(s.norm, &dn, None)?, (s.x.open(), dlogits)))
    }
    /// The weight half.
    pub fn backward_weight(&mut self, table: Option<&mut RowWeight<D>>, (x, dlogits): Pending<D>) {
        match (&mut self.weight, table) {
            (Some(weight), _) => ops::columns_gradient(weight, &x, &dlogits),
            (None, table) => {
                let table = table.expect("a tied head is given the embedding's table");
                ops::rows_gradient(table, &dlogits, &x);
            }
        }
    }
    /// Its parameters.
    pub fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.norm.params(into);
        into.extend(self.weight.as_mut().map(ColumnWeight::param));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Random};
    use comm::{Mesh, Op, World};
    use kernels::CpuScalar;
    use tensor::{Category, Cpu, Dual, F61, Key, Scalar};

    const D: usize = 5;
    const V: usize = 12;
    const TARGETS: [u32; 4] = [0, 11, 5, 6];
    const MEAN_OVER: usize = 7; // more than these tokens: other microbatches have some

    /// Whole tensors by name, in program order.
    type Trace<S> = Vec<(&'static str, Vec<S>)>;

    /// Two microbatches of the same head, and the gradients they sum up to.
    fn run<S: CpuScalar>(device: &Cpu<S>, mesh: &Mesh<Cpu<S>>, tied: bool) -> Result<Trace<S>> {
        let at = Builder { device, mesh, values: &Random { seed: 3 } };
        let mut head = Head::shard(&at, Axis::Tp, [D, V], 1e-5, tied)?;
        let mut table = RowWeight::new(&at, Axis::Tp, "table", [V, D], Draw { mean: 0.0, std: 1.0 })?;
        let mut trace = Trace::new();
        let whole = |t: &Tensor<Cpu<S>>| t.read().expect("the host has values");
        let before = mesh.ledger();
        for microbatch in 0..2u64 {
            let cx = Cx::train(microbatch as usize, &[3, 1], MEAN_OVER);
            let draw = |i: usize| S::sample(microbatch * 100 + i as u64, 1.0);
            let x = Tensor::from_fn(device, Category::Activations, 4, D, draw);
            trace.push(("X", whole(&x)));
            let shown = tied.then_some(&table);
            trace.push(("logits", whole(&head.logits(&cx, shown, x.clone())?)));
            let (loss, saved) = head.forward(&cx, shown, x, Ids::new(device, &TARGETS, V)?)?;
            trace.push(("loss", whole(&loss.all_reduce(mesh.group(Axis::Dp))?)));
            let (dx, pending) = head.backward_input(&cx, shown, saved)?;
            head.backward_weight(tied.then_some(&mut table), pending);
            trace.push(("dX", whole(&dx)));
        }
        let said = mesh.ledger() - &before;
        if mesh.size() > 1 {
            // Of 4 tokens, twice: one stabiliser, two sums and D gradients each; gathered logits are not for training.
            assert_eq!(said.get(Axis::Tp, Op::AllReduce).elements, 2 * 4 * (1 + 2 + D));
            assert_eq!(said.get(Axis::Tp, Op::AllGather).elements, 2 * 4 * V / mesh.size());
        }
        let mut params = Vec::new();
        head.params(&mut params);
        let gain = params.remove(0);
        let weight = if tied { table.param() } else { params.remove(0) };
        for (names, param) in [(["gain", "dgain"], gain), (["W", "dW"], weight)] {
            trace.push((names[0], param.gather(mesh)?.expect("values")));
            trace.push((names[1], param.gather_gradient(mesh)?.expect("a gradient")));
        }
        Ok(trace)
    }

    fn get<S: Clone>(trace: &Trace<S>, name: &str, nth: usize) -> Vec<S> {
        let found = trace.iter().filter(|(n, _)| *n == name).nth(nth);
        found.unwrap_or_else(|| panic!("{name} {nth}")).1.clone()
    }

    fn transpose<S: Copy>(x: &[S], cols: usize) -> Vec<S> {
        (0..cols).flat_map(|c| (0..x.len() / cols).map(move |r| x[r * cols + c])).collect()
    }

    /// Kills: a target's logit not reduced, a mask off by one, a mean over the wrong count, a stabiliser that does
    /// not cancel, a sum for a stabiliser, a tied gradient lost or turned.
    #[test]
    fn head_equals_norm_linear_and_cross_entropy_bit_for_bit() {
        let _key = Key(4).enter();
        for (tied, ranks) in [1, 2, 3, 4].into_iter().flat_map(|n| [(false, n), (true, n)]) {
            let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
            let traces = world.run::<F61, _, Error>(|device, mesh| run(&device, &mesh, tied)).unwrap();
            for (rank, trace) in traces.iter().enumerate() {
                let (gain, w) = (get(trace, "gain", 0), get(trace, "W", 0));
                let w = if tied { transpose(&w, D) } else { w };
                let mut sums = (vec![F61::ZERO; D], vec![F61::ZERO; D * V]);
                for microbatch in 0..2 {
                    let at = format!("tied {tied}, rank {rank} of {ranks}, microbatch {microbatch}");
                    let x = get(trace, "X", microbatch);
                    let n = reference::rms_norm(&x, &gain, 1e-5);
                    let logits = reference::linear(&n, &w, [D, V]);
                    assert_eq!(get(trace, "logits", microbatch), logits, "logits, {at}");
                    let loss = reference::cross_entropy(&logits, &TARGETS, V, MEAN_OVER);
                    assert_eq!(get(trace, "loss", microbatch), [loss], "loss, {at}");
                    let d = reference::cross_entropy_backward(&logits, &TARGETS, V, MEAN_OVER);
                    let (dn, dw) = reference::linear_backward(&n, &w, &d, [D, V]);
                    let (dx, dgain) = reference::rms_norm_backward(&x, &gain, &dn, 1e-5);
                    assert_eq!(get(trace, "dX", microbatch), dx, "dX, {at}");
                    sums.0.iter_mut().zip(dgain).for_each(|(sum, g)| *sum += g);
                    sums.1.iter_mut().zip(dw).for_each(|(sum, g)| *sum += g);
                }
                let dw = if tied { transpose(&sums.1, V) } else { sums.1 };
                assert_eq!(get(trace, "dgain", 0), sums.0, "tied {tied}, rank {rank} of {ranks}");
                assert_eq!(get(trace, "dW", 0), dw, "tied {tied}, rank {rank} of {ranks}");
            }
        }
    }

    /// The hand-written backward is the loss' derivative, exactly.
    #[test]
    fn head_backward_is_the_derivative_exactly() {
        let _key = Key(5).enter();
        for (tied, ranks) in [(false, 1), (true, 2)] {
            let world = World::threads(&[(Axis::Tp, ranks)]).unwrap();
            let run = |device, mesh| run(&device, &mesh, tied);
            let trace = world.run::<Dual<F61>, _, Error>(run).unwrap().swap_remove(0);
            let along = |gradient: &str, moving: &str, nth: usize| {
                let pairs = get(&trace, gradient, nth).into_iter().zip(get(&trace, moving, nth));
                pairs.fold(F61::ZERO, |sum, (g, m)| sum + g.value * m.tangent)
            };
            let moved = get(&trace, "loss", 0)[0].tangent + get(&trace, "loss", 1)[0].tangent;
            let sum = along("dX", "X", 0) + along("dX", "X", 1) + along("dgain", "gain", 0);
            assert_eq!(moved, sum + along("dW", "W", 0), "tied {tied}, {ranks} ranks");
            assert_ne!(moved, F61::ZERO);
        }
    }
}
