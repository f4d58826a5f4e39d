//! Whole matrices on one rank each, their home: ranks send it their parts, and it sends back what they keep.
//!
//! ```text
//! matrices of n elements on r ranks
//! n/r on each        all-to-all to the homes and back: 2·(r − 1)/r·n/r of a rank
//! all n on each      only back: (r − 1)/r·n of a rank
//! ```
//! Homes follow from the shapes and the order of the matrices, so all ranks know them: the largest first,
//! each to the rank with the least work so far. Replicas share the work, too.
//!
//! Source: Liu et al., "Muon is scalable for LLM training", §2.3, arXiv:2502.16982, which gathers instead.
//! The neighbour to compare with: `duplicated.rs`.
use crate::Result;
use crate::optimizer::rule::{Change, Direction};
use crate::param::matrices::{RankShares, group_of};
use crate::param::placement::CutRectangle;
use crate::param::placement::matrices::ParamMatrix;
use comm::{Group, Mesh};
use kernels::Kernels;
use std::cmp::Reverse;
use tensor::{Category, Device, Strided, Tensor};

/// Changes the directions of parameters.
///
/// # Errors
/// If ranks do not meet.
pub(super) fn change<D: Kernels>(
    directions: &mut [Direction<D>],
    mesh: &Mesh<D::Place>,
    change: &Change<D>,
) -> Result<()> {
    let mut left: Vec<_> = directions.iter_mut().collect();
    while let Some((param, _)) = left.first() {
        let axes = param.kept_over();
        let group = group_of(param, mesh)?;
        let (mut same, others) =
            left.into_iter().partition::<Vec<_>, _>(|(param, _)| param.kept_over() == axes);
        Exchange::new(&same, mesh, &group).run(&mut same, &group, change)?;
        left = others;
    }
    Ok(())
}

/// A matrix: the index of its parameter, and its home.
struct HomedMatrix {
    param: usize,
    matrix: ParamMatrix,
    home: usize,
}

/// The matrices of parameters that the same ranks keep.
struct Exchange {
    shares: Vec<RankShares>, // of each parameter
    matrices: Vec<HomedMatrix>,
}

impl Exchange {
    fn new<D: Kernels>(
        directions: &[&mut Direction<D>],
        mesh: &Mesh<D::Place>,
        group: &Group<D::Place>,
    ) -> Self {
        let shares = directions.iter().map(|(param, _)| param.shares(mesh, group)).collect();
        let mut matrices = Vec::new();
        for (param, (of, _)) in directions.iter().enumerate() {
            matrices.extend(of.matrices().into_iter().map(|matrix| HomedMatrix { param, matrix, home: 0 }));
        }
        let (mut order, mut loads): (Vec<_>, _) = (matrices.iter_mut().collect(), vec![0; group.size()]);
        order.sort_by_key(|of| Reverse(of.matrix.work()));
        for of in order {
            of.home = (0..loads.len()).min_by_key(|rank| loads[*rank]).expect("a rank");
            loads[of.home] += of.matrix.work();
        }
        Self { shares, matrices }
    }
    /// Returns the matrices whose home is a rank, in their order, each with the shares of its parameter.
    fn at(&self, home: usize) -> impl Iterator<Item = (&HomedMatrix, &RankShares)> {
        self.matrices.iter().filter(move |of| of.home == home).map(|of| (of, &self.shares[of.param]))
    }
    /// Number of elements that a rank sends to a home and, if `back`, that the home returns.
    fn count(&self, rank: usize, home: usize, back: bool) -> usize {
        let len = |(part, _): (CutRectangle, _)| part.len();
        let elements = |(of, shares): (&HomedMatrix, &RankShares)| -> usize {
            if back {
                shares.parts(rank, &of.matrix).map(len).sum()
            } else {
                shares.sent(rank, home, &of.matrix).map(len).sum()
            }
        };
        if rank == home { 0 } else { self.at(home).map(elements).sum() }
    }
    fn run<D: Kernels>(
        &self,
        directions: &mut [&mut Direction<D>],
        group: &Group<D::Place>,
        change: &Change<D>,
    ) -> Result<()> {
        let (here, ranks, device) = (group.rank(), group.size(), directions[0].0.device().wide().clone());
        let to = |back| (0..ranks).map(|home| self.count(here, home, back)).collect::<Vec<_>>();
        let from = |back| (0..ranks).map(|rank| self.count(rank, here, back)).collect::<Vec<_>>();
        let [give, take_back] = [false, true].map(to);
        let [take, give_back] = [false, true].map(from);
        let list = |counts: &[usize]| Tensor::empty(&device, Category::Buffers, counts.iter().sum(), 1);
        let mut sent = list(&give);
        let mut at = 0;
        for home in (0..ranks).filter(|home| *home != here) {
            for (of, shares) in self.at(home) {
                for (part, _) in shares.sent(here, home, &of.matrix) {
                    let direction = part.of(directions[of.param].1.view());
                    device.copy(next(sent.view_mut(), &mut at, part.shape), direction);
                }
            }
        }
        let arrived = group.all_to_all_v(&sent, &give, &take)?;
        drop(sent);
        let mut returned = list(&give_back);
        let [mut arrived_at, mut returned_at] = [starts(&take), starts(&give_back)];
        for (of, shares) in self.at(here) {
            let [rows, cols] = of.matrix.shape;
            let (param, direction) = &mut *directions[of.param];
            let mut whole = Tensor::empty(&device, Category::Buffers, rows, cols);
            for (rank, at) in arrived_at.iter_mut().enumerate() {
                for (part, place) in shares.sent(rank, here, &of.matrix) {
                    let local = rank == here;
                    let x =
                        if local { part.of(direction.view()) } else { next(arrived.view(), at, part.shape) };
                    device.copy(part.at(place, whole.view_mut()), x);
                }
            }
            change(param, &of.matrix, &mut whole);
            for (rank, at) in returned_at.iter_mut().enumerate() {
                for (part, place) in shares.parts(rank, &of.matrix) {
                    let x = if rank == here {
                        part.of(direction.view_mut())
                    } else {
                        next(returned.view_mut(), at, part.shape)
                    };
                    device.copy(x, part.at(place, whole.view()));
                }
            }
        }
        drop(arrived);
        let arrived = group.all_to_all_v(&returned, &give_back, &take_back)?;
        let mut at = 0;
        for home in (0..ranks).filter(|home| *home != here) {
            for (of, shares) in self.at(home) {
                for (part, _) in shares.parts(here, &of.matrix) {
                    let x = next(arrived.view(), &mut at, part.shape);
                    device.copy(part.of(directions[of.param].1.view_mut()), x);
                }
            }
        }
        Ok(())
    }
}

/// Returns the next elements of a list `[N, 1]` as a matrix.
fn next<D: Device, B>(list: Strided<D, B>, at: &mut usize, [rows, cols]: [usize; 2]) -> Strided<D, B> {
    let from = *at;
    *at += rows * cols;
    list.take_rows(from, rows * cols).reshape(rows, cols)
}

/// Returns the index at which each count's elements begin.
fn starts(counts: &[usize]) -> Vec<usize> {
    let begin = |end: &mut usize, count: &usize| {
        *end += count;
        Some(*end - count)
    };
    counts.iter().scan(0, begin).collect()
}
