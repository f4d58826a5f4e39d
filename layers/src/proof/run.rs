//! One run of a layer under proof on one rank, on any device: its whole results, and its traffic.
use super::case::{LayerInput, place};
use super::erased::{ErasedCase, OnDevice, Unsplit};
use super::lies::AtRank;
use comm::{Axes, Ledger, Mesh};
use kernels::Kernels;
use ops::{Keeper, Optimizer, Param, Result, SGD, ValueSource};
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::{Device, Place, Scalar};

/// Named whole tensors, in program order.
pub(super) type NamedTensors<S> = Vec<(String, Vec<S>)>;

/// Steps, each with the numbers of the calls made in it.
pub(super) type StepCalls = Vec<(usize, Range<usize>)>;

/// Results of one rank.
pub(super) struct RankRun<S> {
    /// The parameters before the first step.
    pub(super) start: BTreeMap<String, Vec<S>>,
    /// Outputs and gradients of every microbatch, then gradients and new weights of every step.
    pub(super) trace: NamedTensors<S>,
    /// Traffic of the first step's forward and backward, without the gathering for the trace.
    pub(super) traffic: Ledger,
    /// Traffic of summing the gradients in one step.
    pub(super) synced: Ledger,
    /// Number of this rank among those that tokens are dealt to, and their number.
    pub(super) place: (usize, usize),
    /// Number of gradient elements on this rank, padding included, that are summed after backward: not those
    /// of tiles.
    pub(super) parameters: usize,
    /// Steps and numbers of the layer's calls: forward and backward, and the sums of its gradients.
    pub(super) calls: StepCalls,
}

/// Number of steps of a proof. They are plain SGD with rate 1, so that no scale hides.
pub(super) const STEPS: usize = 2;

pub(super) fn run<D: Kernels<Wide = D>>(
    (case, regions): (&(impl OnDevice<D> + ?Sized), bool),
    device: &D,
    mesh: &Mesh<D::Place>,
    values: &dyn ValueSource<D::Elem>,
    given: &dyn Fn(usize) -> Vec<LayerInput<D::Elem>>,
    steps: usize,
) -> Result<RankRun<D::Elem>> {
    let at = place(device, mesh, values, regions);
    let mut layer = case.build(&at)?;
    let axes: Axes = case.dealers().iter().map(|(axis, _)| *axis).collect();
    let at = AtRank { device, group: mesh.group(case.axis()), region: at.region, dealers: &mesh.over(axes)? };
    let mut optimizer = Optimizer::new(SGD, None);
    let (mut trace, mut traffic, mut synced) = (NamedTensors::new(), Ledger::default(), Ledger::default());
    let (start, mut calls, mut parameters) = (weights(&mut *layer, mesh)?, Vec::new(), 0);
    for step in 0..steps {
        let before = mesh.ledger();
        let whole = given(step);
        let mine = |given: &LayerInput<_>| {
            given.of(case.deal(&given.tokens, at.place()), case.features(), case.shards(at.place()))
        };
        let backward = layer.forward_backward(whole.iter().map(mine).collect(), case.features(), &at)?;
        if step == 0 {
            traffic = mesh.ledger() - &before;
        }
        calls.push((step, since(&before, mesh)));
        for (microbatch, [y, dx]) in backward {
            let [inputs, outputs] = case.features();
            let deal = |place| case.deal(&whole[microbatch].tokens, place);
            for (what, x, features) in [("Y", y, outputs), ("dX", dx, inputs)] {
                let x = at.together(&*x, (features, &deal))?;
                trace.push((format!("step {step}, microbatch {microbatch}: {what}"), x));
            }
        }
        let mut params = layer.params();
        let before = mesh.ledger();
        for param in &mut params {
            param.sync()?;
        }
        synced = mesh.ledger() - &before;
        calls.push((step, since(&before, mesh)));
        let numbers =
            |param: &&mut Param<D>| param.gradient_elements().len() + param.gradient_padding().len();
        parameters = params.iter().filter(|param| !param.has_tiles()).map(numbers).sum();
        for param in params.iter().filter(|param| param.placement().trained) {
            let gradient = param.gather_gradient(mesh)?.unwrap_or_default();
            trace.push((format!("step {step}: gradient of {}", param.name()), gradient));
        }
        if !params.is_empty() {
            optimizer.step(&mut params, mesh, 1.0, &mut Keeper::default())?;
        }
        drop(params);
        for (name, value) in weights(&mut *layer, mesh)? {
            trace.push((format!("step {step}: new {name}"), value));
        }
    }
    Ok(RankRun { start, trace, traffic, synced, place: at.place(), parameters, calls })
}

/// Returns the numbers of this rank's calls since `before`.
fn since<P: Place>(before: &Ledger, mesh: &Mesh<P>) -> Range<usize> {
    let number = |ledger: &Ledger| ledger.iter().map(|(_, _, traffic)| traffic.calls).sum::<usize>() + 1;
    number(before)..number(&mesh.ledger())
}

/// Returns the whole parameters by name.
pub(super) fn weights<D: Kernels>(
    layer: &mut dyn ErasedCase<D>,
    mesh: &Mesh<D::Place>,
) -> Result<BTreeMap<String, Vec<<D as Device>::Elem>>> {
    let whole = |p: &Param<D>| Ok((p.name().to_string(), p.gather(mesh)?.unwrap_or_default()));
    layer.params().into_iter().map(|p| whole(p)).collect()
}

/// Returns the oracle's trace.
pub(super) fn oracle<S: Scalar>(
    case: &(impl Unsplit<S> + ?Sized),
    start: &BTreeMap<String, Vec<S>>,
    given: &dyn Fn(usize) -> Vec<LayerInput<S>>,
) -> NamedTensors<S> {
    let mut trace = NamedTensors::new();
    let mut weights = start.clone();
    for step in 0..STEPS {
        let mut sums: BTreeMap<String, Vec<S>> = BTreeMap::new();
        for (microbatch, mut given) in given(step).into_iter().enumerate() {
            given.weights.clone_from(&weights);
            let answer = case.oracle(&given);
            trace.push((format!("step {step}, microbatch {microbatch}: Y"), answer.y));
            trace.push((format!("step {step}, microbatch {microbatch}: dX"), answer.dx));
            for (name, gradient) in answer.gradients {
                let parameter =
                    weights.get(&name).unwrap_or_else(|| panic!("the layer has no parameter {name}"));
                let sum = sums.entry(name).or_insert_with(|| vec![S::ZERO; parameter.len()]);
                for (sum, g) in sum.iter_mut().zip(gradient) {
                    *sum += g;
                }
            }
        }
        for (name, w) in &mut weights {
            for (w, &g) in w.iter_mut().zip(sums.get(name).into_iter().flatten()) {
                *w = *w - g;
            }
        }
        trace.extend(sums.into_iter().map(|(name, g)| (format!("step {step}: gradient of {name}"), g)));
        trace.extend(weights.iter().map(|(name, w)| (format!("step {step}: new {name}"), w.clone())));
    }
    trace
}
