//! Search for the cheapest splits of a graph's operators.
//!
//! ```text
//! least(o, s) = price(o, s) + Σ over operators t that take o's result first:
//!                             min over splits u of t: way(s → u) and back + least(t, u)
//! ```
//! If each operator takes one result, and each result is taken once, this dynamic programming is exact.
//! Otherwise its answer, which leaves the rest out, is where a local search starts: it changes one operator
//! after the other until none gets cheaper, then a few at random, and begins again, until it is stopped.
//!
//! Source: Jia et al., §6, arXiv:1807.05358 (search by single changes); Jia et al., "Exploring hidden
//! dimensions", §5, arXiv:1802.04924 (dynamic programming).
use crate::graph::planned::PlannedGraph;
use crate::graph::prices::{GraphPrices, Prices};
use crate::graph::sharding::{MeshSizes, Sharding};
use crate::graph::{Graph, OperatorSplit, TensorSource};
use comm::Axes;
use ops::{Error, Result};
use std::time::{Duration, Instant};
use tensor::mix;

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundGraph {
    /// The cheapest plan that was found.
    pub plan: PlannedGraph,
    /// How the search ended.
    pub end: SearchEnd,
}

/// End of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// No plan is cheaper.
    Exact,
    /// Stopped by its caller. Counts plans that no single change makes cheaper: all that were found, and
    /// those of them with this price.
    Stopped {
        /// Number of all.
        found: usize,
        /// Number of those with this price.
        alike: usize,
        /// Time after which the first of these was found.
        after: Duration,
    },
}

/// Ways of one matrix between two operators, by the number of the giver's split, then of the taker's.
struct Edge {
    between: [usize; 2],
    prices: Vec<f64>,
}

/// Gradients of a matrix that several operators take: those of one sharding are summed before they go back.
struct Returns {
    giver: Option<usize>, // none if the matrix enters the graph
    takers: Vec<usize>,
    gradients: Vec<Vec<usize>>, // number of its gradient's sharding, by taker and split
    prices: Vec<Vec<f64>>,      // of the way back, by that number and the giver's split
}

/// Operators, splits of each, and prices.
struct Space {
    splits: Vec<Vec<OperatorSplit>>,
    own: Vec<Vec<f64>>,
    edges: Vec<Edge>,
    mains: Vec<Option<usize>>, // number of the edge of an operator's first result
    returns: Vec<Returns>,
}

/// Searches splits of all operators of a graph, among those that are `allowed` for an operator of this
/// number. Unless the answer is exact, looks for further plans while `goes_on` allows it, given the number
/// of those found.
///
/// # Errors
/// If an operator has no allowed split, or no splits fit together.
pub fn search(
    (graph, mesh): (&Graph, &MeshSizes),
    allowed: &dyn Fn(usize, &OperatorSplit) -> bool,
    prices: &dyn Prices,
    goes_on: &dyn Fn(usize) -> bool,
) -> Result<FoundGraph> {
    let start = Instant::now();
    let space = Space::new(&GraphPrices::new(graph, mesh, prices), (graph, mesh), allowed)?;
    let (mut best, is_exact) = space.along_givers();
    let mut end = SearchEnd::Exact;
    if !is_exact {
        space.improve(&mut best);
        let (mut found, mut alike, mut drawn, mut after) = (1, 1, 0, start.elapsed());
        while goes_on(found) {
            let mut next = best.clone();
            for _ in 0..2 + found % 4 {
                drawn += 1;
                let o = mix(drawn) as usize % next.len();
                next[o] = mix(drawn ^ 1 << 40) as usize % space.splits[o].len();
            }
            space.improve(&mut next);
            let [old, new] = [&best, &next].map(|all| space.price(all));
            found += 1;
            if new < old {
                (best, alike, after) = (next, 1, start.elapsed());
            } else if new == old {
                alike += 1;
            }
        }
        end = SearchEnd::Stopped { found, alike, after };
    }
    if space.price(&best).is_infinite() {
        return Err(Error::Cannot("no splits of the operators fit together".into()));
    }
    let splits = best.iter().zip(&space.splits).map(|(&s, all)| all[s].clone()).collect();
    Ok(FoundGraph { plan: PlannedGraph::new(graph, mesh, splits, prices), end })
}

