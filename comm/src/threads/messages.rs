//! Messages from one rank of a group to another. A sender shows its window and waits; the receiver copies straight out
//! of it. A sender shows one window at a time, so messages to one receiver arrive in order.
use super::watch::{Pending, Wait, Watch};
use crate::call::Call;
use crate::error::{CommError, Result};
use std::ptr::from_ref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Arc, Mutex};
use tensor::{Cpu, Scalar, View, ViewMut};

/// The messages of one group.
pub(super) struct Messages {
    outboxes: Arc<[Outbox]>, // of the senders
    ranks: Arc<[usize]>,     // of the world
    watch: Arc<Watch>,
}

/// What one rank sends. From `Offered` until it is `Taken` or `Refused`, data and call are public.
#[repr(align(128))]
#[derive(Default)]
struct Outbox {
    state: AtomicUsize,
    data: AtomicPtr<()>,
    call: AtomicPtr<Call<'static>>,
    refusal: Mutex<String>, // the receiver's call
}

const FREE: usize = 0;
const CLAIMED: usize = 1;
#[derive(Clone, Copy)]
enum Step {
    Offered = 2,
    Taking,
    Taken,
    Refused,
}
/// The state of an outbox whose message is for `to`.
fn state(step: Step, to: usize) -> usize {
    to << 3 | step as usize
}

impl Messages {
    pub(super) fn new(ranks: Arc<[usize]>, watch: Arc<Watch>) -> Self {
        Self { outboxes: ranks.iter().map(|_| Outbox::default()).collect(), ranks, watch }
    }
    /// Returns when `to` has a copy of the data.
    ///
    /// # Errors
    /// Those of every call of a group.
    pub(super) fn send<S: Scalar>(
        &self,
        from: usize,
        to: usize,
        data: View<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let outcome = self.offer(from, to, data.ptr().raw().cast(), call);
        self.noted(from, outcome)
    }
    fn offer(&self, from: usize, to: usize, data: *mut (), call: &Call) -> Result<()> {
        self.watch.alive()?;
        let outbox = &self.outboxes[from];
        if outbox.state.compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_err() {
            return Err(CommError::Busy { rank: self.ranks[from], call: call.to_string() });
        }
        outbox.data.store(data, Relaxed);
        outbox.call.store(from_ref(call).cast_mut().cast(), Relaxed);
        outbox.state.store(state(Step::Offered, to), SeqCst);
        let offer = Offer { outbox, to };
        self.watch.wake(self.ranks[to], self.ranks[from]);
        let waited =
            self.watch.wait(self.ranks[from], &Exchange { place: self, from, to, call, sends: true });
        match offer.end() {
            End::Taken => Ok(()),
            End::Withdrawn => waited,
            End::Refused(theirs) => {
                let (rank, peer) = (self.ranks[from], self.ranks[to]);
                Err(CommError::Mismatch { rank, mine: call.to_string(), peer, theirs })
            }
        }
    }
    /// Copies what `from` sends to `out`.
    ///
    /// # Errors
    /// Those of every call of a group.
    pub(super) fn receive<S: Scalar>(
        &self,
        to: usize,
        from: usize,
        out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let outcome = self.take(to, from, out, call);
        self.noted(to, outcome)
    }
    fn take<S: Scalar>(&self, to: usize, from: usize, mut out: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let (outbox, out) = (&self.outboxes[from], out.flat());
        self.watch.alive()?;
        loop {
            self.watch.wait(self.ranks[to], &Exchange { place: self, from, to, call, sends: false })?;
            let (offered, taking) = (state(Step::Offered, to), state(Step::Taking, to));
            if outbox.state.compare_exchange(offered, taking, Acquire, Relaxed).is_ok() {
                break;
            } // else the sender has withdrawn its offer
        }
        // From here to the end nothing may panic: the sender waits until the state changes.
        // SAFETY: the sender does not leave while we are taking.
        let theirs = unsafe { &*outbox.call.load(Relaxed) };
        let (outcome, step) = if (theirs.rows, theirs.cols) == (call.rows, call.cols) {
            let data = outbox.data.load(Relaxed).cast::<S>().cast_const();
            // SAFETY: the sender's window has the rows and columns of its call, which are ours; it is borrowed and
            // ours is borrowed mutably, so they are different memory.
            unsafe { std::ptr::copy_nonoverlapping(data, out.as_mut_ptr(), out.len()) };
            (Ok(()), Step::Taken)
        } else {
            *outbox.refusal.lock().expect("nothing panics under this lock") = call.to_string();
            let (rank, peer) = (self.ranks[to], self.ranks[from]);
            let (mine, theirs) = (call.to_string(), theirs.to_string());
            (Err(CommError::Mismatch { rank, mine, peer, theirs }), Step::Refused)
        };
        outbox.state.store(state(step, to), SeqCst);
        self.watch.wake(self.ranks[from], self.ranks[to]);
        outcome
    }
    fn noted(&self, rank: usize, outcome: Result<()>) -> Result<()> {
        if let Err(error) = &outcome {
            self.watch.blame(self.ranks[rank], error);
        }
        outcome
    }
}

