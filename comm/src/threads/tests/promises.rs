//! The promises, at every call: whatever one rank does instead of coming, the others end, and it is named.
use super::acts::{ACTS, Bring, Field};
use super::until;
use crate::threads::watch::PATIENT;
use crate::{Axis, CommError, Mesh, RankError, World};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tensor::{F61, Scalar};

const RANKS: usize = 3;
const CULPRIT: usize = 2;

/// Called by the culprit instead of an act; it is given how many others are through with theirs.
type Instead<'a> = &'a (dyn Fn(&Mesh<tensor::Host>, &Bring, &AtomicUsize) -> Result<(), String> + Sync);

/// Runs every act, twice on each rank, of which the culprit does something else the second time; returns each
/// run's end.
fn ends(limit: Duration, instead: Instead) -> Vec<(&'static str, RankError)> {
    let run = |(name, act): &(&'static str, super::acts::Act)| {
        let sizes = [(Axis::Dp, 2), (Axis::Tp, RANKS)];
        let world = World::threads(&sizes).unwrap().limit(limit);
        let others = AtomicUsize::new(0);
        let reported = world.run(|device: Field, mesh| {
            let group = mesh.group(Axis::Tp).named("0F1");
            let bring = Bring { device: &device, group: &group, rows: 2, root: 0, value: F61::ONE };
            let reported = |reported: crate::Result<()>| reported.map_err(|error| error.to_string());
            reported(act(&bring))?;
            if mesh.rank() == CULPRIT {
                return instead(&mesh, &bring, &others);
            }
            let outcome = act(&bring);
            others.fetch_add(1, SeqCst);
            reported(outcome)
        });
        let error = reported.expect_err(name);
        // Whatever happened, the table has the first act of every rank that began it, and its words.
        let table = error.calls.to_string();
        for rank in 0..2 * RANKS {
            let calls: Vec<_> =
                table.lines().filter(|line| line.starts_with(&format!("{rank:>4} "))).collect();
            assert!(
                calls.iter().any(|call| call.contains(name) || call.contains("receive")),
                "{name}:\n{table}"
            );
            assert!(calls[0].contains("for 0F1 at comm/src/threads/tests/acts.rs:"), "{name}:\n{table}");
        }
        (*name, error)
    };
    ACTS.iter().map(run).collect()
}

/// Kills: ranks that wait on for one that has failed, a reason lost or blamed on another.
#[test]
fn a_rank_that_fails_or_panics_ends_every_call_with_its_reason() {
    for (name, error) in ends(PATIENT, &|_, _, _| Err("disk on fire".into())) {
        assert_eq!((error.rank, error.reason.as_str()), (CULPRIT, "disk on fire"), "{name}");
    }
    for (name, error) in ends(PATIENT, &|_, _, _| panic!("disk melted")) {
        assert!(error.rank == CULPRIT && error.reason.ends_with(": disk melted"), "{name}: {error}");
    }
}

/// Kills: a rank that has ended waited for.
#[test]
fn a_rank_that_ends_without_coming_is_named_in_every_call() {
    for (name, error) in ends(PATIENT, &|_, _, _| Ok(())) {
        assert!(error.reason.contains("rank 2 has finished and will not enter "), "{name}: {error}");
        assert!(error.reason.contains("over tp") && error.reason.contains("for 0F1 at "), "{name}: {error}");
    }
}

/// Kills: a limit that is not kept, a rank that waits for the late one named in its place.
#[test]
fn a_rank_that_comes_late_is_named_in_every_call() {
    let runs = ends(Duration::from_millis(300), &|_, _, others| {
        until(|| others.load(SeqCst) == 2 * RANKS - 1); // one that ends earlier is not late
        Ok(())
    });
    for (name, error) in runs {
        let named = ["rank 2 did not arrive within", "waits for rank 2 in"];
        assert!(named.iter().any(|words| error.reason.contains(words)), "{name}: {error}");
    }
}

/// Kills: another call, shape or group taken for this one, or told of on one side only.
#[test]
fn a_rank_that_makes_another_call_is_named_in_every_call_with_both() {
    let wrong_call: Instead = &|mesh, bring, _| {
        let group = mesh.group(Axis::Tp).named("the culprit");
        group.all_gather(&bring.tensor(77)).map(drop).map_err(|error| error.to_string())
    };
    let wrong_group: Instead = &|mesh, bring, _| {
        let group = mesh.group(Axis::Dp).named("the culprit");
        group.all_gather(&bring.tensor(77)).map(drop).map_err(|error| error.to_string())
    };
    let wrong_part: Instead = &|mesh, bring, _| {
        let group = mesh.group(Axis::Tp).subgroup(&[1, 2]).unwrap().named("the culprit");
        group.all_gather(&bring.tensor(77)).map(drop).map_err(|error| error.to_string())
    };
    for instead in [wrong_call, wrong_group, wrong_part] {
        for (name, error) in ends(PATIENT, instead) {
            assert!(
                error.reason.contains("for the culprit at comm/src/threads/tests/promises.rs:"),
                "{name}: {error}"
            );
        }
    }
    for (name, error) in ends(PATIENT, wrong_call) {
        assert!(error.reason.contains("for 0F1 at comm/src/threads/tests/acts.rs:"), "{name}: {error}");
    }
}

/// Kills: a shape let in, of which one side reads beyond the other's end.
#[test]
fn a_rank_with_another_shape_is_named_in_every_call_that_has_one() {
    for (name, act) in ACTS.iter().filter(|(name, _)| !["barrier", "u32"].contains(name)) {
        let reported =
            World::threads(&[(Axis::Tp, RANKS)]).unwrap().limit(PATIENT).run(|device: Field, mesh| {
                let label = if mesh.rank() == CULPRIT { "the culprit" } else { "0F1" };
                let (group, rows) = (mesh.group(Axis::Tp).named(label), 2 + 3 * (mesh.rank() / CULPRIT));
                let bring = Bring { device: &device, group: &group, rows, root: 0, value: F61::ONE };
                act(&bring)?;
                Ok::<_, CommError>(())
            });
        let Err(error) = reported else { panic!("{name} of another shape passed") };
        let both = ["for the culprit at ", "for 0F1 at "].map(|words| error.reason.contains(words));
        assert_eq!(both, [true; 2], "{name}: {error}");
    }
}
