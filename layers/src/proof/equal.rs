//! Split equals unsplit, bit for bit, in the field; and the traffic is what the layer's header says.
use super::Given;
use super::erased::Erased;
use super::run::{STEPS, Trace, oracle, run};
use crate::Random;
use comm::{Axis, Op, World};
use tensor::{Cpu, F61, Key};

pub(super) fn check(case: &(impl Erased + ?Sized), regions: bool) {
    for key in [Key(1), Key(1).next()] {
        let _key = key.enter();
        for &ranks in case.ranks() {
            one((case, regions), key, ranks);
        }
    }
}

fn one((case, regions): (&(impl Erased + ?Sized), bool), key: Key, ranks: usize) {
    let given = |step: usize| Given::draw(case.features(), step);
    let microbatches: Vec<_> = given(0).iter().map(Given::<F61>::tokens).collect();
    let expected = std::sync::OnceLock::new();
    World::threads(&[(Axis::LAYERS, ranks)])
        .expect("a world")
        .run(|device: Cpu<F61>, mesh| {
            let seen = run((case, regions), &device, &mesh, &Random { seed: 7 }, &given, STEPS)?;
            let truth = expected.get_or_init(|| oracle(case, &seen.start, &given));
            let at = format!("rank {} of {ranks}, key {:#x}", mesh.rank(), key.0);
            compare(&seen.trace, truth, &at);
            let said: Vec<_> = seen.traffic.iter().map(|(_, op, t)| (op, t.elements)).collect();
            let predicted = predicted((case, regions), &microbatches, (mesh.rank(), ranks));
            assert_eq!(said, predicted, "elements by operation, {at}");
            let summed: usize = seen.synced.iter().map(|(_, _, t)| t.elements).sum();
            let wanted = if ranks == 1 { 0 } else { case.synced(ranks, regions) };
            assert_eq!(summed, wanted, "elements in the sums of gradients, {at}");
            Ok::<_, crate::Error>(())
        })
        .unwrap_or_else(|why| panic!("{why}"));
}

/// What a rank says in one step, by operation.
fn predicted(
    (case, regions): (&(impl Erased + ?Sized), bool),
    microbatches: &[usize],
    (rank, ranks): (usize, usize),
) -> Vec<(Op, usize)> {
    if ranks == 1 {
        return vec![];
    }
    let mut all = case.traffic_on((rank, ranks), microbatches, regions);
    all.sort_by_key(|(op, _)| *op as usize);
    all
}

/// Every tensor of the oracle is there and equal; names the first that is not.
fn compare(mine: &Trace<F61>, truth: &Trace<F61>, at: &str) {
    let first = difference(mine, truth);
    assert!(first.is_none(), "{}, {at}", first.unwrap_or_default());
    assert_eq!(mine.len(), truth.len(), "tensors of {STEPS} steps, {at}");
}

/// The first tensor of the oracle that is not there, or not equal.
pub(super) fn difference<'a>(
    mine: &Trace<F61>,
    truth: impl IntoIterator<Item = &'a (String, Vec<F61>)>,
) -> Option<String> {
    truth.into_iter().find_map(|(name, want)| {
        let Some((_, got)) = mine.iter().find(|(n, _)| n == name) else {
            return Some(format!("{name}: not in the run"));
        };
        let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
        let (of, seen) = (want.len(), got.len());
        (wrong > 0 || of != seen).then(|| format!("{name}: {wrong} of {of} differ ({seen} seen)"))
    })
}
