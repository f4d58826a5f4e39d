//! `equipart collectives`: what it prints and writes, and what bad input gets: one sentence, exit code 2,
//! nothing written.
use crate::child::equipart;
use serde_json::Value;
use std::process::Output;

fn collectives(args: &[&str]) -> Output {
    equipart(&[&["collectives"], args].concat())
}

fn said(args: &[&str]) -> String {
    let output = collectives(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(args: &[&str]) -> Vec<Value> {
    let text = said(&[args, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// One sentence on standard error, exit code 2, nothing on standard output.
fn refused(args: &[&str], says: &str) {
    let output = collectives(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(error.starts_with("error: ") && !error.contains("panicked"), "{args:?}: {error}");
    assert!(error.contains(says), "{args:?} says {error:?}, wanted {says:?}");
}

/// Kills: an algorithm that is not compared, figures of another, nodes that are not told.
#[test]
fn without_an_algorithm_all_are_compared() {
    let table = said(&[]);
    for words in [
        "naive",
        "direct",
        "ring",
        "tree",
        "hierarchical, nodes of 4",
        "29.36 MB",
        "58.72 MB",
        "x1.24",
        "293.60µs",
    ] {
        assert!(table.contains(words), "{words} is not in {table}");
    }
    let all = lines(&["--ranks", "12", "--elements", "1200", "--link", "1us,1GB/s"]);
    let figure = |key: &str| all.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(figure("algorithm"), ["naive", "direct", "ring", "tree", "hierarchical"]);
    assert_eq!(figure("steps"), [22, 2, 22, 8, 2 * 3 + 2 * 2]);
    assert_eq!(figure("node"), [Value::Null, Value::Null, Value::Null, Value::Null, 4.into()]);
    assert_eq!(figure("busiest_bytes"), [11 * 4800, 22 * 400, 22 * 400, 2 * 7 * 600 + 4800, 22 * 400]);
    assert_eq!(figure("total_bytes"), [22 * 4800; 5]);
    let seconds: Vec<_> = figure("seconds").iter().map(|s| (s.as_f64().unwrap() * 1e9).round()).collect();
    let wanted = [
        22 * (1000 + 4800),
        22 * (1000 + 400),
        22 * (1000 + 400),
        8000 + 2 * 7 * 600 + 2 * 4800,
        10_000 + 22 * 400,
    ];
    assert_eq!(seconds, wanted.map(f64::from));
    assert_eq!(figure("bound_seconds"), [8.8e-6; 5]);
}

/// Kills: steps of another algorithm, chunks that are not elements, a drawing as JSON or JSON as a drawing.
#[test]
fn with_an_algorithm_its_rounds_are_reported() {
    let all = lines(&["--algorithm", "ring", "--ranks", "3", "--elements", "7"]);
    assert_eq!((all.len(), &all[0]["steps"], &all[0]["link"]), (5, &4.into(), &"5us,25GB/s".into()));
    let step = r#"{"step":2,"phase":"reduce-scatter","transfers":[
        {"from":0,"to":1,"chunks":[2,3],"elements":[5,7],"how":"add"},
        {"from":1,"to":2,"chunks":[0,1],"elements":[0,3],"how":"add"},
        {"from":2,"to":0,"chunks":[1,2],"elements":[3,5],"how":"add"}]}"#;
    assert_eq!(all[2], serde_json::from_str::<Value>(step).unwrap());
    assert_eq!((&all[4]["phase"], &all[4]["transfers"][0]["how"]), (&"all-gather".into(), &"replace".into()));

    let drawn = said(&["--algorithm", "tree", "--ranks", "6"]);
    for words in [
        "tree all-reduce: 1048576 f32 elements on each of 6 ranks",
        "fold\n",
        "c0-3 +→1",
        "unfold\n",
        "x2.21",
    ] {
        assert!(drawn.contains(words), "{words} is not in {drawn}");
    }
    let nodes = said(&["--algorithm", "hierarchical", "--ranks", "6", "--node", "2"]);
    assert!(nodes.starts_with("hierarchical all-reduce in nodes of 2: "), "{nodes}");
    let direct = said(&["--algorithm", "direct", "--ranks", "3"]);
    assert!(
        direct.contains("    2  c0 →all  c1 →all  c2 →all")
            && direct.contains("ci +→i: sends chunk i to every"),
        "{direct}"
    );
    let alone = said(&["--algorithm", "ring", "--ranks", "1", "--elements", "0"]);
    assert!(alone.contains("0 rounds"), "{alone}");
}

/// Kills: a diagram that is not written, or of which half may be seen; a limit that is none.
#[test]
fn diagrams_are_written_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ring.svg");
    std::fs::write(&file, "old").unwrap();
    let path = file.display().to_string();
    let text = said(&["--algorithm", "ring", "--ranks", "64", "--svg", &path]);
    assert!(text.contains(&path), "{text}");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
    assert!(svg.contains(">rank 63</text>") && svg.contains(">all-gather</text>"));
    assert_eq!(lines(&["--algorithm", "naive", "--ranks", "2", "--svg", &path]).len(), 3);
    assert!(std::fs::read_to_string(&file).unwrap().contains("naive all-reduce"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Kills: a panic, a hang or half an answer where the input is wrong.
#[test]
fn what_does_not_fit_is_refused() {
    refused(&["--ranks", "0"], "--ranks is 0; it must be 1 to 64");
    refused(&["--ranks", "65"], "--ranks is 65; it must be 1 to 64, the most columns of the drawing");
    refused(&["--ranks", "18446744073709551557"], "--ranks is 18446744073709551557");
    refused(&["--ranks", "-1"], "-1");
    refused(&["--ranks", "eight"], "eight");
    refused(
        &["--elements", "1099511627777"],
        "--elements is 1099511627777; it must be 1099511627776 (2^40) or less",
    );
    refused(&["--elements", "-1"], "-1");
    refused(&["--algorithm", "butterfly"], "possible values: naive, direct, ring, tree, hierarchical");
    refused(
        &["--link", "20us"],
        "\"20us\" is not a link; write its latency and its bandwidth, such as 20us,1GB/s",
    );
    refused(&["--link", "1GB/s,20us"], "\"1GB/s\" is not a latency");
    refused(&["--link", "20us,0GB/s"], "\"0GB/s\" is not a bandwidth");
    refused(&["--node", "3"], "8 ranks cannot form nodes of 3: a node's size must be 1, 2, 4 or 8");
    refused(&["--node", "0"], "8 ranks cannot form nodes of 0");
    for algorithm in ["naive", "direct", "ring", "tree"] {
        let says = format!("--node is for --algorithm hierarchical; {algorithm} has no use for it");
        refused(&["--algorithm", algorithm, "--node", "2"], &says);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    refused(&["--svg", &path("a.svg")], "--svg draws one algorithm; give --algorithm too");
    refused(&["--algorithm", "ring", "--svg", &path("none/a.svg")], &path("none/a.svg"));
    refused(&["--algorithm", "ring", "--svg", &dir.path().display().to_string()], "is a directory");
    #[cfg(unix)]
    {
        let other = tempfile::tempdir().unwrap();
        let socket = other.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let says = "is a pipe, socket or device where a regular file should be";
        refused(&["--algorithm", "ring", "--svg", &socket.display().to_string()], says);
    }
    refused(&["--algorithm", "ring", "--ranks", "65", "--svg", &path("a.svg")], "--ranks is 65");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
