//! Files: opened with one clear sentence on failure, and replaced whole or not at all.
//!
//! A replacement is written beside its target, synced to disk, and only then renamed to the target; then the
//! folder, which holds the name, is synced too. A reader sees the old file or the new one, also after a power
//! failure. A link is replaced, not the file that it points to.
mod kinds;
pub mod mapped;
pub mod seen;

pub use kinds::compression;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

/// Error of reading or replacing a file: one sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No file has this name.
    #[error("{}: there is no such file", .0.display())]
    Missing(PathBuf),
    /// A directory has this name.
    #[error("{} is a directory where a file should be", .0.display())]
    Directory(PathBuf),
    /// A pipe, socket or device has this name; reading it might wait forever, and writing would put a file in
    /// its place.
    #[error("{} is a pipe, socket or device where a regular file should be", .0.display())]
    Special(PathBuf),
    /// Another kind of file lies in the place of the one that is named.
    #[error("{} is {what}", path.display())]
    Mistaken {
        /// Path of the file.
        path: PathBuf,
        /// Its kind, and advice.
        what: &'static str,
    },
    /// The file has no bytes.
    #[error("{} is empty (0 bytes)", .0.display())]
    Empty(PathBuf),
    /// The system refused.
    #[error("cannot {action} {}: {why}", path.display())]
    System {
        /// Attempted action: a verb.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        why: io::Error,
    },
}

impl Error {
    pub(crate) fn system(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |why| Self::System { action, path, why }
    }
}

/// Files that this process has opened for reading.
static OPENED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn opened() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if this process has opened the file for reading, under whatever name.
pub fn was_opened(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| opened().contains(&path))
}

/// Opens a regular file of at least one byte for reading. Also returns its size in bytes.
///
/// # Errors
/// If it is missing, a directory, no regular file, empty, not readable, or of another kind than its name
/// says.
pub fn open(path: &Path) -> Result<(fs::File, u64), Error> {
    let about = fs::metadata(path).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => Error::Missing(path.to_owned()),
        _ => Error::system("read", path)(why),
    })?;
    if about.is_dir() {
        return Err(Error::Directory(path.to_owned()));
    }
    if !about.is_file() {
        return Err(Error::Special(path.to_owned()));
    }
    let mut file = fs::File::open(path).map_err(Error::system("read", path))?;
    opened().extend(path.canonicalize());
    let len = file.metadata().map_err(Error::system("read", path))?.len();
    if len == 0 {
        return Err(Error::Empty(path.to_owned()));
    }
    kinds::check(path, &mut file)?;
    Ok((file, len))
}

/// Reads all bytes of a regular file of at least one byte.
///
/// # Errors
/// As [`open`], and if reading fails.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    open(path)?.0.read_to_end(&mut bytes).map_err(Error::system("read", path))?;
    seen::read(path, &bytes);
    Ok(bytes)
}

/// Reads all bytes of a regular file, which may be empty, and which the other ranks do not read.
///
/// # Errors
/// As [`read`], but for an empty file.
pub fn read_alone(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    match open(path) {
        Ok((mut file, _)) => file.read_to_end(&mut bytes).map_err(Error::system("read", path))?,
        Err(Error::Empty(_)) => 0,
        Err(why) => return Err(why),
    };
    Ok(bytes)
}

/// Makes a write beyond the file size limit (`ulimit -f`) an error, in this process and those that it starts.
/// By default a signal would end the process and leave half a file.
pub fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: this only ignores a signal; it installs no handler that would run in it.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Checks that an unnamed file of this many bytes has room in a folder.
///
/// # Errors
/// The system's reason.
pub fn has_room(folder: &Path, bytes: u64) -> io::Result<()> {
    let bare = |why: io::Error| io::Error::new(why.kind(), without_path(&why));
    tempfile::tempfile_in(folder).and_then(|file| grow(&file, 0, bytes)).map_err(bare)
}

/// Takes these bytes of the disk for the file, so that no later write finds the disk full.
pub(crate) fn grow(file: &fs::File, at: u64, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: an open file, and numbers.
        let taken = unsafe { libc::fallocate(file.as_raw_fd(), 0, at as i64, bytes.max(1) as i64) };
        let why = io::Error::last_os_error();
        if taken == 0 || why.raw_os_error() != Some(libc::EOPNOTSUPP) {
            return if taken == 0 { Ok(()) } else { Err(why) };
        }
    }
    file.set_len(at + bytes)
}

