//! Files that flags name: what a command writes beside its results is nothing that it reads or keeps, and can
//! be written.
use crate::terminal::out;
use crate::views::Views;
use crate::views::view::used;
use clap::ArgMatches;
use draw::trace;
use parallel::{Result, bail};
use std::ffi::OsStr;
use std::fs::canonicalize;
use std::path::{Path, PathBuf, absolute};
use tensor::files::replace_file;

/// Flags of files that a command writes, and the ends of their names.
const WRITTEN: [(&str, &str); 6] = [
    ("csv", "csv"),
    ("plot", "svg"),
    ("report", "html"),
    ("tensorboard", ""),
    ("svg", "svg"),
    ("trace", "json"),
];

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
    let written =
        WRITTEN.iter().filter_map(|(flag, end)| Some((*flag, *end, Path::new(given(flag)?.next()?))));
    for (at, (flag, end, file)) in written.clone().enumerate() {
        let is_same = |other: &Path| other == file || absolute(other).ok() == absolute(file).ok();
        if let Some((other, ..)) = written.clone().take(at).find(|(.., other)| is_same(other)) {
            bail!("--{other} and --{flag} both want {}; give each a file of its own", file.display());
        }
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

/// Draws a picture if it is wanted: in the file of a flag, which rank 0 writes, or in a view of details.
///
/// # Errors
/// If the file cannot be written, or a view fails.
pub(crate) fn picture(
    file: Option<&PathBuf>,
    title: &str,
    views: &Views,
    draw: impl FnOnce() -> String,
) -> Result<()> {
    if file.is_none() && !views.wants_details() {
        return Ok(());
    }
    let svg = draw();
    if let Some(file) = file.filter(|_| !out::is_silent()) {
        replace_file(file, svg.as_bytes())?;
    }
    views.picture(title, &svg)
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
