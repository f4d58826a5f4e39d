//! The flight recorder: the last calls of every rank of a failed run, in one table.
use crate::Call;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use tensor::quoted::sentence;

/// The last calls of every rank when a run failed. Displays as a table; times count from the start of the
/// run.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FlightRecorder(String);

/// One call of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) number: usize, // on its rank, from 1
    pub(crate) began: Instant,
    pub(crate) outcome: CallOutcome,
    pub(crate) call: Call,
}

/// Outcome of a call so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    UnderWay,
    Done(Instant),
    Failed(Instant),
    Forgotten,
}

/// State of a rank after a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Well,
    Failed,
    /// The rank still runs.
    Runs,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Well => "ended",
            Self::Failed => "ended with an error",
            Self::Runs => "still runs",
        })
    }
}

impl Flight {
    /// Formats the outcome for the table.
    fn outcome(&self) -> String {
        match self.outcome {
            CallOutcome::UnderWay => "under way".to_string(),
            CallOutcome::Forgotten => "never waited for".to_string(),
            CallOutcome::Done(at) => format!("done in {}", span(at - self.began)),
            CallOutcome::Failed(at) => format!("failed after {}", span(at - self.began)),
        }
    }
}

/// Formats a time in the unit that needs few digits.
pub(crate) fn span(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

/// The last calls of a rank that a run has ended, and the rank that it waited for at the end, in which call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LastCalls {
    calls: Vec<CallRow>,
    pub(crate) waits: Option<(usize, String)>,
}

/// First line of the table.
const HEAD: &str = "rank  call       began  outcome                what";

/// A row of the table: a call of a rank, its number there, its start and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CallRow {
    number: usize,
    began: String,
    outcome: String,
    call: String,
}

impl LastCalls {
    /// Makes them of a rank's last calls; times count from `start`.
    pub(crate) fn of(flights: Vec<Flight>, start: Instant, waits: Option<(usize, String)>) -> Self {
        let row = |flight: Flight| CallRow {
            number: flight.number,
            began: span(flight.began - start),
            outcome: flight.outcome(),
            call: flight.call.to_string(),
        };
        Self { calls: flights.into_iter().map(row).collect(), waits }
    }
    /// Returns what another process has sent, with each text on one line; `None` if it names no rank of
    /// these.
    pub(crate) fn received(self, ranks: usize) -> Option<Self> {
        const MOST: usize = 64; // rows that are kept
        let row = |row: CallRow| CallRow {
            began: sentence(&row.began),
            outcome: sentence(&row.outcome),
            call: sentence(&row.call),
            ..row
        };
        let waits = self.waits.map(|(on, call)| (on, sentence(&call)));
        let calls = self.calls.into_iter().take(MOST).map(row).collect();
        waits.as_ref().is_none_or(|(on, _)| *on < ranks).then_some(Self { calls, waits })
    }
    /// Formats them for the table, with the rank's state.
    fn rows(&self, rank: usize, end: End) -> Vec<String> {
        let row = |CallRow { number, began, outcome, call }: &CallRow| {
            format!("{rank:>4}  {number:>4}  {began:>10}  {outcome:<21}  {call}")
        };
        self.calls.iter().map(row).chain([format!("{rank:>4}  {:>4}  {:>10}  {end}", "", "")]).collect()
    }
}

impl FlightRecorder {
    /// Makes the report from every rank's last calls and state: first those of the rank that caused the
    /// failure, as far as the waits tell, then the waits, then the calls of the others.
    pub(crate) fn new(failed: usize, ranks: &[(LastCalls, End)]) -> Self {
        let waits = |rank: usize| ranks.get(rank)?.0.waits.as_ref();
        let mut cause = failed;
        for _ in ranks {
            cause = waits(cause).map_or(cause, |(on, _)| *on);
        }
        let rows = |rank: usize| ranks[rank].0.rows(rank, ranks[rank].1);
        let mut report = vec![HEAD.to_owned()];
        report.extend((cause < ranks.len()).then(|| rows(cause)).into_iter().flatten());
        for rank in 0..ranks.len() {
            report
                .extend(waits(rank).map(|(on, call)| format!("rank {rank} waited for rank {on} in {call}")));
        }
        report.extend((0..ranks.len()).filter(|rank| *rank != cause).flat_map(rows));
        Self(report.join("\n"))
    }
    /// Makes the report of one rank that still runs.
    pub(crate) fn running(rank: usize, calls: &LastCalls) -> Self {
        let rows = calls.rows(rank, End::Runs);
        Self([&[HEAD.to_owned()], &rows[..]].concat().join("\n"))
    }
}

