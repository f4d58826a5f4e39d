//! A gated feed-forward over two ranks, written with plain matrices and collectives, right and with mistakes:
//! one output of a random model for each key.
//!
//! ```text
//! Z[1,2F] = Σ_t X[1,I_t]·V[I_t,2F]     all-reduce
//! H[1,F]  = gate·sigmoid(gate)·up      Z = [gate | up]
//! Y[1,1]  = Σ_t H[1,F_t]·W[F_t,1] + b  all-reduce
//! ```
use comm::{Axis, CommError, Group, Reduce, World};
use kernels::{Gate, Kernels, Write};
use reference::Degree;
use tensor::{Category, Cpu, Field, Host, Key, Scalar, Tensor, mix};

type Matrix<S> = Tensor<Cpu<S>>;
type Result<T> = std::result::Result<T, CommError>;

/// Input features and hidden features: one of each on every rank.
const RANKS: usize = 2;
/// Number of models computed in one batch.
const TOGETHER: u64 = 500;
/// Number of elements of x, V, W and b.
const SIZES: [usize; 4] = [RANKS, RANKS * 2 * RANKS, RANKS, 1];

/// Deviation of the program from the oracle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mistake {
    /// Every rank adds the bias to its partial sum.
    BiasTwice,
    /// Gate and up are exchanged.
    GateAndUpExchanged,
    /// Rank 1 does not add its partial sum to the output.
    ForgottenAddend,
    /// A rank multiplies by the other rank's weights.
    NeighboursShare,
    /// The gate is computed from each rank's partial sum.
    OpaqueOfPartialSum,
    /// The output is the mean of the partial sums.
    MeanForSum,
}

pub(crate) const MISTAKES: [Mistake; 6] = [
    Mistake::BiasTwice,
    Mistake::GateAndUpExchanged,
    Mistake::ForgottenAddend,
    Mistake::NeighboursShare,
    Mistake::OpaqueOfPartialSum,
    Mistake::MeanForSum,
];

/// Number of times that the right program and the wrong ones equalled the oracle.
#[derive(Default)]
pub(crate) struct Counts {
    /// Number of models run, each under its own key.
    pub(crate) trials: u64,
    pub(crate) right: u64,
    /// Wrong programs that passed, in the order of `MISTAKES`.
    pub(crate) wrong: [u64; 6],
    /// Wrong programs that passed under two consecutive keys.
    pub(crate) wrong_twice: [u64; 6],
}

/// x, V, W and b of the model of the current key.
fn model<S: Scalar>() -> [Vec<S>; 4] {
    let numbers = |part: usize| (0..SIZES[part]).map(|i| S::sample((part * 100 + i) as u64, 1.0)).collect();
    [0, 1, 2, 3].map(numbers)
}

/// x, V, W and b, each element an independent variable.
pub(crate) fn variables() -> [Vec<Degree>; 4] {
    SIZES.map(|n| (0..n).map(|_| Degree::variable()).collect())
}

/// The oracle's output.
pub(crate) fn unsplit<S: Scalar>([x, v, w, b]: &[Vec<S>; 4]) -> S {
    let h = reference::gated(&reference::linear(x, v, [RANKS, 2 * RANKS]), RANKS, Gate::Silu);
    let mut y = reference::linear(&h, w, [RANKS, 1]);
    reference::add_bias(&mut y, b);
    y[0]
}

/// This rank's shard of many models, stacked by rows: `X[B,I_t], V[B,2F], b[B,1]`, and the whole of `W[B,F]`.
struct Shares<S: Scalar> {
    keys: Vec<Key>,
    x: Matrix<S>,
    v: Matrix<S>,
    w: Matrix<S>,
    b: Matrix<S>,
}

