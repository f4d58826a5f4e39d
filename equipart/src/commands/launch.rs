//! `launch`: starts a command with one process a rank, on this machine, or by `mpirun` or `srun`.
mod local;

use crate::cli::processes::program;
use crate::cli::run::{Run, Shown};
use crate::cli::train::TrainArgs;
use crate::terminal::out;
use crate::views::Views;
use clap::{Args, Parser, Subcommand, ValueEnum};
use comm::Secret;
use layers::counted;
use local::{FirstEnd, LocalRanks, RunEnd};
use parallel::{Error, Layout, Result, bail};
use run::train::settings::at_least_1;
use run::train::state::State;
use signal_hook::low_level::signal_name;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, exit};

/// The most processes on one machine.
const MOST_HERE: usize = 4096;

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
    /// Flags of that launcher, separated by spaces, such as --by-args="--oversubscribe --bind-to none"; may
    /// be repeated
    #[arg(long, value_name = "FLAGS", requires = "by", allow_hyphen_values = true)]
    by_args: Vec<String>,
    /// Start all processes anew when one is lost, at most this number of times; a training run continues from
    /// its last checkpoint in --out
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    restarts: usize,
    /// With --restarts, for train: after each loss, continue with one rank fewer, or more fewer if no layout
    /// fits, but at least this number of ranks; in the planner's layout, with the same batches [default: all]
    #[arg(long, value_name = "RANKS", requires = "restarts")]
    min_ranks: Option<usize>,
    /// Command and its flags
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

const HELP: &str = "Each process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and a new
EQUIPART_SECRET. Standard output of rank 0 is that of the command; all other lines begin with their rank. SIGINT, SIGTERM and
SIGHUP go to all processes, which have ten seconds to end; a second signal kills them. The exit code is then 128 and the
signal's number, else that of the process that ended first with a failure. If this command is killed, its ranks end. Under
mpirun and srun, the processes take their ranks from that launcher, which gets SIGTERM to end them, and rank 0 must run on this
machine.

    equipart launch -n 4 -- prove --layout tp=2,dp=2
    equipart launch -n 2 --restarts 3 -- train --layout dp=2 --steps 1000 --out run --checkpoint-every 100
    equipart launch -n 4 --restarts 2 --min-ranks 2 -- train --layout tp=2,dp=2 --out run";

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
    Ok([
        ("MASTER_ADDR", host.to_string()),
        ("MASTER_PORT", free.port().to_string()),
        ("EQUIPART_SECRET", Secret::drawn().map_err(Error::new)?),
    ])
}

impl Run for LaunchArgs {
    const HAS: Option<u8> = None;

    fn run(self, views: &Views) -> Result<bool> {
        at_least_1(&[("ranks", self.ranks)])?;
        if self.by.is_none() && self.ranks > MOST_HERE {
            bail!("--ranks is {}; on one machine it must be at most {MOST_HERE}", self.ranks);
        }
        self.min_ranks.map_or(Ok(()), |least| can_shrink(&self.command, [least, self.ranks]))?;
        let (mut asked, begun) = (self.command.clone(), begun(&self.command));
        let mut command = asked.clone();
        let mut ranks = self.ranks;
        let least = self.min_ranks.unwrap_or(ranks);
        let mut signals = local::signals()?;
        for left in (0..=self.restarts).rev() {
            let started = match self.by {
                Some(launcher) => launcher.start(ranks, &self.by_args, &command)?,
                None => LocalRanks::start(ranks, &command, &meeting("127.0.0.1")?)?,
            };
            let end = match started.wait(&mut signals)? {
                RunEnd::Well => return Ok(true),
                RunEnd::Stopped(signal) => {
                    let name = signal_name(signal).unwrap_or("a signal");
                    out::note(&format!("note: stopped by {name}; all ranks have ended"));
                    drop(out::finish());
                    exit(128 + signal);
                }
                RunEnd::Failed(end) => end,
            };
            let is_lost = end.is_lost();
            let FirstEnd { what, status } = end;
            if !is_lost || left == 0 {
                let Some(code) = status.code() else { bail!("{what}: {status}") };
                drop(out::finish());
                exit(code);
            }
            command = resumed(&asked, begun);
            let mut who = "all".into();
            if ranks > least {
                let layout = smaller(&command, least..ranks, views)
                    .map_err(|why| Error::new(format!("{what} ({status}), and the run ends: {why}")))?;
                for words in [&mut asked, &mut command] {
                    *words = laid_out(words, &layout);
                }
                ranks = layout.ranks();
                who = format!("{} under {layout}", counted(ranks, "rank"));
            }
            let more = left - 1;
            out::note(&format!("note: {what} ({status}); {who} start anew, and {more} times more"));
        }
        unreachable!("the last start ends the loop")
    }
}

