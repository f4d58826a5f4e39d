//! Routing: the experts of the `k` copies of every token of a rank, as a list. Only this list leaves the
//! router's device; on the meta device it is a stated one.
use comm::{Axes, Axis, Group, Mesh};
use kernels::{Kernels, RouterTerms};
use layers::ops::Region;
use layers::{Experts, PassContext, Result, Scoring};
use std::ops::Range;
use tensor::{Device, Index, Place, Scalar, Tensor};

/// Takes the place of an expert if the copy was dropped.
pub const DROPPED: u32 = u32::MAX;

/// Returns the parameters of a router's kernels.
pub(crate) fn terms(experts: &Experts) -> RouterTerms {
    RouterTerms {
        chosen: experts.copies(),
        sigmoid: experts.scoring == Scoring::Sigmoid,
        normalize: experts.normalize,
        scale: experts.scale,
        groups: experts.groups.map(|groups| [groups.count, groups.chosen]),
    }
}

/// The experts of tokens, `k` each, token after token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// The expert of each copy, or [`DROPPED`].
    pub list: Vec<u32>,
    /// `k`.
    pub chosen: usize,
}

impl Routing {
    /// States the routing of all tokens of a microbatch: token `t` goes to the experts `t·k`, `t·k + 1`, …,
    /// modulo the number of experts. If experts choose, expert `e` takes `C` tokens from `e·C` on, modulo the
    /// number of tokens.
    ///
    /// With `shares`, each expert has copies in proportion to its share: of all copies, sorted by expert,
    /// token `t` has the `σ(t)`-th of each `B`. An expert's share is at most a k-th of the copies. `σ` goes
    /// through the tokens in strides, so that the tokens of every rank go to all experts.
    pub(crate) fn stated(experts: &Experts, shares: Option<&[usize]>, tokens: usize) -> Self {
        let (k, all) = (experts.copies(), experts.count);
        if let (true, Some(most)) = (experts.by_experts, experts.capacity_of(tokens)) {
            let takes = |t: usize, e: usize| (t + tokens - e * most % tokens) % tokens < most;
            return Self::of_each(0..tokens, all, takes);
        }
        let sum = |sum: &mut u128, share: &usize| {
            *sum += *share as u128;
            Some(*sum)
        };
        let ends: Vec<u128> = shares.unwrap_or_default().iter().scan(0, sum).collect();
        let of = ends.last().copied().unwrap_or(0);
        let stride = if of == 0 { 0 } else { stride(tokens) };
        let expert = |copy: usize| {
            let place = copy / k * stride % tokens + copy % k * tokens;
            ends.partition_point(|end| end * (k * tokens) as u128 <= place as u128 * of)
        };
        let list = (0..tokens * k).map(|copy| if of == 0 { copy % all } else { expert(copy) } as u32);
        Self { list: list.collect(), chosen: k }
    }
    /// Returns the routing of these tokens alone.
    pub(crate) fn part(&self, tokens: &[Range<usize>]) -> Self {
        let run = |run: &Range<usize>| &self.list[run.start * self.chosen..run.end * self.chosen];
        Self { list: tokens.iter().flat_map(run).copied().collect(), ..*self }
    }
    /// Routes a copy of each token to each expert; drops it if `takes(token, expert)` is false.
    fn of_each(
        tokens: impl Iterator<Item = usize>,
        experts: usize,
        takes: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let of = |t: usize| (0..experts).map(move |e| (t, e));
        let list = tokens.flat_map(of).map(|(t, e)| if takes(t, e) { e as u32 } else { DROPPED }).collect();
        Self { list, chosen: experts }
    }
    /// Returns the experts' choice for a microbatch, from the scores `P` of all ranks, in rank order: each
    /// expert takes the tokens with the highest scores; of two equal ones, the lower token number. `None` on
    /// the meta device.
    pub(crate) fn by_experts<D: Kernels, W: Device<Place = D::Place>>(
        mesh: &Mesh<D::Place>,
        experts: &Experts,
        (p, cx): (&Tensor<W>, &PassContext<D>),
    ) -> Result<Option<Self>> {
        let (group, all) = (mesh.over(Axes::TOKENS | Axis::Tp)?.named("scores of tokens"), experts.count);
        let rows = group.all_gather_values(&[p.rows()])?.concat();
        let Some(p_of_all) = group.all_gather_v(p, &rows)?.read() else { return Ok(None) };
        let mut numbers = numbers((mesh, &group), cx, &rows);
        let mut tokens: Vec<_> = numbers.iter().flatten().cloned().flatten().zip(0..).collect();
        tokens.sort_unstable();
        let tokens: Vec<usize> = tokens.into_iter().map(|(_, row)| row).collect();
        let most = experts.capacity_of(tokens.len()).unwrap_or(tokens.len());
        let mut taken = vec![false; tokens.len() * all];
        for e in 0..all {
            let score = |t: usize| p_of_all[tokens[t] * all + e];
            let mut order: Vec<usize> = (0..tokens.len()).collect();
            order.sort_by(|&a, &b| score(b).order(score(a)).then(a.cmp(&b)));
            order[..most].iter().for_each(|t| taken[t * all + e] = true);
        }
        let own = numbers.swap_remove(group.rank()).into_iter().flatten();
        Ok(Some(Self::of_each(own, all, |t, e| taken[t * all + e])))
    }
    /// Returns the number of copies of each expert.
    #[must_use]
    pub fn counts(&self, experts: usize) -> Vec<usize> {
        tally(experts, self.list.iter().filter(|&&e| e != DROPPED).map(|&e| e as usize))
    }
    /// Concatenates these routings, in this order.
    pub(crate) fn together(all: &[Self]) -> Self {
        Self { list: all.iter().flat_map(|of| &of.list).copied().collect(), chosen: all[0].chosen }
    }
    /// Drops, for each expert, all copies but the first `most`. Each run of the tokens has its length, and
    /// the number of copies that each expert has from the tokens before the run.
    pub fn drop_beyond(&mut self, most: usize, runs: impl IntoIterator<Item = (usize, Vec<usize>)>) {
        let mut list = self.list.iter_mut();
        for (tokens, mut before) in runs {
            for expert in list.by_ref().take(tokens * self.chosen) {
                let taken = &mut before[*expert as usize];
                *taken += 1;
                if *taken > most {
                    *expert = DROPPED;
                }
            }
        }
    }
}

