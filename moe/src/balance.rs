//! What training does so that experts are handed about as many tokens each. It adds to the loss for every token its scores, each
//! weighed with how often that expert was chosen, and the square of the log-sum-exp of its logits; and it moves the bias of the
//! choice after each step.
//!
//! ```text
//! α·E/(k·B) · Σ_e N_e · Σ_t P̂[t,e] / n       over the tokens of a microbatch, on all ranks
//! β·E/(k·B_s) · Σ_e N_se · Σ_t P̂[t,e] / n    over those of each sequence
//! δ·E/k · Σ_e f̄_e · P̄_e · B/T                 means over the rows of all blocks; T tokens in the step
//! λ · Σ_t lse_t² / n                          n tokens in the mean loss of the step
//! b_e ← b_e + γ·sign(mean of N − N_e)         over the tokens of all microbatches of the step, on all ranks
//! ```
//! The counts have no gradient, so all balances are one table of weights, a row for each sequence at hand. Those of the balance of all
//! blocks (f̄, which `transformers` has for its families) are known when the last block has been gone through: counts go with the
//! activations, from block to block and from stage to stage, and weights come back with the gradients. Source: Fedus et al., "Switch
//! transformers", §2.2, arXiv:2101.03961; Zoph et al., "ST-MoE", §3.3, arXiv:2202.08906; `DeepSeek-V3`, §2.1.2,
//! arXiv:2412.19437; the bias: Wang et al., "Auxiliary-loss-free load balancing", arXiv:2408.15664.
use crate::routing::{Routing, before, tally};
use comm::{Axes, Axis, Mesh};
use kernels::{Kernels, Segment};
use layers::ops::{RouterLoss, filled, plus, pooled};
use layers::{Cx, Experts, Loads, Param, Pass, Result};
use tensor::{Category, Device, Place, Scalar, Tensor};

/// The end of the name of a bias of the choice.
pub(crate) const BIAS: &str = "router.bias";

/// How often experts were chosen, before anything is dropped.
pub(crate) struct Counts {
    /// By the tokens of a microbatch, on all ranks.
    pub(crate) all: Vec<usize>,
    /// By those that come before this rank's.
    pub(crate) before: Vec<usize>,
    /// How many tokens there are on all ranks.
    pub(crate) tokens: usize,
}

fn sum(experts: usize, all: impl IntoIterator<Item = Vec<usize>>) -> Vec<usize> {
    all.into_iter()
        .fold(vec![0; experts], |sum, counts| sum.iter().zip(&counts).map(|(a, b)| a + b).collect())
}

impl Counts {
    /// Those of a microbatch.
    pub(crate) fn of<P: Place>(mesh: &Mesh<P>, experts: usize, own: &Routing) -> Result<Self> {
        let group = mesh.over(Axes::TOKENS | Axis::LAYERS)?.named("tokens of experts");
        let counts = group.all_gather_values(&own.counts(experts))?;
        let all = sum(experts, counts.clone());
        let tokens = all.iter().sum::<usize>() / own.chosen;
        Ok(Self { all, before: sum(experts, before(mesh, &group, counts)), tokens })
    }
}

/// Moves the biases of the choice among these parameters by `rate` each, where `loads` are the choices of this rank's tokens in all
/// microbatches of a step: up where an expert has fewer than the mean of those of all ranks, down where it has more.
///
/// # Errors
/// If ranks do not meet.
pub fn move_biases<D: Kernels>(
    (params, mesh): (&mut [&mut Param<D>], &Mesh<D::Place>),
    (loads, rate): (&Loads, f64),
) -> Result<()> {
    let group = mesh.over(Axes::TOKENS | Axis::LAYERS)?.named("tokens of experts");
    for param in params.iter_mut().filter(|param| param.name().ends_with(BIAS)) {
        let (name, experts) = (param.name(), param.shape()[1]);
        let own = loads.of(&name[..name.len() - BIAS.len() - 1]);
        let mut counts = own.map_or_else(|| vec![0; experts], <[_]>::to_vec);
        group.all_reduce_values(&mut counts, |a, b| a + b)?;
        let all: usize = counts.iter().sum();
        let above = |expert: usize| f64::from((counts[expert] * experts).cmp(&all) as i8);
        let wide = param.device().wide().clone();
        let [above, one] = [(experts, &above as &dyn Fn(usize) -> f64), (1, &|_| 1.0)].map(|(n, of)| {
            Tensor::from_fn(&wide, Category::Buffers, 1, n, |i| <D::Wide as Device>::Elem::from_f64(of(i)))
        });
        param.change(|device, value, master| device.sgd(value, master, above.view(), one.view(), rate));
    }
    Ok(())
}

