//! Engine of a process' own rank: reports each call to all other processes, then makes it among their
//! stand-ins.
use super::frame::{EngineFunction, ProcessReport, send};
use super::meeting::Processes;
use super::order::Order;
use crate::engine::Calls;
use crate::shared::SharedPlace;
use crate::{Call, CommError, Engine, Engines, Members, Post, Result, Windows};
use std::borrow::Cow;
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The engines of a process' own rank.
pub(crate) struct ReportingEngines<P>(Arc<EngineState<P>>);

/// State that all engines of the rank share.
struct EngineState<P> {
    place: P,
    world: Arc<dyn Engines<P>>,
    processes: Arc<Processes>,
    order: Arc<Order>,
    limit: Duration,
    calls: AtomicUsize, // that were reported
}

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
        Arc::new(Self(Arc::new(EngineState { place, world, processes, order, limit, calls })))
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
    fn numbered(&self, call: &Call) -> Call {
        let number = self.own.calls.fetch_add(1, Relaxed) + 1;
        Call { number, reported: Some(call.to_string().into()), ..call.clone() }
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
            if sent.is_err_and(|why| matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)) {
                let _ = connection.shutdown(Shutdown::Write); // half a frame was sent
                let (missing, arrived) = (vec![peer], vec![self.own.processes.rank()]);
                let (call, limit, chain) = (call.to_string(), self.own.limit, Vec::new());
                return Err(CommError::Late { missing, arrived, call, limit, chain });
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
        let call = &self.numbered(call);
        // SAFETY: the caller's promise.
        let outcome = unsafe {
            self.tell_calls(EngineFunction::Now, rank, &[(windows.give, call)])?;
            self.among.now(rank, windows, call)
        };
        self.finish_parts(outcome)
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let call = &self.numbered(call);
        self.tell(call, |peer| {
            let mine = if peer.is_some() { mine } else { &[] };
            let calls = vec![(call.clone(), [0, mine.len()])];
            (ProcessReport::Calls(EngineFunction::Values, self.members.clone(), calls), vec![mine.into()])
        })?;
        self.among.values(rank, mine, call)
    }
    unsafe fn start(&self, rank: usize, calls: Calls<P::Ptr>) -> Result<Post> {
        let calls: Vec<_> = calls.map(|(windows, call)| (windows, self.numbered(&call))).collect();
        let reported: Vec<_> = calls.iter().map(|(windows, call)| (windows.give, call)).collect();
        let way = if reported[0].1.is_message() { EngineFunction::Post } else { EngineFunction::Start };
        // SAFETY: the caller's promise.
        unsafe {
            self.tell_calls(way, rank, &reported)?;
            self.among.start(rank, &mut calls.into_iter())
        }
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        let reported = self.tell(call, |_| (ProcessReport::Finish(self.members.clone(), post), Vec::new()));
        reported.inspect_err(|_| self.among.withdraw(post))?;
        self.finish_parts(self.among.finish(post, call))
    }
    fn withdraw(&self, post: Post) {
        let withdrawn = |_| (ProcessReport::Withdraw(self.members.clone(), post), Vec::new());
        // the next call reports a process that receives nothing
        let _ = self.tell(&"a request that is dropped", withdrawn);
        self.among.withdraw(post);
        let _ = self.own.order.quiet(); // as above
    }
}
