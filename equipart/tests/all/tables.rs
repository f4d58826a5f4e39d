//! A schedule of one's own runs: trained, resumed, proven and priced by the binary as one of the lists is.
use crate::child::{equipart, refused};
use serde_json::Value;

/// A V of two ranks, three microbatches; by hand, and like no kind of the lists.
const V: &str = "0F0,0F1,3F0,3B0,3F1,3I1,3W1,0F2,0B0,3F2,3B2,0B1,0B2\n1F0,2F0,1F1,2F1,2B0,2B1,1B0,1F2,2F2,1B1,2I2,1I2,2W2,1W2\n";
/// The same two cells apart.
const OTHER: &str = "0F0,0F1,3F0,3B0,3F1,3B1,0F2,0B0,3F2,3B2,0B1,0B2\n1F0,2F0,1F1,2F1,2B0,2B1,1B0,1F2,2F2,1B1,2I2,1I2,2W2,1W2\n";
const CONFIG: &str = r#"{"model_type":"llama","hidden_size":8,"intermediate_size":8,"num_hidden_layers":4,
    "num_attention_heads":2,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":16,
    "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu"}"#;

fn lines(args: &[&str]) -> Vec<Value> {
    let output = equipart(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Kills: a table that is read and not gone by, microbatches of another number, a table that a checkpoint
/// forgets, a resumed run under another one, blank cells that make another table, a run that cannot be
/// resumed at all; a price or a proof of another schedule than the table's.
#[test]
fn a_table_is_trained_resumed_priced_and_proven() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (config, table, other) = (file("config.json", CONFIG), file("v.csv", V), file("other.csv", OTHER));
    let padded = file("padded.csv", &V.replace("3F0,", ",3F0,,"));
    let (text, out) =
        (file("text", &"all work and no play makes a dull text. ".repeat(20)), file("x", "") + "y");
    let train = [
        "train",
        "--config",
        &config,
        "--data",
        &text,
        "--seq",
        "8",
        "--batch-size",
        "6",
        "--steps",
        "2",
        "--json",
    ];
    let on_table = ["--layout", "pp=2", "--schedule", &table];
    let losses = |args: &[&str]| -> Vec<f64> {
        lines(&[&train[..], args].concat()).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    let alone = losses(&["--microbatches", "3"]);
    let whole = losses(&on_table);
    assert!(
        alone.len() == 2 && whole.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5),
        "{whole:?}, {alone:?}"
    );
    let first =
        losses(&[&on_table[..], &["--microbatches", "3", "--stop-after", "1", "--out", &out]].concat());
    let resume = ["train", "--data", &text, "--json", "--resume", &out, "--layout", "pp=2"];
    let no = |args: &[&str], says: &str| refused(&[&resume[..], args].concat(), says);
    no(&[], "--schedule gives no table, but the run to resume began with the table ");
    no(&["--schedule", &other], "--schedule gives the table ");
    let rest = lines(&[&resume[..], &["--schedule", &padded]].concat());
    assert_eq!([first[0], rest[0]["loss"].as_f64().unwrap()], whole[..]);

    let price = |args: &[&str]| {
        lines(&[&["price", "--json", "--config", &config, "--seq", "8", "--batch-size", "6"], args].concat())
    };
    let of_kind = |kind: &str| {
        let csv = dir.path().join("kind.csv").display().to_string();
        let made =
            equipart(&["schedule", "--kind", kind, "--stages", "2", "--microbatches", "3", "--csv", &csv]);
        assert!(made.status.success());
        price(&["--layout", "pp=2", "--schedule", &csv])
    };
    for kind in ["gpipe", "zb-v", "seq1f1b"] {
        let [listed, own] =
            [price(&["--layout", &format!("pp=2:{kind}"), "--microbatches", "3"]), of_kind(kind)];
        assert!(
            own.iter().all(|rank| rank["layout"].as_str().unwrap().starts_with("pp=2 with the table ")),
            "{own:?}"
        );
        for (own, listed) in own.iter().zip(&listed) {
            assert_eq!(
                (&own["peak_bytes"], &own["traffic"]),
                (&listed["peak_bytes"], &listed["traffic"]),
                "{kind}"
            );
        }
    }
    let proof = lines(&[
        "prove",
        "--json",
        "--config",
        &config,
        "--layout",
        "pp=2",
        "--schedule",
        &table,
        "--key",
        "1",
    ]);
    assert_eq!(proof[0]["equal"], true, "{proof:?}");
    let proven = proof[0].to_string();
    assert!(proven.contains("pp=2 with the table "), "{proven}");
}

/// Kills: a table on a layout of other ranks, beside a schedule that is named, with microbatches that it has
/// not, of more chunks than the model has blocks, one that is wrong; a flag that a proof ignores.
#[test]
fn what_does_not_fit_a_table_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("v.csv").display().to_string();
    std::fs::write(&table, V).unwrap();
    for command in ["train", "price", "prove"] {
        let no =
            |args: &[&str], says: &str| refused(&[&[command, "--schedule", &table], args].concat(), says);
        no(
            &["--layout", "pp=2:gpipe"],
            "the layout pp=2:gpipe names the schedule gpipe, but a table replaces it; leave gpipe out",
        );
        no(
            &["--layout", "pp=2:1f1b"],
            "the layout pp=2 names the schedule 1f1b, but a table replaces it; leave 1f1b out",
        );
        no(
            &["--layout", "tp=2"],
            "the table has 2 rows, one per rank, but the layout tp=2 has 1 rank along pp; write pp=2",
        );
        no(&[], "the table has 2 rows, one per rank, but the layout none has 1 rank along pp; write pp=2");
        no(&["--layout", "pp=4"], "but the layout pp=4 has 4 ranks along pp; write pp=2");
        if command != "prove" {
            no(
                &["--layout", "pp=2", "--microbatches", "4"],
                "--microbatches is 4, but the table of --schedule has 3; leave --microbatches out",
            );
        }
    }
    refused(&["prove", "--schedule", &table, "--cases", "1"], "cannot be used with");
    let hidden = ["price", "--model", "mlp", "--hidden", "8", "--layout", "pp=2", "--schedule", &table];
    refused(&hidden, "pp=2 does not fit 2 layers in 4 chunks: ");
    std::fs::write(&table, "0F0,0B0\n1B0,1F0\n").unwrap();
    refused(&["train", "--layout", "pp=2", "--schedule", &table], "v.csv: the schedule from a file");
}