impl Launcher {
    /// Starts the launcher, with these flags of its own.
    fn start(self, ranks: usize, own: &[String], arguments: &[String]) -> Result<LocalRanks> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.map_err(|why| Error::new(format!("the name of this machine is not known: {why}")))?;
        let meeting = meeting(host.trim())?;
        let name = match self {
            Launcher::Mpirun => "mpirun",
            Launcher::Srun => "srun",
        };
        let mut command = Command::new(name);
        command.args(["-n", &ranks.to_string()]).args(own.iter().flat_map(|flags| flags.split_whitespace()));
        if self == Launcher::Mpirun && is_open_mpi() {
            command.args(meeting.iter().flat_map(|(name, _)| ["-x", name]));
        }
        command.envs(meeting).arg(program()?.get_program()).args(arguments);
        LocalRanks::by(name, command)
    }
}

/// Returns true if `mpirun` is that of Open MPI, which passes only named variables to other machines.
fn is_open_mpi() -> bool {
    let output = Command::new("mpirun").arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
}

/// A command line of `train`.
#[derive(Parser)]
struct TrainCommand {
    #[command(subcommand)]
    command: TrainOnly,
    /// As of all commands.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum TrainOnly {
    Train(Box<Shown<TrainArgs>>),
}

/// Returns the flags of a training run.
///
/// # Errors
/// If it is another command.
fn train_args(command: &[String]) -> Result<TrainArgs> {
    let program = std::iter::once("equipart");
    match TrainCommand::try_parse_from(program.chain(command.iter().map(String::as_str))) {
        Ok(TrainCommand { command: TrainOnly::Train(train), .. }) => Ok(train.flags),
        Err(_) => bail!("--min-ranks is for train, which continues from checkpoints; leave it out"),
    }
}

/// Checks that a command can continue with fewer ranks, down to `least`.
///
/// # Errors
/// If `least` is not a number of these ranks, or the command trains in no layout that may change.
fn can_shrink(command: &[String], [least, ranks]: [usize; 2]) -> Result<()> {
    if least == 0 || least > ranks {
        bail!("--min-ranks is {least}; it must be 1 to the number of ranks, {ranks}");
    }
    let train = train_args(command)?;
    let schedule = train.asked()?.layout.pipeline().schedule;
    if schedule.updates_each() {
        bail!(
            "--min-ranks continues in an exact layout, but {} trains with stale weights; leave one of them out",
            schedule.about().name
        );
    }
    train.can_be_planned("--min-ranks")
}

/// Returns the best layout of the most ranks, of these numbers, that keeps the steps of a training run.
fn smaller(command: &[String], ranks: Range<usize>, views: &Views) -> Result<Layout> {
    let planner = train_args(command)?.planner(views)?;
    ranks.clone().rev().find_map(|ranks| planner.find(ranks, views)).ok_or_else(|| {
        let to = counted(ranks.end - 1, "rank");
        let these = if ranks.len() == 1 { to } else { format!("{} to {to}", ranks.start) };
        Error::new(format!("no layout of {these} fits {}; a smaller --min-ranks may help", planner.step()))
    })
}

/// Splits a command into the words without these flags, and the last value of each.
fn without<const N: usize>(command: &[String], flags: [&str; N]) -> (Vec<String>, [Option<String>; N]) {
    let (mut rest, mut words, mut values) = (command.iter(), Vec::new(), [const { None }; N]);
    while let Some(word) = rest.next() {
        let (flag, value) = word.split_once('=').map_or((&**word, None), |(flag, value)| (flag, Some(value)));
        match flags.iter().position(|name| *name == flag) {
            Some(at) => values[at] = value.or_else(|| rest.next().map(String::as_str)).map(str::to_owned),
            None => words.push(word.clone()),
        }
    }
    (words, values)
}

