//! Tables of `compare`, compared with its lines for scripts.
use crate::child::equipart;
use serde_json::Value;

/// Asserts that the tables for people have a row's bytes, in the units beside them, whatever columns there
/// are. Kills: another unit than the number is of, the bytes of another rank, row or work.
pub(crate) fn printed_as_told(tables: &str, row: &Value) {
    let (name, inference) = (row["name"].as_str().unwrap(), row["workload"] == "inference");
    let mut lines = tables.lines().filter(|line| line.trim_start().starts_with(name));
    let line = lines.nth(usize::from(!inference)).unwrap_or_else(|| panic!("{name} is not in {tables}"));
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3), (" B", 1.0)];
    let bytes = |cell: &str| {
        let (number, unit) = units.iter().find_map(|(name, unit)| Some((cell.strip_suffix(name)?, unit)))?;
        Some(number.trim().parse::<f64>().ok()? * unit)
    };
    let seen: Vec<_> = line.split("  ").filter_map(|cell| bytes(cell.trim())).collect();
    let of_phases = row["peak_bytes"]
        .as_object()
        .unwrap()
        .values()
        .map(|ranks| ranks.as_array().unwrap().iter().filter_map(Value::as_f64).fold(0.0, f64::max));
    let of_numbers = row["peak_bytes_by_number"].as_object().unwrap().values();
    let more = of_numbers.chain([&row["traffic_bytes"]]).filter_map(Value::as_f64);
    let reported: Vec<_> = of_phases.chain(more).collect();
    let near = |seen: &f64| reported.iter().any(|reported| (seen - reported).abs() <= 0.005 * reported);
    assert!(seen.len() >= 2 && seen.iter().all(near), "{line}: {seen:?}, told {reported:?}");
}

/// A training step on stale weights and on others, and texts on two tensor ranks. Kills: traffic of one
/// rank, of several steps, or of the pipeline's filling; a generated token with the bytes of another
/// number of tokens.
#[test]
fn a_comparison_sends_what_its_prices_say() {
    let dir = tempfile::tempdir().unwrap();
    let flags = crate::views::trains(dir.path());
    let endless = std::fs::read_to_string(&flags[2]).unwrap().replacen('{', "{\"eos_token_id\":null,", 1);
    std::fs::write(&flags[2], endless).unwrap();
    let out = dir.path().join("model").display().to_string();
    let said = |args: &[&str]| -> Vec<Value> {
        let output = equipart(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let train: Vec<_> = flags.iter().map(String::as_str).chain(["--out", &out, "--json"]).collect();
    said(&train);
    let layouts = ["--layout", "tp=2", "--layout", "pp=2:pipedream", "--layout", "pp=2,dp=2:zero1"];
    let compare = ["compare", "--json", "--model", &out, "--data", &flags[4], "--seconds", "0"];
    let rows = said(&[&compare[..], &["--microbatches", "2"], &layouts].concat());
    let mut trained = 0;
    for row in &rows {
        let (layout, sent) = (row["layout"].as_str().unwrap(), row["traffic_bytes"].as_u64().unwrap());
        if row["workload"] == "training" {
            let job = ["--seq", "64", "--batch-size", "4", "--microbatches", "2", "--optimizer", "sgd"];
            let price = ["price", "--json", "--config", &flags[2], "--layout", layout];
            let prices = said(&[&price[..], &job].concat());
            let of = |price: &Value| ["traffic_bytes", "ranks"].map(|key| price[key].as_u64().unwrap());
            let all: u64 = prices.iter().map(of).map(|[bytes, ranks]| bytes * ranks).sum();
            assert_eq!(sent, all, "{layout}");
            trained += 1;
        } else if layout == "tp=2" {
            // 4 prompts of 16 tokens and 32 new ones, of which the last is not read: 5 sums of 16 numbers
            // for each token that is read, between two ranks that send as much as they have
            let (read, new) = (4 * (16 + 31), 4 * 32);
            assert_eq!(sent, (read * 5 * 16 * 4 * 2 + new * 256 * 4) / new);
        }
    }
    assert_eq!(trained, 4);
}
