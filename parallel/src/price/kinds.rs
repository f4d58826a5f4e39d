//! Ranks by kind: of ranks that are alike, one is priced.
//!
//! Along an axis, ranks differ where sizes do not divide, or where the first or the last one has other work.
//! Uneven parts fall from rank to rank, and the ring in which traffic is counted turns at its end. So the
//! first rank, the middle one and the last three are priced, and where two neighbours differ, those between
//! them, by halving. An axis along which all are alike, at the first and at the last rank of the first and of
//! the last stage, is priced once; every stage is priced.
use crate::{Layout, Result};
use comm::Axis;
use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::iter::zip;
use std::rc::Rc;

/// Ranks that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct RankKind<T> {
    /// The first of them.
    pub first: usize,
    /// Number of them.
    pub ranks: usize,
    /// Price of each.
    pub price: T,
}

/// The most ranks that are all priced where they have experts for each other or are homes of matrices, which
/// differ along several axes at once.
const MOST_ALL: usize = 256;

/// Returns the kinds of a layout's ranks, in the order of their first ranks. Kinds with equal prices are one.
/// `homes`: true if an optimizer computes whole matrices on ranks of their own.
///
/// # Errors
/// The first error of `price`.
pub fn kinds<T: PartialEq + Clone>(
    (layout, homes): (&Layout, bool),
    price: impl Fn(usize) -> Result<T>,
) -> Result<Vec<RankKind<T>>> {
    let ranks = RankPrices { layout, price, known: RefCell::default() };
    let all = if (layout.shares_experts() || homes) && layout.ranks() <= MOST_ALL {
        (0..layout.ranks()).map(|rank| Ok((rank, 1, ranks.price(rank)?))).collect::<Result<Vec<_>>>()?
    } else {
        ranks.of_all_stages()?
    };
    let mut found: Vec<RankKind<T>> = Vec::new();
    for (first, ranks, price) in all {
        match found.iter_mut().find(|kind| kind.price == *price) {
            Some(kind) => (kind.first, kind.ranks) = (kind.first.min(first), kind.ranks + ranks),
            None => found.push(RankKind { first, ranks, price: T::clone(&price) }),
        }
    }
    found.sort_by_key(|kind| kind.first);
    Ok(found)
}

/// Coordinates of a rank.
type Coordinates = Vec<(Axis, usize)>;
/// The first of some ranks that are alike, their number, and their price.
type Alike<T> = (usize, usize, Rc<T>);

/// The ranks of a layout, each priced at most once.
struct RankPrices<'a, T, P> {
    layout: &'a Layout,
    price: P,
    known: RefCell<HashMap<usize, Rc<T>>>,
}

