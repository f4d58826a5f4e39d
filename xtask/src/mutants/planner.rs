//! Bugs of the planner, of prices, of found shardings, of sparse messages and of optimizer state: words of a
//! source are replaced in a copy of the tree, and the tests of what they are in must fail. The list is
//! `plan/mutants.txt`.
use crate::museum::patch::{self, Edit, Files};
use crate::museum::place::NamedItem;
use crate::museum::scratch::{self, target};
use crate::task::{cargo, root};
use std::fs;
use std::path::Path;

/// The list, from the root. A line has a place, words that it has once, and the words of the bug.
const LIST: &str = "plan/mutants.txt";
/// Tests that run under a bug of sparse messages, of optimizer state, of a layer's graph, of a model's list
/// of blocks, and under each other bug.
const OF_SPARSE: [&str; 2] = [
    "test --quiet --package parallel --lib sparse",
    "test --quiet --package prove --test all strategies::every",
];
const OF_STATE: [&str; 7] = [
    "test --quiet --package ops --lib optimizer::",
    "test --quiet --package layers --lib decay",
    "test --quiet --package outside --lib counted::",
    "test --quiet --package parallel --lib whole_matrices",
    "test --quiet --package parallel --lib coded_moments",
    "test --quiet --package parallel --lib loss_scal",
    "test --quiet --package prove --test all layouts::adamw",
];
const OF_GRAPHS: [&str; 2] =
    ["test --quiet --package layers --lib graph::", "test --quiet --package prove --test all graphs::"];
const OF_BLOCKS: [&str; 2] =
    ["test --quiet --package ops --lib rotary::", "test --quiet --package outside --lib mixed::tests::four"];
const TESTS: [&str; 2] = ["test --quiet --package plan", "test --quiet --package parallel --lib price::"];

/// Reads the edits of a line; `\|` stands for a bar in words.
///
/// # Errors
/// If it does not apply to these files.
fn read(files: &Files, items: &[NamedItem], line: &str) -> Result<Vec<Edit>, String> {
    let parts: Vec<String> = line.split(" | ").map(|part| part.replace(r"\|", "|")).collect();
    let [place, words, bug] = &parts[..] else {
        return Err(format!("{LIST}: `{line}` is not PLACE | WORDS | BUG"));
    };
    patch::edits(files, items, LIST, &[(place, vec![&format!("-{words}"), &format!("+{bug}")])])
}

/// Tries all bugs. Returns a line for each, as the proofs print theirs.
///
/// # Errors
/// If a line of the list does not apply or does not compile.
pub(super) fn tried() -> Result<String, String> {
    let list =
        fs::read_to_string(root().join(LIST)).map_err(|why| format!("{LIST} cannot be read ({why})"))?;
    let target = target()?;
    let files = scratch::tracked(root())?;
    let tree = scratch::make(files.clone(), &target.join("planner"), Vec::new(), &[])?;
    let items = patch::items(&files);
    let mut printed = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let edits = read(&files, &items, line)?;
        let file = edits[0].file.clone();
        let mut planted = Files::from([(file.clone(), files[&file].clone())]);
        patch::make(&mut planted, edits)?;
        let write = |files: &Files| {
            fs::write(tree.join(&file), &files[&file]).map_err(|why| format!("{} ({why})", file.display()))
        };
        write(&planted)?;
        let file = file.to_string_lossy();
        let tests = match &*file {
            file if file.ends_with("/features.rs") || file.ends_with("/sent.rs") => &OF_SPARSE[..],
            file if ["/param/", "/optimizer", "/checkpoint/", "/adamw_8bit"]
                .iter()
                .any(|of| file.contains(of)) =>
            {
                &OF_STATE
            }
            file if ["shape/src/block", "/chunk/build", "/rotary"].iter().any(|of| file.contains(of)) => {
                &OF_BLOCKS
            }
            file if file.starts_with("layers/") => &OF_GRAPHS,
            _ => &TESTS,
        };
        let end = tested((&tree, tests), &target);
        write(&files)?;
        let end = if end.map_err(|why| format!("{line}\n{why}"))? { "survived" } else { "killed" };
        println!("{end}: {line}");
        printed.push(format!("mutants | {file} | bug | {end} | 1"));
    }
    Ok(printed.join("\n"))
}

/// Returns true if all these tests pass in a tree.
///
/// # Errors
/// If they do not compile.
fn tested((tree, tests): (&Path, &[&str]), target: &Path) -> Result<bool, String> {
    for tests in tests {
        for more in [&["--no-run"][..], &[]] {
            let mut command = cargo();
            command.current_dir(tree).env("CARGO_TARGET_DIR", target).env("RUST_BACKTRACE", "0");
            let output = command.args(tests.split(' ')).args(more).output();
            let output = output.map_err(|why| format!("mutants cannot start `cargo {tests}`: {why}."))?;
            match (output.status.success(), more.is_empty()) {
                (true, _) => {}
                (false, true) => return Ok(false),
                (false, false) => return Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line of the list applies to the tree as it is. Kills: a bug whose words have moved, and that so
    /// would be tried by nobody; words that occur twice.
    #[test]
    fn all_bugs_of_the_list_apply() {
        let list = fs::read_to_string(root().join(LIST)).unwrap();
        let lines: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() >= 30, "{} bugs", lines.len());
        let files = scratch::tracked(root()).unwrap();
        let items = patch::items(&files);
        let stuck: Vec<_> = lines.iter().filter_map(|line| read(&files, &items, line).err()).collect();
        assert!(stuck.is_empty(), "{}", stuck.join("\n"));
        let files = Files::from([("a/src/lib.rs".into(), b"fn f() { x | y }".to_vec())]);
        let why = |line| read(&files, &patch::items(&files), line).unwrap_err();
        assert_eq!(read(&files, &patch::items(&files), r"a: f | x \| y | x").unwrap().len(), 1);
        assert_eq!(
            why("a: f | x | y | x"),
            "plan/mutants.txt: `a: f | x | y | x` is not PLACE | WORDS | BUG"
        );
        assert_eq!(why("a: f | z | x"), "plan/mutants.txt: a: f has 0 times the words `z`");
    }
}
