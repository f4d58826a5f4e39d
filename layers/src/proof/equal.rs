//! Split equals unsplit, bit for bit, in the field; and the traffic is what the layer's header says.
use super::case::LayerInput;
use super::erased::Erased;
use super::run::{NamedTensors, STEPS, oracle, run};
use comm::{Op, World};
use kernels::Segment;
use ops::RandomValues;
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
    let given = |step: usize| LayerInput::draw(case.features(), step);
    let microbatches: Vec<_> = given(0).into_iter().map(|given: LayerInput<F61>| given.tokens).collect();
    let expected = std::sync::OnceLock::new();
    World::threads(&case.world(ranks))
        .expect("a world")
        .run(|device: Cpu<F61>, mesh| {
            let seen = run((case, regions), &device, &mesh, &RandomValues { seed: 7 }, &given, STEPS)?;
            let place = format!("rank {} of {}, key {:#x}", mesh.rank(), mesh.size(), key.0);
            compare(&seen.trace, expected.get_or_init(|| oracle(case, &seen.start, &given)), &place);
            if !case.is_predicted() {
                return Ok(());
            }
            let axis = case.axis();
            let mut said = [vec![], vec![]];
            seen.traffic
                .iter()
                .for_each(|(axes, op, t)| said[usize::from(axes != axis)].push((op, t.elements)));
            let dealers = seen.place;
            let dealt: Vec<_> = microbatches.iter().map(|tokens| case.deal(tokens, dealers)).collect();
            let of_dealt = sorted(case.traffic_of_dealt(&microbatches, dealers));
            let predicted = [predicted((case, regions), &dealt, (mesh.group(axis).rank(), ranks)), of_dealt];
            assert_eq!(said, predicted, "elements by operation, {place}");
            let summed: usize = seen.synced.iter().map(|(_, _, t)| t.elements).sum();
            let wanted = match (dealers.1, ranks) {
                (1, 1) => 0,
                (1, _) => case.synced(ranks, regions),
                _ => seen.parameters,
            };
            assert_eq!(summed, wanted, "elements in the sums of gradients, {place}");
            Ok::<_, ops::Error>(())
        })
        .unwrap_or_else(|why| panic!("{why}"));
}

/// Elements that a rank sends in one step along the axis of features, by operation.
fn predicted(
    (case, regions): (&(impl Erased + ?Sized), bool),
    dealt: &[Vec<Segment>],
    (rank, ranks): (usize, usize),
) -> Vec<(Op, usize)> {
    if ranks == 1 {
        return vec![];
    }
    let microbatches: Vec<_> = dealt.iter().map(|tokens| tokens.iter().map(|t| t.len).sum()).collect();
    sorted(case.traffic_on((rank, ranks), &microbatches, regions))
}

fn sorted(mut all: Vec<(Op, usize)>) -> Vec<(Op, usize)> {
    all.sort_by_key(|(op, _)| *op as usize);
    all
}

/// Asserts that every tensor of the oracle is there and equal; names the first that is not.
fn compare(mine: &NamedTensors<F61>, truth: &NamedTensors<F61>, at: &str) {
    let first = difference(mine, truth);
    assert!(first.is_none(), "{}, {at}", first.unwrap_or_default());
    assert_eq!(mine.len(), truth.len(), "tensors of {STEPS} steps, {at}");
}

/// Describes the first tensor of the oracle that is missing or not equal.
pub(super) fn difference<'a>(
    mine: &NamedTensors<F61>,
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
