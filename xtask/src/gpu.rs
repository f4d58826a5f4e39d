//! `cargo xtask gpu`: builds the program as it goes to machines with cards, stripped, and starts its `gpu-check`.
use crate::ci::code;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The most bytes of the program, with its kernels, its models and their text inside.
const MOST: u64 = 40 << 20;

pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let (cargo, program) =
        (env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), target.join("release/equipart"));
    // Only the last link is told to strip, and rustc's own linker to keep one of functions that are alike and to give every
    // address now, which needs no list of them: all else is that of every release build.
    let build = "rustc --release --package equipart --bin equipart -- -C strip=symbols";
    let smaller = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        &["-C", "link-arg=-Wl,--icf=all", "-C", "relocation-model=static"][..]
    } else {
        &[]
    };
    let built =
        Command::new(cargo).args(build.split(' ').chain(smaller.iter().copied())).current_dir(root).status();
    match built.map_err(|why| why.to_string()) {
        Ok(status) if !status.success() => return code(status),
        Err(why) => return fail(&format!("cargo does not start: {why}")),
        Ok(_) => {}
    }
    match program.metadata().map_err(|why| why.to_string()).and_then(|of| light(of.len())) {
        Ok(size) => println!("{}: {size}", program.display()),
        Err(why) => return fail(&format!("{}: {why}", program.display())),
    }
    match Command::new(&program).arg("gpu-check").args(arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => code(status),
        Err(why) => fail(&format!("{} does not start: {why}", program.display())),
    }
}

/// The program's size in words.
///
/// # Errors
/// If it is too large.
fn light(bytes: u64) -> Result<String, String> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    if bytes > MOST { Err(format!("{}; {} are the most", mib(bytes), mib(MOST))) } else { Ok(mib(bytes)) }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a program that grows past what it may be, and nobody is told; a limit of another size.
    #[test]
    fn a_program_of_more_than_40_mib_is_refused() {
        assert_eq!(light(40 << 20), Ok("40.0 MiB".into()));
        assert_eq!(light((40 << 20) + (1 << 19)), Err("40.5 MiB; 40.0 MiB are the most".into()));
        assert!(light((40 << 20) + 1).is_err());
    }
}
