//! `devices`: lists the devices of this machine, and why others are missing.
use crate::cli::run::Run;
use crate::views::Views;
use clap::Args;
use parallel::Result;
use run::devices;

/// List the devices of this machine, and why others are missing
#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {}

impl Run for DevicesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, views: &Views) -> Result<bool> {
        devices::tell(views).map(|()| true)
    }
}
