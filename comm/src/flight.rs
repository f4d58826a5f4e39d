//! The flight recorder: the last calls of every rank of a failed run, in one table.
use crate::{Call, RankRecord};
use std::fmt;
use std::time::{Duration, Instant};

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
    let seconds = time.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

impl FlightRecorder {
    /// Makes the table from every rank's record and state.
    pub(crate) fn new<'a>(ranks: impl Iterator<Item = (&'a RankRecord, End)>) -> Self {
        let mut rows = vec!["rank  call       began  outcome                what".to_string()];
        for (rank, (record, end)) in ranks.enumerate() {
            for flight in record.flights() {
                let (began, outcome) = (span(flight.began - record.start()), flight.outcome());
                let Flight { number, call, .. } = flight;
                rows.push(format!("{rank:>4}  {number:>4}  {began:>10}  {outcome:<21}  {call}"));
            }
            rows.push(format!("{rank:>4}  {:>4}  {:>10}  {end}", "", ""));
        }
        Self(rows.join("\n"))
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
        let table = FlightRecorder::new(records.iter().zip([End::Well, End::Failed])).to_string();
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

    #[test]
    fn times_have_few_digits() {
        let texts = [3, 45_600, 7_890_000, 61_000_000_000].map(|ns| span(Duration::from_nanos(ns)));
        assert_eq!(texts, ["0.0 us", "45.6 us", "7.9 ms", "61.0 s"]);
    }
}
