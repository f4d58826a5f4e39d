//! The driver's twin: a shared library with the driver's functions, made of the kernels' own sources by the C++ compiler of
//! this machine. What runs on it is all of this crate, from the FFI up, and every kernel, without a GPU. NCCL has a twin, too.
#[cfg(test)]
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
use std::thread;
use std::{env, fs};

/// The twin, compiled if it has changed; from now on it is the driver of this process.
///
/// # Errors
/// That there is no C++ compiler.
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

/// Order in which blocks run from now on, and the warps and lanes of each after they met: forwards or backwards.
///
/// # Panics
/// Unless the twin is installed.
pub fn order(backwards: bool) {
    tell(c"twinOrder", backwards.into());
}

/// So many of the events that this thread records from now on pass, and no more; -1: all.
///
/// # Panics
/// Unless the twin is installed.
pub fn events(many: i32) {
    tell(c"twinEvents", many);
}

fn tell(function: &CStr, number: i32) {
    let path = install().expect("it is installed");
    // SAFETY: the library is loaded; the function's signature is this.
    unsafe {
        let library = libloading::Library::new(path).expect("it is loaded");
        let told = library.get::<unsafe extern "C" fn(i32)>(function.to_bytes_with_nul());
        (told.expect("the twin's own"))(number);
    }
}

/// Compiles the twin with these flags besides: where it lies.
///
/// # Errors
/// That there is no C++ compiler.
///
/// # Panics
/// If the kernels do not compile.
pub fn compile(flags: &[&str]) -> Result<PathBuf, String> {
    let (home, mut names) = (home(), String::new());
    for (name, _) in ptx::MODULES.iter().flat_map(|module| ptx::kernels(module.ptx())) {
        writeln!(names, "TWIN({name})").expect("a string takes it");
    }
    let sources = ptx::MODULES
        .iter()
        .map(|module| format!("#include \"{}/kernels/{}.cu\"\n", home.display(), module.name));
    let sources: String = sources.collect();
    let mut digest = Sha256::new();
    for part in ["kernels", "twin"] {
        let mut files: Vec<_> = fs::read_dir(home.join(part)).expect("it is there").flatten().collect();
        files.sort_by_key(fs::DirEntry::path);
        for file in files {
            digest.update(fs::read(file.path()).expect("a source"));
        }
    }
    digest.update(&names);
    let prepare = |folder: &Path| {
        fs::write(folder.join("kernels.inc"), &names).expect("target can be written");
        fs::write(folder.join("sources.inc"), &sources).expect("target can be written");
    };
    let all = ["-DEQUIPART_TWIN", "-ffp-contract=off", "-fno-strict-aliasing"]; // kernels read numbers by 16 bytes at a time
    built("driver.cpp", digest, &[&all, flags].concat(), prepare)
}

/// Compiles NCCL's twin with these flags besides: where it lies.
///
/// # Errors
/// That there is no C++ compiler.
///
/// # Panics
/// If it does not compile.
pub fn nccl(flags: &[&str]) -> Result<PathBuf, String> {
    let source = fs::read(home().join("twin/nccl.cpp")).expect("a source");
    built("nccl.cpp", Sha256::new_with_prefix(source), flags, |_| ())
}

/// Where `kernels` and `twin` lie.
fn home() -> PathBuf {
    env::var_os("EQUIPART_TWIN_SOURCES").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// A twin of this source, found by what it is made of, or compiled in a folder with what it includes.
fn built(
    source: &str,
    mut digest: Sha256,
    flags: &[&str],
    prepare: impl FnOnce(&Path),
) -> Result<PathBuf, String> {
    let (home, compiler) = (home(), compiler()?);
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
    // Whoever compiles the same meanwhile, another process or thread, has a file of its own.
    let unfinished =
        folder.join(format!("unfinished-{}-{:?}.so", std::process::id(), thread::current().id()));
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-w"]).args(flags).arg("-I").arg(&folder);
    command.arg(home.join("twin").join(source)).arg("-o").arg(&unfinished);
    let output = command.output().map_err(|error| format!("{compiler} does not start: {error}"))?;
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    fs::rename(unfinished, &library).expect("target can be written");
    Ok(library)
}

/// The library of `AddressSanitizer` that the C++ compiler has, if it has one: programs that load a twin compiled with it load it
/// first.
pub fn sanitizer() -> Option<String> {
    let output = Command::new(compiler().ok()?).arg("-print-file-name=libasan.so").output().ok()?;
    let library = String::from_utf8_lossy(&output.stdout).trim().to_string();
    Path::new(&library).is_absolute().then_some(library)
}

/// The C++ compiler: `CXX`, or the first that is there.
fn compiler() -> Result<String, String> {
    let named = env::var("CXX").ok();
    let usual = ["c++", "g++", "clang++"].map(String::from);
    let all = named.into_iter().chain(usual);
    let works = |name: &String| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    all.into_iter().find(works).ok_or_else(|| "no C++ compiler (c++, g++ or clang++) on this machine".into())
}
