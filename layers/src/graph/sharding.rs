//! Sharding of a matrix over the axes of a mesh, and the steps from one sharding to another.
//!
//! ```text
//! slice        [2,1] → [4,1]    keeps a part of what the rank has      no traffic
//! all-gather   [2,4] → [2,1]    rows or columns of other ranks         its own elements, to each
//! all-to-all   [2,4] → [8,1]    rows for columns, or columns for rows  its own elements, a part to each
//! all-reduce, reduce-scatter    a partial sum becomes whole, or cut    its own elements
//! ```
//! An axis is used once: it cuts rows, cuts columns, has partial sums, or has copies. A cut by several axes
//! is nested, the first one outermost, so only the last ones can be gathered or moved.
//!
//! Source: Xu et al., "GSPMD", §3.1 and §3.5, arXiv:2105.04663.
use comm::{Axes, Axis};
use ops::{Error, Result};
use std::fmt;
use std::ops::Range;

/// Numbers of ranks along the axes of a mesh, the outermost first.
pub type MeshSizes = Vec<(Axis, usize)>;

/// Sharding of a matrix: which axes cut it, and which have partial sums of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sharding {
    /// Axes that cut the rows, and axes that cut the columns, the outermost first.
    pub cuts: [Vec<Axis>; 2],
    /// Axes whose ranks each have a partial sum.
    pub partial: Axes,
}

tensor::listed! {
    /// Kind of a step from one sharding to another.
    Change {
        /// A rank keeps a part of its rows or columns.
        Slice = "slice",
        /// A rank gets the rows or columns of the others.
        Gather = "all-gather",
        /// A rank gives columns for rows, or rows for columns.
        Exchange = "all-to-all",
        /// Partial sums are summed.
        Reduce = "all-reduce",
        /// Partial sums are summed, and a rank keeps a part.
        Scatter = "reduce-scatter",
    }
}

/// A step from one sharding to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardingStep {
    /// Its kind.
    pub change: Change,
    /// Rows (0) or columns (1) that are cut or gathered; those that are cut for the others, of an exchange.
    pub dim: usize,
    /// The axes, the outermost first.
    pub axes: Vec<Axis>,
}

impl Sharding {
    /// A matrix that every rank has whole.
    pub const WHOLE: Self = Self { cuts: [Vec::new(), Vec::new()], partial: Axes::NONE };

