//! One name, one type: no two types of the workspace have the same name, whether public or private. The first
//! half of the file holds the check, which returns its violations, one line each; the second half plants
//! some.

use std::collections::BTreeMap;

use crate::tree::code::{code, without_tests};
use crate::tree::{File, files, none};

/// Names of two types, each with the reason. The oracle is written independently of the crates that it
/// judges, but in the same field's terms.
const TWICE: [(&str, &str); 17] = [
    ("Attention", "`strategy::Attention` is built into the layer of this name"),
    ("Design", "the model to build, and the oracle's"),
    ("Embedding", "`strategy::Embedding` is built into the layer of this name"),
    ("Error", "every crate has its own"),
    ("Head", "`strategy::Head` is built into the layer of this name"),
    ("Mask", "an attention's, and the oracle's"),
    ("Mlp", "`strategy::Mlp` is built into the layer of this name"),
    ("Model", "a configuration with weights, and the oracle's decoder"),
    ("Norm", "`strategy::Norm` is built into the layer of this name"),
    ("Pass", "a pass through the layers, and the oracle's"),
    ("Pending", "the values that a layer keeps for its weight half: `Layer::Pending`"),
    ("Result", "every crate has its own"),
    ("Routing", "the experts of tokens, and the oracle's"),
    ("Saved", "the values that a layer keeps for backward: `Layer::Saved`"),
    ("Sequence", "a training sequence, and the oracle's"),
    ("Tokens", "the tokens of a pass, and the oracle's"),
    ("Trainer", "a model in training, and the oracle's"),
];

/// Files that are no part of the program.
const ASIDE: [&str; 3] = ["docs/", "museum/", "peers/"];

/// The types of a file's code, in the order in which they are declared. Associated types belong to their
/// trait.
fn types(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (line, indented) = (line.trim_start(), line.starts_with(' '));
        let after = line.strip_prefix("pub").map_or(line, |rest| {
            let rest = rest
                .strip_prefix('(')
                .and_then(|inside| inside.split_once(')'))
                .map_or(rest, |(_, rest)| rest);
            rest.trim_start()
        });
        let after = after.strip_prefix("unsafe ").unwrap_or(after);
        let (kind, rest) = after.split_once(' ')?;
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let is_type = ["struct", "enum", "trait", "union"].contains(&kind) || kind == "type" && !indented;
        // In a macro a name may be a parameter, which yields an empty name here.
        (!name.is_empty() && is_type).then_some(name)
    })
}

/// Names of types that are declared in several files, and allowed ones that are not.
fn names_of_two(files: &[File], allowed: &[(&str, &str)]) -> Vec<String> {
    let mut all = BTreeMap::<String, Vec<&str>>::new();
    let is_source =
        |file: &&File| file.is("rs") && file.path.contains("/src/") && !file.path.contains("tests");
    for file in
        files.iter().filter(is_source).filter(|file| !ASIDE.iter().any(|aside| file.path.starts_with(aside)))
    {
        for name in types(&without_tests(&code(&file.text)).0) {
            let of = all.entry(name.to_owned()).or_default();
            if of.last() != Some(&&*file.path) {
                of.push(&file.path);
            }
        }
    }
    let is_allowed = |name: &str| allowed.iter().any(|(other, _)| *other == name);
    let twice = all.iter().filter(|(_, of)| of.len() > 1);
    let (known, new): (Vec<_>, Vec<_>) = twice.partition(|(name, _)| is_allowed(name));
    let stale = allowed.iter().filter(|(name, _)| !known.iter().any(|(other, _)| *other == name));
    let new = new.iter().map(|(name, of)| format!("`{name}` is declared in {}", of.join(" and ")));
    new.chain(stale.map(|(name, _)| format!("`{name}` is declared once: strike it off the list"))).collect()
}

#[test]
fn one_name_has_one_meaning() {
    none(&names_of_two(&files(), &TWICE));
}

#[test]
fn planted_names_of_two_are_seen() {
    let files = [
        File::new("comm/src/a.rs", "pub struct Step;\npub enum Span<T> {}\nstruct Own;\ntype Pair = ();"),
        File::new(
            "layers/src/b.rs",
            "    pub unsafe trait Step {}\n    type Pair = u8;\npub(super) struct Own;",
        ),
        File::new(
            "layers/src/c.rs",
            "// pub struct Span;\n#[cfg(test)]\nmod tests {\n    pub struct Span;\n}",
        ),
        File::new("docs/src/d.rs", "pub struct Span;"),
        File::new("layers/tests/e.rs", "pub struct Span;"),
        File::new("kernels/src/f.rs", "pub union Twice {}\npub fn step() {}\npub struct $any;"),
        File::new("kernels/src/g.rs", "type Twice<T> = T;\npub enum $any {}\nstruct Span2;\nstruct Span2;"),
    ];
    let wanted = [
        "`Own` is declared in comm/src/a.rs and layers/src/b.rs",
        "`Step` is declared in comm/src/a.rs and layers/src/b.rs",
        "`Once` is declared once: strike it off the list",
    ];
    assert_eq!(names_of_two(&files, &[("Twice", ""), ("Once", "")]), wanted);
}
