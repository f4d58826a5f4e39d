//! Who sends what to whom, in which order: a collective as data, for those who draw it, price it or run it.
//!
//! The `N` elements that every rank has are cut into nearly equal consecutive chunks, of which the first `N mod chunks`
//! are one larger. A step's transfers may all run at once: each sends what the sender had **before the step**, and each
//! may change only what nobody sends in the same step. A chunk is changed by one message of a step, or is added to by several
//! that carry exactly the same chunks: its sum is then taken in rank order, the receiver's own in its place, and the step
//! lists these messages in that order. So in a field transfers may also run one after another, in any order.
//!
//! In the α–β model of [`Link`] a rank sends one message at a time and receives one at a time, both at once; a step
//! lasts as long as its busiest rank, and the next one begins after it. A message of no elements costs its latency.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", §3, 2005.
use crate::Link;
use std::ops::Range;
use std::time::Duration;

tensor::listed! {
    /// What the receiver does with what it gets.
    Arrival {
        /// Adds it to its own.
        Add = "add",
        /// Puts it in the place of its own.
        Replace = "replace",
    }
}

/// One message of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives, another one.
    pub to: usize,
    /// Which chunks, at least one; the receiver's are the same.
    pub chunks: Range<usize>,
    /// What the receiver does with them.
    pub how: Arrival,
}

/// Messages that may all be under way at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommStep {
    /// What the step is part of, as the algorithm calls it.
    pub phase: &'static str,
    /// The messages, of which none needs another.
    pub transfers: Vec<Transfer>,
}

/// Steps, one after the other, that a number of ranks take on the chunks of their data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommSchedule {
    ranks: usize,
    chunks: usize,
    steps: Vec<CommStep>,
}

impl CommSchedule {
    /// The steps of so many ranks on data in so many chunks, one or more.
    pub(crate) fn new(ranks: usize, chunks: usize, steps: Vec<CommStep>) -> Self {
        Self { ranks, chunks, steps }
    }
    /// How many ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }
    /// How many chunks the data are cut into, one or more.
    pub fn chunks(&self) -> usize {
        self.chunks
    }
    /// The steps in order.
    pub fn steps(&self) -> &[CommStep] {
        &self.steps
    }
    /// Which of `elements` elements these chunks are.
    pub fn elements(&self, chunks: Range<usize>, elements: usize) -> Range<usize> {
        let (size, larger) = (elements / self.chunks, elements % self.chunks);
        let start = |chunk: usize| chunk * size + chunk.min(larger);
        start(chunks.start)..start(chunks.end)
    }
    /// How many of `elements` elements of each rank this rank sends, over all steps.
    pub fn sent(&self, rank: usize, elements: usize) -> usize {
        let all = self.steps.iter().flat_map(|step| &step.transfers);
        all.filter(|t| t.from == rank).map(|t| self.elements(t.chunks.clone(), elements).len()).sum()
    }
    /// What the steps take over links of this kind between all ranks, on `elements` elements of so many bytes.
    pub fn time(&self, link: &Link, bytes_per_element: usize, elements: usize) -> Duration {
        let steps = self.steps.iter().map(|step| self.step_time(step, link, bytes_per_element, elements));
        steps.fold(Duration::ZERO, Duration::saturating_add)
    }
    fn step_time(&self, step: &CommStep, link: &Link, bytes_per_element: usize, elements: usize) -> Duration {
        let mut busy = vec![[Duration::ZERO; 2]; self.ranks]; // sending, receiving
        for transfer in &step.transfers {
            let elements = self.elements(transfer.chunks.clone(), elements).len();
            let taken = link.time(elements.saturating_mul(bytes_per_element));
            for (rank, way) in [(transfer.from, 0), (transfer.to, 1)] {
                busy[rank][way] = busy[rank][way].saturating_add(taken);
            }
        }
        busy.into_iter().flatten().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(from: usize, to: usize, chunks: Range<usize>) -> Transfer {
        Transfer { from, to, chunks, how: Arrival::Add }
    }
    fn schedule(steps: Vec<Vec<Transfer>>) -> CommSchedule {
        let steps = steps.into_iter().map(|transfers| CommStep { phase: "test", transfers }).collect();
        CommSchedule::new(4, 3, steps)
    }

    /// Kills: chunks that overlap, leave elements out, or are larger at the end.
    #[test]
    fn chunks_tile_the_elements_and_the_first_are_larger() {
        let schedule = schedule(vec![]);
        for elements in [0, 1, 2, 3, 4, 5, 24, 25, 1009, usize::MAX] {
            let of = |chunk: usize| schedule.elements(chunk..chunk + 1, elements);
            assert_eq!((of(0).start, of(2).end), (0, elements));
            assert!((1..3).all(|chunk| of(chunk - 1).end == of(chunk).start));
            let sizes: Vec<_> = (0..3).map(|chunk| of(chunk).len()).collect();
            assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[2] <= 1, "{sizes:?}");
            assert_eq!(schedule.elements(1..3, elements), of(1).start..elements);
        }
    }

    #[test]
    fn ranks_send_what_their_transfers_say() {
        let schedule =
            schedule(vec![vec![transfer(0, 1, 0..2), transfer(1, 0, 2..3)], vec![transfer(0, 2, 0..1)]]);
        let sent = |rank| schedule.sent(rank, 10); // chunks of 4, 3 and 3
        assert_eq!([sent(0), sent(1), sent(2), sent(3)], [11, 3, 0, 0]);
    }

    /// Kills: steps that overlap, messages of one rank that do, a sum where sending and receiving go together, a busiest
    /// rank sought only among senders.
    #[test]
    fn a_step_lasts_as_long_as_its_busiest_rank() {
        let link = "1us,1GB/s".parse().unwrap();
        let time = |steps, elements| schedule(steps).time(&link, 4, elements).as_nanos();
        let one = || transfer(0, 1, 0..1);
        assert_eq!(time(vec![vec![one()]], 750), 2000);
        assert_eq!(time(vec![vec![one()], vec![one()]], 750), 4000);
        assert_eq!(time(vec![vec![one(), transfer(1, 0, 0..1), transfer(2, 3, 0..1)]], 750), 2000);
        assert_eq!(time(vec![vec![one(), transfer(0, 2, 1..2)]], 750), 4000);
        assert_eq!(time(vec![vec![one(), transfer(2, 1, 1..2)]], 750), 4000);
        assert_eq!(time(vec![vec![one(), transfer(2, 3, 0..2)]], 750), 3000);
        assert_eq!(time(vec![vec![one()]], 0), 1000);
        assert_eq!((time(vec![vec![]], 750), time(vec![], 750)), (0, 0));
    }

    /// Kills: an overflow where the time is longer than durations are.
    #[test]
    fn times_beyond_durations_are_the_longest() {
        let link = "1s,1e-300B/s".parse().unwrap();
        let twice = schedule(vec![vec![transfer(0, 1, 0..3)], vec![transfer(0, 1, 0..3)]]);
        assert_eq!(twice.time(&link, usize::MAX, usize::MAX), Duration::MAX);
    }
}
