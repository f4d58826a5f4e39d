//! Ranks as processes that are measured: `compare` and `bench`.
use super::launched::launch;
use super::{CONFIG, text};
use crate::child::{binary, output};
use serde_json::Value;
use std::process::Output;

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A folder with a tiny model, and the model's path.
fn model() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let [config, batch, model] = ["config.json", "ids.json", "model"].map(|name| dir.path().join(name));
    let tiny = CONFIG.replace("size\": 256", "size\": 16").replace("embeddings\": 32", "embeddings\": 8");
    std::fs::write(&config, tiny.replace("size\": 16, \"num", "size\": 8, \"num")).unwrap();
    std::fs::write(&batch, "[[1,2,3,4]]").unwrap();
    let [config, batch, model] = [config, batch, model].map(|path| path.display().to_string());
    let train = ["train", "--config", &config, "--batch", &batch, "--steps", "1", "--out", &model];
    assert!(output(binary().args(train)).status.success());
    (dir, model)
}

/// Kills: a row, a text, a verdict, an error, memory or traffic that is not that of threads; ranks that end
/// their turns by clocks of their own; a rank besides the first that writes; a layout of another number of
/// ranks that is passed over, or waited for.
#[test]
fn launched_ranks_are_compared_as_threads_are() {
    let (dir, model) = model();
    let svg = dir.path().join("rows.svg");
    let compare = ["compare", "--json", "--model", &model];
    let work = ["--layout", "tp=2", "--layout", "dp=2:zero3", "--layout", "pp=2", "--svg"];
    let all = [&compare[..], &work, &[svg.to_str().unwrap()]].concat();
    let rows = |output: &Output| {
        let of = |row: &Value| {
            let same = ["workload", "name", "layout", "peak_bytes", "traffic_bytes", "equal", "tokens_equal"];
            let same =
                same.iter().chain(&["error_ratio", "never_ran", "peak_bytes_by_number", "microbatches"]);
            same.map(|key| row[key].clone()).collect::<Vec<_>>()
        };
        lines(output).iter().map(of).collect::<Vec<_>>()
    };
    let threads = rows(&output(binary().args([&all[..], &["--seconds", "0"]].concat())));
    std::fs::remove_file(&svg).unwrap();
    let processes = output(&mut launch(&["-n", "2"], &[&all[..], &["--seconds", "0.01"]].concat()));
    assert!(threads.len() == 8 && rows(&processes) == threads, "{threads:?}\n{}", text(&processes.stdout));
    assert!(lines(&processes).iter().all(|row| row["runs"].as_u64() >= Some(3)), "{processes:?}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("pp=2"));
    let refused = |ranks: &str, args: &[&str], says: &str| {
        let no = output(&mut launch(&["-n", ranks], args));
        let said = text(&no.stderr);
        assert!(no.status.code() == Some(2) && no.stdout.is_empty() && said.matches("error: ").count() == 1);
        assert!(said.contains(says), "{said}, wanted {says}");
    };
    let other = [&compare[..], &["--layout", "tp=2", "--layout", "dp=4"]].concat();
    refused("2", &other, "WORLD_SIZE is 2, but the layout dp=4 has 4 ranks; start one process a rank");
    refused("3", &compare, "no layout that is compared by default has 3 ranks; give one with --layout");
    refused("3", &["bench"], "no figure is measured by 3 ranks; start 2 or 4");
    let four = "--only all_reduce_us_4KiB_4ranks: no such figure is measured by 2 ranks that are processes; ";
    refused("2", &["bench", "--only", "all_reduce_us_4KiB_4ranks"], four);
    let trace = "--trace needs all ranks in one process, but RANK is set; leave one of them out";
    let trace_of = ["bench", "--profile", "--layout", "tp=2", "--trace", svg.to_str().unwrap()];
    refused("2", &trace_of, trace);
}

/// Kills: figures of other ranks, or measured by threads; a time of all calls for that of one, of rank 0
/// alone, or of nothing; a limit of one machine; a profile without the other rank, or with its stand-in's
/// calls.
#[test]
fn launched_ranks_measure_what_they_do_together() {
    let bench = ["bench", "--json", "--small", "--turns", "2"];
    let some = [&bench[..], &["--only", "all_reduce,train_step_ms,step_ms_zero3,all_to_all"]].concat();
    let figures = lines(&output(&mut launch(&["-n", "2"], &some)));
    let names: Vec<_> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    let steps = ["train_step_ms_tp2", "train_step_ms_dp2", "step_ms_zero3"];
    let calls = ["all_to_all_us_256KiB", "all_to_all_us_4MiB", "all_reduce_us_4KiB", "all_reduce_us_256KiB"];
    assert_eq!(names, [&steps[..], &calls, &["all_reduce_us_4MiB", "all_reduce_us_64MiB"]].concat());
    for figure in &figures {
        let us = figure["value"].as_f64().unwrap() * if figure["unit"] == "ms" { 1e3 } else { 1.0 };
        assert!((1.0..60e6).contains(&us), "a call takes two messages of TCP: {figure}");
        assert!(figure["limit"].is_null() && figure["ratio"].is_null() && figure["processes"] == 2);
    }
    let profile = [&bench[..], &["--profile", "--layout", "dp=2", "--link", "dp=2ms,1GB/s"]].concat();
    let lines = lines(&output(&mut launch(&["-n", "2"], &profile)));
    for rank in [0, 1] {
        let of = |what: &str| lines.iter().find(move |line| line["rank"] == rank && line["kind"] == what);
        assert!(of("product").unwrap()["calls"].as_f64() > Some(20.0), "{lines:?}");
        assert!(of("wait").unwrap()["ms"].as_f64() > Some(0.0), "{lines:?}");
    }
    let links = lines.last().unwrap();
    assert!(links["profile"] == "links" && links["linked_ms"].as_f64() >= Some(4.0), "{links}");
}
