//! Wakes of sleeping ranks, and the ranks that errors name.
use super::*;
use crate::threads::tests::until;
use crate::{Call, RankWaits};

fn watch(ranks: usize) -> Watch {
    Watch::alone(ranks, PATIENT)
}
/// A wait of rank 1 for rank 0, who comes after so many looks.
struct Looks<'a> {
    watch: &'a Watch,
    left: AtomicUsize,
    call: Call,
}
impl<'a> Looks<'a> {
    fn new(watch: &'a Watch, left: usize) -> Self {
        let call = Call::barrier();
        Self { watch, left: AtomicUsize::new(left), call }
    }
}
impl Wait for Looks<'_> {
    fn missing(&self) -> impl Iterator<Item = usize> {
        let before = self.left.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1)));
        (before != Ok(0)).then_some(0).into_iter()
    }
    fn in_vain(&self) -> Result<()> {
        self.watch.alive()
    }
    fn members(&self) -> Vec<usize> {
        vec![0, 1]
    }
    fn pending(&self, _: usize) -> PendingCalls {
        Box::new(|| true)
    }
    fn call(&self) -> &Call {
        &self.call
    }
}
/// Error of rank 1, asleep in favour of rank 0, after `change`.
fn reported(change: impl FnOnce(&Watch)) -> Result<()> {
    let watch = watch(3);
    std::thread::scope(|threads| {
        let sleeper = threads.spawn(|| watch.wait(1, &Looks::new(&watch, usize::MAX)));
        until(|| watch.sleeps(1));
        change(&watch);
        sleeper.join().unwrap()
    })
}

/// Kills: a rank left asleep.
#[test]
fn who_fails_or_finishes_wakes_those_who_wait() {
    let dead = CommError::Dead { rank: 2, reason: "on fire".into() };
    assert_eq!(reported(|watch| watch.fail(2, "on fire")), Err(dead));
    let finished = reported(|watch| watch.finish(0)).unwrap_err().to_string();
    assert!(finished.starts_with("rank 0 has finished and will not enter barrier"), "{finished}");
}

fn announce(watch: &Watch, rank: usize, on: usize, pending: PendingCalls) {
    *lock(&watch.ranks[rank].waits) = Some(Waits { on, call: format!("call {rank}"), pending, over: false });
}

#[test]
fn who_comes_at_the_last_moment_has_come() {
    let watch = watch(2);
    assert_eq!(watch.late(&Looks::new(&watch, 0)), Ok(()));
    let reported = watch.late(&Looks::new(&watch, 1));
    assert!(
        matches!(reported, Err(CommError::Late { missing, arrived, .. }) if (&missing[..], &arrived[..]) == (&[0], &[1]))
    );
}

/// Kills: a rank that has given up taken for one that waits, so that rings are seen that are none.
#[test]
fn who_has_given_up_is_in_no_ring() {
    let watch = Watch::alone(3, Duration::from_millis(5));
    let late = watch.wait(1, &Looks::new(&watch, usize::MAX));
    assert!(matches!(late, Err(CommError::Late { .. })), "{late:?}");
    announce(&watch, 0, 1, Box::new(|| true));
    assert_eq!((watch.ring(0), watch.announced(1)), (None, None));
    assert_eq!(watch.waited(1).map(|(on, _)| on), Some(0));
}

