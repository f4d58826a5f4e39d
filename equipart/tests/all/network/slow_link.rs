//! Rows of `compare` over a slow link: `DataParallel`, DDP, and both once more.
use super::{small, succeeds};
use crate::child::equipart;
use serde_json::Value;

/// Kills: a row whose link is not its own, a slow link that other rows have, a name that is not told apart.
#[test]
fn rows_are_repeated_over_a_slow_link() {
    let (dir, config, text) = small();
    let model = dir.path().join("model").display().to_string();
    let train = ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "1", "--layout"];
    succeeds(&[&train[..], &["dp=2:classic", "--out", &model]].concat());
    let compare = ["compare", "--model", &model, "--data", &text, "--seconds", "0", "--json"];
    let ways = ["--layout", "dp=2:classic", "--layout", "dp=2", "--slow-link", "dp=0s,500kB/s"];
    let output = equipart(&[&compare[..], &ways].concat());
    let rows: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap().to_string()).collect();
    let over = |name: &str| format!("{name}, 2 ranks over dp=0s,500kB/s");
    let wanted = [
        "unsplit, 1 rank".to_string(),
        "dp=2:classic, 2 ranks".into(),
        "dp=2, 2 ranks".into(),
        over("dp=2:classic"),
        over("dp=2"),
    ];
    assert_eq!(names, [&wanted[..], &wanted].concat(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(rows.iter().all(|row| row["equal"] == true), "{rows:?}");
    let of = |row: usize, key: &str| rows[5 + row][key].as_f64().unwrap();
    for (fast, slow) in [(1, 3), (2, 4)] {
        assert_eq!(rows[5 + fast]["traffic_bytes"], rows[5 + slow]["traffic_bytes"]);
        let least = of(slow, "traffic_bytes") / 2.0 / 5e5; // at least one rank sends half of it
        assert!(of(slow, "seconds") >= least, "{} in {}", of(slow, "traffic_bytes"), of(slow, "seconds"));
    }
    assert!(of(1, "traffic_bytes") > of(2, "traffic_bytes"), "the outputs and their gradients, too");
}
