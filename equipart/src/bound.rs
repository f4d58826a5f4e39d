//! How often a proof in the field could err, for the shapes it really ran.
//!
//! A wrong program gives, somewhere, another formula than the oracle's. Take every opaque result (exp, sigmoid,
//! 1/√, the clip factor, …) and every inverse as a variable. Then:
//!
//! - two different opaque arguments may meet by chance: at most `N²/2` pairs of at most `2n` arguments (`n` counted
//!   in the oracle, as many allowed for the program), each a polynomial identity that fails at a random point but
//!   for `D/p` (Schwartz, Zippel), `D` its degree;
//! - the output that differs may agree by chance: `D/p` once more.
//!
//! `D` is the largest degree that [`tensor::Degree`] counts when the oracle runs on degrees, times one plus the sum
//! of the degrees of all that is inverted, since clearing the denominators multiplies by them. Opaque functions are
//! taken as random functions of their key. Keys are independent, so their bounds multiply.
//!
//! Source: Schwartz, "Fast probabilistic algorithms for verification of polynomial identities", JACM 27(4), 1980.
use reference::{Model, Optimizer, Sequence, Trainer, Weights};
use tensor::{Degree, F61, Tally};

/// log₂ of the probability that a wrong program passes under one key; 0 or more where the argument says nothing.
pub fn log2_per_key(
    model: &Model,
    optimizer: Optimizer,
    clip: Option<f64>,
    steps: &[(Vec<Vec<Sequence>>, f64)],
) -> f64 {
    let _ = Degree::take_tally();
    let weights: Weights<Degree> =
        model.shapes().into_iter().map(|(name, [r, c])| (name, vec![Degree::variable(); r * c])).collect();
    let mut trainer = Trainer::new(model.clone(), optimizer, clip, weights);
    let mut output = 0.0f64;
    for (batch, lr) in steps {
        let step = trainer.step(batch, *lr);
        let seen = step.losses.into_iter().chain(step.gradients.into_values().flatten());
        output = output.max(seen.map(Degree::degree).fold(0.0, f64::max));
    }
    let output = trainer.weights().values().flatten().map(|w| w.degree()).fold(output, f64::max);
    bound(Degree::take_tally(), output)
}

fn bound(tally: Tally, output: f64) -> f64 {
    let Tally { opaque, argument, inverted } = tally;
    let arguments = 2.0 * opaque;
    let degrees = arguments * arguments / 2.0 * argument + output;
    (degrees * (1.0 + inverted) / F61::P as f64).log2()
}
