//! Fewer ranks after a loss, and layouts planned for the ranks that there are: the losses stay the same.
use super::launched::{launch, send, started_by};
use super::{all, sentence, small, text, told_once};
use crate::child::{Watched, binary, output};
use serde_json::Value;
use std::io::{BufRead, BufReader};

/// One line of training: its step, the number of ranks, and the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    step: usize,
    ranks: usize,
    loss: f64,
}

fn line(text: &str) -> Line {
    let line: Value = serde_json::from_str(text).unwrap();
    let ranks = line["peak_bytes"].as_array().unwrap().len();
    Line { step: line["step"].as_u64().unwrap() as usize, ranks, loss: line["loss"].as_f64().unwrap() }
}

/// Runs a command under `launch`. Kills one rank each time that this number of ranks has done this step.
/// Returns all lines, the exit code, and the notes and errors of the launcher itself.
fn killed(flags: &[&str], train: &[&str], kills: &[[usize; 2]]) -> (Vec<Line>, Option<i32>, Vec<String>) {
    let mut run = Watched::start(&mut launch(flags, train));
    let (mut kills, mut lines) = (kills.iter().peekable(), Vec::new());
    for said in BufReader::new(run.process.stdout.take().unwrap()).lines() {
        let line = line(&said.unwrap());
        lines.push(line);
        if kills.next_if(|[ranks, step]| line.ranks == *ranks && line.step >= *step).is_some() {
            send("-KILL", started_by(run.process.id())[1]);
        }
    }
    let ended = run.output();
    let own = |line: &&str| line.starts_with("note: ") || line.starts_with("error: ");
    let said = text(&ended.stderr);
    (lines, ended.status.code(), said.lines().filter(own).map(str::to_owned).collect())
}

/// The steps at which the number of ranks changes, each with the step before.
fn changes(lines: &[Line]) -> Vec<[Line; 2]> {
    let pairs = lines.windows(2).map(|pair| [pair[0], pair[1]]);
    pairs.filter(|[last, next]| last.ranks != next.ranks).collect()
}

/// Checks that the losses are those of a run of one rank that nothing interrupts, but for rounding.
fn same_losses(lines: &[Line], train: &[&str]) {
    let whole = output(binary().args(train));
    let whole: Vec<_> = text(&whole.stdout).lines().map(line).collect();
    let far = lines.iter().map(|line| (line.loss - whole[line.step - 1].loss).abs()).fold(0.0, f64::max);
    println!(
        "{} lines differ by {far:e} at most; losses {} to {}",
        lines.len(),
        whole[0].loss,
        whole.last().unwrap().loss
    );
    assert!(far < 4e-5 * whole[0].loss, "{far:e}"); // 1.6e-5 without AVX-512
    assert!(whole[0].loss - whole.last().unwrap().loss > 0.01, "it learns nothing that could get lost");
    assert_eq!(lines.last().unwrap().step, whole.len());
}

/// Four ranks, three after a loss, two after another. Kills: a step that is left out, more than a save
/// interval that is repeated, a batch or a moment that a new layout changes, the same number of ranks started
/// again, a third layout that begins anew or with the ranks of the first.
#[test]
fn a_run_goes_on_with_the_ranks_that_are_left() {
    let (dir, config, batch) = small();
    let out = dir.path().join("out").display().to_string();
    let train = ["train", "--json", "--config", &config, "--batch", &batch, "--steps", "90", "--lr", "1e-4"];
    let train = [&train[..], &["--optimizer", "adamw"]].concat();
    let split = [&train[..], &["--layout", "dp=2,tp=2", "--checkpoint-every", "10", "--out", &out]].concat();
    let flags = ["-n", "4", "--restarts", "2", "--min-ranks", "2"];
    let (lines, code, said) = killed(&flags, &split, &[[4, 14], [3, 35]]);
    assert_eq!(code, Some(0), "{said:?}");
    let changed = changes(&lines);
    assert_eq!(changed.iter().map(|[a, b]| [a.ranks, b.ranks]).collect::<Vec<_>>(), [[4, 3], [3, 2]]);
    for [last, next] in &changed {
        let done = next.step - 1;
        assert!(done % 10 == 0 && done <= last.step && last.step - done <= 10, "{last:?} {next:?}");
        assert!(done > 0, "it began anew");
    }
    let follows = |pair: &[Line]| pair[0].ranks != pair[1].ranks || pair[1].step == pair[0].step + 1;
    assert!(lines.windows(2).all(follows));
    let notes = ["; 3 ranks under ", "; 2 ranks under "];
    for ((note, ranks), left) in said.iter().zip(notes).zip([1, 0]) {
        let is_lost = note.starts_with("note: rank 1 was lost (signal: 9");
        assert!(
            is_lost && note.contains(ranks) && note.ends_with(&format!("anew, and {left} times more")),
            "{note}"
        );
    }
    assert_eq!(said.len(), 2, "{said:?}");
    same_losses(&lines, &train);
}

