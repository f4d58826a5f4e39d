use super::*;
use crate::threads::tests::until;
use crate::{CommError, Op, Reduce};
use std::sync::Mutex;
use tensor::{Category, Cpu, F61, Key, Scalar, Tensor};

#[test]
fn results_come_by_rank_and_worlds_run_again() {
    let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
    for _ in 0..2 {
        let ran = world.run(|_: Cpu<f32>, mesh| {
            let name = std::thread::current().name().unwrap_or_default().to_string();
            Ok::<_, CommError>((mesh.rank(), mesh.size(), name))
        });
        let expected = (0..3).map(|rank| (rank, 3, format!("rank {rank}")));
        assert!(ran.unwrap().into_iter().eq(expected));
    }
}

/// Kills: a rank without the caller's key, or with another.
#[test]
fn ranks_inherit_the_key() {
    let world = World::threads(&[(Axis::Dp, 3)]).unwrap();
    let keys = || world.run(|_: Cpu<F61>, _| Ok::<_, CommError>(Key::current())).unwrap();
    assert_eq!(keys(), [None; 3]);
    let _key = Key(7).enter();
    assert_eq!(keys(), [Some(Key(7)); 3]);
}

#[test]
fn errors_of_any_kind_come_with_their_rank() {
    let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
    let ran = world.run(|_: Cpu<f32>, mesh| if mesh.rank() == 2 { Err("disk on fire") } else { Ok(()) });
    assert_eq!(ran.unwrap_err().to_string(), "rank 2: disk on fire");
    let ran = world.run(|_: Cpu<f32>, _| -> Result<(), String> { std::panic::resume_unwind(Box::new(7)) });
    assert_eq!(ran.unwrap_err().reason, "panicked again, without a source location");
}

/// Kills: a run that hangs silently on a rank that computes on for ever.
#[test]
fn ranks_that_do_not_end_are_reported() {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let (hears, trace) = (reports.clone(), Trace::new());
    let stuck = StuckReport::new(move |error: &RankError, running: &[usize]| {
        hears.lock().unwrap().push((error.clone(), running.to_vec()));
    });
    let world = World::threads(&[(Axis::Tp, 3)]).unwrap().limit(Duration::from_millis(20));
    let error = world.traced(&trace, "stuck").when_stuck(stuck).run(|_: Cpu<f32>, mesh| {
        until(|| mesh.rank() != 1 || !reports.lock().unwrap().is_empty());
        if mesh.rank() == 0 { mesh.group(Axis::Tp).barrier() } else { Ok(()) }
    });
    let reports = reports.lock().unwrap().clone();
    let [(early, running)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(running, &[1]);
    let why = ["did not arrive within", "has finished"];
    assert!(why.iter().any(|text| early.reason.contains(text)), "{early}");
    let table = early.calls.to_string();
    for (rank, end) in [(0, "ended with an error"), (1, "still runs"), (2, "ended")] {
        let mut rows = table.lines().filter(|row| row.starts_with(&format!("   {rank} ")));
        assert!(rows.next_back().is_some_and(|row| row.ends_with(&format!("  {end}"))), "{table}");
    }
    assert_eq!(error.unwrap_err().reason, early.reason);
    assert_eq!(trace.runs()[0].ranks.len(), 3);
}

#[test]
fn a_world_may_hold_many_ranks_up_to_its_limit() {
    let ran = World::threads(&[(Axis::Dp, 8), (Axis::Tp, 16)]).unwrap().run(|device: Cpu<F61>, mesh| {
        let mut one = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| F61::ONE);
        for (_, group) in mesh.axes() {
            group.all_reduce(&mut one, Reduce::Sum)?;
        }
        Ok::<_, CommError>(one.read().unwrap()[0])
    });
    assert_eq!(ran.unwrap(), [F61::new(128); 128]);
    assert!(World::threads(&[(Axis::Dp, 1025)]).is_err());
}

#[test]
fn a_world_of_one_sends_nothing() {
    let ran = World::threads(&[]).unwrap().run(|device: Cpu<F61>, mesh| {
        let mut x = Tensor::from_fn(&device, Category::Buffers, 2, 3, F61::from_usize);
        for (_, group) in mesh.axes() {
            group.all_reduce(&mut x, Reduce::Stab)?;
            group.broadcast(&mut x, 0)?;
            group.barrier()?;
            x = group.reduce_scatter(&group.all_gather(&x)?)?;
        }
        assert!(x.read().unwrap().into_iter().eq((0..6).map(F61::from_usize)));
        assert_eq!(mesh.ledger().get(Axis::Tp, Op::AllReduce).calls, 0);
        Ok::<_, CommError>(mesh.ledger().iter().count())
    });
    assert_eq!(ran.unwrap(), [0]);
}
