//! Tables of `compare`, compared with its lines for scripts.
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
