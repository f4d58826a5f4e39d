//! Runs whose ranks are processes, one each, as torchrun starts them. Rank 0 alone shows results and writes files.
use super::args::Command;
use super::out;
use comm::{Launch, Processes, World};
use cuda::Engine;
use parallel::split::BlockSplit;
use parallel::{Error, Layout, Network, Result, bail};
use std::env;

/// Of the long help of the commands that may run so.
pub(crate) const HELP: &str =
    "With RANK set, as torchrun does, this process runs that rank of the layout alone, and the others run \
in processes of their own with the same arguments:
  RANK, WORLD_SIZE          which rank it is, and how many there are: as many as the layout has
  MASTER_ADDR, MASTER_PORT  where rank 0 listens and the others find it
  LOCAL_RANK                with --device cuda: which GPU it takes [default: RANK]";

/// What is known before a command begins: other commands than these run all their ranks themselves, and of the ranks' processes
/// one tells.
///
/// # Errors
/// That there is a `RANK` and the command runs all ranks itself, or what is wrong with its variables.
pub(crate) fn begin(command: &Command) -> Result<()> {
    let rank = env::var("RANK");
    match (command, rank) {
        (_, Err(_)) => Ok(()),
        (Command::Train(_) | Command::Generate(_) | Command::Eval(_), _) => {
            if launch()?.is_some_and(|launch| launch.rank > 0) {
                out::hush();
            }
            Ok(())
        }
        (_, Ok(rank)) => Err(Error::new(format!(
            "RANK is {rank}, and this command runs all its ranks itself; unset RANK, or start train, generate or eval, which run \
             one rank a process"
        ))),
    }
}

/// This process' rank.
pub(crate) fn launch() -> Result<Option<Launch>> {
    Launch::of_process().map_err(Error::new)
}

/// A network of the processes that the layout's ranks are, if they are, which have met, and are joined by this engine, if they have
/// GPUs; `only` names flags that are for all ranks in one process, and whether they are given.
///
/// # Errors
/// If there are not as many processes as ranks, one of the flags is given, or they do not meet.
pub(crate) fn joined(
    network: Network,
    (layout, engine): (&Layout, Option<Engine>),
    split: Option<&BlockSplit>,
    only: &[(&str, bool)],
) -> Result<Network> {
    let Some(launch) = launch()? else { return Ok(network) };
    if launch.ranks != layout.ranks() {
        let (there, ranks) = (launch.ranks, layout.ranks());
        bail!(
            "WORLD_SIZE is {there}, and the layout {layout} has {ranks} ranks: there is one process a rank"
        );
    }
    let timed = ("split time", split.is_some_and(|split| matches!(split, BlockSplit::Time)));
    let traced = ("trace", network.trace.is_some());
    if let Some((flag, _)) = only.iter().chain(&[traced, timed]).find(|(_, given)| *given) {
        bail!(
            "--{flag} is for ranks that are threads of one process, and RANK is set; leave one of them out"
        );
    }
    let engine = engine.map(|engine| format!("[EQUIPART_ENGINE={}]", engine.name())); // found, or asked for
    let table = layout.table().map(|table| format!("[table {:016x}]", table.digest())); // each process reads its own file
    let about = env::args().skip(1).chain(engine).chain(table).collect::<Vec<_>>().join(" ");
    let processes =
        Processes::meet(&launch, &about, network.timeout.unwrap_or(World::LIMIT)).map_err(Error::new)?;
    Ok(Network { processes: Some(processes), ..network })
}
