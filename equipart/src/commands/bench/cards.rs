//! Cards, as figures are measured on them: their limits are those that `gpu-check` measures.
use crate::commands::gpu_check::guarded;
use bench::{Cores, Hardware, Probe};
use cuda::measure::{self, Scale};
use cuda::{Card, Cuda, Engine, Gpu};
use parallel::{Error, Result};
use std::sync::Arc;
use tensor::Bf16;

/// The first card, which all ranks share, or one like it for each.
pub(super) struct Cards(pub(super) Arc<Card>);

impl Hardware for Cards {
    type F32 = Cuda<f32>;
    type Bf16 = Cuda<Bf16>;
    const HOST: bool = false;
    const CALLS: usize = 64;

    fn name(&self) -> String {
        self.0.about.name.clone()
    }
    fn cores(&self, ranks: usize) -> usize {
        if let Ok((Engine::Nccl(_), _)) = Engine::of(ranks) { ranks } else { 1 }
    }
    /// Threads meet on the host.
    fn seconds(&self, probe: Probe, smaller: usize) -> Result<f64> {
        let (scale, gpu) = (Scale::new(smaller > 1), Gpu::of(&self.0));
        let copied = |bytes: usize| measure::copies(&gpu, scale).map(|rate| bytes as f64 / (rate * 1e9));
        let seconds = guarded(|| match probe {
            Probe::Peak { .. } => Ok(1.0 / measure::peak(&gpu, scale, false)?),
            Probe::PeakBf16 { .. } => Ok(1.0 / measure::peak(&gpu, scale, true)?),
            Probe::Read { .. } => copied(1),
            Probe::Rewrite { bytes, .. } | Probe::Copy { bytes, .. } => copied(2 * bytes),
            Probe::Field { .. } | Probe::Meet { .. } => {
                Cores.seconds(probe, smaller).map_err(|error| error.to_string())
            }
        });
        seconds.map_err(Error::new)
    }
}
