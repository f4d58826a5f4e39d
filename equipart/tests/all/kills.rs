//! Runs that are killed at any moment, and go on: nothing is lost. `cargo xtask kills` does it a thousand
//! times.
use crate::child::{Watched, binary, output};
use crate::endings::small;
use run::train::state::State;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use tensor::mix;
use tensor::safetensors::File;

/// Runs, in turn: schedules with several chunks a rank, shards of state, checkpoints in the background,
/// several checkpoints, several files.
const RUNS: [&str; 5] = [
    "--layout pp=2:interleaved/2 --microbatches 2",
    "--layout dp=2:zero3",
    "--layout dp=2:zero3 --save async",
    "--layout tp=2 --keep 3",
    "--layout none --max-shard-size 2kB --save async --keep 2",
];

/// Checks that a folder has a whole checkpoint, of a step not before this one; returns its step.
fn whole(folder: &Path, before: usize) -> usize {
    let state = State::read(folder).unwrap_or_else(|why| panic!("after step {before}: {why}"));
    let step = state.steps();
    assert!(step >= before, "step {before} was saved, and {step} is there");
    let optimizer = folder.join(format!("optimizer-{step}.safetensors"));
    for file in [File::open_folder(folder).unwrap(), File::open_whole_or_shards(&optimizer).unwrap()] {
        assert!(file.verify().unwrap() > 3, "{}", file.path());
    }
    step
}

/// Kills: a checkpoint that is current before it is whole, an old one that goes before the new one has come,
/// moments of another step, a data position that is lost, files of older steps that stay.
#[test]
fn a_run_that_is_killed_at_any_moment_goes_on_as_if_it_had_not_stopped() {
    let kills = std::env::var("EQUIPART_KILLS").map_or(10, |n| n.parse().expect("a number of kills"));
    let (dir, _, text) = small();
    let config = dir.path().join("config.json");
    let blocks =
        fs::read_to_string(&config).unwrap().replace("\"num_hidden_layers\":1", "\"num_hidden_layers\":4");
    fs::write(&config, blocks).unwrap();
    let config = config.display().to_string();
    for (number, run) in RUNS.iter().enumerate() {
        let [out, once] = ["out", "once"].map(|name| dir.path().join(format!("{name}-{number}")));
        let command = |step: usize, folder: &Path, more: &str| {
            let (folder, fresh) =
                (folder.display(), format!("--steps 100000 --seq 16 --batch-size 4 --config {config}"));
            let begin =
                if step == 0 { format!("--out {folder} {fresh}") } else { format!("--resume {folder}") };
            let all = format!("train --data {text} --json {run} {begin} {more}");
            all.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let finished = |args: Vec<String>| {
            let output = output(binary().args(&args));
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let (mut step, mut killed) = (0, 0);
        while killed < kills / RUNS.len() {
            let args = command(step, &out, "--checkpoint-every 1");
            let mut child =
                Watched::start(binary().args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()));
            let line = BufReader::new(child.process.stdout.take().unwrap()).lines().next();
            sleep(Duration::from_micros(mix((1000 * number + killed) as u64) % 200_000));
            child.process.kill().unwrap();
            let output = child.output();
            assert!(line.is_some(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            let has = |name: &str| out.join(name).exists();
            if step > 0 || has("model.safetensors") || has("model.safetensors.index.json") {
                step = whole(&out, step.max(1));
            }
            killed += 1;
        }
        finished(command(step, &out, "--checkpoint-every 1 --stop-after 3"));
        step = whole(&out, step + 3);
        finished(command(0, &once, &format!("--checkpoint-every 100000 --stop-after {step}")));
        let names = |folder: &Path| {
            let all =
                fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut all: Vec<_> =
                all.filter(|name| !name.starts_with("checkpoint-") && !name.starts_with("log")).collect();
            all.sort();
            all
        };
        assert_eq!(names(&out), names(&once), "{run}");
        for name in names(&once) {
            assert!(
                fs::read(out.join(&name)).unwrap() == fs::read(once.join(&name)).unwrap(),
                "{name}: {run}"
            );
        }
        let older =
            fs::read_dir(&out).unwrap().filter_map(|file| file.unwrap().file_name().into_string().ok());
        let older: Vec<_> = older.filter(|name| name.starts_with("checkpoint-")).collect();
        let keep = run.split("--keep ").nth(1).map_or(1, |n| n.parse::<usize>().unwrap());
        assert_eq!(older.len(), keep - 1, "{older:?}");
        assert!(older.iter().all(|name| whole(&out.join(name), 1) < step));
        println!("{run}: killed {killed} times, nothing is lost; {step} steps equal those of one run");
    }
}
