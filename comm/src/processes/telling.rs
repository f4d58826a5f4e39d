//! Engine of a process' own rank: reports each call to all other processes, then makes it among their
//! stand-ins.
use super::frame::{EngineFunction, ProcessReport, send};
use super::meeting::Processes;
use super::order::Order;
use super::shares::SumName;
use crate::engine::Calls;
use crate::shared::SharedPlace;
use crate::{Call, CommError, Engine, Engines, Members, Op, Post, Result, Windows};
use bytemuck::cast_slice_mut;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::Shutdown;
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
    calls: AtomicUsize, // that were reported
    started: Mutex<Vec<StartedSums<P::Ptr>>>,
}

/// All-reduces of a post, with the windows of their results.
type StartedSums<A> = (Arc<[usize]>, Post, Vec<(A, Call)>);

impl<P: SharedPlace> ReportingEngines<P> {
    /// Returns engines that report to these processes the calls they make on `world`. A process that receives
    /// nothing for `limit` is late.
    pub(crate) fn engines(
        place: &P,
        world: &Arc<dyn Engines<P>>,
        (processes, order): (&Arc<Processes>, &Arc<Order>),
        limit: Duration,
    ) -> Arc<dyn Engines<P>> {
        let (place, world) = (place.clone(), world.clone());
        let (processes, order, calls) = (processes.clone(), order.clone(), AtomicUsize::new(0));
        let started = Mutex::default();
        Arc::new(Self(Arc::new(EngineState { place, world, processes, order, limit, calls, started })))
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
        let (among, own) = (self.0.world.of(members), self.0.clone());
        Arc::new(ReportingEngine { among, members: members.iter().collect(), own })
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
        let at = started.iter().position(|(members, of, _)| *of == post && *members == self.members);
        at.map_or_else(Vec::new, |at| started.swap_remove(at).2)
    }
    fn started(&self) -> MutexGuard<'_, Vec<StartedSums<P::Ptr>>> {
        self.own.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn name(&self, call: &Call) -> SumName {
        SumName { members: self.members.clone(), number: call.sum }
    }
    /// True if the ranks of a call add up shares of its elements, and not their place as a whole.
    fn is_shared(&self, call: &Call) -> bool {
        call.op == Op::AllReduce && !self.own.place.joins()
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
            let Some(share) = self.own.order.take_share(member, &self.name(call))? else {
                return Err(self.late(member, call));
            };
            if share.len() != range.len() * size {
                let reason = format!("its process sent {} bytes for {call}", share.len());
                return Err(CommError::Dead { rank: member, reason });
            }
            let buffer = self.own.place.alloc(8 * share.len().div_ceil(8));
            let mut buffer = buffer.ok_or_else(|| {
                let reason = format!("there is no memory for {call}");
                CommError::Dead { rank: self.own.processes.rank(), reason }
            })?;
            P::put(&mut buffer, share.len().div_ceil(8), |at, to: &mut [u64]| {
                let bytes = &share[8 * at..][..(share.len() - 8 * at).min(8 * to.len())];
                cast_slice_mut::<_, u8>(to)[..bytes.len()].copy_from_slice(bytes);
            });
            let from = P::raw(P::ptr(&buffer)).cast::<u8>().cast_const();
            // SAFETY: the range lies in the window, as the caller promises; the buffer is this rank's own.
            unsafe {
                self.own.place.copy(from, P::raw(P::offset(take, range.start * size)).cast(), share.len());
            }
        }
        Ok(())
    }
    /// Returns the error of a rank that this rank has waited for too long in a call.
    fn late(&self, rank: usize, call: &dyn Display) -> CommError {
        let (missing, arrived) = (vec![rank], vec![self.own.processes.rank()]);
        let (call, limit, chain) = (call.to_string(), self.own.limit, Vec::new());
        CommError::Late { missing, arrived, call, limit, chain }
    }
    /// Returns the outcome of a call once this process has done its part in all calls.
    fn finish_parts<T>(&self, outcome: Result<T>) -> Result<T> {
        let outcome = outcome.inspect_err(|_| drop(self.own.order.quiet()))?;
        self.own.order.finish_parts().map(|()| outcome)
    }
    /// Sends all other processes the report that `of` makes for their place in the group, or for no place.
    /// Members come first: if this process is stopped half way, no process outside of the group takes a call
    /// for done that a member still waits for.
    ///
    /// # Errors
    /// If a process receives nothing any more. A process that has ended is noticed by its stand-in.
    fn tell<'a>(
        &self,
        call: &dyn Display,
        of: impl Fn(Option<usize>) -> (ProcessReport, Vec<Cow<'a, [u8]>>),
    ) -> Result<()> {
        let place = |peer| self.members.iter().position(|&member| member == peer);
        let others = || self.own.processes.others().map(|(peer, connection)| (peer, connection, place(peer)));
        let members = others().filter(|(_, _, place)| place.is_some());
        for (peer, connection, place) in members.chain(others().filter(|(_, _, place)| place.is_none())) {
            let (reported, elements) = of(place);
            let sent = send(connection, &reported, &elements);
            self.own.processes.count(sent.as_ref().map_or(0, |sent| *sent));
            if sent.is_err_and(|why| matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)) {
                let _ = connection.shutdown(Shutdown::Write); // half a frame was sent
                return Err(self.late(peer, call));
            }
        }
        Ok(())
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
        self.tell(calls[0].1, |peer| {
            let carried = calls.iter().map(|&(give, call)| {
                let peer = peer.filter(|_| !self.own.place.joins());
                let range = peer.map_or(0..0, |peer| call.wanted(self.members.len(), rank, peer));
                let [from, len] = [range.start, range.len()].map(|elements| elements * call.elem.size);
                let elements = match give.filter(|_| len > 0) {
                    None => Cow::Borrowed(&[][..]),
                    // SAFETY: the caller's promise; the bytes are sent before this rank goes on.
                    Some(give) => unsafe { self.own.place.bytes(P::raw(P::offset(give, from)).cast(), len) },
                };
                ((call.clone(), [from, len]), elements)
            });
            let (calls, elements) = carried.unzip();
            (ProcessReport::Calls(way, self.members.clone(), calls), elements)
        })
    }
}

