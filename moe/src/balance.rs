//! Load balancing of experts. Training adds to the loss each token's scores, weighted by how often their
//! experts were chosen, and its squared log-sum-exp. After each step it moves the bias of the choice.
//!
//! ```text
//! α·E/(k·B) · Σ_e N_e · Σ_t P̂[t,e] / n       over the tokens of a microbatch, on all ranks
//! β·E/(k·B_s) · Σ_e N_se · Σ_t P̂[t,e] / n    over those of each sequence
//! δ·E/k · Σ_e f̄_e · P̄_e · B/T                 means over the rows of all blocks; T tokens in the step
//! λ · Σ_t lse_t² / n                          n tokens in the mean loss of the step
//! b_e ← b_e + γ·sign(mean of N − N_e)         over the tokens of all microbatches of the step, on all ranks
//! ```
//! Counts have no gradient, so all balances are one table of weights, a row per sequence. The weights of the
//! balance of all blocks (f̄, as in `transformers`) are known after the last block: counts travel with the
//! activations, weights come back with the gradients. Source: Fedus et al., "Switch transformers", §2.2,
//! arXiv:2101.03961; Zoph et al., "ST-MoE", §3.3, arXiv:2202.08906; `DeepSeek-V3`, §2.1.2, arXiv:2412.19437;
//! bias: Wang et al., "Auxiliary-loss-free load balancing", arXiv:2408.15664.
use crate::routing::{Routing, numbers};
use comm::{Axes, Axis, Mesh};
use kernels::{Kernels, MeanOver, loss_scale};
use layers::{Experts, Hooks, Shape};
use ops::{LayerCounts, Param, Pass, PassContext, Result, RouterLoss, TokenShards, plus, pooled};
use std::ops::Range;
use tensor::{Category, Device, Scalar, Tensor};

/// Suffix of the name of a choice's bias.
pub(crate) const BIAS: &str = "router.bias";

/// How often experts were chosen, before any copy is dropped.
pub(crate) struct ChoiceCounts {
    /// Number of the microbatch's tokens that chose each expert, on all ranks.
    pub(crate) all: Vec<usize>,
    /// Length of each run of this rank's tokens, and the number of tokens before the run that chose each
    /// expert.
    pub(crate) before: Vec<(usize, Vec<usize>)>,
    /// Number of tokens on all ranks.
    pub(crate) tokens: usize,
}

