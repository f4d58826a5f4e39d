//! Answers of commands to something that is too much: too long an argument, too weak a proof, an error that
//! has no unit.
use crate::child::{equipart, refused};
use crate::memory::{path, sized};
use serde_json::Value;

fn json(args: &[&str]) -> Vec<Value> {
    let output = equipart(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Kills: an argument of 10 kB that is shown whole, by us or by the library that reads arguments; characters
/// that turn or hide others, or begin a line of their own.
#[test]
fn what_a_message_quotes_is_short_and_seen() {
    let reported = |args: &[&str]| {
        let output = equipart(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let long = "tp=2,".repeat(2000);
    let file = format!("{}.json", "é".repeat(3000));
    let words = "é ".repeat(3000);
    for args in [
        &["price", "--layout", &long][..],
        &["price", "--layout", &words],
        &["price", "--config", &file],
        &["bench", "--only", &words],
        &["schedule", "--kind", &long],
        &[&long],
    ] {
        let reported = reported(args);
        assert!(reported.starts_with("error: ") && reported.contains('…'), "{reported}");
        assert!(reported.chars().count() < 2500, "{} characters of {:?}", reported.chars().count(), args[0]);
    }
    let hostile = "tp=\u{202e}2\nerror: all is well\u{1b}[31m";
    for args in [&["price", "--layout", hostile][..], &["price", "--config", hostile], &[hostile]] {
        let reported = reported(args);
        let hidden = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!reported.contains(hidden), "{reported:?}");
        assert_eq!(reported.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{reported}");
    }
    assert!(equipart(&["price", "--help"]).status.success(), "help is no failure");
}

/// A model whose degrees are so large that two keys are not enough. Kills: a weak bound without a word, a key
/// too few or too many, more keys that are not asked for, keys that count twice.
#[test]
fn a_proof_is_given_the_keys_that_make_it_sure() {
    let (dir, file) = sized("8", "11", "48");
    let deep = std::fs::read_to_string(&file).unwrap().replace("layers\":1", "layers\":12");
    let prove = |config: &str, more: &[&str]| {
        let args = [&["prove", "--key", "1", "--layout", "tp=2", "--config", config], more].concat();
        let said = json(&[&args[..], &["--json"]].concat()).remove(0);
        let mut keys: Vec<_> = said["keys"].as_array().unwrap().iter().map(Value::to_string).collect();
        keys.sort();
        keys.dedup();
        (keys.len(), said["bound_log2"].as_f64().unwrap(), said["elements"].as_u64().unwrap())
    };
    let (two, bound, elements) = prove(&file, &[]);
    assert!(two == 2 && bound < -30.0, "{bound}");
    let (three, more, all) = prove(&file, &["--keys", "3"]);
    assert_eq!((three, 2 * all), (3, 3 * elements));
    assert!((2.0 * more - 3.0 * bound).abs() < 1e-9, "{bound} {more}");
    let config = path(&dir, "deep.json");
    std::fs::write(&config, deep).unwrap();
    let (keys, bound, _) = prove(&config, &[]);
    let less = bound / keys as f64 * (keys - 1) as f64;
    assert!(keys > 2 && bound <= -30.0 && less > -30.0, "{keys} keys: {bound}");
    let words = equipart(&["prove", "--key", "1", "--keys", "3", "--config", &file]);
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains(" with each of 3 keys, which cost 3 times as much as one"), "{words}");
    refused(&["prove", "--keys", "65"], "--keys is 65; it must be 1 to 64");
    refused(&["prove", "--keys", "3", "--cases", "1"], "cannot be used with");
}

/// Kills: an error as a multiple of the truth's own, which is 0.
#[test]
fn a_comparison_in_f64_judges_right_layouts_right() {
    let compare = ["compare", "--dtype", "f64", "--model", "mlp", "--hidden", "8", "--layout", "tp=2"];
    let rows = json(&[&compare[..], &["--json"]].concat());
    let ratios: Vec<_> = rows.iter().map(|row| row["error_ratio"].as_f64().unwrap()).collect();
    assert!(ratios.len() == 2 && ratios[0] == 0.0 && (0.0..1e4).contains(&ratios[1]), "{ratios:?}");
}

/// Kills: counts that never end, or whose sum wraps.
#[test]
fn counts_have_an_end() {
    const MOST: &str = "18446744073709551615";
    let (dir, config) = sized("8", "256", "48");
    refused(&["bench", "--turns", MOST], "--turns is 18446744073709551615; it must be 1 to 10000");
    let exposed = ["bench", "--profile", "--layout", "tp=2", "--link", "tp=1us,1GB/s", "--turns", MOST];
    refused(&exposed, "it must be 1 to 10000");
    refused(&["schedule", "--microbatches", MOST], "it must be 1 to");
    refused(&["collectives", "--ranks", MOST], "it must be 1 to");
    refused(
        &["price", "--config", &config, "--seq", "8", "--batch-size", "8", "--microbatches", MOST],
        "microbatches",
    );
    let out = path(&dir, "out");
    let text = path(&dir, "text");
    std::fs::write(&text, "all work and no play makes a dull text. ".repeat(20)).unwrap();
    let train = ["train", "--config", &config, "--data", &text, "--seq", "8", "--out", &out, "--json"];
    let counts = ["--steps", MOST, "--checkpoint-every", MOST, "--stop-after", "1"];
    assert_eq!(json(&[&train[..], &counts].concat()).len(), 1);
    let resume = ["train", "--data", &text, "--resume", &out, "--json", "--stop-after", MOST];
    refused(&[&resume[..], &["--steps", "3"]].concat(), "the warm-up is 1844674407370955161 steps");
    let other = path(&dir, "other");
    let text_only = [&train[..8], &[&other, "--json", "--steps", "2", "--stop-after", "1"]].concat();
    assert_eq!(json(&text_only).len(), 1);
    let resume = ["train", "--data", &text, "--resume", text_only[8], "--json", "--stop-after", MOST];
    assert_eq!(json(&resume).len(), 1);
}
