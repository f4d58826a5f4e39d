//! The axes along which a world is split, and the ranks along one that form a group.
use std::fmt;

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

/// The ranks along an axis that form a group: all of them, or a block. Reads `tp`, or `tp[2..4]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The axis.
    pub axis: Axis,
    /// The block's first rank along the axis, and the one after its last; all ranks if there is none.
    pub block: Option<(usize, usize)>,
}

impl Ranks {
    /// All ranks along an axis.
    pub(crate) fn all(axis: Axis) -> Self {
        Self { axis, block: None }
    }
    /// The first of them.
    pub(crate) fn start(self) -> usize {
        self.block.map_or(0, |(start, _)| start)
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            None => write!(f, "{}", self.axis),
            Some((start, end)) => write!(f, "{}[{start}..{end}]", self.axis),
        }
    }
}
