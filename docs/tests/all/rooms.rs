//! Dependencies inside a crate: which of its rooms may name which. A room is a set of files and folders below
//! `src`. It names the paths behind `crate::`, where they are declared or as `lib.rs` re-exports them. Every
//! room may name the ground.

use std::collections::BTreeMap;

use crate::tree::code::{code, without_tests};
use crate::tree::{File, files, none};

/// A room: its name, its files and folders, and the rooms besides the ground that it may name.
type Room = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The ground of `parallel`: everything that a run is given: strategies, layout and steps, the stages of a
/// model, its batches, the files of its parameters.
const PARALLEL: &[Room] = &[
    (
        "ground",
        &[
            "attention",
            "batch",
            "data",
            "dealing",
            "error",
            "layout",
            "lib",
            "offload",
            "pipeline",
            "scheme",
            "stages",
            "step",
            "stored",
            "strategies",
            "tensor",
            "whole",
        ],
        &[],
    ),
    ("trainer", &["trainer"], &[]),
    ("checkpoint", &["checkpoint"], &[]),
    ("copies", &["copies"], &[]),
    ("compiled", &["compiled"], &["trainer"]),
    ("dump", &["dump"], &["trainer"]),
    ("dtype", &["dtype"], &["dump"]),
    ("network", &["network"], &[]),
    ("session", &["session"], &[]),
    ("measure", &["measure"], &[]),
    ("split", &["split"], &["session"]),
    ("budget", &["budget"], &["session"]),
    ("price", &["price"], &["budget", "checkpoint", "session", "trainer"]),
];

/// Lists the names that the files of a crate take from rooms that the table does not allow, and files that
/// have no room.
fn wrong_doors(krate: &str, rooms: &[Room], files: &[File]) -> Vec<String> {
    let src = format!("{krate}/src/");
    let sources: Vec<_> = files.iter().filter(|file| file.is("rs") && file.path.starts_with(&src)).collect();
    let stripped: Vec<_> = sources.iter().map(|file| without_tests(&code(&file.text))).collect();
    let is_test = |path: &str| {
        sources.iter().zip(&stripped).any(|(file, (_, modules))| {
            let folder = file.path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib");
            modules.iter().any(|module| {
                path == format!("{folder}/{module}.rs") || path.starts_with(&format!("{folder}/{module}/"))
            })
        })
    };
    let lib = sources.iter().position(|file| file.path == format!("{src}lib.rs"));
    let handed_on: BTreeMap<String, String> = lib.map_or_else(BTreeMap::new, |lib| {
        let names =
            stripped[lib].0.match_indices("pub use ").map(|(at, word)| &stripped[lib].0[at + word.len()..]);
        let named = |path: Vec<String>| Some((path.last()?.clone(), path.join("/")));
        names.flat_map(use_paths).filter_map(named).collect()
    });
    let mut wrong = Vec::new();
    for (file, (text, _)) in
        sources.iter().zip(&stripped).filter(|(file, _)| !file.is_test() && !is_test(&file.path))
    {
        let path = file.path[src.len()..].trim_end_matches(".rs").trim_end_matches("/mod");
        let Some((room, _, allowed)) = room_of(rooms, path) else {
            if path != "lib" {
                wrong.push(format!("{}: in no room of the table in docs/tests/all/rooms.rs", file.path));
            }
            continue;
        };
        for (at, line) in text.match_indices("crate::").map(|(at, word)| (at, &text[at + word.len()..])) {
            for named in use_paths(line) {
                let lies = handed_on.get(&named[0]).cloned().unwrap_or_else(|| named.join("/"));
                // a name declared in lib.rs itself
                let to = room_of(rooms, &lies).map_or("ground", |(to, ..)| *to);
                if to != "ground" && to != *room && !allowed.contains(&to) {
                    let line = text[..at].lines().count().max(1);
                    let named = named.join("::");
                    wrong.push(format!("{}:{line}: {room} names `{named}` of {to}", file.path));
                }
            }
        }
    }
    wrong
}

/// Returns the room of a path below `src`: the one whose file or folder is the longest beginning of the path.
fn room_of<'a>(rooms: &'a [Room], path: &str) -> Option<&'a Room> {
    let begins = |part: &str| path == part || path.starts_with(&format!("{part}/"));
    let longest =
        |(_, parts, _): &Room| parts.iter().filter(|part| begins(part)).map(|part| part.len()).max();
    rooms.iter().filter(|room| longest(room).is_some()).max_by_key(|room| longest(room))
}

/// Returns the paths of the `use` tree at the start of `text`: `a::{b, c::d}` gives `a::b` and `a::c::d`.
pub(crate) fn use_paths(text: &str) -> Vec<Vec<String>> {
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

#[test]
fn rooms_name_whom_the_table_allows() {
    let files = files();
    none(&wrong_doors("parallel", PARALLEL, &files));
}
