//! `equipart schedule --partition`: the tables and the sentence for a measured model, and what bad input
//! gets. Times differ from run to run, so tests compare the structure, and JSON with its own numbers.
use crate::child::{equipart, refused};
use serde_json::Value;

fn said(args: &[&str]) -> String {
    let output = equipart(&[&["schedule", "--seq", "4"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Kills: a block without a row, stages that lack blocks or have more ranks than were given, a bottleneck or
/// a speed-up of other numbers, a layout that is not of the stages, a simulation that beats its bound.
#[test]
fn stages_of_measured_blocks_are_printed() {
    for (model, ranks, sequences) in [("embedded", 1, 1), ("embedded", 2, 1), ("moe", 3, 2)] {
        let [ranks_text, sequences_text] = [ranks, sequences].map(|n: u64| n.to_string());
        let args = ["--model", model, "--partition", &ranks_text, "--sequences", &sequences_text];
        let of: Value = serde_json::from_str(&said(&[&args[..], &["--json"]].concat())).unwrap();
        let parts = of["parts"].as_array().unwrap();
        assert!(parts.len() == 4 && parts[3]["activation_bytes"] == 0, "{of}");
        let seconds = |of: &Value| of.as_f64().unwrap();
        let all: f64 = parts.iter().map(|part| seconds(&part["forward"]) + seconds(&part["backward"])).sum();
        let bottleneck = seconds(&of["bottleneck"]);
        assert!((seconds(&of["speedup"]) - all / bottleneck).abs() < 1e-9, "{of}");
        let (mut at, mut used, mut split, mut equal) = (0, 0, Vec::new(), Vec::new());
        for stage in of["stages"].as_array().unwrap() {
            assert!(stage["parts"]["start"] == at && seconds(&stage["seconds"]) <= bottleneck, "{of}");
            let end = stage["parts"]["end"].as_u64().unwrap();
            split.push((end - at).to_string());
            at = end;
            let own = stage["ranks"].as_u64().unwrap();
            assert!((1..=sequences).contains(&own), "{of}");
            used += own;
            equal.push(own);
        }
        assert!(at == 4 && used <= ranks, "{of}");
        let m = equal[0];
        let is_equal = equal.iter().all(|own| *own == m);
        let dp = if m > 1 { vec![format!("dp={m}")] } else { vec![] };
        let pp = (equal.len() > 1).then(|| format!("pp={}:pipedream", equal.len()));
        let axes: Vec<_> = dp.into_iter().chain(pp).collect();
        let layout = if axes.is_empty() { "none".into() } else { axes.join(",") };
        assert_eq!(of["layout"].as_str(), is_equal.then_some(&*layout), "{of}");
        assert_eq!(of["split"].as_str(), (is_equal && equal.len() > 1).then_some(&*split.join(",")), "{of}");
        let rate = of["simulated_microbatches_per_second"].as_f64();
        assert_eq!(rate.is_some(), !is_equal, "{of}");
        let bound = seconds(&of["microbatches_per_second"]);
        assert!((bound * bottleneck - 1.0).abs() < 1e-9 && rate.is_none_or(|rate| rate <= bound), "{of}");

        let text = said(&args);
        assert_eq!(text.lines().filter(|line| line.trim_start().starts_with("block ")).count(), 4, "{text}");
        assert!(text.contains(" ms a microbatch: "), "{text}");
        let ends =
            ["\nIt runs: train --layout ", "\nNo layout runs stages with different numbers of ranks. "];
        assert_eq!(ends.iter().filter(|end| text.contains(**end)).count(), 1, "{text}");
    }
}

/// Kills: a panic, a hang or half an answer where the input is wrong; a flag that is ignored.
#[test]
fn a_partition_that_does_not_fit_is_refused() {
    let no = |args: &[&str], says: &str| refused(&[&["schedule"], args].concat(), says);
    no(&["--partition", "3"], "--model <DIR|NAME>");
    no(&["--model", "moe", "--sequences", "2"], "--partition <RANKS>");
    let of = |args: &[&str], says: &str| no(&[&["--model", "embedded"], args].concat(), says);
    of(
        &["--partition", "0"],
        "--partition is 0; it must be 1 to 16: 4 blocks on at most 4 ranks each, one for each of --sequences",
    );
    of(
        &["--partition", "9", "--sequences", "2"],
        "--partition is 9; it must be 1 to 8: 4 blocks on at most 2 ranks each",
    );
    of(&["--partition", "1", "--sequences", "0"], "--sequences is 0; it must be 1 to 64");
    of(&["--partition", "1", "--seq", "0"], "--seq is 0; it must be 1 to ");
    of(&["--partition", "1", "--device", "cuda"], "--partition measures on the CPU; leave out --device cuda");
    no(&["--model", "mlp", "--partition", "2"], "--model mlp has no config.json; write a folder");
    for flag in ["--kind", "--stages", "--microbatches", "--chunks", "--slices", "--times", "--link"] {
        let value = match flag {
            "--kind" => "gpipe",
            "--times" => "1,1,1",
            "--link" => "0,1",
            _ => "2",
        };
        of(&["--partition", "2", flag, value], "cannot be used with");
    }
    for flag in ["--file", "--svg", "--csv"] {
        of(&["--partition", "2", flag, "a"], "cannot be used with");
    }
}
