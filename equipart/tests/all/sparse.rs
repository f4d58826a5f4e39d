//! `equipart sparse`, and runs under `tp=2:sparse/S`: folders whose weights have zeros, read by any layout.
use crate::child::{SHORT, equipart, refused};
use serde_json::Value;
use std::path::Path;
use tensor::safetensors::File;

/// A text whose last tenth is longer than a sequence.
const LONG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE-APACHE");

fn said(args: &[&str]) -> Vec<Value> {
    let output = equipart(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Share of the weights of a folder's feed-forwards' last products that are 0.
fn zeros(dir: &Path) -> f64 {
    let file = File::open(&dir.join("model.safetensors")).unwrap();
    let names: Vec<_> = file.names().filter(|name| name.ends_with("mlp.down_proj.weight")).collect();
    let values = |name: &&str| file.values::<f32>(name, &file.info(name).unwrap().shape).unwrap();
    let all: Vec<f32> = names.iter().flat_map(values).collect();
    assert!(all.len() > 1000, "{names:?}");
    all.iter().filter(|w| **w == 0.0).count() as f64 / all.len() as f64
}

/// Kills: a mask of another share, weights that are revived by an optimizer's moments, a folder that computes
/// something else unsplit; a row whose model began elsewhere than the one before.
#[test]
fn models_become_sparse_step_by_step_and_any_layout_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let (out, svg) = (dir.path().join("out"), dir.path().join("curve.svg"));
    let [out, svg_file] = [&out, &svg].map(|path| path.to_str().unwrap());
    let small = ["--json", "sparse", "--tokens", "8", "--features", "64", "--data", LONG];
    let rows = said(
        &[&small[..], &["--leave-out", "0,50,75", "--steps", "2", "--out", out, "--svg", svg_file]].concat(),
    );
    let of = |key: &str| -> Vec<f64> { rows.iter().filter_map(|row| row[key].as_f64()).collect() };
    assert_eq!(
        (of("left_out_percent"), of("zero_weights")),
        ([0.0, 50.0, 75.0].repeat(2), vec![0.0, 0.25, 0.375])
    );
    assert!(
        of("predicted_seconds").windows(2).all(|two| two[1] <= two[0]) && of("measured_seconds").len() == 3
    );
    let [sparse, dense] = [of("sparse"), of("dense")];
    let far = |row: usize| (sparse[row] - dense[row]).abs();
    // products of other sizes round otherwise
    assert!(far(0) < 1e-5 && far(2) > 1e-3, "{sparse:?} {dense:?}");
    let folder = |name: &str| dir.path().join("out").join(name);
    for (name, wanted) in [("sparse-0", 0.0), ("sparse-50", 0.25), ("sparse-75", 0.375), ("dense-75", 0.0)] {
        assert!((zeros(&folder(name)) - wanted).abs() < 1e-3, "{name}: {}", zeros(&folder(name)));
    }
    let eval = |layout: &str| {
        let model = folder("sparse-75");
        let args =
            ["--json", "eval", "--model", model.to_str().unwrap(), "--data", SHORT, "--layout", layout];
        said(&args)[0]["loss"].as_f64().unwrap()
    };
    let [unsplit, other, own] = ["none", "tp=2,dp=2", "tp=2:sparse/75"].map(eval);
    assert!((unsplit - own).abs() < 1e-5 && (unsplit - other).abs() < 1e-5, "{unsplit} {other} {own}");
    assert!((unsplit - eval("tp=2:sparse/90")).abs() > 1e-5, "more is left out");
    assert!(std::fs::read_to_string(svg).unwrap().contains("time of a layer, ms"));
}

/// Kills: moments that move weights which are 0, when a run goes on with more left out.
#[test]
fn a_resumed_run_leaves_more_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let train = |flags: &str, dirs: &[&str]| {
        let flags = flags.split(' ').chain(dirs.iter().copied());
        said(
            &["--json", "train", "--data", SHORT, "--seq", "16", "--batch-size", "2"]
                .into_iter()
                .chain(flags)
                .collect::<Vec<_>>(),
        );
    };
    train("--steps 2 --layout tp=2 --out", &[&path("first")]);
    let flags = ["--json", "train", "--steps", "4", "--layout", "tp=2:sparse/50", "--resume"];
    said(&[&flags[..], &[&path("first"), "--out", &path("second")]].concat());
    assert!((zeros(&dir.path().join("second")) - 0.25).abs() < 1e-3);
}

/// Kills: a share that cannot be, a rank that gets nothing, an option that is taken and ignored.
#[test]
fn bad_input_is_told_in_one_sentence() {
    let cases: [(&[&str], &str); 11] = [
        (&["sparse", "--leave-out", "100"], "--leave-out has 100; write percentages from 0 to 99"),
        (
            &["sparse", "--leave-out", "50,25"],
            "--leave-out is not in rising order; weights that have become 0 stay 0",
        ),
        (&["sparse", "--ranks", "1"], "--ranks is 1; it must be 2 to 1024"),
        (&["sparse", "--tokens", "99999999"], "--tokens is 99999999; it must be 1 to 1048576"),
        (&["sparse", "--features", "9"], "--features is 9; it must be a multiple of the ranks, 2"),
        (
            &["sparse", "--features", "8", "--leave-out", "90"],
            "--leave-out 90 leaves a rank without input: none of 4 features would be sent",
        ),
        (
            &["sparse", "--steps", "0", "--out", "x"],
            "--out is for the runs of a model, and --steps 0 trains nothing",
        ),
        (
            &["price", "--layout", "tp=2:sparse/100"],
            "sparse/100: percentage of features that are not sent must be a whole number, 0 to 99, such as sparse/50",
        ),
        (
            &["price", "--layout", "tp=2:sparse"],
            "sparse needs a number, its percentage of features that are not sent; write sparse/50",
        ),
        (
            &["price", "--layout", "tp=1:sparse/50"],
            "sparse (sparse communication) needs tp ranks, 2 or more: write tp=2:sparse/50",
        ),
        (
            &["price", "--layout", "tp=4:sparse/99"],
            "tp=4:sparse/99 does not fit a model without features left to send: tp can be 2 with sparse/99",
        ),
    ];
    for (args, says) in cases {
        refused(args, says);
    }
}
