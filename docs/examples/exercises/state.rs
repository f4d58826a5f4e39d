//! Exercise `state`: an optimizer whose state is cut over data ranks, as `ZeRO-1` cuts it.
//!
//! ```text
//! G_r = Σ_ranks G      this rank's part of the sum     reduce-scatter of P elements
//! M_r = β·M_r + G_r    the momentum of its part        none
//! W_r = W_r − η·M_r    the weights of its part         none
//! W                    the weights, whole again        all-gather of P_r elements
//! ```
//! Chapter: `ZeRO`.
use crate::check::{Compared, Verdict, drawn, judge, part};
use crate::ranks::{Ranks, Result, unsolved};
use comm::Op;
use tensor::{F61, Scalar};

/// Rates of the optimizer.
#[derive(Clone, Copy)]
pub struct Rates {
    /// Decay of the momentum, β.
    pub decay: F61,
    /// Learning rate, η.
    pub rate: F61,
}

/// Takes one step. `weights[P]` are whole and the same on every rank; `gradient[P]` is this rank's own, of
/// its own tokens; `momentum` is this rank's part of the state. [`parts`](crate::check::parts) and [`part`]
/// say which part is whose.
///
/// # Errors
/// If a call to other ranks fails.
pub fn step(
    weights: &mut [F61],
    gradient: &[F61],
    momentum: &mut [F61],
    rates: Rates,
    ranks: &Ranks,
) -> Result<()> {
    unsolved((weights, gradient, momentum, rates, ranks)) // your code takes this line's place
}

/// Function to write.
pub type Attempt = fn(&mut [F61], &[F61], &mut [F61], Rates, &Ranks) -> Result<()>;

/// Takes two steps with 11 weights, so that parts differ in length.
pub fn check(attempt: Attempt) -> Verdict {
    const P: usize = 11;
    const STEPS: u64 = 2;
    let rates = Rates { decay: F61::from_usize(9), rate: F61::from_usize(3) };
    let gradient = |step: u64, rank: usize| drawn(100 * step + rank as u64 + 1, P);
    judge(
        |rank, size| {
            let both = [(Op::ReduceScatter, P), (Op::AllGather, part(P, rank, size).len())];
            both.map(|(op, elements)| (op, STEPS as usize * elements)).into()
        },
        |ranks| {
            let mine = part(P, ranks.rank(), ranks.size());
            let (mut weights, mut momentum) = (drawn(50, P), vec![F61::ZERO; mine.len()]);
            let (mut right, mut all) = (weights.clone(), vec![F61::ZERO; P]);
            for step in 0..STEPS {
                attempt(&mut weights, &gradient(step, ranks.rank()), &mut momentum, rates, ranks)?;
                for i in 0..P {
                    let sum = (0..ranks.size()).fold(F61::ZERO, |sum, rank| sum + gradient(step, rank)[i]);
                    all[i] = rates.decay * all[i] + sum;
                    right[i] = right[i] - rates.rate * all[i];
                }
            }
            Ok(vec![
                Compared::new("weights after 2 steps", weights, right),
                Compared::new("momentum after 2 steps", momentum, all[mine].to_vec()),
            ])
        },
    )
}
