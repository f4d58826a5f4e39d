//! The scratch copy: the tracked files with the switch, and every exhibit behind it.
use super::patch::{self, Edit, Files};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate whose examples the code that does not compile becomes.
const REFUSER: &str = "layers";

/// Switch that patches ask: `exhibit!(7)` or `exhibit!("heads-1")`. It is written into the copy alone.
const SWITCH: &str = "\
//! Exhibits of the museum and exercises of the book that are on: the variable `EXHIBIT` names them.
use std::sync::LazyLock;

static ON: LazyLock<String> = LazyLock::new(|| std::env::var(\"EXHIBIT\").unwrap_or_default());

/// Returns true if this patch is on.
pub fn on(name: &str) -> bool {
    !ON.is_empty() && ON.split(' ').any(|on| on == name)
}

/// True if an exhibit is on.
#[macro_export]
macro_rules! exhibit {
    ($name:literal) => {
        $crate::exhibit::on(concat!($name))
    };
}
";

/// The scratch copy, and its target folder: the workspace's, where third-party crates are built already.
pub(crate) struct ScratchCopy {
    pub(crate) tree: PathBuf,
    pub(crate) target: PathBuf,
}

/// Returns cargo's target folder, from `cargo metadata`.
pub(crate) fn target() -> Result<PathBuf, String> {
    let output =
        crate::task::cargo().args(["metadata", "--no-deps", "--format-version=1", "--offline"]).output();
    let output = output.map_err(|why| format!("cargo cannot be started ({why})"))?;
    let metadata: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
    let folder = metadata.and_then(|m| m["target_directory"].as_str().map(PathBuf::from));
    folder.ok_or_else(|| "cargo metadata names no target folder".into())
}

/// Creates or renews the copy of these files in `folder/tree` with these edits, and returns its path. Code
/// that does not compile, given by name and file, becomes examples. Unchanged files are not touched, so that
/// little is built again.
///
/// # Errors
/// One sentence for the terminal: a file that cannot be written, or patches that change the same words.
pub(crate) fn make(
    mut files: Files,
    folder: &Path,
    edits: Vec<Edit>,
    code: &[(String, &Path)],
) -> Result<PathBuf, String> {
    patch::make(&mut files, edits)?;
    files.insert("tensor/src/exhibit.rs".into(), SWITCH.into());
    let lib = files.get_mut(Path::new("tensor/src/lib.rs")).ok_or("tensor/src/lib.rs is not tracked")?;
    lib.extend_from_slice(b"\npub mod exhibit;\n");
    for (name, path) in code {
        let text = files.get(*path).ok_or_else(|| format!("{} does not exist", path.display()))?.clone();
        files.insert(format!("{REFUSER}/examples/{name}.rs").into(), text);
    }
    for path in ["Cargo.toml", "Cargo.lock"] {
        let file = files.get_mut(Path::new(path)).ok_or_else(|| format!("{path} is not tracked"))?;
        *file = of_another_version(&String::from_utf8_lossy(file)).into_bytes();
    }
    let tree = folder.join("tree");
    renew(&files, &tree)?;
    Ok(tree)
}

/// Gives our packages another version in a manifest or a lock. The copy is built in the workspace's target
/// folder, where cargo would otherwise take one's build for the other's.
fn of_another_version(text: &str) -> String {
    let own = concat!("\nversion = \"", env!("CARGO_PKG_VERSION"), "\"");
    let other = concat!("\nversion = \"", env!("CARGO_PKG_VERSION"), "-museum\"");
    let package = |text: &str| {
        if text.contains("\nsource = ") { text.to_owned() } else { text.replacen(own, other, 1) }
    };
    text.split("\n\n").map(package).collect::<Vec<_>>().join("\n\n")
}

fn say(what: &str, path: &Path, why: &std::io::Error) -> String {
    format!("{} {what} ({why})", path.display())
}

/// Reads every file that git tracks or would track.
pub(crate) fn tracked(root: &Path) -> Result<Files, String> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(list).current_dir(root).output();
    let output = output.map_err(|why| format!("git cannot be started ({why})"))?;
    let paths = String::from_utf8(output.stdout).map_err(|_| "a tracked path is not valid UTF-8")?;
    if !output.status.success() || paths.is_empty() {
        return Err("git lists no files: the museum needs a checkout".into());
    }
    let read = |path: &str| match fs::read(root.join(path)) {
        Ok(bytes) => Some(Ok((path.into(), bytes))),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => None, // deleted, and not yet committed
        Err(why) => Some(Err(say("cannot be read", Path::new(path), &why))),
    };
    paths.split_terminator('\0').filter_map(read).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let folder = path.parent().expect("a file lies in a folder");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, bytes));
    written.map_err(|why| say("cannot be written", path, &why))
}

/// Makes `tree` equal to these files, writing only what differs.
fn renew(files: &Files, tree: &Path) -> Result<(), String> {
    let there = if tree.exists() { walk(tree)? } else { Files::new() };
    for path in there.keys().filter(|path| !files.contains_key(*path)) {
        fs::remove_file(tree.join(path)).map_err(|why| say("cannot be removed", path, &why))?;
    }
    for (path, bytes) in files.iter().filter(|(path, bytes)| there.get(*path) != Some(bytes)) {
        write(&tree.join(path), bytes)?;
    }
    Ok(())
}

fn walk(folder: &Path) -> Result<Files, String> {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).map_err(|why| say("cannot be listed", &next, &why))? {
            let path = entry.map_err(|why| say("cannot be listed", &next, &why))?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below the folder").to_owned();
                files.insert(name, fs::read(&path).map_err(|why| say("cannot be read", &path, &why))?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a copy whose builds cargo takes for the working tree's, a copy whose lock file has other
    /// versions of third-party crates.
    #[test]
    fn our_packages_alone_have_another_version() {
        let version = env!("CARGO_PKG_VERSION");
        let lock = |ours: &str| {
            format!(
                "[[package]]\nname = \"ours\"\nversion = \"{ours}\"\n\n[[package]]\nname = \"theirs\"\nversion = \"{version}\"\n\
                 source = \"registry\"\n\n[workspace.package]\nversion = \"{ours}\"\nedition = \"2024\"\n"
            )
        };
        assert_eq!(of_another_version(&lock(version)), lock(&format!("{version}-museum")));
    }

    /// Kills: a deleted file that stays, an unchanged file that is rewritten.
    #[test]
    fn renewing_touches_only_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        let wanted = Files::from([("a".into(), b"1".to_vec()), ("b/c".into(), b"2".to_vec())]);
        for (path, text) in [("a", "1"), ("b/c", "old"), ("gone", "3")] {
            write(&tree.join(path), text.as_bytes()).unwrap();
        }
        let before = fs::metadata(tree.join("a")).unwrap().modified().unwrap();
        renew(&wanted, &tree).unwrap();
        assert_eq!(walk(&tree).unwrap(), wanted);
        assert_eq!(fs::metadata(tree.join("a")).unwrap().modified().unwrap(), before);
    }
}
