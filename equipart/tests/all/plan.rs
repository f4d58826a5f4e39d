//! `plan`: its recommendation is what other commands accept.
use crate::child::{SHORT, equipart, refused};
use serde_json::Value;

const JOB: [&str; 6] = ["--seq", "64", "--batch-size", "8", "--dtype", "f32"];

fn planned(args: &[&str]) -> Vec<Value> {
    let output = equipart(&[&["plan", "--json"], args, &JOB].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    all.iter().filter(|line| line["parts"].is_object()).for_each(adds_up);
    all
}

/// Checks that the parts of a time add up to it, but for rounding.
fn adds_up(plan: &Value) {
    let sum: f64 = plan["parts"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
    assert!((sum / plan["seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{sum}: {plan}");
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
        equipart(&[&["train", "--steps", "1", "--data", SHORT], &JOB[..], &of].concat()).status.code()
    };
    assert_eq!((train(bytes), train(bytes - 1)), (Some(0), Some(2)), "{best}");
    assert_eq!(
        (last["proof"]["equal"].as_bool(), last["proof"]["layout"].as_str()),
        (Some(true), Some(layout))
    );
    assert!(last["steps"].as_array().unwrap().len() > 2, "{last}");
}

/// Kills: a call whose bytes no plan counts, or counts twice.
#[test]
fn plans_send_what_their_prices_send() {
    let plans = planned(&["--devices", "4"]);
    let plans = plans.iter().filter(|plan| plan["layout"].is_string()).collect::<Vec<_>>();
    assert_eq!(plans.len(), 10);
    for plan in plans {
        let (layout, microbatches) = (plan["layout"].as_str().unwrap(), plan["microbatches"].to_string());
        let of = ["price", "--json", "--layout", layout, "--microbatches", &microbatches];
        let output = equipart(&[&of, &JOB[..]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let sent: Vec<_> = rows.map(|row| row["traffic_bytes"].clone()).collect();
        assert!(sent.contains(&plan["sent_bytes"]), "{plan}: {sent:?}");
    }
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
    refused(&all, "no layout of the model uses all 5 devices for 2 sequences; 4 devices could");
    let none = plan(&["--devices", "1", "--memory", "1kB"]);
    refused(&none, "nothing fits into 1.00 kB on 1 device: the least is ");
}

/// Kills: a rank that holds more than the plan of its texts says, memory that no run needs, a plan for
/// training in the place of one for texts.
#[test]
fn texts_fit_the_memory_of_their_plan_and_not_one_byte_less() {
    let sizes = ["--generate", "--prompt", "4", "--new", "3", "--batch-size", "2", "--dtype", "f32"];
    for goal in ["throughput", "latency", "memory"] {
        let args = [&["plan", "--json", "--devices", "2", "--goal", goal], &sizes[..]].concat();
        let output = equipart(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let plans: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        plans.iter().filter(|line| line["parts"].is_object()).for_each(adds_up);
        for plan in plans.iter().filter(|plan| plan["texts"] == 2) {
            let (layout, bytes) = (plan["layout"].as_str().unwrap(), plan["peak_bytes"].as_u64().unwrap());
            let generate = |bytes: u64| {
                let prompts = ["--prompt-ids", "5,6,7,8", "--prompt-ids", "9,3,2,1", "--max-new", "3"];
                let limit = bytes.to_string();
                let of = ["generate", "--greedy", "--layout", layout, "--memory-limit", &limit];
                equipart(&[&of, &prompts[..]].concat()).status.code()
            };
            assert_eq!((generate(bytes), generate(bytes - 1)), (Some(0), Some(2)), "{plan}");
        }
        assert!(goal == "latency" || plans.iter().any(|plan| plan["texts"] == 2), "{goal}: {text}");
    }
    for (given, ignored) in [("--seq", "--prompt <PROMPT>"), ("--optimizer", "--new <NEW>")] {
        let value = if given == "--seq" { "64" } else { "adamw" };
        let flag = ignored.split(' ').next().unwrap();
        let says = format!("cannot be used with '{ignored}'");
        refused(&["plan", given, value, flag, "5"], &says);
    }
    refused(&["plan", "--goal", "latency"], "--goal latency is for --generate; ");
    let long = ["plan", "--generate", "--prompt", "500", "--new", "500"];
    refused(&long, "--prompt is 500 and --new 500, together 1000; the model has 512 positions");
    let none = ["plan", "--generate", "--devices", "1", "--memory", "1kB"];
    refused(&none, "nothing fits into 1.00 kB on 1 device: the least is ");
}

/// Kills: a configuration that the book plans for and no reader has, or whose sizes are not the published
/// ones (8.03, 70.55 and 405.85 billion parameters).
#[test]
fn models_that_the_book_plans_for_are_there() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/models");
    let parameters = |name: &str| {
        let config = format!("{folder}/{name}.json");
        let output = equipart(&["price", "--json", "--config", &config, "--layout", "none", "--seq", "8"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let rank: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        rank["parameters"].as_u64().unwrap()
    };
    for (name, wanted) in
        [("llama-3-8b", 8_030_261_248), ("llama-3-70b", 70_553_706_496), ("llama-3-405b", 405_853_388_800)]
    {
        assert_eq!(parameters(name), wanted, "{name}");
        let page = std::fs::read_to_string(format!("{folder}/../../src/choosing-a-layout.md")).unwrap();
        assert!(page.contains(&format!("--config docs/examples/models/{name}.json")), "{name}");
    }
}
