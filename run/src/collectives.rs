//! All-reduce algorithms round by round, and their time in the α–β model.
use crate::event::{CellValue, RecordColumn, RunRecord, column};
use crate::records;
use algorithms::{Algorithm, CommSchedule, Link};
use parallel::{Result, bail};
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;
use tensor::readable;

/// The most ranks that are drawn.
pub const MOST_RANKS: usize = 64;
/// The most elements of a rank; with more, the number of bytes sent could overflow.
pub const MOST_ELEMENTS: usize = 1 << 40;
/// Bytes of an element: f32.
const ELEMENT: usize = size_of::<f32>();

/// One all-reduce: its rounds, size and link.
#[derive(Clone, Debug)]
pub struct AllReducePlan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// All messages, round by round.
    pub schedule: CommSchedule,
    /// f32 elements of every rank.
    pub elements: usize,
    /// The link between any two ranks.
    pub link: Link,
}

/// Cost of an all-reduce.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks of a node, if the algorithm uses nodes.
    pub node: Option<usize>,
    /// f32 elements of every rank.
    pub elements: usize,
    /// Number of chunks the elements are cut into.
    pub chunks: usize,
    /// Latency and bandwidth.
    pub link: String,
    /// Number of rounds, one after the other.
    pub steps: usize,
    /// Bytes sent by the rank that sends most.
    pub busiest_bytes: usize,
    /// Bytes sent by all ranks together.
    pub total_bytes: usize,
    /// Seconds in the α–β model.
    pub seconds: f64,
    /// Seconds that no all-reduce can take less than ([`algorithms::bound`]).
    pub bound_seconds: f64,
}

impl RunRecord for Summary {
    fn kind(&self) -> &'static str {
        "all-reduce"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let [seconds, times] = [self.seconds, self.seconds / self.bound_seconds];
        let nodes = self.node.map_or_else(String::new, |node| format!(", nodes of {node}"));
        let time = CellValue::Shown(seconds, format!("{:.2?}", Duration::from_secs_f64(seconds)));
        let of_bound = CellValue::Shown(times, format!("x{times:.2}"));
        let of_bound = if self.bound_seconds > 0.0 { of_bound } else { CellValue::None };
        vec![
            (column("algorithm", "algorithm"), CellValue::Word(format!("{}{nodes}", self.algorithm))),
            (column("steps", "rounds"), CellValue::Count(self.steps)),
            (column("busiest_bytes", "busiest rank sends"), CellValue::bytes(self.busiest_bytes as u128)),
            (column("total_bytes", "all send"), CellValue::bytes(self.total_bytes as u128)),
            (column("seconds", "time"), time),
            (column("of_bound", "of the bound"), of_bound),
        ]
    }
}

/// One round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommStepLine {
    /// Number of the round, from 1.
    pub step: usize,
    /// Phase of the algorithm.
    pub phase: &'static str,
    /// Messages of the round, all at once.
    pub transfers: Vec<TransferLine>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferLine {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
    /// The first chunk, and the one after the last.
    pub chunks: [usize; 2],
    /// The first element, and the one after the last.
    pub elements: [usize; 2],
    /// `add` or `replace`: the receiver's operation.
    pub how: &'static str,
}

