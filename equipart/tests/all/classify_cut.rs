//! Classifiers cut into stages after any layer, in files and in whole runs.
use crate::classify::{lines, written};
use serde_json::Value;
use std::path::Path;

/// Kills: layers of a stage saved under another stage's names, moments that stay with the stage's number, a
/// split that a resumed run or an evaluation does not follow.
#[test]
fn a_classifier_saved_under_one_cut_continues_under_every_other() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), [96, 50]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (data, out) = (dir.path().display().to_string(), path("out"));
    let begin = ["train", "--model", "mlp", "--data", &data, "--hidden", "12,8", "--optimizer", "adamw"];
    let begin = [&begin[..], &["--lr", "0.01", "--epochs", "2", "--json", "--out"]].concat();
    let whole = lines(&[&begin[..], &[&path("whole")]].concat());
    let cut = ["--layout", "pp=2", "--split", "1,2", "--stop-after", "3"];
    lines(&[&begin[..], &[&out], &cut].concat());
    let judged = |layout: &[&str]| {
        let eval = ["eval", "--model", &out, "--data", &data, "--json", "--layout"];
        lines(&[&eval[..], layout].concat()).remove(0)["accuracy"].as_f64().unwrap()
    };
    let all: [&[&str]; 5] = [&["none"], &["tp=2"], &["dp=2"], &["pp=3"], &["pp=2:zb-h1", "--split", "2,1"]];
    assert!(all.iter().all(|layout| judged(layout) == judged(&["none"])));
    for (n, layout) in all.iter().enumerate() {
        let own = path(&format!("resumed {n}"));
        std::fs::create_dir(&own).unwrap();
        for file in std::fs::read_dir(&out).unwrap().map(|file| file.unwrap()) {
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), Path::new(&own).join(file.file_name())).unwrap();
            }
        }
        let rest = ["train", "--resume", &own, "--data", &data, "--json", "--layout"];
        let rest = lines(&[&rest[..], layout].concat());
        let loss = |line: &Value| line["loss"].as_f64().unwrap();
        assert!((loss(&whole[1]) / loss(&rest[0]) - 1.0).abs() < 1e-3, "{layout:?}: {whole:?} {rest:?}");
    }
}

/// Kills: another run than `train`'s, a layout without its report, an epoch that is lost, a time of one epoch
/// or with the tests, a speed-up turned round, pictures of one rank, a picture without its curves.
#[test]
fn compare_trains_whole_epochs_under_each_layout() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), [96, 400]);
    let (data, svg) = (dir.path().display().to_string(), dir.path().join("epochs.svg"));
    let same = ["--model", "mlp", "--data", &data, "--hidden", "12,12", "--epochs", "2", "--json"];
    let rows = lines(&[&["compare"], &same[..], &["--svg", svg.to_str().unwrap()]].concat());
    let layouts: Vec<_> = rows.iter().map(|row| row["layout"].as_str().unwrap()).collect();
    assert_eq!(layouts, ["none", "dp=2", "tp=2", "pp=2:zb-h1"]);
    let trained = lines(&[&["train"], &same[..]].concat());
    for (row, ranks) in rows.iter().zip([1, 2, 2, 2]) {
        assert!(row["equal"] == true && row["accuracy_difference"].as_f64().unwrap() <= 0.003, "{row}");
        assert_eq!(row["peak_bytes"].as_array().unwrap().len(), ranks, "{row}");
        let epochs = row["epochs"].as_array().unwrap();
        let number = |key: &str| row[key].as_f64().unwrap();
        let sum: f64 = epochs.iter().map(|line| line["seconds"].as_f64().unwrap()).sum();
        assert!((number("seconds") / sum - 1.0).abs() < 1e-9, "{row}");
        assert!((number("pictures_per_second") * sum / 192.0 - 1.0).abs() < 1e-9, "{row}");
        let speedup = rows[0]["seconds"].as_f64().unwrap() / sum;
        assert!((number("speedup") / speedup - 1.0).abs() < 1e-9, "{row}");
        for (line, trained) in epochs.iter().zip(&trained) {
            let [loss, wanted] = [line, trained].map(|line| line["loss"].as_f64().unwrap());
            assert!((loss / wanted - 1.0).abs() < 1e-4 && line["epoch"] == trained["epoch"], "{line}");
        }
        assert_eq!(epochs.len(), 2);
    }
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert_eq!((drawn.matches("stroke-width=\"1.5\"").count(), drawn.matches(" s, x").count()), (8, 4));
    let given = ["--layout", "pp=3", "--layout", "tp=2", "--microbatches", "2"];
    let same = &same[..same.len() - 2];
    let rows = lines(&[&["compare"], same, &["1", "--json"], &given].concat());
    let of =
        |row: &Value| (row["layout"].as_str().unwrap().to_string(), row["microbatches"].as_u64().unwrap());
    let wanted = [("none", 1), ("pp=3", 2), ("tp=2", 1)].map(|(layout, n)| (layout.to_string(), n));
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), wanted);
}
