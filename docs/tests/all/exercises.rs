//! The exercises of chapters can be done as they are written: files and names are there, and the label of a
//! patch in `docs/break/` has each output that is quoted. `cargo xtask museum` checks that the patch makes
//! its test print it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::museum::header::{Exercise, Killer, read};
use crate::tree::place::{self, NamedItem};
use crate::tree::{File, files, none};

/// Items without a patch, each with the reason.
const UNTRIED: [(&str, &[usize], &str); 9] = [
    ("by-hand", &[1, 2, 3, 4], "a separate program, compiled and run in a second; the item quotes no output"),
    ("cannot-see", &[3], "only the whole program shows it, which takes a minute to build again"),
    ("gpu", &[1, 2, 3, 4, 5], "the test `planted_bugs_of_kernels_die` tries them"),
    ("heads", &[6], "whole models, which take a minute"),
    ("proof", &[1, 5], "whole models, which take a minute"),
    ("ranks-and-collectives", &[2], "memory is read while it is freed: the result is random"),
    ("speed", &[1, 2, 3, 4], "benchmarks, some of which ask for AVX-512"),
    ("vocabulary-and-loss", &[5], "a question"),
    ("what-a-hang-is", &[4, 5], "a question, and a hang"),
];

/// Splits the section of a chapter that says what to break, in words with one blank between them: the text
/// before the first item, then the items, counted from 1.
fn items(chapter: &str) -> Vec<String> {
    let section = chapter.split_once("\n## Break it\n").map_or("", |(_, after)| after);
    let section = section.split_once("\n## ").map_or(section, |(own, _)| own);
    let mut items = vec![String::new()];
    for line in section.lines() {
        if line.starts_with(&format!("{}. ", items.len())) {
            items.push(String::new());
        }
        let item = items.last_mut().expect("there is one");
        line.split_whitespace().for_each(|word| item.extend([word, " "]));
    }
    items
}

/// The chapter's name, and the number of the item.
fn place(exercise: &Exercise) -> Option<(&str, usize)> {
    let (chapter, number) = exercise.name.trim_end_matches(char::is_alphabetic).rsplit_once('-')?;
    Some((chapter, number.parse().ok()?))
}

/// Returns the files that an exercise's patch changes, or the patch of the same exhibit or exercise.
fn changed<'a>(files: &[File], places: &[NamedItem<'a>], exercise: &Exercise) -> Vec<&'a str> {
    let patch = match &exercise.same_as {
        None => exercise.path.clone(),
        Some(other) if other.parse::<usize>().is_ok() => format!("museum/{other}-"),
        Some(other) => format!("docs/break/{other}."),
    };
    let patches = files.iter().filter(|file| file.is("patch") && file.path.starts_with(&patch));
    let hunks = patches.flat_map(|file| place::hunks(&file.text));
    hunks.filter_map(|(at, _)| place::find(places, at).ok()?.0.to_str()).collect()
}

/// Lists the items that patches may name.
fn places(files: &[File]) -> Vec<NamedItem<'_>> {
    place::items(files.iter().map(|file| (Path::new(&file.path), file.text.as_bytes())))
}

/// Lists the parts of an exercise that its chapter does not state.
fn untold(files: &[File], places: &[NamedItem], exercise: &Exercise) -> Vec<String> {
    let says = |why: String| format!("{}: {why}", exercise.path);
    let item = place(exercise).and_then(|(chapter, number)| {
        let file = files.iter().find(|file| file.path == format!("docs/src/{chapter}.md"))?;
        let items = items(&file.text);
        Some((items[0].clone(), items.get(number)?.clone()))
    });
    let Some((head, item)) = item else {
        return vec![says("no chapter has such an item under \"Break it\"".into())];
    };
    let changed = changed(files, places, exercise);
    let mut wanted: Vec<&str> = exercise.parts().chain(changed.iter().copied()).collect();
    let mut command = String::new();
    match &exercise.killed_by {
        Killer::Compiler { says } => {
            wanted.extend(says.split(['[', ']']).find(|word| word.starts_with("E0")));
        }
        Killer::Test { krate, target, test } => {
            wanted.extend(test.rsplit("::").next());
            let tests = if target == "lib" { String::new() } else { format!(" --test {target}") };
            command = format!("cargo test -p {krate}{tests}");
        }
    }
    let mut wrong: Vec<_> =
        wanted.into_iter().filter(|part| !item.contains(part)).map(str::to_owned).collect();
    wrong.extend((!item.contains(&command) && !head.contains(&command)).then_some(command));
    wrong.extend(changed.is_empty().then(|| "any file that it changes".into()));
    wrong.into_iter().map(|part| says(format!("the item does not name {part:?}"))).collect()
}

/// Lists items of chapters without a patch that are not in `allowed`, and stale entries of `allowed`.
fn untried(files: &[File], exercises: &[Exercise], allowed: &[(&str, &[usize], &str)]) -> Vec<String> {
    let tried: BTreeSet<_> = exercises.iter().filter_map(place).collect();
    let chapters = files.iter().filter_map(|file| {
        let chapter = file.path.strip_prefix("docs/src/")?.strip_suffix(".md")?;
        Some((chapter, items(&file.text).len()))
    });
    let all: BTreeSet<_> = chapters.flat_map(|(name, n)| (1..n).map(move |item| (name, item))).collect();
    let known: BTreeSet<_> =
        allowed.iter().flat_map(|(name, items, _)| items.iter().map(|&item| (*name, item))).collect();
    let missing = all.iter().filter(|at| !tried.contains(at) && !known.contains(at));
    let missing =
        missing.map(|(chapter, n)| format!("docs/src/{chapter}.md: no patch in docs/break does item {n}"));
    let stale = known.iter().filter(|at| tried.contains(at) || !all.contains(at));
    missing.chain(stale.map(|(chapter, n)| format!("{chapter} {n} is listed as untried"))).collect()
}

