//! Ranks with a card each: NCCL launches their collectives on the streams of their cards.
//!
//! Ranks meet on the host, as ranks that share a card do, so a late, failed or disagreeing rank is named
//! before anything is launched. One thread then launches all ranks' parts as one group of NCCL calls, under a
//! lock of the world. So all streams get all calls in one order, whatever their groups and whichever rank
//! launches; if each rank launched its own part, two cards could wait for each other in two calls. A card
//! runs a call after all that its own rank launched before, and no host thread waits for a card. If ranks are
//! processes, each launches its own part, in the order that rank 0's process sets.
//!
//! Sums are taken in NCCL's order: the same bits on all ranks, but the last bits may differ from the host's,
//! which adds in rank order and rounds once. A thread watches for failures, and for calls in which a card has
//! waited for longer than the limit. Then all communicators are aborted, and every rank ends with the same
//! error.
use crate::card::{self, Card};
use crate::driver::{CudaError, Handle};
use crate::nccl::{self, Communicators, Nccl, UniqueId, nccl};
use comm::{JointCall, JointOperation, Reduce};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use tensor::limits;

/// The cards of a world, one per rank. In a process that is one rank, all entries are its own card.
pub(crate) struct Cards {
    nccl: &'static Nccl,
    by_rank: Vec<Arc<Card>>,
    limit: Duration,
    state: Mutex<CardState>,
    failed: OnceLock<String>,
}

struct CardState {
    groups: BTreeMap<Vec<usize>, Communicators>, // by their members
    scratch: Vec<(u64, usize)>,                  // of each rank: address, bytes
    under_way: VecDeque<LaunchedCall>,
    spare: Vec<Vec<Handle>>, // events of each rank
}
// SAFETY: any thread may use the driver's events.
unsafe impl Send for CardState {}

impl CardState {
    /// Returns the events of a call to the spares.
    fn reuse(&mut self, call: LaunchedCall) {
        for (rank, events) in call.members {
            self.spare[rank].extend(events);
        }
    }
}

/// A call that was launched.
struct LaunchedCall {
    call: String,
    members: Vec<(usize, [Handle; 2])>, // each with its events: its card has reached the call; has ended it
    since: Option<Instant>,             // when a card was first found waiting in it
}

/// Interval of the checks for failures.
pub(crate) const EVERY: Duration = Duration::from_millis(100);

/// A rank's side of a call: its rank in the group, its send and receive addresses, its communicator and its
/// stream.
struct CallSide {
    rank: usize,
    give: *mut u8,
    take: *mut u8,
    of: [Handle; 2],
}