impl ChoiceCounts {
    /// Counts the choices of a microbatch.
    pub(crate) fn of<D: Kernels>(
        mesh: &Mesh<D::Place>,
        cx: &PassContext<D>,
        experts: usize,
        own: &Routing,
    ) -> Result<Self> {
        let group = mesh.over(Axes::TOKENS | Axis::Tp)?.named("tokens of experts");
        let rows = vec![own.tokens(); group.size()]; // only this rank's run lengths are used
        let runs = numbers((mesh, &group), cx, &rows).swap_remove(group.rank());
        let of_run = |row: &mut usize, run: &Range<usize>| {
            *row += run.len();
            Some(own.part(std::slice::from_ref(&(*row - run.len()..*row))).counts(experts))
        };
        let given = group.all_gather_values(&runs.iter().scan(0, of_run).collect::<Vec<_>>().concat())?;
        let tokens = |counts: &Vec<usize>| counts.iter().sum::<usize>() / own.chosen;
        let rows: Vec<_> = given.iter().map(tokens).collect();
        let of_ranks = numbers((mesh, &group), cx, &rows);
        let runs = of_ranks.iter().zip(&given).enumerate();
        let runs = runs.flat_map(|(i, (runs, counts))| {
            runs.iter()
                .zip(counts.chunks(experts))
                .map(move |(run, counts)| (run.start, i, run.len(), counts))
        });
        let mut runs: Vec<_> = runs.collect();
        runs.sort_unstable();
        let (mut sums, mut before) = (vec![0; experts], Vec::new());
        for (_, i, len, counts) in runs {
            if i == group.rank() {
                before.push((len, sums.clone()));
            }
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(Self { all: sums, before, tokens: rows.iter().sum() })
    }
}

/// The hooks of experts: the balance of all blocks, and the updates of biases.
pub struct Balancing<D: Kernels> {
    experts: Experts,
    blocks: usize, // number of blocks with experts
    mesh: Mesh<D::Place>,
}

impl<D: Kernels> Balancing<D> {
    /// Creates the hooks of a shape's experts, if it has any.
    pub fn of(mesh: &Mesh<D::Place>, shape: &Shape) -> Option<Self> {
        let blocks = (0..shape.blocks).filter(|block| shape.block(*block).experts.is_some()).count();
        Some(Self { experts: shape.experts?, blocks, mesh: mesh.clone() })
    }
}

impl<D: Kernels> Hooks<D> for Balancing<D> {
    /// Number of experts, if all blocks share one balance: the row counts the tokens that chose each expert
    /// in the blocks so far.
    fn row(&self) -> Option<usize> {
        (self.experts.balance.pooled != 0.0 && self.blocks > 0).then_some(self.experts.count)
    }
    /// Returns the weights of scores, from the choices of all ranks: the growth of the loss with each
    /// expert's score, in every row of every block.
    fn turn(&self, cx: &PassContext<D>, own: Tensor<D::Wide>) -> Result<Tensor<D::Wide>> {
        let Self { experts, blocks, mesh } = self;
        let group = mesh.over(Axes::TOKENS | Axis::Tp)?.named("tokens of experts");
        let Pass { mean_over, tokens: [tokens, step], .. } = cx.pass();
        let one = |n: usize| <D::Wide as Device>::Elem::from_usize(n);
        let over = |n: usize| if n == 0 || mean_over.targets == 0 { one(0) } else { one(n).inv() };
        // δ·E/(k·(L·B)²) · B/T
        let weight = <D::Wide as Device>::Elem::from_f64(experts.balance.pooled) * one(experts.count);
        let weight = weight * over(experts.chosen * blocks) * over(blocks * tokens) * over(step);
        pooled(own, weight * loss_scale(mean_over.log2), &group)
    }
    fn after_update(&self, params: &mut [&mut Param<D>], counts: &LayerCounts) -> Result<()> {
        self.experts.bias.map_or(Ok(()), |rate| move_biases((params, &self.mesh), (counts, rate)))
    }
}

/// Moves the choice biases among these parameters by `rate` each: up if an expert has fewer tokens than the
/// mean over all ranks, down if it has more. `counts` are the choices of this rank's tokens in all
/// microbatches of a step.
///
/// # Errors
/// If a collective fails.
pub(crate) fn move_biases<D: Kernels>(
    (params, mesh): (&mut [&mut Param<D>], &Mesh<D::Place>),
    (counts, rate): (&LayerCounts, f64),
) -> Result<()> {
    let group = mesh.over(Axes::TOKENS | Axis::Tp)?.named("tokens of experts");
    for param in params.iter_mut().filter(|param| param.name().ends_with(BIAS)) {
        let name = param.name();
        let experts = param.shape()[1];
        let own = counts.of(&name[..name.len() - BIAS.len() - 1]);
        let mut counts = own.map_or_else(|| vec![0; experts], <[_]>::to_vec);
        group.all_reduce_values(&mut counts, |a, b| a + b)?;
        let all: usize = counts.iter().sum();
        let above = |expert: usize| f64::from((counts[expert] * experts).cmp(&all) as i8);
        let wide = param.device().wide().clone();
        let [above, one] = [(experts, &above as &dyn Fn(usize) -> f64), (1, &|_| 1.0)].map(|(n, of)| {
            Tensor::from_fn(&wide, Category::Buffers, 1, n, |i| <D::Wide as Device>::Elem::from_f64(of(i)))
        });
        param
            .change(|device, value, master| device.sgd(value, master, above.view(), one.view(), [rate, 0.0]));
    }
    Ok(())
}

/// Returns the loss weights of this rank's rows, from token `first` on, while a model learns; `None` if
/// nothing is added to the loss.
pub(crate) fn loss<D: Kernels>(
    device: &D,
    mesh: &Mesh<D::Place>,
    experts: &Experts,
    (own, counts): (&Routing, Option<&ChoiceCounts>),
    (cx, first): (&PassContext<D>, usize),
    mean_over: MeanOver,
) -> Result<Option<RouterLoss<D::Wide>>> {
    let weights = [experts.balance.microbatch, experts.balance.sequence, experts.balance.z];
    if weights == [0.0; 3] || mean_over.targets == 0 {
        return Ok(None);
    }
    let (e, k) = (experts.count, experts.chosen);
    let counted = experts.balance.sequence != 0.0;
    let by_sequence = counted.then(|| by_sequence(mesh, e, own, cx, first)).transpose()?;
    let parts = cx.parts_of_tokens();
    let one = |n: usize| <D::Wide as Device>::Elem::from_usize(n);
    let [of_all, of_sequence, z] =
        weights.map(|weight| <D::Wide as Device>::Elem::from_f64(weight) * mean_over.share());
    let weight = |i: usize| {
        let (s, expert) = (i / e, i % e);
        let share =
            |n: usize, tokens: usize| if tokens == 0 { one(0) } else { one(e * n) * one(k * tokens).inv() };
        let of = |of: &Vec<usize>| of_sequence * share(of[parts[s] * e + expert], cx.parts()[parts[s]].len);
        let own = by_sequence.as_ref().map_or(one(0), of);
        counts.map_or(own, |counts| own + of_all * share(counts.all[expert], counts.tokens))
    };
    let wide = device.wide();
    let weights = Tensor::from_fn(wide, Category::Buffers, parts.len(), e, weight);
    let z = Tensor::from_fn(wide, Category::Buffers, 1, 1, |_| z);
    Ok(Some(RouterLoss { weights, z, first }))
}

/// Adds the choices of this rank's tokens in one block to the row beside the stream.
pub(crate) fn pool<D: Kernels>(cx: &PassContext<D>, device: &D, counts: &[usize]) {
    let count = |e: usize| <D::Wide as Device>::Elem::from_usize(counts[e]);
    let row = Tensor::from_fn(device.wide(), Category::Buffers, 1, counts.len(), count);
    let mut sum = cx.beside();
    *sum = Some(plus(sum.take().expect("the row starts with the microbatch"), &row));
}

/// Counts the choices of each sequence's tokens, on all ranks that have some of it: `[sequences · E]`.
fn by_sequence<D: Kernels>(
    mesh: &Mesh<D::Place>,
    experts: usize,
    own: &Routing,
    cx: &PassContext<D>,
    first: usize,
) -> Result<Vec<usize>> {
    let (mut counts, mut row) = (vec![0; cx.parts().len() * experts], 0);
    let mine = first..first + own.tokens();
    for (t, &part) in cx.tokens().iter().zip(cx.parts_of_tokens()) {
        let of_t = row.clamp(mine.start, mine.end)..(row + t.len).clamp(mine.start, mine.end);
        row += t.len;
        let of_t = of_t.start - first..of_t.end - first;
        let chosen = own.part(std::slice::from_ref(&of_t)).counts(experts);
        counts[part * experts..][..experts].iter_mut().zip(chosen).for_each(|(sum, n)| *sum += n);
    }
    let group = mesh.over(TokenShards::CONTEXT | Axis::Tp)?.named("tokens of experts");
    group.all_reduce_values(&mut counts, |a, b| a + b)?;
    Ok(counts)
}
