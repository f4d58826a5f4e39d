//! Reports of a run on its ranks: copies that are compared, and ranks that others wait for.
use crate::child::{equipart, refused};
use crate::processes::{displayed, small};
use comm::RankWaits;
use run::train::stragglers::stragglers;
use serde_json::Value;

const STEPS: [&str; 6] = ["--steps", "3", "--optimizer", "adamw", "--lr", "0.01"];
const CHECKS: [&str; 2] = ["--check-every", "2"];

/// Output and notes of a run that succeeds.
fn ran(args: &[&str]) -> [String; 2] {
    let output = equipart(args);
    let [out, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {notes}");
    [out, notes]
}

/// Kills: a false alarm in a narrow dtype, with state off the device, of pictures, with steps
/// that overlap, or between processes; a result that checks change; a run that compares nothing and is
/// silent about it.
#[test]
fn checks_of_equal_copies_change_nothing() {
    let (_dir, config, batch) = small();
    let base = ["train", "--json", "--config", &config, "--batch", &batch];
    let losses = |lines: &str| -> Vec<Value> {
        let line = |line: &str| serde_json::from_str::<Value>(line).unwrap()["loss"].clone();
        lines.lines().map(line).collect()
    };
    let nothing = |layout: &str| {
        format!(
            "note: --check-every has nothing to compare: under {layout} no two ranks hold the same elements"
        )
    };
    for (more, layout) in [
        (&[][..], "tp=2,sp,dp=2:zero1"),
        (&["--dtype", "bf16"], "tp=2"),
        (&["--dtype", "bf16"], "dp=2,offload-file"),
        (&["--microbatches", "2"], "pp=2:pipedream,dp=2"),
        (&[], "dp=2:zero3"),
    ] {
        let flags = [&base[..], more, &["--layout", layout], &STEPS].concat();
        let [checked, notes] = ran(&[&flags[..], &CHECKS].concat());
        let [plain, _] = ran(&flags);
        let same = if layout.contains("pipedream") { 2 } else { 3 }; // a check drains a full pipeline
        assert_eq!(losses(&checked).len(), 3);
        assert_eq!(losses(&checked)[..same], losses(&plain)[..same], "{layout}");
        let compares = layout != "dp=2:zero3";
        assert_eq!(notes.contains(&nothing(layout)), !compares, "{layout}: {notes}");
    }
    let flags = [&base[..], &["--layout", "pp=2,dp=2"], &STEPS, &CHECKS].concat();
    assert_eq!(losses(&displayed(4, &flags, &|_| ())), losses(&ran(&flags)[0]));
    let pictures = ["--hidden", "6", "--epochs", "1", "--check-every", "7", "--layout", "dp=2"];
    ran(&[&["train", "--model", "mlp"][..], &pictures].concat());
    let none = [&base[..], &["--check-every", "0"]].concat();
    refused(&none, "--check-every is 0; it must be at least 1");
    for (flag, value) in [("--check-every", Some("2")), ("--timeout", Some("2")), ("--stragglers", None)] {
        let alone = base.iter().copied().chain([flag]).chain(value).collect::<Vec<_>>();
        refused(&alone, "has 1 rank");
        refused(&alone, &format!("{flag} is "));
    }
}

fn waits(rank: usize, on: usize, [seconds, longest_seconds]: [f64; 2]) -> RankWaits {
    RankWaits { rank, on, waits: 2, seconds, longest_seconds, longest_call: format!("{rank} on {on}") }
}

/// Four stages, each of which waits for the next, and the last is slow. Kills: a rank that passes lateness on
/// taken for the one that is late, a wait counted for the rank that waits, another longest wait.
#[test]
fn a_rank_that_only_waited_is_no_straggler() {
    let all =
        [waits(0, 1, [3.0, 1.0]), waits(1, 2, [3.0, 2.0]), waits(2, 3, [3.0, 1.0]), waits(3, 2, [0.5, 0.5])];
    let seen = stragglers(&[&all[..], &[waits(0, 2, [0.25, 0.25])]].concat(), 4);
    let order: Vec<_> = seen.iter().map(|of| (of.rank, of.waits, of.seconds, of.own_seconds)).collect();
    assert_eq!(order, [(3, 2, 3.0, 0.5), (2, 6, 3.75, 3.0), (1, 2, 3.0, 3.0), (0, 0, 0.0, 3.25)]);
    let longest: Vec<_> = seen.into_iter().map(|of| of.longest).collect();
    assert_eq!(longest, [Some(all[2].clone()), Some(all[1].clone()), Some(all[0].clone()), None]);
}

/// Rank 1 has seven of eight blocks. Kills: ranks in the order of their numbers or the other way round, waits
/// of other processes that are lost, a report that was not asked for, a longest wait without its place.
#[test]
fn the_rank_with_the_most_work_is_named_first() {
    let (dir, _, batch) = small();
    let config =
        crate::processes::CONFIG.replace("layers\": 2", "layers\": 8").replace("size\": 24", "size\": 2048");
    let file = dir.path().join("deep.json").display().to_string();
    std::fs::write(&file, config).unwrap();
    let train = ["train", "--config", &file, "--batch", &batch, "--steps", "4", "--layout", "pp=2"];
    let flags = [&train[..], &["--split", "1,7", "--stragglers"]].concat();
    let json = [&flags[..], &["--json"]].concat();
    for lines in [ran(&json)[0].clone(), displayed(2, &json, &|_| ())] {
        let report: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        let all = report["stragglers"].as_array().unwrap();
        let ranks: Vec<_> = all.iter().map(|of| of["rank"].as_u64().unwrap()).collect();
        assert_eq!(ranks, [1, 0], "{report}");
        let longest = &all[0]["longest"];
        assert_eq!((&longest["rank"], &longest["on"]), (&0.into(), &1.into()), "{report}");
        assert!(longest["longest_call"].as_str().unwrap().contains(".rs:"), "{report}");
        assert!(all[0]["seconds"].as_f64() > all[1]["seconds"].as_f64(), "{report}");
        assert!(all[0]["own_seconds"].as_f64() > Some(0.0), "rank 1's own waits: {report}");
    }
    let [table, _] = ran(&flags);
    let rows: Vec<_> = table.lines().skip_while(|line| !line.contains("waits for it")).collect();
    assert!(rows.len() == 4 && rows[1].trim_start().starts_with("1 "), "{table}");
    assert!(rows[3].starts_with("longest for rank 1: rank 0 waited ") && rows[3].contains(".rs:"), "{table}");
    assert!(!ran(&train)[0].contains("waits for it"));
}
