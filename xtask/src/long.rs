//! Runs tests as a whole of which `cargo test` runs a part: `cargo xtask paths`, `frames`,
//! `faults`, `stops` and `kills`; and checks of kernels under a sanitizer: `cargo xtask sanitize`.
use crate::task::{TaskResult, cargo, code, root};
use std::process::{Command, ExitCode};

/// A task: its test, the variable that says how much the test does, and the variable's value by default.
pub(crate) struct Long {
    pub(crate) task: &'static str,
    test: &'static str,
    variable: &'static str,
    whole: &'static str,
}

/// All such tasks.
pub(crate) const ALL: [Long; 5] = [
    Long {
        task: "paths",
        test: "test --workspace --test all every_command_takes_every_entry_or_refuses_it -- --nocapture",
        variable: "EQUIPART_PATHS", // a part of its cases' names
        whole: "",
    },
    Long {
        task: "frames",
        test: "test --workspace --lib what_a_rank_tells_is_checked -- --nocapture",
        variable: "EQUIPART_FRAMES", // how many
        whole: "10000",
    },
    Long {
        task: "faults", // among threads, and a tenth as many among processes
        test: "test --workspace --lib every_run_ends -- --nocapture",
        variable: "EQUIPART_FAULTS", // how many
        whole: "10000",
    },
    Long {
        task: "stops",
        test: "test --workspace --test all a_process_that_is_stopped_is_named -- --nocapture",
        variable: "EQUIPART_STOPS", // how many
        whole: "200",
    },
    Long {
        task: "kills",
        test: "test --workspace --test all a_run_that_is_killed_at_any_moment -- --nocapture",
        variable: "EQUIPART_KILLS", // how many
        whole: "1000",
    },
];

impl Long {
    /// Runs the task from the repository's root, all of it or the part `only`; fails if its test fails.
    pub(crate) fn run(&self, only: Option<&str>) -> TaskResult {
        let mut command = cargo();
        command.args(self.test.split(' ')).env(self.variable, only.unwrap_or(self.whole));
        let cannot = |why| format!("{} cannot start `cargo {}`: {why}.", self.task, self.test);
        let status = command.env("RUST_BACKTRACE", "0").status().map_err(cannot)?;
        let goes_on = status.success() && self.task == "frames";
        Ok(if goes_on { sanitized(only) } else { code(status) })
    }
}

/// Runs the frames again under the address sanitizer, which needs a nightly toolchain; without one, prints
/// that they are skipped.
fn sanitized(only: Option<&str>) -> ExitCode {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo"); // rustup's, which takes `+nightly`
        command.arg("+nightly").args(args).current_dir(root()).env_remove("RUSTUP_TOOLCHAIN");
        command
    };
    if !cargo(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: the frames under AddressSanitizer: no nightly toolchain is installed");
        return ExitCode::SUCCESS;
    }
    let mut test =
        cargo(&["test", "--target", TARGET, "--package", "comm", "--lib", "what_a_rank_tells_is_checked"]);
    test.env("RUSTFLAGS", "-Zsanitizer=address").env("EQUIPART_FRAMES", only.unwrap_or("1000"));
    test.status().map_or(ExitCode::FAILURE, code)
}

/// Runs the checks of CUDA kernels on the host twin, compiled with `AddressSanitizer`: a kernel that reads or
/// writes outside of its memory fails. Without a compiler that has it, prints that they are skipped.
pub(crate) fn sanitize_kernels() -> TaskResult {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(&compiler).arg("-print-file-name=libasan.so").output();
    let library = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let Some(library) = library.ok().filter(|path| std::path::Path::new(path).is_absolute()) else {
        println!("skipped: kernels under AddressSanitizer: {compiler} has none");
        return Ok(ExitCode::SUCCESS);
    };
    let others = ["--skip", "planted_bugs", "--skip", "without_a_compiler", "--skip", "on_hopper"];
    // The library must be loaded first, but not into cargo.
    let options = "detect_leaks=0:detect_stack_use_after_return=0:use_sigaltstack=0";
    let runner = format!("target.'cfg(all())'.runner = \"env LD_PRELOAD={library} ASAN_OPTIONS={options}\"");
    let mut command = cargo();
    command.args(["test", "--workspace", "--lib", "--config", &runner]);
    command
        .args(["checks::tests::", "--", "--nocapture"])
        .args(others)
        .env("EQUIPART_TWIN_FLAGS", "-O1 -fsanitize=address")
        .env("EQUIPART_TWIN_QUICK", "1");
    command.status().map(code).map_err(|why| format!("sanitize cannot start cargo: {why}."))
}
