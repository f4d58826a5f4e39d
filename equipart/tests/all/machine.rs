//! The command `machine`: a measured machine that prices, and known machines as tables.
use crate::child::{equipart, refused};
use plan::Machine;

fn said(args: &[&str]) -> String {
    let output = equipart(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Kills: a file that is not what was measured, a number that no machine may have, rates of one dtype alone,
/// a file that price does not read.
#[test]
fn a_measured_machine_is_read_back_and_prices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("here.json").display().to_string();
    let told = said(&["machine", "--measure", "--small", "--out", &file, "--json"]);
    let machine = Machine::read(&told, "what was printed").unwrap();
    assert_eq!(Machine::named(&file).unwrap(), machine);
    assert!(machine.launch.value > 0.0 && machine.levels.iter().all(|level| level.latency.value > 0.0));
    for kernel in
        ["product", "product/bf16", "product/f64", "attention", "norm", "adamw", "swiglu", "gates", "*"]
    {
        assert!(machine.kernels.contains_key(kernel), "{kernel}");
    }
    assert!(machine.kernels.values().all(|rates| rates.source.contains("measured")));
    let price = said(&["price", "--layout", "tp=2", "--machine", &file]);
    assert!(price.contains("A step takes") && price.contains("on this machine ("), "{price}");
}

/// Kills: a number without its source, a level or a kernel that is left out; flags that contradict.
#[test]
fn a_known_machine_is_shown_with_sources() {
    let text = said(&["machine", "h100"]);
    for words in ["H100 SXM data sheet", "levels latency", "product/f32, operations", "rack"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(
        Machine::read(&said(&["machine", "h100", "--json"]), "h100").unwrap(),
        Machine::named("h100").unwrap()
    );
    refused(&["machine", "h900"], "neither a machine");
    assert_eq!(equipart(&["machine"]).status.code(), Some(2));
    assert_eq!(equipart(&["machine", "h100", "--measure"]).status.code(), Some(2));
}