/// Replaces the file at `path`, which need not exist, with `bytes`: whole, or not at all.
///
/// # Errors
/// As [`Replacement::beside`] and [`Replacement::finish`], and if writing fails. The old file is then
/// untouched.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut new = Replacement::beside(path)?;
    new.write_all(bytes).map_err(Error::system("write", path))?;
    new.finish()
}

/// A file being written beside the one it will replace. Dropped unfinished, it is deleted and the old file is
/// untouched.
pub struct Replacement {
    temporary: NamedTempFile,
    target: PathBuf,
}

impl Replacement {
    /// Begins the replacement of `target`, which need not exist; its folder must. The new file takes the old
    /// file's permissions.
    ///
    /// # Errors
    /// If `target` is a directory, pipe, socket or device or has no file name, or no file can be created
    /// beside it.
    pub fn beside(target: &Path) -> Result<Self, Error> {
        Self::named(target, false)
    }
    /// Begins a replacement that other processes can open too, by the name of [`temporary`].
    ///
    /// # Errors
    /// As [`beside`](Self::beside).
    pub(crate) fn shared(target: &Path) -> Result<Self, Error> {
        let _ = fs::remove_file(temporary(target)); // of a run that was killed
        Self::named(target, true)
    }
    fn named(target: &Path, known: bool) -> Result<Self, Error> {
        let Some(name) = target.file_name().filter(|_| !target.is_dir()) else {
            return Err(Error::Directory(target.to_owned()));
        };
        if target.metadata().is_ok_and(|about| !about.is_file()) {
            return Err(Error::Special(target.to_owned()));
        }
        let mut how = tempfile::Builder::new();
        let prefix = format!(".{}.", name.display());
        how.prefix(&prefix).suffix(if known { "tmp" } else { ".tmp" });
        if known {
            how.rand_bytes(0);
        }
        #[cfg(unix)]
        how.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // minus the umask
        let temporary = how.tempfile_in(folder(target)).map_err(|why| beside(target, &why))?;
        if let Some(old) = fs::symlink_metadata(target).ok().filter(fs::Metadata::is_file) {
            temporary
                .as_file()
                .set_permissions(old.permissions())
                .map_err(Error::system("write beside", target))?;
        }
        Ok(Self { temporary, target: target.to_owned() })
    }
    /// The file itself.
    pub(crate) fn file(&mut self) -> &mut fs::File {
        self.temporary.as_file_mut()
    }
    /// Replaces the first bytes of the file.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn begin_with(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let file = self.temporary.as_file_mut();
        let written = file.seek(io::SeekFrom::Start(0)).and_then(|_| file.write_all(bytes));
        written.map_err(Error::system("write", &self.target))
    }
    /// Moves the written file to the target's place.
    ///
    /// # Errors
    /// If the system refuses. The old file is then untouched, unless only the last step failed.
    pub fn finish(self) -> Result<(), Error> {
        let Self { temporary, target } = self;
        sync(temporary.as_file()).map_err(Error::system("sync to disk", &target))?;
        rename(temporary, &target).map_err(Error::system("replace", &target))?;
        #[cfg(unix)] // other systems do not open folders as files
        fs::File::open(folder(&target))
            .and_then(|folder| sync(&folder))
            .map_err(Error::system("sync to disk the folder of", &target))?;
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.as_file_mut().write(bytes) // these errors do not name the temporary file
    }
    fn flush(&mut self) -> io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

/// Error for a temporary file that could not be created beside a target, without the temporary file's name.
fn beside(target: &Path, why: &io::Error) -> Error {
    Error::system("write beside", target)(io::Error::new(why.kind(), without_path(why)))
}

/// The reason without the path of a temporary file.
fn without_path(why: &io::Error) -> String {
    let said = why.to_string();
    said.rsplit_once(" at path ").map_or(said.clone(), |(said, _)| said.to_owned())
}

/// The file beside a target that replaces it once it is whole.
pub(crate) fn temporary(target: &Path) -> PathBuf {
    folder(target).join(format!(".{}.tmp", target.file_name().unwrap_or_default().display()))
}

/// The folder of a file.
pub(crate) fn folder(target: &Path) -> &Path {
    target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync(file: &fs::File) -> io::Result<()> {
    #[cfg(test)]
    tests::note(if file.metadata()?.is_dir() { "sync folder" } else { "sync file" });
    file.sync_all()
}

fn rename(temporary: NamedTempFile, target: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::note("rename");
    temporary.persist(target).map(drop).map_err(|refused| refused.error)
}

#[cfg(test)]
mod tests;