impl Returns {
    /// Returns the gradients of a matrix; `None` unless several operators take it and its gradient is wanted.
    fn of(kept: &GraphPrices, graph: &Graph, tensor: usize, all: &[Vec<OperatorSplit>]) -> Option<Self> {
        let takers: Vec<_> = graph.takers(tensor).collect();
        let is_parameter = graph.tensors[tensor].source == TensorSource::Parameter;
        if is_parameter || takers.len() < 2 || !graph.is_wanted(tensor) {
            return None;
        }
        let giver = graph.giver(tensor);
        let shape = graph.tensors[tensor].shape;
        let whole = [Sharding::WHOLE];
        let from: Vec<_> = match giver {
            Some(giver) => all[giver].iter().map(|split| &split.output).collect(),
            None => whole.iter().collect(),
        };
        let mut known: Vec<Sharding> = Vec::new();
        let number = |gradient: Sharding| {
            known.iter().position(|of| *of == gradient).unwrap_or_else(|| {
                known.push(gradient);
                known.len() - 1
            })
        };
        let each = takers.iter().flat_map(|&(o, i)| all[o].iter().map(move |split| split.gradient(i)));
        let mut numbers = each.map(number).collect::<Vec<_>>().into_iter();
        let gradients = takers.iter().map(|(o, _)| numbers.by_ref().take(all[*o].len()).collect()).collect();
        let back =
            |of: &Sharding| from.iter().map(|to| kept.way(shape, of, &to.summed(Axes::NONE))).collect();
        let prices = known.iter().map(back).collect();
        Some(Self { giver, takers: takers.iter().map(|(o, _)| *o).collect(), gradients, prices })
    }
    fn price(&self, at: &dyn Fn(usize) -> usize) -> f64 {
        let number = |taker: usize| self.gradients[taker][at(self.takers[taker])];
        let is_first = |taker: &usize| (0..*taker).all(|before| number(before) != number(*taker));
        let of_giver = self.giver.map_or(0, at);
        (0..self.takers.len()).filter(is_first).map(|taker| self.prices[number(taker)][of_giver]).sum()
    }
}

