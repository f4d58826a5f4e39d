//! Exercise `mean`: the loss of a step is a mean over all tokens that count, on all data ranks.
//!
//! ```text
//! loss = Σ_ranks Σ_tokens ℓ / N      N = the tokens of all ranks that count; 0 if there are none
//! ```
//! Chapter: data parallelism.
use crate::check::{Compared, Verdict, drawn, judge};
use crate::ranks::{Ranks, Result, unsolved};
use comm::Op;
use tensor::{F61, Scalar};

/// Returns the loss of the step, and the factor of each token's gradient, `dloss/dℓ`: the same on every rank.
/// `losses` are those of this rank's microbatches; a token that does not count is `None`.
///
/// A count as a number is `F61::from_usize(n)`, its inverse `.inv()`; zero has none.
///
/// # Errors
/// If a call to other ranks fails.
pub fn step_loss(losses: &[Vec<Option<F61>>], ranks: &Ranks) -> Result<(F61, F61)> {
    unsolved((losses, ranks)) // your code takes this line's place
}

/// Function to write.
pub type Attempt = fn(&[Vec<Option<F61>>], &Ranks) -> Result<(F61, F61)>;

/// Deals two steps: in the first, ranks have different numbers of tokens, rank 1 has none, and microbatches
/// differ; in the second, no token counts.
pub fn check(attempt: Attempt) -> Verdict {
    let tokens = |rank: usize| -> Vec<Vec<Option<F61>>> {
        let microbatch = |m: usize| {
            let count = if rank == 1 { 0 } else { 1 + (rank + 2 * m) % 3 };
            let losses = drawn((10 * rank + m) as u64, 4).into_iter().enumerate();
            losses.map(|(i, loss)| (i < count).then_some(loss)).collect()
        };
        vec![microbatch(0), microbatch(1)]
    };
    judge(
        |_, _| vec![(Op::AllReduce, 4)],
        |ranks| {
            let all: Vec<F61> = (0..ranks.size()).flat_map(tokens).flatten().flatten().collect();
            let sum = all.iter().fold(F61::ZERO, |sum, &loss| sum + loss);
            let share = F61::from_usize(all.len()).inv();
            let (loss, factor) = attempt(&tokens(ranks.rank()), ranks)?;
            let (none, no_factor) = attempt(&[vec![None; 4]], ranks)?;
            Ok(vec![
                Compared::new("loss", vec![loss], vec![sum * share]),
                Compared::new("factor of a gradient", vec![factor], vec![share]),
                Compared::new("loss of a step without tokens", vec![none], vec![F61::ZERO]),
                Compared::new("factor of a step without tokens", vec![no_factor], vec![F61::ZERO]),
            ])
        },
    )
}