/// The sender waits for the message to be taken, or the receiver for it to be offered.
struct Exchange<'a> {
    place: &'a Messages,
    from: usize,
    to: usize,
    call: &'a Call<'a>,
    sends: bool,
}
impl Exchange<'_> {
    fn peer(&self) -> usize {
        self.place.ranks[if self.sends { self.to } else { self.from }]
    }
}
impl Wait for Exchange<'_> {
    #[inline(always)]
    fn missing(&self) -> impl Iterator<Item = usize> {
        let now = self.place.outboxes[self.from].state.load(Acquire);
        let offered = now == state(Step::Offered, self.to);
        let missing = if self.sends { offered || now == state(Step::Taking, self.to) } else { !offered };
        missing.then(|| self.peer()).into_iter()
    }
    fn in_vain(&self) -> Result<()> {
        self.place.watch.alive()
    }
    fn members(&self) -> Vec<usize> {
        vec![self.place.ranks[self.from], self.place.ranks[self.to]]
    }
    fn pending(&self, _: usize) -> Pending {
        let (outboxes, from, sends) = (self.place.outboxes.clone(), self.from, self.sends);
        let offered = state(Step::Offered, self.to);
        Box::new(move || (outboxes[from].state.load(Acquire) == offered) == sends)
    }
    fn call(&self) -> &Call<'_> {
        self.call
    }
}

