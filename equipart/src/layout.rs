//! How a model is split: how many ranks along each axis, as the user writes it.
//!
//! ```text
//! layout = "none" | part { "," part }       part = axis "=" ranks | "sp"
//! ```
//! An axis left out has one rank. `sp`: sequence regions, in which the tensor ranks share the tokens of norms, dropout
//! and residuals; it needs tensor ranks, and has no number of its own (`sp=2` is taken where it is that of `tp`). Printed: the axes that are split, innermost first (the one whose ranks talk most
//! comes first, as in `tp=2,dp=2`); `none` if there is none. What is printed reads back as the same layout.
use comm::{Axis, CommError, Mesh, World};
use kernels::Kernels;
use layers::{Builder, Shape, Values};
use std::fmt;
use std::str::FromStr;

/// The most ranks a layout may have.
pub const MAX_RANKS: usize = 1024;

const AXES: usize = Axis::ALL.len();

/// How many ranks there are along each axis: pure data. The default is the unsplit model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    sizes: [usize; AXES], // by `Axis as usize`; each at least 1, the product at most MAX_RANKS
    regions: bool,        // only with tensor ranks
}

/// Why a layout is none, or does not fit a model: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Nothing was written.
    #[error("the layout is empty; write none, or ranks along axes, such as {}", example())]
    Empty,
    /// Not `axis=ranks`: a comma too many, no `=`.
    #[error("{part:?} is no part of a layout; write axis=ranks, such as {}", example())]
    Part {
        /// What stands between two commas.
        part: String,
    },
    /// An axis that does not exist.
    #[error("{key:?} is no axis of a layout; the axes are {}", either(&names(), "and"))]
    Unknown {
        /// What stands before the `=`.
        key: String,
    },
    /// An axis given twice.
    #[error("the {axis} axis is given twice; give each axis once")]
    Twice {
        /// The axis.
        axis: Axis,
    },
    /// Sequence regions without tensor ranks, or of another number.
    #[error("{seen} is written beside tp={tp}; sequence regions are over the tensor ranks: write {}",
        if *tp > 1 { "sp" } else { "tp=2,sp" })]
    Regions {
        /// What was written.
        seen: String,
        /// Tensor ranks.
        tp: usize,
    },
    /// Ranks that are no number of at least 1.
    #[error("{axis} is {seen:?}; it must be a whole number of ranks, 1 or more")]
    Size {
        /// The axis.
        axis: Axis,
        /// What stands after the `=`.
        seen: String,
    },
    /// More ranks than there may be.
    #[error("{seen} makes more than {MAX_RANKS} ranks; the product of all axes must be at most {MAX_RANKS}")]
    Many {
        /// The sizes, as they were given.
        seen: String,
    },
    /// `none` beside an axis.
    #[error("none stands alone: it cannot be combined with {with:?}")]
    Combined {
        /// Another part of the layout.
        with: String,
    },
    /// A model that the ranks of an axis cannot share.
    #[error("{axis}={ranks} does not fit {shared}: {axis} can be {}", either(possible, "or"))]
    Fit {
        /// The axis.
        axis: Axis,
        /// Its ranks.
        ranks: usize,
        /// What they cannot share, with its size: "4 key heads".
        shared: String,
        /// The numbers of ranks that would fit, all else unchanged.
        possible: Vec<usize>,
    },
}

impl Default for Layout {
    fn default() -> Self {
        Self::UNSPLIT
    }
}

impl Layout {
    /// The model in one piece, on one rank.
    pub const UNSPLIT: Self = Self { sizes: [1; AXES], regions: false };