/// Two microbatches of two sequences, two heads and two blocks: no layout has three ranks. Kills: a number of
/// ranks that no layout has, microbatches that a layout changes, a run without a checkpoint that ends or
/// skips its first steps, a number of ranks below the least one, the first layout again at that number.
#[test]
fn the_most_ranks_that_some_layout_has_begin_anew_without_a_checkpoint() {
    let (_dir, config, batch) = small();
    let train = ["train", "--json", "--config", &config, "--batch", &batch, "--steps", "60", "--lr", "0.02"];
    let train = [&train[..], &["--microbatches", "2"]].concat();
    let split = [&train[..], &["--layout=dp=2,tp=2"]].concat();
    let start = |least: &str| {
        let flags = ["-n", "4", "--restarts", "2", "--min-ranks", least];
        killed(&flags, &split, &[[4, 2], [2, 7]])
    };
    let (lines, code, said) = start("2");
    assert_eq!(code, Some(0), "{said:?}");
    assert!(matches!(changes(&lines)[..], [[_, Line { step: 1, ranks: 2, .. }]]), "{said:?}");
    assert!(said.len() == 2 && said[1].ends_with("; all start anew, and 0 times more"), "{said:?}");
    assert_eq!(lines.iter().filter(|line| line.step == 1).count(), 3);
    same_losses(&lines, &train);
    let (lines, code, said) = start("3");
    let why = "no layout of 3 ranks fits the model and its steps of 4 sequences in 2 microbatches; a smaller \
               --min-ranks may help";
    assert!(changes(&lines).is_empty() && code == Some(2), "{said:?}");
    assert!(
        said.len() == 1 && said[0].starts_with("error: rank 1 was lost (signal: 9") && said[0].ends_with(why)
    );
}

/// Kills: a layout of other ranks than there are processes, processes that plan different ones, a resumed run
/// whose step the planner does not know, a memory limit that it does not know, auto without a number of
/// ranks.
#[test]
fn processes_of_any_launcher_continue_in_a_planned_layout() {
    let (dir, config, batch) = small();
    let out = dir.path().join("out").display().to_string();
    let sizes = ["--json", "--config", &config, "--batch", &batch, "--lr", "0.02", "--microbatches", "2"];
    let train = [&["train", "--steps", "60"][..], &sizes].concat();
    let begun = [&train[..], &["--layout", "dp=2,tp=2", "--stop-after", "3", "--out", &out]].concat();
    assert!(output(binary().args(begun)).status.success());
    let resume = ["train", "--json", "--resume", &out, "--batch", &batch, "--layout"];
    let split = [&resume[..], &["dp=2,tp=2"]].concat();
    let (_, _, said) = killed(&["-n", "4", "--restarts", "1", "--min-ranks", "3"], &split, &[[4, 5]]);
    assert!(said[0].contains("its steps of 4 sequences in 2 microbatches"), "{said:?}"); // of the checkpoint
    let resume = [&resume[..], &["auto"]].concat();
    let on = |ranks| all(ranks, &resume, &|_| ());
    let why =
        "no layout of 3 ranks fits the model and its steps of 4 sequences in 2 microbatches; start fewer";
    assert_eq!(told_once(on(3)), why);
    let limited = [&resume[..], &["--memory-limit", "1kB"]].concat();
    assert_eq!(told_once(all(2, &limited, &|_| ())), why.replace("3 ranks", "2 ranks"));
    let ended = on(2);
    assert!(ended.iter().all(|ended| ended.status.success()), "{}", text(&ended[0].stderr));
    assert!(text(&ended[0].stderr).contains("note: --layout auto takes "), "{}", text(&ended[0].stderr));
    let lines: Vec<_> = text(&ended[0].stdout).lines().map(line).collect();
    assert!(lines.len() == 57 && lines.iter().all(|line| line.ranks == 2), "{lines:?}");
    same_losses(&lines, &train);
    let alone = sentence(&output(binary().args(["train", "--layout", "auto"])));
    assert!(alone.starts_with("--layout auto is for the number of ranks that a launcher starts"), "{alone}");
    let table = sentence(&output(binary().args(["train", "--layout", "auto", "--split", "even"])));
    assert_eq!(table, "--layout auto plans a layout, but --split is for one layout; leave one of them out");
}
