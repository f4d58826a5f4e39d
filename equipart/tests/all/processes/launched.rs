//! `launch` and the launchers of others: results, prefixes, signals, exit codes and restarts.
use super::{losses, same_files, small, text};
use crate::child::{Watched, binary, output, refused};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// A command that `launch` starts.
pub(super) fn launch(flags: &[&str], command: &[&str]) -> Command {
    let mut launch = binary();
    launch.arg("launch").args(flags).arg("--").args(command);
    launch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    launch
}

/// Ids of the processes that a process has started.
pub(super) fn started_by(id: u32) -> Vec<u32> {
    let ids = output(Command::new("ps").args(["-o", "pid=", "--ppid", &id.to_string()]));
    text(&ids.stdout).split_whitespace().map(|id| id.parse().unwrap()).collect()
}
pub(super) fn send(signal: &str, id: u32) {
    assert!(output(Command::new("kill").args([signal, &id.to_string()])).status.success());
}

/// Kills: a rank that is not started or is told another number, results that are changed on their way, an
/// error that every rank repeats or that has no rank before it, another exit code.
#[test]
fn launched_ranks_have_the_results_of_threads() {
    let (_dir, config, batch) = small();
    let train = ["train", "--json", "--steps", "3", "--config", &config, "--batch", &batch];
    let train = [&train[..], &["--layout", "tp=2,dp=2"]].concat();
    let [threads, processes] = [binary().args(&train), &mut launch(&["-n", "4"], &train)].map(output);
    let said = text(&processes.stderr);
    assert!(processes.status.success() && !said.contains("there is no secret"), "{said}");
    let seen = losses(&text(&processes.stdout));
    assert!(seen.len() == 3 && seen == losses(&text(&threads.stdout)), "{seen:?}");
    let wrong = output(&mut launch(&["-n", "3"], &train));
    let said = text(&wrong.stderr);
    let wanted = "error: WORLD_SIZE is 3, but the layout tp=2,dp=2 has 4 ranks; start one process a rank";
    let sentence = said.split_once(": ").map(|(rank, why)| (rank.starts_with("rank "), why.trim_end()));
    assert_eq!((sentence, wrong.status.code()), (Some((true, wanted)), Some(2)), "{said}");
}

/// Kills: ranks that prove with keys of their own, a verdict on this process' rank alone, two proofs over the
/// same connections at once.
#[test]
fn launched_ranks_prove_what_threads_prove() {
    let (_dir, config, _) = small();
    let prove = ["prove", "--json", "--layout", "tp=2,dp=2:zero1", "--config", &config];
    let with_key = [&prove[..], &["--key", "7"]].concat();
    let [threads, processes] = [binary().args(&with_key), &mut launch(&["-n", "4"], &with_key)].map(output);
    assert!(processes.status.success(), "{}", text(&processes.stderr));
    assert!(threads.status.success() && processes.stdout == threads.stdout, "{}", text(&processes.stdout));
    let drawn = output(&mut launch(&["-n", "4"], &prove));
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    let keys = |output: &Output| text(&output.stdout).split("\"keys\":").nth(1).map(str::to_owned).unwrap();
    assert_ne!(keys(&drawn)[..22], keys(&threads)[..22]);
    let here = output(&mut launch(&["-n", "4"], &[&prove[..], &["--dump", "/nowhere/d"]].concat()));
    assert!(text(&here.stderr).contains("error: --dump needs all ranks in one process, but RANK is set"));
}