/// The words of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Lists files and names in items that do not exist, and names that are not in the file named right before
/// them.
fn unknown(files: &[File]) -> Vec<String> {
    let is_code = |file: &&File| ["rs", "cu", "cuh"].iter().any(|end| file.is(end));
    let known: BTreeSet<&str> = files.iter().filter(is_code).flat_map(|file| words(&file.text)).collect();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("docs/src/")) {
        for item in items(&file.text) {
            let mut place = None; // the last named file, until another word in backticks follows
            for (at, part) in item.split('`').enumerate() {
                if at % 2 == 0 {
                    place = place.filter(|_| part == ", ");
                    continue;
                }
                let is_path =
                    part.contains('/') && [".rs", ".cu", ".cuh"].iter().any(|end| part.ends_with(end));
                let is_name = part.len() > 3
                    && part.starts_with(|c: char| c.is_ascii_lowercase())
                    && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c));
                let inside: Option<&File> = place.take();
                if is_path {
                    place = files.iter().find(|file| file.path == part);
                }
                let is_there = match (is_path, is_name, inside) {
                    (true, ..) => place.is_some(),
                    (_, true, Some(inside)) => {
                        words(part).all(|word| words(&inside.text).any(|own| own == word))
                    }
                    (_, true, None) => words(part).all(|word| known.contains(word)),
                    _ => true,
                };
                wrong.extend((!is_there).then(|| format!("{}: {part:?} does not exist", file.path)));
            }
        }
    }
    wrong
}

fn exercises(files: &[File]) -> Vec<Exercise> {
    let patches = files.iter().filter(|file| file.path.starts_with("docs/break/"));
    patches.map(|file| read(&file.path, &file.text).unwrap_or_else(|why| panic!("{why}"))).collect()
}

/// Kills: a moved file, a renamed item, another test named, an output without a patch that prints it.
#[test]
fn what_chapters_tell_to_break_is_there_and_tried() {
    let files = files();
    let exercises = exercises(&files);
    let places = places(&files);
    let mut wrong: Vec<_> = exercises.iter().flat_map(|exercise| untold(&files, &places, exercise)).collect();
    wrong.extend(untried(&files, &exercises, &UNTRIED));
    wrong.extend(unknown(&files));
    let others = exercises.iter().filter_map(|exercise| Some((exercise, exercise.beside.as_ref()?)));
    wrong.extend(
        others
            .filter(|(_, other)| exercises.iter().all(|exercise| exercise.name != **other))
            .map(|(exercise, other)| format!("{}: {other:?} is not an exercise", exercise.path)),
    );
    none(&wrong);
}

#[test]
fn planted_exercises_that_cannot_be_done_are_seen() {
    let chapter = "# A\n## Break it\n\n`cargo test -p layers NAME`.\n\n1. `layers/src/a.rs`, `gone`: `lost_1`. `sums_equal`:\n   `3 of 4\n   \
                   differ`.\n2. `layers/src/b.rs`: what?\n\n## Questions\n\n1. `lost`?\n";
    let patch = |says: &str, killer: &str| {
        File::new(
            "docs/break/a-1.patch",
            format!("Killed by: {killer}\nSays: {says}\n\nlayers: a::broken\n+x();\n"),
        )
    };
    let seen = |says: &str, killer: &str, code: &str| {
        let code = File::new("layers/src/a.rs", format!("{code} fn broken() {{}}"));
        let files = [File::new("docs/src/a.md", chapter), patch(says, killer), code];
        let exercises = exercises(&files);
        let mut wrong = untold(&files, &places(&files), &exercises[0]);
        wrong.extend(untried(&files, &exercises, &[("a", &[3], "")]));
        wrong.extend(unknown(&files));
        wrong
    };
    let rest = [
        "docs/src/a.md: no patch in docs/break does item 2",
        "a 3 is listed as untried",
        "docs/src/a.md: \"layers/src/b.rs\" does not exist",
    ];
    assert_eq!(seen("3 of 4 differ", "layers lib t::sums_equal", "gone sums_equal lost_1"), rest);
    assert_eq!(
        seen("3 … 5 differ", "moe all t::all_equal", "sums_equal")[..4],
        [
            "docs/break/a-1.patch: the item does not name \"5 differ\"",
            "docs/break/a-1.patch: the item does not name \"all_equal\"",
            "docs/break/a-1.patch: the item does not name \"cargo test -p moe --test all\"",
            rest[0],
        ]
    );
    assert_eq!(
        seen("3", "the compiler: error[E0308]: x", "sums_equal")[..1],
        ["docs/break/a-1.patch: the item does not name \"E0308\""]
    );
    assert!(
        seen("3", "layers lib sums_equal", "sums_equal")
            .contains(&"docs/src/a.md: \"gone\" does not exist".into())
    );
}