impl Space {
    fn new(
        kept: &GraphPrices,
        (graph, mesh): (&Graph, &MeshSizes),
        allowed: &dyn Fn(usize, &OperatorSplit) -> bool,
    ) -> Result<Self> {
        let (mut all, mut own, mut edges, mut mains) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (o, operator) in graph.operators.iter().enumerate() {
            let splits: Vec<_> =
                graph.splits(o, mesh).into_iter().filter(|split| allowed(o, split)).collect();
            if splits.is_empty() {
                let name = &graph.tensors[operator.output].name;
                return Err(Error::Cannot(format!("no split of {name} over the mesh is as it must be")));
            }
            own.push(splits.iter().map(|split| kept.operator(o, split)).collect::<Vec<_>>());
            all.push(splits);
            mains.push(None);
            for (i, &input) in operator.inputs.iter().enumerate() {
                let to = &all[o];
                let mut edge = |giver: usize, price: &dyn Fn(usize, usize) -> f64| {
                    let pairs = (0..all[giver].len()).flat_map(|s| (0..to.len()).map(move |u| (s, u)));
                    let prices = pairs.map(|(s, u)| price(s, u)).collect();
                    edges.push(Edge { between: [giver, o], prices });
                    edges.len() - 1
                };
                let shape = graph.tensors[input].shape;
                let is_alone = graph.is_wanted(input) && graph.takers(input).count() == 1;
                let between = |from: &Sharding, split: &OperatorSplit| {
                    let back = || kept.way(shape, &split.gradient(i), &from.summed(Axes::NONE));
                    kept.way(shape, from, &split.inputs[i]) + if is_alone { back() } else { 0.0 }
                };
                match graph.tensors[input].source {
                    TensorSource::Input { .. } => {
                        let from = |split| between(&Sharding::WHOLE, split);
                        own[o].iter_mut().zip(to).for_each(|(price, split)| *price += from(split));
                    }
                    TensorSource::Result => {
                        let giver = graph.giver(input).expect("a result has a giver");
                        let way = |s: usize, u: usize| between(&all[giver][s].output, &to[u]);
                        mains[o].get_or_insert(edge(giver, &way));
                    }
                    TensorSource::Parameter => {
                        let (first, place) = graph.takers(input).next().expect("it is taken here");
                        let agree = |s: usize, u: usize| {
                            let [a, b] = [&all[first][s], &to[u]];
                            let alike = a.inputs[place] == b.inputs[i] && a.gradient(place) == b.gradient(i);
                            if alike { 0.0 } else { f64::INFINITY }
                        };
                        if first != o {
                            edge(first, &agree);
                        }
                    }
                }
            }
        }
        let returns = (0..graph.tensors.len()).filter_map(|t| Returns::of(kept, graph, t, &all)).collect();
        Ok(Self { splits: all, own, edges, mains, returns })
    }
    /// Returns the splits that are cheapest if only the first result that each operator takes counts, and
    /// whether all others are none.
    fn along_givers(&self) -> (Vec<usize>, bool) {
        let mut least = self.own.clone();
        let mut chosen = vec![Vec::new(); least.len()]; // by the giver's split
        for o in (0..least.len()).rev() {
            let Some(main) = self.mains[o] else { continue };
            let Edge { between: [giver, _], prices } = &self.edges[main];
            let n = least[o].len();
            for s in 0..least[*giver].len() {
                let price = |u: usize| prices[s * n + u] + least[o][u];
                let best = (0..n).min_by(|a, b| price(*a).total_cmp(&price(*b))).expect("a split");
                let price = price(best);
                least[*giver][s] += price;
                chosen[o].push(best);
            }
        }
        let mut all = vec![0; least.len()];
        for o in 0..all.len() {
            let price = |s: &usize| least[o][*s];
            all[o] = if let Some(main) = self.mains[o] {
                chosen[o][all[self.edges[main].between[0]]]
            } else {
                (0..least[o].len()).min_by(|a, b| price(a).total_cmp(&price(b))).expect("a split")
            };
        }
        (all, self.returns.is_empty() && self.edges.len() == self.mains.iter().flatten().count())
    }
    /// Changes one operator after the other to its cheapest split, until none gets cheaper.
    fn improve(&self, all: &mut [usize]) {
        let mut changed = true;
        while changed {
            changed = false;
            for o in 0..all.len() {
                let price = |s: usize| self.price_of(all, o, s);
                let best = (0..self.splits[o].len()).min_by(|a, b| price(*a).total_cmp(&price(*b)));
                let best = best.expect("a split");
                if price(best) < price(all[o]) {
                    all[o] = best;
                    changed = true;
                }
            }
        }
    }
    /// Price of what depends on an operator's split, if it is this one.
    fn price_of(&self, all: &[usize], o: usize, split: usize) -> f64 {
        let at = |operator: usize| if operator == o { split } else { all[operator] };
        let edges = self.edges.iter().filter(|edge| edge.between.contains(&o));
        let back = self.returns.iter().filter(|of| of.giver == Some(o) || of.takers.contains(&o));
        let forward: f64 = edges.map(|edge| self.price_between(edge, &at)).sum();
        self.own[o][split] + forward + back.map(|of| of.price(&at)).sum::<f64>()
    }
    fn price_between(&self, edge: &Edge, at: &dyn Fn(usize) -> usize) -> f64 {
        let [giver, taker] = edge.between;
        edge.prices[at(giver) * self.splits[taker].len() + at(taker)]
    }
    fn price(&self, all: &[usize]) -> f64 {
        let local: f64 = all.iter().zip(&self.own).map(|(&s, own)| own[s]).sum();
        let back: f64 = self.returns.iter().map(|of| of.price(&|o| all[o])).sum();
        local + back + self.edges.iter().map(|edge| self.price_between(edge, &|o| all[o])).sum::<f64>()
    }
}
