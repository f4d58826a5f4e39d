//! Tools of this crate's proofs: random directions, and the check that a backward is a derivative.
//!
//! For a forward `Y = f(X)` run on duals and any `dY`, the gradient `dX` is right exactly when
//! ⟨dY, Ẏ⟩ = ⟨dX, Ẋ⟩ for every direction `Ẋ`. A random direction over the field of 2^61 − 1 lets a wrong `dX`
//! pass with probability 2^-61 or so: no tolerance, no step width.
use crate::{Classifier, Model, Pass, Sequence, Walk, Weights};
use shape::{
    Activation, Balance, Biases, Blocks, Experts, FeedForward, Groups, Heads, Latent, NormKind, Objective,
    Pattern, Positions, Rates, ScoreTerms, Scoring, Shape, SharedExpert, Window,
};
use tensor::{Dual, F61, IGNORED, Key, Rope, Scalar, Scaling, mix};

/// Runs a proof under two keys: two independent readings of every opaque function.
pub(crate) fn under_two_keys(proof: impl Fn()) {
    for key in [Key(0x0e_9a_17), Key(0x0e_9a_17).next()] {
        let _held = key.enter();
        proof();
    }
}

/// `n` random numbers; another `seed`, other numbers.
pub(crate) fn draw<S: Scalar>(seed: u64, n: usize) -> Vec<S> {
    (0..n as u64).map(|i| S::sample(mix(mix(seed) ^ i), 1.0)).collect()
}

/// A model in which no two dimensions that could be confused are equal, with grouped heads of an odd
/// dimension.
pub(crate) fn small(tied: bool) -> Model {
    let heads = Heads::new(2, 1, 3);
    let sizes = Shape { width: 4, blocks: 2, heads, hidden: 5, vocabulary: 7, ..Shape::LLAMA };
    Shape { positions: Positions::Rotary(100.0.into()), eps: 0.01, tied, ..sizes }.into()
}

const EVERY_BIAS: Biases = Biases { qkv: true, out: true, mlp: true };

impl Model {
    /// Logits, without an observer.
    pub(crate) fn logits<S: Scalar>(&self, w: &Weights<S>, sequences: &[Sequence]) -> Vec<S> {
        self.logits_recorded(w, sequences, &mut |_, _| {})
    }
    /// Gradients of a model without dropout, where the pass does not matter.
    pub(crate) fn gradients<S: Scalar>(&self, w: &Weights<S>, of: &[Sequence], n: usize) -> (S, Weights<S>) {
        assert_eq!(self.dropout, Rates::default(), "dropout depends on the pass: call `gradients_with`");
        self.gradients_with(w, of, n, &Pass::default())
    }
    /// Gradients in a pass, without an observer.
    pub(crate) fn gradients_with<S: Scalar>(
        &self,
        w: &Weights<S>,
        of: &[Sequence],
        n: usize,
        pass: &Pass,
    ) -> (S, Weights<S>) {
        self.gradients_recorded(of, n, &mut Walk::unseen(w, Some(*pass)))
    }
}

impl Classifier {
    /// Gradients, without an observer.
    pub(crate) fn gradients<S: Scalar>(
        &self,
        w: &Weights<S>,
        x: &[S],
        labels: &[u32],
        n: usize,
    ) -> (S, Weights<S>) {
        self.gradients_recorded(x, labels, n, &mut Walk::unseen(w, None))
    }
}

/// A GPT-2.
pub(crate) fn gpt2() -> Model {
    let (heads, positions) = (Heads::new(3, 3, 2), Positions::Learned(5));
    let (norm, feed_forward) = (NormKind::Layer, FeedForward::Plain(Activation::GeluTanh));
    Shape { heads, norm, positions, feed_forward, bias: EVERY_BIAS, ..*small(true) }.into()
}

/// A Qwen3.
pub(crate) fn qwen3() -> Model {
    Shape { head_norm: true, ..*small(false) }.into()
}

/// A Mistral whose first block sees everything, with Qwen2's biases, a scaled rope and a plain activation.
pub(crate) fn windowed() -> Model {
    let scaling = Scaling::Llama3 { factor: 4.0, low: 1.0, high: 2.0, original: 12.0 };
    let positions = Positions::Rotary(Rope { base: 20.0, scaling });
    let window = Some(Window { size: 2, sinks: 1 });
    let (bias, feed_forward) =
        (Biases { qkv: true, ..Biases::default() }, FeedForward::Plain(Activation::Relu));
    let pattern = Pattern { whole: Blocks::FIRST, ..Pattern::NONE };
    Shape { bias, window, pattern, positions, feed_forward, ..*small(false) }.into()
}

/// All that there is at once: windows from the first block on, all dropouts, smoothing and z-loss.
pub(crate) fn everything() -> Model {
    let (window, norm) = (Some(Window { size: 2, sinks: 1 }), NormKind::Layer);
    let dropout = Rates { embedding: 0.25, attention: 0.375, residual: 0.5 };
    let loss = Objective { smoothing: 0.125, z: 0.25 };
    Shape { norm, window, dropout, loss, bias: EVERY_BIAS, head_norm: true, ..*small(true) }.into()
}

/// A model with the features of no other: learned positions with root-mean-square norms, `GeLU`, only one
/// dropout.
pub(crate) fn learned() -> Model {
    let dropout = Rates { embedding: 0.375, ..Rates::default() };
    let (bias, feed_forward) =
        (Biases { out: true, ..Biases::default() }, FeedForward::Plain(Activation::Gelu));
    Shape { positions: Positions::Learned(4), feed_forward, bias, dropout, ..*small(false) }.into()
}

