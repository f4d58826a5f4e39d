//! Messages, whose windows are copied by whoever comes second.
use super::{ShownWindow, explore, run};
use crate::call::{Call, Op};
use crate::engine::Post;
use crate::error::{CommError, Result};
use crate::sync::Tracked;
use crate::threads::messages::Messages;
use crate::threads::watch::{PATIENT, Watch};
use std::sync::Arc;

/// Rank 0 sends to rank 1; each has two windows.
struct TwoRanks {
    watch: Arc<Watch>,
    messages: Messages,
    elements: [[Tracked; 2]; 2], // what is posted for the windows
    windows: Box<[[ShownWindow; 2]; 2]>,
}
impl TwoRanks {
    fn new() -> Arc<Self> {
        let watch = Arc::new(Watch::alone(2, PATIENT));
        let messages = Messages::new([0, 1].into(), watch.clone(), None);
        let windows = Box::new([(); 2].map(|()| [(); 2].map(|()| ShownWindow::new())));
        let elements = windows.each_ref().map(|windows| windows.each_ref().map(ShownWindow::tracked));
        Arc::new(Self { watch, messages, elements, windows })
    }
    /// Writes a window and posts it.
    fn post(&self, rank: usize, window: usize, value: usize, rows: usize) -> Result<Post> {
        self.windows[rank][window].write(value);
        let element = &raw const self.elements[rank][window];
        // SAFETY: calls that meet have one row, or another number and are refused; the windows live as long
        // as the model, and loom ends it where one is touched before its post has ended.
        unsafe {
            self.messages.post([0, 1], rank == 0, element.cast_mut(), &call(rank, rows), |from, to, _| {
                crate::sync::copy(from, to, 1)
            })
        }
    }
    /// Waits for a post. Its window is the rank's own again, which writes it.
    fn finish(&self, rank: usize, window: usize, post: Post) -> Result<usize> {
        let outcome = self.messages.finish(post, &call(rank, 1));
        self.end(rank, window, outcome)
    }
    fn withdraw(&self, rank: usize, window: usize, post: Post) -> usize {
        self.messages.withdraw(post);
        self.end(rank, window, Ok(())).expect("as given")
    }
    fn end(&self, rank: usize, window: usize, outcome: Result<()>) -> Result<usize> {
        let window = &self.windows[rank][window];
        let got = window.read();
        window.write(99);
        outcome.map(|()| got)
    }
    fn send(&self, window: usize, value: usize) {
        let post = self.post(0, window, value, 1).expect("nobody fails");
        assert_eq!(self.finish(0, window, post), Ok(value));
    }
    fn receive(&self, window: usize) -> usize {
        let post = self.post(1, window, 0, 1).expect("nobody fails");
        self.finish(1, window, post).expect("nobody fails")
    }
}
fn call(rank: usize, rows: usize) -> Call {
    Call { op: [Op::Send, Op::Receive][rank], rows, cols: 1, ..Call::barrier() }
}

/// Kills: a window read or written once its post has ended, or before what was written there is seen; a
/// sender or receiver left asleep.
#[test]
fn one_message_arrives_whoever_comes_first() {
    explore(None, || run(&TwoRanks::new(), &[|pair| pair.send(0, 7), |pair| assert_eq!(pair.receive(0), 7)]));
}

/// Kills: a message overtaken; an end told to another post.
#[test]
fn two_messages_arrive_in_order() {
    fn both(pair: &TwoRanks, rank: usize, values: [usize; 2]) {
        let post = |window: usize| pair.post(rank, window, values[window], 1).expect("nobody fails");
        let posts = [post(0), post(1)];
        for window in [1, 0] {
            assert_eq!(pair.finish(rank, window, posts[window]), Ok([7, 8][window]));
        }
    }
    explore(Some(3), || run(&TwoRanks::new(), &[|pair| both(pair, 0, [7, 8]), |pair| both(pair, 1, [0, 0])]));
}

/// Both take back what they offered; the message has gone before, or does not go.
///
/// Kills: a window touched once it was taken back.
#[test]
fn who_withdraws_has_its_memory() {
    fn offer(pair: &TwoRanks, rank: usize) {
        let post = pair.post(rank, 0, 7 * (1 - rank), 1).expect("nobody fails");
        assert!([0, 7].contains(&pair.withdraw(rank, 0, post)));
    }
    explore(None, || run(&TwoRanks::new(), &[|pair| offer(pair, 0), |pair| offer(pair, 1)]));
}

/// The sender takes back two messages, the later one first, unless they have gone, and sends a third; the
/// receiver gets what is left.
///
/// Kills: withdrawn posts that are not counted, or counted twice, so that a later one never ends.
#[test]
fn what_comes_behind_a_withdrawn_message_arrives() {
    explore(Some(3), || {
        run(
            &TwoRanks::new(),
            &[
                |pair| {
                    let posts = [7, 8].map(|value| pair.post(0, value - 7, value, 1).expect("nobody fails"));
                    pair.withdraw(0, 1, posts[1]);
                    pair.withdraw(0, 0, posts[0]);
                    pair.send(0, 9);
                },
                |pair| {
                    let mut last = 0;
                    while last < 9 {
                        let next = pair.receive(0);
                        assert!(next > last, "{next} after {last}");
                        last = next;
                    }
                },
            ],
        );
    });
}

/// Kills: a window of another shape copied; one of two who is not told.
#[test]
fn what_does_not_fit_is_refused_to_both() {
    fn refused(pair: &TwoRanks, rank: usize) {
        let post = pair.post(rank, 0, 7, 1 + rank).expect("nobody fails");
        assert!(matches!(pair.finish(rank, 0, post), Err(CommError::Mismatch { .. })));
    }
    explore(None, || run(&TwoRanks::new(), &[|pair| refused(pair, 0), |pair| refused(pair, 1)]));
}

/// The receiver posts and fails, at once or with what it got; the sender goes on or is told.
///
/// Kills: memory copied from or to that a rank took with it; a sender left asleep.
#[test]
fn a_message_whose_receiver_fails_goes_or_does_not() {
    explore(Some(4), || {
        run(
            &TwoRanks::new(),
            &[
                |pair| match pair.post(0, 0, 7, 1).and_then(|post| pair.finish(0, 0, post)) {
                    Ok(sent) => assert_eq!(sent, 7),
                    Err(reported) => assert!(matches!(reported, CommError::Dead { rank: 1, .. })),
                },
                |pair| {
                    let post = pair.post(1, 0, 0, 1).expect("nobody has failed");
                    pair.withdraw(1, 0, post);
                    pair.watch.fail(1, "on fire");
                },
            ],
        );
    });
}

/// Kills: a message lost whose sender ends right after it; a receiver that waits for one who has ended.
#[test]
fn a_sender_that_finishes_has_sent() {
    explore(Some(3), || {
        run(
            &TwoRanks::new(),
            &[
                |pair| {
                    pair.send(0, 7);
                    pair.watch.finish(0);
                },
                |pair| {
                    assert_eq!(pair.receive(0), 7);
                    let post = pair.post(1, 1, 0, 1).expect("nobody has failed");
                    assert!(matches!(pair.finish(1, 1, post), Err(CommError::Finished { rank: 0, .. })));
                },
            ],
        );
    });
}
