//! Coordinates of ranks in two factorings, and the ranks that form a group along a set of axes.
//!
//! ```text
//! world   pp × dp × cp × tp        nested in an order, innermost first; tp.cp.dp.pp unless given
//! stage        dp × cp × tp   =   edp × ep × etp
//! ```
//! Experts nest in the same order: etp takes tp's place, and edp takes dp's. ep is where the order names it,
//! by default next to etp, outside it. Ranks of a stage are counted without pp for this, so that both
//! factorings have the same stages. Source: Megatron-LM, `megatron/core/parallel_state.py`, `RankGenerator`;
//! Liu et al., arXiv:2504.14960, on folding such ranks.
use crate::members::Digit;
use crate::{Axes, Axis, CommError, Members, Result};
use std::panic::Location;

const AXES: usize = Axis::ALL.len();
/// Default order, innermost first.
const ORDER: [Axis; 4] = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp];

/// Digits of a rank's number that form its coordinate along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    given: Vec<(Axis, usize)>,
    order: Vec<Axis>,           // pp, dp, cp and tp, innermost first
    digits: [Vec<Digit>; AXES], // innermost first; none along an axis of one rank
    ranks: usize,
}

impl Grid {
    /// Makes a grid of these sizes, listed in any order; axes left out have size 1. Axes nest in the default
    /// order.
    ///
    /// # Errors
    /// [`CommError::BadWorld`] if an axis has no ranks or is given twice, edp is given, the world has more
    /// than `limit` ranks, or ep·etp does not divide the ranks of a stage.
    pub(crate) fn new(sizes: &[(Axis, usize)], limit: usize) -> Result<Self> {
        let mut given = sizes.to_vec();
        given.sort_by_key(|&(axis, _)| axis);
        if let Some(&(axis, _)) = given.iter().find(|&&(_, size)| size == 0) {
            return bad(format!("the {axis} axis has no ranks: its size must be 1 or more"));
        }
        if let Some(twice) = given.windows(2).find(|w| w[0].0 == w[1].0) {
            return bad(format!("the {} axis is given twice", twice[0].0));
        }
        if given.iter().any(|&(axis, _)| axis == Axis::Edp) {
            return bad("the size of the edp axis must not be given: it is dp·cp·tp/(ep·etp)".into());
        }
        let dense: Vec<_> = given.iter().filter(|(axis, _)| Axis::DENSE.contains(axis)).collect();
        let product = dense.iter().try_fold(1usize, |ranks, &&(_, size)| ranks.checked_mul(size));
        let Some(ranks) = product.filter(|&ranks| ranks <= limit) else {
            let sizes: Vec<_> = dense.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
            return bad(format!("a world of {} has more than {limit} ranks", sizes.join(" ")));
        };
        Self { given, order: Vec::new(), digits: Default::default(), ranks }.nested(&ORDER)
    }
    /// Makes a grid of one rank.
    pub(crate) fn alone() -> Self {
        Self { given: Vec::new(), order: ORDER.to_vec(), digits: Default::default(), ranks: 1 }
    }
    /// Returns a grid of the same sizes whose axes nest in this order, innermost first.
    ///
    /// # Errors
    /// [`CommError::BadWorld`] if the order names an axis twice, names edp or etp, or lacks an axis that is
    /// split; or if ep·etp does not divide the ranks of a stage, or pp cuts experts apart.
    pub(crate) fn nested(&self, order: &[Axis]) -> Result<Self> {
        let nest = self.complete_order(order)?;
        let (mut digits, mut stride): ([Vec<Digit>; AXES], _) = (Default::default(), 1);
        let dense: Vec<_> = nest.iter().copied().filter(|axis| Axis::DENSE.contains(axis)).collect();
        for &axis in &dense {
            let size = self.given(axis);
            digits[axis as usize] = if size == 1 { vec![] } else { vec![Digit { size, stride }] };
            stride *= size;
        }
        let inside =
            dense.iter().take_while(|&&axis| axis != Axis::Pp).map(|&axis| self.given(axis)).product();
        let [mut stride, edp] = [1, self.edp()?];
        for axis in nest.iter().filter_map(|&axis| expert(axis)) {
            let size = if axis == Axis::Edp { edp } else { self.given(axis) };
            let Some(own) = self.stage_digit_to_world([size, stride], inside) else {
                let order = order_name(&dense);
                return bad(format!(
                    "{axis}={size} does not nest in the order {order}, where {inside} ranks of a stage are \
                     consecutive: put pp last"
                ));
            };
            digits[axis as usize] = own;
            stride *= size;
        }
        Ok(Self { given: self.given.clone(), order: dense, digits, ranks: self.ranks })
    }
    /// Completes an order to name every axis. ep goes next to tp, outside it. Other missing axes are not
    /// split: tp goes innermost, because etp takes its place, and the rest outermost.
    fn complete_order(&self, order: &[Axis]) -> Result<Vec<Axis>> {
        let bad = |why: String| bad(format!("the order {} {why}", order_name(order)));
        for (i, axis) in order.iter().enumerate() {
            if [Axis::Edp, Axis::Etp].contains(axis) {
                return bad(format!("names {axis}, whose place is that of dp or tp: leave it out"));
            }
            if order[..i].contains(axis) {
                return bad(format!("names {axis} twice"));
            }
        }
        if let Some(axis) = Axis::DENSE.iter().find(|&&axis| self.given(axis) > 1 && !order.contains(&axis)) {
            return bad(format!("lacks {axis}, which has {} ranks: add it", self.given(*axis)));
        }
        let mut nest = order.to_vec();
        if !nest.contains(&Axis::Tp) {
            nest.insert(0, Axis::Tp);
        }
        if !nest.contains(&Axis::Ep) {
            let tp = nest.iter().position(|&axis| axis == Axis::Tp).expect("put there above");
            nest.insert(tp + 1, Axis::Ep);
        }
        nest.extend(ORDER.iter().filter(|axis| !order.contains(axis) && **axis != Axis::Tp));
        Ok(nest)
    }
    /// Size of the edp axis: the number of ranks that hold the same part of an expert.
    fn edp(&self) -> Result<usize> {
        let [dp, cp, tp, ep, etp] =
            [Axis::Dp, Axis::Cp, Axis::Tp, Axis::Ep, Axis::Etp].map(|axis| self.given(axis));
        match ep.checked_mul(etp).filter(|&experts| (dp * cp * tp).is_multiple_of(experts)) {
            Some(experts) => Ok(dp * cp * tp / experts),
            None => bad(format!(
                "the {} ranks of a stage (dp={dp} cp={cp} tp={tp}) cannot be cut into ep={ep} times etp={etp}: ep·etp must \
                 divide them",
                dp * cp * tp
            )),
        }
    }
    /// Converts a digit of a stage's ranks to digits of the world's ranks, in which a stage has runs of
    /// `inside` consecutive ranks with other stages' ranks between. `None` if pp cuts the digit apart.
    fn stage_digit_to_world(&self, [size, stride]: [usize; 2], inside: usize) -> Option<Vec<Digit>> {
        let stages = self.given(Axis::Pp);
        match inside / stride {
            _ if size == 1 => Some(vec![]),
            _ if stages == 1 || inside.is_multiple_of(size * stride) => Some(vec![Digit { size, stride }]),
            _ if stride.is_multiple_of(inside) => Some(vec![Digit { size, stride: stride * stages }]),
            within if inside.is_multiple_of(stride) && size.is_multiple_of(within) => Some(vec![
                Digit { size: within, stride },
                Digit { size: size / within, stride: inside * stages },
            ]),
            _ => None,
        }
    }
    fn given(&self, axis: Axis) -> usize {
        self.given.iter().find(|&&(a, _)| a == axis).map_or(1, |&(_, size)| size)
    }
    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }
    /// The axes pp, dp, cp and tp, innermost first.
    pub(crate) fn order(&self) -> &[Axis] {
        &self.order
    }
    /// Number of ranks along an axis.
    pub(crate) fn size(&self, axis: Axis) -> usize {
        self.digits[axis as usize].iter().map(|digit| digit.size).product()
    }
    /// Coordinate of a rank along an axis.
    pub(crate) fn coordinate(&self, axis: Axis, rank: usize) -> usize {
        let add = |(place, weight), digit: &Digit| (place + digit.of(rank) * weight, weight * digit.size);
        self.digits[axis as usize].iter().fold((0, 1), add).0
    }
    /// Ranks that differ from `rank` only along these axes of one factoring, `rank` among them, in rank
    /// order.
    pub(crate) fn members(&self, axes: impl Into<Axes>, rank: usize) -> Members {
        let digits = axes.into().iter().flat_map(|axis| self.digits[axis as usize].clone());
        Members::around(rank, digits.collect())
    }
    /// Returns the axes among `axes` that have several ranks, or all of `axes` if none has. All must be of
    /// one factoring.
    ///
    /// # Errors
    /// [`CommError::BadArgument`] if the axes are of both factorings.
    pub(crate) fn split(&self, axes: Axes, at: &'static Location<'static>) -> Result<Axes> {
        let of = |factoring: [Axis; 4]| axes.iter().any(|axis| axis != Axis::Pp && factoring.contains(&axis));
        if of(Axis::DENSE) && of(Axis::EXPERT) {
            let why = format!(
                "no group has axes {axes}: take axes from dp, cp and tp or from edp, ep and etp; \
                 pp fits either"
            );
            return Err(CommError::BadArgument { why, at });
        }
        Ok(self.split_of(axes))
    }
    /// Returns the axes among `axes` that have several ranks, or all of `axes` if none has.
    pub(crate) fn split_of(&self, axes: Axes) -> Axes {
        let split: Axes = axes.iter().filter(|&axis| self.size(axis) > 1).collect();
        if split.is_empty() { axes } else { split }
    }
}

fn bad<T>(why: String) -> Result<T> {
    Err(CommError::BadWorld(why))
}

/// Expert axis that takes the place of `axis` in an order.
fn expert(axis: Axis) -> Option<Axis> {
    match axis {
        Axis::Tp => Some(Axis::Etp),
        Axis::Ep => Some(Axis::Ep),
        Axis::Dp => Some(Axis::Edp),
        _ => None,
    }
}

/// Formats an order: `tp.cp.dp.pp`.
fn order_name(order: &[Axis]) -> String {
    order.iter().map(|axis| axis.name()).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests;
