//! Circles between the files of a crate: each file can be read only with all the others. The first half of
//! the file holds the check, which returns its violations, one line each; the second half plants some.

use std::collections::{BTreeMap, BTreeSet};

use crate::floors::CRATES;
use crate::tree::code::{code, without_tests};
use crate::tree::{File, files, none};

/// The files below `src`, each with the files that it names.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Most files that a circle may have.
const LARGEST: usize = 2;

/// The code of each file below `src`, without tests, by its path.
pub(crate) fn texts(krate: &str, files: &[File]) -> BTreeMap<String, String> {
    let src = format!("{krate}/src/");
    let path = |file: &File| {
        let path = file.path[src.len()..].trim_end_matches(".rs").trim_end_matches("/mod");
        if path == "main" { "lib".to_owned() } else { path.to_owned() }
    };
    let sources = files.iter().filter(|file| file.is("rs") && file.path.starts_with(&src));
    let mut all = BTreeMap::<String, String>::new();
    let mut tests = Vec::new();
    for file in sources {
        let text = code(&file.text).replace("#[cfg(all(test, not(loom)))]", "#[cfg(test)]");
        let (text, modules) = without_tests(&text.replace("#[cfg(all(test, loom))]", "#[cfg(test)]"));
        let path = path(file);
        let folder = if path == "lib" { String::new() } else { format!("{path}/") };
        tests.extend(modules.into_iter().map(|module| format!("{folder}{module}")));
        all.entry(path).or_default().push_str(&text);
    }
    let is_test = |path: &str| {
        path.split('/').any(|part| part == "tests")
            || tests.iter().any(|test| path == test || path.starts_with(&format!("{test}/")))
    };
    all.retain(|path, _| !is_test(path));
    all
}

/// Returns the paths of the `use` tree at the start of `text`: `a::{b, c::d}` gives `a::b` and `a::c::d`.
fn use_paths(text: &str) -> Vec<Vec<String>> {
    let word: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let rest = &text[word.len()..];
    let Some(deeper) = rest.strip_prefix("::").filter(|_| !word.is_empty()) else {
        let Some(mut inside) = rest.strip_prefix('{').filter(|_| word.is_empty()) else {
            return if word.is_empty() { Vec::new() } else { vec![vec![word]] };
        };
        let mut all = Vec::new();
        while !inside.trim_start().starts_with('}') {
            inside = inside.trim_start();
            all.extend(use_paths(inside));
            let end = end_of(inside);
            inside = inside[end..].trim_start_matches(',');
            if inside.is_empty() {
                break;
            }
        }
        return all;
    };
    let within = use_paths(deeper);
    if within.is_empty() {
        return vec![vec![word]];
    }
    within.into_iter().map(|path| [vec![word.clone()], path].concat()).collect()
}

/// Returns the end of an entry of a tree: a comma or a closing brace of its own.
fn end_of(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            ',' | '}' if depth == 0 => return at,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the paths that a file's `use` lines name: names that it takes in or re-exports.
fn taken(text: &str) -> Vec<Vec<String>> {
    text.match_indices("use ").flat_map(|(at, word)| use_paths(&text[at + word.len()..])).collect()
}

/// Resolves a path of a file, counted from `lib.rs`, if it begins with `crate`, `super` or a module's name.
fn absolute(file: &str, path: &[String], all: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let mut from: Vec<String> = match file {
        "lib" => Vec::new(),
        file => file.split('/').map(str::to_owned).collect(),
    };
    let (first, mut rest) = path.split_first()?;
    match first.as_str() {
        "crate" => return Some(rest.to_vec()),
        "self" => {}
        "super" => {
            from.pop();
            while rest.first().is_some_and(|next| next == "super") {
                from.pop();
                rest = &rest[1..];
            }
        }
        module if all.contains_key(&[&from[..], &[module.to_owned()]].concat().join("/")) => rest = path,
        _ => return None,
    }
    Some([&from[..], rest].concat())
}

/// Returns the files that a path leads through: those that only re-export its target, and last the one that
/// declares it.
fn way(
    path: &[String],
    all: &BTreeMap<String, String>,
    uses: &BTreeMap<&str, Vec<Vec<String>>>,
) -> Vec<String> {
    let known = |n: &usize| *n == 0 || all.contains_key(&path[..*n].join("/"));
    let n = (0..=path.len()).rev().find(known).unwrap_or_default();
    let file = if n == 0 { "lib".to_owned() } else { path[..n].join("/") };
    let Some(name) = path.get(n) else { return vec![file] };
    let from = uses[file.as_str()].iter().find(|from| from.last() == Some(name) && from.len() > 1);
    match from.and_then(|from| absolute(&file, from, all)) {
        Some(from) if from[..] != path[..=n] => {
            [vec![file], way(&[&from[..], &path[n + 1..]].concat(), all, uses)].concat()
        }
        _ => vec![file],
    }
}

/// Returns the files below `src` that each file names, where the names are declared. With `through`, also
/// those that re-export them on the way. A bare `mod` names nothing.
pub(crate) fn arrows(krate: &str, files: &[File], through: bool) -> Arrows {
    let mut all = texts(krate, files);
    all.entry("lib".to_owned()).or_default();
    let uses = all.iter().map(|(file, text)| (file.as_str(), taken(text))).collect();
    let of_file = |(file, text): (&String, &String)| {
        let starts = |word: &str| {
            let found = text.match_indices(&format!("{word}::")).map(|(at, _)| at).collect::<Vec<_>>();
            let is_first = |at: &usize| {
                let before = &text[..*at];
                !before.ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c))
                    && !before.ends_with("(in ")
            };
            found.into_iter().filter(is_first).flat_map(|at| use_paths(&text[at..])).collect::<Vec<_>>()
        };
        let folder = format!("{file}/");
        let modules = all.keys().filter_map(|other| other.strip_prefix(&folder)).filter(|m| !m.contains('/'));
        let named = ["crate", "super", "self"].into_iter().chain(modules).flat_map(starts);
        let ways = named.filter_map(|path| absolute(file, &path, &all)).map(|path| way(&path, &all, &uses));
        let lies = ways.flat_map(|way| if through { way } else { way.last().cloned().into_iter().collect() });
        (file.clone(), lies.filter(|to| to != file && to != "lib").collect())
    };
    all.iter().filter(|(file, _)| *file != "lib").map(of_file).collect()
}