    /// The sizes in any order; axes left out have one rank.
    ///
    /// # Errors
    /// If an axis has no ranks or is given twice, or there are more than [`MAX_RANKS`] ranks.
    pub fn new(sizes: &[(Axis, usize)]) -> Result<Self, LayoutError> {
        let mut given = [None; AXES];
        for &(axis, size) in sizes {
            if size == 0 {
                return Err(LayoutError::Size { axis, seen: "0".into() });
            }
            if given[axis as usize].replace(size).is_some() {
                return Err(LayoutError::Twice { axis });
            }
        }
        let sizes_of = given.map(|size| size.unwrap_or(1));
        let ranks = sizes_of.iter().try_fold(1usize, |ranks, &size| ranks.checked_mul(size));
        if ranks.is_none_or(|ranks| ranks > MAX_RANKS) {
            let seen: Vec<_> = sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
            return Err(LayoutError::Many { seen: seen.join(",") });
        }
        Ok(Self { sizes: sizes_of, regions: false })
    }
    /// The same in sequence regions.
    ///
    /// # Errors
    /// If there is one tensor rank only.
    pub fn in_regions(self) -> Result<Self, LayoutError> {
        let tp = self.size(Axis::Tp);
        if tp == 1 {
            Err(LayoutError::Regions { seen: "sp".into(), tp })
        } else {
            Ok(Self { regions: true, ..self })
        }
    }
    /// Whether each tensor rank has its own tokens of norms, dropout and residuals.
    pub fn has_regions(&self) -> bool {
        self.regions
    }
    /// The place where this layout's ranks build a model.
    pub fn place<'a, D: Kernels>(
        &self,
        device: &'a D,
        mesh: &'a Mesh<D>,
        values: &'a dyn Values<D::Elem>,
    ) -> Builder<'a, D> {
        let at = Builder::new(device, mesh, values);
        if self.regions { at.in_regions() } else { at }
    }
    /// How many ranks there are in all.
    pub fn ranks(&self) -> usize {
        self.sizes.iter().product()
    }
    /// How many ranks there are along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }
    /// Every axis with its ranks, outermost first: what a world is made of.
    pub fn axes(&self) -> Vec<(Axis, usize)> {
        Axis::ALL.iter().map(|&axis| (axis, self.size(axis))).collect()
    }
    /// The world of its ranks, threads of this process.
    ///
    /// # Errors
    /// If there are more ranks than a world can have.
    pub fn world(&self) -> Result<World, CommError> {
        World::threads(&self.axes())
    }
    /// The numbers of ranks along an axis that `fit`, all else unchanged.
    pub(crate) fn possible(&self, axis: Axis, fit: impl Fn(usize) -> bool) -> Vec<usize> {
        let limit = MAX_RANKS / (self.ranks() / self.size(axis));
        (1..=limit).filter(|n| fit(*n)).collect()
    }
    /// Whether the ranks of every axis can share a model of this shape.
    ///
    /// # Errors
    /// If an axis has ranks that do not divide what they share; says which numbers do.
    pub fn fits(&self, shape: &Shape) -> Result<(), LayoutError> {
        for (axis, ranks) in self.axes() {
            let shared = shared(axis, shape);
            let bad: Vec<_> =
                shared.iter().filter(|s| !s.fit(ranks)).map(|s| format!("{} {}", s.size, s.what)).collect();
            if !bad.is_empty() {
                let possible = self.possible(axis, |n| shared.iter().all(|s| s.fit(n)));
                return Err(LayoutError::Fit { axis, ranks, shared: either(&bad, "and"), possible });
            }
        }
        Ok(())
    }
}

/// What the ranks of an axis share.
struct Shared {
    what: &'static str,
    size: usize,
    copies: bool, // several ranks may hold the same one
}

impl Shared {
    fn fit(&self, ranks: usize) -> bool {
        self.size.is_multiple_of(ranks) || (self.copies && ranks.is_multiple_of(self.size))
    }
}

fn shared(axis: Axis, shape: &Shape) -> Vec<Shared> {
    let one = |what, size, copies| Shared { what, size, copies };
    match axis {
        Axis::Dp => vec![],
        Axis::Tp => vec![
            one("query heads", shape.heads.queries, false),
            one("key heads", shape.heads.keys, true),
            one("hidden features", shape.hidden, false),
        ],
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let split = self.axes().into_iter().rev().filter(|&(_, size)| size > 1);
        let mut parts: Vec<_> = split.map(|(axis, size)| format!("{axis}={size}")).collect();
        if self.regions {
            parts.insert(1, "sp".into()); // after the tensor ranks, which are innermost
        }
        f.pad(&if parts.is_empty() { "none".into() } else { parts.join(",") })
    }
}

impl FromStr for Layout {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        if text.trim().is_empty() {
            return Err(LayoutError::Empty);
        }
        let parts: Vec<_> = text.split(',').map(str::trim).collect();
        if parts.contains(&"none") {
            let other =
                (parts.len() > 1).then(|| parts.iter().find(|part| **part != "none").unwrap_or(&"none"));
            return other
                .map_or(Ok(Self::UNSPLIT), |with| Err(LayoutError::Combined { with: (*with).to_owned() }));
        }
        let is_region = |part: &&str| part.split('=').next().is_some_and(|key| key.trim() == "sp");
        let (regions, axes): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_region);
        let layout = Self::new(&axes.into_iter().map(split).collect::<Result<Vec<_>, _>>()?)?;
        let tp = layout.size(Axis::Tp);
        match regions[..] {
            [] => Ok(layout),
            [part]
                if part == "sp" || part.split_once('=').is_some_and(|(_, n)| n.trim() == tp.to_string()) =>
            {
                layout.in_regions()
            }
            [part] => Err(LayoutError::Regions { seen: part.into(), tp }),
            _ => Err(LayoutError::Regions { seen: regions.join(","), tp }),
        }
    }
}

/// `axis=ranks`.
fn split(part: &str) -> Result<(Axis, usize), LayoutError> {
    let (key, size) = part.split_once('=').ok_or_else(|| LayoutError::Part { part: part.into() })?;
    let (key, size) = (key.trim(), size.trim());
    let axis = Axis::ALL.iter().copied().find(|axis| axis.name() == key);
    let axis = axis.ok_or_else(|| LayoutError::Unknown { key: key.into() })?;
    if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(LayoutError::Size { axis, seen: size.into() });
    }
    let size = size.parse().map_err(|_| LayoutError::Many { seen: format!("{axis}={size}") })?;
    Ok((axis, size))
}

fn names() -> Vec<&'static str> {
    Axis::ALL.iter().rev().map(|axis| axis.name()).collect()
}

fn example() -> String {
    names().iter().map(|name| format!("{name}=2")).collect::<Vec<_>>().join(",")
}

/// "1", "1 or 2", "1, 2 or 4".
fn either<T: fmt::Display>(all: &[T], last: &str) -> String {
    let words: Vec<_> = all.iter().map(T::to_string).collect();
    match words.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests;
