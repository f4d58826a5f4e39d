//! Messages come in order, and memory that a rank takes back is not touched.
use super::*;
use crate::tag::TAG;
use crate::threads::tests::until;
use crate::threads::watch::PATIENT;
use crate::{Axis, Op, World};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tensor::{Category, Cpu, Tensor};

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
                group.send(2, &x, TAG)?;
                continue;
            }
            for from in [i % 2, 1 - i % 2] {
                let first = (1000 * from + i) as f32;
                let got = group.receive(&device, from, 2, 2, TAG)?.read().unwrap();
                assert_eq!(got, [first, first + 1.0, first + 2.0, first + 3.0]);
            }
        }
        Ok::<_, CommError>(())
    });
    ran.unwrap();
}

/// Copies one number.
// SAFETY: of two tensors of one number each.
const ONE: fn(*const f32, *mut f32, &Call) = |from, to, _| unsafe { *to = *from };

fn call(op: Op) -> Call {
    Call { op, rows: 1, cols: 1, tag: Some(TAG), ..Call::barrier() }
}
/// Both messages of a group of two who wait so long at most.
fn messages(limit: Duration) -> Messages {
    Messages::new([0, 1].into(), Arc::new(Watch::alone(2, limit)), None)
}
fn one(value: f32) -> Tensor<Cpu<f32>> {
    Tensor::from_fn(&Cpu::default(), Category::Buffers, 1, 1, |_| value)
}
fn send(messages: &Messages, x: &Tensor<Cpu<f32>>) -> Result<()> {
    // SAFETY: the post ends here.
    let post = unsafe { messages.post([0, 1], true, x.view().raw(), &call(Op::Send), ONE) };
    messages.finish(post?, &call(Op::Send))
}
fn receive(messages: &Messages, x: &mut Tensor<Cpu<f32>>) -> Result<()> {
    // SAFETY: the post ends here.
    let post = unsafe { messages.post([0, 1], false, x.view_mut().raw(), &call(Op::Receive), ONE) };
    messages.finish(post?, &call(Op::Receive))
}

/// Kills: a sender or receiver left asleep.
#[test]
fn who_sleeps_until_a_message_goes_or_comes_is_woken() {
    for sender_first in [true, false] {
        let messages = messages(PATIENT);
        let sleeper = usize::from(!sender_first);
        let talk = |rank: usize| {
            until(|| rank == sleeper || messages.watch.sleeps(sleeper));
            let mut x = one(rank as f32);
            let reported = if rank == 0 { send(&messages, &x) } else { receive(&messages, &mut x) };
            reported.map(|()| x.read().unwrap())
        };
        std::thread::scope(|threads| {
            let sender = threads.spawn(|| talk(0));
            assert_eq!((talk(1), sender.join().unwrap()), (Ok(vec![0.0]), Ok(vec![0.0])));
        });
    }
}

/// Kills: a post left standing by a rank that was late, whose memory may be gone when its counterpart comes.
#[test]
fn who_is_late_takes_its_post_back() {
    let messages = messages(Duration::from_millis(5));
    assert!(matches!(send(&messages, &one(1.0)), Err(CommError::Late { .. })));
    assert!(matches!(receive(&messages, &mut one(0.0)), Err(CommError::Late { .. })));
    // Both meet later, and only these posts do.
    std::thread::scope(|threads| {
        let messages = &messages;
        threads.spawn(|| while send(messages, &one(7.0)).is_err() {});
        let mut x = one(0.0);
        while receive(messages, &mut x).is_err() {}
        assert_eq!(x.read().unwrap(), [7.0]);
    });
}

/// Kills: a rank that takes its memory back while it is read.
#[test]
fn who_takes_a_post_back_waits_for_the_copy_under_way() {
    let messages = messages(PATIENT);
    let x = one(1.0);
    // SAFETY: the post is withdrawn below.
    let post = unsafe { messages.post([0, 1], true, x.view().raw(), &call(Op::Send), ONE) }.unwrap();
    let (channel, left) = (messages.channel(0, 1, TAG.what), AtomicBool::new(false));
    std::thread::scope(|threads| {
        let copying = lock(&channel.sides);
        threads.spawn(|| {
            messages.withdraw(post);
            left.store(true, SeqCst);
        });
        for _ in 0..1000 {
            assert!(!left.load(SeqCst), "left while its memory was read");
            std::thread::yield_now();
        }
        drop(copying);
    });
    assert!(left.into_inner());
}

/// Kills: a count that a withdrawn post holds up, a message that takes its place; a post that is taken back
/// among those of another kind.
#[test]
fn posts_taken_back_leave_the_others_in_order() {
    let messages = messages(PATIENT);
    let sent: Vec<_> = (0..5).map(|i| one(i as f32)).collect();
    // SAFETY: all posts end below.
    let post =
        |x: &Tensor<Cpu<f32>>| unsafe { messages.post([0, 1], true, x.view().raw(), &call(Op::Send), ONE) };
    let posts: Vec<_> = sent.iter().map(|x| post(x).unwrap()).collect();
    for withdrawn in [1, 2, 0, 4] {
        messages.withdraw(posts[withdrawn]);
    }
    let mut x = one(9.0);
    receive(&messages, &mut x).unwrap();
    assert_eq!(x.read().unwrap(), [3.0]);
    assert_eq!(messages.finish(posts[3], &call(Op::Send)), Ok(()));
    let (five, mut x) = (one(5.0), x);
    let last = post(&five).unwrap();
    receive(&messages, &mut x).unwrap();
    assert_eq!(messages.finish(last, &call(Op::Send)), Ok(()));
    assert_eq!(messages.channel(0, 1, TAG.what).ended.each_ref().map(|ended| ended.load(SeqCst)), [2, 6]);
}
