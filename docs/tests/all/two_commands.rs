//! The README's two commands: xtask's reader of them is included, because `cargo test` leaves xtask out; and
//! the first one has one program to run.
#[path = "../../../xtask/src/readme.rs"]
mod readme;

use crate::arrows::metadata;
use serde_json::Value;

/// Names of the programs of the members that a plain `cargo run` looks at.
fn programs(metadata: &Value) -> Vec<&str> {
    let looked_at = metadata["workspace_default_members"].as_array().expect("members");
    let packages = metadata["packages"].as_array().expect("packages");
    let own = packages.iter().filter(|package| looked_at.contains(&package["id"]));
    let targets = own.flat_map(|package| package["targets"].as_array().expect("targets"));
    let is_program =
        |target: &&Value| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"bin".into()));
    targets.filter(is_program).filter_map(|target| target["name"].as_str()).collect()
}

/// Kills: a second program, for which `cargo run` asks which one is meant.
#[test]
fn the_first_command_has_one_program_to_run() {
    assert_eq!(programs(&metadata()), ["equipart"]);
}

/// Kills: programs of members that `cargo run` leaves out, and examples, taken for others.
#[test]
fn a_planted_second_program_is_seen() {
    let package = |id: &str, kind: &str| serde_json::json!({ "id": id, "targets": [{ "name": id, "kind": [kind] }, { "name": "x", "kind": ["lib"] }] });
    let packages = [package("a", "bin"), package("b", "bin"), package("c", "example"), package("d", "bin")];
    let metadata = serde_json::json!({ "packages": packages, "workspace_default_members": ["a", "b", "c"] });
    assert_eq!(programs(&metadata), ["a", "b"]);
}
