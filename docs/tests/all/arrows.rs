//! Dependencies between crates: which crate may know which. The first half of the file holds the checks, each
//! of which returns its violations, one line each; the second half plants some.

use std::process::Command;

use crate::circles::{self, Arrows};
use crate::floors::CRATES;
use crate::tree::code::{code, without_tests};
use crate::tree::{File, files, none, root};
use serde_json::Value;

/// A crate, the crates that its code may know, and those that its tests may know besides.
type Arrow = (&'static str, &'static [&'static str], &'static [&'static str]);
/// The crates that pages of the book may use: all but the last, the repository's own tasks.
const OF_PAGES: &[&str] = CRATES.split_last().expect("crates").1;
const ARROWS: [Arrow; 23] = [
    ("tensor", &[], &["reference"]),
    ("shape", &["tensor"], &[]),
    ("reference", &["tensor", "shape"], &[]),
    ("kernels", &["tensor", "shape"], &["reference"]),
    ("algorithms", &["tensor"], &[]),
    ("comm", &["tensor", "kernels", "algorithms"], &["reference"]),
    ("cuda", &["tensor", "kernels", "comm"], &[]),
    ("ops", &["tensor", "shape", "kernels", "comm"], &["reference"]),
    // reference: only its `proof` module
    ("layers", &["tensor", "shape", "kernels", "comm", "ops", "reference"], &[]),
    ("moe", &["tensor", "kernels", "comm", "ops", "layers"], &["reference"]),
    ("parallel", &["tensor", "kernels", "algorithms", "comm", "ops", "layers", "moe"], &["reference"]),
    ("models", &["tensor", "shape", "kernels", "comm", "ops", "layers", "parallel"], &[]),
    ("plan", &["tensor", "kernels", "algorithms", "comm", "ops", "layers", "parallel"], &[]),
    // models: for its files
    ("prove", &["tensor", "shape", "kernels", "comm", "ops", "layers", "parallel", "reference"], &["models"]),
    (
        "bench",
        &["tensor", "kernels", "algorithms", "comm", "ops", "layers", "parallel", "models", "plan", "prove"],
        &[],
    ),
    (
        "run",
        &[
            "tensor",
            "kernels",
            "algorithms",
            "comm",
            "cuda",
            "ops",
            "layers",
            "parallel",
            "models",
            "plan",
            "prove",
            "bench",
        ],
        &[],
    ),
    ("draw", &["tensor", "algorithms", "comm", "kernels", "ops", "layers", "parallel", "plan", "run"], &[]),
    (
        "equipart",
        &[
            "tensor",
            "kernels",
            "algorithms",
            "comm",
            "cuda",
            "ops",
            "layers",
            "parallel",
            "models",
            "plan",
            "prove",
            "bench",
            "run",
            "draw",
        ],
        &["reference"],
    ),
    ("outside", &["tensor", "kernels", "comm", "ops", "layers", "parallel"], &["reference", "plan", "prove"]),
    ("exercises", &["tensor", "shape", "comm", "reference"], &[]),
    ("equipart-python", &["tensor", "kernels"], &[]),
    ("docs", &[], OF_PAGES),
    ("xtask", &[], &[]),
];

/// Lists the dependencies that the table does not allow, from the output of `cargo metadata`.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let members: Vec<String> = packages.iter().map(name).collect();
    let mut wrong = Vec::new();
    for package in &packages {
        let from = name(package);
        let Some((_, code, tests)) = ARROWS.iter().find(|(name, ..)| *name == from) else {
            wrong.push(format!("crate `{from}` is not in the table of docs/tests/all/arrows.rs"));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let to = name(&dependency);
            let (allowed, kind) = match dependency["kind"].as_str() {
                Some("dev") => ([*code, *tests].concat(), "dev-dependency"),
                _ => (code.to_vec(), "dependency"),
            };
            if members.contains(&to) && !allowed.contains(&&*to) {
                wrong.push(format!(
                    "{from}/Cargo.toml: `{to}` is not an allowed {kind} of `{from}` {allowed:?}"
                ));
            }
        }
    }
    wrong
}

/// A file, its code, and the names of the modules in other files that it marks as tests.
type Stripped<'a> = (&'a File, (String, Vec<String>));

/// The modules that are tests, each as the path of its file without the ending.
fn test_modules(stripped: &[Stripped]) -> Vec<String> {
    let of = |(file, (_, modules)): &Stripped| {
        let (folder, stem) = file.path.trim_end_matches(".rs").rsplit_once('/').expect("below a folder");
        let inside = if matches!(stem, "lib" | "mod" | "main") {
            folder.to_owned()
        } else {
            format!("{folder}/{stem}")
        };
        modules.iter().map(move |module| format!("{inside}/{module}")).collect::<Vec<_>>()
    };
    stripped.iter().flat_map(of).collect()
}

/// True if a file is one of these modules, or lies in one.
fn lies_in(path: &str, modules: &[String]) -> bool {
    modules.iter().any(|m| path == format!("{m}.rs") || path.starts_with(&format!("{m}/")))
}

/// Lists the lines of `layers` that name the oracle outside the harness and outside tests.
fn oracle_named(files: &[File]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.is("rs") && file.path.starts_with("layers/src/"));
    let stripped: Vec<_> = sources.map(|file| (file, without_tests(&code(&file.text)))).collect();
    let mut exempt = test_modules(&stripped);
    exempt.push("layers/src/proof".to_owned());
    let mut wrong = Vec::new();
    for (file, (code, _)) in
        stripped.iter().filter(|(file, _)| !file.is_test() && !lies_in(&file.path, &exempt))
    {
        let named =
            code.lines().enumerate().filter(|(_, line)| words_follow(line, "reference", &["::", "as "]));
        wrong.extend(named.map(|(at, _)| {
            format!("{}:{}: names `reference` outside `proof` and `#[cfg(test)]`", file.path, at + 1)
        }));
    }
    wrong
}