/// Mixtral's experts, but few and small: five, which groups do not share evenly.
pub(crate) fn few() -> Experts {
    Experts { count: 5, chosen: 2, hidden: 3, ..Experts::MIXTRAL }
}

/// Experts that choose tokens, of which some are chosen by none and some by several.
pub(crate) fn choosing() -> Experts {
    let shared = Some(SharedExpert { hidden: 2, gated: true });
    Experts { by_experts: true, normalize: false, scale: 2.5, capacity: Some(0.75), shared, ..few() }
}

/// All that experts may have but a capacity: six in three groups, of which two are chosen.
pub(crate) fn grouped() -> Experts {
    let groups = Some(Groups { count: 3, chosen: 2 });
    let shared = Some(SharedExpert { hidden: 2, gated: true });
    let balance = Balance { sequence: 0.75, z: 0.5, ..Balance::default() };
    let scored = Experts { scoring: Scoring::Sigmoid, bias: Some(0.0), scale: 2.5, ..few() };
    Experts { count: 6, chosen: 3, groups, shared, balance, ..scored }
}

/// A Mixtral, with experts in both blocks.
pub(crate) fn mixtral() -> Model {
    let balance = Balance { z: 0.25, ..Balance::default() };
    Shape { experts: Some(Experts { balance, ..few() }), ..*small(false) }.into()
}

/// A Llama with `DeepSeek`'s router, which has experts in its second block alone.
pub(crate) fn deepseek() -> Model {
    let dropout = Rates { residual: 0.25, ..Rates::default() };
    let pattern = Pattern { dense: Blocks::FIRST, ..Pattern::NONE };
    Shape { experts: Some(grouped()), pattern, dropout, ..*small(true) }.into()
}

/// A Llama whose queries, keys and values come from latents, with scores multiplied by a factor.
pub(crate) fn latent() -> Model {
    let heads = Heads { plain: 1, rotated: 2, value: 4, neighbours: true, ..Heads::new(2, 2, 3) };
    let scores = ScoreTerms { factor: Some(1.5), ..ScoreTerms::NONE };
    Shape { heads, scores, latent: Some(Latent { keys: 6, queries: Some(3), eps: 0.125 }), ..*small(false) }
        .into()
}

/// A model of each kind, by name.
pub(crate) fn kinds() -> [(&'static str, Model); 10] {
    [
        ("llama", small(false)),
        ("llama, tied", small(true)),
        ("gpt2", gpt2()),
        ("qwen3", qwen3()),
        ("windowed", windowed()),
        ("everything", everything()),
        ("learned", learned()),
        ("mixtral", mixtral()),
        ("deepseek", deepseek()),
        ("latent", latent()),
    ]
}

/// Three sequences of different lengths; tokens that come twice; targets that are no shifted ids, two of
/// eight ignored.
pub(crate) fn ragged() -> Vec<Sequence> {
    let sequence = |ids: &[u32], targets: &[u32]| Sequence {
        ids: ids.to_vec(),
        targets: targets.to_vec(),
        ..Sequence::default()
    };
    vec![
        sequence(&[1, 4, 1], &[4, IGNORED, 0]),
        sequence(&[6], &[2]),
        sequence(&[3, 3, 0, 5], &[3, 6, 5, IGNORED]),
    ]
}

/// Names of the parameters that have a gradient: all but biases of routers.
pub(crate) fn moved<S>(w: &Weights<S>) -> impl Iterator<Item = &String> {
    w.keys().filter(|name| !name.ends_with("mlp.router.bias"))
}

/// Random numbers for every parameter, norm gains included.
pub(crate) fn random_weights<S: Scalar>(model: &Model, seed: u64) -> Weights<S> {
    let numbered = model.shapes().into_iter().zip(1000 * seed..);
    numbered.map(|((name, [rows, cols]), seed)| (name, draw(seed, rows * cols))).collect()
}

/// The values of duals: what a backward is run on.
pub(crate) fn values(x: &[Dual<F61>]) -> Vec<F61> {
    x.iter().map(|x| x.value).collect()
}

/// The tangents of duals: the direction in which they move.
fn tangents(x: &[Dual<F61>]) -> Vec<F61> {
    x.iter().map(|x| x.tangent).collect()
}

/// ⟨a, b⟩.
pub(crate) fn inner(a: &[F61], b: &[F61]) -> F61 {
    assert_eq!(a.len(), b.len(), "an inner product of different lengths");
    a.iter().zip(b).fold(F61::ZERO, |sum, (&a, &b)| sum + a * b)
}

/// Asserts ⟨dY, Ẏ⟩ = Σ ⟨dX, Ẋ⟩ over the pairs `(X, dX)`, and that there is something to compare.
pub(crate) fn assert_derivative(dy: &[F61], y: &[Dual<F61>], inputs: &[(&[Dual<F61>], &[F61])]) {
    let forward = inner(dy, &tangents(y));
    let backward = inputs.iter().fold(F61::ZERO, |sum, (x, dx)| sum + inner(dx, &tangents(x)));
    assert_ne!(forward, F61::ZERO, "nothing moved");
    assert_eq!(forward, backward, "the backward is not the derivative of its forward");
}

/// Asserts that two rows of floats agree within `tolerance`, absolute.
pub(crate) fn assert_close(seen: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(seen.len(), wanted.len(), "{seen:?} is not as long as {wanted:?}");
    for (i, (s, w)) in seen.iter().zip(wanted).enumerate() {
        assert!((s - w).abs() <= tolerance, "element {i}: {s}, wanted {w}");
    }
}
