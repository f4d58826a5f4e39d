//! Runs with one process a rank, as a launcher starts them. Only rank 0 prints results and writes files.
use crate::terminal::out;
use clap::Args;
use comm::{Launch, Processes, RunInputs, Secret, World};
use cuda::CardEngine;
use layers::counted;
use parallel::layout::either;
use parallel::split::BlockSplit;
use parallel::{Error, Layout, Network, Result, bail};
use rustix::process::{Pid, getppid};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;
use tensor::files::{self, seen};
use tensor::limits;

/// The help of `--secret`.
const SECRET: &str = "With ranks as processes: a file with a secret of 16 bytes or more, the same for all ranks [default: \
    EQUIPART_SECRET; without a secret, all ranks must be on this machine]";

/// Flags of the commands that run with one process a rank.
#[derive(Args, Debug, Default)]
pub(crate) struct ProcessesArgs {
    #[arg(long, value_name = "FILE", help = SECRET)]
    secret: Option<PathBuf>,
}

/// Long help of the commands that run with one process a rank.
pub(crate) const HELP: &str = "`equipart launch -n 4 -- COMMAND` starts one process a rank. Each reads its rank from its environment, where another launcher
can set it, too; all have the same arguments:
  RANK, WORLD_SIZE          its rank, and the number of ranks, which is that of the layout
  MASTER_ADDR, MASTER_PORT  address and port on which rank 0 listens
  LOCAL_RANK                with --device cuda: the index of its GPU [default: RANK]
  LOCAL_WORLD_SIZE          number of ranks on this machine [default: of those with its address]
  EQUIPART_SECRET           the secret of these processes, 16 bytes or more; or --secret FILE
torchrun sets all but the last. The ranks of mpirun (OMPI_COMM_WORLD_*, PMI_*) and srun (SLURM_*) are read as well; there, set
the address, the port and the secret. A program with the feature `mpi` needs none of these under mpirun: MPI joins its ranks.
Ranks compare their arguments, the program, and the bytes that they read of files. With a secret, both ends of each connection
prove that they know it, and a rank that does is trusted; traffic is neither encrypted nor signed, so the network must be your own,
or a tunnel. Without a secret, rank 0 listens only on this machine's loopback address, where any user can join.";

/// Checks that the command runs with one process a rank, if a launcher started several, and silences this
/// process if it is not rank 0.
///
/// # Errors
/// If a launcher started several and the command runs all ranks itself, or if a variable is invalid.
pub(crate) fn begin(is_by_processes: bool, all: &[&str]) -> Result<()> {
    if !is_by_processes {
        let Some((name, rank)) = Launch::rank_variable() else { return Ok(()) };
        let others = either(all, "or");
        bail!(
            "{name} is {rank}, and this command runs all its ranks itself; unset {name}, or start {others}, which run one rank a \
             process"
        );
    }
    let Some(Launch { rank, .. }) = launch()? else { return Ok(()) };
    end_with_launcher();
    seen::note(false);
    if rank > 0 {
        out::silence();
    }
    Ok(())
}

/// Returns a command that starts this program.
pub(crate) fn program() -> Result<Command> {
    let path = std::env::current_exe();
    let path = path.map_err(|why| Error::new(format!("the path of this program is not known: {why}")))?;
    Ok(Command::new(path))
}

/// Ends this process, from a thread, once the `equipart launch` that started it is gone: nothing else would.
fn end_with_launcher() {
    const EVERY: Duration = Duration::from_millis(200);
    let launcher = env::var(Launch::LAUNCHER).ok().and_then(|id| id.parse().ok());
    let Some(launcher) = launcher.and_then(Pid::from_raw) else { return };
    limits::spawn(move || {
        while getppid() == Some(launcher) {
            sleep(EVERY);
        }
        out::failure("error: equipart launch, which started this rank, is gone");
        exit(2)
    });
}

/// Returns the rank of this process, if a launcher started several.
pub(crate) fn launch() -> Result<Option<Launch>> {
    Processes::launch().map_err(Error::new)
}

/// True once this process has met others, or tried to.
static MET: AtomicBool = AtomicBool::new(false);

