//! Mesh axes, sets of axes, and the ranks along axes that form a group.
use std::cmp::Ordering;
use std::fmt;
use std::ops::BitOr;
use std::sync::{Arc, OnceLock};

tensor::listed! {
    /// An axis of the mesh. A world has pp × dp × cp × tp ranks. The dp × cp × tp ranks of a stage are also
    /// factored as edp × ep × etp, so that experts are split differently from the layers around them.
    Axis {
        /// Pipeline: each rank has the layers of one stage.
        Pp = "pp",
        /// Data: each rank has its own part of the batch.
        Dp = "dp",
        /// Context: each rank has its own tokens of every sequence.
        Cp = "cp",
        /// Tensor: each rank has its own part of every layer.
        Tp = "tp",
        /// Expert data: all ranks have the same experts, and each has its own tokens for them.
        Edp = "edp",
        /// Expert: each rank has its own experts.
        Ep = "ep",
        /// Expert tensor: each rank has its own part of every expert.
        Etp = "etp",
    }
}

impl Axis {
    /// Axes whose sizes multiply to the world size, in the default order, outermost first.
    pub const DENSE: [Axis; 4] = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Tp];
    /// Axes of the expert factoring of the same ranks.
    pub const EXPERT: [Axis; 4] = [Axis::Pp, Axis::Edp, Axis::Ep, Axis::Etp];
    /// Axes that an order may name, in the default order, innermost first.
    pub const NESTED: [Axis; 5] = [Axis::Tp, Axis::Ep, Axis::Cp, Axis::Dp, Axis::Pp];
}

/// A set of axes: `Axis::Dp | Axis::Cp`, or a list of them. Displays as `dp.cp`, and as `none` if empty. Sets
/// sort like the lists of their axes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Axes(u8); // one bit per axis

impl Axes {
    /// No axes.
    pub const NONE: Self = Self(0);
    /// Axes over which tokens are split: each rank has a partial sum of the loss and of every gradient.
    pub const TOKENS: Self = Self(1 << Axis::Dp as u8 | 1 << Axis::Cp as u8);
    /// Axes over which the loss is a partial sum: those of tokens, and pipeline stages, of which the last has
    /// the head.
    pub const LOSS: Self = Self(Self::TOKENS.0 | 1 << Axis::Pp as u8);
    /// Number of possible sets.
    pub(crate) const SETS: usize = 1 << Axis::ALL.len();

    /// Returns the axes of the set, in the order of [`Axis::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Axis> {
        Axis::ALL.iter().copied().filter(move |&axis| self.contains(axis))
    }
    /// Returns the axis of a set of exactly one.
    pub fn single(self) -> Option<Axis> {
        self.iter().next().filter(|&axis| self == axis)
    }
    /// The name in messages and reports.
    pub fn name(self) -> &'static str {
        static NAMES: OnceLock<Vec<String>> = OnceLock::new();
        let name = |set: Self| match set.iter().map(Axis::name).collect::<Vec<_>>() {
            names if names.is_empty() => "none".to_string(),
            names => names.join("."),
        };
        &NAMES.get_or_init(|| (0..Self::SETS).map(|index| name(Self::nth(index))).collect())[self.index()]
    }
    /// Returns true if `axis` is in the set.
    pub fn contains(self, axis: Axis) -> bool {
        self.0 >> axis as u8 & 1 == 1
    }
    /// Returns the set without `axis`.
    #[must_use]
    pub fn without(self, axis: Axis) -> Self {
        Self(self.0 & !(1 << axis as u8))
    }
    /// Returns true if the set has no axes.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
    /// Index of the set among all sets.
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
    /// Returns the set with this index.
    pub(crate) fn nth(index: usize) -> Self {
        Axis::ALL.iter().copied().filter(|&axis| index >> axis as usize & 1 == 1).collect()
    }
}

