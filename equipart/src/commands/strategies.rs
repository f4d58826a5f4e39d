//! `strategies`: lists the strategies, and the optimizers whose state they split.
use crate::cli::run::Run;
use crate::views::Views;
use clap::Args;
use parallel::Result;
use run::strategies;

/// List the strategies that a layout can name, and the optimizers
#[derive(Args, Debug)]
pub(crate) struct StrategiesArgs {}

impl Run for StrategiesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, views: &Views) -> Result<bool> {
        strategies::tell(views).map(|()| true)
    }
}