/// Counts how often each number below `n` occurs.
pub(crate) fn tally(n: usize, of: impl Iterator<Item = usize>) -> Vec<usize> {
    of.fold(vec![0; n], |mut counts, i| {
        counts[i] += 1;
        counts
    })
}

/// Returns a number near 0.618·`n` that has no divisor in common with `n`.
fn stride(n: usize) -> usize {
    let coprime = |a: &usize| (2..=*a).all(|d| !(a.is_multiple_of(d) && n.is_multiple_of(d)));
    (n * 618 / 1000..=n + 1).find(coprime).expect("n + 1 at the latest")
}

/// Coordinates of a rank: along the axes that deal tokens, then along the tensor axis, which cuts them.
fn place<P: Place>(mesh: &Mesh<P>, rank: usize) -> Vec<usize> {
    let axes = Axes::TOKENS.iter().chain([Axis::Tp]);
    axes.map(|axis| mesh.coordinate(axis, rank)).collect()
}

/// Numbers of a rank's tokens in the microbatch, in runs of consecutive ones.
pub(crate) type RowRuns = Vec<Range<usize>>;

/// Returns the token numbers of each rank's rows, rank by rank of a group over the axes of tokens and of
/// layers: as the context has them, else consecutive ones in the order of coordinates, where `rows` are the
/// ranks' numbers of rows.
pub(crate) fn numbers<D: Kernels>(
    (mesh, group): (&Mesh<D::Place>, &Group<D::Place>),
    cx: &PassContext<D>,
    rows: &[usize],
) -> Vec<RowRuns> {
    let reported = cx.numbers_of_ranks();
    if !reported.is_empty() {
        let all = TokenNumbers(reported);
        return group.ranks().map(|rank| all.of_rank(mesh, rank)).collect();
    }
    let mut order: Vec<_> = group.ranks().map(|rank| place(mesh, rank)).zip(0..rows.len()).collect();
    order.sort();
    let (mut all, mut first) = (vec![RowRuns::new(); rows.len()], 0);
    for (_, i) in order {
        all[i].push(first..first + rows[i]);
        first += rows[i];
    }
    all
}

/// Numbers of all tokens of a microbatch, by the coordinates of the rank that they are dealt to.
pub(crate) struct TokenNumbers(Vec<RowRuns>);