impl<P: SharedPlace> Engine<P> for ReportingEngine<P> {
    unsafe fn now(&self, rank: usize, windows: Windows<P::Ptr>, call: &Call) -> Result<()> {
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
        let call = &self.numbered(call, false);
        self.tell(call, |peer| {
            let mine = if peer.is_some() { mine } else { &[] };
            let calls = vec![(call.clone(), [0, mine.len()])];
            (ProcessReport::Calls(EngineFunction::Values, self.members.clone(), calls), vec![mine.into()])
        })?;
        self.among.values(rank, mine, call)
    }
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post> {
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
        let reported = self.tell(call, |_| (ProcessReport::Finish(self.members.clone(), post), Vec::new()));
        let shared = self.shared(post);
        reported.inspect_err(|_| self.among.withdraw(post))?;
        let outcome = self.among.finish(post, call).and_then(|()| {
            // SAFETY: windows are the post's until this returns.
            shared.iter().try_for_each(|(take, call)| unsafe { self.gather(post.from, *take, call) })
        });
        self.finish_parts(outcome)
    }
    fn withdraw(&self, post: Post) {
        let withdrawn = |_| (ProcessReport::Withdraw(self.members.clone(), post), Vec::new());
        // the next call reports a process that receives nothing
        let _ = self.tell(&"a request that is dropped", withdrawn);
        self.among.withdraw(post);
        drop(self.shared(post)); // the run has failed, so its shares do not matter
        let _ = self.own.order.quiet(); // as above
    }
}
