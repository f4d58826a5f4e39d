//! `launch`: starts a command with one process a rank, on this machine, or by `mpirun` or `srun`.
mod local;

use super::Run;
use super::train::state::State;
use crate::cli::out;
use crate::commands::train::settings::at_least_1;
use clap::{Args, ValueEnum};
use comm::Secret;
use local::{FirstEnd, LocalRanks, program};
use parallel::{Error, Result, bail};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, exit};

/// Run a command with one process a rank
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct LaunchArgs {
    /// Number of processes: the ranks of the command's layout
    #[arg(short = 'n', long = "ranks", value_name = "RANKS")]
    ranks: usize,
    /// Start the processes by another launcher
    #[arg(long, value_name = "LAUNCHER")]
    by: Option<Launcher>,
    /// Start all processes anew when one is lost, at most this number of times; a training run continues from
    /// its last checkpoint in --out
    #[arg(long, value_name = "TIMES", default_value_t = 0, conflicts_with = "by")]
    restarts: usize,
    /// Command and its flags
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

const HELP: &str = "Each process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and a new
EQUIPART_SECRET. Standard output of rank 0 is that of the command; all other lines begin with their rank. A signal that would
end this command goes to all processes. The exit code is that of the process that ended first with a failure. Under mpirun and
srun, the processes take their ranks from that launcher, and rank 0 must run on this machine.

    equipart launch -n 4 -- prove --layout tp=2,dp=2
    equipart launch -n 2 --restarts 3 -- train --layout dp=2 --steps 1000 --out run --checkpoint-every 100";

/// A launcher of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Launcher {
    /// Open MPI's or MPICH's
    Mpirun,
    /// Slurm's
    Srun,
}

/// Returns the place where processes meet, and their secret, as variables.
fn meeting(host: &str) -> Result<[(&'static str, String); 3]> {
    let free = TcpListener::bind((host, 0)).and_then(|listener| listener.local_addr());
    let free = free.map_err(|why| Error::new(format!("{host} has no free port for ranks to meet: {why}")))?;
    let secret = Secret::drawn().map_err(Error::new)?;
    Ok([
        ("MASTER_ADDR", host.to_string()),
        ("MASTER_PORT", free.port().to_string()),
        ("EQUIPART_SECRET", secret),
    ])
}

impl Run for LaunchArgs {
    fn run(self, _: bool) -> Result<bool> {
        at_least_1(&[("ranks", self.ranks)])?;
        let stops = |word: &String| word == "--stop-after" || word.starts_with("--stop-after=");
        if self.restarts > 0 && self.command.iter().any(stops) {
            bail!("--restarts continues a run to its end; leave out --stop-after, or --restarts");
        }
        match self.by {
            None => self.here(),
            Some(launcher) => self.elsewhere(launcher),
        }
    }
}

impl LaunchArgs {
    /// Runs the processes on this machine.
    fn here(&self) -> Result<bool> {
        let mut command = self.command.clone();
        for restarts in 0.. {
            let ranks = LocalRanks::start(self.ranks, &command, &meeting("127.0.0.1")?)?;
            let Some(end) = ranks.wait()? else { return Ok(true) };
            let FirstEnd { rank, status } = end;
            if !end.is_lost() || restarts == self.restarts {
                let Some(code) = status.code() else { bail!("rank {rank} was lost: {status}") };
                drop(out::finish());
                exit(code);
            }
            command = resumed(&self.command);
            let left = self.restarts - restarts - 1;
            out::note(&format!(
                "note: rank {rank} was lost ({status}); all start anew, and {left} times more"
            ));
        }
        unreachable!("the loop ends by itself")
    }
    /// Runs the processes by another launcher, and ends as it does.
    fn elsewhere(&self, launcher: Launcher) -> Result<bool> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.map_err(|why| Error::new(format!("the name of this machine is not known: {why}")))?;
        let meeting = meeting(host.trim())?;
        let (name, mut command) = match launcher {
            Launcher::Mpirun => ("mpirun", Command::new("mpirun")),
            Launcher::Srun => ("srun", Command::new("srun")),
        };
        command.args(["-n", &self.ranks.to_string()]);
        if launcher == Launcher::Mpirun && is_open_mpi() {
            command.args(meeting.iter().flat_map(|(name, _)| ["-x", name]));
        }
        command.envs(meeting).arg(program()?.get_program()).args(&self.command);
        let status =
            command.status().map_err(|why| Error::new(format!("{name} cannot be started: {why}")))?;
        let Some(code) = status.code() else { bail!("{name} was lost: {status}") };
        exit(code)
    }
}

/// Returns true if `mpirun` is that of Open MPI, which passes only named variables to other machines.
fn is_open_mpi() -> bool {
    let output = Command::new("mpirun").arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
}

/// Returns the command that continues a training run from its last checkpoint in `--out`; the same command if
/// there is none.
fn resumed(command: &[String]) -> Vec<String> {
    let (mut rest, mut words, mut folders) = (command.iter(), Vec::new(), [None, None]);
    while let Some(word) = rest.next() {
        let (flag, value) = word.split_once('=').map_or((&**word, None), |(flag, value)| (flag, Some(value)));
        let Some(at) = ["--resume", "--out", "--model", "--config"].iter().position(|name| *name == flag)
        else {
            words.push(word.clone());
            continue;
        };
        let value = value.or_else(|| rest.next().map(String::as_str));
        folders.get_mut(at).into_iter().for_each(|folder| *folder = value);
    }
    let [resume, out] = folders;
    let Some(out) = out.or(resume).filter(|out| State::read(Path::new(out)).is_ok()) else {
        return command.to_vec();
    };
    words.extend(["--resume".into(), out.into()]);
    words
}
