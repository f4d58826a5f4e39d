//! Who is handed to whom: for every token of a rank the experts of its `k` copies, as a list. What leaves the device of a
//! router's work is this list alone; where there are no numbers, the list is a stated one.
use comm::{Axes, Axis, Group, Mesh};
use kernels::RouterTerms;
use layers::ops::Region;
use layers::{Experts, Result, Scoring};
use tensor::{Index, Place};

/// In place of an expert: the copy was dropped.
pub const NOBODY: u32 = u32::MAX;

/// What a router's kernels are told.
pub(crate) fn terms(experts: &Experts) -> RouterTerms {
    RouterTerms {
        chosen: experts.chosen,
        sigmoid: experts.scoring == Scoring::Sigmoid,
        normalize: experts.normalize,
        scale: experts.scale,
        groups: experts.groups.map(|groups| [groups.count, groups.chosen]),
    }
}

/// The experts of tokens, `k` each, token after token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// The expert of each copy, or [`NOBODY`].
    pub list: Vec<u32>,
    /// `k`.
    pub chosen: usize,
}

impl Routing {
    /// So many tokens in turn, the first of which has this number in its microbatch: token `t` goes to the experts
    /// `t·k`, `t·k + 1`, …, counted round and round.
    #[must_use]
    pub fn in_turn(experts: &Experts, first: usize, tokens: usize) -> Self {
        let (k, all) = (experts.chosen, experts.count);
        let list = (first * k..(first + tokens) * k).map(|copy| (copy % all) as u32).collect();
        Self { list, chosen: k }
    }
    /// How many copies each expert is handed.
    #[must_use]
    pub fn counts(&self, experts: usize) -> Vec<usize> {
        let mut counts = vec![0; experts];
        self.list.iter().filter(|&&e| e != NOBODY).for_each(|&e| counts[e as usize] += 1);
        counts
    }
    /// Drops, for each expert, all copies but the first so many, of which others had `before` earlier.
    pub fn drop_beyond(&mut self, most: usize, mut before: Vec<usize>) {
        for expert in &mut self.list {
            let taken = &mut before[*expert as usize];
            *taken += 1;
            if *taken > most {
                *expert = NOBODY;
            }
        }
    }
}

/// Where this rank's tokens stand among those of a microbatch.
pub(crate) struct Standing {
    /// The number of the first in the microbatch.
    pub(crate) first: usize,
    /// How many there are here.
    pub(crate) tokens: usize,
}

/// The place of the rank whose tokens these are: along the axes that deal tokens, and among the ranks that cut them.
fn place<P: Place>(mesh: &Mesh<P>, rank: usize) -> Vec<usize> {
    let axes = Axes::TOKENS.iter().chain([Axis::LAYERS]);
    axes.map(|axis| mesh.coordinate(axis, rank)).collect()
}

/// What ranks before this one, in the order of tokens, have of what each gives to the group.
pub(crate) fn before<P: Place, T: Clone>(mesh: &Mesh<P>, group: &Group<P>, all: Vec<T>) -> Vec<T> {
    let own = place(mesh, mesh.rank());
    let earlier = group.ranks().zip(all).filter(|(rank, _)| place(mesh, *rank) < own);
    earlier.map(|(_, given)| given).collect()
}

impl Standing {
    /// Of this rank's part of `rows` that ranks along the axis of layers have alike. The ranks before it tell how many they have.
    pub(crate) fn of<P: Place>(mesh: &Mesh<P>, region: Region, rows: usize) -> Result<Self> {
        let dealers = mesh.over(Axes::TOKENS)?.named("tokens of a microbatch");
        let all: Vec<usize> = dealers.all_gather_values(&[rows])?.into_iter().map(|rows| rows[0]).collect();
        let mine = region.mine(rows);
        let first = before(mesh, &dealers, all).into_iter().sum::<usize>() + mine.start;
        Ok(Self { first, tokens: mine.len() })
    }
    /// Of the part of a peer, as it is where every rank is dealt as many rows.
    fn stated<P: Place>(mesh: &Mesh<P>, rank: usize, rows: usize) -> Self {
        let ranks = mesh.group(Axis::LAYERS).size();
        let at =
            Region::Tokens { axis: Axis::LAYERS.into(), rank: mesh.coordinate(Axis::LAYERS, rank), ranks };
        let dealt = Axes::TOKENS
            .iter()
            .fold(0, |place, axis| place * mesh.group(axis).size() + mesh.coordinate(axis, rank));
        Self { first: dealt * rows + at.mine(rows).start, tokens: at.mine(rows).len() }
    }
}

/// The lists of all ranks that have this rank's experts or other ones, `[ep][etp]`. Without numbers each rank's is a stated
/// one: its tokens go to experts in turn.
pub(crate) fn of_all<P: Place>(
    mesh: &Mesh<P>,
    own: &Routing,
    stated: Option<(&Experts, usize)>,
) -> Result<Vec<Vec<Routing>>> {
    let group = mesh.over(Axis::EXPERTS | Axis::EXPERT_LAYERS)?.named("experts of tokens");
    let lists = group.all_gather_values(&own.list)?;
    let [ep, etp] = [Axis::EXPERTS, Axis::EXPERT_LAYERS].map(|axis| mesh.group(axis).size());
    let mut all = vec![vec![Routing { list: vec![], chosen: own.chosen }; etp]; ep];
    for (rank, list) in group.ranks().zip(lists) {
        let [ep, etp] = [Axis::EXPERTS, Axis::EXPERT_LAYERS].map(|axis| mesh.coordinate(axis, rank));
        all[ep][etp] = match stated {
            Some((experts, rows)) => {
                let Standing { first, tokens } = Standing::stated(mesh, rank, rows);
                Routing::in_turn(experts, first, tokens)
            }
            None => Routing { list, chosen: own.chosen },
        };
    }
    Ok(all)
}

/// The router's choice, where it can be read.
pub(crate) fn read<P: Place>(chosen: &Index<P>, k: usize) -> Option<Routing> {
    let mut list = Vec::new();
    chosen.read_into(&mut list).then_some(Routing { list, chosen: k })
}
