//! `cargo xtask mpi`: builds the program with MPI as the carrier of ranks, and runs it under MPI's launcher:
//! the proof of every layout on two, three and four ranks, and training, which must end with the bits of
//! threads.
use crate::{TaskResult, root};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

/// An MPI that is installed: its compiler, its launcher and its name.
struct InstalledMpi {
    compiler: String,
    launcher: String,
    name: String,
}

/// Endings of the commands of an MPI; Debian installs several side by side.
const ENDINGS: [&str; 3] = ["", ".openmpi", ".mpich"];
/// Time that a run may take.
const LIMIT: &str = "120"; // seconds

/// A model and sequences that train in a moment.
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 256, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;
const BATCH: &str = "[[1,2,3,4,5,6,7],[9,8,7,6,5,4],[72,101,108,108,111],[200,3,200,3]]";

/// Returns why the task cannot run here, if it cannot.
pub(crate) fn missing() -> Option<String> {
    if found().is_empty() {
        return Some("mpi: neither Open MPI nor MPICH is installed".into());
    }
    (!has_libclang()).then(|| "mpi: libclang is not installed, which reads MPI's headers".into())
}

/// Runs the task, with every MPI that is installed; `part`: with the first, and a third of the layouts of
/// three and of four ranks.
pub(crate) fn run(part: bool) -> TaskResult {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return Ok(ExitCode::SUCCESS);
    }
    let all = found();
    for mpi in all.iter().take(if part { 1 } else { all.len() }) {
        mpi.check(part).map_err(|why| format!("{}: {why}", mpi.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the MPIs that are installed, each once.
fn found() -> Vec<InstalledMpi> {
    let mut all: Vec<InstalledMpi> = Vec::new();
    for ending in ENDINGS {
        let (compiler, launcher) = (format!("mpicc{ending}"), format!("mpirun{ending}"));
        let about = |command: &str| Command::new(command).arg("--version").output().ok();
        let Some((_, version)) = about(&compiler).zip(about(&launcher)) else { continue };
        let is_mpich = text(&version).contains("HYDRA") || text(&version).contains("MPICH");
        let name = if is_mpich { "MPICH" } else { "Open MPI" }.to_owned();
        if all.iter().all(|mpi| mpi.name != name) {
            all.push(InstalledMpi { compiler, launcher, name });
        }
    }
    all
}

fn has_libclang() -> bool {
    let folders = env::var_os("LIBCLANG_PATH").map(PathBuf::from).into_iter();
    let versions =
        fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path().join("lib"));
    let system = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from);
    folders.chain(versions).chain(system).any(|folder| {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with("libclang"))
    })
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

impl InstalledMpi {
    fn check(&self, part: bool) -> Result<(), String> {
        let target = root().join("target/mpi");
        let build = crate::cargo()
            .args(["build", "--quiet", "--profile", "test", "--package", "equipart", "--features", "mpi"])
            .envs([("MPICC", OsStr::new(&self.compiler)), ("CARGO_TARGET_DIR", target.as_os_str())])
            .status();
        if !build.map_err(|why| why.to_string())?.success() {
            return Err("the program does not build".into());
        }
        let program = target.join("debug/equipart");
        let listed = output(Command::new(&program).args(["strategies", "--json"]))?;
        let layouts: Vec<&str> = listed.lines().filter_map(|line| line.split('"').nth(3)).collect();
        let layouts: Vec<_> = layouts.into_iter().filter(|layout| layout.contains("=2")).collect();
        let mut proven = 0;
        for ranks in 2..=4 {
            let some =
                layouts.iter().enumerate().filter(|(i, _)| !part || ranks == 2 || (i + ranks) % 3 == 0);
            for (_, layout) in some {
                let layout = layout.replacen("=2", &format!("={ranks}"), 1);
                let said =
                    output(self.ranks(ranks, &program).args(["prove", "--json", "--layout", &layout]))?;
                let equal = said.lines().filter(|line| line.contains("\"equal\":true")).count();
                if equal != 1 || said.lines().count() != 1 {
                    return Err(format!("{layout} on {ranks} ranks: {said}"));
                }
                proven += 1;
            }
        }
        self.trains(&program, &target)?;
        self.refuses(&program)?;
        println!("{}: {proven} layouts proven, training in three dtypes with the bits of threads", self.name);
        Ok(())
    }
    /// Returns the command that starts this number of ranks.
    fn ranks(&self, ranks: usize, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT, &self.launcher]).args((self.name == "Open MPI").then_some("--oversubscribe"));
        command.args(["-n", &ranks.to_string()]).arg(program).stdin(Stdio::null());
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command
    }
    /// Trains under MPI and with threads, in each dtype; both end with the same bytes.
    fn trains(&self, program: &Path, target: &Path) -> Result<(), String> {
        let folder = target.join("trained");
        drop(fs::remove_dir_all(&folder));
        let file = |name: &str| folder.join(name).display().to_string();
        fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        for (name, content) in [("config.json", CONFIG), ("ids.json", BATCH)] {
            fs::write(file(name), content).map_err(|why| format!("{name}: {why}"))?;
        }
        for dtype in ["f32", "bf16", "f64"] {
            let mut weights = Vec::new();
            for (out, mut command) in [("mpi", self.ranks(4, program)), ("threads", Command::new(program))] {
                command.args([
                    "train",
                    "--steps",
                    "3",
                    "--optimizer",
                    "adamw",
                    "--layout",
                    "tp=2,dp=2:zero1",
                ]);
                command.args([
                    "--config",
                    &file("config.json"),
                    "--batch",
                    &file("ids.json"),
                    "--dtype",
                    dtype,
                ]);
                output(command.args(["--microbatches", "2", "--out", &file(out)]))?;
                let saved =
                    ["model.safetensors", "optimizer-3.safetensors"].map(|name| folder.join(out).join(name));
                let read =
                    |path: PathBuf| fs::read(&path).map_err(|why| format!("{}: {why}", path.display()));
                weights.push(saved.into_iter().map(read).collect::<Result<Vec<_>, _>>()?);
                drop(fs::remove_dir_all(folder.join(out)));
            }
            if weights[0] != weights[1] {
                return Err(format!("training in {dtype} ends with other bits than among threads"));
            }
        }
        Ok(())
    }
    /// Starts three ranks for a layout of two: one of them tells why all end.
    fn refuses(&self, program: &Path) -> Result<(), String> {
        let refused = self.ranks(3, program).args(["prove", "--layout", "tp=2"]).output();
        let refused = refused.map_err(|why| why.to_string())?;
        let said = text(&refused);
        let told: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        let whole = |why: &&str| why.contains(" is 3, but the layout tp=2 has 2 ranks");
        if told.len() != 1 || !told.iter().all(whole) || refused.status.success() {
            return Err(format!("three ranks for a layout of two: {said}"));
        }
        Ok(())
    }
}

/// Returns what a command prints.
fn output(command: &mut Command) -> Result<String, String> {
    let ended = command.output().map_err(|why| format!("{command:?} does not start: {why}"))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    Err(format!("{command:?} ends with {}: {}", ended.status, text(&ended)))
}
