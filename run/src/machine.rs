//! Machines: this one, measured, and the numbers of any.
use crate::event::Observer;
use crate::records;
use crate::words::amount;
use bench::measure::{self, MeasureScale};
use parallel::Result;
use plan::Machine;
use serde_json::Value;
use tensor::quoted::escaped;

records!(Machine: "machine");

/// Measures this machine; small sizes only, if that is a test.
///
/// # Errors
/// If the machine cannot be measured.
pub fn measured(is_small: bool, observer: &Observer) -> Result<Machine> {
    let scale = if is_small { &MeasureScale::TINY } else { &MeasureScale::FULL };
    measure::machine(scale, &|what| drop(observer.doing(what))) // the results tell of an error
}

/// Tells the numbers of a machine, and their sources.
///
/// # Errors
/// If the observer fails.
pub fn tell(machine: &Machine, observer: &Observer) -> Result<()> {
    observer.record(machine)?;
    let mut numbers = Vec::new();
    rows("", &serde_json::to_value(machine).expect("plain values"), &mut numbers);
    observer.text_table(&["", "number", "source"], numbers)?;
    observer.say("\nIn bytes, operations and seconds. Rates of a kernel: a second's work at a call's work.")
}

/// Adds the rows of a value with this name.
fn rows(name: &str, value: &Value, to: &mut Vec<Vec<String>>) {
    let number = |value: &Value| match value.as_f64() {
        Some(small) if small < 1.0 => format!("{small:.3e}"),
        Some(number) => amount(number),
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
