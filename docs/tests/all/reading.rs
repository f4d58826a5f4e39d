//! Amount of reading: circles between the files of `ops` and `layers`, and the types that a reader of one
//! strategy meets. The first half of the file holds the checks, each of which returns its violations, one
//! line each; the second half plants some.

use std::collections::{BTreeMap, BTreeSet};

use crate::circles::{Arrows, arrows, circles};
use crate::tree::code::{code, without_tests};
use crate::tree::{File, files, none};

/// Circles of files of `layers`, and of `ops` below it: the crate, the files, and why they name each other.
const CIRCLES: &[(&str, &[&str], &str)] = &[
    ("ops", &["param/placement", "param/placement/cuts"], "a placement has the cuts that it places"),
    ("layers", &["build", "build/strategy"], "a builder holds strategies, and is passed to them"),
    (
        "layers",
        &["proof/case", "proof/lies"],
        "the inputs of a layer lie on its ranks, and a layer under proof takes and returns values that lie there",
    ),
];

/// Lists circles of files that are not known, and known ones that are gone.
fn other_circles(arrows: &Arrows, known: &[&[&str]]) -> Vec<String> {
    let found: Vec<_> = circles(arrows).into_iter().filter(|circle| circle.len() > 1).collect();
    let new = found.iter().filter(|circle| !known.contains(&&circle[..]));
    let gone = known.iter().filter(|circle| !found.iter().any(|found| found[..] == ***circle));
    let new = new.map(|circle| format!("a circle: {}", circle.join(" ")));
    new.chain(gone.map(|circle| format!("no circle: {}; remove it from the list", circle.join(" "))))
        .collect()
}

/// Returns the words of a text that may be types: not those that a `use std` line brings, nor variants of an
/// enum, behind its name or in its declaration.
fn capital(text: &str) -> BTreeSet<&str> {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = |text| str::split(text, move |c: char| !in_word(c)).filter(|word| !word.is_empty());
    let of_std: BTreeSet<&str> = text
        .match_indices("use std::")
        .flat_map(|(at, _)| words(text[at..].split(';').next().unwrap()))
        .collect();
    let is_variant = |word: &str| {
        let before = &text[..word.as_ptr() as usize - text.as_ptr() as usize];
        let of = before.strip_suffix("::").and_then(|before| before.rsplit(|c| !in_word(c)).next());
        let declared =
            before.ends_with("\n    ") && text[before.len() + word.len()..].starts_with(['(', ',', ' ']);
        declared || of.is_some_and(|of| of.starts_with(char::is_uppercase))
    };
    words(text)
        .filter(|word| word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase))
        .filter(|word| !of_std.contains(word) && !is_variant(word))
        .collect()
}

/// Returns the files that declare each type, in the crates that are read.
fn declared(files: &[File]) -> BTreeMap<String, Vec<&str>> {
    let mut all = BTreeMap::<String, Vec<&str>>::new();
    let aside = ["docs/", "museum/", "reference/", "xtask/"];
    let sources = files.iter().filter(|file| file.is("rs") && file.path.contains("/src/"));
    for file in sources.filter(|file| !aside.iter().any(|aside| file.path.starts_with(aside))) {
        for line in without_tests(&code(&file.text)).0.lines().filter(|line| !line.starts_with(' ')) {
            let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
            let Some((kind, rest)) = line.split_once(' ') else { continue };
            if ["struct", "enum", "trait", "type"].contains(&kind) {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                all.entry(name.to_owned()).or_default().push(&file.path);
            }
        }
    }
    all
}

/// Returns the types of other files that a text names, and the types that the functions it calls return, if
/// these are in the files `from`.
fn met(path: &str, text: &str, files: &[File], from: &[&str]) -> BTreeSet<String> {
    let declared = declared(files);
    let known = |word: &&str| declared.get(*word).is_some_and(|at| !at.contains(&path));
    let mut all: BTreeSet<String> = capital(text).into_iter().filter(known).map(str::to_owned).collect();
    for file in files.iter().filter(|file| from.contains(&&*file.path)) {
        let code = without_tests(&code(&file.text)).0;
        for (at, word) in code.match_indices("fn ") {
            let head = &code[at + word.len()..];
            let head = &head[..head.find(['{', ';']).unwrap_or(head.len())];
            let name: String = head.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_called = [format!(".{name}("), format!(" {name}("), format!("::{name}(")];
            if name != "new" && is_called.iter().any(|call| text.contains(call)) {
                let gives = head.rsplit_once("->").map_or("", |(_, gives)| gives);
                all.extend(capital(gives).into_iter().filter(known).map(str::to_owned));
            }
        }
    }
    for associated in
        ["In", "Out", "Saved", "Pending", "Self", "Place", "Elem", "Wide", "Item", "Copy", "From", "Into"]
    {
        all.remove(associated); // of a trait named itself, or of the prelude
    }
    all
}

