//! `machine`: measures this machine, or shows one that `price` and `plan` know.
use super::Run;
use crate::cli::watch::ProgressWatch;
use crate::cli::{out, show};
use bench::measure::{self, MeasureScale};
use clap::Args;
use comfy_table::CellAlignment;
use parallel::Result;
use plan::Machine;
use plan::machine::{Level, Sourced};
use std::path::PathBuf;
use tensor::files;
use tensor::quoted::escaped;

/// Measure this machine for `price` and `plan`, or show one
#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    /// a100, a100-2022, h100, h200, or a file of JSON
    #[arg(value_name = "NAME|FILE", required_unless_present = "measure", conflicts_with = "measure")]
    machine: Option<String>,
    /// Measure this machine: the rates of kernels by size and the calls between ranks, each a thread. It takes
    /// up to a minute, and needs a machine that does nothing else
    #[arg(long)]
    measure: bool,
    /// Write the machine to this file, for `price --machine FILE` and `plan --machine FILE`
    #[arg(long, value_name = "FILE", requires = "measure")]
    out: Option<PathBuf>,
    /// Measure small sizes, to test that everything runs
    #[arg(long, requires = "measure")]
    small: bool,
}

impl Run for MachineArgs {
    fn run(self, json: bool) -> Result<bool> {
        let machine = match self.machine {
            Some(name) => Machine::named(&name)?,
            None => {
                let (watch, scale) = (ProgressWatch::spinner(), [MeasureScale::FULL, MeasureScale::TINY]);
                let measured = measure::machine(&scale[usize::from(self.small)], &|what| watch.say(what))?;
                watch.done();
                measured
            }
        };
        if let Some(file) = self.out {
            let text = serde_json::to_string_pretty(&machine).expect("plain values");
            files::replace_file(&file, (text + "\n").as_bytes())?;
        }
        show::one(json, &machine, || words(&machine));
        Ok(true)
    }
}

/// The machine as tables.
fn words(machine: &Machine) -> String {
    let Machine { about, memory, peak, launch, kernels, overlap, host, cores, levels } = machine;
    let row = |name: &str, number: String, source: &str| {
        vec![name.to_string(), number, escaped(source).to_string()]
    };
    let rate = |known: &Sourced, unit: &str| format!("{}{unit}/s", show::amount(known.value));
    let mut rows =
        vec![row("memory of a rank", format!("{} bytes", show::amount(memory.value)), &memory.source)];
    rows.extend(
        peak.iter().map(|(dtype, of)| row(&format!("peak in {dtype}"), rate(of, " operations"), &of.source)),
    );
    rows.push(row("launch", format!("{:.2} us", launch.value * 1e6), &launch.source));
    rows.push(row("speed of kernels beside calls", format!("{:.3}", overlap.value), &overlap.source));
    rows.push(row("to the host's memory", rate(host, " bytes"), &host.source));
    rows.extend(cores.map(|cores| row("cores that ranks share", cores.to_string(), "")));
    for Level { name, ranks, latency, bandwidth, operations } in levels {
        let of = ranks.map_or_else(|| name.clone(), |ranks| format!("{name} of {ranks} ranks"));
        rows.push(row(&format!("{of}: latency"), format!("{:.2} us", latency.value * 1e6), &latency.source));
        rows.push(row(&format!("{of}: bandwidth"), rate(bandwidth, " bytes"), &bandwidth.source));
        let differ = operations
            .iter()
            .map(|(op, known)| row(&format!("{of}: {op}"), rate(known, " bytes"), &known.source));
        rows.extend(differ);
    }
    let sizes = |table: &[[f64; 2]]| {
        let of = |[size, rate]: &[f64; 2]| format!("{}/s at {}", show::amount(*rate), show::amount(*size));
        table.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let rates = kernels.iter().flat_map(|(name, rates)| {
        let tables = [("operations", &rates.operations), ("bytes", &rates.bytes)];
        let rows = tables.into_iter().filter(|(_, table)| !table.is_empty());
        rows.map(move |(what, table)| row(name, what.into(), &sizes(table)))
    });
    let rates: Vec<_> = rates.collect();
    let table = |head: &[&str], rows: Vec<Vec<String>>| {
        let mut table = show::fitted(show::table(head, rows.into_iter()));
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Left);
            column.remove_constraint();
        }
        table.to_string()
    };
    format!(
        "{}\n\n{}\n\n{}",
        escaped(about),
        table(&["", "value", "source"], rows),
        table(&["kernel", "counts", "rates by size"], rates)
    )
}
