//! Exercise `dot`: the dot product of two vectors that are cut over ranks.
//!
//! ```text
//! x · y = Σ_t x_t · y_t      one all-reduce of 1 element
//! ```
//! Chapter: ranks and collectives.
use crate::check::{Compared, Verdict, drawn, judge, part};
use crate::ranks::{Ranks, Result, unsolved};
use comm::Op;
use tensor::{F61, Scalar};

/// Returns the dot product of the whole vectors, on every rank. `x_t` and `y_t` are this rank's parts, which
/// may be empty.
///
/// # Errors
/// If a call to other ranks fails.
pub fn dot(x_t: &[F61], y_t: &[F61], ranks: &Ranks) -> Result<F61> {
    unsolved((x_t, y_t, ranks)) // your code takes this line's place
}

/// Function to write.
pub type Attempt = fn(&[F61], &[F61], &Ranks) -> Result<F61>;

/// Cuts vectors of 7 elements, so that 8 ranks have parts of 0 and 1.
pub fn check(attempt: Attempt) -> Verdict {
    let (x, y) = (&drawn(1, 7), &drawn(2, 7));
    let wanted = x.iter().zip(y).fold(F61::ZERO, |sum, (&x, &y)| sum + x * y);
    judge(
        |_, _| vec![(Op::AllReduce, 1)],
        |ranks| {
            let mine = part(x.len(), ranks.rank(), ranks.size());
            let got = attempt(&x[mine.clone()], &y[mine], ranks)?;
            Ok(vec![Compared::new("x · y", vec![got], vec![wanted])])
        },
    )
}
