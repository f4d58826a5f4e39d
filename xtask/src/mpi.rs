//! `cargo xtask mpi`: builds the program with MPI as the carrier of ranks, and runs it under MPI's launcher:
//! the proof of every layout on two, three and four ranks; training, which must have the bits of threads in
//! every layout and dtype, as over TCP; and ranks that do not fit, do not come or stop.
use crate::task::{TaskResult, cargo, root};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs};

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
/// A training run, without its layout, its steps and its dtype.
const TRAIN: &str =
    "train --json --config config.json --batch ids.json --microbatches 4 --optimizer adamw --lr 0.01";

/// A model that fits every layout of two ranks, and sequences: they train in a moment.
const CONFIG: &str = r#"{"model_type": "mixtral", "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 8, "intermediate_size": 24, "vocab_size": 256, "max_position_embeddings": 32,
    "num_local_experts": 4, "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;
const BATCH: &str =
    "[[1,2,3,4,5,6,7],[9,8,7,6,5,4],[72,101,108,108,111],[200,3,200,3],[5,6,7],[8,1,8,1,8,1],[4,4,4,4],
    [250,1,2]]";

/// Returns why the task cannot run here, if it cannot.
pub(crate) fn missing() -> Option<String> {
    if found().is_empty() {
        return Some("mpi: neither Open MPI nor MPICH is installed".into());
    }
    (!has_libclang()).then(|| "mpi: libclang is not installed, which reads MPI's headers".into())
}

