//! Views that are written to files: reports, and events of `TensorBoard`.
use crate::child::{equipart, refused};
use std::fs;
use std::path::Path;
use std::process::Command;

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":16,"intermediate_size":32,"num_hidden_layers":2,
    "num_attention_heads":2,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":64,
    "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu"}"#;

/// Flags of a short training run of a small model in a folder.
pub(crate) fn trains(dir: &Path) -> Vec<String> {
    let [config, text] = ["config.json", "a.txt"].map(|name| dir.join(name));
    fs::write(&config, CONFIG).unwrap();
    fs::write(&text, "the fox ran far ".repeat(60)).unwrap();
    let [config, text] = [config, text].map(|path| path.display().to_string());
    let flags =
        ["train", "--config", &config, "--data", &text, "--seq", "8", "--batch-size", "4", "--steps", "4"];
    flags.map(String::from).to_vec()
}

/// Runs the program, and returns whether it succeeded, its output and the page that it writes.
fn reported(flags: &[String], more: &[&str], page: &Path) -> (bool, String, String) {
    let page_flag = ["--report", page.to_str().unwrap()];
    let flags: Vec<_> =
        flags.iter().map(String::as_str).chain(more.iter().copied()).chain(page_flag).collect();
    let output = equipart(&flags);
    let words = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.success(), words, fs::read_to_string(page).unwrap())
}

/// Checks that a page needs no other file, and that what it opens it closes.
fn stands_alone(page: &str) {
    let links = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["http", "src=", "<script", "<link", "url(http"] {
        assert!(!links.contains(word), "{word}");
    }
    for tag in ["svg", "table", "figure", "p", "div", "style", "figcaption", "html"] {
        let (open, closed) = (format!("<{tag}"), format!("</{tag}>"));
        let opened = page.matches(&open).count();
        let others = ["<pattern", "<path", "<polyline"].map(|other| page.matches(other).count());
        let opened = if tag == "p" { opened - others.iter().sum::<usize>() } else { opened };
        assert_eq!(opened, page.matches(&closed).count(), "{tag}");
    }
}

/// Kills: a report without the ranks, the schedule, the memory, the measured step, the losses or the end of
/// the run; one that loads other files; a run that differs where a report is asked for.
#[test]
fn a_report_of_a_training_run_has_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let flags = trains(dir.path());
    let layout = ["--layout", "dp=2:zero1,pp=2", "--microbatches", "2"];
    let (ok, words, page) = reported(&flags, &layout, &dir.path().join("r.html"));
    assert!(ok && words.contains("4 steps done"), "{words}");
    stands_alone(&page);
    for part in [
        "The run has ended.",
        "Ranks of dp=2:zero1,pp=2",
        "pp 1, dp 1",
        "1F1B: 2 ranks, 2 microbatches",
        "<th>weights</th>",
        "<tr><td>3</td>",
        "step 3 of training under dp=2:zero1,pp=2",
        "waits for others",
        "4 steps done",
        "loss, nats",
        "<td>speed, tokens a second</td><td>4</td>",
        "prefers-color-scheme:dark",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

/// Kills: a page that says nothing of a failure, words that are read as HTML, a report that cannot be written
/// and is noticed at the end, an older page that stays.
#[test]
fn a_run_that_fails_leaves_a_page_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (flags, page) = (trains(dir.path()), dir.path().join("<r>.html"));
    fs::write(&page, "an older page").unwrap();
    let (ok, words, text) = reported(&flags, &["--lr", "1e30", "--warmup", "0"], &page);
    assert!(!ok && words.contains("a smaller --lr may help"), "{words}");
    stands_alone(&text);
    assert!(
        text.contains("The run failed and ended early: ") && text.contains("a smaller --lr may help"),
        "{text}"
    );
    assert!(text.contains("&lt;r&gt;.html") && !text.contains("an older page"));
    let nowhere = dir.path().join("none/r.html").display().to_string();
    let all: Vec<_> = flags.iter().map(String::as_str).collect();
    refused(&[&all[..], &["--report", &nowhere]].concat(), "none");
    refused(&[&all[..], &["--report", "a", "--csv", "a"]].concat(), "--csv and --report both want a");
    refused(&[&all[..], &["--report", "a", "--trace", "./a"]].concat(), "--report and --trace both want ./a");
    refused(&["schedule", "--report", "a", "--svg", "a"], "--report and --svg both want a");
    refused(&["compare", "--csv", "a", "--svg", "a"], "--csv and --svg both want a");
    let file = dir.path().join("b.txt").display().to_string();
    fs::write(&file, "").unwrap();
    refused(&[&all[..], &["--tensorboard", &file]].concat(), "b.txt cannot be made a folder");
}

