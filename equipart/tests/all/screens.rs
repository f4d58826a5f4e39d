//! Output of commands for people: within 100 columns, sizes in units, with notes on facts that a layout
//! implies.
use crate::child::{equipart, refused};
use models::Model;
use parallel::Layout;
use run::price::price;
use run::train::settings::Settings;
use serde_json::Value;

/// Both outputs of a command that succeeds.
fn said(args: &[&str]) -> [String; 2] {
    let output = equipart(args);
    let [out, reported] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{args:?}: {reported}");
    [out, reported]
}

fn lines(args: &[&str]) -> Vec<Value> {
    let [out, _] = said(&[args, &["--json"]].concat());
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fits(text: &str) {
    for line in text.lines() {
        let columns = line.trim_end().chars().count();
        assert!(columns <= 100, "{columns} columns: {line}");
    }
}

/// A model of four blocks that is trained in no time.
pub(crate) fn four_blocks() -> (tempfile::TempDir, String, String) {
    let (dir, config) = crate::memory::sized("24", "256", "48");
    let four = std::fs::read_to_string(&config).unwrap().replace("layers\":1", "layers\":4");
    std::fs::write(&config, four).unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (text, out) = (at("text"), at("model"));
    std::fs::write(&text, "all work and no play makes a dull text. ".repeat(40)).unwrap();
    said(&["train", "--config", &config, "--data", &text, "--seq", "16", "--steps", "1", "--out", &out]);
    (dir, out, text)
}

/// 1F1B holds what two of four microbatches need, GPipe what all four do. Kills: a number of microbatches in
/// which all schedules are alike, one that is taken and ignored, a row of one run that has a spread, one that
/// is measured too little.
#[test]
fn a_comparison_measures_schedules_with_the_microbatches_they_need() {
    let (_dir, model, text) = four_blocks();
    let layouts = ["--layout", "pp=2", "--layout", "pp=2:gpipe", "--layout", "pp=2:pipedream"];
    let of = [&["compare", "--model", &model, "--data", &text][..], &layouts].concat();
    let rows = lines(&[&of[..], &["--seconds", "0"]].concat());
    let held = |row: &Value| {
        row["peak_bytes"]["total"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).max()
    };
    assert!(rows.iter().all(|row| row["runs"] == 1 && row["spread"].is_null()), "{rows:?}");
    assert!(rows[4]["microbatches"] == 4 && rows[0]["microbatches"].is_null(), "{rows:?}");
    assert!(held(&rows[6]) > held(&rows[5]), "{rows:?}");
    let stale = &rows[7];
    assert_eq!((&stale["equal"], held(stale)), (&true.into(), stale["peak_bytes_by_number"]["f32"].as_u64()));
    assert!(stale["error_ratio"].as_f64().unwrap() < 100.0, "not against stale weights: {stale}");
    refused(&[&of[..], &["--microbatches", "0"]].concat(), "--microbatches is 0; it must be 1 to 1024");
    refused(&["compare", "--seconds", "nan"], "--seconds is NaN; it must be 0 to 3600");
    let [table, _] = said(&[&of[..], &["--seconds", "0.001", "--microbatches", "2"]].concat());
    let (origin, table) = table.split_once('\n').unwrap();
    fits(table);
    assert!(
        origin.ends_with(", the run in f32.") && table.starts_with("A training step has 2 microbatches.\n")
    );
    let row = |layout: &str| {
        let row = |line: &&str| line.trim_start().starts_with(&format!("{layout}, 2 ranks "));
        let rows: Vec<_> = table.lines().filter(row).collect();
        assert!(
            rows.len() == 2 && rows.iter().all(|row| row.contains(" ±") && row.contains(" % ")),
            "{table}"
        );
        rows.into_iter().map(|row| row.split(" % ").nth(1).unwrap().trim().to_string()).collect::<Vec<_>>()
    };
    let (plain, _) = (row("pp=2"), row("pp=2:gpipe"));
    let size = tensor::readable(held(&rows[1]).unwrap().into());
    assert!(plain[0].starts_with(&size), "{size} is not in {plain:?}");
}

/// Kills: microbatches that a schedule cannot use, more of them than sequences that are given, a number that
/// is not said.
#[test]
fn a_price_has_the_microbatches_that_its_schedule_needs() {
    let prices = |args: &[&str]| lines(&[&["price", "--seq", "8"], args].concat()).remove(0);
    let number = |args: &[&str]| prices(args)["microbatches"].as_u64().unwrap();
    assert_eq!(number(&["--layout", "pp=4,dp=2"]), 8);
    assert_eq!(number(&["--layout", "pp=2", "--batch-size", "3"]), 3);
    assert_eq!(number(&["--layout", "tp=2", "--batch-size", "5"]), 1);
    let [gpipe, plain] = ["pp=2:gpipe", "pp=2"].map(|layout| prices(&["--layout", layout]));
    let held = |price: &Value| price["peak_bytes"]["total"].as_u64().unwrap();
    assert!(held(&gpipe) > held(&plain));
    let [table, _] = said(&["price", "--seq", "8", "--layout", "pp=2"]);
    fits(&table);
    let parameters = plain["parameters"].as_u64().unwrap();
    assert!(table.contains(&format!("The model has {parameters} parameters.")), "{parameters}: {table}");
    let title = "A training step in f32 under pp=2, 2 ranks: 8 sequences in 4 microbatches.\n";
    assert!(table.starts_with(title), "{table}");
    assert!(table.contains("\nTraffic of all ranks:\n") && !table.contains("kv-cache"), "{table}");
    assert!(table.contains(&tensor::readable(held(&plain).into())), "{table}");
}

/// Kills: a layout that no model runs under, a table that a terminal breaks.
#[test]
fn every_layout_of_the_list_runs() {
    fits(&said(&["strategies"])[0]);
    let (optimizers, all): (Vec<_>, Vec<_>) =
        lines(&["strategies"]).into_iter().partition(|entry| entry["layout"].is_null());
    assert!(all.len() > 15 && optimizers.len() == ops::OPTIMIZERS.len());
    let [embedded, moe] = [Model::embedded(), Model::moe()].map(|model| model.unwrap().config);
    for entry in all {
        let layout: Layout = entry["layout"].as_str().unwrap().parse().unwrap();
        let config = if entry["fits"] == "experts" { &moe } else { &embedded };
        let usual = crate::memory::settings(4, 4);
        let clip = layout.pipeline().clip(usual.clip);
        let settings = Settings { microbatches: 2, clip, ..usual };
        // of a word that no axis names
        let ranks = if layout.axes().iter().all(|(_, n)| *n == 1) { 1 } else { 2 };
        assert_eq!(price(config, &settings, &layout).unwrap().len(), ranks, "{entry}");
    }
}

/// Kills: ranks that a reader multiplies, stages that hold more than others in silence, a note where nothing
/// is odd.
#[test]
fn what_a_layout_does_not_say_is_noted() {
    let notes = |args: &[&str]| said(&[&["price", "--seq", "8"], args].concat())[1].clone();
    let ranks = notes(&["--model", "moe", "--layout", "ep=8"]);
    assert!(
        ranks
            .contains("note: ep=8,dp=8 has 8 ranks; the ranks of experts are also ranks of the other axes\n"),
        "{ranks}"
    );
    let whole = notes(&["--model", "moe", "--layout", "tp=2"]);
    let says = "note: tp=2 keeps all experts on each rank; etp=2 splits each of them, and ep=2 deals them\n";
    assert_eq!(whole, says);
    assert_eq!(notes(&["--model", "moe", "--layout", "tp=2,etp=2"]).lines().count(), 1);
    let uneven = notes(&["--layout", "pp=3"]);
    assert!(
        uneven.contains("note: the stages of pp=3 have 1,1,2 of 4 blocks; --split changes that"),
        "{uneven}"
    );
    assert_eq!(notes(&["--layout", "pp=3", "--split", "2,1,1"]), "");
    assert_eq!(notes(&["--layout", "pp=2,dp=2"]), "");
    let [one, _] = said(&["schedule", "--kind", "gpipe", "--stages", "2", "--microbatches", "1"]);
    assert!(one.contains("at most the activations of 1 microbatch; "), "{one}");
}

/// Kills: a proof of another model in silence, one of an image where the model itself fits.
#[test]
#[cfg(target_os = "linux")]
fn a_model_that_is_too_large_is_proven_by_its_image() {
    let (_dir, config) = crate::memory::sized("4294967308", "256", "512");
    let prove = |config: &str| said(&["prove", "--config", config, "--layout", "tp=2", "--key", "1"]);
    let [statement, reported] = prove(&config);
    let words = reported.lines().find_map(|line| line.strip_prefix("note: ")).unwrap();
    assert!(words.starts_with("proving tp=2 needs ") && words.contains(" of memory are free; "), "{words}");
    let named = " Its small image is proven instead, with all of its parts: features of a head 4 to 3, hidden features 4294967308 to 8, vocabulary 256 to 13.";
    assert!(words.ends_with(named) && statement.contains(words), "{statement}{reported}");
    assert!(statement.starts_with("Randomised proof: under tp=2, "), "{statement}");
    let (_dir, small) = crate::memory::sized("8", "32", "48");
    assert!(!prove(&small).concat().contains("small image"));
}
