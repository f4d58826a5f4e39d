//! Members of a group: a lattice of ranks, stored without a list, or a list.
use std::sync::Arc;

/// One digit of a rank's number: `size` values, each `stride` ranks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digit {
    pub(crate) size: usize,
    pub(crate) stride: usize,
}

impl Digit {
    /// Value of this digit in `rank`.
    pub(crate) fn of(self, rank: usize) -> usize {
        rank / self.stride % self.size
    }
}

/// Ranks of the world, in the group's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// Ranks that differ from `first` only in these digits, innermost first. In `first` all of them are 0.
    Lattice { first: usize, digits: Arc<[Digit]> },
    /// Ranks of a list.
    List(Arc<[usize]>),
}

impl Members {
    /// Returns the ranks that differ from `rank` only in these digits, in rank order.
    pub(crate) fn around(rank: usize, mut digits: Vec<Digit>) -> Self {
        digits.sort_by_key(|digit| digit.stride);
        let first = digits.iter().fold(rank, |first, digit| first - digit.of(rank) * digit.stride);
        Self::Lattice { first, digits: digits.into() }
    }
    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Lattice { digits, .. } => digits.iter().map(|digit| digit.size).product(),
            Self::List(ranks) => ranks.len(),
        }
    }
    /// Returns the member at this place.
    pub(crate) fn get(&self, place: usize) -> Option<usize> {
        match self {
            Self::Lattice { .. } if place >= self.len() => None,
            Self::Lattice { first, digits } => {
                let add = |(rank, rest), digit: &Digit| {
                    (rank + rest % digit.size * digit.stride, rest / digit.size)
                };
                Some(digits.iter().fold((*first, place), add).0)
            }
            Self::List(ranks) => ranks.get(place).copied(),
        }
    }
    /// Returns all members in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).map(|place| self.get(place).expect("one of them"))
    }
    /// Number of members in the same block of `unit` consecutive ranks of the world as `rank`, a member. For
    /// a lattice, blocks are taken to begin where digits do.
    pub(crate) fn within(&self, rank: usize, unit: usize) -> usize {
        match self {
            Self::Lattice { digits, .. } => {
                digits.iter().map(|digit| (unit / digit.stride).clamp(1, digit.size)).product()
            }
            Self::List(ranks) => ranks.iter().filter(|&&other| other / unit == rank / unit).count(),
        }
    }
    /// Returns the place of `rank` among the members, if it is one.
    pub(crate) fn place(&self, rank: usize) -> Option<usize> {
        match self {
            Self::Lattice { digits, .. } => {
                let add =
                    |(place, weight), digit: &Digit| (place + digit.of(rank) * weight, weight * digit.size);
                Some(digits.iter().fold((0, 1), add).0).filter(|&place| self.get(place) == Some(rank))
            }
            Self::List(ranks) => ranks.iter().position(|&member| member == rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: ranks of another block counted, a digit that leaves the block counted whole.
    #[test]
    fn members_of_a_block_are_counted() {
        let digits = vec![Digit { size: 4, stride: 2 }, Digit { size: 8, stride: 16 }];
        let lattice = Members::around(5, digits);
        let list = Members::List(lattice.iter().collect());
        for unit in [1, 2, 4, 8, 16, 32, 64, 128] {
            assert_eq!(lattice.within(5, unit), list.within(5, unit), "{unit}");
        }
        assert_eq!([1, 4, 8, 16, 64, 128].map(|unit| lattice.within(5, unit)), [1, 2, 4, 4, 16, 32]);
    }

    /// Kills: digits taken in the caller's order, a place that is not the list's.
    #[test]
    fn a_lattice_equals_its_list() {
        let digits =
            vec![Digit { size: 3, stride: 20 }, Digit { size: 2, stride: 1 }, Digit { size: 5, stride: 4 }];
        let lattice = Members::around(17 + 40 + 60, digits.clone());
        let rest = |rank: usize| digits.iter().fold(rank, |r, d| r - d.of(rank) * d.stride);
        let same = |&rank: &usize| rest(rank) == rest(117);
        let list: Vec<_> = (0..240).filter(same).collect();
        assert!(lattice.iter().eq(list.iter().copied()));
        assert_eq!((lattice.len(), lattice.get(30)), (30, None));
        for rank in 0..240 {
            let place = list.iter().position(|&member| member == rank);
            assert_eq!([lattice.place(rank), Members::List(list.clone().into()).place(rank)], [place; 2]);
        }
    }
}
