//! The files of the repository, as the checks of the house see them.
pub(crate) mod code;
pub(crate) mod markdown;
#[path = "../../../../xtask/src/museum/place.rs"]
pub(crate) mod place;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file: its path from the repository's root, written with `/`, and its text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// A file for a test of a check.
    pub(crate) fn new(path: &str, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// True if the file is compiled for tests alone, as its place says.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }

    /// True if the path ends in `.extension`.
    pub(crate) fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|own| own == extension)
    }
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("docs lies in the workspace")
}

/// Reads every text file that git tracks or would track; without git, every one outside the build folders.
pub(crate) fn files() -> Vec<File> {
    let paths = tracked().unwrap_or_else(|| walked(root()));
    let text = |path: &PathBuf| fs::read_to_string(root().join(path)).ok(); // none: deleted, or not text
    let name = |path: PathBuf| path.to_string_lossy().replace('\\', "/");
    let files: Vec<File> = paths
        .into_iter()
        .filter_map(|path| text(&path).map(|text| File { path: name(path), text }))
        .collect();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "the list of files lacks Cargo.toml");
    files
}

fn tracked() -> Option<Vec<PathBuf>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(list).current_dir(root()).output().ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<PathBuf> = paths.split_terminator('\0').map(PathBuf::from).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(folder: &Path) -> Vec<PathBuf> {
    let skipped = [".git", "target", "docs/book"].map(|path| root().join(path));
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let (folders, files): (Vec<_>, Vec<_>) =
        entries.filter(|path| !skipped.contains(path)).partition(|path| path.is_dir());
    let files = files.iter().filter_map(|path| path.strip_prefix(root()).ok()).map(Path::to_owned);
    folders.iter().flat_map(|folder| walked(folder)).chain(files).collect()
}

/// Fails with the violations, if there are any.
#[track_caller]
pub(crate) fn none(violations: &[String]) {
    assert!(violations.is_empty(), "violations ({}):\n  {}\n", violations.len(), violations.join("\n  "));
}

#[test]
fn walking_finds_what_git_tracks() {
    let (tracked, walked) = (tracked().unwrap_or_default(), walked(root()));
    let lost: Vec<_> =
        tracked.iter().filter(|path| root().join(path).exists() && !walked.contains(path)).collect();
    assert!(lost.is_empty(), "not found by walking: {lost:?}");
}