/// Kills: a command that is started although it cannot run, and then refused by every rank.
#[test]
fn what_cannot_be_launched_is_refused_in_one_sentence() {
    let no = |args: &[&str], says: &str| refused(&[&["launch"][..], args].concat(), says);
    no(&["-n", "0", "--", "train"], "--ranks is 0; it must be at least 1");
    no(&["-n", "2", "--", "--json", "price"], "price runs all its ranks itself; start it without launch");
    no(&["-n", "2", "--", "dance"], "unrecognized subcommand 'dance'");
    no(&["-n", "2", "--", "train", "--steps", "x"], "invalid value 'x' for '--steps <STEPS>'");
    let least = |least: &str, command: &[&str], says: &str| {
        no(&[&["-n", "2", "--restarts", "1", "--min-ranks", least, "--"][..], command].concat(), says);
    };
    least("0", &["train"], "--min-ranks is 0; it must be 1 to the number of ranks, 2");
    least("3", &["train"], "--min-ranks is 3; it must be 1 to the number of ranks, 2");
    least("1", &["prove"], "--min-ranks is for train, which continues from checkpoints; leave it out");
    let stale = "--min-ranks continues in an exact layout, but PipeDream trains with stale weights; leave one of them out";
    least("1", &["train", "--layout", "pp=2:pipedream"], stale);
    for (flag, value) in [("split", "1,1"), ("link", "pp=1us,1GB/s"), ("batch-size", "auto")] {
        let flag = format!("--{flag}");
        let says = format!("--min-ranks plans a layout, but {flag}");
        least("1", &["train", "--layout", "pp=2", &flag, value], &says);
    }
    let plain = "plans a layout, which needs a model of text";
    least("1", &["train", "--model", "mlp", "--hidden", "8", "--layout", "dp=2"], plain);
    refused(&["train", "--model", "mlp", "--hidden", "8", "--layout", "auto"], plain);
    no(&["-n", "2", "--by-args", "-v", "--", "train"], "required arguments were not provided");
    no(&["-n", "2", "--min-ranks", "1", "--", "train"], "required arguments were not provided");
}

/// Kills: a process of several that trains alone, a command of one process that is refused for an address.
#[test]
fn half_a_rank_is_refused_where_ranks_are_processes() {
    let with = |variable: &str, command: &str| {
        let ended = output(binary().arg(command).env(variable, "2"));
        (ended.status.code(), text(&ended.stderr))
    };
    for variable in ["WORLD_SIZE", "MASTER_ADDR"] {
        let (code, said) = with(variable, "train");
        assert!(code == Some(2) && said.contains(&format!("{variable} is 2, and RANK is not set")), "{said}");
        assert_eq!(with(variable, "strategies"), (Some(0), String::new()));
    }
}

/// A run that lasts until it is ended, once its ranks have done a step.
fn lasting(flags: &[&str], train: &[&str]) -> (Watched, BufReader<impl Read + use<>>) {
    let mut run = Watched::start(&mut launch(flags, train));
    let mut lines = BufReader::new(run.process.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("\"step\":1"), "{line}");
    (run, lines)
}

/// True if a process runs.
fn runs(id: u32) -> bool {
    output(Command::new("kill").args(["-0", &id.to_string()])).status.success()
}

/// Kills: a signal that ends the launcher alone, or is taken for a lost rank; a process that stays, a lost
/// rank that goes unnoticed or that has another's number.
#[test]
fn signals_and_lost_ranks_end_all() {
    let (_dir, config, batch) = small();
    let train = ["train", "--json", "--steps", "1000000", "--config", &config, "--batch", &batch];
    let train = [&train[..], &["--layout", "dp=2"]].concat();
    let cases = [
        ("-TERM", None, 143, "note: stopped by SIGTERM; all ranks have ended"),
        ("-INT", None, 130, "note: stopped by SIGINT; all ranks have ended"),
        ("-KILL", Some(1), 2, "error: rank 1 was lost: signal: 9 (SIGKILL)"),
    ];
    for (signal, to_rank, code, says) in cases {
        let restarts = if to_rank.is_none() { "3" } else { "0" };
        let (run, lines) = lasting(&["-n", "2", "--restarts", restarts], &train);
        let (id, ranks) = (run.process.id(), started_by(run.process.id()));
        assert_eq!(ranks.len(), 2);
        send(signal, to_rank.map_or(id, |rank: usize| ranks[rank]));
        lines.lines().for_each(drop);
        let ended = run.output();
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{said}");
        let of_launch = said.lines().filter(|line| !line.starts_with("rank ")).collect::<Vec<_>>();
        assert_eq!(of_launch, [says], "{said}");
        assert!(!ranks.into_iter().any(runs), "{said}");
    }
}

/// One of them is stopped before. Kills: ranks that go on for ever after their launcher, or stay stopped.
#[test]
fn ranks_end_when_their_launcher_is_killed() {
    let (_dir, config, batch) = small();
    let train = ["train", "--json", "--steps", "1000000", "--config", &config, "--batch", &batch];
    let (run, lines) = lasting(&["-n", "2"], &[&train[..], &["--layout", "dp=2"]].concat());
    let ranks = started_by(run.process.id());
    send("-STOP", ranks[1]);
    send("-KILL", run.process.id());
    lines.lines().for_each(drop); // until the last of them has closed its output
    drop(run);
    assert_eq!(ranks.len(), 2);
    assert!(!ranks.into_iter().any(is_left));
}

