//! Waits in groups of which a process is no member.
use super::*;

/// Four ranks, of which pairs meet along tp, 0 with 1 and 2 with 3, and along dp, 0 with 2 and 1 with 3.
fn pairs(limit: Duration, program: impl Fn(&Mesh<Host>) -> Result<(), CommError> + Sync) -> Vec<RankError> {
    let sizes = [(Axis::Tp, 2), (Axis::Dp, 2)];
    let all = ran(&sizes, limit, |_: Cpu<f32>, mesh| program(&mesh));
    all.into_iter().map(Result::unwrap_err).collect()
}

/// Kills: a wait in a group of other processes that a process does not hear of, so that the rank at the end
/// of a chain is not named, or a ring is not found; one that stands though its rank has gone on.
#[test]
fn waits_are_known_beyond_their_group() {
    let ended = AtomicBool::new(false);
    let late = pairs(Duration::from_secs(1), |mesh| {
        let [tp, dp] = [Axis::Tp, Axis::Dp].map(|axis| mesh.group(axis));
        match mesh.rank() {
            0 => tp.named("a block").barrier(),
            1 => {
                sleep(Duration::from_millis(500)); // so that rank 0 is the first to give up
                dp.named("a gradient").barrier()
            }
            _ => {
                while !ended.load(SeqCst) && mesh.rank() == 3 {
                    sleep(Duration::from_millis(10));
                }
                Ok(())
            }
        }
        .inspect_err(|_| ended.store(true, SeqCst))
    });
    for error in late {
        let says =
            "; rank 1 waits for rank 3 in barrier over dp for a gradient at comm/src/process/tests/waits.rs:";
        assert!(error.reason.starts_with("rank 1 did not arrive within 1s at barrier over tp for a block"));
        assert!(error.reason.contains(says), "{error}");
    }
    let begun = Instant::now();
    let ring = pairs(LIMIT, |mesh| {
        let along = [Axis::Tp, Axis::Dp, Axis::Dp, Axis::Tp][mesh.rank()]; // 0 → 1 → 3 → 2 → 0
        mesh.group(along).barrier()
    });
    assert!(ring[0].reason.starts_with("ranks wait for each other: rank "), "{}", ring[0]);
    assert!(begun.elapsed() < LIMIT, "before the limit");
    let went_on =
        ran(&[(Axis::Tp, 2), (Axis::Dp, 2)], Duration::from_secs(1), |_: Cpu<f32>, mesh: Mesh<Host>| {
            let [tp, dp] = [Axis::Tp, Axis::Dp].map(|axis| mesh.group(axis));
            if mesh.rank() == 1 {
                sleep(Duration::from_millis(300)); // rank 0 tells 2 and 3 that it waits
            }
            tp.barrier()?;
            if mesh.rank() == 3 {
                sleep(Duration::from_millis(300)); // rank 1 tells 0 and 2
            }
            dp.barrier()?;
            if mesh.rank() == 0 {
                sleep(Duration::from_millis(300));
            }
            tp.barrier()
        });
    assert!(went_on.iter().all(Result::is_ok), "{went_on:?}");
}
