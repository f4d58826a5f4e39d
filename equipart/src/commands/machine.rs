//! `machine`: measures this machine, or shows one that `price` and `plan` know.
use crate::cli::run::Run;
use crate::views::Views;
use clap::Args;
use parallel::Result;
use plan::Machine;
use run::machine::{measured, tell};
use std::path::PathBuf;
use tensor::files;

/// Measure this machine for `price` and `plan`, or show one
#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    /// a100, a100-2022, h100, h200, or a file of JSON
    #[arg(value_name = "NAME|FILE", required_unless_present = "measure", conflicts_with = "measure")]
    machine: Option<String>,
    /// Measure this machine: the rates of kernels by size, and the calls between ranks, each a thread. It
    /// takes up to a minute, and needs a machine that does nothing else
    #[arg(long)]
    measure: bool,
    /// Write the machine to this file, for `price --machine FILE` and `plan --machine FILE`
    #[arg(long, value_name = "FILE", requires = "measure")]
    out: Option<PathBuf>,
    /// Measure small sizes, to test that everything runs
    #[arg(long, requires = "measure", conflicts_with = "machine")]
    small: bool,
}

impl Run for MachineArgs {
    fn run(self, views: &Views) -> Result<bool> {
        let machine =
            self.machine.map_or_else(|| measured(self.small, views), |name| Machine::named(&name))?;
        if let Some(file) = self.out {
            let text = serde_json::to_string_pretty(&machine).expect("plain values");
            files::replace_file(&file, (text + "\n").as_bytes())?;
        }
        tell(&machine, views).map(|()| true)
    }
}
