//! Compared tensors, by name and in program order: the same list from the program, tensor by tensor, and from
//! the oracle.
use super::Difference;
use comm::Mesh;
use kernels::{Kernels, loss_scale};
use layers::{Builder, Params};
use ops::{Draw, RandomValues, ValueSource};
use parallel::Report;
use reference::Weights;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tensor::{F61, Scalar};

/// Named whole tensors, in program order.
pub(super) type TensorTrace = Vec<(String, Vec<F61>)>;

/// Noise that is added to every weight after a step, so that each step is tested at independent random
/// weights.
fn noise(step: usize) -> RandomValues {
    RandomValues { seed: step as u64 + 1 }
}
const NOISE: Draw = Draw { mean: 0.0, std: 1.0 };

/// Returns the factor that takes the scale of a step's loss out of its gradients.
pub(super) fn unscaling<D: Kernels>(report: &Report<D>) -> D::Elem {
    report.scale.map_or(D::Elem::ONE, |log2| loss_scale::<D::Elem>(log2).inv())
}

/// Reports the results of a step of the program, and adds the noise to the weights.
pub(super) fn seen<D: Kernels<Wide = D>>(
    see: &mut dyn FnMut(String, Vec<D::Elem>),
    n: usize,
    report: &Report<D>,
    mut params: Params<D>,
    device: &D,
    mesh: &Mesh<D::Place>,
) -> ops::Result<()> {
    let norm2 = report.norm2.as_ref().map(|norm2| ("norm²", norm2));
    for (what, number) in [("loss", &report.loss)].into_iter().chain(norm2) {
        see(format!("step {n}: {what}"), number.read().unwrap_or_default());
    }
    let by = unscaling(report);
    for param in &params {
        let mut gradient = param.gather_gradient(mesh)?.unwrap_or_default();
        for g in &mut gradient {
            *g = *g * by;
        }
        see(format!("step {n}: gradient of {}", param.name()), gradient);
    }
    let noise = noise(n);
    let builder = Builder::new(device, mesh, &noise);
    for param in &mut params {
        see(format!("step {n}: new {}", param.name()), param.gather(mesh)?.unwrap_or_default());
        param.disturb(&builder, NOISE)?;
    }
    Ok(())
}

/// Appends the results of a step of the oracle: the loss, the norm² if there is one, the gradients, and the
/// weights of these shapes.
pub(super) fn reported(
    trace: &mut TensorTrace,
    n: usize,
    (step, has_norm): (reference::Step<F61>, bool),
    (shapes, weights): (&[(String, [usize; 2])], &Weights<F61>),
) {
    let loss = step.losses.iter().fold(F61::ZERO, |sum, &loss| sum + loss);
    trace.push((format!("step {n}: loss"), vec![loss]));
    if has_norm {
        trace.push((format!("step {n}: norm²"), vec![step.norm2]));
    }
    for (what, from) in [("gradient of", &step.gradients), ("new", weights)] {
        // a weight that is not trained has no gradient
        let numbers = |name: &String| from.get(name).cloned().unwrap_or_default();
        let named = |(name, _): &(String, _)| (format!("step {n}: {what} {name}"), numbers(name));
        trace.extend(shapes.iter().map(named));
    }
}

/// Returns the oracle's weights with the noise of a step.
pub(super) fn disturbed(
    shapes: Vec<(String, [usize; 2])>,
    step: usize,
    weights: &Weights<F61>,
) -> Weights<F61> {
    let mut disturbed = weights.clone();
    let noise = noise(step);
    for (name, shape) in shapes {
        let noise = ValueSource::<F61>::of(&noise, &name, shape, NOISE).expect("drawn, not read");
        for (i, w) in disturbed.get_mut(&name).expect("the model's weights").iter_mut().enumerate() {
            *w += noise.at([i / shape[1], i % shape[1]]);
        }
    }
    disturbed
}

/// Result of a rank's comparisons.
#[derive(Serialize, Deserialize)]
pub(super) struct Compared {
    /// For each of the oracle's tensors, true if the rank has it.
    pub(super) seen: Vec<bool>,
    /// Number of their elements.
    pub(super) elements: usize,
    /// The first difference, with its index among the oracle's tensors.
    pub(super) first: Option<(usize, Difference)>,
}

/// Compares a rank's tensors, as they are computed, with the oracle's trace, which all ranks share.
pub(super) struct Judge<'a> {
    truth: &'a TensorTrace,
    read: Range<usize>, // part of the truth's first tensor, the logits, on this rank
    rank: usize,
    pub(super) compared: Compared,
}

