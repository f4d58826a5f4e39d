//! `cargo xtask ptx`: compiles the kernels of `cuda/kernels` to the PTX of `cuda/ptx`, and records the
//! digests of both: a test of `cuda` fails if they do not belong together. The PTX depends neither on the
//! folder nor on the user.
use crate::task::{TaskResult, refuse, root};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

/// Command that installs the compiler.
const INSTALL: &str = "pip install --target DIR nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85, then NVCC=DIR/nvidia/cu13/bin/nvcc";

/// Returns the CUDA compiler: the variable `NVCC`, or `nvcc`.
fn compiler() -> OsString {
    env::var_os("NVCC").unwrap_or_else(|| "nvcc".into())
}

/// True if the compiler is there.
pub(crate) fn has_compiler() -> bool {
    Command::new(compiler())
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Compiles every kernel and writes the files that changed; with `check`, reports them instead.
pub(crate) fn run(check: bool) -> TaskResult {
    if !has_compiler() {
        return Ok(refuse(&format!("nvcc is not installed ({INSTALL})")));
    }
    let mut made = all(&root().join("cuda")).map_err(|why| why.to_string())?;
    made.retain(|path, text| !fs::read_to_string(path).is_ok_and(|held| held == *text));
    let changed = made.keys().map(|path| name(path)).collect::<Vec<_>>().join(", ");
    if made.is_empty() {
        println!("all PTX is up to date");
    } else if check {
        return Err(format!("stale, to be made anew by `cargo xtask ptx`: {changed}"));
    } else {
        let written = made.iter().try_for_each(|(path, text)| fs::write(path, text));
        written.map_err(|why| why.to_string())?;
        println!("written: {changed}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns every file made from the kernels, with the text that it should hold.
fn all(cuda: &Path) -> io::Result<BTreeMap<PathBuf, String>> {
    let mut made = BTreeMap::new();
    let mut manifest = String::new();
    for source in files(&cuda.join("kernels"))? {
        note(&mut manifest, &format!("kernels/{}", name(&source)), &fs::read(&source)?);
        if source.extension().is_some_and(|end| end == "cu") {
            let ptx = compile(&source)?;
            let path = cuda.join("ptx").join(name(&source)).with_extension("ptx");
            note(&mut manifest, &format!("ptx/{}", name(&path)), ptx.as_bytes());
            made.insert(path, ptx);
        }
    }
    made.insert(cuda.join("ptx/manifest.txt"), manifest);
    Ok(made)
}

/// Adds a line to the manifest: digest and file, as `sha256sum` prints them.
fn note(manifest: &mut String, file: &str, bytes: &[u8]) {
    let hex =
        |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).expect("below 16"));
    manifest.extend(Sha256::digest(bytes).iter().flat_map(hex));
    manifest.extend(["  ", file, "\n"]);
}

/// Compiles a source to PTX without comments: they name folders. A comment with `ARCH: sm_…` at the end of
/// its line sets the least compute capability, else 8.0.
fn compile(source: &Path) -> io::Result<String> {
    let text = fs::read_to_string(source)?;
    let arch = text.lines().find_map(|line| line.split_once("ARCH: sm_")).map_or("80", |(_, arch)| arch);
    let output = Command::new(compiler())
        .args([&format!("-arch=compute_{}", arch.trim()), "-O3", "-std=c++17", "-ptx", "-o", "-"])
        .arg(source)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let ptx = String::from_utf8_lossy(&output.stdout);
    Ok(ptx.lines().filter(|line| !line.starts_with("//")).flat_map(|line| [line, "\n"]).collect())
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<_> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.sort();
    Ok(files)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