impl<T: PartialEq, P: Fn(usize) -> Result<T>> RankPrices<'_, T, P> {
    fn price(&self, rank: usize) -> Result<Rc<T>> {
        if let Some(known) = self.known.borrow().get(&rank) {
            return Ok(known.clone());
        }
        let price = Rc::new((self.price)(rank)?);
        Ok(self.known.borrow_mut().entry(rank).or_insert(price).clone())
    }
    fn of_all_stages(&self) -> Result<Vec<Alike<T>>> {
        let inner: Vec<Axis> = Axis::DENSE.into_iter().filter(|axis| *axis != Axis::Pp).collect();
        let last = |axis: &Axis| (*axis, self.layout.size(*axis) - 1);
        let corners =
            [inner.iter().map(|axis| (*axis, 0)).collect::<Coordinates>(), inner.iter().map(last).collect()];
        let stages = self.layout.size(Axis::Pp);
        let is_uneven = |axis: &&Axis| -> Result<bool> {
            for (stage, corner) in
                [0, stages - 1].into_iter().flat_map(|stage| corners.iter().map(move |c| (stage, c)))
            {
                let mut place = [&corner[..], &[(Axis::Pp, stage)]].concat();
                place.retain(|(other, _)| other != *axis);
                let along = classes(self.layout.size(**axis), |i| {
                    self.price(self.layout.rank_at(&[&place[..], &[(**axis, i)]].concat()))
                })?;
                if along.len() > 1 {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let mut uneven = Vec::new();
        for axis in &inner {
            if is_uneven(&axis)? {
                uneven.push(*axis);
            }
        }
        let others: usize =
            inner.iter().filter(|axis| !uneven.contains(axis)).map(|axis| self.layout.size(*axis)).product();
        let mut kinds = Vec::new();
        for stage in 0..stages {
            let of_stage = self.along(&uneven, &vec![(Axis::Pp, stage)])?.0;
            kinds.extend(of_stage.into_iter().map(|(first, ranks, price)| (first, ranks * others, price)));
        }
        Ok(kinds)
    }
    /// Returns the kinds of the ranks that differ from a place along these axes.
    fn along(&self, axes: &[Axis], place: &Coordinates) -> Result<Kinds<T>> {
        let Some((&axis, rest)) = axes.split_first() else {
            let rank = self.layout.rank_at(place);
            return Ok(Kinds(vec![(rank, 1, self.price(rank)?)]));
        };
        let at = |i: usize| self.along(rest, &[&place[..], &[(axis, i)]].concat());
        let mut kinds = Vec::new();
        for (first, number) in classes(self.layout.size(axis), at)? {
            kinds.extend(at(first)?.0.into_iter().map(|(rank, ranks, price)| (rank, ranks * number, price)));
        }
        Ok(Kinds(kinds))
    }
}

/// Kinds of some ranks; equal to other ranks' kinds if numbers and prices are.
struct Kinds<T>(Vec<Alike<T>>);

impl<T: PartialEq> PartialEq for Kinds<T> {
    fn eq(&self, other: &Self) -> bool {
        let same = |((_, n, x), (_, m, y)): (&Alike<T>, &Alike<T>)| n == m && x == y;
        self.0.len() == other.0.len() && zip(&self.0, &other.0).all(same)
    }
}

/// Returns the first index and the number of each class of `0..n`.
fn classes<T: PartialEq>(n: usize, of: impl Fn(usize) -> Result<T>) -> Result<Vec<(usize, usize)>> {
    let mut seen: BTreeMap<usize, T> = BTreeMap::new();
    let mut open = vec![0, n / 2, n.saturating_sub(3), n.saturating_sub(2), n - 1];
    while !open.is_empty() {
        for i in open {
            if let Entry::Vacant(new) = seen.entry(i) {
                new.insert(of(i)?);
            }
        }
        let apart = zip(&seen, seen.iter().skip(1)).filter(|((a, x), (b, y))| *b - *a > 1 && x != y);
        open = apart.map(|((a, _), (b, _))| (a + b) / 2).collect();
    }
    // indices between two that are equal are like them
    let (mut found, mut from): (Vec<(usize, usize)>, usize) = (Vec::new(), 0);
    for ((_, value), end) in zip(&seen, seen.keys().skip(1).copied().chain([n]).collect::<Vec<_>>()) {
        match found.iter_mut().find(|(first, _)| seen[first] == *value) {
            Some((_, ranks)) => *ranks += end - from,
            None => found.push((from, end - from)),
        }
        from = end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::covering;
    use crate::{Batch, BuildContext, Sequence, Trainer, session};
    use comm::Ledger;
    use kernels::{Heads, Meta};
    use layers::{Experts, Shape};
    use ops::ADAMW;
    use tensor::{Cpu, Device, Peaks};

    /// Kills: a class beyond the first one forgotten, a boundary one index off, an index counted twice.
    #[test]
    fn classes_are_found_where_uneven_parts_change() {
        for n in 1..40usize {
            for larger in 0..n {
                let chunk = |i: usize| usize::from(i % n < larger);
                // the bytes of a ring, those of a scatter, and a first rank that has more
                for of in [
                    |i: usize, chunk: &dyn Fn(usize) -> usize| chunk(i + 1) + chunk(i + 2),
                    |i: usize, chunk: &dyn Fn(usize) -> usize| chunk(i),
                    |i: usize, chunk: &dyn Fn(usize) -> usize| chunk(i) + 5 * usize::from(i == 0),
                ] {
                    let mut wanted: BTreeMap<usize, usize> = BTreeMap::new();
                    (0..n).for_each(|i| *wanted.entry(of(i, &chunk)).or_default() += 1);
                    let found = classes(n, |i| Ok(of(i, &chunk))).unwrap();
                    let found: BTreeMap<_, _> = found.iter().map(|(i, n)| (of(*i, &chunk), *n)).collect();
                    assert_eq!(found, wanted, "{larger} of {n}");
                }
            }
        }
    }

    const SHAPE: Shape = Shape {
        width: 8,
        blocks: 4,
        heads: Heads::new(8, 2, 2),
        hidden: 24,
        vocabulary: 29, // divided by no number of ranks
        ..Shape::LLAMA
    };

    type Cost = (Peaks, Ledger, u64, usize);

    fn cost(layout: &Layout, shape: &Shape, batch: &Batch, rank: usize) -> Result<Cost> {
        session::ghost::<Cpu<f32>, _>(layout, (rank, None), |at: BuildContext<Meta<f32>>| {
            let mut trainer = Trainer::new(&at, shape, (ADAMW, at.pipeline.clip(Some(1.0))))?;
            trainer.step(batch, 0.0)?;
            let meter = at.device.meter();
            Ok((meter.peaks_of_all(), at.mesh.ledger(), meter.flops(), meter.away()))
        })
    }

    /// Kinds of ranks say what pricing every rank says: under all pairs of strategies, and with uneven parts
    /// on up to 64 ranks. Kills: a kind that hides a fuller rank, ranks that are counted twice or not at all,
    /// a rank of another stage, kinds with equal prices as two.
    #[test]
    fn kinds_equal_all_ranks() {
        let experts = Experts { count: 8, chosen: 2, hidden: 8, ..Experts::MIXTRAL };
        let more = [
            "dp=16,tp=4",
            "pp=2,dp=5,cp=3",
            "dp=7:zero3,tp=8",
            "cp=6:contiguous,dp=3:zero1",
            "dp=6:classic",
            "tp=2,cp=4:ulysses/2,dp=2,order=dp.cp.tp",
            "dp=64:zero2",
            "dp=13",
        ];
        let more = more.iter().map(|layout| layout.parse().unwrap());
        let mut hidden = 0;
        for layout in covering::covering(8).into_iter().chain(more) {
            let layout: Layout = layout;
            let shape = Shape { experts: layout.shares_experts().then_some(experts), ..SHAPE };
            if layout.fits(shape).is_err() {
                continue;
            }
            let microbatches = 2 * layout.size(Axis::Pp) + 1;
            let sequences = microbatches * layout.size(Axis::Dp) + 1; // uneven
            let batch =
                Batch::new(vec![Sequence::new(vec![1; 26], vec![2; 26]); sequences], microbatches).unwrap();
            let found = kinds((&layout, false), |rank| cost(&layout, &shape, &batch, rank)).unwrap();
            assert_eq!(found.iter().map(|kind| kind.ranks).sum::<usize>(), layout.ranks(), "{layout}");
            let mut all: Vec<RankKind<Cost>> = Vec::new();
            for rank in 0..layout.ranks() {
                let price = cost(&layout, &shape, &batch, rank).unwrap();
                match all.iter_mut().find(|kind| kind.price == price) {
                    Some(kind) => kind.ranks += 1,
                    None => all.push(RankKind { first: rank, ranks: 1, price }),
                }
            }
            assert!(found == all, "{layout}: {} kinds, but {}", found.len(), all.len());
            hidden += layout.ranks() - found.len();
        }
        assert!(hidden > 100, "{hidden} ranks are like others");
    }
}