/// True if a process is left when it has had time to end: it closes its output before.
fn is_left(id: u32) -> bool {
    (0..500).all(|_| {
        sleep(Duration::from_millis(10));
        runs(id)
    })
}

/// Kills: a lost run that is not started again, or from its beginning, or with another result, or that stops
/// later than it was to.
#[test]
fn a_lost_run_continues_from_its_last_checkpoint() {
    let (dir, config, batch) = small();
    let [once, again] = ["once", "again"].map(|name| dir.path().join(name).display().to_string());
    let train =
        ["train", "--json", "--steps", "60", "--config", &config, "--batch", &batch, "--layout", "dp=2"];
    let to = |out| [&train[..], &["--checkpoint-every", "1", "--out", out]].concat();
    let whole = output(&mut launch(&["-n", "2"], &to(&once)));
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let (run, lines) = lasting(&["-n", "2", "--restarts", "1"], &to(&again));
    send("-KILL", started_by(run.process.id())[1]);
    let rest: Vec<_> = lines.lines().map(Result::unwrap).collect();
    let ended = run.output();
    let said = text(&ended.stderr);
    assert!(ended.status.success() && said.contains("note: rank 1 was lost (signal: 9"), "{said}");
    same_files(once.as_ref(), again.as_ref());
    let of_whole = losses(&text(&whole.stdout));
    assert_eq!(losses(rest.last().unwrap()), of_whole[59..], "{said}");
    assert!(rest.len() <= 61, "it began anew: {}", rest.len());
    let [first, out] = ["first", "stopped"].map(|name| dir.path().join(name).display().to_string());
    assert!(output(binary().args([&to(&first)[..], &["--stop-after", "9"]].concat())).status.success());
    let stopped = ["train", "--json", "--resume", &first, "--batch", &batch, "--layout", "dp=2"];
    let stopped = [&stopped[..], &["--checkpoint-every", "1", "--out", &out, "--stop-after", "31"]].concat();
    let (run, lines) = lasting(&["-n", "2", "--restarts", "1"], &stopped); // from step 10 on
    send("-KILL", started_by(run.process.id())[1]);
    let rest: Vec<_> = lines.lines().map(Result::unwrap).collect();
    assert!(run.output().status.success());
    assert_eq!(losses(rest.last().unwrap()), of_whole[39..40], "it counts from the run that it resumed");
}

/// Two losses, of a run that begins and of one that goes on in its folder. Kills: steps that are counted from
/// another start than the command's own; steps that are forgotten.
#[test]
fn a_run_that_is_lost_twice_stops_where_it_was_asked_to() {
    let (dir, config, batch) = small();
    let out = dir.path().join("out").display().to_string();
    let new = ["--steps", "90", "--config", &config];
    let again = ["--resume", &out];
    for (begun, more, stop) in [(0, &new[..], "40"), (40, &again, "30")] {
        let train = ["train", "--json", "--batch", &batch, "--layout", "dp=2", "--checkpoint-every", "1"];
        let train = [&train[..], &["--stop-after", stop, "--out", &out], more].concat();
        let mut run = Watched::start(&mut launch(&["-n", "2", "--restarts", "2"], &train));
        let (mut kills, mut last) = ([8, 20].iter().map(|step| begun + step).peekable(), 0);
        for line in BufReader::new(run.process.stdout.take().unwrap()).lines() {
            let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            last = line["step"].as_u64().unwrap();
            if kills.next_if(|step| last >= *step).is_some() {
                send("-KILL", started_by(run.process.id())[1]);
            }
        }
        let ended = run.output();
        let said = text(&ended.stderr);
        assert!(ended.status.success() && said.matches("was lost").count() == 2, "{said}");
        assert_eq!(last, begun + stop.parse::<u64>().unwrap(), "{said}");
    }
}

/// Kills: a stopped rank that is no lost one, so that the run ends with it.
#[test]
fn a_run_continues_without_a_rank_that_is_stopped() {
    let (dir, config, batch) = small();
    let out = dir.path().join("out").display().to_string();
    let train =
        ["train", "--json", "--steps", "20000", "--stop-after", "3000", "--timeout", "1", "--out", &out];
    let train = [&train[..], &["--checkpoint-every", "100", "--config", &config, "--batch", &batch]].concat();
    let flags = ["-n", "2", "--restarts", "1", "--min-ranks", "1"];
    let (run, lines) = lasting(&flags, &[&train[..], &["--layout", "dp=2"]].concat());
    send("-STOP", started_by(run.process.id())[1]);
    let rest: Vec<_> = lines.lines().map(Result::unwrap).collect();
    let ended = run.output();
    let said = text(&ended.stderr);
    assert!(ended.status.success() && said.contains("note: rank 1 was lost (signal: 9"), "{said}");
    assert!(said.contains("1 rank under none start anew"), "{said}");
    assert!(rest.last().unwrap().contains("\"step\":3000"), "{:?}", rest.last());
}

