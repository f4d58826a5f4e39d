//! `machine`: measures this machine, or shows one that `price` and `plan` know.
use crate::cli::run::Run;
use crate::views::Views;
use bench::measure::{self, MeasureScale};
use clap::Args;
use parallel::Result;
use plan::Machine;
use serde_json::Value;
use std::path::PathBuf;
use tensor::files;
use tensor::quoted::escaped;

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
        let machine = if let Some(name) = self.machine {
            Machine::named(&name)?
        } else {
            let scale = [MeasureScale::FULL, MeasureScale::TINY];
            let watch = |what: &str| drop(views.doing(what)); // the results tell of an error
            measure::machine(&scale[usize::from(self.small)], &watch)?
        };
        if let Some(file) = self.out {
            let text = serde_json::to_string_pretty(&machine).expect("plain values");
            files::replace_file(&file, (text + "\n").as_bytes())?;
        }
        views.record(&machine)?;
        let mut numbers = Vec::new();
        rows("", &serde_json::to_value(&machine).expect("plain values"), &mut numbers);
        views.text_table(&["", "number", "source"], numbers)?;
        views.say(
            "\nIn bytes, operations and seconds. Rates of a kernel: a second's work at a call's work.",
        )?;
        Ok(true)
    }
}

/// Adds the rows of a value with this name.
fn rows(name: &str, value: &Value, to: &mut Vec<Vec<String>>) {
    let number = |value: &Value| match value.as_f64() {
        Some(small) if small < 1.0 => format!("{small:.3e}"),
        Some(number) => run::words::amount(number),
        None => escaped(value.as_str().unwrap_or_default()),
    };
    match value {
        Value::Object(of) if of.contains_key("value") => {
            to.push(vec![name.into(), number(&of["value"]), number(&of["source"])]);
        }
        Value::Object(of) if of.contains_key("source") => {
            for what in ["operations", "bytes"] {
                let table = of.get(what).and_then(Value::as_array).into_iter().flatten();
                let sizes: Vec<_> =
                    table.map(|row| format!("{} at {}", number(&row[1]), number(&row[0]))).collect();
                if !sizes.is_empty() {
                    to.push(vec![format!("{name}, {what}"), sizes.join(", "), number(&of["source"])]);
                }
            }
        }
        Value::Object(of) => of.iter().for_each(|(key, value)| rows(&format!("{name} {key}"), value, to)),
        Value::Array(all) => all.iter().for_each(|value| rows(name, value, to)),
        _ => to.push(vec![name.into(), number(value), String::new()]),
    }
}