/// What the rows at hand are weighed with, while a model learns; nothing if nothing is added to the loss.
pub(crate) fn loss<D: Kernels>(
    device: &D,
    mesh: &Mesh<D::Place>,
    experts: &Experts,
    (own, counts): (&Routing, Option<&Counts>),
    (sequences, first): (&[Segment], usize),
    mean_over: usize,
) -> Result<Option<RouterLoss<D::Wide>>> {
    let weights = [experts.balance.microbatch, experts.balance.sequence, experts.balance.z];
    if weights == [0.0; 3] || mean_over == 0 {
        return Ok(None);
    }
    let (e, k) = (experts.count, experts.chosen);
    let counted = experts.balance.sequence != 0.0;
    let by_sequence = counted.then(|| by_sequence(mesh, e, own, sequences, first)).transpose()?;
    let one = |n: usize| <D::Wide as Device>::Elem::from_usize(n);
    let [of_all, of_sequence, z] =
        weights.map(|weight| <D::Wide as Device>::Elem::from_f64(weight) * one(mean_over).inv());
    let weight = |i: usize| {
        let (s, expert) = (i / e, i % e);
        let share =
            |n: usize, tokens: usize| if tokens == 0 { one(0) } else { one(e * n) * one(k * tokens).inv() };
        let own = by_sequence.as_ref().map_or(one(0), |of| of_sequence * share(of[i], sequences[s].len));
        counts.map_or(own, |counts| own + of_all * share(counts.all[expert], counts.tokens))
    };
    let wide = device.wide();
    let weights = Tensor::from_fn(wide, Category::Buffers, sequences.len(), e, weight);
    let z = Tensor::from_fn(wide, Category::Buffers, 1, 1, |_| z);
    Ok(Some(RouterLoss { weights, z, first }))
}

/// Begins the balance of all blocks of a microbatch with so many experts: nobody has chosen yet.
pub fn begin_pool<D: Kernels>(cx: &Cx<D>, device: &D, experts: usize) {
    let none = filled(device.wide(), Category::Buffers, [1, experts], <D::Wide as Device>::Elem::ZERO);
    *cx.pooled() = Some(none);
}

/// Adds what this rank's tokens chose in one block.
pub(crate) fn pool<D: Kernels>(cx: &Cx<D>, device: &D, counts: &[usize]) {
    let count = |e: usize| <D::Wide as Device>::Elem::from_usize(counts[e]);
    let own = Tensor::from_fn(device.wide(), Category::Buffers, 1, counts.len(), count);
    let mut sum = cx.pooled();
    *sum = Some(plus(sum.take().expect("a pool that was begun"), &own));
}

/// Ends it when the last of so many blocks with experts has been gone through: of the choices of all ranks, the weights of scores.
///
/// # Errors
/// If ranks do not meet.
pub fn end_pool<D: Kernels>(
    cx: &Cx<D>,
    mesh: &Mesh<D::Place>,
    (experts, blocks): (&Experts, usize),
) -> Result<()> {
    let group = mesh.over(Axes::TOKENS | Axis::LAYERS)?.named("tokens of experts");
    let own = cx.pooled().take().expect("a pool that was begun");
    let Pass { mean_over, tokens: [tokens, step], .. } = cx.pass();
    let one = |n: usize| <D::Wide as Device>::Elem::from_usize(n);
    let over = |n: usize| if n == 0 || mean_over == 0 { one(0) } else { one(n).inv() };
    // δ·E/(k·(L·B)²) · B/T
    let weight = <D::Wide as Device>::Elem::from_f64(experts.balance.pooled) * one(experts.count);
    let weight = weight * over(experts.chosen * blocks) * over(blocks * tokens) * over(step);
    *cx.pooled() = Some(pooled(own, weight, &group)?);
    Ok(())
}

/// How often each of a sequence's tokens chose each expert, on all ranks that have some of it: `[sequences · E]`.
fn by_sequence<P: Place>(
    mesh: &Mesh<P>,
    experts: usize,
    own: &Routing,
    sequences: &[Segment],
    first: usize,
) -> Result<Vec<usize>> {
    let of_row = sequences.iter().enumerate().flat_map(|(s, t)| std::iter::repeat_n(s, t.len));
    let of_row = of_row.skip(first).zip(own.list.chunks(own.chosen));
    let of_copy = of_row.flat_map(|(s, chosen)| chosen.iter().map(move |&e| s * experts + e as usize));
    let mut counts = tally(sequences.len() * experts, of_copy);
    let group = mesh.group(Axis::LAYERS).named("tokens of experts");
    group.all_reduce_values(&mut counts, |a, b| a + b)?;
    Ok(counts)
}
