//! Bound on the probability that a proof in the field errs, for the shapes that ran.
//!
//! A wrong program computes, somewhere, another formula than the oracle's. Take every opaque result (exp,
//! sigmoid, 1/√, the clip factor, …) and every inverse as a variable. For the first output that differs:
//!
//! - two different arguments of the same opaque function may collide. Two values of degrees `d` and `e`,
//!   their denominators cleared, differ by a polynomial of degree at most `d + e`, which is 0 at a random
//!   point with probability at most `(d + e)/p` (Schwartz, Zippel). With `n` arguments in the oracle and as
//!   many allowed in the program, whose degrees sum up to `S` each, all pairs together collide with at most
//!   `2n·2S/p`. Adam's scale or Lion's sign of one weight enters no other before the noise: one pair counts;
//! - a code of an optimizer's state is one of 2¹⁵. The first that differs may agree by chance: 2⁻¹⁵;
//! - the output itself may agree by chance: `2D/p`, if its degree is at most `D` on both sides.
//!
//! Source: Schwartz, "Fast probabilistic algorithms for verification of polynomial identities", JACM 27(4),
//! 1980.
use crate::{Subject, oracle};
use layers::{Design, Experts};
use reference::{Degree, Function, Weights};
use tensor::F61;

impl Subject {
    /// Returns log₂ of the probability that a wrong program passes under this number of keys; `None` if there
    /// is no bound.
    pub fn bound_log2(&self, keys: usize) -> Option<f64> {
        let one = log2_per_key(self);
        (one < 0.0).then_some(one * keys as f64)
    }
}

/// Returns log₂ of the probability that a wrong program passes under one key; 0 or more means no bound.
///
/// Degrees are counted by running the oracle on [`reference::Degree`]. Between steps a fresh random value is
/// added to every weight, so each step starts at an independent random point, of degree 1. Opaque functions
/// are taken as random functions of their key. Keys are independent, so their bounds multiply. The formula is
/// measured at small primes, where it can be: `tests/all/small_primes.rs`.
fn log2_per_key(subject: &Subject) -> f64 {
    let _ = Degree::take_tally();
    let subject = &of_any_choice(subject.clone());
    let model = oracle::design(&subject.model);
    let random = || variables(model.shapes());
    let mut trainer = subject.oracle(random());
    let logits = model.logits_recorded(trainer.weights(), &subject.oracle_texts(), &mut |_, _| {});
    let mut output = logits.into_iter().map(Degree::cleared).fold(0.0, f64::max);
    for (batch, lr) in subject.oracle_steps() {
        let step = trainer.step_recorded(&batch, lr, &mut |_, _, _| {});
        let norm2 = subject.stale.is_none().then_some(step.norm2);
        let seen = step.losses.into_iter().chain(step.gradients.into_values().flatten()).chain(norm2);
        let weights = trainer.weights().values().flatten().copied();
        output = seen.chain(weights).map(Degree::cleared).fold(output, f64::max);
        trainer.replace(random()); // the added noise makes them independent
    }
    log2_in(F61::P, output, subject.steps.len())
}

/// Returns the subject with a model that sends every token through all experts: it computes all that any
/// choice would.
///
/// A choice among experts compares values, so it is not a formula. The bound is about the formulas that
/// remain once the choices are made, and takes the choices as if they did not depend on the point. Because
/// every token counts as if it went through all experts, the bound holds for any choices.
fn of_any_choice(mut subject: Subject) -> Subject {
    if let Design::Transformer(shape) | Design::Blocks(shape) = &mut subject.model {
        let every = |of: Experts| Experts {
            chosen: of.count,
            groups: None,
            capacity: None,
            by_experts: false,
            noise: 0.0,
            ..of
        };
        shape.experts = shape.experts.map(every);
    }
    subject
}

/// Returns weights of these shapes, with each element an independent variable.
fn variables(shapes: Vec<(String, [usize; 2])>) -> Weights<Degree> {
    let numbers = |[rows, cols]: [usize; 2]| (0..rows * cols).map(|_| Degree::variable()).collect();
    shapes.into_iter().map(|(name, shape)| (name, numbers(shape))).collect()
}

/// Returns log₂ of the bound in the field of any prime. In a small field, wrong programs pass often enough to
/// be counted.
pub fn log2_in(prime: u64, output: f64, steps: usize) -> f64 {
    use Function::{Clip, Density, Exp, Normal, Rsqrt, Sigmoid, Step};
    let opaque = Degree::take_tally().opaque;
    let product = |(count, sum, _): (f64, f64, f64)| 2.0 * count * 2.0 * sum;
    let functions = [Exp, Sigmoid, Rsqrt, Normal, Density, Step, Clip];
    let pairs: f64 = functions.map(|function| product(opaque[function as usize])).iter().sum();
    let adam = opaque[Function::Adam as usize].2 * steps as f64;
    let codes = if opaque[Function::Code as usize].0 > 0.0 { 2f64.powi(-15) } else { 0.0 };
    ((pairs + 2.0 * (adam + output)) / prime as f64 + codes).log2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use layers::{Groups, Scoring, Shape};

    fn bound(experts: Experts) -> f64 {
        let shape = Shape { width: 3, experts: Some(experts), ..Shape::LLAMA };
        log2_per_key(&Subject {
            texts: Vec::new(),
            ..Subject::smallest(shape, &parallel::Layout::UNSPLIT).unwrap()
        })
    }

    /// Kills: a bound that fixes the choice to the first experts, so that the others contribute nothing and
    /// most tokens are dropped.
    #[test]
    fn the_bound_is_that_of_any_choice() {
        let grouped = Groups { count: 2, chosen: 1 };
        let few = Experts { count: 4, scoring: Scoring::Sigmoid, ..Experts::MIXTRAL };
        let all = bound(Experts { chosen: 4, ..few });
        assert!(all < -20.0, "{all}");
        let choosing = Experts { capacity: Some(0.25), by_experts: true, ..few };
        for few in
            [few, choosing, Experts { capacity: Some(0.25), ..few }, Experts { groups: Some(grouped), ..few }]
        {
            assert_eq!(bound(few).to_bits(), all.to_bits(), "{few:?}");
        }
        assert!(bound(Experts { count: 2, ..few }) < all, "more experts, more that could meet");
    }
}