/// Kills: a CSV of a resumed run without its earlier steps, or with steps after its checkpoint.
#[test]
fn the_csv_of_a_resumed_run_has_all_steps() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (flags, [out, csv, whole]) = (trains(dir.path()), ["out", "a.csv", "b.csv"].map(path));
    let runs = |more: &[&str]| {
        let all: Vec<_> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        assert!(equipart(&all).status.success(), "{all:?}");
    };
    runs(&["--csv", &whole]);
    runs(&["--stop-after", "2", "--out", &out, "--csv", &csv]);
    let log = Path::new(&out).join("log.jsonl");
    let later = fs::read_to_string(&log).unwrap().lines().next().unwrap().replace("\"step\":1", "\"step\":3");
    fs::write(&log, fs::read_to_string(&log).unwrap() + &later + "\n{").unwrap();
    let resumed = ["train", "--resume", &out, "--csv", &csv];
    assert!(equipart(&resumed).status.success());
    let losses = |file: &str| -> Vec<String> {
        let rows = fs::read_to_string(file).unwrap();
        rows.lines().map(|row| row.split(',').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!((losses(&csv), losses(&csv).len()), (losses(&whole), 5));
}

/// Kills: a refused command that empties an older file.
#[test]
fn a_refused_command_leaves_older_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for command in [
        &["price", "--layout", "etp=4"][..],
        &["compare", "--layout", "etp=4"],
        &["plan", "--model", "embedded", "--devices", "2", "--memory", "1"],
        &["bench", "--only", "nothing"],
        &["train", "--layout", "etp=4"],
        &["schedule", "--kind", "1f1b", "--stages", "0"],
    ] {
        for (flag, file) in [("--csv", path("a.csv")), ("--report", path("a.html"))] {
            fs::write(&file, "older").unwrap();
            let output = equipart(&[command, &[flag, &file]].concat());
            let why = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?} {flag}: {why}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "older", "{command:?} {flag}: {why}");
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no unfinished file");
}

/// The reader of `TensorBoard` itself reads the events, where Python finds it. Kills: a step, a name or a
/// value that differs from the CSV's.
#[test]
fn tensorboard_reads_the_events() {
    const READ: &str = "\
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in events.Tags()['scalars']:
    print(tag, *(f'{event.step}:{event.value:.5e}' for event in events.Scalars(tag)))
";
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (folder, csv) = (path("events"), path("steps.csv"));
    let flags = trains(dir.path());
    let flags: Vec<_> =
        flags.iter().map(String::as_str).chain(["--tensorboard", &folder, "--csv", &csv]).collect();
    assert!(equipart(&flags).status.success());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    let found = Command::new("python3").args(["-c", "import tensorboard"]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        eprintln!("skipped: python3 has no tensorboard here, which would read the events");
        return;
    }
    let read = Command::new("python3").args(["-c", READ, &folder]).output().unwrap();
    let read = String::from_utf8(read.stdout).unwrap();
    let rows = fs::read_to_string(&csv).unwrap();
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
    for key in ["loss", "lr", "tokens_per_second"] {
        let at = rows[0].iter().position(|of| *of == key).unwrap();
        let value = |row: &Vec<&str>| {
            let value = f64::from(row[at].parse::<f64>().unwrap() as f32);
            let (digits, exponent) = format!("{value:.5e}")
                .split_once('e')
                .map(|(a, b)| (a.to_owned(), b.parse::<i32>().unwrap()))
                .unwrap();
            format!("{}:{digits}e{}{:02}", row[0], if exponent < 0 { '-' } else { '+' }, exponent.abs())
        };
        let line = format!("step/{key} {}", rows[1..].iter().map(value).collect::<Vec<_>>().join(" "));
        assert!(read.lines().any(|of| of == line), "{line}\n{read}");
    }
}