impl Cards {
    /// Returns the cards of a world and starts a thread that watches them. NCCL calls are under way within
    /// half of `limit`, or fail.
    pub(crate) fn new(nccl: &'static Nccl, by_rank: Vec<Arc<Card>>, limit: Duration) -> Arc<Self> {
        let ranks = by_rank.len();
        let scratch = vec![(0, 0); ranks];
        let spare = vec![Vec::new(); ranks];
        let state = CardState { groups: BTreeMap::new(), scratch, under_way: VecDeque::new(), spare };
        let failed = OnceLock::new();
        let cards = Arc::new(Self { nccl, by_rank, limit, state: Mutex::new(state), failed });
        let watched = Arc::downgrade(&cards);
        limits::spawn(move || watch(&watched));
        cards
    }
    /// Returns the card of a rank.
    pub(crate) fn card(&self, rank: usize) -> &Arc<Card> {
        &self.by_rank[rank]
    }
    fn state(&self) -> MutexGuard<'_, CardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Checks everything that was launched so far.
    ///
    /// # Errors
    /// The failure. Nothing can be launched after it.
    pub(crate) fn well(&self) -> Result<(), String> {
        let mut state = self.state();
        let unwell = || state.groups.values().find_map(|group| group.look().err());
        match self.failed.get().cloned().or_else(unwell) {
            None => Ok(()),
            Some(why) => Err(self.abort(&mut state, why)),
        }
    }
    /// Checks that no card has waited in a call for longer than the limit.
    ///
    /// # Errors
    /// The call, and the cards that did not reach it. Nothing can be launched after it.
    fn in_time(&self) -> Result<(), String> {
        let mut state = self.state();
        let mut stuck = None;
        for call in &mut state.under_way {
            let [came, ended] = [0, 1].map(|which| {
                let passed =
                    call.members.iter().map(|(rank, events)| self.by_rank[*rank].passed(events[which]));
                passed.collect::<Result<Vec<bool>, _>>()
            });
            // a failed card is reported to the waiting rank
            let (Ok(came), Ok(ended)) = (came, ended) else { break };
            if came.iter().zip(&ended).all(|(came, ended)| !came || *ended) {
                call.since = None;
            } else if call.since.get_or_insert_with(Instant::now).elapsed() > self.limit {
                stuck = Some(late(call, &came, self.limit));
                break;
            }
        }
        stuck.map_or(Ok(()), |why| Err(self.abort(&mut state, why)))
    }
    /// Removes calls from the front of the queue while they have ended.
    fn forget(&self, state: &mut CardState) -> Result<(), CudaError> {
        while let Some(call) = state.under_way.front() {
            for (rank, [_, ended]) in &call.members {
                if !self.by_rank[*rank].passed(*ended)? {
                    return Ok(());
                }
            }
            let call = state.under_way.pop_front().expect("just seen");
            state.reuse(call);
        }
        Ok(())
    }
    /// Returns these ranks, each with two events.
    fn events(
        &self,
        state: &mut CardState,
        members: &[usize],
    ) -> Result<Vec<(usize, [Handle; 2])>, CudaError> {
        self.forget(state)?;
        let one =
            |rank: usize, spare: &mut Vec<Handle>| spare.pop().map_or_else(|| self.by_rank[rank].event(), Ok);
        let two = |&rank: &usize| {
            let spare = &mut state.spare[rank];
            Ok((rank, [one(rank, spare)?, one(rank, spare)?]))
        };
        members.iter().map(two).collect()
    }
    /// Aborts all communicators. Returns the reason of the world's first failure.
    fn abort(&self, state: &mut CardState, why: String) -> String {
        std::mem::take(&mut state.groups).values_mut().for_each(Communicators::abort);
        self.failed.get_or_init(|| why).clone()
    }
    /// Returns an NCCL id, with which the ranks of a group that are processes find each other.
    ///
    /// # Errors
    /// If NCCL failed.
    pub(crate) fn drawn(&self) -> Result<Vec<u8>, String> {
        self.nccl.id().map(|id| id.0.to_vec())
    }
    /// Launches a collective, for the ranks that are in this process.
    ///
    /// # Errors
    /// If NCCL failed, now or before.
    ///
    /// # Safety
    /// Windows hold what the call says, and only the streams of their ranks touch them.
    pub(crate) unsafe fn launch(&self, joint: &JointCall) -> Result<(), String> {
        let mut state = self.state();
        if let Some(why) = self.failed.get() {
            return Err(why.clone());
        }
        self.joined(&mut state, joint).map_err(|why| self.abort(&mut state, format!("{}: {why}", joint.call)))
    }
    fn joined(&self, state: &mut CardState, joint: &JointCall) -> Result<(), String> {
        let is_here = |rank: usize| joint.apart.is_none_or(|(own, _)| own == rank);
        let here: Vec<_> = (0..joint.members.len()).filter(|&rank| is_here(joint.members[rank])).collect();
        let members: Vec<_> = here.iter().map(|&rank| joint.members[rank]).collect();
        let cards: Vec<_> = members.iter().map(|&rank| &self.by_rank[rank]).collect();
        if !state.groups.contains_key(joint.members) {
            let id = match joint.apart {
                None => self.nccl.id()?,
                Some((_, drawn)) => UniqueId(drawn.try_into().map_err(|_| "its ranks received no NCCL id")?),
            };
            let ranks: Vec<_> = here.iter().copied().zip(cards.iter().copied()).collect();
            let new = Communicators::new(self.nccl, (id, joint.members.len()), &ranks, self.limit / 2)?;
            state.groups.insert(joint.members.to_vec(), new);
        }
        let members = self.events(state, &members).map_err(|error| error.to_string())?;
        let CardState { groups, scratch, under_way, .. } = state;
        let group = &groups[joint.members];
        let side = |(&(rank, of), card): (&(usize, Handle), &&Arc<Card>)| {
            let [give, take] = joint.windows.get(rank).copied().unwrap_or([null_mut(); 2]);
            Ok(CallSide { rank, give, take, of: [of, card.stream().map_err(|error| error.to_string())?] })
        };
        let sides = group.of.iter().zip(&cards).map(side).collect::<Result<Vec<_>, String>>();
        let mut sides = sides?;
        if let JointOperation::Columns { rows, cols, .. } = joint.what {
            let bytes = joint.members.len() * rows * cols * joint.size;
            for (side, card) in sides.iter_mut().zip(&cards) {
                side.take = room(&mut scratch[joint.members[side.rank]], card, bytes)?;
            }
        }
        // one card alone has no other part to wait for
        let _whole = joint.apart.is_none().then(card::lock_allocations);
        let record = |which: usize| {
            let mut cards = cards.iter().zip(&members);
            cards
                .try_for_each(|(card, (_, events))| card.record(events[which]))
                .map_err(|error| error.to_string())
        };
        record(0)?;
        self.nccl.grouped(|| self.calls(joint, &sides))?;
        group.settled(self.limit / 2)?; // before the ranks that wait for this one time out
        copied(joint, &cards, &sides).map_err(|error| error.to_string())?;
        record(1)?;
        under_way.push_back(LaunchedCall { call: joint.call.to_string(), members, since: None });
        Ok(())
    }
    /// Makes NCCL's calls, rank by rank.
    fn calls(&self, joint: &JointCall, sides: &[CallSide]) -> Result<(), String> {
        let nccl = self.nccl;
        let size = joint.size;
        let number = if joint.number == "bf16" { nccl::BF16 } else { nccl::F32 };
        let each = |call: &dyn Fn(&CallSide) -> Result<(), String>| sides.iter().try_for_each(call);
        match &joint.what {
            &JointOperation::Reduced(how, len) => {
                let how = if how == Reduce::Sum { nccl::SUM } else { nccl::MAX };
                each(&|&CallSide { give, take, of: [comm, stream], .. }| {
                    nccl!(nccl, ncclAllReduce(give.cast(), take.cast(), len, number, how, comm, stream))
                })
            }
            JointOperation::Scattered(blocks) if blocks.iter().all(|[_, len]| *len == blocks[0][1]) => {
                each(&|&CallSide { give, take, of: [comm, stream], .. }| {
                    let (give, take, len) = (give.cast(), take.cast(), blocks[0][1]);
                    nccl!(nccl, ncclReduceScatter(give, take, len, number, nccl::SUM, comm, stream))
                })
            }
            JointOperation::Scattered(blocks) => {
                each(&|&CallSide { give, take, of: [comm, stream], .. }| {
                    let mut blocks = (0..).zip(blocks).filter(|(_, [_, len])| *len > 0);
                    blocks.try_for_each(|(root, &[at, len])| {
                        let give = give.wrapping_add(at * size).cast();
                        nccl!(nccl, ncclReduce(give, take.cast(), len, number, nccl::SUM, root, comm, stream))
                    })
                })
            }
            &JointOperation::Gathered(len) => self.gathered(sides, len * size),
            &JointOperation::Columns { rows, cols, .. } => self.gathered(sides, rows * cols * size),
            &JointOperation::Spread(root, len) => {
                each(&|&CallSide { give, take, of: [comm, stream], .. }| {
                    let (give, take, bytes) = (give.cast(), take.cast(), len * size);
                    nccl!(nccl, ncclBroadcast(give, take, bytes, nccl::BYTES, root as c_int, comm, stream))
                })
            }
            JointOperation::Moved(moves) => {
                moves.iter().filter(|m| m.from != m.to && m.bytes > 0).try_for_each(|m| {
                    let communicator = |rank| sides.iter().find(|side| side.rank == rank).map(|side| side.of);
                    let [from, to] = [m.from, m.to].map(|rank| rank as c_int);
                    communicator(m.from).map_or(Ok(()), |[comm, stream]| {
                        nccl!(nccl, ncclSend(m.source.cast(), m.bytes, nccl::BYTES, to, comm, stream))
                    })?;
                    communicator(m.to).map_or(Ok(()), |[comm, stream]| {
                        nccl!(nccl, ncclRecv(m.target.cast(), m.bytes, nccl::BYTES, from, comm, stream))
                    })
                })
            }
        }
    }
    fn gathered(&self, sides: &[CallSide], bytes: usize) -> Result<(), String> {
        let mut sides = sides.iter();
        sides.try_for_each(|&CallSide { give, take, of: [comm, stream], .. }| {
            nccl!(self.nccl, ncclAllGather(give.cast(), take.cast(), bytes, nccl::BYTES, comm, stream))
        })
    }
}