impl<'a> Judge<'a> {
    pub(super) fn new(truth: &'a TensorTrace, read: Range<usize>, rank: usize) -> Self {
        let compared = Compared { seen: vec![false; truth.len()], elements: 0, first: None };
        Self { truth, read, rank, compared }
    }
    /// Compares a tensor, by name. Each name comes once, in the rank's own order. A rank may lack tensors of
    /// other stages.
    pub(super) fn sees(&mut self, name: &str, got: &[F61]) {
        let at = self.truth.iter().position(|(wanted, _)| wanted == name);
        let Some(at) = at.filter(|at| !self.compared.seen[*at]) else {
            let name = format!("{name} (the oracle has none, or the rank had it before)");
            return self.differs(at.unwrap_or(self.truth.len()), name, [got.len(), 0]);
        };
        let whole = &self.truth[at].1;
        let want: &[F61] = if at == 0 { &whole[self.read.clone()] } else { whole };
        let same = got.iter().zip(want).filter(|(a, b)| a == b).count();
        let (differ, total) = (want.len().max(got.len()) - same, want.len());
        if differ > 0 {
            self.differs(at, name.into(), [differ, total]);
        }
        self.compared.seen[at] = true;
        self.compared.elements += total;
    }
    /// Keeps the difference that is first in the oracle's order.
    fn differs(&mut self, at: usize, name: String, [differ, of]: [usize; 2]) {
        if self.compared.first.as_ref().is_none_or(|(first, _)| at < *first) {
            self.compared.first = Some((at, Difference::of(name, self.rank, differ, of)));
        }
    }
}

/// Returns the first of the oracle's tensors that no rank has.
pub(super) fn uncovered(truth: &TensorTrace, ranks: &[Compared]) -> Option<(usize, Difference)> {
    let index = (0..truth.len()).find(|at| !ranks.iter().any(|rank| rank.seen[*at]))?;
    let (name, x) = &truth[index];
    Some((index, Difference::of(format!("{name} (no rank has it)"), 0, x.len(), x.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a field that another process does not get.
    #[test]
    fn what_a_rank_has_compared_goes_to_other_processes() {
        let first = Some((3, Difference::of("step 0: loss".into(), 1, 2, 5)));
        let sent = Compared { seen: vec![true, false], elements: 7, first };
        let Compared { seen, elements, first } =
            serde_json::from_slice(&serde_json::to_vec(&sent).unwrap()).unwrap();
        assert_eq!((&seen, elements, &first), (&sent.seen, sent.elements, &sent.first));
    }

    /// Kills: a later difference reported in place of the first, a tensor too many or too few not noticed, an
    /// element too many, another tensor of equal values accepted.
    #[test]
    fn the_first_difference_is_kept_and_no_tensor_is_missed() {
        let tensor = |name: &str, numbers: &[u64]| {
            (name.to_string(), numbers.iter().map(|&n| F61::new(n)).collect::<Vec<_>>())
        };
        let truth = vec![tensor("a", &[1, 2]), tensor("b", &[3]), tensor("c", &[4])];
        let judged = |given: &[&[(String, Vec<F61>)]]| {
            let rank = |(rank, given): (usize, &&[(String, Vec<F61>)])| {
                let mut judge = Judge::new(&truth, 0..2, rank);
                given.iter().for_each(|(name, x)| judge.sees(name, x));
                judge.compared
            };
            let ranks: Vec<_> = given.iter().enumerate().map(rank).collect();
            let first = ranks.iter().filter_map(|rank| rank.first.clone()).min_by_key(|(place, _)| *place);
            let first =
                first.or_else(|| uncovered(&truth, &ranks)).map(|(_, d)| (d.name, d.rank, d.differ, d.of));
            (ranks.iter().map(|r| r.elements).sum::<usize>(), first)
        };
        let [a, b, c] = [&truth[0], &truth[1], &truth[2]].map(Clone::clone);
        let difference = |name: &str, rank, differ, of| Some((name.to_string(), rank, differ, of));
        assert_eq!(judged(&[&truth]), (4, None));
        assert_eq!(
            judged(&[&[a.clone(), c.clone()], std::slice::from_ref(&b)]),
            (4, None),
            "each has a part"
        );
        let wrong = judged(&[&[tensor("a", &[1, 3]), tensor("b", &[9]), c.clone()]]);
        assert_eq!(wrong.1, difference("a", 0, 1, 2));
        let more = judged(&[&truth, &[a.clone(), tensor("b", &[3, 3]), c.clone()]]);
        assert_eq!(more.1, difference("b", 1, 1, 1));
        let late = judged(&[&[tensor("c", &[9])], &[tensor("b", &[9]), tensor("a", &[9, 2])]]);
        assert_eq!(late.1, difference("a", 1, 1, 2), "the oracle's first");
        let other = judged(&[&[a.clone(), tensor("x", &[3]), b.clone(), c.clone()]]);
        assert_eq!(other.1, difference("x (the oracle has none, or the rank had it before)", 0, 1, 0));
        assert_eq!(judged(&[&[a.clone(), b.clone()]]).1, difference("c (no rank has it)", 0, 1, 1));
        let again: Vec<_> = truth.iter().chain(&truth[..1]).cloned().collect();
        let twice = difference("a (the oracle has none, or the rank had it before)", 0, 2, 0);
        assert_eq!(judged(&[&again]).1, twice);
        assert_eq!(
            judged(&[&[b, a, c]]),
            (4, None),
            "a rank's own order, as where tables of two stages are one"
        );
    }
}
