//! `equipart share`: the shares that it measures, its equations, and what bad input gets.
#![cfg(target_os = "linux")]
use crate::child::{equipart, refused};
use serde_json::Value;
use std::thread::available_parallelism;

/// How long a share is paused is a test of the crate: a busy machine lets all shares wait. Kills: a
/// throughput that is not of a core, a slope with another power, the knee of another column.
#[test]
fn every_share_is_predicted_and_measured() {
    let output = equipart(&["--json", "share", "--tokens", "16", "--seconds", "0.08"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |row: &Value, key: &str| row[key].as_f64();
    let rows: Vec<_> = all
        .iter()
        .filter_map(|row| {
            let [cores, predicted, measured] =
                ["cores", "predicted_seconds", "measured_seconds"].map(|key| number(row, key));
            let [a, slope] = ["throughput_of_a_core", "slope"].map(|key| number(row, key));
            Some([cores?, predicted?, measured?, a?, slope?])
        })
        .collect();
    let whole = available_parallelism().unwrap().get();
    let shares: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert!(shares[..10] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], "{shares:?}");
    assert!(shares[10..] == [2.0, 4.0][..usize::from(whole > 1) + usize::from(whole > 3)], "{shares:?}");
    for [cores, predicted, measured, a, slope] in &rows {
        let near = |x: f64, y: f64| (x / y - 1.0).abs() < 1e-9;
        assert!(near(*a, 1.0 / (measured * cores)) && near(*slope, -1.0 / (measured * measured * cores)));
        assert!(near(*predicted * cores, rows[9][1]) || *cores > 1.0, "{cores}: {predicted}");
    }
    let knee = all.last().unwrap();
    let best = |at: usize| {
        rows.iter()
            .max_by(|a, b| (a[at].powi(2) * a[0]).total_cmp(&(b[at].powi(2) * b[0])).reverse())
            .unwrap()[0]
    };
    assert_eq!(
        [number(knee, "predicted_knee"), number(knee, "measured_knee")],
        [Some(best(1)), Some(best(2))]
    );
}

/// Kills: forwards on other cores than those that are given.
#[test]
fn forwards_run_on_the_given_cores_alone() {
    let output = equipart(&["--json", "share", "--tokens", "4", "--cores", "0", "--forwards", "3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let [ready, seconds] =
        [0, 1].map(|at| serde_json::from_str::<Value>(text.lines().nth(at).unwrap()).unwrap());
    assert!(ready["ready"] == true && seconds["seconds"].as_f64().unwrap() > 0.0, "{text}");
}

#[test]
fn bad_input_is_told_in_one_sentence() {
    let cores = available_parallelism().unwrap().get();
    let many = vec!["embedded"; cores + 1];
    let says = format!("{} models are more than the {}", cores + 1, layers::counted(cores, "core"));
    refused(&[&["share"], &many[..]].concat(), &says);
    let cases: [(&[&str], &str); 10] = [
        (&["share", "--tokens", "1,2"], "--tokens has 2 numbers for 1 model"),
        (&["share", "--tokens", "0"], "--tokens has 0; a forward has 1 to 65536 tokens"),
        (&["share", "--cores", "0", "--forwards", "0"], "--forwards is 0; it must be 1 or more"),
        (
            &["share", "--seconds", "0.039"],
            "--seconds is 0.039; it must be 0.04, a period of a paused process",
        ),
        (&["share", "--forwards", "1", "--cores", "0", "--seconds", "1"], "'--seconds <SECONDS>'"),
        (
            &["share", "--forwards", "1", "--cores", "0", "embedded", "moe"],
            "--cores runs one model; 2 are given",
        ),
        (&["share", "moe", "--seconds", "nan"], "--seconds is NaN; it must be 0.04"),
        (&["share", "mlp"], "mlp is a classifier of pictures; name a model of text"),
        (
            &["share", "--cores", "9999", "--forwards", "1"],
            "--cores has 9999, which this process may not use",
        ),
        (&["share", "--forwards", "1"], "--cores"),
    ];
    for (args, says) in cases {
        refused(args, says);
    }
}
