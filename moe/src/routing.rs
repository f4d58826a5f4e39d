//! Routing: the experts of the `k` copies of every token of a rank, as a list. Only this list leaves the
//! router's device. On the meta device it is stated: by a rule where there is one, since all that is asked of
//! it are numbers of copies.
use comm::{Axes, Axis, Group, Mesh};
use kernels::{Kernels, RouterTerms};
use layers::{Experts, Scoring};
use ops::{Error, PassContext, Region, Result};
use std::ops::Range;
use std::rc::Rc;
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
    copies: CopyExperts,
    /// `k`.
    pub chosen: usize,
}

/// The experts of copies.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyExperts {
    /// The expert of each copy, or [`DROPPED`].
    Listed(Vec<u32>),
    /// The experts of these tokens of a microbatch, by their numbers: its copies go to the experts in turn.
    /// An expert takes the first `most` of all its copies.
    InTurn { tokens: RowRuns, experts: usize, most: usize },
}

impl From<(Vec<u32>, usize)> for Routing {
    /// Lists the expert of each copy, or [`DROPPED`], of which each token has the given number.
    fn from((list, chosen): (Vec<u32>, usize)) -> Self {
        Self { copies: CopyExperts::Listed(list), chosen }
    }
}

impl Routing {
    /// States the routing of all tokens of a microbatch: token `t` goes to the experts `t·k`, `t·k + 1`, …,
    /// modulo the number of experts, which is a rule. If experts choose, expert `e` takes `C` tokens from
    /// `e·C` on, modulo the number of tokens.
    ///
    /// With `shares`, each expert has copies in proportion to its share: of all copies, sorted by expert,
    /// token `t` has the `σ(t)`-th of each `B`. An expert's share is at most a k-th of the copies. `σ` goes
    /// through the tokens in strides, so that the tokens of every rank go to all experts.
    pub(crate) fn stated(experts: &Experts, shares: Option<&[usize]>, tokens: usize) -> Self {
        let k = experts.copies();
        let count = experts.count;
        if let (true, Some(most)) = (experts.by_experts, experts.capacity_of(tokens)) {
            let takes = |t: usize, e: usize| (t + tokens - e * most % tokens) % tokens < most;
            return Self::of_each(0..tokens, count, takes);
        }
        let sum = |sum: &mut u128, share: &usize| {
            *sum += *share as u128;
            Some(*sum)
        };
        let ends: Vec<u128> = shares.unwrap_or_default().iter().scan(0, sum).collect();
        let total = ends.last().copied().unwrap_or(0);
        if total == 0 {
            let tokens = std::iter::once(0..tokens).collect();
            return Self {
                copies: CopyExperts::InTurn { tokens, experts: count, most: usize::MAX },
                chosen: k,
            };
        }
        let stride = stride(tokens);
        let expert = |copy: usize| {
            let place = copy / k * stride % tokens + copy % k * tokens;
            ends.partition_point(|end| end * (k * tokens) as u128 <= place as u128 * total)
        };
        Self::from(((0..tokens * k).map(|copy| expert(copy) as u32).collect(), k))
    }
    /// Returns the number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        match &self.copies {
            CopyExperts::Listed(list) => list.len() / self.chosen,
            CopyExperts::InTurn { tokens, .. } => tokens.iter().map(Range::len).sum(),
        }
    }
    /// Returns the number of copies, dropped ones included.
    pub(crate) fn len(&self) -> usize {
        self.tokens() * self.chosen
    }
    /// Returns the expert of each copy, or [`DROPPED`]; `None` if they are stated by a rule.
    pub fn list(&self) -> Option<&[u32]> {
        match &self.copies {
            CopyExperts::Listed(list) => Some(list),
            CopyExperts::InTurn { .. } => None,
        }
    }
    /// Returns the expert of each copy before any is dropped by a rule.
    pub(crate) fn experts(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match &self.copies {
            CopyExperts::Listed(list) => Box::new(list.iter().copied()),
            CopyExperts::InTurn { tokens, experts, .. } => {
                let copies = move |run: &Range<usize>| run.start * self.chosen..run.end * self.chosen;
                Box::new(tokens.iter().flat_map(copies).map(move |copy| (copy % *experts) as u32))
            }
        }
    }
    /// Returns the routing of these tokens alone.
    pub(crate) fn part(&self, tokens: &[Range<usize>]) -> Self {
        let copies = match &self.copies {
            CopyExperts::Listed(list) => {
                let run = |run: &Range<usize>| &list[run.start * self.chosen..run.end * self.chosen];
                CopyExperts::Listed(tokens.iter().flat_map(run).copied().collect())
            }
            CopyExperts::InTurn { tokens: all, experts, most } => {
                let parts = tokens.iter().flat_map(|part| cut(all, part));
                CopyExperts::InTurn { tokens: parts.collect(), experts: *experts, most: *most }
            }
        };
        Self { copies, ..*self }
    }
    /// Routes a copy of each token to each expert; drops it if `takes(token, expert)` is false.
    fn of_each(
        tokens: impl Iterator<Item = usize>,
        experts: usize,
        takes: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let of = |t: usize| (0..experts).map(move |e| (t, e));
        let list = tokens.flat_map(of).map(|(t, e)| if takes(t, e) { e as u32 } else { DROPPED }).collect();
        Self::from((list, experts))
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
        let local = numbers.swap_remove(group.rank()).into_iter().flatten();
        Ok(Some(Self::of_each(local, all, |t, e| taken[t * all + e])))
    }
    /// Returns the number of copies that each expert takes.
    #[must_use]
    pub fn counts(&self, experts: usize) -> Vec<usize> {
        match &self.copies {
            CopyExperts::Listed(list) => {
                tally(experts, list.iter().filter(|&&e| e != DROPPED).map(|&e| e as usize))
            }
            CopyExperts::InTurn { tokens, experts: all, most } => {
                // of the first n copies, expert e has those with the numbers e, e + E, e + 2E, …
                let first = |n: usize, e: usize| (n * self.chosen + all).saturating_sub(1 + e) / all;
                let count = |e: usize| {
                    let of_run =
                        |run: &Range<usize>| first(run.end, e).min(*most) - first(run.start, e).min(*most);
                    tokens.iter().map(of_run).sum()
                };
                (0..experts).map(|e| if e < *all { count(e) } else { 0 }).collect()
            }
        }
    }
    /// Concatenates these routings, in this order: all are lists, or all follow one rule.
    pub(crate) fn together(all: &[Self]) -> Self {
        let mut both = all[0].clone();
        for more in &all[1..] {
            match (&mut both.copies, &more.copies) {
                (CopyExperts::Listed(list), CopyExperts::Listed(more)) => list.extend(more),
                (CopyExperts::InTurn { tokens, .. }, CopyExperts::InTurn { tokens: more, .. }) => {
                    tokens.extend(more.iter().cloned());
                }
                _ => unreachable!("all ranks state their routing, or none does"),
            }
        }
        both
    }
    /// Drops, for each expert, all copies but the first `most`. Each run of the tokens has its length, and
    /// the number of copies that each expert has from the tokens before the run. A rule knows these.
    pub fn drop_beyond(&mut self, limit: usize, runs: impl IntoIterator<Item = (usize, Vec<usize>)>) {
        let list = match &mut self.copies {
            CopyExperts::Listed(list) => list,
            CopyExperts::InTurn { most, .. } => {
                *most = limit;
                return;
            }
        };
        let mut list = list.iter_mut();
        for (tokens, mut before) in runs {
            for expert in list.by_ref().take(tokens * self.chosen) {
                let taken = &mut before[*expert as usize];
                *taken += 1;
                if *taken > limit {
                    *expert = DROPPED;
                }
            }
        }
    }
}