/// Kills: a report or a CSV of a comparison without its rows, a layout without its ranks, a picture that only
/// `--svg` has.
#[test]
fn a_comparison_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("c.csv").display().to_string();
    let flags =
        ["compare", "--model", "mlp", "--hidden", "8", "--seconds", "0", "--layout", "tp=2", "--csv", &csv];
    let (ok, words, page) = reported(&flags.map(String::from), &[], &dir.path().join("r.html"));
    assert!(ok && words.contains("tp=2, 2 ranks"), "{words}");
    stands_alone(&page);
    for part in
        ["<td>tp=2, 2 ranks</td>", "Ranks of tp=2", "measured peak", "<th>gradients</th>", "against f64"]
    {
        assert!(page.contains(part), "{part}");
    }
    let rows = fs::read_to_string(&csv).unwrap();
    let heads = "name,workload,layout,per_second,spread,seconds,runs,peak_bytes,other_peak_bytes,traffic_bytes,field,tokens,error_ratio";
    let rows: Vec<_> = rows.lines().collect();
    assert_eq!((rows.len(), rows[0]), (3, heads));
    assert!(rows[2].starts_with("\"tp=2, 2 ranks\",training,tp=2,"), "{}", rows[2]);
    let epochs = ["compare", "--model", "mlp", "--hidden", "8", "--layout", "dp=2", "--epochs", "1"];
    let (ok, _, page) = reported(&epochs.map(String::from), &[], &dir.path().join("e.html"));
    assert!(
        ok && page.contains("a classifier, trained under each layout") && page.contains("<th>speed-up</th>")
    );
}

/// Kills: a command with rows whose CSV has others or none, an object for scripts that becomes a row; a
/// report that stays empty; a flag for CSV where nothing is a row.
#[test]
fn every_command_with_rows_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let [csv, page, model, run] = ["rows.csv", "page.html", "model", "run"].map(path);
    let trained: Vec<_> = trains(dir.path()).into_iter().chain(["--out".into(), run.clone()]).collect();
    assert!(equipart(&trained.iter().map(String::as_str).collect::<Vec<_>>()).status.success());
    assert!(equipart(&["convert", "--model", "embedded", "--out", &model]).status.success());
    let layer = ["--tokens", "4", "--features", "8", "--steps", "0", "--link", "1us,1GB/s"];
    let commands: [(Vec<&str>, &str, usize); 5] = [
        (
            vec!["collectives", "--ranks", "4"],
            "algorithm,steps,busiest_bytes,total_bytes,seconds,of_bound",
            6,
        ),
        (vec!["shard", "Z = X W", "X=[2,1]"], "phase,equation,step,elements,bytes", 3),
        (
            vec!["diff", &model, &model],
            "name,file,differ,of,largest,relative,error_of_a,error_of_b,verdict",
            30,
        ),
        (vec!["plot", &run], "run,steps,last_loss,best_held_out,tokens_per_second", 2),
        ([&["sparse", "--leave-out", "0,50"], &layer[..]].concat(), "left_out_percent,messages_seconds", 3),
    ];
    for (command, heads, least) in commands {
        let asked = [&command[..], &["--csv", &csv, "--report", &page]].concat();
        let output = equipart(&asked);
        assert!(output.status.success(), "{asked:?}: {}", String::from_utf8_lossy(&output.stderr));
        let rows = fs::read_to_string(&csv).unwrap();
        assert!(rows.starts_with(heads) && rows.lines().count() >= least, "{asked:?}: {rows}");
        let columns = |row: &str| row.split(',').count();
        assert!(rows.lines().all(|row| columns(row) >= columns(heads)), "{asked:?}: {rows}");
        let page = fs::read_to_string(&page).unwrap();
        stands_alone(&page);
        assert!(
            page.contains("The run has ended.") && (page.contains("<p>") || page.contains("<figure>")),
            "{asked:?}: {page}"
        );
    }
    for command in ["strategies", "devices"] {
        assert!(equipart(&[command, "--report", &page]).status.success());
        assert!(fs::read_to_string(&page).unwrap().contains("The run has ended."), "{command}");
        refused(&[command, "--csv", &csv], "--csv");
    }
}
