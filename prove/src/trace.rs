//! What is compared, by name and in program order: the same list from the program, tensor by tensor, and from the oracle.
use super::Difference;
use comm::Mesh;
use kernels::Kernels;
use layers::{Builder, Draw, Param, Random, Values};
use parallel::Report;
use reference::Weights;
use std::ops::Range;
use tensor::{F61, Scalar};

/// Named whole tensors, in program order.
pub(super) type Named<S> = Vec<(String, Vec<S>)>;
pub(super) type Trace = Named<F61>;

/// What is added to every weight after a step, so that each step is judged at independent random weights.
fn noise(step: usize) -> Random {
    Random { seed: step as u64 + 1 }
}
const NOISE: Draw = Draw { mean: 0.0, std: 1.0 };

/// Shows what a step of the program gave; the noise is added to the weights.
pub(super) fn seen<D: Kernels<Wide = D>>(
    see: &mut dyn FnMut(String, Vec<D::Elem>),
    n: usize,
    report: &Report<D>,
    mut params: Vec<&mut Param<D>>,
    device: &D,
    mesh: &Mesh<D::Place>,
) -> layers::Result<()> {
    for (what, number) in [("loss", &report.loss), ("norm²", &report.norm2)] {
        see(format!("step {n}: {what}"), number.read().unwrap_or_default());
    }
    for param in &params {
        let gradient = param.gather_gradient(mesh)?.unwrap_or_default();
        see(format!("step {n}: gradient of {}", param.name()), gradient);
    }
    let noise = noise(n);
    let at = Builder::new(device, mesh, &noise);
    for param in &mut params {
        see(format!("step {n}: new {}", param.name()), param.gather(mesh)?.unwrap_or_default());
        param.disturb(&at, NOISE)?;
    }
    Ok(())
}

/// Adds what a step of the oracle gave: the loss and the norm², the gradients, and the weights of these shapes.
pub(super) fn told<S: Scalar>(
    trace: &mut Named<S>,
    n: usize,
    (loss, norm2): (S, S),
    gradients: &mut Weights<S>,
    (shapes, weights): (&[(String, [usize; 2])], &Weights<S>),
) {
    trace.push((format!("step {n}: loss"), vec![loss]));
    trace.push((format!("step {n}: norm²"), vec![norm2]));
    for (name, _) in shapes {
        let gradient = gradients.remove(name).expect("a gradient of every parameter");
        trace.push((format!("step {n}: gradient of {name}"), gradient));
    }
    for (name, _) in shapes {
        trace.push((format!("step {n}: new {name}"), weights[name].clone()));
    }
}

/// The oracle's weights with the noise of a step.
pub(super) fn disturbed(
    shapes: Vec<(String, [usize; 2])>,
    step: usize,
    weights: &Weights<F61>,
) -> Weights<F61> {
    let (mut disturbed, noise) = (weights.clone(), noise(step));
    for (name, shape) in shapes {
        let element = Values::<F61>::of(&noise, &name, shape, NOISE).expect("drawn, not read");
        for (i, w) in disturbed.get_mut(&name).expect("the model's weights").iter_mut().enumerate() {
            *w += element([i / shape[1], i % shape[1]]);
        }
    }
    disturbed
}

/// What a rank compared: tensors, elements, and the first that differ.
pub(super) type Compared = (usize, usize, Option<Difference>);

/// Compares what a rank gives, as it comes, with the oracle's trace, which all ranks share.
pub(super) struct Judge<'a> {
    truth: &'a Trace,
    read: Range<usize>, // of the truth's first tensor, the logits, what this rank has
    rank: usize,
    seen: usize,
    first: Option<Difference>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(truth: &'a Trace, read: Range<usize>, rank: usize) -> Self {
        Self { truth, read, rank, seen: 0, first: None }
    }
    /// The next tensor.
    pub(super) fn sees(&mut self, name: &str, got: &[F61]) {
        let wanted = self.truth.get(self.seen).map(|(name, x)| (name, self.of(self.seen, x)));
        self.seen += 1;
        let (Some((wanted, want)), None) = (wanted, &self.first) else { return };
        let same = got.iter().zip(want).filter(|(a, b)| a == b).count();
        let (differ, of) = (want.len().max(got.len()) - same, want.len());
        if differ > 0 || name != wanted {
            let name = if name == wanted { name.into() } else { format!("{wanted} (seen: {name})") };
            self.first = Some(Difference::of(name, self.rank, differ, of));
        }
    }
    /// What this rank has of the oracle's tensor of this number.
    fn of<'b>(&self, number: usize, whole: &'b [F61]) -> &'b [F61] {
        if number == 0 { &whole[self.read.clone()] } else { whole }
    }
    /// The end: what one has and the other lacks differs, too.
    pub(super) fn compared(self) -> Compared {
        let (seen, of) = (self.seen, self.truth.len());
        let other = || {
            let name = format!("{seen} tensors where the oracle has {of}");
            Difference::of(name, self.rank, seen.abs_diff(of), of)
        };
        let elements = self.truth.iter().enumerate().map(|(n, (_, x))| self.of(n, x).len()).sum();
        let first = self.first.clone().or_else(|| (seen != of).then(other));
        (of, elements, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a later difference in place of the first, a tensor too many or too few that nobody misses, an element too
    /// many, another tensor of the same numbers.
    #[test]
    fn the_first_difference_is_kept_and_no_tensor_is_missed() {
        let tensor = |name: &str, numbers: &[u64]| {
            (name.to_string(), numbers.iter().map(|&n| F61::new(n)).collect::<Vec<_>>())
        };
        let truth = vec![tensor("a", &[1, 2]), tensor("b", &[3]), tensor("c", &[4])];
        let judged = |given: &[(String, Vec<F61>)]| {
            let mut judge = Judge::new(&truth, 0..2, 7);
            for (name, x) in given {
                judge.sees(name, x);
            }
            let (tensors, elements, first) = judge.compared();
            assert_eq!((tensors, elements), (3, 4));
            first.map(|d| (d.name, d.rank, d.differ, d.of))
        };
        let [a, b, c] = [&truth[0], &truth[1], &truth[2]].map(Clone::clone);
        assert_eq!(judged(&truth), None);
        let wrong = judged(&[tensor("a", &[1, 3]), tensor("b", &[9]), c.clone()]);
        assert_eq!(wrong, Some(("a".into(), 7, 1, 2)));
        assert_eq!(judged(&[a.clone(), tensor("b", &[3, 3]), c.clone()]), Some(("b".into(), 7, 1, 1)));
        assert_eq!(judged(&[a.clone(), tensor("x", &[3]), c]), Some(("b (seen: x)".into(), 7, 0, 1)));
        let few = "2 tensors where the oracle has 3".to_string();
        assert_eq!(judged(&[a, b]), Some((few, 7, 1, 3)));
        let many: Vec<_> = truth.iter().chain(&truth[..1]).cloned().collect();
        assert_eq!(judged(&many), Some(("4 tensors where the oracle has 3".into(), 7, 1, 3)));
    }
}