impl<S: Scalar> Shares<S>
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host>,
{
    fn cut(device: &Cpu<S>, rank: usize, keys: Vec<Key>, models: &[[Vec<S>; 4]]) -> Self {
        let rows = |cols: usize, part: usize, from: usize| {
            let element = |i: usize| models[i / cols][part][from + i % cols];
            Tensor::from_fn(device, Category::Buffers, models.len(), cols, element)
        };
        let (x, v) = (rows(1, 0, rank), rows(2 * RANKS, 1, rank * 2 * RANKS));
        Self { keys, x, v, w: rows(RANKS, 2, 0), b: rows(1, 3, 0) }
    }
    /// `H[B,F]`, the same on both ranks.
    fn hidden(
        &self,
        device: &Cpu<S>,
        group: &Group<tensor::Host>,
        wrong: Option<Mistake>,
    ) -> Result<Matrix<S>> {
        let mut z = Tensor::empty(device, Category::Buffers, self.keys.len(), 2 * RANKS);
        for m in 0..self.keys.len() {
            let (x, v) = (self.x.view().take_rows(m, 1), self.v.view().take_rows(m, 1));
            device.gemm(z.view_mut().take_rows(m, 1), x, v, Write::Set);
        }
        if wrong == Some(Mistake::OpaqueOfPartialSum) {
            let mut h = self.gated(device, &z, false);
            group.all_reduce(&mut h, Reduce::Sum)?;
            return Ok(h);
        }
        group.all_reduce(&mut z, Reduce::Sum)?;
        Ok(self.gated(device, &z, wrong == Some(Mistake::GateAndUpExchanged)))
    }
    /// `Y[B,1]`, the same on both ranks.
    fn output(&self, device: &Cpu<S>, group: &Group<tensor::Host>, wrong: Option<Mistake>) -> Result<Vec<S>> {
        let (h, rank, is) = (self.hidden(device, group, wrong)?, group.rank(), |w| wrong == Some(w));
        let whose = if is(Mistake::NeighboursShare) { RANKS - 1 - rank } else { rank };
        let mut y = Tensor::empty(device, Category::Buffers, self.keys.len(), 1);
        for m in 0..self.keys.len() {
            let (h, w) = (h.view().take_rows(m, 1), self.w.view().take_rows(m, 1));
            let y = y.view_mut().take_rows(m, 1);
            device.gemm(y, h.take_cols(rank, 1), w.take_cols(whose, 1), Write::Set);
        }
        if is(Mistake::ForgottenAddend) && rank == 1 {
            device.fill(y.view_mut(), S::ZERO);
        }
        if is(Mistake::BiasTwice) || rank == 0 {
            device.add(y.view_mut(), self.b.view());
        }
        group.all_reduce(&mut y, Reduce::Sum)?;
        let factor = if is(Mistake::MeanForSum) { S::from_usize(RANKS).inv() } else { S::ONE };
        Ok(y.read().expect("the host has values").into_iter().map(|y| y * factor).collect())
    }
    /// `H[B,F]`, each row under its model's key.
    fn gated(&self, device: &Cpu<S>, z: &Matrix<S>, exchanged: bool) -> Matrix<S> {
        let mut h = Tensor::empty(device, Category::Buffers, self.keys.len(), RANKS);
        for (m, key) in self.keys.iter().enumerate() {
            let _key = key.enter();
            let row = z.view().take_rows(m, 1);
            let (first, second) = (row.take_cols(0, RANKS), row.take_cols(RANKS, RANKS));
            let (gate, up) = if exchanged { (second, first) } else { (first, second) };
            device.gated(h.view_mut().take_rows(m, 1), gate, up, Gate::Silu);
        }
        h
    }
}

/// Runs the right program and all mistakes on `trials` models, each under its own key.
pub(crate) fn measured<const BITS: u32>(trials: u64) -> Counts
where
    Cpu<Field<BITS>>: Kernels<Place = Host, Elem = Field<BITS>>,
{
    let world = World::threads(&[(Axis::Tp, RANKS)]).expect("two ranks");
    let ranks = world.run(|device: Cpu<Field<BITS>>, mesh| {
        let group = mesh.group(Axis::Tp);
        let mut counts = Counts { trials, ..Counts::default() };
        for first in (0..trials).step_by(TOGETHER as usize) {
            let keys: Vec<_> = (first..trials.min(first + TOGETHER)).map(|n| Key(mix(n))).collect();
            let under = |key: &Key| {
                let _key = key.enter();
                let model = model::<Field<BITS>>();
                let truth = unsplit(&model);
                (model, truth)
            };
            let (models, truth): (Vec<_>, Vec<_>) = keys.iter().map(under).unzip();
            let shares = Shares::cut(&device, group.rank(), keys, &models);
            let equal = |mistake: Option<Mistake>| {
                let y = shares.output(&device, group, mistake)?;
                Result::Ok(y.iter().zip(&truth).map(|(y, truth)| y == truth).collect::<Vec<_>>())
            };
            let count = |equal: &[bool]| equal.iter().filter(|equal| **equal).count() as u64;
            counts.right += count(&equal(None)?);
            for (at, mistake) in MISTAKES.into_iter().enumerate() {
                let equal = equal(Some(mistake))?;
                counts.wrong[at] += count(&equal);
                let twice: Vec<_> = equal.chunks_exact(2).map(|pair| pair == [true; 2]).collect();
                counts.wrong_twice[at] += count(&twice);
            }
        }
        Result::Ok(counts)
    });
    ranks.expect("both ranks end").swap_remove(0)
}
