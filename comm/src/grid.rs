//! Ranks and their coordinates: which ranks form a group along an axis.
use crate::axis::Axis;
use crate::error::{CommError, Result};

/// The sizes of a world's axes, outermost first, each axis once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    sizes: Vec<(Axis, usize)>,
    ranks: usize,
}

impl Grid {
    /// The sizes in any order; axes left out have size 1.
    ///
    /// # Errors
    /// An axis without ranks or given twice, more than `limit` ranks.
    pub(crate) fn new(sizes: &[(Axis, usize)], limit: usize) -> Result<Self> {
        let mut sizes = sizes.to_vec();
        sizes.sort_by_key(|&(axis, _)| axis);
        if let Some(&(axis, _)) = sizes.iter().find(|&&(_, size)| size == 0) {
            return Err(CommError::EmptyAxis { axis });
        }
        if let Some(twice) = sizes.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(CommError::AxisTwice { axis: twice[0].0 });
        }
        let product = sizes.iter().try_fold(1usize, |ranks, &(_, size)| ranks.checked_mul(size));
        if let Some(ranks) = product.filter(|&ranks| ranks <= limit) {
            return Ok(Self { sizes, ranks });
        }
        let sizes: Vec<_> = sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
        Err(CommError::TooManyRanks { sizes: sizes.join(" "), limit })
    }
    /// One rank.
    pub(crate) fn alone() -> Self {
        Self { sizes: Vec::new(), ranks: 1 }
    }
    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }
    /// How many along an axis, and how far apart they are.
    fn size_and_stride(&self, axis: Axis) -> (usize, usize) {
        let size = self.sizes.iter().find(|&&(a, _)| a == axis).map_or(1, |&(_, size)| size);
        (size, self.sizes.iter().filter(|&&(a, _)| a > axis).map(|&(_, size)| size).product())
    }
    /// Where a rank stands along an axis.
    pub(crate) fn coordinate(&self, axis: Axis, rank: usize) -> usize {
        let (size, stride) = self.size_and_stride(axis);
        rank / stride % size
    }
    /// The ranks that differ from this one along the axis only, itself among them.
    pub(crate) fn members(&self, axis: Axis, rank: usize) -> Vec<usize> {
        let (size, stride) = self.size_and_stride(axis);
        let first = rank - self.coordinate(axis, rank) * stride;
        (0..size).map(|i| first + i * stride).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: strides of the wrong axes, an order that follows the caller's.
    #[test]
    fn the_last_axis_is_innermost_in_whatever_order_sizes_come() {
        for sizes in [[(Axis::Dp, 3), (Axis::Tp, 2)], [(Axis::Tp, 2), (Axis::Dp, 3)]] {
            let grid = Grid::new(&sizes, 100).unwrap();
            assert_eq!(grid.ranks(), 6);
            assert_eq!((grid.coordinate(Axis::Dp, 5), grid.coordinate(Axis::Tp, 5)), (2, 1));
            assert_eq!((grid.members(Axis::Tp, 3), grid.members(Axis::Dp, 3)), (vec![2, 3], vec![1, 3, 5]));
        }
        let grid = Grid::new(&[(Axis::Dp, 2)], 100).unwrap();
        assert_eq!((grid.members(Axis::Tp, 1), grid.members(Axis::Dp, 1)), (vec![1], vec![0, 1]));
    }

    #[test]
    fn bad_sizes_are_refused() {
        let sizes = |sizes: &[(Axis, usize)]| Grid::new(sizes, 1024).unwrap_err().to_string();
        assert_eq!(
            sizes(&[(Axis::Dp, 2), (Axis::Tp, 0)]),
            "the tp axis has no ranks: its size must be 1 or more"
        );
        assert_eq!(sizes(&[(Axis::Dp, 2), (Axis::Tp, 1), (Axis::Dp, 2)]), "the dp axis is given twice");
        assert_eq!(
            sizes(&[(Axis::Dp, 32), (Axis::Tp, 33)]),
            "a world of dp=32 tp=33 has more than 1024 ranks"
        );
        assert!(sizes(&[(Axis::Dp, usize::MAX), (Axis::Tp, 2)]).contains("more than 1024"));
        assert_eq!(Grid::new(&[(Axis::Dp, 32), (Axis::Tp, 32)], 1024).unwrap().ranks(), 1024);
    }
}