/// Places that may name an axis of tokens: the crate that defines axes, measurements along one, and
/// strategies.
const NAME_AXES: [&str; 10] = [
    "comm/",
    "bench/",
    "equipart/src/bench/",
    "xtask/",
    "parallel/src/tensor/",
    "parallel/src/data/",
    "parallel/src/pipeline/",
    "parallel/src/dealing/",
    "parallel/src/attention/",
    "ops/src/cx/shards.rs",
];

/// Lists the lines outside tests that name an axis of tokens. They should ask `TokenShards`, or name
/// `Axes::TOKENS`.
fn axes_named(files: &[File]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.is("rs") && file.path.contains("/src/"));
    let stripped: Vec<_> = sources.map(|file| (file, without_tests(&code(&file.text)))).collect();
    let exempt = test_modules(&stripped);
    let mut wrong = Vec::new();
    for (file, (code, _)) in &stripped {
        if NAME_AXES.iter().any(|place| file.path.starts_with(place))
            || file.is_test()
            || lies_in(&file.path, &exempt)
        {
            continue;
        }
        let variants = ["Dp", "Cp"];
        for (at, line) in code.lines().enumerate() {
            let named = line.match_indices("Axis::").map(|(at, axis)| &line[at + axis.len()..]);
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            let is = |name: &str| {
                name.starts_with(['*', '{'])
                    || variants.iter().any(|v| name.strip_prefix(v).is_some_and(ends))
            };
            if named.into_iter().any(is) {
                wrong.push(format!(
                    "{}:{}: names an axis of tokens outside of its strategies",
                    file.path,
                    at + 1
                ));
            }
        }
    }
    wrong
}

/// Lists the files of the program that name a command from below: terminal, views and flags stand under the
/// commands, and no command stands on another.
fn commands_named(arrows: &Arrows) -> Vec<String> {
    let command = |file: &str| {
        file.strip_prefix("commands/").map(|rest| rest.split('/').next().unwrap_or(rest).to_owned())
    };
    let is_below =
        |file: &str| ["terminal", "views", "cli"].contains(&file.split('/').next().unwrap_or(file));
    let wrong = |from: &str, to: &str| match (command(from), command(to)) {
        (None, Some(_)) => is_below(from),
        (Some(one), Some(other)) => one != other,
        (_, None) => false,
    };
    let all = arrows.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    let named = all.filter(|(from, to)| wrong(from, to));
    named.map(|(from, to)| format!("equipart/src/{from}.rs names the command in {to}.rs")).collect()
}

/// True if `line` holds the word and then one of `next`.
fn words_follow(line: &str, word: &str, next: &[&str]) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let free = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let after = line[at + word.len()..].trim_start();
        free && next.iter().any(|next| after.starts_with(next))
    })
}