impl TokenNumbers {
    /// Takes the numbers of the context. If it has none, gathers each rank's number of rows.
    pub(crate) fn of<D: Kernels>(mesh: &Mesh<D::Place>, cx: &PassContext<D>) -> Result<Self> {
        let reported = cx.numbers_of_ranks();
        if !reported.is_empty() {
            return Ok(Self(reported));
        }
        let dealers = mesh.over(Axes::TOKENS)?.named("tokens of a microbatch");
        let rows = dealers.all_gather_values(&[cx.rows()])?.concat();
        let mut order: Vec<_> = dealers.ranks().map(|rank| place(mesh, rank)).zip(rows).collect();
        order.sort();
        Ok(Self::consecutive(order.into_iter().map(|(_, rows)| rows)))
    }
    /// Takes the numbers of the context. If it has none, assumes that every rank has as many rows as this
    /// one.
    pub(crate) fn stated<D: Kernels>(mesh: &Mesh<D::Place>, cx: &PassContext<D>) -> Self {
        let reported = cx.numbers_of_ranks();
        if !reported.is_empty() {
            return Self(reported);
        }
        let dealers = Axes::TOKENS.iter().map(|axis| mesh.group(axis).size()).product();
        Self::consecutive(std::iter::repeat_n(cx.rows(), dealers))
    }
    fn consecutive(rows: impl Iterator<Item = usize>) -> Self {
        let run = |first: &mut usize, rows| {
            *first += rows;
            Some(std::iter::once(*first - rows..*first).collect())
        };
        Self(rows.scan(0, run).collect())
    }
    /// Number of all tokens.
    pub(crate) fn all(&self) -> usize {
        self.0.iter().flatten().map(Range::len).sum()
    }
    /// Returns the numbers of one rank's tokens: its part of the rows that tensor ranks replicate.
    pub(crate) fn of_rank<P: Place>(&self, mesh: &Mesh<P>, rank: usize) -> RowRuns {
        let dealer = Axes::TOKENS
            .iter()
            .fold(0, |place, axis| place * mesh.group(axis).size() + mesh.coordinate(axis, rank));
        let ranks = mesh.group(Axis::Tp).size();
        let at = Region::Tokens { axis: Axis::Tp.into(), rank: mesh.coordinate(Axis::Tp, rank), ranks };
        let runs = &self.0[dealer];
        let mine = at.mine(runs.iter().map(Range::len).sum());
        let cut = |row: &mut usize, run: &Range<usize>| {
            let rows = mine.start.clamp(*row, *row + run.len())..mine.end.clamp(*row, *row + run.len());
            let of = run.start + rows.start - *row..run.start + rows.end - *row;
            *row += run.len();
            Some(of)
        };
        runs.iter().scan(0, cut).filter(|run| !run.is_empty()).collect()
    }
}

/// Gathers the routings of all ranks along the ep and etp axes, `[ep][etp]`. With `stated`, a routing of all
/// tokens, each is the rank's part of it.
pub(crate) fn of_all<D: Kernels>(
    mesh: &Mesh<D::Place>,
    own: &Routing,
    (stated, cx): (Option<&Routing>, &PassContext<D>),
) -> Result<Vec<Vec<Routing>>> {
    let group = mesh.over(Axis::Ep | Axis::Etp)?.named("experts of tokens");
    let lists = group.all_gather_values(&own.list)?;
    let [ep, etp] = [Axis::Ep, Axis::Etp].map(|axis| mesh.group(axis).size());
    let mut all = vec![vec![Routing { list: vec![], chosen: own.chosen }; etp]; ep];
    for (rank, list) in group.ranks().zip(lists) {
        let [ep, etp] = [Axis::Ep, Axis::Etp].map(|axis| mesh.coordinate(axis, rank));
        all[ep][etp] = match stated {
            Some(of_all) => of_all.part(&TokenNumbers::stated(mesh, cx).of_rank(mesh, rank)),
            None => Routing { list, chosen: own.chosen },
        };
    }
    Ok(all)
}

/// Returns the router's choice, if it can be read.
pub(crate) fn read<P: Place>(chosen: &Index<P>, k: usize) -> Option<Routing> {
    let mut list = Vec::new();
    chosen.read_into(&mut list).then_some(Routing { list, chosen: k })
}