impl From<Axis> for Axes {
    fn from(axis: Axis) -> Self {
        Self(1 << axis as u8)
    }
}
impl FromIterator<Axis> for Axes {
    fn from_iter<I: IntoIterator<Item = Axis>>(axes: I) -> Self {
        axes.into_iter().fold(Self::default(), |set, axis| set | axis)
    }
}
impl<A: AsRef<[Axis]>> From<A> for Axes {
    fn from(axes: A) -> Self {
        axes.as_ref().iter().copied().collect()
    }
}
impl<A: Into<Axes>> BitOr<A> for Axes {
    type Output = Axes;
    fn bitor(self, other: A) -> Axes {
        Axes(self.0 | other.into().0)
    }
}
impl<A: Into<Axes>> BitOr<A> for Axis {
    type Output = Axes;
    fn bitor(self, other: A) -> Axes {
        Axes::from(self) | other
    }
}
impl PartialEq<Axis> for Axes {
    fn eq(&self, axis: &Axis) -> bool {
        *self == Axes::from(*axis)
    }
}
impl Ord for Axes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}
impl PartialOrd for Axes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|axis| format!("{axis:?}")).collect();
        f.write_str(&names.join("|"))
    }
}

/// Ranks along a set of axes that form a group: all of them, or some. Displays as `dp.cp`, `tp`, `tp[2..4]`
/// or `tp[0,3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The axes.
    pub axes: Axes,
    /// Places of the group's ranks along the axes, in the group's order, at least one. `None` for all ranks.
    pub some: Option<Arc<[usize]>>,
}

impl Ranks {
    /// Returns all ranks along these axes.
    pub(crate) fn all(axes: impl Into<Axes>) -> Self {
        Self { axes: axes.into(), some: None }
    }
    /// Selects the ranks at these places among the current ones.
    pub(crate) fn at(&self, places: &[usize]) -> Self {
        let along = |&place: &usize| self.some.as_ref().map_or(place, |some| some[place]);
        Self { axes: self.axes, some: Some(places.iter().map(along).collect()) }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.axes)?;
        let Some(some) = &self.some else { return Ok(()) };
        let [first, last] = [0, some.len() - 1].map(|index| some[index]);
        if some.iter().copied().eq(first..=last) {
            return write!(f, "[{first}..{}]", last + 1);
        }
        let places: Vec<_> = some.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", places.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: ranks counted in the group that is cut, not along the axis.
    #[test]
    fn parts_of_parts_read_as_places_along_the_axis() {
        let part = Ranks::all(Axis::Tp).at(&[2, 3, 4, 7]);
        assert_eq!(part.to_string(), "tp[2,3,4,7]");
        assert_eq!(part.at(&[0, 1, 2]).to_string(), "tp[2..5]");
        assert_eq!(part.at(&[3]).to_string(), "tp[7..8]");
        assert_eq!(part.at(&[1, 0]).to_string(), "tp[3,2]");
        assert_eq!(Ranks::all(Axis::Dp).to_string(), "dp");
        assert_eq!(Ranks::all(Axis::Cp | Axis::Dp).at(&[0, 1]).to_string(), "dp.cp[0..2]");
    }

    /// Kills: an axis taken for another, a set that differs from itself by how it was written.
    #[test]
    fn sets_are_their_axes_however_written() {
        let set = Axis::Tp | Axis::Dp | Axis::Dp;
        assert_eq!([set, Axes::from(&[Axis::Dp, Axis::Tp]), Axes::from(&[Axis::Tp, Axis::Dp][..])], [set; 3]);
        assert_eq!((set.to_string().as_str(), Axes::default().to_string().as_str()), ("dp.tp", "none"));
        assert!([Axes::default(), Axis::Ep.into(), set].map(Axes::single) == [None, Some(Axis::Ep), None]);
        assert!(
            set.contains(Axis::Tp)
                && !set.contains(Axis::Cp)
                && set != Axis::Tp
                && Axes::default().is_empty()
        );
        assert_eq!(Axes::from(Axis::ALL).to_string(), "pp.dp.cp.tp.edp.ep.etp");
        assert!(
            (0..Axes::SETS)
                .all(|i| Axes::nth(i).index() == i && Axes::nth(i).iter().collect::<Axes>().index() == i)
        );
    }

    /// Kills: sets in the order of their bits, where outer axes come last.
    #[test]
    fn sets_sort_outermost_first() {
        let mut all: Vec<Axes> = (0..1 << 4).map(Axes::nth).collect();
        all.sort();
        let names: Vec<_> = all.iter().map(ToString::to_string).collect();
        let wanted = "none pp pp.dp pp.dp.cp pp.dp.cp.tp pp.dp.tp pp.cp pp.cp.tp pp.tp dp dp.cp dp.cp.tp dp.tp cp cp.tp tp";
        assert_eq!(names.join(" "), wanted);
    }
}
