//! Files that flags name: what a command writes beside its results is nothing that it reads or keeps, and can
//! be written.
use clap::ArgMatches;
use draw::trace;
use parallel::{Error, Result, bail};
use std::ffi::OsStr;
use std::fs::canonicalize;
use std::path::{Path, PathBuf, absolute};
use tensor::files::was_opened;

/// Flags of files that a command writes, and the ends of their names.
const WRITTEN: [(&str, &str); 5] =
    [("csv", "csv"), ("plot", "svg"), ("svg", "svg"), ("report", "html"), ("trace", "json")];

/// Flag of the folder or file of a command's own results.
const OUT: &str = "out";

/// Refuses flags whose file another flag or argument names, too, or that would replace a file of a folder
/// which one names; and pictures, which are written at the end, that cannot be.
///
/// # Errors
/// If there is such a flag.
pub(crate) fn apart(matches: &ArgMatches) -> Result<()> {
    if let Some((_, inner)) = matches.subcommand() {
        return apart(inner);
    }
    let given = |flag: &str| matches.try_get_raw(flag).ok().flatten();
    for (flag, end) in WRITTEN {
        let Some(file) = given(flag).and_then(|mut values| values.next()).map(Path::new) else { continue };
        if end == "svg" {
            trace::prepare(file)?;
        }
        let others = matches.ids().map(clap::Id::as_str).filter(|other| *other != flag);
        for (other, value) in
            others.flat_map(|other| given(other).into_iter().flatten().map(move |v| (other, v)))
        {
            let named = Path::new(value);
            if !(named.exists() || other == OUT) || WRITTEN.iter().any(|(written, _)| *written == other) {
                continue;
            }
            let [shown, folder] = [file.display(), named.display()];
            if place(file) == place(named) {
                return Err(used(flag, file));
            }
            let is_own = file.extension() == Some(OsStr::new(end));
            if !is_own && (named.is_dir() || other == OUT) && place(file).starts_with(place(named)) {
                bail!(
                    "--{flag} {shown} is inside {folder}, which this command uses; choose a file outside of \
                     it, or one that ends in .{end}"
                );
            }
        }
    }
    Ok(())
}

/// Refuses a flag whose file this command has read, though no flag names it.
///
/// # Errors
/// If it has.
pub(crate) fn unread(flag: &str, file: &Path) -> Result<()> {
    if was_opened(file) { Err(used(flag, file)) } else { Ok(()) }
}

fn used(flag: &str, file: &Path) -> Error {
    let shown = file.display();
    Error::new(format!("--{flag} would replace {shown}, which this command uses, too; choose another file"))
}

/// Returns a path without links and dots, as far as it exists.
fn place(path: &Path) -> PathBuf {
    let whole = canonicalize(path).or_else(|_| {
        let name = path.file_name().unwrap_or_default();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        canonicalize(folder).map(|folder| folder.join(name))
    });
    whole.or_else(|_| absolute(path)).unwrap_or_else(|_| path.into())
}
