//! Loss scaling of runs in f16: the same bits wherever parameters rest, and what flags and files say of it.
use crate::child::{SHORT, equipart, refused};
use serde_json::Value;
use std::fs;
use std::path::Path;

const F16: [&str; 9] = ["train", "--dtype", "f16", "--seq", "16", "--data", SHORT, "--batch-size", "4"];

/// The steps of a run in f16.
fn steps(more: &[&str]) -> Vec<Value> {
    let output = equipart(&[&F16[..], more, &["--json"]].concat());
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Losses, scales and skips of four steps that begin at the largest scale.
fn seen(more: &[&str]) -> Vec<[Value; 3]> {
    let run = ["--steps", "5", "--microbatches", "2", "--loss-scale", "2097152", "--loss-scale-window", "2"];
    let all = steps(&[&run[..], more].concat());
    all.into_iter().map(|mut step| ["loss", "loss_scale", "skipped"].map(|key| step[key].take())).collect()
}

/// At one number of data and tensor ranks, and of microbatches. Kills: a scale of f16 that depends on where
/// parameters rest, on the schedule, or on what is recomputed; a schedule whose stages decide apart.
#[test]
fn f16_has_the_same_bits_wherever_parameters_rest() {
    for (first, others) in [
        ("dp=2", &["dp=2:zero1", "dp=2:zero1,recompute:selective"][..]),
        ("none", &["pp=2:gpipe", "pp=2:1f1b", "pp=2:zb-h1", "offload-file", "recompute:full/1"]),
    ] {
        let wanted = seen(&["--layout", first]);
        let skips = wanted.iter().filter(|[_, _, skipped]| *skipped == true).count();
        assert!((1..5).contains(&skips), "{wanted:?}");
        for layout in others {
            assert_eq!(seen(&["--layout", layout]), wanted, "{layout}");
        }
    }
}

/// Two models are trained in one go, and with a stop: one whose scale grows, and one with dropout that
/// first skips steps, which are no updates. Kills: a scale that begins anew in a resumed run, one that
/// counts updates for steps, so that its dropout is that of earlier ones; a flag that is ignored, a step
/// that is skipped in silence.
#[test]
fn a_resumed_run_goes_on_with_its_scale() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let skips = ["--steps", "6", "--loss-scale", "2097152", "--dropout", "0.5"];
    let grows = ["--steps", "6", "--loss-scale", "64", "--loss-scale-window", "2"];
    for (run, skipped) in [(&skips[..], true), (&grows, false)] {
        let [whole, parts] = ["whole", "parts"].map(|name| at(&format!("{name}{skipped}")));
        let all = steps(&[run, &["--out", &whole]].concat());
        assert_eq!(all[..3].iter().any(|step| step["skipped"] == true), skipped, "{all:?}");
        assert!(all[5]["skipped"] != true, "{all:?}");
        let scales: Vec<_> = all.iter().map(|step| step["loss_scale"].as_f64().unwrap()).collect();
        assert!(skipped || scales == [64.0, 64.0, 128.0, 128.0, 256.0, 256.0], "{scales:?}");
        steps(&[run, &["--out", &parts, "--stop-after", "3"]].concat());
        let output = equipart(&["train", "--resume", &parts]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for file in ["model.safetensors", "optimizer-6.safetensors"] {
            let [whole, parts] = [&whole, &parts].map(|run| fs::read(Path::new(run).join(file)).unwrap());
            assert!(whole == parts, "{file} of {run:?}");
        }
    }
    for (flag, given, begun) in [("--loss-scale", "32", "64"), ("--loss-scale-window", "3", "2")] {
        let said = format!("{flag} is {given}, but the run to resume began with {begun}");
        refused(&["train", "--resume", &at("partsfalse"), flag, given], &said);
    }
    let output = equipart(&[&F16[..], &["--steps", "1", "--loss-scale", "16777216"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("loss scale 16777216 (skipped, as gradients overflow)"), "{said}");
}

#[test]
fn flags_of_loss_scaling_are_checked() {
    let with = |more: &[&str], said: &str| refused(&[&["train", "--steps", "1"], more].concat(), said);
    with(&["--loss-scale", "4"], "--loss-scale is 4, but f32 needs no loss scaling; leave it out");
    with(
        &["--loss-scale-window", "4", "--dtype", "bf16"],
        "--loss-scale-window is 4, but bf16 needs no loss",
    );
    with(
        &["--dtype", "f16", "--loss-scale", "5"],
        "--loss-scale is 5; it must be a power of two, at most 16777216",
    );
    with(
        &["--dtype", "f16", "--loss-scale", "33554432"],
        "--loss-scale is 33554432; it must be a power of two",
    );
    with(&["--dtype", "f16", "--loss-scale", "0"], "--loss-scale is 0; it must be a power of two");
    with(&["--dtype", "f16", "--loss-scale-window", "0"], "--loss-scale-window is 0; it must be at least 1");
    with(
        &["--dtype", "f16", "--layout", "pp=2:pipedream"],
        "PipeDream updates each stage by itself, so loss scaling cannot skip a step on all stages",
    );
}
