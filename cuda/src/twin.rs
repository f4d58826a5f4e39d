//! The host twin of the driver: a shared library with the driver's functions, compiled from the kernels' own
//! sources by the C++ compiler of this machine. All of this crate runs on it, from the FFI up, and every
//! kernel, without a GPU. NCCL has a host twin, too.
#[cfg(test)]
#[path = "twin/tests/skipped.rs"]
mod skipped;

#[cfg(test)]
pub(crate) use skipped::skipped;

use crate::ptx;
use sha2::{Digest, Sha256};
use std::ffi::CStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, thread};

/// Compiles the host twin if it has changed, and makes it the driver of this process.
///
/// # Errors
/// If there is no C++ compiler.
///
/// # Panics
/// If the kernels do not compile.
pub fn install() -> Result<&'static Path, String> {
    static TWIN: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let path = TWIN.get_or_init(|| {
        let flags = env::var("EQUIPART_TWIN_FLAGS").unwrap_or_default();
        let path = compile(&flags.split_whitespace().collect::<Vec<_>>())?;
        crate::use_driver(path.to_string_lossy());
        Ok(path)
    });
    path.as_deref().map_err(Clone::clone)
}

/// Sets the order in which blocks run, and the warps and lanes of each block after a barrier: forwards or
/// backwards.
///
/// # Panics
/// If the host twin cannot be installed.
pub fn order(backwards: bool) {
    tell(c"twinOrder", backwards.into());
}

/// Lets only the next `many` events that this thread records pass; -1: all.
///
/// # Panics
/// If the host twin cannot be installed.
pub fn events(many: i32) {
    tell(c"twinEvents", many);
}

fn tell(function: &CStr, number: i32) {
    let path = install().expect("the host twin is installed");
    // SAFETY: the library is loaded, and the function has this signature.
    unsafe {
        let library = libloading::Library::new(path).expect("the host twin is loaded");
        let reported = library.get::<unsafe extern "C" fn(i32)>(function.to_bytes_with_nul());
        (reported.expect("the host twin has this function"))(number);
    }
}

/// Compiles the host twin with additional flags, and returns its path.
///
/// # Errors
/// If there is no C++ compiler.
///
/// # Panics
/// If the kernels do not compile.
pub fn compile(flags: &[&str]) -> Result<PathBuf, String> {
    let (home, mut names) = (home(), String::new());
    for (name, _) in ptx::MODULES.iter().flat_map(|module| ptx::kernels(module.ptx())) {
        writeln!(names, "TWIN({name})").expect("writing to a string cannot fail");
    }
    let sources = ptx::MODULES
        .iter()
        .map(|module| format!("#include \"{}/kernels/{}.cu\"\n", home.display(), module.name));
    let sources: String = sources.collect();
    let mut digest = Sha256::new();
    for part in ["kernels", "twin"] {
        let mut files: Vec<_> =
            fs::read_dir(home.join(part)).expect("the folder can be read").flatten().collect();
        files.sort_by_key(fs::DirEntry::path);
        for file in files {
            digest.update(fs::read(file.path()).expect("the source can be read"));
        }
    }
    digest.update(&names);
    let prepare = |folder: &Path| {
        fs::write(folder.join("kernels.inc"), &names).expect("target can be written");
        fs::write(folder.join("sources.inc"), &sources).expect("target can be written");
    };
    // kernels access elements by 16 bytes at a time
    let always = ["-DEQUIPART_TWIN", "-ffp-contract=off", "-fno-strict-aliasing"];
    built("driver.cpp", digest, &[&always, flags].concat(), prepare)
}

/// Compiles NCCL's host twin with additional flags, and returns its path.
///
/// # Errors
/// If there is no C++ compiler.
///
/// # Panics
/// If the source does not compile.
pub fn nccl(flags: &[&str]) -> Result<PathBuf, String> {
    let source = fs::read(home().join("twin/nccl.cpp")).expect("the source can be read");
    built("nccl.cpp", Sha256::new_with_prefix(source), flags, |_| ())
}

/// Returns the folder that holds `kernels` and `twin`.
fn home() -> PathBuf {
    env::var_os("EQUIPART_TWIN_SOURCES").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// Returns the path of a host twin: found by the digest of its sources, or else compiled in a folder with its
/// generated includes.
fn built(
    source: &str,
    mut digest: Sha256,
    flags: &[&str],
    prepare: impl FnOnce(&Path),
) -> Result<PathBuf, String> {
    let compiler = compiler()?;
    digest.update(flags.join(" "));
    let digest =
        format!("{:016x}", u64::from_be_bytes(digest.finalize()[..8].try_into().expect("eight bytes")));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/twin").join(digest);
    let library = folder.join("libtwin.so");
    if library.exists() {
        return Ok(library);
    }
    fs::create_dir_all(&folder).expect("target can be written");
    prepare(&folder);
    // Another process or thread may compile the same twin meanwhile: each writes a file of its own.
    let unfinished =
        folder.join(format!("unfinished-{}-{:?}.so", std::process::id(), thread::current().id()));
    let mut command = Command::new(&compiler);
    // calls within the library are its own, so that they can be inlined
    command
        .args(["-std=c++17", "-O2", "-fPIC", "-fno-semantic-interposition", "-shared", "-w"])
        .args(flags)
        .arg("-I")
        .arg(&folder);
    command.arg(home().join("twin").join(source)).arg("-o").arg(&unfinished);
    let output = command.output().map_err(|error| format!("{compiler} does not start: {error}"))?;
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    fs::rename(unfinished, &library).expect("target can be written");
    Ok(library)
}

/// Returns the C++ compiler: `CXX`, or the first that is found.
fn compiler() -> Result<String, String> {
    let all = env::var("CXX").ok().into_iter().chain(["c++", "g++", "clang++"].map(String::from));
    let works = |name: &String| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    all.into_iter().find(works).ok_or_else(|| "no C++ compiler (c++, g++ or clang++) on this machine".into())
}
