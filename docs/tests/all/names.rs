//! One word, one idea: no two public types of the workspace have one name. The first half of the file holds
//! the check, which returns its violations, one line each; the second half plants some.

use std::collections::BTreeMap;

use crate::tree::code::{code, without_tests};
use crate::tree::{File, files, none};

/// Names that have two meanings, each with the reason.
const TWICE: [(&str, &str); 8] = [
    ("Attention", "`strategy::Attention` is the description, and is written so; the other is the layer"),
    ("Case", "the subject of a proof: a layer's is a trait, a model's is drawn and saved as a line of JSON"),
    ("Embedding", "`strategy::Embedding` is the description, and is written so; the other is the layer"),
    ("Head", "`strategy::Head` is the description, and is written so; the other is the layer"),
    ("Mlp", "`strategy::Mlp` is the description, and is written so; the other is the layer"),
    ("Norm", "`strategy::Norm` is the description, and is written so; the other is the layer"),
    (
        "Pending",
        "tensors that a layer keeps for its weight half, named as `Layer::Pending` is; in the layer's module",
    ),
    ("Saved", "tensors that a layer keeps for backward, named as `Layer::Saved` is; in the layer's module"),
];

/// Names that every crate has, and crates that speak for themselves.
const OWN: [&str; 2] = ["Error", "Result"];
const ASIDE: [&str; 5] = ["docs/", "museum/", "peers/", "reference/", "xtask/"];

/// The public types of a file's code, in the order in which they are declared.
fn public_types(text: &str) -> impl Iterator<Item = &str> {
    let declared = text.lines().filter_map(|line| line.trim_start().strip_prefix("pub "));
    declared.filter_map(|line| {
        let line = line.strip_prefix("unsafe ").unwrap_or(line);
        let (kind, rest) = line.split_once(' ')?;
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        // In a macro a name may be a parameter, which the reading leaves empty.
        (!name.is_empty() && ["struct", "enum", "trait", "type", "union"].contains(&kind)).then_some(name)
    })
}

/// Lists names of public types that are declared in several files, and allowed ones that are not.
fn names_of_two(files: &[File], allowed: &[(&str, &str)]) -> Vec<String> {
    let mut all = BTreeMap::<String, Vec<&str>>::new();
    let sources = files.iter().filter(|file| file.is("rs") && file.path.contains("/src/"));
    for file in sources.filter(|file| !ASIDE.iter().any(|aside| file.path.starts_with(aside))) {
        for name in public_types(&without_tests(&code(&file.text)).0) {
            all.entry(name.to_owned()).or_default().push(&file.path);
        }
    }
    let is_allowed = |name: &str| allowed.iter().any(|(other, _)| *other == name);
    let twice = all.iter().filter(|(name, of)| of.len() > 1 && !OWN.contains(&&***name));
    let (known, new): (Vec<_>, Vec<_>) = twice.partition(|(name, _)| is_allowed(name));
    let stale = allowed.iter().filter(|(name, _)| !known.iter().any(|(other, _)| *other == name));
    let new = new.iter().map(|(name, of)| format!("`{name}` is declared in {}", of.join(" and ")));
    new.chain(stale.map(|(name, _)| format!("`{name}` is declared once: remove it from the list"))).collect()
}

#[test]
fn one_name_has_one_meaning() {
    none(&names_of_two(&files(), &TWICE));
}

#[test]
fn planted_names_of_two_are_seen() {
    let files = [
        File::new(
            "comm/src/a.rs",
            "pub struct Step;\npub enum Span<T> {}\npub type Result = ();\nstruct Own;",
        ),
        File::new("layers/src/b.rs", "    pub unsafe trait Step {}\npub type Result = u8;\npub struct Own;"),
        File::new(
            "layers/src/c.rs",
            "// pub struct Span;\n#[cfg(test)]\nmod tests {\n    pub struct Span;\n}",
        ),
        File::new("reference/src/d.rs", "pub struct Span;"),
        File::new("layers/tests/e.rs", "pub struct Span;"),
        File::new("kernels/src/f.rs", "pub union Twice {}\npub fn step() {}\npub struct $any;"),
        File::new("kernels/src/g.rs", "pub type Twice<T> = T;\npub enum $any {}"),
    ];
    let wanted = [
        "`Step` is declared in comm/src/a.rs and layers/src/b.rs",
        "`Once` is declared once: remove it from the list",
    ];
    assert_eq!(names_of_two(&files, &[("Twice", ""), ("Once", "")]), wanted);
}
