//! `plan`: its recommendation is what other commands accept.
use crate::child::{equipart, refused};
use serde_json::Value;

const JOB: [&str; 6] = ["--seq", "64", "--batch-size", "8", "--dtype", "f32"];

fn planned(args: &[&str]) -> Vec<Value> {
    let output = equipart(&[&["plan", "--json"], args, &JOB].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Kills: a rank that holds more than the plan says, memory that a plan counts and no run needs, a proof of
/// another layout.
#[test]
fn training_fits_the_memory_of_its_plan_and_not_one_byte_less() {
    let plans = planned(&["--devices", "2", "--prove"]);
    let (best, last) = (&plans[0], plans.last().unwrap());
    let layout = best["layout"].as_str().unwrap();
    let [microbatches, bytes] = ["microbatches", "peak_bytes"].map(|key| best[key].as_u64().unwrap());
    let train = |bytes: u64| {
        let [microbatches, bytes] = [microbatches, bytes].map(|n| n.to_string());
        let of = ["--layout", layout, "--microbatches", &microbatches, "--memory-limit", &bytes];
        equipart(&[&["train", "--steps", "1"], &JOB[..], &of].concat()).status.code()
    };
    assert_eq!((train(bytes), train(bytes - 1)), (Some(0), Some(2)), "{best}");
    assert_eq!(
        (last["proof"]["equal"].as_bool(), last["proof"]["layout"].as_str()),
        (Some(true), Some(layout))
    );
    assert!(last["steps"].as_array().unwrap().len() > 2, "{last}");
}

/// Kills: a plan that fits nowhere without what would do, devices that stay idle unsaid or in spite of
/// --all-devices.
#[test]
fn what_does_not_fit_is_said_with_what_would() {
    let plan = |more: &[&'static str]| [&["plan", "--batch-size", "2", "--seq", "64"], more].concat();
    let idle = equipart(&plan(&["--devices", "5"]));
    let says = String::from_utf8(idle.stdout).unwrap();
    assert!(idle.status.success() && says.contains("of 5 devices; "), "{says}");
    let all = plan(&["--devices", "5", "--all-devices"]);
    refused(&all, "no layout of the model uses all 5 devices for steps of 2 sequences; 4 devices could");
    let none = plan(&["--devices", "1", "--memory", "1kB"]);
    refused(&none, "nothing fits into 1.00 kB on 1 device: the least is ");
}
