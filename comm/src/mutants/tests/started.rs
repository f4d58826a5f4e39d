//! Calls that are started, under mutants.
use super::*;
use crate::InPlace;

/// Kills: a started call that never goes wrong, or goes wrong in another way than the same at once; one that
/// is not listed.
#[test]
fn started_calls_go_wrong_as_calls_do() {
    const PAIRS: [(Act, Act); 7] = [
        (ALL_REDUCE, |d, g| Ok(read(&g.start_all_reduce(two(d, g), Reduce::Sum)?.wait()?))),
        (ALL_REDUCE, |d, g| Ok(read(&g.start_all_reduce_together(vec![two(d, g)], Reduce::Sum)?.wait()?[0]))),
        (ALL_GATHER, |d, g| Ok(read(&g.start_all_gather(two(d, g))?.wait()?))),
        (REDUCE_SCATTER, |d, g| Ok(read(&g.start_reduce_scatter(three(d, g))?.wait()?))),
        (ALL_GATHER, |d, g| {
            let own = [vec![0.0; 2 * g.rank()], read(&two(d, g)), vec![0.0; 2 * (2 - g.rank())]].concat();
            Ok(read(&g.start_together(InPlace::AllGather, vec![tensor(d, 3, &own)])?.wait()?[0]))
        }),
        (REDUCE_SCATTER, |d, g| {
            let all = g.start_together(InPlace::ReduceScatter, vec![three(d, g)])?.wait()?;
            Ok(vec![read(&all[0])[g.rank()]])
        }),
        (ALL_TO_ALL, |d, g| Ok(read(&g.start_all_to_all(three(d, g))?.wait()?))),
    ];
    for (at_once, started) in PAIRS {
        for mutation in Mutation::ALL.iter().copied() {
            let [mut wanted, seen] = [at_once, started].map(|act| with(mutation, act));
            if seen.1.is_err() {
                wanted.1 = seen.1.clone(); // there is no such mutant of this call, of either
            }
            assert_eq!(seen, wanted, "{mutation}");
        }
        let trial = Trial::honest();
        let run = |device: Cpu<f64>, mesh: Mesh<_>| started(&device, mesh.group(crate::Axis::Tp));
        World::threads(&[(crate::Axis::Tp, 3)]).unwrap().on_trial(&trial).run(run).unwrap();
        assert_eq!(trial.sites(1).len(), 1);
    }
}
