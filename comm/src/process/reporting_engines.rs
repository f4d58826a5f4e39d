//! Engine of a process' own rank: reports each call to the group's other processes, then makes it among
//! their stand-ins.
use super::check;
use super::connection::gave_up;
use super::forms::SentForms;
use super::frame::{EngineFunction, GroupCalls, ProcessReport, encoded};
use super::order::Order;
use super::shares::SumName;
use crate::engine::Calls as CallsWithWindows;
use crate::process::processes::Processes;
use crate::shared::SharedPlace;
use crate::{Call, CommError, Engine, Engines, Members, Op, Post, Result, Windows};
use std::borrow::Cow;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The engines of a process' own rank.
pub(crate) struct ReportingEngines<P: SharedPlace>(Arc<EngineState<P>>);

/// State that all engines of the rank share.
struct EngineState<P: SharedPlace> {
    place: P,
    world: Arc<dyn Engines<P>>,
    processes: Arc<Processes>,
    order: Arc<Order>,
    limit: Duration,
    fails: Box<NoteFailure>,
    calls: AtomicUsize, // that were reported
    started: Mutex<Vec<StartedSums<P::Ptr>>>,
}

/// Takes note of a failure that this rank has met while it waited for a rank in a call.
type NoteFailure = dyn Fn(usize, String, &CommError) + Send + Sync;

/// All-reduces of a post, with the windows of their results.
type StartedSums<A> = (Arc<[usize]>, Post, Vec<(A, Call)>);

impl<P: SharedPlace> ReportingEngines<P> {
    /// Returns engines that report to these processes the calls they make on `world`. A process that receives
    /// nothing for `limit` is late. An error of a wait for another process is passed to `fails`.
    pub(crate) fn engines(
        place: &P,
        world: &Arc<dyn Engines<P>>,
        (processes, order): (&Arc<Processes>, &Arc<Order>),
        limit: Duration,
        fails: impl Fn(usize, String, &CommError) + Send + Sync + 'static,
    ) -> Arc<dyn Engines<P>> {
        let (place, world) = (place.clone(), world.clone());
        let (processes, order, calls) = (processes.clone(), order.clone(), AtomicUsize::new(0));
        let (started, fails) = (Mutex::default(), Box::new(fails));
        let state = EngineState { place, world, processes, order, limit, fails, calls, started };
        Arc::new(Self(Arc::new(state)))
    }
}

/// The engine of one group.
struct ReportingEngine<P: SharedPlace> {
    among: Arc<dyn Engine<P>>,
    members: Arc<[usize]>,
    own: Arc<EngineState<P>>,
}

impl<P: SharedPlace> Engines<P> for ReportingEngines<P> {
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>> {
        let own = self.0.clone();
        Arc::new(ReportingEngine { among: self.0.world.of(members), members: members.iter().collect(), own })
    }
}

