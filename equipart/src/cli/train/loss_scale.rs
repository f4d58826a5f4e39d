//! Flags of loss scaling.
use crate::cli::args::differs;
use clap::Args;
use ops::LossScaling;
use parallel::dtype::DtypeName;
use parallel::{Result, bail};

/// Loss scaling, for dtypes that need it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LossScaleArgs {
    /// With --dtype f16: loss scale of the first step, a power of two; a step whose gradients overflow is
    /// skipped, and halves it [default: 65536]
    #[arg(long, value_name = "N")]
    loss_scale: Option<u32>,
    /// With --dtype f16: number of steps in turn without overflow that double the loss scale [default: 2000]
    #[arg(long, value_name = "STEPS")]
    loss_scale_window: Option<u32>,
}

impl LossScaleArgs {
    /// Returns the loss scaling of a run in this dtype.
    ///
    /// # Errors
    /// If a number is out of range, or is given for a dtype that needs none.
    pub(crate) fn of(&self, dtype: DtypeName) -> Result<Option<LossScaling>> {
        let Some(usual) = dtype.loss_scaling() else {
            let given = [("scale", self.loss_scale), ("scale-window", self.loss_scale_window)];
            return match given.into_iter().find_map(|(flag, value)| Some((flag, value?))) {
                Some((flag, n)) => {
                    bail!("--loss-{flag} is {n}, but {dtype} needs no loss scaling; leave it out")
                }
                None => Ok(None),
            };
        };
        let (scale, most) = (self.loss_scale.unwrap_or(1 << usual.log2), 1 << LossScaling::MOST);
        if !(scale.is_power_of_two() && scale <= most) {
            bail!("--loss-scale is {scale}; it must be a power of two, at most {most}");
        }
        let window = self.loss_scale_window.unwrap_or(usual.window);
        if window == 0 {
            bail!("--loss-scale-window is 0; it must be at least 1");
        }
        Ok(Some(LossScaling { log2: scale.ilog2(), window, ..usual }))
    }
    /// Says that a flag differs from what a run to resume began with, if one does.
    pub(crate) fn differ(&self, begun: Option<LossScaling>) -> Option<String> {
        let window =
            differs("loss-scale-window", self.loss_scale_window, begun.map_or(0, |begun| begun.window));
        window.or_else(|| differs("loss-scale", self.loss_scale, begun.map_or(1, |begun| 1 << begun.log2)))
    }
}