/// Kills: who waits for the culprit named in its place, also if it gave up a moment before; a chain that runs
/// round a ring for ever.
#[test]
fn who_waits_for_a_late_rank_is_followed_to_the_one_that_does_not() {
    let watch = watch(5);
    announce(&watch, 0, 3, Box::new(|| true));
    announce(&watch, 3, 4, Box::new(|| true));
    let chain = || match watch.late(&Looks::new(&watch, 1)) {
        Err(CommError::Late { chain, .. }) => chain.into_iter().map(|(rank, on, _)| [rank, on]).collect(),
        reported => panic!("{reported:?}"),
    };
    let seen: Vec<_> = chain();
    assert_eq!(seen, [[0, 3], [3, 4]]);
    announce(&watch, 4, 3, Box::new(|| true));
    let seen: Vec<_> = chain();
    assert_eq!(seen, [[0, 3], [3, 4], [4, 3]]);
    // One of them has given up just now, at the same limit, and taken its post back.
    announce(&watch, 3, 4, Box::new(|| false));
    let seen: Vec<_> = chain();
    assert_eq!(seen, [[0, 3]]);
    lock(&watch.ranks[3].waits).as_mut().unwrap().over = true;
    let seen: Vec<_> = chain();
    assert_eq!(seen, [[0, 3], [3, 4], [4, 3]]);
    assert_eq!(watch.ring(4), None);
}

/// Kills: a rank called finished that came, and finished, between two looks.
#[test]
fn who_came_before_it_finished_has_come() {
    let watch = watch(2);
    watch.finish(0);
    assert_eq!(watch.nobody_missing_has_finished(&Looks::new(&watch, 1)), Ok(()));
    assert!(watch.nobody_missing_has_finished(&Looks::new(&watch, 2)).is_err());
}

#[test]
fn a_ring_is_reported_from_the_rank_that_looks() {
    let watch = watch(5);
    for (rank, on) in [(1, 3), (3, 2), (2, 1), (4, 1)] {
        announce(&watch, rank, on, Box::new(|| true));
    }
    let ring = |rank| watch.ring(rank).map(|ring| ring.into_iter().map(|(r, _)| r).collect::<Vec<_>>());
    assert_eq!((ring(1), ring(2)), (Some(vec![1, 3, 2]), Some(vec![2, 1, 3])));
    assert_eq!((ring(4), ring(0)), (None, None)); // waits for a ring; does not wait
    announce(&watch, 3, 2, Box::new(|| false));
    assert_eq!(ring(1), None); // a wait that is over
    assert_eq!(watch.ring(2), None);
}

/// Kills: a ring read forwards twice. Rank 0 is met between the looks at ranks 1 and 2 of the second reading.
#[test]
fn a_ring_is_read_backwards() {
    let watch = watch(3);
    let met = Arc::new(AtomicBool::new(false));
    let (looks, comes) = (AtomicUsize::new(0), met.clone());
    announce(&watch, 0, 1, Box::new(move || !met.load(SeqCst)));
    let second_look_at_1 = move || {
        comes.fetch_or(looks.fetch_add(1, SeqCst) == 1, SeqCst);
        true
    };
    announce(&watch, 1, 2, Box::new(second_look_at_1));
    announce(&watch, 2, 0, Box::new(|| true));
    assert_eq!(watch.ring(0), None);
}

/// Kills: a ring read once. Rank 1 comes to rank 0 right after it was looked at, and goes on to wait for
/// rank 2, which waits for rank 0: a ring of three at three times, but at no time.
#[test]
fn a_ring_that_never_was_at_one_time_is_none() {
    let watch = watch(3);
    let looks = AtomicUsize::new(0);
    announce(&watch, 0, 1, Box::new(move || looks.fetch_add(1, SeqCst) == 0));
    announce(&watch, 1, 2, Box::new(|| true));
    announce(&watch, 2, 0, Box::new(|| true));
    assert_eq!(watch.ring(0), None);
}

/// Kills: a told wait that makes the same one of a stand-in, which gave up at the limit, begin anew; one that
/// is not replaced by another wait, or by none.
#[test]
fn a_told_wait_does_not_take_the_place_of_the_same_one_given_up() {
    let watch = watch(3);
    let told = |on, call: &str| {
        watch.told(1, Some((on, call.to_string())));
        watch.waited(1)
    };
    watch.gave_up(1, 2, "receive".into());
    assert_eq!(told(2, "receive"), Some((2, "receive".into())));
    assert_eq!(told(2, "barrier"), None, "another wait counts later");
    assert_eq!(told(2, "receive"), None, "a wait of before is forgotten");
    watch.told(1, None);
    watch.gave_up(1, 2, "receive".into());
    assert_eq!(told(0, "receive"), None, "another rank is waited for");
    watch.told(1, None);
    watch.gave_up(1, 2, "receive".into());
    watch.told(1, None);
    assert_eq!(watch.waited(1), None);
}