impl<P: SharedPlace> ReportingEngine<P> {
    /// Returns the call with its number and its sentence, by which other processes know it.
    fn numbered(&self, call: &Call, started: bool) -> Call {
        let number = self.own.calls.fetch_add(1, Relaxed) + 1;
        let sums = call.op == Op::AllReduce;
        let sum = if sums { self.own.processes.shares().count(&self.members, started) } else { 0 };
        Call { number, sum, reported: Some(call.to_string().into()), ..call.clone() }
    }
    /// Returns the started all-reduces of a post, which ends.
    fn shared(&self, post: Post) -> Vec<(P::Ptr, Call)> {
        let mut started = self.started();
        let index = started.iter().position(|(members, of, _)| *of == post && *members == self.members);
        index.map_or_else(Vec::new, |at| started.swap_remove(at).2)
    }
    fn started(&self) -> MutexGuard<'_, Vec<StartedSums<P::Ptr>>> {
        self.own.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn name(&self, call: &Call) -> SumName {
        SumName { members: self.members.clone(), number: call.sum }
    }
    /// True if the ranks of a call add up shares of its elements, and not their place as a whole.
    fn is_shared(&self, call: &Call) -> bool {
        call.op == Op::AllReduce && !self.own.place.joins() && !call.adds_all(self.members.len())
    }
    /// Waits for the shares of the other ranks in an all-reduce, and writes them to the window of its result.
    ///
    /// # Errors
    /// If a rank has failed, or its share does not arrive in time.
    ///
    /// # Safety
    /// The window has the elements of the call, and no other code accesses it.
    unsafe fn gather(&self, rank: usize, take: P::Ptr, call: &Call) -> Result<()> {
        let size = call.elem.size;
        for (peer, &member) in self.members.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            let range = call.wanted(self.members.len(), rank, peer);
            if range.is_empty() {
                continue;
            }
            let bytes = range.len() * size;
            let target = P::raw(P::offset(take, range.start * size)).cast();
            let mut sent = bytes;
            let taken = self.own.order.take_share(member, &self.name(call), &mut |len, share| {
                sent = len;
                // SAFETY: the range lies in the window, as the caller promises.
                if len == bytes { unsafe { self.own.place.fill(target, len, share) } } else { Ok(()) }
            });
            let taken = match taken {
                Ok(true) if sent == bytes => Ok(()),
                Ok(true) => {
                    let reason = format!("its process sent {sent} bytes for {call}");
                    Err(CommError::Dead { rank: member, reason })
                }
                Ok(false) => Err(self.late(member, call)),
                Err(error) => Err(error),
            };
            taken.inspect_err(|error| (self.own.fails)(member, call.to_string(), error))?;
        }
        Ok(())
    }
    /// Returns the error of a rank that this rank has waited for too long in a call.
    fn late(&self, rank: usize, call: &dyn Display) -> CommError {
        let (call, limit, chain) = (call.to_string(), self.own.limit, Vec::new());
        CommError::Late { missing: vec![rank], arrived: vec![self.own.processes.rank()], call, limit, chain }
    }
    /// Returns the outcome of a call once this process has done its part in all calls.
    fn finish_parts<T>(&self, outcome: Result<T>) -> Result<T> {
        let outcome = outcome.inspect_err(|_| drop(self.own.order.quiet()))?;
        self.own.order.finish_parts().map(|()| outcome)
    }
    /// Sends a report to the processes of the group's other ranks, each with the elements that `of` returns
    /// for its place. If the place does together what ranks do, rank 0's process is told as well, as it says
    /// the order. Members come first: if this process is stopped half way, rank 0 takes no call for done that
    /// a member still waits for.
    ///
    /// # Errors
    /// If a process receives nothing any more. A process that has ended is noticed by its stand-in.
    fn tell<'a>(
        &self,
        call: &dyn Display,
        report: impl Fn(&mut SentForms) -> ProcessReport,
        of: impl Fn(usize) -> Vec<Cow<'a, [u8]>>,
    ) -> Result<()> {
        let process = self.own.processes.rank();
        let members = self.members.iter().enumerate().map(|(place, peer)| (*peer, Some(place)));
        let first = (self.own.place.joins() && !self.members.contains(&0)).then_some((0, None));
        for (peer, place) in members.chain(first).filter(|(peer, _)| *peer != process) {
            let sent = self.own.processes.report(peer, &report, &place.map_or_else(Vec::new, &of));
            if sent.is_err_and(|why| gave_up(&why)) {
                let late = self.late(peer, call);
                (self.own.fails)(peer, call.to_string(), &late);
                return Err(late);
            }
        }
        Ok(())
    }
    /// Returns a report of calls, as [`ReportingEngine::tell`] takes it.
    fn report<'a>(
        &self,
        way: EngineFunction,
        calls: impl Iterator<Item = &'a Call>,
    ) -> impl Fn(&mut SentForms) -> ProcessReport {
        let calls: Vec<_> = calls.cloned().collect();
        let first = calls[0].number;
        let form = encoded(&GroupCalls { way, members: self.members.clone(), calls });
        move |sent| ProcessReport::Calls(sent.of(&form), first)
    }
    /// Reports calls and the elements that they carry; no elements if the place does together what ranks do.
    ///
    /// # Safety
    /// Windows hold the elements that their calls give, and no code writes them.
    unsafe fn tell_calls(
        &self,
        way: EngineFunction,
        rank: usize,
        calls: &[(Option<P::Ptr>, &Call)],
    ) -> Result<()> {
        let place = &self.own.place;
        let carried = |peer| {
            let carried = calls.iter().map(move |&(give, call)| {
                let members = self.members.len();
                let [from, len] = check::carried(call, way, members, rank, Some(peer), place.joins());
                match give.filter(|_| len > 0) {
                    None => Cow::Borrowed(&[][..]),
                    // SAFETY: the caller's promise; the bytes are sent before this rank goes on.
                    Some(give) => unsafe { place.bytes(P::raw(P::offset(give, from)).cast(), len) },
                }
            });
            carried.collect()
        };
        self.tell(calls[0].1, self.report(way, calls.iter().map(|(_, call)| *call)), carried)
    }
}

