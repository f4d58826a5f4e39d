//! Launches of `router.cu`.
use super::{Launches, MatrixIn, MatrixOut, Words, optimizer::summing};
use crate::card::{Argument, LaunchConfig, arguments_of};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{RouterBalance, RouterNoise, RouterTerms};
use tensor::{Index, Scalar};

/// Warps per block, one row each.
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
/// `NoiseArgs` of `router.cu`.
#[repr(C)]
struct NoiseArgs {
    tokens: Words,
    first: u64,
    salt: u64,
    std: f32,
}
arguments_of!(Terms, NoiseArgs);

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

/// One warp per row, each with `shared` bytes of shared memory.
fn warps(rows: usize, shared: usize) -> LaunchConfig {
    LaunchConfig { blocks: [rows.div_ceil(WARPS), 1, 1], threads: WARPS * 32, shared: WARPS * shared }
}

impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    pub(crate) fn choose(
        &self,
        chosen: &mut Index<Gpu>,
        logits: MatrixIn<f32>,
        bias: Option<MatrixIn<S>>,
        noise: Option<RouterNoise<Gpu>>,
        router: &RouterTerms,
    ) {
        let terms = Terms::from(router);
        let noise = match noise {
            None => NoiseArgs { tokens: Words::NONE, first: 0, salt: 0, std: 0.0 },
            Some(RouterNoise { noise, tokens, first }) => {
                let (std, salt) = noise.parts();
                NoiseArgs { tokens: tokens.into(), first: first as u64, salt, std: std as f32 }
            }
        };
        let shared = 8 * (terms.groups as usize + logits.cols().div_ceil(2));
        self.launch("choose", warps(logits.rows(), shared), &[chosen, &logits, &bias, &noise, &terms]);
    }

    pub(crate) fn gates(
        &self,
        gates: MatrixOut<S>,
        lse: MatrixOut<S>,
        logits: MatrixIn<S>,
        chosen: &Index<Gpu>,
        router: &RouterTerms,
    ) {
        let arguments: [&dyn Argument; 5] = [&gates, &lse, &logits, chosen, &Terms::from(router)];
        self.launch("gates", warps(logits.rows(), 0), &arguments);
    }

    pub(crate) fn router_loss(
        &self,
        loss: MatrixOut<S>,
        logits: MatrixIn<S>,
        lse: MatrixIn<S>,
        of: RouterBalance<Cuda<S>>,
        sigmoid: bool,
    ) {
        let RouterBalance { weights, tokens, first, z } = of;
        let first = first as u64;
        let arguments: [&dyn Argument; 8] =
            [&loss, &logits, &lse, &weights, tokens, &first, &z, &u32::from(sigmoid)];
        self.launch("router_loss", summing(self.0, logits.rows() * 32), &arguments);
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn router_backward(
        &self,
        dlogits: MatrixOut<S>,
        logits: MatrixIn<f32>,
        lse: MatrixIn<f32>,
        dgates: MatrixIn<f32>,
        chosen: &Index<Gpu>,
        of: Option<RouterBalance<Cuda<f32>>>,
        router: &RouterTerms,
    ) {
        let (tokens, first) = of.as_ref().map_or((Words::NONE, 0), |of| (of.tokens.into(), of.first as u64));
        let (weights, z) = of.map(|of| (of.weights, of.z)).unzip();
        let arguments: [&dyn Argument; 10] =
            [&dlogits, &logits, &lse, &dgates, chosen, &weights, &tokens, &first, &z, &Terms::from(router)];
        self.launch("router_backward", warps(logits.rows(), 4 * logits.cols()), &arguments);
    }
}