#[test]
fn only_the_first_failure_counts_and_an_echo_blames_its_cause() {
    let watch = watch(4);
    watch.blame(1, &CommError::Broken { rank: 0, reason: "late".into() });
    watch.blame(1, &CommError::Dead { rank: 3, reason: "later".into() });
    watch.blame(2, &CommError::Busy { rank: 2, call: "barrier".into() });
    assert_eq!(watch.alive(), Ok(()));
    watch.fail(1, "an echo");
    watch.fail(2, "too late");
    assert_eq!(watch.alive(), Err(CommError::Dead { rank: 0, reason: "late".into() }));
}

/// A wait for these ranks, which arrive one with each look that finds them missing.
struct OneByOne<'a>(&'a Watch, std::cell::RefCell<Vec<usize>>, Call);
impl Wait for OneByOne<'_> {
    fn missing(&self) -> impl Iterator<Item = usize> {
        self.1.borrow_mut().pop().into_iter()
    }
    fn in_vain(&self) -> Result<()> {
        self.0.alive()
    }
    fn members(&self) -> Vec<usize> {
        vec![0, 1, 2]
    }
    fn pending(&self, _: usize) -> PendingCalls {
        Box::new(|| true)
    }
    fn call(&self) -> &Call {
        &self.2
    }
}

/// Kills: a wait attributed to the first missing rank, or to the waiting one; a call that nobody was late for
/// counted; a wait of another rank, or the wait before, lost; one counted again after it was taken; the
/// shortest wait shown for the longest.
#[test]
fn a_wait_counts_for_the_rank_that_arrives_last() {
    let (watch, call) = (watch(3), |rows| Call { op: crate::Op::Send, rows, ..Call::barrier() });
    let waits = |arrive: &[usize], rows| {
        let arrive = arrive.iter().rev().copied().collect::<Vec<_>>().into();
        watch.wait(1, &OneByOne(&watch, arrive, call(rows))).unwrap();
    };
    waits(&[], 1);
    assert_eq!(watch.record(1).take_waits(), []);
    waits(&[0, 2, 0, 2], 2);
    waits(&[2; 3], 3);
    waits(&[2, 0], 4);
    let seen = watch.record(1).take_waits();
    let counts: Vec<_> = seen.iter().map(|wait| (wait.rank, wait.on, wait.waits)).collect();
    assert_eq!(counts, [(1, 0, 1), (1, 2, 2)]);
    assert!(seen.iter().all(|wait| wait.seconds >= wait.longest_seconds && wait.longest_seconds > 0.0));
    assert_eq!(seen[0].longest_call, call(4).to_string());
    assert_eq!(watch.record(0).take_waits(), [], "only the rank that waits counts");
    let record = RankRecord::new(0, std::time::Instant::now(), crate::trace::Traced::Never);
    record.waited_for(1, Duration::from_secs(1), &call(4));
    assert_eq!(record.take_waits(), [], "not asked for");
    let record = record.counting_waits(true);
    for (seconds, rows) in [(1, 5), (3, 6), (2, 7)] {
        record.waited_for(1, Duration::from_secs(seconds), &call(rows));
    }
    let longest_call = call(6).to_string();
    let wanted = RankWaits { rank: 0, on: 1, waits: 3, seconds: 6.0, longest_seconds: 3.0, longest_call };
    assert_eq!((record.take_waits(), record.take_waits()), (vec![wanted], vec![]));
}