/// Lists the files that name something behind `crate::` or `super::` that `lib.rs` itself declares, with its
/// name. Macros are none: wherever they are declared, their path begins there.
pub(crate) fn declared_in_lib(krate: &str, files: &[File]) -> Vec<(String, String)> {
    let mut all = texts(krate, files);
    let lib = all.entry("lib".to_owned()).or_default().clone();
    let words = ["struct", "enum", "trait", "type", "fn", "const", "static"];
    let declares =
        |name: &str| !all.contains_key(name) && words.iter().any(|word| declares(&lib, word, name));
    let mut found = Vec::new();
    for (file, text) in all.iter().filter(|(file, _)| *file != "lib") {
        for start in ["crate::", "super::"] {
            for (at, _) in text.match_indices(start) {
                for path in use_paths(&text[at..]) {
                    let path = absolute(file, &path, &all).unwrap_or_default();
                    found.extend(
                        path.first().filter(|name| declares(name)).map(|name| (file.clone(), name.clone())),
                    );
                }
            }
        }
    }
    found
}

/// True if a line of a text, not indented, declares an item of this kind and name.
fn declares(text: &str, word: &str, name: &str) -> bool {
    text.lines().filter(|line| !line.starts_with(' ')).any(|line| {
        let after = line.split_once(&format!("{word} {name}")).map(|(_, after)| after);
        after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

/// The files that a file leads to, over any number of arrows.
fn reached<'a>(from: &'a str, arrows: &'a Arrows) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        next.extend(arrows[file].iter().map(String::as_str).filter(|to| seen.insert(*to)));
    }
    seen
}

/// Circles: in each, every file leads to every other.
pub(crate) fn circles(arrows: &Arrows) -> Vec<Vec<&str>> {
    let reached: BTreeMap<&str, _> =
        arrows.keys().map(|file| (file.as_str(), reached(file, arrows))).collect();
    let circle = |from: &str| -> Vec<&str> {
        reached[from].iter().copied().filter(|to| reached[to].contains(from)).collect()
    };
    let circles = arrows.keys().map(|file| (file.as_str(), circle(file)));
    circles.filter(|(file, circle)| circle.first() == Some(file)).map(|(_, circle)| circle).collect()
}

/// Lists the circles of more than two files, as drawn from declarations and re-exports alike.
fn large_circles(krate: &str, files: &[File]) -> Vec<String> {
    let arrows = arrows(krate, files, true);
    let large = circles(&arrows).into_iter().filter(|circle| circle.len() > LARGEST);
    large.map(|circle| format!("{krate}: a circle of {} files: {}", circle.len(), circle.join(" "))).collect()
}

#[test]
fn no_circle_of_files_is_large() {
    let files = files();
    none(&CRATES.iter().flat_map(|krate| large_circles(krate, &files)).collect::<Vec<_>>());
}

#[test]
fn a_planted_circle_is_seen() {
    let mut files = vec![
        File::new("x/src/lib.rs", "pub use a::{A, b::B};\nmod a;"),
        File::new("x/src/a.rs", "pub use b::B;\nmod b;\nmod c;\nmod d;\npub struct A;"),
        File::new("x/src/a/b.rs", "use super::c::{self, C};\npub struct B;"),
        File::new("x/src/a/c.rs", "use super::d::D;\npub(in crate::a) struct C;"),
        File::new("x/src/a/d.rs", "#[cfg(test)]\nmod tests { use super::A; }\npub struct D;"),
    ];
    assert_eq!(large_circles("x", &files), [""; 0]);
    // `B`, which `a` only re-exports, leads through `a` to the file that declares it.
    files[3] = File::new("x/src/a/c.rs", "use super::B;\npub struct C;");
    assert_eq!(large_circles("x", &files), ["x: a circle of 3 files: a a/b a/c"]);
    assert_eq!(circles(&arrows("x", &files, false)), [["a/b", "a/c"]], "by declarations");
    files[3] = File::new("x/src/a/c.rs", "use super::b::B;\npub struct C;");
    assert_eq!(large_circles("x", &files), [""; 0], "of two files");
    files[3] = File::new("x/src/a/c.rs", "use super::d::D;\npub struct C;");
    for named in ["crate::A", "super::A", "super::super::A"] {
        files[4] = File::new("x/src/a/d.rs", format!("use {named};\npub struct D;"));
        let circle = "x: a circle of 4 files: a a/b a/c a/d";
        assert_eq!(large_circles("x", &files), [circle], "{named}");
    }
    files[4] = File::new("x/src/a/d.rs", "mod e;\nuse self::e::E;\npub struct D;");
    files.push(File::new("x/src/a/d/e.rs", "use crate::a::b::B;\npub struct E;"));
    assert_eq!(large_circles("x", &files), ["x: a circle of 4 files: a/b a/c a/d a/d/e"]);
}