/// Kills: a launcher whose ranks are not read, or that does not get where they meet.
#[test]
fn ranks_of_mpirun_have_the_results_of_threads() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return crate::skipped::skipped("mpirun is not installed");
    }
    let (_dir, config, batch) = small();
    let train =
        ["train", "--json", "--steps", "2", "--config", &config, "--batch", &batch, "--layout", "pp=2"];
    let run = |command: &mut Command| {
        let ended = output(allowed(command));
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        losses(&text(&ended.stdout))
    };
    assert_eq!(run(&mut launch(&["-n", "2", "--by", "mpirun"], &train)), run(binary().args(train)));
}

/// Lets Open MPI run here.
fn allowed(command: &mut Command) -> &mut Command {
    let names =
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"];
    command.envs(names.map(|name| (name, "1")))
}

/// Kills: a launcher whose signals do not reach the ranks that another launcher starts, one that leaves them
/// when it is killed, and one that hands no flags on.
#[test]
fn ranks_of_mpirun_end_with_their_launcher() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return crate::skipped::skipped("mpirun is not installed");
    }
    let (_dir, config, batch) = small();
    let train = ["train", "--json", "--steps", "1000000", "--config", &config, "--batch", &batch];
    let train = [&train[..], &["--layout", "dp=2"]].concat();
    for (signal, code) in [("-TERM", Some(143)), ("-HUP", Some(129)), ("-KILL", None)] {
        let flags = ["-n", "2", "--by", "mpirun", "--by-args", "-x HOME", "--by-args=-x PATH"];
        let mut run = Watched::start(allowed(&mut launch(&flags, &train)));
        let mut lines = BufReader::new(run.process.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("\"step\":1"), "{line}");
        let all = all_started_by(run.process.id());
        assert!(all.len() >= 3, "mpirun and two ranks: {all:?}");
        send(signal, run.process.id());
        lines.lines().for_each(drop);
        assert_eq!(run.output().status.code(), code, "{signal}");
        assert!(!all.into_iter().any(is_left), "{signal}");
    }
    let wrong =
        output(allowed(&mut launch(&["-n", "2", "--by", "mpirun", "--by-args", "--no-such"], &train)));
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("no-such"), "{}", text(&wrong.stderr));
}

/// Processes that another one has started, and those that these have started.
fn all_started_by(id: u32) -> Vec<u32> {
    let own = started_by(id);
    let others = own.iter().flat_map(|id| all_started_by(*id)).collect::<Vec<_>>();
    [own, others].concat()
}

/// Kills: a run of another launcher that ends with a lost rank, or begins anew.
#[test]
fn a_run_of_mpirun_continues_with_the_ranks_that_are_left() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return crate::skipped::skipped("mpirun is not installed");
    }
    let (dir, config, batch) = small();
    let out = dir.path().join("out").display().to_string();
    let train = ["train", "--json", "--steps", "4000", "--config", &config, "--batch", &batch, "--out", &out];
    let train = [&train[..], &["--checkpoint-every", "100", "--layout", "dp=2"]].concat();
    let flags = ["-n", "2", "--by", "mpirun", "--restarts", "1", "--min-ranks", "1"];
    let mut run = Watched::start(allowed(&mut launch(&flags, &train)));
    let lines = BufReader::new(run.process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (mut seen, id) = (0, run.process.id());
    let steps: Vec<_> = lines
        .inspect(|_| {
            seen += 1;
            if seen == 150 {
                send("-KILL", *all_started_by(id).last().unwrap());
            }
        })
        .collect();
    let ended = run.output();
    let said = text(&ended.stderr);
    assert!(
        ended.status.success() && said.contains("note: mpirun ended the run (exit status: 137)"),
        "{said}"
    );
    assert!(said.contains("1 rank under none start anew, and 0 times more"), "{said}");
    assert!(steps.last().unwrap().contains("\"step\":4000") && steps.len() < 4200, "{}", steps.len());
}
