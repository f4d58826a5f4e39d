//! Measures the bound: at small primes wrong programs pass often enough to be counted, and right ones never
//! fail. The code is the same as at 2^61 − 1 except for one constant.
mod feed_forward;
mod whole_model;

use feed_forward::{Counts, MISTAKES, Mistake, measured, unsplit, variables};
use prove::bound;
use reference::Degree;
use tensor::Field;

/// The proof's bound at this prime: the highest probability that a wrong feed-forward passes.
fn bound(prime: u64) -> f64 {
    let _ = Degree::take_tally();
    let output = unsplit(&variables()).cleared();
    bound::log2_in(prime, output, 1).exp2()
}

/// ln of an upper bound (Chernoff) on the probability of `count` in `trials`, each with probability `rate`.
fn likely(count: u64, trials: u64, rate: f64) -> f64 {
    let seen = count as f64 / trials as f64;
    let part = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a * (a / b).ln() };
    -(trials as f64) * (part(seen, rate) + part(1.0 - seen, 1.0 - rate))
}

/// Events rarer than once in e⁸ = 3000 times are not accepted as chance. (Keys are fixed: a program that
/// passes once always passes.)
const CHANCE: f64 = -8.0;

/// Probability that a mistake passes, times p, up to terms of 1/p²: the number of factors of the difference,
/// any of which may be 0.
fn ways(mistake: Mistake) -> f64 {
    match mistake {
        Mistake::ForgottenAddend => 4.0, // gate₁·sigmoid·up₁·w₁
        // x₀ = 0 or x₁ = 0: one addend equals the sum; otherwise a sum of products
        Mistake::OpaqueOfPartialSum => 3.0,
        Mistake::NeighboursShare => 2.0, // (h₀ − h₁)·(w₀ − w₁)
        _ => 1.0,                        // b; a sum of products; y
    }
}

fn check(prime: u64, counts: &Counts) {
    let Counts { trials, right, wrong, .. } = counts;
    let bound = bound(prime);
    assert_eq!(right, trials, "right programs fail at p = {prime}");
    // By hand: two sigmoids of degree 2 in the oracle and two in the program, 4·8 for all pairs; outputs of
    // degree 6.
    assert!((bound - 44.0 / prime as f64).abs() < 1e-12, "at p = {prime} the bound is {bound}");
    for (mistake, &passed) in MISTAKES.iter().zip(wrong) {
        let seen = passed as f64 / *trials as f64;
        println!(
            "p = {prime}: {mistake:?} passes {passed} of {trials} times, {:.2}/p; at most {bound:.2e}",
            seen * prime as f64
        );
        assert!(
            seen <= bound || likely(passed, *trials, bound) > CHANCE,
            "p = {prime}: {mistake:?}: {seen} above {bound}"
        );
        let rate = ways(*mistake) / prime as f64;
        assert!(likely(passed, *trials, rate) > CHANCE, "p = {prime}: {mistake:?}: {seen}, expected {rate}");
    }
}

/// Kills: a bound that is too small, a bound independent of the prime, opaque functions that are not random,
/// a field in which sums depend on their order.
#[test]
fn wrong_programs_pass_as_often_as_degrees_over_p_say_and_right_ones_always() {
    let small = measured::<7>(200 * Field::<7>::P);
    check(Field::<7>::P, &small);
    check(Field::<17>::P, &measured::<17>(Field::<17>::P));
    let pairs = small.trials / 2;
    for (mistake, &both) in MISTAKES.iter().zip(&small.wrong_twice) {
        let rate = (ways(*mistake) / 127.0).powi(2);
        println!(
            "p = 127, two keys: {mistake:?} passes {both} of {pairs} times; {:.1} expected",
            rate * pairs as f64
        );
        assert!(likely(both, pairs, rate) > CHANCE, "two keys: {mistake:?}: {both} of {pairs}");
    }
}

/// Checks that a right run is never refused; a division by zero ends it without a verdict. Kills: an inverse
/// of zero with some value (stabilisers, and so zeros, differ between layouts), a kernel that uses another
/// prime.
#[test]
fn a_whole_model_that_is_right_is_never_refused() {
    let zeros = whole_model::inverted();
    let [small, large] = [whole_model::ends::<7>(100), whole_model::ends::<17>(100)];
    println!(
        "p = 127: {small:?}; p = 2^17 - 1: {large:?}; what the oracle inverts has degree {zeros} in all"
    );
    assert!(small.refused == 0 && small.nothing > 0 && small.equal + small.nothing == 100, "{small:?}");
    let rate = 2.0 * zeros / Field::<17>::P as f64;
    assert!(large.refused == 0 && likely(large.nothing as u64, 100, rate) > CHANCE, "{large:?}");
}
