//! Record of what passed: a digest of the files of each exhibit and exercise, in `museum/passed.txt`. With
//! it, `--changed` runs only those whose files are no longer what they were.
use super::header::{Exercise, Killer, Label};
use super::patch::{Edits, Files};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Path of the record, from the repository's root.
const RECORD: &str = "museum/passed.txt";

/// Digests by the name of an exhibit or an exercise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PassedRecord(BTreeMap<String, u64>);

impl PassedRecord {
    /// Reads the record in a checkout's root; a line that is not `name digest` is dropped, and without a
    /// record nothing has passed.
    pub(super) fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join(RECORD)).unwrap_or_default();
        let pair = |line: &str| {
            let (name, digest) = line.split_once(' ')?;
            Some((name.to_owned(), u64::from_str_radix(digest, 16).ok()?))
        };
        Self(text.lines().filter_map(pair).collect())
    }
    /// True if an item passed with this digest.
    pub(super) fn has(&self, name: &str, digest: u64) -> bool {
        self.0.get(name) == Some(&digest)
    }
    /// Notes that an item passed.
    pub(super) fn add(&mut self, name: &str, digest: u64) {
        self.0.insert(name.to_owned(), digest);
    }
    /// Drops all items but these.
    pub(super) fn keep(&mut self, names: &[&str]) {
        self.0.retain(|name, _| names.contains(&&**name));
    }
    /// Writes the record.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, root: &Path) -> Result<(), String> {
        let lines = self.0.iter().map(|(name, digest)| format!("{name} {digest:016x}\n"));
        fs::write(root.join(RECORD), lines.collect::<String>())
            .map_err(|why| format!("{RECORD} cannot be written ({why})"))
    }
}

/// Returns the digest of an exhibit's files.
pub(super) fn of_exhibit(files: (&Files, &Edits), label: &Label) -> u64 {
    digest(files, &[&label.path], &label.killed_by)
}

/// Returns the digest of an exercise's files; `all` has the exercises and exhibits that it may name.
pub(super) fn of_exercise(files: (&Files, &Edits), exercise: &Exercise, all: (&[Exercise], &[Label])) -> u64 {
    let path = |name: &String| {
        let exercise = all.0.iter().find(|other| other.name == *name).map(|other| &*other.path);
        exercise.or_else(|| all.1.iter().find(|label| label.exhibit == *name).map(|label| &*label.path))
    };
    let others = exercise.same_as.iter().chain(&exercise.beside).filter_map(path);
    let patches: Vec<_> = [&*exercise.path].into_iter().chain(others).collect();
    digest(files, &patches, &exercise.killed_by)
}

/// Hashes patches, the files that they change, and the files in which the check may be.
fn digest((files, edits): (&Files, &Edits), patches: &[&str], killer: &Killer) -> u64 {
    let mut paths: BTreeSet<PathBuf> = patches.iter().map(PathBuf::from).collect();
    let edits = patches.iter().filter_map(|patch| edits.get(*patch)).flatten();
    paths.extend(edits.map(|edit| edit.file.clone()));
    paths.extend(sources(killer).into_iter().map(PathBuf::from));
    let mut hash = Sha256::new();
    for (path, text) in paths.iter().filter_map(|path| files.get_key_value(path)) {
        hash.update(path.as_os_str().as_encoded_bytes());
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    let bytes = hash.finalize();
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Lists the files in which a test may be: `a::tests::b` of a library is in `a.rs`, `a/mod.rs` or
/// `a/tests.rs`.
fn sources(killer: &Killer) -> Vec<String> {
    let Killer::Test { krate, target, test } = killer else { return Vec::new() };
    let root = if target == "lib" { format!("{krate}/src") } else { format!("{krate}/tests/{target}") };
    let mut modules: Vec<&str> = test.split("::").collect();
    modules.pop(); // the function
    let module = |end: usize| format!("{root}/{}", modules[..end].join("/"));
    let files = |end| [module(end) + ".rs", module(end) + "/mod.rs"];
    (1..=modules.len()).flat_map(files).chain([format!("{root}.rs")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::museum::patch;

    fn files(of: &[(&str, &str)]) -> Files {
        of.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec())).collect()
    }

    /// Kills: an item that is not run again though its patch, the patched file, the file of its test, or the
    /// patch that it names differs; one that is run again for another file; another length of a file.
    #[test]
    fn items_are_run_again_when_their_files_change() {
        let patch = "Killed by: layers lib row::tests::x\n\nlayers: forward\n+x();";
        let was = [
            ("p", patch),
            ("q", "Killed by: moe lib x\n\nmoe: back\n+x();"),
            ("layers/src/col.rs", "fn forward() {}"),
            ("layers/src/row/tests.rs", "2"),
            ("moe/src/lib.rs", "fn back() {}"),
            ("README.md", "4"),
        ];
        let mut exercise: Exercise =
            super::super::header::read("p", "Killed by: layers lib row::tests::x\nBeside: q\n").unwrap();
        let mut other = exercise.clone();
        (other.name, other.path) = ("q".into(), "q".into());
        let all = [other];
        exercise.name = "p".into();
        let paths = ["p", "q"].map(str::to_owned);
        let of = |files: &Files| {
            let edits = patch::read(files, paths.iter()).unwrap();
            of_exercise((files, &edits), &exercise, (&all, &[]))
        };
        let before = of(&files(&was));
        for (at, (path, text)) in was.iter().enumerate() {
            let mut now = was;
            let text = format!("{text}!");
            now[at].1 = &text;
            assert_eq!(of(&files(&now)) == before, *path == "README.md", "{path}");
        }
        let mut record = PassedRecord::default();
        record.add("p", before);
        record.add("gone", 1);
        record.keep(&["p"]);
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("museum")).unwrap();
        assert_eq!(PassedRecord::read(folder.path()), PassedRecord::default());
        record.write(folder.path()).unwrap();
        let read = PassedRecord::read(folder.path());
        assert_eq!(read, record);
        assert!(read.has("p", before) && !read.has("p", before ^ 1) && !read.has("gone", 1));
    }
}
