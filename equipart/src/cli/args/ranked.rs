//! Flags of the commands that run ranks: what each rank has, and who starts it.
use super::ranks::RanksArgs;
use crate::cli::processes::ProcessesArgs;
use crate::terminal::out;
use clap::Args;
use cuda::CardEngine;
use parallel::{Layout, Network, Result};
use run::device::DeviceName;

#[derive(Args, Debug, Default)]
pub(crate) struct RankedArgs {
    #[command(flatten)]
    pub(crate) each: RanksArgs,
    #[command(flatten)]
    pub(crate) processes: ProcessesArgs,
}

impl RankedArgs {
    /// Opens the device for the ranks of these layouts, and joins their processes, if a launcher started
    /// some. `only` lists flags that need all ranks in one process, each with whether it is given.
    ///
    /// # Errors
    /// If there is no such device, or the processes do not meet.
    pub(crate) fn join(
        &self,
        network: Network,
        layouts: &[Layout],
        device: DeviceName,
        only: &[(&str, bool)],
    ) -> Result<Network> {
        let most = layouts.iter().map(Layout::ranks).max().unwrap_or(1);
        self.join_on(device.open(most, &out::note)?, network, layouts, only)
    }
    /// Joins the processes on a device that is open.
    ///
    /// # Errors
    /// If the processes do not meet.
    pub(crate) fn join_on(
        &self,
        engine: Option<CardEngine>,
        network: Network,
        layouts: &[Layout],
        only: &[(&str, bool)],
    ) -> Result<Network> {
        self.processes.join(network, (layouts, engine), self.each.split.as_ref(), only)
    }
}