#[test]
fn files_of_layers_name_each_other_one_way() {
    for krate in ["ops", "layers"] {
        let known: Vec<_> =
            CIRCLES.iter().filter(|(of, ..)| *of == krate).map(|(_, files, _)| *files).collect();
        none(&other_circles(&arrows(krate, &files(), false), &known));
    }
}

/// Counts the types of the whole file, its proof included.
#[test]
fn a_strategy_is_read_with_twenty_types() {
    let (path, files) = ("layers/src/linear/column.rs", files());
    let column = files.iter().find(|file| file.path == path).expect("the first strategy");
    let from =
        ["handles/split", "handles/stream", "handles/weight", "cx", "operators/bias", "operators/gradients"];
    let from = from.map(|file| format!("ops/src/{file}.rs"));
    let met = met(path, &code(&column.text), &files, &from.each_ref().map(|file| &**file));
    assert!(met.contains("Stream") && met.contains("Partial") && met.contains("LayerInput"), "{met:?}");
    assert!(met.len() <= 20, "{} types: {met:?}", met.len());
}

/// Files that a batch passes through from the command to a strategy.
const WAY: [&str; 12] = [
    "equipart/src/commands/train.rs",
    "run/src/train/run.rs",
    "run/src/train/rank.rs",
    "parallel/src/session.rs",
    "parallel/src/trainer.rs",
    "parallel/src/trainer/dealt.rs",
    "parallel/src/stages.rs",
    "layers/src/build/stage.rs",
    "layers/src/model/chunk.rs",
    "layers/src/model/block.rs",
    "layers/src/build/part.rs",
    "layers/src/linear/column.rs",
];

/// Counts the types of other files that these files name. Code that builds a model, reads data or prices it
/// is not included.
/// beside the way.
#[test]
fn the_way_from_train_to_a_strategy_is_read_with_a_hundred_types() {
    let files = files();
    let mut all = BTreeSet::new();
    for path in WAY {
        let file = files.iter().find(|file| file.path == path).expect("a file of the way");
        all.extend(met(path, &without_tests(&code(&file.text)).0, &files, &[]));
    }
    assert!(all.contains("Trainer") && all.contains("Stages"), "{all:?}");
    assert!(all.len() <= 100, "{} types: {all:?}", all.len());
}

mod tests {
    use super::*;

    /// Kills: a circle of three files not reported, a circle through a re-exported name not reported, a stale
    /// entry of the known arrows.
    #[test]
    fn a_circle_is_told() {
        let files = [
            File::new("x/src/lib.rs", "pub use a::A;\nmod a;\nmod b;\nmod c;"),
            File::new("x/src/a.rs", "use crate::b::B;\npub struct A;"),
            File::new("x/src/b.rs", "use super::c::{self, C};\npub struct B;"),
            File::new("x/src/c.rs", "use crate::A;\n#[cfg(test)]\nmod tests { use crate::b; }"),
        ];
        let arrows = arrows("x", &files, false);
        assert_eq!(other_circles(&arrows, &[]), ["a circle: a b c"]);
        assert_eq!(other_circles(&arrows, &[&["a", "b", "c"]]), [""; 0]);
        assert_eq!(
            other_circles(&arrows, &[&["a", "b", "c"], &["b", "c"]]),
            ["no circle: b c; remove it from the list"]
        );
    }

    /// Kills: types of the file itself counted, types returned by called functions not counted.
    #[test]
    fn types_that_are_met_are_those_named_and_given() {
        let files = [
            File::new("x/src/a.rs", "use crate::Bee;\nstruct Own;\nfn f(b: Bee) { b.given(); Own }"),
            File::new(
                "x/src/b.rs",
                "pub struct Bee;\npub struct Cue;\npub struct Dee;\nimpl Bee { fn given(&self) -> Result<Cue> {} fn other() -> Dee {} }",
            ),
        ];
        let met = met("x/src/a.rs", &files[0].text, &files, &["x/src/b.rs"]);
        assert_eq!(met.iter().collect::<Vec<_>>(), ["Bee", "Cue"]);
    }
}
