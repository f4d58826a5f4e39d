//! Exercise `row`: a linear layer whose weight is cut by rows.
//!
//! ```text
//! forward    Y[B,O]   = Σ_t X[B,I_t] · W[I_t,O] + b[O]   all-reduce of B·O elements
//! backward  dX[B,I_t] = dY[B,O] · W[I_t,O]ᵀ              none
//!           dW[I_t,O] = X[B,I_t]ᵀ · dY[B,O]              none
//!           db[O]     = Σ_B dY[B,O]                      none
//! ```
//! Chapter: columns and rows.
use crate::check::{Compared, Verdict, columns, drawn, judge, part};
use crate::ranks::{Ranks, Result, unsolved};
use comm::Op;
use tensor::F61;

/// Shard of a layer on one rank.
pub struct RowShard {
    /// The rank's rows `W[I_t,O]`.
    pub weight: Vec<F61>,
    /// The bias `b[O]`, whole on every rank.
    pub bias: Vec<F61>,
    /// Number of the rank's inputs, `I_t`, and of outputs, `O`.
    pub sizes: [usize; 2],
}

/// Returns `Y[B,O]`, on every rank. [`product`](crate::check::product) multiplies matrices.
///
/// # Errors
/// If a call to other ranks fails.
pub fn forward(shard: &RowShard, x_t: &[F61], ranks: &Ranks) -> Result<Vec<F61>> {
    unsolved((shard, x_t, ranks)) // your code takes this line's place
}

/// Returns `[dX[B,I_t], dW[I_t,O], db[O]]`. [`transposed`](crate::check::transposed) turns a matrix.
///
/// # Errors
/// If a call to other ranks fails.
pub fn backward(shard: &RowShard, x_t: &[F61], dy: &[F61], ranks: &Ranks) -> Result<[Vec<F61>; 3]> {
    unsolved((shard, x_t, dy, ranks)) // and this line's
}

/// Functions to write.
#[derive(Clone, Copy)]
pub struct Attempt {
    /// The forward.
    pub forward: fn(&RowShard, &[F61], &Ranks) -> Result<Vec<F61>>,
    /// The backward.
    pub backward: fn(&RowShard, &[F61], &[F61], &Ranks) -> Result<[Vec<F61>; 3]>,
}

/// Runs 3 tokens through a layer of 11 inputs and 5 outputs.
pub fn check(attempt: Attempt) -> Verdict {
    const B: usize = 3;
    const I: usize = 11;
    const O: usize = 5;
    let (x, w, b, dy) = (&drawn(1, B * I), &drawn(2, I * O), &drawn(3, O), &drawn(4, B * O));
    let mut y = reference::linear(x, w, [I, O]);
    reference::add_bias(&mut y, b);
    let (dx, dw) = &reference::linear_backward(x, w, dy, [I, O]);
    let (y, db) = (&y, &reference::bias_gradient(dy, O));
    judge(
        |_, _| vec![(Op::AllReduce, B * O)],
        |ranks| {
            let mine = part(I, ranks.rank(), ranks.size());
            let rows = mine.start * O..mine.end * O;
            let shard =
                RowShard { weight: w[rows.clone()].to_vec(), bias: b.clone(), sizes: [mine.len(), O] };
            let x_t = columns(x, I, mine.clone());
            let got = (attempt.forward)(&shard, &x_t, ranks)?;
            let [dx_t, dw_t, db_t] = (attempt.backward)(&shard, &x_t, dy, ranks)?;
            Ok(vec![
                Compared::new("Y", got, y.clone()),
                Compared::new("dX", dx_t, columns(dx, I, mine)),
                Compared::new("dW", dw_t, dw[rows].to_vec()),
                Compared::new("db", db_t, db.clone()),
            ])
        },
    )
}
