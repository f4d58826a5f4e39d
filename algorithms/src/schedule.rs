//! Collectives as data, to draw, price and run: which rank sends which chunks to which rank, in which order.
//!
//! The `N` elements of each rank are cut into nearly equal consecutive chunks; the first `N mod chunks` have
//! one element more. All transfers of a round may run at once: each sends what the sender had **before the
//! round**, and changes only data that no rank sends in it. A chunk is changed by one message of a round, or
//! several messages with exactly the same chunks add to it. Such a sum is taken in rank order, with the
//! receiver's own addend in its place, and the round lists its messages in that order. So in a field,
//! transfers may also run one after another, in any order.
//!
//! In the α–β model of [`Link`], a rank sends one message at a time and receives one at a time, both at once.
//! A round lasts as long as its busiest rank, and the next one begins after it. An empty message costs its
//! latency.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", §3,
//! 2005.
use crate::Link;
use std::ops::Range;
use std::time::Duration;

tensor::listed! {
    /// How the receiver combines a message with its own chunks.
    Arrival {
        /// Adds the message to its own chunks.
        Add = "add",
        /// Replaces its own chunks with the message.
        Replace = "replace",
    }
}

/// One message of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Rank that sends.
    pub from: usize,
    /// Rank that receives; never the sender.
    pub to: usize,
    /// Chunks of the message, at least one; the receiver's are the same.
    pub chunks: Range<usize>,
    /// How the receiver combines the chunks with its own.
    pub how: Arrival,
}

/// One round: messages that may all be in flight at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommRound {
    /// Phase of the algorithm that the round belongs to, such as `reduce-scatter`.
    pub phase: &'static str,
    /// Messages of the round; none depends on another.
    pub transfers: Vec<Transfer>,
}

/// A collective as a sequence of rounds, which the ranks take on the chunks of their data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommSchedule {
    ranks: usize,
    chunks: usize,
    rounds: Vec<CommRound>,
}

impl CommSchedule {
    /// Makes a schedule of `ranks` ranks on data in `chunks` chunks, at least one.
    pub(crate) fn new(ranks: usize, chunks: usize, rounds: Vec<CommRound>) -> Self {
        Self { ranks, chunks, rounds }
    }
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }
    /// Number of chunks that the data is cut into, at least one.
    pub fn chunks(&self) -> usize {
        self.chunks
    }
    /// Rounds in order.
    pub fn rounds(&self) -> &[CommRound] {
        &self.rounds
    }
    /// Range of these chunks' elements, among `elements` in all.
    pub fn elements(&self, chunks: Range<usize>, elements: usize) -> Range<usize> {
        let (size, larger) = (elements / self.chunks, elements % self.chunks);
        let start = |chunk: usize| chunk * size + chunk.min(larger);
        start(chunks.start)..start(chunks.end)
    }
    /// Number of elements that `rank` sends over all rounds, if each rank has `elements`.
    pub fn sent(&self, rank: usize, elements: usize) -> usize {
        let transfers = self.rounds.iter().flat_map(|round| &round.transfers);
        transfers.filter(|t| t.from == rank).map(|t| self.elements(t.chunks.clone(), elements).len()).sum()
    }
    /// Time of all rounds, over links of this kind between all ranks, if each rank has `elements` elements of
    /// `bytes_per_element` bytes.
    pub fn time(&self, link: &Link, bytes_per_element: usize, elements: usize) -> Duration {
        let rounds =
            self.rounds.iter().map(|round| self.round_time(round, link, bytes_per_element, elements));
        rounds.fold(Duration::ZERO, Duration::saturating_add)
    }
    fn round_time(
        &self,
        round: &CommRound,
        link: &Link,
        bytes_per_element: usize,
        elements: usize,
    ) -> Duration {
        let mut busy = vec![[Duration::ZERO; 2]; self.ranks]; // sending, receiving
        for transfer in &round.transfers {
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
    fn schedule(rounds: Vec<Vec<Transfer>>) -> CommSchedule {
        let rounds = rounds.into_iter().map(|transfers| CommRound { phase: "test", transfers }).collect();
        CommSchedule::new(4, 3, rounds)
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

    /// Kills: steps that overlap, messages of one rank that do, a sum where sending and receiving go
    /// together, a busiest rank sought only among senders.
    #[test]
    fn a_step_lasts_as_long_as_its_busiest_rank() {
        let link = "1us,1GB/s".parse().unwrap();
        let time = |rounds, elements| schedule(rounds).time(&link, 4, elements).as_nanos();
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