pub(crate) fn metadata() -> Value {
    let list = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(list).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn crates_depend_on_whom_the_design_allows() {
    let metadata = metadata();
    let members = metadata["packages"].as_array().map_or(0, Vec::len);
    assert!(members >= ARROWS.len(), "cargo metadata lists {members} crates");
    none(&wrong_arrows(&metadata));
}

#[test]
fn layers_name_the_oracle_in_proofs_alone() {
    none(&oracle_named(&files()));
}

#[test]
fn axes_are_named_by_their_strategies_alone() {
    none(&axes_named(&files()));
}

#[test]
fn no_file_stands_on_a_command() {
    none(&commands_named(&circles::arrows("equipart", &files(), false)));
}

#[test]
fn a_planted_command_is_seen() {
    let wrong = commands_named(&circles::arrows(
        "equipart",
        &[
            File::new("equipart/src/lib.rs", "mod cli; mod commands; mod views;"),
            File::new("equipart/src/cli.rs", "pub trait Run {}"),
            File::new("equipart/src/views.rs", "use crate::commands::train::Rows;"),
            File::new("equipart/src/commands.rs", "pub mod plan; pub mod train; use train::Rows;"),
            File::new(
                "equipart/src/commands/train.rs",
                "mod ended; pub struct Rows; use crate::cli::Run; use ended::End;",
            ),
            File::new("equipart/src/commands/train/ended.rs", "use super::Rows; pub struct End;"),
            File::new(
                "equipart/src/commands/plan.rs",
                "use super::train::Rows;\n#[cfg(test)]\nmod tests { use crate::commands::train::Rows; }",
            ),
        ],
        false,
    ));
    let wanted = [
        "commands/plan.rs names the command in commands/train.rs",
        "views.rs names the command in commands/train.rs",
    ];
    assert_eq!(wrong, wanted.map(|line| format!("equipart/src/{line}")));
}

#[test]
fn a_planted_axis_is_seen() {
    let wrong = axes_named(&[
        File::new("comm/src/axis.rs", "let dp = Axis::Dp;"),
        File::new("parallel/src/data/x.rs", "let dp = Axis::Dp;"),
        File::new("parallel/src/data.rs", "let dp =\n Axis::Dp;"),
        File::new(
            "layers/src/a.rs",
            "// Axis::Dp\nlet x = (Axis::Tp, Axis::ALL, Axes::TOKENS, \"Axis::Dp\");",
        ),
        File::new(
            "layers/src/b.rs",
            "let x = (Axis::Tp, comm::Axis::Dp);\n#[cfg(test)]\nmod tests { use Axis::Cp; }",
        ),
        File::new(
            "layers/src/c.rs",
            "use comm::Axis::{Dp, Tp};\n\nuse comm::Axis::*;\n#[cfg(test)]\nmod far;",
        ),
        File::new("layers/src/c/far.rs", "let cp = Axis::Cp;"),
        File::new("layers/tests/d.rs", "let cp = Axis::Cp;"),
        File::new("equipart/src/main.rs", "let other = Axis::Dpic;\nlet mut is = x == Axis::Cp;"),
    ]);
    let places: Vec<_> = wrong.iter().map(|line| line.split(": ").next().unwrap()).collect();
    let wanted = [
        "parallel/src/data.rs:2",
        "layers/src/b.rs:1",
        "layers/src/c.rs:1",
        "layers/src/c.rs:3",
        "equipart/src/main.rs:2",
    ];
    assert_eq!(places, wanted);
}

#[test]
fn a_planted_arrow_is_seen() {
    let crates = serde_json::json!({ "packages": [
        { "name": "tensor", "dependencies": [{ "name": "libc", "kind": null }, { "name": "reference", "kind": "dev" }] },
        { "name": "reference", "dependencies": [{ "name": "tensor", "kind": null }] },
        { "name": "comm", "dependencies": [{ "name": "reference", "kind": null }, { "name": "layers", "kind": "dev" }] },
        { "name": "layers", "dependencies": [{ "name": "comm", "kind": "build" }] },
        { "name": "stray", "dependencies": [] },
    ]});
    let wrong = wrong_arrows(&crates);
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    assert!(wrong[0].starts_with("comm/Cargo.toml: `reference` is not an allowed dependency of `comm`"));
    assert!(wrong[1].starts_with("comm/Cargo.toml: `layers` is not an allowed dev-dependency of `comm`"));
    assert!(wrong[2].starts_with("crate `stray` is not in the table"));
}

#[test]
fn a_planted_oracle_is_seen() {
    let wrong = oracle_named(&[
        File::new("layers/src/proof.rs", "use reference::linear;"),
        File::new("layers/src/proof/case.rs", "use reference::linear;"),
        File::new(
            "layers/src/lib.rs",
            "//! As `reference::linear`.\n#[cfg(test)]\nmod far;\n\npub use reference::f;",
        ),
        File::new("layers/src/far.rs", "use reference::linear;"),
        File::new(
            "layers/src/linear/row.rs",
            "fn f() { g(\"reference::h\") }\n#[cfg(test)]\nmod tests { use reference::i; }",
        ),
        File::new("layers/src/linear/column.rs", "let y = my_reference::f();\nlet y = reference::f();"),
        File::new("layers/src/norm.rs", "use reference as oracle;"),
        File::new("parallel/src/data.rs", "use reference::linear;"), // the check of dependencies catches it
    ]);
    let places: Vec<_> = wrong.iter().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["layers/src/lib.rs:5", "layers/src/linear/column.rs:2", "layers/src/norm.rs:1"]);
}
