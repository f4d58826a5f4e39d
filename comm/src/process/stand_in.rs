//! Stand-in for a rank of another process: makes the calls that the rank reports, in its order.
use super::check;
use super::forms::ReportedCalls;
use super::frame::{
    EngineFunction, FailedEnd, GroupCalls, ProcessReport, exited, no_frame, read_bytes, receive_head,
};
use crate::engine::StandingPost;
use crate::process::processes::{Heard, Processes};
use crate::record::Begun;
use crate::shared::SharedPlace;
use crate::{Call, CommError, Engines, Members, Post, RankRecord, Windows};
use bytemuck::cast_slice_mut;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;
use tensor::quoted::sentence;

/// Most bytes that are allocated before they arrive.
const AT_ONCE: usize = 1 << 24;

/// Stands in for a rank of another process.
pub(crate) struct StandIn<'a, P: SharedPlace> {
    rank: usize,
    place: &'a P,
    world: &'a dyn Engines<P>,
    record: &'a RankRecord,
    found: &'a dyn Fn(&str), // called when ranks are found to wait for each other
    waits: &'a ToldWaits<'a>,
    standing: Vec<Stands<P>>,
    spare: Vec<(usize, P::Buffer)>,
}

/// Takes note of the rank for which this rank waits, and in which call; none if it goes on.
type ToldWaits<'a> = dyn Fn(Option<(usize, String)>) + 'a;

/// A standing post; it ends before its buffers are freed.
struct Stands<P: SharedPlace> {
    members: Arc<[usize]>,
    post: Post,
    standing: StandingPost<P>,
    begun: Option<Begun>,
    carried: Vec<CallElements<P>>,
}

/// Elements that a call carries, and the pointer to give for them.
struct CallElements<P: SharedPlace> {
    give: Option<P::Ptr>,
    buffer: Option<(usize, P::Buffer)>,
}

