//! `generate --requests` and `compare --requests`: texts, figures and refusals as users see them.
use crate::child::{equipart, refused};
use serde_json::Value;

fn lines(args: &[&str]) -> (Vec<Value>, String) {
    let output = equipart(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), said)
}

/// Kills: an order that changes a text, a line of the file that is lost or an empty one that counts, figures
/// without the latency, a note where no request waits.
#[test]
fn prompts_of_a_file_are_continued_alike_in_every_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompts.txt").display().to_string();
    std::fs::write(&file, "Once upon\nThe king\r\n\n  \nA\nWhere is the\nIn").unwrap();
    let run = |more: &[&str]| {
        let args =
            ["generate", "--json", "--prompt", "You", "--prompts", &file, "--max-new", "5", "--seed", "2"];
        lines(&[&args[..], &["--temperature", "0.9"], more].concat())
    };
    let ids = |lines: &[Value]| lines.iter().map(|line| line["ids"].clone()).collect::<Vec<_>>();
    let (alone, said) = run(&[]);
    assert_eq!((alone.len(), &*said), (6, ""));
    for (mode, wait) in [
        (&["--requests", "sync"][..], ""),
        (&["--requests", "batch"], ""),
        (&["--requests", "async"], "note: 2 of 6 requests wait for a free slot (4 slots)\n"),
        (&["--requests", "async", "--slots", "6"], ""),
        (&["--requests", "async", "--slots", "1"], "note: 5 of 6 requests wait for a free slot (1 slot)\n"),
    ] {
        let (run, said) = run(&[mode, &["--layout", "pp=2"]].concat());
        assert_eq!((ids(&run), &*said), (ids(&alone), wait), "{mode:?}");
        let [first, each, all] =
            ["first_token_seconds", "token_seconds", "seconds"].map(|key| run[0][key].as_f64().unwrap());
        assert!(0.0 < first && 0.0 < each && first + 4.0 * each <= all, "{mode:?}: {first}, {each}, {all}");
        assert_eq!(run[0]["peak_bytes"]["inference"].as_array().unwrap().len(), 2);
    }
}

/// Kills: a flag that is ignored, a file that is no text taken for one.
#[test]
fn requests_that_cannot_be_answered_are_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let no = |more: &[&str], says: &str| refused(&[&["generate", "--prompt", "a"][..], more].concat(), says);
    no(&["--requests", "async", "--slots", "0"], "--slots is 0; it must be at least 1");
    no(&["--slots", "2"], "--slots is 2, but --requests batch has no slots");
    no(&["--slots", "2", "--requests", "sync"], "--slots is 2, but --requests sync has no slots");
    no(&["--prompts", &file("none", b"")], "none is empty (0 bytes)");
    no(&["--prompts", &file("blank", b"\n \n")], "blank has no prompt; write one in each line");
    no(&["--prompts", &file("latin", b"ab\n\xff")], "latin is not valid UTF-8 (at byte 3)");
    no(&["--prompts", "/no/such/file"], "/no/such/file: there is no such file");
    let dump = dir.path().join("dump").display().to_string();
    no(
        &["--dump", &dump, "--requests", "async"],
        "a dump records one batch, but requests are answered async",
    );
    refused(&["compare", "--requests", "--layout", "tp=2"], "none of the compared layouts has pp ranks");
    refused(&["compare", "--requests", "--model", "mlp"], "--requests is for models of text");
}

/// Kills: an order without its row, a row that is not equal, training repeated for an order.
#[test]
fn every_order_has_a_row_of_a_comparison() {
    let (_dir, model, text) = crate::screens::four_blocks();
    let of = ["compare", "--json", "--seconds", "0", "--model", &model, "--data", &text, "--requests"];
    let (rows, _) = lines(&[&of[..], &["--layout", "pp=2", "--layout", "tp=2"]].concat());
    let names = |workload: &str| {
        let of = rows.iter().filter(|row| row["workload"] == workload);
        of.map(|row| row["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let orders = ["pp=2, 2 ranks, sync", "pp=2, 2 ranks, async", "pp=2, 2 ranks"];
    let (one, tp) = (["unsplit, 1 rank"], ["tp=2, 2 ranks"]);
    assert_eq!(names("inference"), [&one[..], &orders, &tp].concat());
    assert_eq!(names("training"), [&one[..], &orders[2..], &tp].concat());
    for row in &rows {
        assert_eq!(row["equal"], true, "{row}");
        assert!(row["tokens_equal"] != false || !row["tie"].is_null(), "{row}");
    }
    let held = |name: &str| {
        let row = rows.iter().find(|row| row["workload"] == "inference" && row["name"] == name).unwrap();
        let peak = row["peak_bytes"]["total"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap());
        (peak.max().unwrap(), row["peak_bytes_by_number"]["f32"].as_u64().unwrap())
    };
    for name in orders {
        let (measured, priced) = held(name);
        assert_eq!(measured, priced, "{name}");
    }
}
