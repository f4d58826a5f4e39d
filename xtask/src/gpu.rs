//! `cargo xtask gpu`: builds the stripped program for machines with GPUs, and starts its `gpu-check`.
use crate::task::{TaskResult, cargo, code, root};
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Most bytes that the program may have, with its kernels, its models and their text.
const MOST: u64 = 40 << 20;

pub(crate) fn run(arguments: &[&str]) -> TaskResult {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let program = target.join("release/equipart");
    // Options of the last link alone: strip symbols; with rustc's own linker, also keep one of equal
    // functions, and fix every address now, which needs no list of addresses. All else is built as in every
    // release build.
    let build = "rustc --release --package equipart --bin equipart -- -C strip=symbols";
    let smaller = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        &["-C", "link-arg=-Wl,--icf=all", "-C", "relocation-model=static"][..]
    } else {
        &[]
    };
    let built = cargo().args(build.split(' ').chain(smaller.iter().copied())).status();
    let built = built.map_err(|why| format!("cargo cannot be started: {why}"))?;
    if !built.success() {
        return Ok(code(built));
    }
    let name = program.display();
    let size = program.metadata().map_err(|why| why.to_string()).and_then(|of| light(of.len()));
    println!("{name}: {}", size.map_err(|why| format!("{name}: {why}"))?);
    let checked = Command::new(&program).arg("gpu-check").args(arguments).status();
    checked.map(code).map_err(|why| format!("{name} cannot be started: {why}"))
}

/// Returns the program's size in words.
///
/// # Errors
/// If the program is too large.
fn light(bytes: u64) -> Result<String, String> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    if bytes > MOST {
        Err(format!("{}; at most {} are allowed", mib(bytes), mib(MOST)))
    } else {
        Ok(mib(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a program over the limit without an error, a limit of another size.
    #[test]
    fn a_program_of_more_than_40_mib_is_refused() {
        assert_eq!(light(40 << 20), Ok("40.0 MiB".into()));
        assert_eq!(light((40 << 20) + (1 << 19)), Err("40.5 MiB; at most 40.0 MiB are allowed".into()));
        assert!(light((40 << 20) + 1).is_err());
    }
}