impl<'a, P: SharedPlace> StandIn<'a, P> {
    /// Makes a stand-in for this rank, on these engines.
    pub(crate) fn new(
        rank: usize,
        (place, world): (&'a P, &'a dyn Engines<P>),
        record: &'a RankRecord,
        (found, waits): (&'a dyn Fn(&str), &'a ToldWaits<'a>),
    ) -> Self {
        Self { rank, place, world, record, found, waits, standing: Vec::new(), spare: Vec::new() }
    }
    /// Makes the rank's calls until the rank reports that it has ended. Returns its failure, if it ended with
    /// one. Other outcomes of calls are the rank's own to report.
    ///
    /// # Errors
    /// If the rank's process ended without a report, or sent an invalid one.
    pub(crate) fn run(mut self, processes: &Processes) -> Result<Option<FailedEnd>, String> {
        processes.with_reports(self.rank, |Heard { from, forms }| {
            loop {
                match receive_head(from).map_err(exited)? {
                    ProcessReport::Ended(None) => return Ok(None),
                    ProcessReport::Ended(Some(((rank, why), calls))) => {
                        let calls = calls.received(processes.ranks()).filter(|_| rank < processes.ranks());
                        let end = calls.map(|calls| Some(((rank, sentence(&why)), calls)));
                        return end.ok_or_else(|| exited(no_frame()));
                    }
                    ProcessReport::Waits(wait) => {
                        if wait.as_ref().is_some_and(|(on, _)| *on >= processes.ranks()) {
                            return Err(exited(no_frame()));
                        }
                        (self.waits)(wait.map(|(on, call)| (on, sentence(&call))));
                    }
                    ProcessReport::Finish(members, post) => self.leaves(&members, post, true),
                    ProcessReport::Withdraw(members, post) => self.leaves(&members, post, false),
                    ProcessReport::Calls(form, first) => {
                        let reported = forms.calls(form, self.rank, processes.ranks()).map_err(exited)?;
                        self.makes(&reported, first, (from, processes.rank())).map_err(exited)?;
                    }
                }
            }
        })
    }
    /// Makes calls, with the elements that they carry.
    fn makes(
        &mut self,
        reported: &ReportedCalls,
        first: usize,
        (from, own): (&mut impl Read, usize),
    ) -> io::Result<()> {
        let GroupCalls { way, ref members, .. } = reported.calls;
        let rank = reported.place;
        let to = members.iter().position(|&member| member == own);
        let calls: Vec<_> = reported.numbered(first).collect();
        let engine = &self.world.of(&Members::List(members.clone()));
        let first = calls[0].clone();
        let bytes = |call: &Call| check::carried(call, way, members.len(), rank, to, self.place.joins());
        if way == EngineFunction::Values {
            let values = read_bytes(from, bytes(&first)[1])?;
            let begun = self.record.begin(&first, 0, false).ok();
            let outcome = engine.values(rank, &values, &first);
            self.ended(begun, None, &first, &outcome);
            return Ok(());
        }
        let ranges: Vec<_> = calls.iter().map(bytes).collect();
        let carried = ranges.into_iter().map(|range| self.carried(range, from));
        let carried = carried.collect::<io::Result<Vec<_>>>()?;
        let windows = |carried: &CallElements<P>| Windows { give: carried.give, take: None };
        let begun = self.record.begin(&first, 0, way != EngineFunction::Now).ok();
        // SAFETY: the window holds the bytes that this process' rank takes, as was checked above. No other
        // code touches them, they are kept until the call or its post has ended, and nothing is taken.
        let post = unsafe {
            if way == EngineFunction::Now {
                engine.now(rank, windows(&carried[0]), &first).map(|()| None)
            } else {
                let mut calls = carried.iter().map(windows).zip(calls);
                engine.start(rank, &mut calls).map(Some)
            }
        };
        if let Ok(Some(post)) = post {
            let standing = StandingPost::new(engine, post, first);
            self.standing.push(Stands { members: members.clone(), post, standing, begun, carried });
        } else {
            self.ended(begun, None, &first, &post);
            self.keep(carried);
        }
        Ok(())
    }
    /// Ends a post: waits until it is done, or withdraws it at once.
    fn leaves(&mut self, members: &[usize], post: Post, waits: bool) {
        let at = self.standing.iter().position(|s| s.post == post && *s.members == *members);
        let Some(at) = at else { return }; // the world has failed
        let Stands { mut standing, begun, carried, .. } = self.standing.swap_remove(at);
        if waits {
            let waited = Instant::now();
            let outcome = standing.finish();
            self.ended(begun, Some(waited), &standing.call, &outcome);
        }
        drop(standing);
        self.keep(carried);
    }
    fn ended<T>(
        &self,
        begun: Option<Begun>,
        waited: Option<Instant>,
        call: &Call,
        outcome: &Result<T, CommError>,
    ) {
        begun.inspect(|&begun| self.record.end(begun, waited, call, outcome));
        if let Err(error @ CommError::Deadlock { .. }) = outcome {
            (self.found)(&error.to_string());
        }
    }
    /// Keeps free buffers for later calls.
    fn keep(&mut self, carried: Vec<CallElements<P>>) {
        const MOST: usize = 32;
        self.spare.extend(carried.into_iter().filter_map(|carried| carried.buffer));
        self.spare.drain(..self.spare.len().saturating_sub(MOST));
    }
    /// Reads `len` bytes into a buffer; they lie `at` bytes behind the start of the window.
    fn carried(&mut self, [at, len]: [usize; 2], from: &mut impl Read) -> io::Result<CallElements<P>> {
        if len == 0 {
            return Ok(CallElements { give: None, buffer: None });
        }
        let words = len.div_ceil(8);
        let mut read = Ok(());
        let spare = self.spare.iter().position(|(room, _)| *room == words);
        let before = if spare.is_none() && len > AT_ONCE { read_bytes(from, len)? } else { Vec::new() };
        let from = &mut before.chain(from);
        let new = || Some((words, self.place.alloc(8 * words)?));
        let buffer = spare.map(|at| self.spare.swap_remove(at)).or_else(new);
        let mut buffer = buffer.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        P::put(&mut buffer.1, words, |at, to: &mut [u64]| {
            let bytes = (len - 8 * at).min(8 * to.len());
            if read.is_ok() {
                read = from.read_exact(&mut cast_slice_mut(to)[..bytes]);
            }
        });
        read?;
        let give = P::offset(P::ptr(&buffer.1), at.wrapping_neg());
        Ok(CallElements { give: Some(give), buffer: Some(buffer) })
    }
}
