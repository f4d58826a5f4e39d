//! The engine of a process' own rank: it tells all other processes what the rank does, and does it among their stand-ins.
use super::frame::{Told, Writer, wanted};
use super::meeting::Processes;
use super::order::Order;
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
pub(crate) struct Telling<P> {
    place: P,
    world: Arc<dyn Engines<P>>,
    processes: Arc<Processes>,
    order: Arc<Order>,
    limit: Duration,
    calls: Arc<AtomicUsize>, // that were told
}

impl<P: SharedPlace> Telling<P> {
    /// Those that tell these processes what they do on these engines; a process that takes nothing for so long is late.
    pub(crate) fn engines(
        place: &P,
        world: &Arc<dyn Engines<P>>,
        (processes, order): (&Arc<Processes>, &Arc<Order>),
        limit: Duration,
    ) -> Arc<dyn Engines<P>> {
        let (place, world) = (place.clone(), world.clone());
        let (processes, order) = (processes.clone(), order.clone());
        Arc::new(Self { place, world, processes, order, limit, calls: Arc::default() })
    }
}

/// That of one group.
struct Teller<P: SharedPlace> {
    place: P,
    among: Arc<dyn Engine<P>>,
    members: Arc<[usize]>,
    processes: Arc<Processes>,
    order: Arc<Order>,
    limit: Duration,
    calls: Arc<AtomicUsize>,
}

impl<P: SharedPlace> Engines<P> for Telling<P> {
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>> {
        let (among, members) = (self.world.of(members), members.iter().collect());
        let (place, processes, order) = (self.place.clone(), self.processes.clone(), self.order.clone());
        let (limit, calls) = (self.limit, self.calls.clone());
        Arc::new(Teller { place, among, members, processes, order, limit, calls })
    }
}

impl<P: SharedPlace> Teller<P> {
    /// The call, with a number of its own.
    fn numbered(&self, call: &Call) -> Call {
        Call { number: self.calls.fetch_add(1, Relaxed) + 1, ..call.clone() }
    }
    /// What came of a call, when this process has done its part in all of them.
    fn settled<T>(&self, outcome: Result<T>) -> Result<T> {
        let outcome = outcome.inspect_err(|_| drop(self.order.quiet()))?;
        self.order.settled().map(|()| outcome)
    }
    /// Tells all other processes.
    ///
    /// # Errors
    /// That one of them takes nothing any more. One that has ended is noticed by its stand-in.
    fn tell(
        &self,
        told: Told,
        head: impl FnOnce(&mut Writer),
        elements: &dyn Fn(Option<usize>, &mut Writer) -> Vec<Cow<'static, [u8]>>,
        call: &dyn Display,
    ) -> Result<()> {
        let mut to_all = Writer::default();
        to_all.told(told);
        to_all.list(self.members.iter().copied());
        head(&mut to_all);
        for (peer, connection) in self.processes.others() {
            let mut frame = to_all.clone();
            let place = self.members.iter().position(|&member| member == peer);
            let elements = elements(place, &mut frame);
            let elements: Vec<_> = elements.iter().map(|elements| &**elements).collect();
            let sent = frame.send(connection, &elements);
            if sent.is_err_and(|why| matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)) {
                let _ = connection.shutdown(Shutdown::Write); // half a frame went
                let (missing, arrived) = (vec![peer], vec![self.processes.rank()]);
                let (call, limit, chain) = (call.to_string(), self.limit, Vec::new());
                return Err(CommError::Late { missing, arrived, call, limit, chain });
            }
        }
        Ok(())
    }
    /// Tells of calls and what they carry: nothing, where the place does together what ranks do.
    ///
    /// # Safety
    /// Windows hold what their calls give, and nobody writes them.
    unsafe fn tell_calls(&self, told: Told, rank: usize, calls: &[(Option<P::Ptr>, &Call)]) -> Result<()> {
        let head = |frame: &mut Writer| {
            frame.word(calls.len());
            for (_, call) in calls {
                frame.call(call);
            }
        };
        let elements = |peer: Option<usize>, frame: &mut Writer| {
            let wants = calls.iter().map(|(give, call)| {
                let peer = peer.filter(|_| !self.place.joins());
                let range = peer.map_or(0..0, |peer| wanted(call, self.members.len(), rank, peer));
                let [from, len] = [range.start, range.len()].map(|elements| elements * call.elem.size);
                frame.words([from, len]);
                match give.filter(|_| len > 0) {
                    None => Cow::Borrowed(&[][..]),
                    // SAFETY: the caller's promise; they are sent before this rank goes on.
                    Some(give) => unsafe { self.place.bytes(P::raw(P::offset(give, from)).cast(), len) },
                }
            });
            wants.collect()
        };
        self.tell(told, head, &elements, calls[0].1)
    }
    fn tell_of(&self, told: Told, post: Post, call: &dyn Display) -> Result<()> {
        self.tell(told, |frame| frame.post(post), &|_, _| Vec::new(), call)
    }
}

impl<P: SharedPlace> Engine<P> for Teller<P> {
    unsafe fn now(&self, rank: usize, windows: Windows<P>, call: &Call) -> Result<()> {
        let call = &self.numbered(call);
        // SAFETY: the caller's promise.
        let outcome = unsafe {
            self.tell_calls(Told::Now, rank, &[(windows.give, call)])?;
            self.among.now(rank, windows, call)
        };
        self.settled(outcome)
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let elements = |peer: Option<usize>, frame: &mut Writer| {
            let mine = if peer.is_some() { mine.to_vec() } else { Vec::new() };
            frame.word(mine.len());
            vec![Cow::Owned(mine)]
        };
        self.tell(Told::Values, |frame| frame.call(call), &elements, call)?;
        self.among.values(rank, mine, call)
    }
    unsafe fn start(&self, rank: usize, calls: &mut dyn Iterator<Item = (Windows<P>, Call)>) -> Result<Post> {
        let calls: Vec<_> = calls.map(|(windows, call)| (windows, self.numbered(&call))).collect();
        let told: Vec<_> = calls.iter().map(|(windows, call)| (windows.give, call)).collect();
        // SAFETY: the caller's promise.
        unsafe {
            self.tell_calls(Told::Start, rank, &told)?;
            self.among.start(rank, &mut calls.into_iter())
        }
    }
    unsafe fn post(&self, rank: usize, window: Option<P::Ptr>, call: &Call) -> Result<Post> {
        let call = &self.numbered(call);
        // SAFETY: the caller's promise.
        unsafe {
            self.tell_calls(Told::Post, rank, &[(window, call)])?;
            self.among.post(rank, window, call)
        }
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        let told = self.tell_of(Told::Finish, post, call);
        told.inspect_err(|_| self.among.withdraw(post))?;
        self.settled(self.among.finish(post, call))
    }
    fn withdraw(&self, post: Post) {
        let _ = self.tell_of(Told::Withdraw, post, &"a request that is dropped"); // who takes nothing is told of by the next call
        self.among.withdraw(post);
        let _ = self.order.quiet(); // as above
    }
}