/// Runs the task, with every MPI that is installed; `part`: with the first, and a twelfth of the layouts.
pub(crate) fn run(part: bool) -> TaskResult {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return Ok(ExitCode::SUCCESS);
    }
    let installed = found();
    for mpi in installed.iter().take(if part { 1 } else { installed.len() }) {
        mpi.check(part).map_err(|why| format!("{}: {why}", mpi.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the MPIs that are installed, each once.
fn found() -> Vec<InstalledMpi> {
    let mut installed: Vec<InstalledMpi> = Vec::new();
    for ending in ENDINGS {
        let compiler = format!("mpicc{ending}");
        let launcher = format!("mpirun{ending}");
        let about = |command: &str| Command::new(command).arg("--version").output().ok();
        let Some((_, version)) = about(&compiler).zip(about(&launcher)) else { continue };
        let is_mpich = text(&version).contains("HYDRA") || text(&version).contains("MPICH");
        let name = if is_mpich { "MPICH" } else { "Open MPI" }.to_owned();
        if installed.iter().all(|mpi| mpi.name != name) {
            installed.push(InstalledMpi { compiler, launcher, name });
        }
    }
    installed
}

fn has_libclang() -> bool {
    let folders = env::var_os("LIBCLANG_PATH").map(PathBuf::from).into_iter();
    let versions =
        fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path().join("lib"));
    let system = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from);
    folders.chain(versions).chain(system).any(|folder| {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let of_c = |name: &str| name.starts_with("libclang.so") || name.starts_with("libclang-");
        let is_one = |name: &str| of_c(name) && !name.starts_with("libclang-cpp") && name.contains(".so");
        names.into_iter().any(|name| is_one(&name.to_string_lossy()))
    })
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the losses of lines of training.
fn losses(said: &str) -> Vec<String> {
    let loss = |line: &str| line.split_once(",\"lr\"").map(|(step, _)| step.to_owned());
    said.lines().filter_map(loss).collect()
}

impl InstalledMpi {
    fn check(&self, part: bool) -> Result<(), String> {
        let target = root().join("target/mpi").join(&self.compiler); // a build would keep the MPI of another
        let build = cargo()
            .args(["build", "--quiet", "--profile", "test", "--package", "equipart", "--features", "mpi"])
            .envs([("MPICC", OsStr::new(&self.compiler)), ("CARGO_TARGET_DIR", target.as_os_str())])
            .status();
        if !build.map_err(|why| why.to_string())?.success() {
            return Err("the program does not build".into());
        }
        let program = target.join("debug/equipart");
        let listed = output(Command::new(&program).args(["strategies", "--json"]))?;
        let layouts = listed.lines().filter_map(|line| line.split('"').nth(3));
        let layouts: Vec<_> = layouts.filter(|layout| layout.contains("=2")).collect();
        let some = |of: usize| {
            let layouts = layouts.iter().enumerate();
            layouts.filter(move |(i, _)| !part || (i + of).is_multiple_of(12)).map(|(_, layout)| *layout)
        };
        let mut proven = 0;
        for ranks in 2..=4 {
            for layout in some(ranks) {
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
        let folder = target.join("trained");
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        let large = CONFIG.replace("size\": 16", "size\": 64").replace("size\": 256", "size\": 4096");
        for (name, content) in [("config.json", CONFIG), ("large.json", &large), ("ids.json", BATCH)] {
            fs::write(folder.join(name), content).map_err(|why| format!("{name}: {why}"))?;
        }
        let mut trained = 0;
        for (of, dtype) in ["f32", "bf16", "f64"].into_iter().enumerate() {
            // whose state the host has anyway
            for layout in some(of).filter(|layout| !layout.contains("offload-host")) {
                self.trains(&program, &folder, layout, dtype)?;
                trained += 1;
            }
        }
        self.saves(&program, &folder)?;
        self.fails(&program, &folder)?;
        println!(
            "{}: {proven} layouts proven, {trained} trainings with the bits of threads, as over TCP",
            self.name
        );
        Ok(())
    }
    /// Returns the command that starts this number of ranks.
    fn ranks(&self, ranks: usize, program: &Path) -> Command {
        let mut command = self.launcher();
        command.args(["-n", &ranks.to_string()]).arg(program);
        command
    }
    fn launcher(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT, &self.launcher]).args((self.name == "Open MPI").then_some("--oversubscribe"));
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command.stdin(Stdio::null());
        command
    }
    /// Trains on two ranks under MPI, over TCP and with threads, all with the same losses.
    fn trains(&self, program: &Path, folder: &Path, layout: &str, dtype: &str) -> Result<(), String> {
        let train = |command: &mut Command| {
            let args = TRAIN.split_whitespace().chain(["--layout", layout, "--dtype", dtype, "--steps", "2"]);
            output(command.current_dir(folder).args(args)).map(|said| losses(&said))
        };
        let threads = train(&mut Command::new(program))?;
        let tcp = train(Command::new(program).args(["launch", "-n", "2", "--"]))?;
        let mpi = train(&mut self.ranks(2, program))?;
        if threads.len() == 2 && tcp == threads && mpi == threads {
            return Ok(());
        }
        Err(format!("{layout} in {dtype}: losses of threads {threads:?}, over TCP {tcp:?}, over MPI {mpi:?}"))
    }
    /// Trains under MPI and with threads; both save the same files.
    fn saves(&self, program: &Path, folder: &Path) -> Result<(), String> {
        for (dtype, config) in [("f32", "large.json"), ("bf16", "config.json")] {
            let mut weights = Vec::new();
            for (out, mut command) in [("mpi", self.ranks(4, program)), ("threads", Command::new(program))] {
                command.args(TRAIN.replace("config.json", config).split_whitespace());
                command.args(["--layout", "tp=2,dp=2:zero1", "--steps", "3"]);
                output(command.args(["--dtype", dtype, "--out", out]).current_dir(folder))?;
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
    /// Starts ranks that do not fit, do not come or stop: one of them tells why all end, and none is left.
    fn fails(&self, program: &Path, folder: &Path) -> Result<(), String> {
        let name = program.display();
        let train = format!("{name} {TRAIN} --layout dp=2 --timeout 2 --steps");
        let each = |what: &str| format!("{train} {what}");
        // the other rank waits for it in a call, or while it sends to it
        let [small, large] = [each("1000000"), each("1000000").replace("config.json", "large.json")];
        let stops = |train: &str| format!("{train} & sleep 3; kill -STOP $!; sleep 4; kill -KILL $!");
        let [small_stops, large_stops] = [stops(&small), stops(&large)];
        let cases = [
            (format!("{name} prove --layout tp=3"), None, " is 2, but the layout tp=3 has 3 ranks"),
            (each("2"), Some(each("2 --seed 7")), "ranks have different arguments: rank 1 has "),
            (each("2"), Some(each("2 --no-such")), "rank 1: unexpected argument '--no-such' found"),
            (
                each("2"),
                Some("sleep 60".into()),
                "rank 0 started MPI and waited 2s, but other ranks have not",
            ),
            (
                "sleep 60".into(),
                Some(each("2")),
                "rank 1 started MPI and waited 2s, but other ranks have not",
            ),
            (small, Some(small_stops), " did not arrive within 2s at "),
            (large, Some(large_stops), " did not arrive within 2s at "),
        ];
        for (zero, one, wanted) in cases {
            let mut command = self.launcher();
            let one = one.as_ref().unwrap_or(&zero);
            command.args(["-n", "1", "sh", "-c", &zero, ":", "-n", "1", "sh", "-c", one]);
            let ended = command.current_dir(folder).output().map_err(|why| why.to_string())?;
            let said = text(&ended);
            let told: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
            let fits = told.len() == 1 && told[0].contains(wanted) && !ended.status.success();
            if !fits || said.contains("panicked") {
                return Err(format!("\"{zero}\" beside \"{one}\": wanted {wanted:?}, seen {said}"));
            }
        }
        sleep(Duration::from_secs(1)); // in which a launcher ends what it started
        let left = Command::new("pgrep").args(["-f", &program.display().to_string()]).output();
        match left {
            Ok(left) if !left.stdout.is_empty() => Err(format!("processes are left: {}", text(&left))),
            _ => Ok(()),
        }
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