impl fmt::Display for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankRecord;
    use crate::error::CommError;
    use crate::trace::Traced;

    #[track_caller]
    fn barrier(label: String) -> Call {
        Call { label: Some(label.into()), ..Call::barrier() }
    }

    /// Kills: calls out of order, the first kept for the last, an outcome on another call.
    #[test]
    fn the_table_lists_the_last_calls_and_what_became_of_them() {
        let records = [0, 1].map(|rank| RankRecord::new(rank, Instant::now(), Traced::Never));
        for call in 1..=6 {
            let call = barrier(format!("call {call}"));
            let begun = records[0].begin(&call, 0, false).unwrap();
            if !call.to_string().contains("call 6") {
                records[0].end(begun, None, &call, &Ok::<_, CommError>(()));
            }
        }
        let first = barrier("the first".into());
        let begun = records[1].begin(&first, 0, false).unwrap();
        let busy = CommError::Busy { rank: 1, call: String::new() };
        records[1].end(begun, None, &first, &Err::<(), _>(busy));
        let calls = |rank: usize| records[rank].last_calls(None);
        let table = FlightRecorder::new(0, &[(calls(0), End::Well), (calls(1), End::Failed)]).to_string();
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows.len(), 1 + 4 + 1 + 1 + 1, "{table}");
        for (row, call) in rows[1..5].iter().zip(3..) {
            assert!(row.starts_with(&format!("   0  {call:>4}  ")), "{row}");
            assert!(
                row.contains(&format!("barrier over tp for call {call} at comm/src/flight.rs:")),
                "{row}"
            );
            assert_eq!(row.contains("done in"), call < 6, "{row}");
            assert_eq!(row.contains("under way"), call == 6, "{row}");
        }
        assert!(rows[5].starts_with("   0") && rows[5].ends_with("  ended"), "{table}");
        assert!(rows[6].starts_with("   1     1") && rows[6].contains("failed after"), "{table}");
        assert!(rows[7].ends_with("ended with an error"), "{table}");
    }

    /// Kills: a cause that is not found along the waits, or is not told first; a wait that is left out; waits
    /// in a ring that are followed for ever; a text of another process that a terminal obeys; a rank that
    /// there is not.
    #[test]
    fn the_cause_comes_first_and_then_who_waited_for_whom() {
        let waits = |on: usize| LastCalls { calls: Vec::new(), waits: Some((on, "b\u{1b}\narrier".into())) };
        let rank = |on: Option<usize>| (on.map_or_else(LastCalls::default, waits), End::Failed);
        let table = |waits: &[Option<usize>]| {
            let ranks: Vec<_> = waits.iter().copied().map(rank).collect();
            let received = ranks.into_iter().map(|(calls, end)| (calls.received(4).unwrap(), end));
            FlightRecorder::new(0, &received.collect::<Vec<_>>()).to_string()
        };
        let said = table(&[Some(1), Some(2), None, Some(0)]);
        let rows: Vec<_> = said.lines().skip(1).map(str::trim).collect();
        let waited = |rank, on| format!("rank {rank} waited for rank {on} in b\\u{{1b}} arrier");
        assert!(rows[0].starts_with("2 ") && rows[0].ends_with("ended with an error"), "{said}");
        assert_eq!(rows[1..4], [waited(0, 1), waited(1, 2), waited(3, 0)], "{said}");
        assert!(rows[4..].iter().zip(["0 ", "1 ", "3 "]).all(|(row, rank)| row.starts_with(rank)), "{said}");
        assert_eq!(rows.len(), 7, "{said}");
        assert_eq!(table(&[Some(1), Some(0)]).lines().count(), 1 + 2 + 2);
        assert_eq!(waits(4).received(4), None);
    }

    #[test]
    fn times_have_few_digits() {
        let texts = [3, 45_600, 7_890_000, 61_000_000_000].map(|ns| span(Duration::from_nanos(ns)));
        assert_eq!(texts, ["0.0 us", "45.6 us", "7.9 ms", "61.0 s"]);
    }
}
