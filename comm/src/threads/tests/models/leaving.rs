//! Ranks that leave early, so that their memory goes while peers are on their way to it.
use super::{ModelRanks, explore, run};
use crate::call::{Call, Counts, Op};
use crate::error::CommError;

/// An exchange of so many rows; what it has for itself, and asks of itself, as said.
fn exchange(rank: usize, [has, asks]: [usize; 2]) -> Call {
    let mut between = [[1, 1], [1, 1]];
    (between[0][rank], between[1][rank]) = (has, asks);
    let [give, take] = between.map(|rows| rows.as_slice().into());
    Call { op: Op::AllToAll, rows: 2, cols: 1, counts: Some(Counts::Between(give, take)), ..Call::barrier() }
}

/// One rank is told that it contradicts itself, and leaves; its peer, with which it agrees, may be inside by
/// then.
///
/// Kills: memory that goes while a peer reads it, or before it looks; a peer left asleep.
#[test]
fn one_rank_leaves_while_the_other_reads() {
    explore(Some(3), || {
        run(
            &ModelRanks::new(2, 2),
            &[
                |ranks| {
                    let reported = ranks.collective(0, 1, &exchange(0, [1, 2]));
                    assert!(matches!(
                        reported,
                        Err(CommError::Mismatch { .. } | CommError::Broken { rank: 1, .. })
                    ));
                },
                |ranks| {
                    let reported = ranks.collective(1, 2, &exchange(1, [1, 1]));
                    assert!(matches!(reported, Err(CommError::Broken { rank: 0, .. })));
                },
            ],
        );
    });
}

/// Kills: one of two left waiting for the other, which has been told.
#[test]
fn both_ranks_leave_who_mean_different_things() {
    fn reported(ranks: &ModelRanks, rank: usize) {
        let reported = ranks.collective(rank, 1, &Call { rows: rank, ..Call::barrier() });
        assert!(matches!(reported, Err(CommError::Mismatch { .. } | CommError::Broken { .. })));
    }
    explore(Some(3), || {
        run(&ModelRanks::new(2, 2), &[|ranks| reported(ranks, 0), |ranks| reported(ranks, 1)])
    });
}

/// Two meet while a third, which is none of theirs, fails: each goes on or leaves, wherever it is.
///
/// Kills: a rank that leaves while its peer is inside, or goes inside where its peer has left; one left
/// asleep.
#[test]
fn two_ranks_meet_while_a_third_fails() {
    fn meet(ranks: &ModelRanks, rank: usize) {
        match ranks.collective(rank, rank, &Call::barrier()) {
            Ok(seen) => assert_eq!(seen, [0, 1]),
            Err(reported) => {
                assert!(matches!(reported, CommError::Dead { rank: 2, .. } | CommError::Broken { .. }))
            }
        }
    }
    explore(Some(3), || {
        run(
            &ModelRanks::new(2, 3),
            &[|ranks| ranks.watch.fail(2, "on fire"), |ranks| meet(ranks, 0), |ranks| meet(ranks, 1)],
        );
    });
}

/// Kills: a rank left asleep by one that fails.
#[test]
fn one_rank_fails_and_never_comes() {
    explore(None, || {
        run(
            &ModelRanks::new(2, 2),
            &[
                |ranks| ranks.watch.fail(1, "on fire"),
                |ranks| {
                    let reported = ranks.collective(0, 1, &Call::barrier());
                    assert_eq!(reported, Err(CommError::Dead { rank: 1, reason: "on fire".into() }));
                },
            ],
        );
    });
}

/// Kills: a rank left asleep by one that ends.
#[test]
fn one_rank_finishes_and_never_comes() {
    explore(None, || {
        run(
            &ModelRanks::new(2, 2),
            &[
                |ranks| ranks.watch.finish(1),
                |ranks| {
                    let reported = ranks.collective(0, 1, &Call::barrier());
                    assert!(matches!(reported, Err(CommError::Finished { rank: 1, .. })));
                },
            ],
        );
    });
}

/// Kills: a rank said never to come that came and then finished.
#[test]
fn one_rank_comes_and_then_finishes() {
    explore(Some(3), || {
        run(
            &ModelRanks::new(2, 2),
            &[
                |ranks| {
                    assert!(ranks.collective(1, 1, &Call::barrier()).is_ok());
                    ranks.watch.finish(1);
                },
                |ranks| assert_eq!(ranks.collective(0, 0, &Call::barrier()), Ok(vec![0, 1])),
            ],
        );
    });
}

/// Kills: a rank that takes its memory with it, having failed after the call, while its peer is still in it.
#[test]
fn one_rank_comes_and_then_fails() {
    explore(Some(3), || {
        run(
            &ModelRanks::new(2, 2),
            &[
                |ranks| {
                    let reported = ranks.collective(1, 1, &Call::barrier());
                    assert!(
                        reported.is_ok()
                            || reported == Err(CommError::Broken { rank: 0, reason: String::new() })
                    );
                    ranks.watch.fail(1, "on fire");
                },
                |ranks| match ranks.collective(0, 0, &Call::barrier()) {
                    Ok(seen) => assert_eq!(seen, [0, 1]),
                    Err(reported) => assert!(matches!(reported, CommError::Dead { rank: 1, .. })),
                },
            ],
        );
    });
}
