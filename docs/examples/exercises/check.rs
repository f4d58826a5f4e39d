//! The judge of an attempt: runs it on 1, 2, 3, 4 and 8 ranks, and says which values differ from those of the
//! unsplit computation, on which rank of how many, and how much traffic it made.
use crate::ranks::{Ranks, Result};
use comm::{Axis, Op, World};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::time::Duration;
use tensor::{Cpu, F61, Key, Scalar, mix};

/// Numbers of ranks of every check.
pub const RANKS: [usize; 5] = [1, 2, 3, 4, 8];
/// Message of an empty hole.
pub(crate) const UNSOLVED: &str = "the hole is empty";
/// Time that a rank waits for others: an attempt that hangs ends after it.
const LIMIT: Duration = Duration::from_secs(3);

/// Verdict on an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every value and all traffic are right.
    Solved,
    /// The hole is empty.
    Unsolved,
    /// One sentence on the first difference.
    Wrong(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Solved => f.write_str("solved"),
            Verdict::Unsolved => f.write_str(UNSOLVED),
            Verdict::Wrong(why) => f.write_str(why),
        }
    }
}

/// One tensor of one rank: what the attempt computed, and what is right.
pub struct Compared {
    name: String,
    got: Vec<F61>,
    wanted: Vec<F61>,
}

impl Compared {
    /// Pairs the values of an attempt with the right ones.
    pub fn new(name: impl Into<String>, got: Vec<F61>, wanted: Vec<F61>) -> Self {
        Self { name: name.into(), got, wanted }
    }
    fn difference(&self) -> Option<String> {
        let (name, got, wanted) = (&self.name, self.got.len(), self.wanted.len());
        if got != wanted {
            return Some(format!("{name} has {got} elements and should have {wanted}"));
        }
        let differing: Vec<usize> = (0..wanted).filter(|&i| self.got[i] != self.wanted[i]).collect();
        let first = differing.first()?;
        let how = match (wanted, differing.len()) {
            (1, _) => "differs".into(),
            (_, all) => format!("{all} of {wanted} elements differ, the first at {first}"),
        };
        Some(format!("{name}: {how}{}", self.factor(&differing)))
    }
    /// Names the small factor that all differing elements have in common, if there is one: a sum that is
    /// taken twice.
    fn factor(&self, differing: &[usize]) -> String {
        let all =
            |holds: &dyn Fn(F61, F61) -> bool| differing.iter().all(|&i| holds(self.got[i], self.wanted[i]));
        let times = |k: usize| all(&|got, wanted| got == wanted * F61::from_usize(k));
        let over = |k: usize| all(&|got, wanted| got * F61::from_usize(k) == wanted);
        let named = (2..=8).find_map(|k| match (times(k), over(k)) {
            (true, _) => Some(format!(", by a factor of {k}")),
            (_, true) => Some(format!(", by a factor of 1/{k}")),
            _ => None,
        });
        named.unwrap_or_default()
    }
}

/// Runs a case on every number of ranks. `case` returns the tensors of one rank; `traffic` says how many
/// elements a rank gives to each operation, from its number and the number of ranks.
pub fn judge(
    traffic: impl Fn(usize, usize) -> Vec<(Op, usize)>,
    case: impl Fn(&Ranks) -> Result<Vec<Compared>> + Sync,
) -> Verdict {
    let _key = Key(7).enter(); // of the field's exp
    let mut equal = Vec::new();
    for size in RANKS {
        let world = World::threads(&[(Axis::Dp, size)]).expect("few ranks").limit(LIMIT);
        let run = world.run(|device: Cpu<F61>, mesh| {
            let ranks = Ranks::new(device, mesh.group(Axis::Dp).clone());
            case(&ranks).map(|tensors| (tensors, ranks.traffic()))
        });
        let place = |rank: usize| match size {
            1 => "the only rank".into(),
            _ => format!("rank {rank} of {size}"),
        };
        let found = match run {
            Err(error) if error.reason == UNSOLVED => return Verdict::Unsolved,
            Err(error) => Some(format!("{} fails: {}", place(error.rank), error.reason)),
            Ok(results) => results.into_iter().enumerate().find_map(|(rank, (tensors, given))| {
                let differs = tensors.iter().find_map(Compared::difference);
                let wanted = if size == 1 { Vec::new() } else { traffic(rank, size) };
                let why = differs.or_else(|| other_traffic(&given, &wanted.into_iter().collect()))?;
                Some(format!("{why}, on {}", place(rank)))
            }),
        };
        if let Some(why) = found {
            return Verdict::Wrong(why + &right_before(&equal));
        }
        equal.push(size);
    }
    Verdict::Solved
}

/// Names the first operation that was given another number of elements than it needs.
fn other_traffic(given: &BTreeMap<Op, usize>, wanted: &BTreeMap<Op, usize>) -> Option<String> {
    let ops: BTreeSet<Op> = given.keys().chain(wanted.keys()).copied().collect();
    let count = |of: &BTreeMap<Op, usize>, op| of.get(&op).copied().unwrap_or(0);
    let mut counts = ops.into_iter().map(|op| (op, count(given, op), count(wanted, op)));
    let (op, given, wanted) = counts.find(|(_, given, wanted)| given != wanted)?;
    Some(format!("all values are right, but {op} is given {given} elements and needs {wanted}"))
}

/// Names the numbers of ranks on which an attempt was right.
fn right_before(sizes: &[usize]) -> String {
    match sizes {
        [] => String::new(),
        [1] => "; right on 1 rank".into(),
        [some @ .., last] => {
            let some: Vec<_> = some.iter().map(usize::to_string).collect();
            format!("; right on {} and {last} ranks", some.join(", "))
        }
    }
}

/// Rank `r`'s part of `len` elements cut over `size` ranks as evenly as possible.
pub fn part(len: usize, rank: usize, size: usize) -> Range<usize> {
    len * rank / size..len * (rank + 1) / size
}

/// Lengths of all ranks' parts.
pub fn parts(len: usize, size: usize) -> Vec<usize> {
    (0..size).map(|rank| part(len, rank, size).len()).collect()
}

/// Draws values: the same for one seed.
pub fn drawn(seed: u64, len: usize) -> Vec<F61> {
    (0..len as u64).map(|i| F61::new(mix(seed << 32 | i))).collect()
}

/// Copies columns out of a matrix of `width` columns.
pub fn columns(matrix: &[F61], width: usize, of: Range<usize>) -> Vec<F61> {
    matrix.chunks(width).flat_map(|row| &row[of.clone()]).copied().collect()
}

/// Product of `a[N,K]` and `b[K,M]`.
pub fn product(a: &[F61], b: &[F61], [k, m]: [usize; 2]) -> Vec<F61> {
    let dot = |row: &[F61], j| (0..k).fold(F61::ZERO, |sum, i| sum + row[i] * b[i * m + j]);
    let rows = a.len().checked_div(k).unwrap_or(0);
    (0..rows).flat_map(|n| (0..m).map(move |j| (n, j))).map(|(n, j)| dot(&a[n * k..][..k], j)).collect()
}

/// Transpose of a matrix of `width` columns.
pub fn transposed(matrix: &[F61], width: usize) -> Vec<F61> {
    (0..width).flat_map(|j| matrix.iter().skip(j).step_by(width.max(1)).copied()).collect()
}
