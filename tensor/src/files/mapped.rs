//! Mapped files. The system ends a process by SIGBUS that reads a page which its file no longer has; after
//! [`end_if_cut`], a program ends with one sentence and exit code 2 instead.
use super::Error;
use memmap2::{Advice, Mmap};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The files that are mapped: the address of the first byte, the number of bytes, and the escaped path.
static MAPPED: Mutex<Vec<(usize, usize, String)>> = Mutex::new(Vec::new());

/// Bytes of a mapped file, which must not change in place.
pub(crate) struct MappedFile(Mmap);

impl MappedFile {
    /// Maps an open file. The system reads ahead, if it can.
    pub(crate) fn new(file: &File, path: &Path) -> Result<Self, Error> {
        // SAFETY: changing a mapped file in place breaks the contract of `safetensors::File::open`; our own
        // code replaces files.
        let map = unsafe { Mmap::map(file) }.map_err(Error::system("map", path))?;
        let _ = map.advise(Advice::Sequential);
        let name = crate::quoted::escaped(&path.display().to_string());
        let mut maps = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        maps.push((map.as_ptr() as usize, map.len(), name));
        Ok(Self(map))
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        let begin = self.0.as_ptr() as usize;
        MAPPED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(at, ..)| *at != begin);
    }
}

/// Makes reading a mapped file that another program has cut end this process with one sentence.
pub fn end_if_cut() {
    #[cfg(unix)]
    // SAFETY: a zeroed action is valid; the handler has the form that SA_SIGINFO asks for, and locks nothing
    // that it would wait for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = cut as extern "C" fn(_, _, _) as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Handles SIGBUS: names the file, if one is mapped there; else the signal comes again, and ends the process.
#[cfg(unix)]
extern "C" fn cut(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes valid information on the signal.
    let at = unsafe { (*info).si_addr() } as usize;
    let all = MAPPED.try_lock();
    let file =
        all.iter().flat_map(|all| all.iter()).find(|(begin, len, _)| (*begin..begin + len).contains(&at));
    if let Some((_, _, name)) = file {
        let why = b" was cut while it was read: bytes of it are gone; read it again once it is whole\n";
        crate::limits::end(&[b"error: ", name.as_bytes(), why]);
    }
    // SAFETY: restores the default action.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs in a process of its own. Kills: an end by a signal, without a sentence, or with another file's
    /// name; a file that stays listed once it is no longer mapped.
    #[test]
    fn a_file_that_is_cut_while_it_is_read_ends_the_program_with_its_name() {
        const CUT: &str = "EQUIPART_TEST_CUT";
        if let Ok(path) = std::env::var(CUT) {
            end_if_cut();
            let open = |path: &str| {
                std::fs::write(path, vec![1; 1 << 20]).unwrap();
                let file = File::options().read(true).write(true).open(path).unwrap();
                (MappedFile::new(&file, Path::new(path)).unwrap(), file)
            };
            let [(_other, _), (gone, _), (own, file)] =
                [path.clone() + ".a", path.clone() + ".b", path].map(|p| open(&p));
            drop(gone);
            assert_eq!(MAPPED.lock().unwrap().len(), 2);
            file.set_len(5000).unwrap();
            let sum: u64 = own.as_ref().iter().map(|byte| u64::from(*byte)).sum();
            panic!("read {sum}");
        }
        let name = "files::mapped::tests::a_file_that_is_cut_while_it_is_read_ends_the_program_with_its_name";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights\u{1b}").display().to_string();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ended = command.args(["--exact", name, "--nocapture"]).env(CUT, &path).output().unwrap();
        let shown = dir.path().join("weights\\u{1b}");
        let why = "was cut while it was read: bytes of it are gone; read it again once it is whole";
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), said), (Some(2), format!("error: {} {why}\n", shown.display())));
    }
}
