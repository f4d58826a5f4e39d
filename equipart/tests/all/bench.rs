//! The command `bench`: what scripts get, and what it refuses.
use crate::child::equipart;
use serde_json::Value;
use std::process::Output;

fn bench(args: &[&str]) -> Output {
    equipart(&[&["bench"], args].concat())
}

fn refused(args: &[&str], says: &str) {
    let output = bench(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{args:?}: {error}");
    assert!(error.starts_with("error: ") && error.contains(says), "{args:?} says {error:?}, wanted {says:?}");
}

/// A real figure, small enough for a test: the machine's peak, and a product's beside it. Kills: lines that
/// are no JSON, keys that are missing, a peer where there is none, a table in place of lines.
#[test]
fn figures_are_lines_of_json_or_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("peers").display().to_string();
    std::fs::write(&file, r#"{"peer": "tortoise", "name": "linear_gflops_m32", "value": 0.001}"#).unwrap();
    let args = ["--only", "machine_peak,linear", "--turns", "1", "--peers", &file];
    let output = bench(&[&args[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["machine_peak_gflops", "linear_gflops_m32"]);
    let keys = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&lines[0]), ["limit", "name", "processor", "ratio", "unit", "value"]);
    assert_eq!(keys(&lines[1]), ["limit", "name", "peer", "processor", "ratio", "unit", "value"]);
    let (peak, linear) = (&lines[0], &lines[1]);
    assert!(peak["limit"].is_null() && peak["ratio"].is_null() && peak["unit"] == "GFLOP/s");
    let number = |line: &Value| line.as_f64().unwrap();
    assert!(number(&linear["limit"]) > 1.0, "{linear}");
    let processor = linear["processor"].as_str().unwrap();
    assert!(processor.ends_with(" core") || processor.ends_with(" cores"), "{linear}");
    let better = number(&linear["value"]) / 0.001;
    assert_eq!((&linear["peer"]["name"], number(&linear["peer"]["ratio"])), (&"tortoise".into(), better));

    let table = String::from_utf8(bench(&args).stdout).unwrap();
    assert!(
        table.contains("of limit")
            && table.contains("tortoise")
            && table.contains("machine_peak_gflops")
            && table.contains(&format!("Measured on {processor}."))
    );
}

/// Kills: a name, a number or a file that is passed over, and half of the figures before the error.
#[test]
fn what_cannot_be_measured_is_refused() {
    refused(&["--only", "gemm,steps"], "no figure is called \"steps\"");
    refused(&["--only", ""], "no figure is called \"\"");
    refused(
        &["--only", "gemm", "--layout", "tp=2"],
        "'--only <NAME>' cannot be used with '--layout <LAYOUT>'",
    );
    refused(
        &["--profile", "--turns", "3"],
        "--turns is for the figures, or for --link; --profile without --link",
    );
    refused(&["--turns", "0"], "--turns is 0; it must be 1 to 10000");
    refused(&["--turns", "18446744073709551615"], "it must be 1 to 10000");
    assert_eq!(bench(&["--turns", "-1"]).status.code(), Some(2));
    refused(&["--peers", "/nowhere/peers"], "/nowhere/peers");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("peers").display().to_string();
    std::fs::write(&file, "\n{\"peer\": \"a\"}\n").unwrap();
    refused(&["--peers", &file], &format!("{file}, line 2: missing field `name`"));
}
