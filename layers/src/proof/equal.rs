//! Split equals unsplit, bit for bit, in the field; and the traffic is what the layer's header says.
use super::run::{STEPS, Trace, oracle, run};
use super::{Case, Given};
use crate::Random;
use comm::{Axis, World};
use tensor::{Cpu, F61, Key};

pub(super) fn check<C: Case>(case: &C) {
    for key in [Key(1), Key(1).next()] {
        let _key = key.enter();
        for &ranks in C::RANKS {
            one(case, key, ranks);
        }
    }
}

fn one<C: Case>(case: &C, key: Key, ranks: usize) {
    let given = |step: usize| Given::draw(case.features(), step);
    let tokens: usize = given(0).iter().map(Given::<F61>::tokens).sum();
    let expected = std::sync::OnceLock::new();
    World::threads(&[(Axis::Tp, ranks)])
        .expect("a world")
        .run(|device: Cpu<F61>, mesh| {
            let seen = run(case, &device, &mesh, &Random { seed: 7 }, &given)?;
            let truth = expected.get_or_init(|| oracle(case, &seen.start, &given));
            let at = format!("rank {} of {ranks}, key {:#x}", mesh.rank(), key.0);
            compare(&seen.trace, truth, &at);
            for (op, elements) in case.traffic(tokens) {
                let said = seen.traffic.get(Axis::Tp, op).elements;
                assert_eq!(said, if ranks == 1 { 0 } else { elements }, "elements in {op}, {at}");
            }
            let named = |op| case.traffic(tokens).iter().any(|(predicted, _)| *predicted == op);
            let other = seen.traffic.iter().find(|(_, op, _)| !named(*op));
            assert!(other.is_none(), "a needless {other:?}, {at}");
            let all: usize = seen.traffic.iter().map(|(_, _, t)| t.elements).sum();
            let predicted: usize = case.traffic(tokens).iter().map(|(_, n)| n).sum();
            assert_eq!(all, if ranks == 1 { 0 } else { predicted }, "elements in all operations, {at}");
            Ok::<_, crate::Error>(())
        })
        .unwrap_or_else(|why| panic!("{why}"));
}

/// Every tensor of the oracle is there and equal; names the first that is not.
fn compare(mine: &Trace<F61>, truth: &Trace<F61>, at: &str) {
    for (name, want) in truth {
        let found = mine.iter().find(|(n, _)| n == name);
        let (_, got) = found.unwrap_or_else(|| panic!("{name}: not in the run, {at}"));
        let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
        assert!(
            wrong == 0 && got.len() == want.len(),
            "{name}, {at}: {wrong} of {} differ ({} seen)",
            want.len(),
            got.len()
        );
    }
    assert_eq!(mine.len(), truth.len(), "tensors of {STEPS} steps, {at}");
}
