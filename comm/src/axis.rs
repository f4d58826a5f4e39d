//! The axes along which a world is split, and the ranks along one that form a group.
use std::fmt;
use std::sync::Arc;

listed! {
    /// An axis of the mesh, outermost first: ranks that differ along the last one only are neighbours. A new axis is
    /// one line here.
    Axis {
        /// Data: each rank has its own part of the batch.
        Dp = "dp",
        /// Tensor: each rank has its own part of every layer.
        Tp = "tp",
    }
}

/// The ranks along an axis that form a group: all of them, or some. Reads `tp`, `tp[2..4]` or `tp[0,3]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The axis.
    pub axis: Axis,
    /// Where the group's ranks, one or more, stand along the axis, in the group's order; all ranks if this is none.
    pub some: Option<Arc<[usize]>>,
}

impl Ranks {
    /// All ranks along an axis.
    pub(crate) fn all(axis: Axis) -> Self {
        Self { axis, some: None }
    }
    /// Those of them that stand at these places of theirs.
    pub(crate) fn at(&self, places: &[usize]) -> Self {
        let along_axis = |&place: &usize| self.some.as_ref().map_or(place, |some| some[place]);
        Self { axis: self.axis, some: Some(places.iter().map(along_axis).collect()) }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.axis)?;
        let Some(some) = &self.some else { return Ok(()) };
        let (first, last) = (some[0], some[some.len() - 1]);
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
    }
}
