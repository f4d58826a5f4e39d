//! Forms of calls that a connection has carried. A rank makes the same calls step after step, so each form
//! travels once, and its place among the forms afterwards. Both ends keep the same list.
use super::check;
use super::frame::{CallsForm, GroupCalls, decoded, no_frame};
use crate::Call;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Most forms that a connection keeps, and the longest one, in bytes; others travel each time.
const MOST: usize = 4096;
const LONGEST: usize = 4096;

fn is_kept(known: usize, bytes: &[u8]) -> bool {
    known < MOST && bytes.len() <= LONGEST
}

/// Forms that were sent.
#[derive(Default)]
pub(super) struct SentForms(HashMap<Vec<u8>, usize>);

impl SentForms {
    /// Returns the form of calls with these bytes for the next frame.
    pub(super) fn of(&mut self, bytes: &[u8]) -> CallsForm {
        if let Some(place) = self.0.get(bytes) {
            return CallsForm::Known(*place);
        }
        if is_kept(self.0.len(), bytes) {
            self.0.insert(bytes.to_vec(), self.0.len());
        }
        CallsForm::New(bytes.to_vec())
    }
}

/// Calls that a rank reported, checked, with its place in their group.
pub(super) struct ReportedCalls {
    pub(super) calls: GroupCalls,
    pub(super) place: usize,
}

impl ReportedCalls {
    /// Returns the calls, the first with this number.
    pub(super) fn numbered(&self, first: usize) -> impl Iterator<Item = Call> {
        let number = move |(i, call): (usize, &Call)| Call { number: first.wrapping_add(i), ..call.clone() };
        self.calls.calls.iter().enumerate().map(number)
    }
}

/// Forms that have arrived.
#[derive(Default)]
pub(super) struct ArrivedForms(Vec<Arc<ReportedCalls>>);

impl ArrivedForms {
    /// Returns the calls of a form that `rank` has sent, in a world of `ranks`.
    ///
    /// # Errors
    /// If no rank makes such calls.
    pub(super) fn calls(
        &mut self,
        form: CallsForm,
        rank: usize,
        ranks: usize,
    ) -> io::Result<Arc<ReportedCalls>> {
        let bytes = match form {
            CallsForm::Known(place) => return self.0.get(place).cloned().ok_or_else(no_frame),
            CallsForm::New(bytes) => bytes,
        };
        let mut calls: GroupCalls = decoded(&bytes)?;
        let place = check::calls(&mut calls, rank, ranks)?;
        let reported = Arc::new(ReportedCalls { calls, place });
        if is_kept(self.0.len(), &bytes) {
            self.0.push(reported.clone());
        }
        Ok(reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::frame::{EngineFunction, encoded};

    fn barrier(members: &[usize]) -> Vec<u8> {
        let (way, call) =
            (EngineFunction::Now, Call { reported: Some("a barrier".into()), ..Call::barrier() });
        encoded(&GroupCalls { way, members: members.into(), calls: vec![call] })
    }

    /// Kills: a form that is taken for another, or that one end keeps and the other does not.
    #[test]
    fn both_ends_keep_the_same_forms() {
        let (mut sent, mut arrived) = (SentForms::default(), ArrivedForms::default());
        let mut travelled = |bytes: &[u8]| {
            let form = sent.of(bytes);
            let is_new = matches!(form, CallsForm::New(_));
            (is_new, arrived.calls(form, 1, MOST + 9).unwrap().calls.members.to_vec())
        };
        let long: Vec<_> = (0..LONGEST).collect();
        for round in 0..2 {
            for other in 2..MOST + 9 {
                let kept = round > 0 && other < MOST + 1; // one less, after the first
                assert_eq!(travelled(&barrier(&[1, other])), (!kept, vec![1, other]));
                if other == 2 {
                    assert_eq!(travelled(&barrier(&[0, 1])), (round == 0, vec![0, 1]));
                    assert_eq!(travelled(&barrier(&long)), (true, long.clone()), "too long");
                }
            }
        }
        assert!(arrived.calls(CallsForm::Known(MOST), 1, 2).is_err());
        assert!(arrived.calls(CallsForm::New(vec![1, 2, 3]), 1, 2).is_err());
    }
}
