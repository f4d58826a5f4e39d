//! Launches of `router.cu`.
use super::{Window, Words, named, optimizer::summing};
use crate::card::{Shape, arguments_of};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{RouterBalance, RouterNoise, RouterTerms};
use tensor::{Index, Scalar, View, ViewMut};

/// Warps of a block, a row each.
const WARPS: usize = 4;

/// `Terms` of `router.cu`.
#[repr(C)]
struct Terms {
    chosen: u32,
    sigmoid: u32,
    normalize: u32,
    groups: u32,
    best: u32,
    scale: f32,
}
/// `Noise` of `router.cu`.
#[repr(C)]
struct Noise {
    tokens: Words,
    first: u64,
    salt: u64,
    std: f32,
}
arguments_of!(Terms, Noise);

impl From<&RouterTerms> for Terms {
    fn from(terms: &RouterTerms) -> Self {
        let [groups, best] = terms.groups.unwrap_or_default();
        Self {
            chosen: terms.chosen as u32,
            sigmoid: u32::from(terms.sigmoid),
            normalize: u32::from(terms.normalize),
            groups: groups as u32,
            best: best as u32,
            scale: terms.scale as f32,
        }
    }
}

/// A warp for each row, with so many bytes of shared memory.
fn warps(rows: u32, shared: usize) -> Shape {
    Shape { blocks: [(rows as usize).div_ceil(WARPS), 1, 1], threads: WARPS * 32, shared: WARPS * shared }
}

pub(crate) fn choose<S: Scalar>(
    gpu: &Gpu,
    chosen: &mut Index<Gpu>,
    logits: View<Cuda<S::Wide>>,
    bias: Option<View<Cuda<S>>>,
    noise: Option<RouterNoise<Gpu>>,
    router: &RouterTerms,
) {
    let (logits, chosen, terms) = (Window::from(&logits), Words::from(&*chosen), Terms::from(router));
    let bias = bias.as_ref().map_or(Window::NONE, Window::from);
    let noise = match noise {
        None => Noise { tokens: Words::NONE, first: 0, salt: 0, std: 0.0 },
        Some(RouterNoise { noise, tokens, first }) => {
            let (std, salt) = noise.parts();
            Noise { tokens: tokens.into(), first: first as u64, salt, std: std as f32 }
        }
    };
    let shared = 8 * (terms.groups + logits.cols.div_ceil(2)) as usize;
    let shape = warps(logits.rows, shared);
    gpu.launch(&named::<S>("choose"), shape, &[&chosen, &logits, &bias, &noise, &terms]);
}

pub(crate) fn gates<S: Scalar>(
    gpu: &Gpu,
    gates: ViewMut<Cuda<S>>,
    lse: ViewMut<Cuda<S>>,
    logits: View<Cuda<S>>,
    chosen: &Index<Gpu>,
    router: &RouterTerms,
) {
    let [gates, lse, logits] = [Window::from(&gates), Window::from(&lse), Window::from(&logits)];
    let (chosen, terms) = (Words::from(chosen), Terms::from(router));
    gpu.launch(&named::<S>("gates"), warps(logits.rows, 0), &[&gates, &lse, &logits, &chosen, &terms]);
}

/// What a loss weighs scores with, as kernels take it.
fn balance<S: Scalar>(balance: Option<RouterBalance<Cuda<S>>>) -> (Window, Words, u64, Window) {
    balance.map_or((Window::NONE, Words::NONE, 0, Window::NONE), |b| {
        ((&b.weights).into(), b.tokens.into(), b.first as u64, (&b.z).into())
    })
}

pub(crate) fn router_loss<S: Scalar>(
    gpu: &Gpu,
    loss: ViewMut<Cuda<S>>,
    logits: View<Cuda<S>>,
    lse: View<Cuda<S>>,
    of: RouterBalance<Cuda<S>>,
    sigmoid: bool,
) {
    let [loss, logits, lse] = [Window::from(&loss), Window::from(&logits), Window::from(&lse)];
    let (weights, tokens, first, z) = balance(Some(of));
    let shape = summing(gpu, logits.rows as usize * 32);
    gpu.launch(
        &named::<S>("router_loss"),
        shape,
        &[&loss, &logits, &lse, &weights, &tokens, &first, &z, &u32::from(sigmoid)],
    );
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn router_backward<S: Scalar>(
    gpu: &Gpu,
    dlogits: ViewMut<Cuda<S>>,
    logits: View<Cuda<S::Wide>>,
    lse: View<Cuda<S::Wide>>,
    dgates: View<Cuda<S::Wide>>,
    chosen: &Index<Gpu>,
    of: Option<RouterBalance<Cuda<S::Wide>>>,
    router: &RouterTerms,
) {
    let [dlogits, logits] = [Window::from(&dlogits), Window::from(&logits)];
    let [lse, dgates] = [Window::from(&lse), Window::from(&dgates)];
    let (chosen, terms, (weights, tokens, first, z)) = (Words::from(chosen), router.into(), balance(of));
    let (shape, terms): (_, Terms) = (warps(logits.rows, 4 * logits.cols as usize), terms);
    gpu.launch(
        &named::<S>("router_backward"),
        shape,
        &[&dlogits, &logits, &lse, &dgates, &chosen, &weights, &tokens, &first, &z, &terms],
    );
}