impl AllReducePlan {
    /// Plans an all-reduce of `elements` f32 elements on each of `ranks` ranks by every algorithm; `node` is
    /// the number of ranks of a node, for algorithms that use nodes. The default is the smallest divisor of
    /// `ranks` from its square root up: a node has no fewer ranks than there are nodes.
    ///
    /// # Errors
    /// If there are no ranks or too many to draw, too many elements to count, or nodes that do not divide the
    /// ranks.
    pub fn all(ranks: usize, node: Option<usize>, elements: usize, link: Link) -> Result<Vec<Self>> {
        if !(1..=MOST_RANKS).contains(&ranks) {
            bail!("--ranks is {ranks}; it must be 1 to {MOST_RANKS}, the most columns of the drawing");
        }
        if elements > MOST_ELEMENTS {
            bail!("--elements is {elements}; it must be {MOST_ELEMENTS} (2^40) or less");
        }
        let plan = |algorithm: Algorithm| {
            let schedule = algorithm.schedule(ranks)?;
            Ok(Self { algorithm, schedule, elements, link })
        };
        Algorithm::all(node.unwrap_or(usual_node(ranks))).into_iter().map(plan).collect()
    }
    /// Name of the all-reduce, in words.
    pub fn name(&self) -> String {
        let nodes = self.algorithm.node().map_or(String::new(), |node| format!(" in nodes of {node}"));
        format!("{} all-reduce{nodes}", self.algorithm.name())
    }
    /// Time in the α–β model.
    pub fn time(&self) -> Duration {
        self.schedule.time(&self.link, ELEMENT, self.elements)
    }
    /// Lower bound on the time of any all-reduce.
    pub fn bound(&self) -> Duration {
        algorithms::bound(self.schedule.ranks(), &self.link, ELEMENT, self.elements)
    }
    /// Time as a multiple of the bound; `None` if the bound is 0.
    pub fn of_bound(&self) -> Option<f64> {
        let bound = self.bound().as_secs_f64();
        (bound > 0.0).then(|| self.time().as_secs_f64() / bound)
    }
    /// All figures.
    pub fn summary(&self) -> Summary {
        let sent =
            || (0..self.schedule.ranks()).map(|rank| self.schedule.sent(rank, self.elements) * ELEMENT);
        Summary {
            algorithm: self.algorithm.name(),
            ranks: self.schedule.ranks(),
            node: self.algorithm.node(),
            elements: self.elements,
            chunks: self.schedule.chunks(),
            link: self.link.to_string(),
            steps: self.schedule.rounds().len(),
            busiest_bytes: sent().max().unwrap_or(0),
            total_bytes: sent().sum(),
            seconds: self.time().as_secs_f64(),
            bound_seconds: self.bound().as_secs_f64(),
        }
    }
    /// All rounds.
    pub fn steps(&self) -> impl Iterator<Item = CommStepLine> {
        let ends = |range: Range<usize>| [range.start, range.end];
        let transfer = move |t: &algorithms::Transfer| TransferLine {
            from: t.from,
            to: t.to,
            chunks: ends(t.chunks.clone()),
            elements: ends(self.schedule.elements(t.chunks.clone(), self.elements)),
            how: t.how.name(),
        };
        self.schedule.rounds().iter().zip(1..).map(move |(step, number)| CommStepLine {
            step: number,
            phase: step.phase,
            transfers: step.transfers.iter().map(transfer).collect(),
        })
    }
    /// Rounds, traffic and time, in two lines.
    pub fn figures(&self) -> [String; 2] {
        let Summary { steps, busiest_bytes, total_bytes, .. } = self.summary();
        let [busiest, total] = [busiest_bytes, total_bytes].map(|bytes| readable(bytes as u128));
        let (time, link, bound) = (self.time(), self.link, self.bound());
        let times = self.of_bound().map_or(String::new(), |times| format!(" (x{times:.2})"));
        [
            format!("{steps} rounds; the busiest rank sends {busiest}, all together {total}"),
            format!("{time:.2?} on links of {link}; no all-reduce takes less than {bound:.2?}{times}"),
        ]
    }
    /// Elements, ranks and chunks, in words.
    pub fn data(&self) -> String {
        let (ranks, chunks) = (self.schedule.ranks(), self.schedule.chunks());
        let (size, larger) = (self.elements / chunks, self.elements % chunks);
        let sizes = if larger == 0 { size.to_string() } else { format!("{} or {size}", size + 1) };
        let chunks = if chunks == 1 { "1 chunk".into() } else { format!("{chunks} chunks of {sizes}") };
        let ranks = if ranks == 1 { "1 rank".into() } else { format!("each of {ranks} ranks") };
        format!("{} f32 elements on {ranks}, in {chunks}", self.elements)
    }
}

fn usual_node(ranks: usize) -> usize {
    (1..ranks).find(|&node| ranks.is_multiple_of(node) && node * node >= ranks).unwrap_or(ranks)
}

/// `c3`, `c0-3`.
#[must_use]
pub fn chunk_names(chunks: &Range<usize>) -> String {
    match chunks.len() {
        1 => format!("c{}", chunks.start),
        _ => format!("c{}-{}", chunks.start, chunks.end - 1),
    }
}

records!(CommStepLine: "step of an all-reduce");

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans of naive, direct, ring, tree and hierarchical.
    fn plans(ranks: usize, elements: usize) -> [AllReducePlan; 5] {
        AllReducePlan::all(ranks, None, elements, "5us,25GB/s".parse().unwrap()).unwrap().try_into().unwrap()
    }

    /// Kills: elements counted as bytes, a mean where the busiest is meant.
    #[test]
    fn summaries_are_the_textbooks_figures() {
        let [naive, direct, ring, _, hierarchical] = plans(8, 1 << 20).map(|plan| plan.summary());
        assert_eq!((ring.steps, ring.busiest_bytes, ring.total_bytes), (14, 14 << 19, 14 << 22));
        assert!((ring.seconds - 14.0 * (5e-6 + f64::from(1 << 19) / 25e9)).abs() < 1e-7, "{ring:?}");
        assert!((ring.bound_seconds - f64::from(14 << 19) / 25e9).abs() < 1e-8, "{ring:?}");
        assert_eq!((naive.busiest_bytes, naive.total_bytes, naive.node), (7 << 22, 14 << 22, None));
        assert_eq!((hierarchical.node, hierarchical.steps), (Some(4), 8));
        assert_eq!((direct.steps, direct.busiest_bytes, direct.total_bytes), (2, 14 << 19, 14 << 22));
        assert!((direct.seconds - ring.seconds).abs() < 1e-7, "{direct:?}");
        assert_eq!(plans(1, 5)[0].of_bound(), None);
    }

    #[test]
    fn nodes_are_no_smaller_than_they_are_many() {
        let usual = [1, 2, 4, 6, 8, 9, 12, 13, 16, 48, 64].map(usual_node);
        assert_eq!(usual, [1, 2, 2, 3, 4, 3, 4, 13, 4, 8, 8]);
    }

    #[test]
    fn figures_read_as_sentences() {
        let [naive, _, ring, ..] = plans(4, 1000);
        assert_eq!(
            ring.figures(),
            [
                "6 rounds; the busiest rank sends 6.00 kB, all together 24.00 kB",
                "30.24µs on links of 5us,25GB/s; no all-reduce takes less than 10.00µs (x3.02)"
            ]
        );
        assert_eq!(naive.data(), "1000 f32 elements on each of 4 ranks, in 1 chunk");
        assert_eq!(plans(4, 10)[2].data(), "10 f32 elements on each of 4 ranks, in 4 chunks of 3 or 2");
        assert_eq!(plans(1, 10)[2].data(), "10 f32 elements on 1 rank, in 1 chunk");
        assert_eq!((chunk_names(&(3..4)), chunk_names(&(0..4))), ("c3".into(), "c0-3".into()));
    }
}
