//! In f32 the split layer's error is bounded by the unsplit one's, both against the oracle in f64, on the
//! same values.
use super::case::LayerInput;
use super::erased::Erased;
use super::run::{NamedTensors, STEPS, oracle, run};
use comm::World;
use ops::{Error, RandomValues};
use std::collections::BTreeMap;
use tensor::{Cpu, Real};

/// Bound on the split layer's error, as a multiple of the unsplit one's.
const TIMES: f64 = 4.0;
/// Prefix of the tensors compared: those of the first step. After it, with rate 1, weights are unlike trained
/// ones.
const FIRST: &str = "step 0";
/// Bound on the unsplit layer's error, relative to a tensor's largest value: a larger error is not rounding.
const FAR: f64 = 1e-4;

pub(super) fn check(case: &(impl Erased + ?Sized), regions: bool) {
    let given = |step: usize| LayerInput::<f32>::draw(case.features(), step);
    let mut alone = BTreeMap::new();
    for &ranks in case.ranks() {
        let world = World::threads(&case.world(ranks)).expect("a world");
        let run = |device: Cpu<f32>, mesh| {
            run((case, regions), &device, &mesh, &RandomValues { seed: 7 }, &given, STEPS)
        };
        let seen = world.run::<_, _, Error>(run).unwrap_or_else(|why| panic!("{why}")).swap_remove(0);
        let start = seen.start.iter().map(|(name, w)| (name.clone(), wide(w))).collect();
        let truth = oracle(case, &start, &|step| given(step).iter().map(widen).collect());
        for (name, error, size) in errors(&seen.trace, &truth) {
            if ranks == 1 {
                assert!(error <= FAR * size, "{name} unsplit: error {error:e}, largest value {size:e}");
                alone.insert(name, error);
                continue;
            }
            let bound = TIMES * alone[&name] + 4.0 * f64::from(f32::EPSILON) * size;
            assert!(error <= bound, "{name} on {ranks} ranks: error {error:e}, unsplit {:e}", alone[&name]);
        }
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

fn widen(g: &LayerInput<f32>) -> LayerInput<f64> {
    LayerInput {
        step: g.step,
        first: g.first,
        lengths: g.lengths.clone(),
        tokens: g.tokens.clone(),
        shards: None,
        memory_lengths: g.memory_lengths.clone(),
        memory: wide(&g.memory),
        x: wide(&g.x),
        ids: g.ids.clone(),
        dy: wide(&g.dy),
        weights: BTreeMap::new(),
    }
}

/// Returns, for each tensor, the largest error and the largest value.
fn errors(mine: &NamedTensors<f32>, truth: &NamedTensors<f64>) -> Vec<(String, f64, f64)> {
    let of = |(name, want): &(String, Vec<f64>)| {
        let (_, got) = mine.iter().find(|(n, _)| n == name).expect("the same tensors");
        assert_eq!(got.len(), want.len(), "{name}");
        assert!(got.iter().all(|x| x.to_f64().is_finite()), "{name} is not finite");
        let error = got.iter().zip(want).fold(0.0f64, |e, (a, b)| e.max((a.to_f64() - b).abs()));
        (name.clone(), error, want.iter().fold(0.0f64, |m, x| m.max(x.abs())))
    };
    truth.iter().filter(|(name, _)| name.starts_with(FIRST)).map(of).collect()
}
