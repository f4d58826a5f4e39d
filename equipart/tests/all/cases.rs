//! `prove --cases` and `prove --case`: what they print, and what they refuse.
use crate::child::{Watched, binary};
use serde_json::Value;
use std::io::Write;
use std::process::{Output, Stdio};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../prove/tests/regressions.jsonl");

fn equipart(args: &[&str], stdin: &str) -> Output {
    let mut command = binary();
    let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Watched::start(command);
    // who refuses its flags reads nothing
    let _ = child.process.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.output()
}

/// Kills: a report with a time in it or in the order of threads, a key that does not go on where the report
/// ends.
#[test]
fn the_same_key_gives_the_same_bytes_and_goes_on() {
    let run = |key: &str, cases: &str| {
        let output = equipart(&["prove", "--cases", cases, "--key", key, "--json"], "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let both = run("0x10", "24");
    assert_eq!(both, run("16", "24"));
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let first = read(&run("16", "10"));
    let second = read(&run(first["next_key"].as_str().unwrap(), "14"));
    let both = read(&both);
    assert_eq!((&both["cases"], &both["equal"], &both["failure"]), (&24.into(), &true.into(), &Value::Null));
    assert_eq!(both["next_key"], second["next_key"]);
    for sum in ["tensors", "elements", "cases"] {
        let of = |report: &Value| report[sum].as_u64().unwrap();
        assert_eq!(of(&both), of(&first) + of(&second), "{sum}");
    }
    let says =
        equipart(&["prove", "--cases", "3", "--minutes", "5", "--key", "1", "--layout", "tp=2,sp"], "");
    let says = String::from_utf8(says.stdout).unwrap();
    assert!(
        says.starts_with("3 drawn cases from the key 0x0000000000000001: under tp=2,sp, training equals"),
        "{says}"
    );
    assert!(
        says.contains("        3  sequence parallelism\n") && says.contains("Continue with --key 0x"),
        "{says}"
    );
}

/// Kills: a kept case that is not proven, one that cannot be and ends as a panic or half-way.
#[test]
fn kept_cases_are_proven_again_and_others_refused() {
    let kept = std::fs::read_to_string(KEPT).unwrap();
    let output = equipart(&["prove", "--case", "-", "--json"], &kept);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.lines().count() == kept.lines().count(), "{said}");
    for (line, case) in said.lines().zip(kept.lines()) {
        let (verdict, case): (Value, Value) =
            (serde_json::from_str(line).unwrap(), serde_json::from_str(case).unwrap());
        assert_eq!((&verdict["equal"], &verdict["layout"]), (&true.into(), &case["layout"]));
        // A code of a moment is one of 2^15, so two keys leave 2^-30.
        let bound = if case["optimizer"].get("adamw-8bit").is_some() { -29.0 } else { -60.0 };
        assert_eq!((&verdict["keys"][0], verdict["bound_log2"].as_f64() < Some(bound)), (&case["key"], true));
    }
    assert!(equipart(&["prove", "--case", KEPT], "").status.success());
    let refused = |args: &[&str], stdin: &str, says: &str| {
        let output = equipart(&[&["prove"], args].concat(), stdin);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {error}");
        assert!(
            error.contains(says) && !error.contains("panicked"),
            "{args:?} says {error:?}, wanted {says:?}"
        );
    };
    let line = kept.lines().next().unwrap();
    let case = |from: &str, to: &str, says: &str| {
        assert!(line.contains(from), "{line}");
        refused(&["--case", "-"], &format!("{line}\n\n{}\n", line.replace(from, to)), says);
    };
    case(
        "\"layout\":\"dp=2\"",
        "\"layout\":\"dp=3\"",
        "line 3: a microbatch of 2 sequences cannot be dealt over dp=3",
    );
    case("\"layout\":\"dp=2\"", "\"layout\":\"tp=2\"", "line 3: tp=2 does not fit 1 query head");
    case("\"embedding\":0.125", "\"embedding\":1.0", "is 1; it must be 0 or more and below 1");
    case("\"vocabulary\":1", "\"vocabulary\":0", "shape.vocabulary is 0; it must be 1 to 4096");
    case("\"microbatches\":1", "\"microbatches\":3", "2 sequences in 3 microbatches");
    case("[\".\"]", "[]", "has 0 ids");
    case("}", "", "line 3: invalid case: ");
    refused(&["--case", "-"], "\n", "standard input has no case");
    refused(&["--case", "/nowhere/x"], "", "/nowhere/x: there is no such file");
    refused(
        &["--case", "/dev/zero"],
        "",
        "/dev/zero is a pipe, socket or device where a regular file should be",
    );
    refused(&["--case", "/dev/stdin"], &format!("{line}\n"), "/dev/stdin is a pipe, socket or device");
    refused(&["--case", "-", "--key", "1"], "", "cannot be used with");
    refused(&["--cases", "0"], "", "--cases is 0; it must be at least 1");
    refused(&["--minutes", "-1"], "", "--minutes is -1; it must be above 0 and at most 525600");
    refused(&["--cases", "1", "--config", "x"], "", "cannot be used with");
    refused(&["--minutes", "1", "--hidden", "3"], "", "cannot be used with");
    refused(
        &["--cases", "1", "--layout", "tp=17"],
        "",
        "no case can have the layout tp=17: no small model fits it",
    );
}