    /// Creates a sharding of whole blocks by the axes that cut rows and columns.
    pub fn new(rows: &[Axis], columns: &[Axis]) -> Self {
        Self { cuts: [rows.to_vec(), columns.to_vec()], partial: Axes::NONE }
    }
    /// Returns it with partial sums over these axes.
    #[must_use]
    pub fn summed(&self, partial: Axes) -> Self {
        Self { partial, ..self.clone() }
    }
    /// Returns all axes that cut it.
    pub fn cutting(&self) -> Axes {
        self.cuts.iter().flatten().copied().collect()
    }
    /// Numbers of blocks of rows and of columns.
    pub fn blocks(&self, mesh: &[(Axis, usize)]) -> [usize; 2] {
        self.cuts.each_ref().map(|axes| axes.iter().map(|&axis| size(mesh, axis)).product())
    }
    /// Returns the range of the whole's rows or columns that a rank has, which has these coordinates along
    /// the axes.
    pub fn range(
        &self,
        dim: usize,
        whole: usize,
        mesh: &[(Axis, usize)],
        at: &dyn Fn(Axis) -> usize,
    ) -> Range<usize> {
        let inner = |(block, blocks), &axis| (block * size(mesh, axis) + at(axis), blocks * size(mesh, axis));
        let (block, blocks) = self.cuts[dim].iter().fold((0, 1), inner);
        part(whole, block, blocks)
    }
    /// Returns the sharding after a step.
    ///
    /// # Errors
    /// If the step is not possible.
    pub fn after(&self, step: &ShardingStep) -> Result<Self> {
        let mut next = self.clone();
        let axes = Axes::from(&step.axes);
        let other = 1 - step.dim;
        let from = if step.change == Change::Exchange { other } else { step.dim };
        let removed = |list: &mut Vec<Axis>| {
            let left = list.len().checked_sub(step.axes.len()).filter(|&at| list[at..] == step.axes[..]);
            left.map(|left| list.truncate(left)).is_some()
        };
        let added = |next: &mut Self| {
            let is_free = step.axes.iter().all(|&axis| !next.cutting().contains(axis));
            next.cuts[step.dim].extend(&step.axes);
            is_free
        };
        let is_partial = step.axes.iter().all(|&axis| self.partial.contains(axis));
        let is_possible = match step.change {
            Change::Slice => added(&mut next) && step.axes.iter().all(|&axis| !self.partial.contains(axis)),
            Change::Gather => removed(&mut next.cuts[from]),
            Change::Exchange => removed(&mut next.cuts[from]) && added(&mut next),
            Change::Reduce => is_partial,
            Change::Scatter => is_partial && added(&mut next),
        };
        if matches!(step.change, Change::Reduce | Change::Scatter) {
            next.partial = next.partial.iter().filter(|&axis| !axes.contains(axis)).collect();
        }
        if is_possible { Ok(next) } else { Err(Error::Cannot(format!("{self} has no {step}"))) }
    }
    /// Returns the steps that lead from here towards `to`, which has no partial sums.
    fn towards(&self, to: &Self) -> Vec<ShardingStep> {
        let mut steps = Vec::new();
        let next =
            |dim: usize| -> &[Axis] { to.cuts[dim].strip_prefix(&self.cuts[dim][..]).unwrap_or_default() };
        for dim in [0, 1] {
            let alike = self.cuts[dim].iter().zip(&to.cuts[dim]).take_while(|(a, b)| a == b).count();
            let mut add =
                |change, dim, axes: &[Axis]| steps.push(ShardingStep { change, dim, axes: axes.to_vec() });
            for from in alike..self.cuts[dim].len() {
                let tail = &self.cuts[dim][from..];
                add(Change::Gather, dim, tail);
                if next(1 - dim).starts_with(tail) {
                    add(Change::Exchange, 1 - dim, tail);
                }
            }
            for n in (1..=next(dim).len()).rev() {
                let axes = &next(dim)[..n];
                if axes.iter().all(|&axis| self.partial.contains(axis)) {
                    add(Change::Scatter, dim, axes);
                } else if axes.iter().all(|&a| !self.partial.contains(a) && !self.cutting().contains(a)) {
                    add(Change::Slice, dim, axes);
                }
            }
        }
        let unused = self.partial.iter().filter(|&axis| !to.cutting().contains(axis)).collect();
        for axes in [self.partial, unused].into_iter().filter(|axes: &Axes| !axes.is_empty()) {
            steps.push(ShardingStep { change: Change::Reduce, dim: 0, axes: axes.iter().collect() });
        }
        steps
    }
    /// Returns the cheapest steps from here to `to`, and their price. `price` is that of a step from a
    /// sharding.
    pub fn way(
        &self,
        to: &Self,
        price: &mut dyn FnMut(&Self, &ShardingStep) -> f64,
    ) -> (f64, Vec<ShardingStep>) {
        if self == to {
            return (0.0, Vec::new());
        }
        let mut best = (f64::INFINITY, Vec::new());
        for step in self.towards(to) {
            let Ok(next) = self.after(&step) else { continue };
            let first = price(self, &step);
            let (rest, steps) = next.way(to, price);
            if first + rest < best.0 {
                best = (first + rest, [vec![step], steps].concat());
            }
        }
        best
    }
}

/// Number of ranks along an axis of a mesh.
pub fn size(mesh: &[(Axis, usize)], axis: Axis) -> usize {
    mesh.iter().find(|(of, _)| *of == axis).map_or(1, |(_, size)| *size)
}

/// Returns the range of a block of `whole` rows or columns. Blocks differ by one at most, and a block's own
/// blocks are those of a finer cut.
pub(crate) fn part(whole: usize, block: usize, blocks: usize) -> Range<usize> {
    whole * block / blocks..whole * (block + 1) / blocks
}

/// Returns every way of giving axes to `bins`, each to one at most. A bin's axes come in every order, that of
/// the mesh first.
pub(crate) fn dealt(axes: &[Axis], bins: usize) -> Vec<Vec<Vec<Axis>>> {
    let Some((&axis, rest)) = axes.split_last() else { return vec![vec![Vec::new(); bins]] };
    let mut ways = Vec::new();
    for others in dealt(rest, bins) {
        for bin in 0..bins {
            for at in (0..=others[bin].len()).rev() {
                let mut with = others.clone();
                with[bin].insert(at, axis);
                ways.push(with);
            }
        }
        ways.push(others);
    }
    ways
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |axes: &[Axis]| match axes {
            [] => "1".to_string(),
            _ => axes.iter().map(|axis| axis.name()).collect::<Vec<_>>().join("."),
        };
        write!(f, "[{},{}]", name(&self.cuts[0]), name(&self.cuts[1]))?;
        if self.partial.is_empty() { Ok(()) } else { write!(f, " of partial sums over {}", self.partial) }
    }
}

impl fmt::Display for ShardingStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self.axes.iter().map(|axis| axis.name()).collect();
        let what = ["rows", "columns"][self.dim];
        match self.change {
            Change::Slice => write!(f, "slice of {what} by {}", axes.join(".")),
            Change::Reduce => write!(f, "all-reduce over {}", axes.join(".")),
            Change::Exchange => {
                let from = ["columns", "rows"][self.dim];
                write!(f, "all-to-all over {}, {from} for {what}", axes.join("."))
            }
            change => write!(f, "{change} of {what} over {}", axes.join(".")),
        }
    }
}