/// A message on offer; ends it in whatever way the sender leaves.
struct Offer<'a> {
    outbox: &'a Outbox,
    to: usize,
}
enum End {
    Taken,
    Withdrawn,
    Refused(String),
}
impl Offer<'_> {
    /// Withdraws the offer if it still stands, or waits for the copy under way.
    fn end(self) -> End {
        let end = self.settle();
        std::mem::forget(self);
        end
    }
    fn settle(&self) -> End {
        let offered = state(Step::Offered, self.to);
        let end = match self.outbox.state.compare_exchange(offered, CLAIMED, Acquire, Acquire) {
            Ok(_) => End::Withdrawn,
            Err(_) => self.outcome(),
        };
        self.outbox.state.store(FREE, Release);
        end
    }
    fn outcome(&self) -> End {
        loop {
            let now = self.outbox.state.load(Acquire);
            if now == state(Step::Taken, self.to) {
                return End::Taken;
            }
            if now == state(Step::Refused, self.to) {
                let mut refusal = self.outbox.refusal.lock().expect("nothing panics under this lock");
                return End::Refused(std::mem::take(&mut refusal));
            }
            std::thread::yield_now();
        }
    }
}
impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Op, Ranks, World};
    use std::panic::Location;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;
    use tensor::{Category, Tensor};

    /// Kills: a message overtaken, lost, or seen twice; a sender that goes on while its memory is read.
    #[test]
    fn messages_come_in_order_from_whom_they_are_asked_of() {
        const MESSAGES: usize = 300;
        let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
        let ran = world.run(|device: Cpu<f32>, mesh| {
            let group = mesh.group(Axis::Tp);
            let mut x = Tensor::from_fn(&device, Category::Buffers, 2, 2, |_| 0.0);
            for i in 0..MESSAGES {
                if mesh.rank() < 2 {
                    x.write(&mut |k| (1000 * mesh.rank() + i + k) as f32);
                    group.send(2, &x)?;
                    continue;
                }
                for from in [i % 2, 1 - i % 2] {
                    let first = (1000 * from + i) as f32;
                    let got = group.receive(&device, from, 2, 2)?.read().unwrap();
                    assert_eq!(got, [first, first + 1.0, first + 2.0, first + 3.0]);
                }
            }
            Ok::<_, CommError>(())
        });
        ran.unwrap();
    }

    fn call(op: Op) -> Call<'static> {
        let (over, at) = (Ranks::all(Axis::Tp), Location::caller());
        Call { op, reduce: None, peer: None, rows: 1, cols: 1, elem: "f32", over, label: None, at }
    }
    /// Kills: a sender or receiver left asleep, here for an hour.
    #[test]
    fn who_sleeps_until_a_message_goes_or_comes_is_woken() {
        for sender_first in [true, false] {
            let messages = Messages::new([0, 1].into(), Arc::new(Watch::new(2, Duration::from_hours(1))));
            let sleeper = usize::from(!sender_first);
            let talk = |rank: usize| {
                while rank != sleeper && !messages.watch.sleeps(sleeper) {
                    std::thread::yield_now();
                }
                let mut x = Tensor::from_fn(&Cpu::default(), Category::Buffers, 1, 1, |_| rank as f32);
                match rank {
                    0 => messages.send(0, 1, x.view(), &call(Op::Send)),
                    _ => messages.receive(1, 0, x.view_mut(), &call(Op::Receive)),
                }
                .map(|()| x.read().unwrap())
            };
            std::thread::scope(|threads| {
                let sender = threads.spawn(|| talk(0));
                assert_eq!((talk(1), sender.join().unwrap()), (Ok(vec![0.0]), Ok(vec![0.0])));
            });
        }
    }

    /// A sender that waits for rank 1 no longer than the limit; whether it has left, and what it then says.
    fn late_sender(meanwhile: impl FnOnce(&Messages, &AtomicBool)) -> Result<()> {
        let messages = Messages::new([0, 1].into(), Arc::new(Watch::new(2, Duration::from_millis(5))));
        let left = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let sender = threads.spawn(|| {
                let x = Tensor::from_fn(&Cpu::default(), Category::Buffers, 1, 1, |_| 1.0f32);
                let outcome = messages.send(0, 1, x.view(), &call(Op::Send));
                left.store(true, SeqCst);
                outcome
            });
            meanwhile(&messages, &left);
            let outcome = sender.join().unwrap();
            assert_eq!(messages.outboxes[0].state.load(SeqCst), FREE);
            outcome
        })
    }

    /// Kills: a sender that leaves, so that its memory may go, while it is read.
    #[test]
    fn a_late_sender_waits_for_the_copy_under_way() {
        let mut caught = false;
        while !caught {
            let sent = late_sender(|messages, left| {
                let state_of = &messages.outboxes[0].state;
                let (offered, taking) = (state(Step::Offered, 1), state(Step::Taking, 1));
                while !caught && !left.load(SeqCst) {
                    caught = state_of.compare_exchange(offered, taking, SeqCst, SeqCst).is_ok();
                }
                if caught {
                    std::thread::sleep(Duration::from_millis(10)); // past the limit
                    assert!(!left.load(SeqCst), "left while its memory was read");
                    state_of.store(state(Step::Taken, 1), SeqCst);
                }
            });
            assert_eq!(sent.is_ok(), caught);
        }
    }

    /// Kills: a message seen after its memory has gone.
    #[test]
    fn a_late_sender_withdraws_its_offer() {
        let sent = late_sender(|messages, left| {
            while !left.load(SeqCst) {
                std::thread::yield_now();
            }
            let mut x = Tensor::from_fn(&Cpu::default(), Category::Buffers, 1, 1, |_| 0.0f32);
            let got = messages.receive(1, 0, x.view_mut(), &call(Op::Receive));
            assert!(matches!(got, Err(CommError::Late { .. })) && x.read().unwrap() == [0.0]);
        });
        assert!(matches!(sent, Err(CommError::Late { .. })));
    }
}