/// Returns a message that cards wait in a call for other cards, or for NCCL if all have reached it.
fn late(call: &LaunchedCall, came: &[bool], limit: Duration) -> String {
    let listed = |wanted: bool| {
        let ranks = call.members.iter().zip(came).filter(|(_, came)| **came == wanted);
        let ranks: Vec<_> = ranks.map(|((rank, _), _)| rank.to_string()).collect();
        if let [rank] = &ranks[..] { format!("rank {rank}") } else { format!("ranks {}", ranks.join(", ")) }
    };
    if came.iter().all(|came| *came) {
        return format!(
            "the GPUs of {} reached {} and did not finish it within {limit:?}",
            listed(true),
            call.call
        );
    }
    format!("the GPU of {} did not reach {} within {limit:?}; {} did", listed(false), call.call, listed(true))
}

/// Launches each card's own copies: a rank's pieces for itself, and the wanted columns of what was gathered.
fn copied(joint: &JointCall, cards: &[&Arc<Card>], sides: &[CallSide]) -> Result<(), CudaError> {
    match &joint.what {
        JointOperation::Moved(moves) => {
            let local = |rank| moves.iter().filter(move |m| [m.from, m.to] == [rank; 2] && m.bytes > 0);
            let mut copies =
                sides.iter().zip(cards).flat_map(|(side, card)| local(side.rank).map(move |m| (card, m)));
            copies.try_for_each(|(card, m)| card.copy(m.source as u64, m.target as u64, m.bytes))
        }
        &JointOperation::Columns { rows, cols, n } => {
            for (side, card) in sides.iter().zip(cards) {
                let take = joint.windows[side.rank][1] as usize;
                let peers = 0..joint.members.len();
                for (peer, row) in peers.flat_map(|peer| (0..rows).map(move |row| (peer, row))) {
                    let first = (peer * cols).min(n);
                    let len = ((peer + 1) * cols).min(n) - first;
                    let from = side.take as usize + (peer * rows + row) * cols * joint.size;
                    let target = take + (row * n + first) * joint.size;
                    if len > 0 {
                        card.copy(from as u64, target as u64, len * joint.size)?;
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns a rank's scratch memory of at least `bytes`. Only the rank's own stream uses it, so the next call
/// needs no wait.
fn room((at, held): &mut (u64, usize), card: &Card, bytes: usize) -> Result<*mut u8, String> {
    if *held < bytes {
        if *held > 0 {
            card.free(*at);
            *held = 0;
        }
        let new = card.alloc(bytes).map_err(|error| error.to_string())?;
        *at = new.ok_or_else(|| format!("out of GPU memory: a gather needs {bytes} more bytes"))?;
        *held = bytes;
    }
    Ok(*at as *mut u8)
}

/// Watches a world until it is dropped, and so ends calls in which cards wait for NCCL for ever.
fn watch(cards: &Weak<Cards>) {
    while let Some(cards) = cards.upgrade() {
        if cards.well().and_then(|()| cards.in_time()).is_err() {
            return;
        }
        drop(cards);
        thread::sleep(EVERY);
    }
}

impl Drop for Cards {
    fn drop(&mut self) {
        let limit = self.limit;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.groups.values_mut().for_each(|group| group.end(limit));
        let held = self.by_rank.iter().zip(&state.scratch).filter(|(_, (_, held))| *held > 0);
        held.for_each(|(card, (at, _))| card.free(*at));
        while let Some(call) = state.under_way.pop_front() {
            state.reuse(call);
        }
        let events = self.by_rank.iter().zip(state.spare.drain(..));
        events.for_each(|(card, events)| events.into_iter().for_each(|event| card.forget(event)));
    }
}