/// Returns the token numbers of a range of the tokens that have these numbers.
fn cut(all: &[Range<usize>], rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let of = |row: &mut usize, run: &Range<usize>| {
        let part = rows.start.clamp(*row, *row + run.len())..rows.end.clamp(*row, *row + run.len());
        let within = run.start + part.start - *row..run.start + part.end - *row;
        *row += run.len();
        Some(within)
    };
    all.iter().scan(0, of).filter(|run| !run.is_empty())
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
    Axes::TOKENS.iter().chain([Axis::Tp]).map(|axis| mesh.coordinate(axis, rank)).collect()
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
        let numbers = TokenNumbers(reported);
        return group.ranks().map(|rank| numbers.of_rank(mesh, rank)).collect();
    }
    let mut order: Vec<_> = group.ranks().map(|rank| place(mesh, rank)).zip(0..rows.len()).collect();
    order.sort();
    let (mut runs, mut first) = (vec![RowRuns::new(); rows.len()], 0);
    for (_, i) in order {
        runs[i].push(first..first + rows[i]);
        first += rows[i];
    }
    runs
}

/// Numbers of all tokens of a microbatch, by the coordinates of the rank that they are dealt to.
pub(crate) struct TokenNumbers(Rc<Vec<RowRuns>>);

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
        Self(Rc::new(rows.scan(0, run).collect()))
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
        let region = Region::Tokens { axis: Axis::Tp.into(), rank: mesh.coordinate(Axis::Tp, rank), ranks };
        let runs = &self.0[dealer];
        cut(runs, &region.mine(runs.iter().map(Range::len).sum())).collect()
    }
}

/// Gathers the routings of all ranks along the ep and etp axes, `[ep][etp]`. With `stated`, a routing of all
/// tokens and their numbers, each is the rank's part of it.
pub(crate) fn of_all<P: Place>(
    mesh: &Mesh<P>,
    own: &Routing,
    stated: Option<&(Routing, TokenNumbers)>,
) -> Result<Vec<Vec<Routing>>> {
    let group = mesh.over(Axis::Ep | Axis::Etp)?.named("experts of tokens");
    let lists = match own.list() {
        Some(list) => group.all_gather_values(list)?,
        None => group.all_gather_unseen::<u32>(own.len())?,
    };
    let [ep, etp] = [Axis::Ep, Axis::Etp].map(|axis| mesh.group(axis).size());
    let mut routings = vec![vec![own.part(&[]); etp]; ep];
    for (rank, list) in group.ranks().zip(lists) {
        let [ep, etp] = [Axis::Ep, Axis::Etp].map(|axis| mesh.coordinate(axis, rank));
        routings[ep][etp] = match stated {
            Some((of_all, numbers)) => of_all.part(&numbers.of_rank(mesh, rank)),
            None => Routing::from((list, own.chosen)),
        };
    }
    Ok(routings)
}

/// Returns the router's choice, if it can be read.
pub(crate) fn read<P: Place>(chosen: &Index<P>, k: usize) -> Option<Routing> {
    let mut list = Vec::new();
    chosen.read_into(&mut list).then(|| Routing::from((list, k)))
}

/// Validates the settings of experts.
pub(crate) fn fits(experts: &Experts, bias: bool) -> Result<()> {
    let Experts { count, chosen, .. } = *experts;
    if !(1..=count).contains(&chosen) {
        return Err(Error::size(
            "the number of experts of a token",
            chosen,
            format!("1 to {count}, the number of experts"),
        ));
    }
    if let Some(why) = experts.expert_choice_conflict() {
        return Err(Error::Cannot(format!("experts that choose tokens {why}")));
    }
    if bias {
        return Err(Error::Cannot("experts have no biases, but the feed-forward of this model has".into()));
    }
    Ok(())
}