/// Calls `tell`, which prints an error, in one process: if a launcher started several that have not met, they
/// meet now to know of the error, and rank 0's process prints it. If they cannot meet, rank 0 prints it
/// first: then most launchers end the others.
pub(crate) fn tell_once(why: &str, tell: impl FnOnce()) {
    const LATER: Duration = Duration::from_secs(2);
    let launch = launch();
    if launch.is_err() && Launch::rank_variable().is_some_and(|(_, rank)| rank.trim() != "0") {
        sleep(LATER);
    }
    match launch.ok().flatten().filter(|_| !MET.load(Relaxed)) {
        Some(launch) if launch.rank > 0 => {
            if !Processes::refuse(&launch, why) {
                tell();
            }
        }
        launch => {
            tell();
            let _ = launch.map(|launch| Processes::refuse(&launch, why)); // which has told it
        }
    }
}

/// Writes the last calls of this process' rank when SIGTERM ends it: launchers of MPI and Slurm end all ranks
/// when one is lost, before they can say what they waited for.
fn shows_calls(processes: &Arc<Processes>) -> Result<()> {
    let signals = Signals::new([SIGTERM]);
    let mut signals = signals.map_err(|why| Error::new(format!("signals cannot be received: {why}")))?;
    let processes = processes.clone();
    limits::spawn(move || {
        for signal in signals.forever() {
            if let Some(calls) = processes.last_calls() {
                out::failure(&format!(
                    "rank {} was ended by SIGTERM; its last calls:\n{calls}",
                    processes.rank()
                ));
            }
            let _ = emulate_default_handler(signal); // ends the process
        }
    });
    Ok(())
}

impl ProcessesArgs {
    /// Connects the processes of the layouts' ranks, if ranks are processes, with this secret; `engine` joins
    /// their GPUs, if they have any. `only` lists flags that need all ranks in one process, each with whether
    /// it is given.
    ///
    /// # Errors
    /// If the number of processes is not the number of ranks, one of these flags is given, or the processes
    /// fail to connect.
    pub(crate) fn join(
        &self,
        network: Network,
        (layouts, engine): (&[Layout], Option<CardEngine>),
        split: Option<&BlockSplit>,
        only: &[(&str, bool)],
    ) -> Result<Network> {
        let Some(mut launch) = launch()? else {
            if let Some(file) = &self.secret {
                let file = file.display();
                bail!("--secret {file} is for ranks that are processes, but RANK is not set; leave it out");
            }
            return Ok(network);
        };
        if let Some(layout) = layouts.iter().find(|layout| launch.ranks != layout.ranks()) {
            let [_, name] = launch.variables;
            bail!(
                "{name} is {}, but the layout {layout} has {}; start one process a rank",
                launch.ranks,
                counted(layout.ranks(), "rank")
            );
        }
        let timed = ("split time", split.is_some_and(|split| matches!(split, BlockSplit::Time)));
        let traced = ("trace", network.trace.is_some());
        if let Some((flag, _)) = only.iter().chain(&[traced, timed]).find(|(_, given)| *given) {
            bail!(
                "--{flag} needs all ranks in one process, but {} is set; leave one of them out",
                launch.variables[0]
            );
        }
        // detected or requested
        let engine = engine.map(|engine| format!("[EQUIPART_ENGINE={}]", engine.name()));
        // each process reads its own file
        let tables = layouts.iter().filter_map(Layout::table);
        let tables = tables.map(|table| format!("[table {:016x}]", table.digest()));
        let about = env::args().skip(1).chain(engine).chain(tables).collect::<Vec<_>>().join(" ");
        // before the secret is read
        let mut asked = RunInputs { words: about, files: seen::files(), refused: None };
        asked.files.extend(seen::program().map(|program| ("the program".into(), program)));
        if let Some(file) = &self.secret {
            launch.secret =
                Secret::new(&files::read(file)?, &file.display().to_string()).map_err(Error::new)?;
        }
        if launch.rank == 0 && launch.secret.is_none() && launch.address.is_some() {
            out::note(
                "note: there is no secret, so any user of this machine can join; EQUIPART_SECRET or --secret keeps others out",
            );
        }
        MET.store(true, Relaxed);
        let processes = Processes::meet(&launch, &asked, network.timeout.unwrap_or(World::LIMIT))?;
        if launch.variables[0] != "RANK" {
            shows_calls(&processes)?;
        }
        Ok(Network { processes: Some(processes), ..network })
    }
}
