//! The order of the house: names, lengths and marks that no file may have. The first half of the file holds
//! the checks, each of which returns its violations, one line each; the second half plants some.

use crate::tree::{File, files, none};

/// Lists modules whose names do not say what they hold.
fn nameless_modules(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        for name in ["utils", "common", "misc"] {
            let declares =
                |line: &str| line.split(' ').skip_while(|word| *word != "mod").nth(1) == Some(name);
            let declared =
                file.text.lines().any(|line| !line.contains("//") && declares(line.trim_end_matches(';')));
            if declared || file.path.trim_end_matches(".rs").split('/').any(|part| part == name) {
                wrong.push(format!("{}: a module called `{name}`; name it by what it holds", file.path));
            }
        }
    }
    wrong
}

/// Lists files that are too long to be read in one sitting.
fn long_files(files: &[File]) -> Vec<String> {
    let lines = |file: &File| file.text.lines().count();
    let long = files.iter().filter(|file| file.is("rs") && lines(file) > 400);
    long.map(|file| format!("{}: {} lines, at most 400 are allowed", file.path, lines(file))).collect()
}

/// Lists modules that are compiled for tests alone and whose place does not say so.
fn hidden_tests(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is("rs") && !file.is_test()) {
        let lines: Vec<_> = file.text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let is_for_tests = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
            let next = lines[at + 1..].iter().find(|line| !line.starts_with("#[doc"));
            let name = next.and_then(|next| next.split("mod ").nth(1)?.strip_suffix(';'));
            let elsewhere = next.is_some_and(|next| next.starts_with("#[path") && !next.contains("tests/"));
            if is_for_tests && (elsewhere || name.is_some_and(|name| name != "tests")) {
                wrong.push(format!("{}:{}: a module of tests outside of `tests`", file.path, at + 2));
            }
        }
    }
    wrong
}

/// Lists marks of unfinished work, and tests that do not run.
fn unfinished(files: &[File]) -> Vec<String> {
    const MARKS: [&str; 7] = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[", "ignore"),
        concat!("```", "ignore"),
        concat!("rust,", "ignore"),
    ];
    let mut wrong = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let marks = MARKS.iter().filter(|mark| line.contains(**mark));
            wrong.extend(marks.map(|mark| format!("{}:{}: `{mark}`", file.path, at + 1)));
        }
    }
    wrong
}

#[test]
fn modules_are_named_by_what_they_hold() {
    none(&nameless_modules(&files()));
}

#[test]
fn files_are_short() {
    none(&long_files(&files()));
}

#[test]
fn files_of_tests_lie_among_tests() {
    none(&hidden_tests(&files()));
}

#[test]
fn nothing_is_left_unfinished() {
    none(&unfinished(&files()));
}

#[test]
fn planted_disorder_is_seen() {
    let nameless =
        [("comm/src/utils.rs", ""), ("kernels/tests/common/mod.rs", ""), ("comm/src/lib.rs", "mod misc {}")];
    let named = [("comm/src/a.rs", "// mod misc {\nlet common = 1;"), ("docs/src/common.md", "")];
    let count = |files: &[(&str, &str)]| {
        nameless_modules(&files.iter().map(|(path, text)| File::new(path, *text)).collect::<Vec<_>>()).len()
    };
    assert_eq!((count(&nameless), count(&named)), (3, 0));

    let long = [
        File::new("a.rs", "\n".repeat(401)),
        File::new("b.rs", "\n".repeat(400)),
        File::new("c.md", "\n".repeat(401)),
    ];
    assert_eq!(long_files(&long), ["a.rs: 401 lines, at most 400 are allowed"]);

    let declared =
        "#[cfg(test)]\nmod proof;\n#[cfg(test)]\n#[path = \"tests/a.rs\"]\nmod a;\n#[cfg(test)]\nmod tests;";
    assert_eq!(
        hidden_tests(&[File::new("a.rs", declared), File::new("tests/b.rs", declared)]),
        ["a.rs:2: a module of tests outside of `tests`"]
    );

    let left = [
        "TO-DO",
        "FIX-ME",
        "to-do!(",
        "unimple-mented!(\"x\")",
        "#[-ignore = \"slow\"]",
        "```rust,-ignore",
        "ignore, todo",
    ];
    let text = left.join("\n").replace("to-do", "todo").replace('-', "");
    let wrong = unfinished(&[File::new("a.md", text)]);
    assert_eq!(wrong.len(), 6, "{wrong:?}");
    assert!(wrong[1].starts_with("a.md:2: `FIX"));
}