/// Returns a training command in another layout; for one rank without the flags that need two.
fn laid_out(command: &[String], layout: &Layout) -> Vec<String> {
    let (mut words, _) = without(command, ["--layout"]);
    if layout.ranks() == 1 {
        (words, _) = without(&words, ["--timeout", "--check-every"]);
        words.retain(|word| word != "--stragglers");
    }
    [words, vec!["--layout".into(), layout.to_string()]].concat()
}

/// Returns the number of steps that are done before a command begins: those of the run to resume.
fn begun(command: &[String]) -> usize {
    let (_, [resume]) = without(command, ["--resume"]);
    resume.and_then(|dir| State::read(Path::new(&dir)).ok()).map_or(0, |state| state.steps())
}

/// Returns the command that continues a training run, which began after `begun` steps, from its last
/// checkpoint in `--out`, up to the step at which `--stop-after` stops it; after the last step, it only
/// evaluates. The same command if there is no checkpoint.
fn resumed(command: &[String], begun: usize) -> Vec<String> {
    const CHANGED: [&str; 5] = ["--resume", "--out", "--stop-after", "--model", "--config"];
    let (mut words, [resume, out, stop, ..]) = without(command, CHANGED);
    let read = |out: String| Some((State::read(Path::new(&out)).ok()?, out));
    let Some((state, out)) = out.or(resume).and_then(read) else { return command.to_vec() };
    let done = state.steps().saturating_sub(begun);
    let stop = stop.and_then(|stop| stop.parse().ok()).map(|stop: usize| stop.saturating_sub(done));
    // before this run's first checkpoint, the file ends where an earlier run did
    let left = if done > 0 && state.has_ended() { Some(0) } else { stop };
    words.extend(left.into_iter().flat_map(|left| ["--stop-after".into(), left.to_string()]));
    words.extend(["--resume".into(), out]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Arguments;

    /// Kills: a run that is over and is begun again, or whose steps are counted from another begin; a run
    /// that goes on with more steps and is taken for one that is over.
    #[test]
    fn a_restart_does_the_steps_that_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name| dir.path().join(name).display().to_string();
        let [config, batch, out] = ["config.json", "ids.json", "out"].map(at);
        let small = r#"{"model_type":"llama","hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,
            "num_attention_heads":1,"vocab_size":16,"max_position_embeddings":8}"#;
        std::fs::write(&config, small).unwrap();
        std::fs::write(&batch, "[[1,2,3]]").unwrap();
        let asked = ["train", "--config", &config, "--batch", &batch, "--steps", "3", "--out", &out];
        let asked = asked.map(str::to_owned).to_vec();
        let stopping = |steps: &str| [&asked[..], &["--stop-after".into(), steps.into()]].concat();
        let run = |command: &[String]| {
            let program = std::iter::once("equipart").chain(command.iter().map(String::as_str));
            assert!(Arguments::parse_from(program).command.unwrap().run(true).unwrap());
        };
        let left = |command: &[String], begun| {
            let next = resumed(command, begun);
            assert!(next.ends_with(&["--resume".into(), out.clone()]), "{next:?}");
            without(&next, ["--stop-after"]).1[0].clone()
        };
        assert_eq!(resumed(&asked, 0), asked, "there is no checkpoint");
        run(&stopping("2"));
        assert_eq!(begun(&resumed(&asked, 0)), 2);
        assert_eq!([left(&asked, 0), left(&stopping("5"), 0)], [None, Some("3".into())]);
        assert_eq!(left(&stopping("5"), 2), Some("5".into()), "nothing is saved since");
        run(&resumed(&asked, 0));
        let ended = [left(&asked, 0), left(&stopping("5"), 2)];
        assert_eq!(ended, ["0", "0"].map(|steps| Some(steps.to_owned())));
        assert_eq!(left(&asked, 3), None, "with more steps than those that are done");
        run(&resumed(&asked, 0));
        let one: Layout = "none".parse().unwrap();
        let flags = ["--timeout=1", "--check-every", "2", "--stragglers", "--layout=dp=2"].map(str::to_owned);
        let alone = laid_out(&[&asked[..], &flags].concat(), &one);
        assert_eq!(alone, [&asked[..], &["--layout".into(), "none".into()]].concat());
    }
}
