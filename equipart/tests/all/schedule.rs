//! `equipart schedule`: what it prints and writes, and what bad input gets: one sentence, exit code 2,
//! nothing written.
use crate::child::{binary, equipart, output, refused};
use serde_json::{Value, json};

fn said(args: &[&str]) -> String {
    let output = equipart(&[&["schedule"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn object(args: &[&str]) -> Value {
    serde_json::from_str(&said(&[args, &["--json"]].concat())).unwrap()
}

/// By hand: three forwards and three backwards are on the way at once. Kills: figures of another schedule, a
/// bubble that is a rank's without its neighbours', times that are another act's.
#[test]
fn gpipe_of_three_and_four_has_the_figures_of_the_paper() {
    let mut wanted = json!({
        "kind": "gpipe", "stages": 3, "microbatches": 4, "chunks": 1, "slices": 1, "times": [1.0, 1.0, 1.0], "link": [0.0, 0.0],
        "makespan": 18.0, "bubble_time": 6.0, "bubble_fraction": 6.0 / 18.0, "bubbles": [6.0, 3.0, 0.0],
        "peak_saved": [4.0, 4.0, 4.0],
    });
    let args = ["--kind", "gpipe", "--stages", "3", "--microbatches", "4"];
    assert_eq!(object(&args), wanted);
    for (key, value) in [
        ("times", json!([1.0, 2.0, 4.0])),
        ("makespan", json!(42.0)),
        ("bubble_time", json!(14.0)),
        ("bubbles", json!([14.0, 7.0, 0.0])),
    ] {
        wanted[key] = value;
    }
    assert_eq!(object(&[&args[..], &["--times", "1,2,4"]].concat()), wanted);
    let slow = object(&[&args[..], &["--link", "0.5,0.25"]].concat());
    assert_eq!((&slow["link"], &slow["makespan"]), (&json!([0.5, 0.25]), &json!(18.0 + 4.0 * 0.75)));
}

/// Kills: a kind that the command does not know, a number of chunks or slices that is ignored, another
/// default.
#[test]
fn every_kind_is_drawn() {
    let chunks = |kind: &str| object(&["--kind", kind])["chunks"].clone();
    assert_eq!(["naive", "gpipe", "1f1b", "interleaved", "looped-bfs"].map(chunks), [1, 1, 1, 2, 2]);
    assert_eq!(["zb-h1", "zb-h2", "zb-v", "dualpipe-v", "seq1f1b"].map(chunks), [1, 1, 2, 2, 1]);
    let zb = object(&["--kind", "zb-v", "--stages", "4", "--microbatches", "8"]);
    assert_eq!((&zb["bubble_time"], &zb["peak_saved"]), (&json!(0.0), &json!([4.0, 4.0, 4.0, 4.0])));
    let args = ["--kind", "interleaved", "--chunks", "3", "--times", "3,3,3"];
    assert_eq!((&object(&args)["chunks"], &object(&args)["bubble_time"]), (&json!(3), &json!(9.0)));
    assert_eq!(object(&["--kind", "seq1f1b", "--slices", "4"])["slices"], 4);
    let usual = object(&[]);
    assert_eq!(
        (&usual["kind"], &usual["stages"], &usual["microbatches"]),
        (&json!("1f1b"), &json!(4), &json!(8))
    );
    let drawn = said(&["--stages", "2", "--microbatches", "2"]);
    let wanted = "1F1B: 2 ranks, 2 microbatches\n\nrank 0  F0 F1 ·  ·  B0─── ·  B1───\nrank 1  ·  F0 B0─── F1 B1─── ·  ·\n";
    assert!(drawn.starts_with(wanted), "{drawn}");
    assert!(drawn.contains("it takes 9; ") && !drawn.contains('\x1b'), "{drawn}");
    for (columns, bands, widest) in [(None, 2, 100), (Some("40"), 4, 40)] {
        let mut narrow = binary();
        narrow.args(["schedule"]).env_remove("COLUMNS").envs(columns.map(|columns| ("COLUMNS", columns)));
        let drawn = String::from_utf8(output(&mut narrow).stdout).unwrap();
        let ranks: Vec<_> = drawn.lines().filter(|line| line.starts_with("rank ")).collect();
        assert!(
            ranks.len() == 4 * bands && ranks.iter().all(|line| line.chars().count() <= widest),
            "{drawn}"
        );
    }
}

/// Kills: bytes of other microbatches, another schedule, number or optimizer than those of the price, or of a
/// run of few microbatches; a table whose cells are not its own.
#[test]
fn bytes_are_those_of_the_price() {
    let dir = tempfile::tempdir().unwrap();
    let csv = dir.path().join("a.csv").display().to_string();
    for (kind, chunks, layout) in [
        ("1f1b", None, "pp=2"),
        ("zb-h1", None, "pp=2:zb-h1"),
        ("interleaved", Some("1"), "pp=2:interleaved/1"),
    ] {
        let args = ["--kind", kind, "--stages", "2", "--microbatches", "9"];
        let chunks: Vec<_> = chunks.iter().flat_map(|chunks| ["--chunks", chunks]).collect();
        let of = ["--model", "embedded", "--seq", "5", "--dtype", "bf16"];
        let listed = object(&[&args[..], &chunks, &of].concat());
        let price = ["price", "--layout", layout, "--microbatches", "9", "--batch-size", "9", "--json"];
        let price = equipart(&[&price[..], &of[2..]].concat());
        let prices = serde_json::Deserializer::from_slice(&price.stdout).into_iter::<Value>();
        let totals: Vec<_> = prices.map(|price| price.unwrap()["peak_bytes"]["total"].clone()).collect();
        assert_eq!(listed["peak_bytes"], json!(totals), "{layout}");
        let reported = said(&[&args[..], &chunks, &of, &["--csv", &csv]].concat());
        let sizes = [0, 1].map(|rank| tensor::readable(totals[rank].as_u64().unwrap().into()));
        assert!(reported.contains(&format!("; by rank: {}, {}\n", sizes[0], sizes[1])), "{reported}");
        assert_eq!(object(&[&["--file", &csv], &of[..]].concat())["peak_bytes"], json!(totals), "{layout}");
    }
    assert!(object(&[]).get("peak_bytes").is_none());
}

/// Kills: a file that is not written whole, a table that is read as another one, a diagram without its cells.
#[test]
fn diagrams_and_tables_are_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (svg, csv) = (path("a.svg"), path("a.csv"));
    for kind in ["zb-v", "seq1f1b", "looped-bfs", "naive"] {
        let args = ["--kind", kind, "--stages", "3", "--microbatches", "7", "--times", "1,2,1"];
        let text = said(&[&args[..], &["--svg", &svg, "--csv", &csv]].concat());
        assert!(text.contains(&svg) && text.contains(&csv), "{text}");
        let drawn = std::fs::read_to_string(&svg).unwrap();
        assert!(
            drawn.starts_with("<svg xmlns") && drawn.ends_with("</svg>\n") && drawn.contains("2F6"),
            "{kind}"
        );
        let (mut built_in, mut read) = (object(&args), object(&["--file", &csv, "--times", "1,2,1"]));
        assert_eq!((built_in["kind"].take(), read["kind"].take()), (json!(kind), json!("table")));
        assert_eq!(read.as_object_mut().unwrap().remove("messages"), Some(json!(0)));
        assert_eq!(built_in, read);
    }
    let messages = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    std::fs::write(&csv, messages).unwrap();
    let reported = "\nits 4 sends and receives match its cells\n";
    assert!(said(&["--file", &csv]).contains(reported) && object(&["--file", &csv])["messages"] == 4);
    std::fs::write(&csv, messages.replace("1SEND_B0", "")).unwrap();
    refused(
        &["schedule", "--file", &csv],
        "a.csv: rank 1 (row 2) lacks a message; wanted to send gradient of 0 to rank 0 for chunk 0",
    );
    std::fs::write(&csv, r#"[["0F0", "0B0"]]"#).unwrap();
    assert!(said(&["--file", &csv]).starts_with("from a file: 1 rank, 1 microbatch\n\nrank 0  F0 B0───\n"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// Cells of the smallest and of the largest times, and cells that take nothing beside others or beside their
/// messages. Kills: numbers of an axis without end, a diagram without its cells.
#[test]
fn times_that_differ_as_far_as_they_may_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("a.svg").display().to_string();
    for (times, link, cell) in [
        ("1e-9,1e-9,1e-9", "0,0", "<title>0F2, 0.000000006 to 0.000000007</title>"),
        ("1e-9,1e9,0", "0,0", "<title>1B2, 2000000000 to 3000000000</title>"),
        ("1e-9,1e-9,1e-9", "1e9,1e9", ""),
        ("1e9,1e9,1e9", "0,1e9", "<title>0F2, 8000000000 to 9000000000</title>"),
    ] {
        let flags = ["--stages", "2", "--microbatches", "3", "--times", times, "--link", link, "--svg", &svg];
        assert!(said(&flags).contains("rank 1"), "{times} {link}");
        let drawn = std::fs::read_to_string(&svg).unwrap();
        assert!(drawn.len() < 100_000 && !drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert!(drawn.contains(cell), "{times} {link}: {drawn}");
    }
}

/// Kills: a panic, a hang or half an answer where the input is wrong; an option that is ignored.
#[test]
fn what_does_not_fit_is_refused() {
    let no = |args: &[&str], says: &str| refused(&[&["schedule"], args].concat(), says);
    no(&["--stages", "0"], "--stages is 0; it must be 1 to 4096");
    no(&["--microbatches", "0"], "--microbatches is 0; it must be 1 to 16777216");
    no(&["--microbatches", "18446744073709551615"], "--microbatches is 18446744073709551615");
    no(
        &["--stages", "4096", "--microbatches", "16777216"],
        "4096 ranks, 16777216 microbatches make 68719476736 forwards; they must be 16777216 or fewer",
    );
    no(&["--stages", "-1"], "-1");
    no(&["--seq", "4"], "--model <DIR|NAME>");
    no(&["--model", "embedded", "--seq", "0"], "--seq is 0; it must be 1 to ");
    no(&["--model", "mlp"], "--model mlp has no config.json; write a folder, or embedded, or moe");
    no(&["--model", "embedded", "--stages", "512"], "pp=512 does not fit ");
    no(&["--kind", "gpip"], "possible values: 1f1b, naive, gpipe, interleaved, looped-bfs, zb-h1");
    for (kind, flag) in [
        ("gpipe", "chunks"),
        ("zb-v", "chunks"),
        ("seq1f1b", "chunks"),
        ("interleaved", "slices"),
        ("1f1b", "slices"),
    ] {
        no(
            &["--kind", kind, &format!("--{flag}"), "2"],
            &format!("--{flag} is 2, but {kind} takes none; leave it out"),
        );
    }
    no(&["--kind", "interleaved", "--chunks", "0"], "--chunks is 0; it must be 1 to 16");
    for times in
        ["1,1", "1,1,1,1", "-1,1,1", "NaN,1,1", "inf,1,1", "1e10,1,1", "1e-320,1e-320,1e-320", "a,1,1", ""]
    {
        no(&["--times", times], "wanted 3 numbers, 0 or from 10^-9 to 10^9, separated by commas");
    }
    no(&["--times", "0,0,0"], "--times is 0,0,0; at least one must be above 0");
    no(&["--update", "1e-10"], "invalid value '1e-10' for '--update <TIME>'");
    for (flags, named) in [
        (&["--dtype", "f32"], "--model <DIR|NAME>"),
        (&["--device", "cpu"], "--model <DIR|NAME>"),
        (&["--sequences", "4", "--model", "embedded", "--kind", "1f1b"], "'--sequences <SEQUENCES>' cannot"),
        (&["--partition", "2", "--model", "embedded", "--update", "1"], "'--update <TIME>'"),
    ] as [(&[&str], &str); 4]
    {
        no(flags, named);
    }
    no(&["--link", "1"], "wanted 2 numbers, 0 or from 10^-9 to 10^9, separated by commas");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    no(&["--svg", &path("none/a.svg")], &path("none/a.svg"));
    no(
        &["--svg", &path("a.svg"), "--microbatches", "100000"],
        "--svg would draw 1200000 cells; it draws 100000 or fewer",
    );
    let csv = path("a.csv");
    no(&["--file", &csv], "a.csv");
    for flag in ["--kind", "--stages", "--microbatches", "--chunks", "--slices"] {
        let value = if flag == "--kind" { "gpipe" } else { "2" };
        no(&["--file", &csv, flag, value], "cannot be used with");
    }
    for (table, says) in [
        ("\n", "a.csv: it has no cells; wanted a row of cells for each rank"),
        (
            "0F0,0B0\n1F0,1C0\n",
            "a.csv: row 2, column 2 is \"1C0\"; wanted a chunk, F, B, I, W or U, and a microbatch",
        ),
        ("0F0,0B0,0F1\n", "a.csv: row 1 has no 0B1, nor 0I1 and 0W1; wanted it as row 1, column 3 is 0F1"),
        ("0F0,0B0\n1B0,1F0\n", "rank 1 has 1B0 (row 2, column 1) before 1F0 (row 2, column 2)"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "to run 0B0 (row 1, column 2), and rank 1 waits"),
    ] {
        std::fs::write(&csv, table).unwrap();
        no(&["--file", &csv], says);
    }
    std::fs::write(&csv, [0xff, 0xfe]).unwrap();
    no(&["--file", &csv], "a.csv is not valid UTF-8: ");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// The bytes of a rank in `price` follow its blocks. Kills: a split that a command takes and ignores, one
/// that does not fit and runs, one that counts blocks and not what they have.
#[test]
fn a_split_is_obeyed_or_refused() {
    let weights = |args: &[&str]| -> Vec<u64> {
        let output = equipart(&[&["price", "--json", "--layout"], args].concat());
        let ranks = std::str::from_utf8(&output.stdout).unwrap().lines();
        let weights = |rank: &str| {
            serde_json::from_str::<Value>(rank).unwrap()["peak_bytes"]["weights"].as_u64().unwrap()
        };
        ranks.map(weights).collect()
    };
    let [even, uneven, again, few] = [
        &["pp=2"][..],
        &["pp=2", "--split", "1,3"],
        &["pp=2", "--split", "2,2"],
        &["pp=2", "--split", "parameters"],
    ]
    .map(weights);
    assert!(even == again && uneven[0] < even[0] && uneven[1] > even[1], "{even:?}, {uneven:?}, {again:?}");
    assert!(few.iter().max() <= even.iter().max(), "{few:?}");
    for (args, why) in [
        (
            &["--layout", "pp=2", "--split", "1,2"][..],
            "the split 1 and 2 is not 4 blocks in 2 chunks of at least one each, such as 2,2",
        ),
        (&["--layout", "pp=2", "--split", "1,1,2"], "the split 1, 1 and 2 is not 4 blocks in 2 chunks"),
        (
            &["--layout", "tp=2", "--split", "even"],
            "--split needs a layout with pipeline stages; write one, such as pp=2",
        ),
        (&["--layout", "pp=5", "--split", "time"], "pp=5 does not fit 4 blocks"),
    ] {
        refused(&[&["price"], args].concat(), why);
    }
    refused(&["prove", "--layout", "pp=2", "--split", "1,1"], "--split needs one model");
    refused(&["prove", "--cases", "1", "--split", "1,1"], "cannot be used with");
}
