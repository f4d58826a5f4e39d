//! What is compared, by name and in program order: the same list from the program and from the oracle.
use comm::Mesh;
use kernels::Kernels;
use layers::{Builder, Draw, Param, Random, Values};
use parallel::Report;
use reference::Weights;
use tensor::{F61, Scalar};

/// Named whole tensors, in program order.
pub(super) type Named<S> = Vec<(String, Vec<S>)>;
pub(super) type Trace = Named<F61>;

/// What is added to every weight after a step, so that each step is judged at independent random weights.
fn noise(step: usize) -> Random {
    Random { seed: step as u64 + 1 }
}
const NOISE: Draw = Draw { mean: 0.0, std: 1.0 };

/// Adds what a step of the program gave; the noise is added to the weights.
pub(super) fn seen<D: Kernels>(
    trace: &mut Named<D::Elem>,
    n: usize,
    report: &Report<D>,
    mut params: Vec<&mut Param<D>>,
    device: &D,
    mesh: &Mesh<D>,
) -> layers::Result<()> {
    for (what, number) in [("loss", &report.loss), ("norm²", &report.norm2)] {
        trace.push((format!("step {n}: {what}"), number.read().unwrap_or_default()));
    }
    for param in &params {
        let gradient = param.gather_gradient(mesh)?.unwrap_or_default();
        trace.push((format!("step {n}: gradient of {}", param.name()), gradient));
    }
    let noise = noise(n);
    let at = Builder::new(device, mesh, &noise);
    for param in &mut params {
        trace.push((format!("step {n}: new {}", param.name()), param.gather(mesh)?.unwrap_or_default()));
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