impl<P: SharedPlace> Engine<P> for ReportingEngine<P> {
    unsafe fn now(&self, rank: usize, windows: Windows<P::Ptr>, call: &Call) -> Result<()> {
        let _waits = self.own.processes.waits();
        let call = &self.numbered(call, false);
        // SAFETY: the caller's promise.
        let outcome = unsafe {
            self.tell_calls(EngineFunction::Now, rank, &[(windows.give, call)])?;
            let outcome = self.among.now(rank, windows, call);
            match windows.take.filter(|_| outcome.is_ok() && self.is_shared(call)) {
                Some(take) => self.gather(rank, take, call),
                None => outcome,
            }
        };
        self.finish_parts(outcome)
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let _waits = self.own.processes.waits();
        let call = &self.numbered(call, false);
        let report = self.report(EngineFunction::Values, std::iter::once(call));
        self.tell(call, report, |_| vec![mine.into()])?;
        self.among.values(rank, mine, call)
    }
    unsafe fn start(&self, rank: usize, calls: CallsWithWindows<P::Ptr>) -> Result<Post> {
        let calls: Vec<_> = calls.map(|(windows, call)| (windows, self.numbered(&call, true))).collect();
        let reported: Vec<_> = calls.iter().map(|(windows, call)| (windows.give, call)).collect();
        let way = if reported[0].1.is_message() { EngineFunction::Post } else { EngineFunction::Start };
        let shared = calls.iter().filter(|(_, call)| self.is_shared(call));
        let shared: Vec<_> =
            shared.filter_map(|(windows, call)| windows.take.map(|take| (take, call.clone()))).collect();
        // SAFETY: the caller's promise.
        let post = unsafe {
            self.tell_calls(way, rank, &reported)?;
            self.among.start(rank, &mut calls.into_iter())?
        };
        if !shared.is_empty() {
            self.started().push((self.members.clone(), post, shared));
        }
        Ok(post)
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        let _waits = self.own.processes.waits();
        let reported = self.tell(call, |_| ProcessReport::Finish(self.members.clone(), post), |_| Vec::new());
        let shared = self.shared(post);
        reported.inspect_err(|_| self.among.withdraw(post))?;
        let outcome = self.among.finish(post, call).and_then(|()| {
            // SAFETY: windows are the post's until this returns.
            shared.iter().try_for_each(|(take, call)| unsafe { self.gather(post.from, *take, call) })
        });
        self.finish_parts(outcome)
    }
    fn withdraw(&self, post: Post) {
        let withdrawn = |_: &mut SentForms| ProcessReport::Withdraw(self.members.clone(), post);
        // the next call reports a process that receives nothing
        let _ = self.tell(&"a request that is dropped", withdrawn, |_| Vec::new());
        self.among.withdraw(post);
        drop(self.shared(post)); // the run has failed, so its shares do not matter
        let _ = self.own.order.quiet(); // as above
    }
}
