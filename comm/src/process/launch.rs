//! Rank of a process, from the variables of the launcher that started it. Sources: PyTorch, "torchrun
//! (Elastic Launch)", "Environment Variables"; Open MPI, "Environment variables"; Slurm, `srun`, "Output
//! environment variables". MPICH's launcher sets those of PMI.
use super::secret::Secret;
use rustix::process::Signal;
#[cfg(target_os = "linux")]
use rustix::process::set_parent_process_death_signal;
use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Rank of a process, number of ranks, and the address where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Names of the variables with the rank and with the number of ranks, as the launcher sets them.
    pub variables: [&'static str; 2],
    /// The rank, such as `RANK` of torchrun.
    pub rank: usize,
    /// Number of ranks, such as `WORLD_SIZE`.
    pub ranks: usize,
    /// Rank on its machine, which picks its GPU, such as `LOCAL_RANK`; or the rank.
    pub local: usize,
    /// Host and port at which rank 0 listens: `MASTER_ADDR`, and `MASTER_PORT` or the next one if torchrun's
    /// own store listens there. `None` if what carries the ranks' messages needs no address.
    pub address: Option<(String, u16)>,
    /// Number of ranks on this machine, such as `LOCAL_WORLD_SIZE`; `None`: those that have its address.
    pub here: Option<usize>,
    /// Secret that only the processes of this run know: `EQUIPART_SECRET`.
    pub secret: Secret,
}

/// Variables of a launcher: rank, number of ranks, rank on the machine, number of ranks on the machine.
type LauncherVariables = [&'static str; 4];

/// Launchers, the first one first: a launcher may be started by a later one, whose variables it inherits.
const LAUNCHERS: [LauncherVariables; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""], // has no number for one machine
];

/// Variables of launchers whose ranks do not follow those of a launcher that started them: torchrun's, and
/// that of `equipart launch`.
const NESTED: [&str; 2] = ["TORCHELASTIC_RUN_ID", Launch::LAUNCHER];

/// Variables of this process.
fn of_process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns the variables of the launcher that started several processes, this one among them; `None` if none
/// did. A process with `RANK` is one of several, whatever their number.
fn launcher(get: &dyn Fn(&str) -> Option<String>) -> Option<LauncherVariables> {
    LAUNCHERS
        .into_iter()
        .enumerate()
        .find(|(i, [rank, ranks, ..])| get(rank).is_some() && (*i == 0 || several(get, ranks)))
        .map(|(_, names)| names)
}

fn several(get: &dyn Fn(&str) -> Option<String>, name: &str) -> bool {
    get(name).is_some_and(|n| n.trim() != "1")
}

/// Returns the reason why the variables of a process name no rank, although some are set: it would run alone.
fn half_set(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let half = LAUNCHERS.into_iter().find_map(|[rank, ranks, local, here]| {
        let of_several = [ranks, here].into_iter().find(|name| several(get, name));
        let name = of_several.or(Some(local).filter(|local| get(local).is_some()))?;
        get(rank).is_none().then_some((name, rank))
    });
    let address = || {
        let no_rank = LAUNCHERS.iter().all(|[rank, ..]| get(rank).is_none());
        let set = ["MASTER_ADDR", "MASTER_PORT"].into_iter().find(|name| get(name).is_some());
        set.filter(|_| no_rank).map(|name| (name, LAUNCHERS[0][0]))
    };
    let (name, rank) = half.or_else(address)?;
    let value = get(name).unwrap_or_default();
    Some(format!(
        "{name} is {value}, and {rank} is not set; set {rank} to the rank of this process, or unset {name}"
    ))
}

/// Returns the first difference between the rank and the number of ranks that `RANK` and `WORLD_SIZE` say,
/// and those of another launcher that started several processes.
fn contradiction(get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let [own, others @ ..] = LAUNCHERS;
    if NESTED.iter().any(|name| get(name).is_some()) {
        return None;
    }
    let of_several =
        others.into_iter().filter(|[rank, ranks, ..]| get(rank).is_some() && several(get, ranks));
    let mut pairs = of_several.flat_map(|theirs| [(own[0], theirs[0]), (own[1], theirs[1])]);
    pairs.find_map(|(own, theirs)| {
        let (ours, other) = (get(own)?, get(theirs)?);
        let differ = ours.trim() != other.trim();
        differ
            .then(|| format!("{own} is {ours}, but {theirs} is {other}; unset the variables of one launcher"))
    })
}

impl Launch {
    /// Variable with the id of the `equipart launch` that started this process.
    pub const LAUNCHER: &str = "EQUIPART_LAUNCHER";

    /// Makes the system send the command's process a signal once this process has ended, however it ends. The
    /// thread that starts the process must last as long as this process.
    pub fn signal_at_end(command: &mut Command, signal: Signal) {
        #[cfg(target_os = "linux")]
        // SAFETY: one system call, which allocates and locks nothing.
        unsafe {
            command.pre_exec(move || Ok(set_parent_process_death_signal(Some(signal))?));
        }
    }
    /// Returns a rank on this machine that meets the others at a port of the loopback address.
    #[must_use]
    pub fn nearby(rank: usize, ranks: usize, port: u16) -> Self {
        let [name, size, ..] = LAUNCHERS[0];
        let (address, secret) = (Some(("127.0.0.1".to_owned(), port)), Secret::default());
        Self { variables: [name, size], rank, ranks, local: rank, address, here: None, secret }
    }
    /// Reads the variables of this process; `needs_address` is asked for the one with its rank.
    pub(super) fn of_process(needs_address: impl Fn(&str) -> bool) -> Result<Option<Self>, String> {
        Self::by(&of_process, needs_address)
    }
    /// Returns the name and the value of the variable with the rank of this process; `None` if no launcher
    /// started several.
    #[must_use]
    pub fn rank_variable() -> Option<(&'static str, String)> {
        let [name, ..] = launcher(&of_process)?;
        of_process(name).map(|rank| (name, rank))
    }
    fn by(
        get: &dyn Fn(&str) -> Option<String>,
        needs_address: impl Fn(&str) -> bool,
    ) -> Result<Option<Self>, String> {
        let Some([rank_name, ranks_name, local_name, here_name]) = launcher(get) else {
            return half_set(get).map_or(Ok(None), Err);
        };
        let rank = get(rank_name).expect("it is how the launcher was found");
        let is_torchrun = rank_name == LAUNCHERS[0][0];
        let or = if is_torchrun { "" } else { ", or build equipart with --features mpi" };
        let wanted = |name: &str, what: &str| {
            get(name).ok_or_else(|| format!("{rank_name} is {rank}, and {name} is not set; set it to {what}"))
        };
        let ranks = number(ranks_name, &wanted(ranks_name, "the number of ranks")?)?;
        let address = || {
            let host = wanted("MASTER_ADDR", &format!("the host of rank 0, where ranks meet{or}"))?;
            let text = wanted("MASTER_PORT", &format!("a free port of rank 0's host, where ranks meet{or}"))?;
            // torchrun's store listens on MASTER_PORT
            let store = get("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
            let free = text.trim().parse::<u16>().ok().filter(|&port| port > 0);
            let free = free.and_then(|port| port.checked_add(store.into()));
            let port =
                free.ok_or_else(|| format!("MASTER_PORT is {text:?}; it must be a port from 1 to 65535"))?;
            Ok::<_, String>((host, port))
        };
        let address = needs_address(rank_name).then(address).transpose()?;
        let rank = number(rank_name, &rank)?;
        if let Some(why) = contradiction(get).filter(|_| rank_name == LAUNCHERS[0][0]) {
            return Err(why);
        }
        if rank >= ranks {
            return Err(format!(
                "{rank_name} is {rank} and {ranks_name} is {ranks}; {rank_name} must be 0 to {ranks_name} - 1"
            ));
        }
        let local = get(local_name).map_or(Ok(rank), |local| number(local_name, &local))?;
        let here = get(here_name).map(|here| number(here_name, &here)).transpose()?;
        if let Some(here) = here.filter(|here| !(1..=ranks).contains(here)) {
            return Err(format!(
                "{here_name} is {here} and {ranks_name} is {ranks}; {here_name} must be 1 to {ranks_name}"
            ));
        }
        let secret = get("EQUIPART_SECRET").map(|secret| Secret::new(secret.as_bytes(), "EQUIPART_SECRET"));
        let secret = secret.transpose()?.unwrap_or_default();
        Ok(Some(Self { variables: [rank_name, ranks_name], rank, ranks, local, address, here, secret }))
    }
}

fn number(name: impl Display, text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| format!("{name} is {text:?}; it must be a whole number from 0 on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(variables: &[(&str, &str)]) -> Result<Option<Launch>, String> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        Launch::by(&get, |_| true)
    }

    /// Kills: a variable taken for another, one that is missing or no number and goes unnoticed, a rank too
    /// many.
    #[test]
    fn variables_are_read_or_named() {
        let all = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
        let at = |port| Some(("a".to_owned(), port));
        let launch = Launch { address: at(29500), ..Launch::nearby(3, 4, 0) };
        assert_eq!(by(&[]), Ok(None));
        assert_eq!(by(&all), Ok(Some(launch.clone())));
        let more = |name, value| by(&[&[(name, value)], &all[..]].concat());
        assert_eq!(more("LOCAL_RANK", "1"), Ok(Some(Launch { local: 1, ..launch.clone() })));
        assert_eq!(more("LOCAL_WORLD_SIZE", "2"), Ok(Some(Launch { here: Some(2), ..launch.clone() })));
        assert_eq!(
            more("TORCHELASTIC_USE_AGENT_STORE", "True"),
            Ok(Some(Launch { address: at(29501), ..launch.clone() }))
        );
        let secret = Secret::new(b"sixteen letters!", "").unwrap();
        assert_eq!(more("EQUIPART_SECRET", " sixteen letters!\n"), Ok(Some(Launch { secret, ..launch })));
        for (i, what) in [
            (1, "the number of ranks"),
            (2, "the host of rank 0, where"),
            (3, "a free port of rank 0's host, where"),
        ] {
            let rest: Vec<_> = all.iter().copied().filter(|(name, _)| *name != all[i].0).collect();
            let seen = by(&rest).unwrap_err();
            assert!(
                seen.starts_with(&format!("RANK is 3, and {} is not set; set it to {what}", all[i].0)),
                "{seen}"
            );
        }
        for (name, value, why) in [
            ("RANK", "x", "RANK is \"x\"; it must be a whole number from 0 on"),
            ("RANK", "4", "RANK is 4 and WORLD_SIZE is 4; RANK must be 0 to WORLD_SIZE - 1"),
            ("WORLD_SIZE", "-4", "WORLD_SIZE is \"-4\"; it must be a whole number from 0 on"),
            ("LOCAL_RANK", "", "LOCAL_RANK is \"\"; it must be a whole number from 0 on"),
            (
                "LOCAL_WORLD_SIZE",
                "5",
                "LOCAL_WORLD_SIZE is 5 and WORLD_SIZE is 4; LOCAL_WORLD_SIZE must be 1 to WORLD_SIZE",
            ),
            (
                "EQUIPART_SECRET",
                "short",
                "the secret of EQUIPART_SECRET has 5 bytes; it needs 16 or more, such as \
                 `openssl rand -hex 32` prints",
            ),
            ("MASTER_PORT", "0", "MASTER_PORT is \"0\"; it must be a port from 1 to 65535"),
            ("MASTER_PORT", "65536", "MASTER_PORT is \"65536\"; it must be a port from 1 to 65535"),
        ] {
            assert_eq!(more(name, value), Err(why.into()));
        }
    }

    /// Kills: a launcher whose ranks each do all the work, one launcher's number taken with another's rank, a
    /// single process that waits for others, a launcher that hides the one that it started.
    #[test]
    fn each_launcher_has_its_variables() {
        let at = [("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
        for [rank, ranks, local, here] in LAUNCHERS {
            let all =
                [(rank, "1"), (ranks, "3"), (local, "0"), (if here.is_empty() { "no" } else { here }, "2")];
            let launch = by(&[&all[..], &at].concat()).unwrap().unwrap();
            let wanted = (1, 3, 0, Some(2).filter(|_| !here.is_empty()));
            assert_eq!((launch.rank, launch.ranks, launch.local, launch.here), wanted, "{rank}");
            assert_eq!(launch.variables, [rank, ranks]);
            let missing = format!("{rank} is 1, and MASTER_ADDR is not set; set it to");
            let get = |name: &str| all.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
            let needs_none = Launch::by(&get, |variable| variable != rank).unwrap().unwrap();
            assert_eq!((needs_none.rank, needs_none.address), (1, None), "{rank}");
            assert!(by(&all).unwrap_err().starts_with(&missing), "{rank}");
            let one = by(&[(rank, "0"), (ranks, "1")]);
            assert_eq!(one.is_err(), rank == "RANK", "{rank}: {one:?}");
            let others = LAUNCHERS.iter().flat_map(|[rank, ranks, ..]| [(*rank, "0"), (*ranks, "2")]);
            let others: Vec<_> = others.filter(|(name, _)| ![rank, ranks].contains(name)).collect();
            let nested = [(Launch::LAUNCHER, "7")];
            let both = by(&[&all[..], &at, &others, &nested].concat()).unwrap().unwrap();
            assert_eq!(both.variables[0], "RANK", "the launcher that was started last, {rank}");
        }
        for [rank, ranks, ..] in &LAUNCHERS[1..] {
            let own = [("RANK", "1"), ("WORLD_SIZE", "2"), at[0], at[1]];
            let beside =
                |theirs: [&str; 2]| by(&[&own[..], &[(rank, theirs[0]), (ranks, theirs[1])]].concat());
            assert!(beside(["1", "2"]).is_ok() && beside(["0", "1"]).is_ok());
            let unset = "unset the variables of one launcher";
            let why = format!("RANK is 1, but {rank} is 0; {unset}");
            assert_eq!(beside(["0", "2"]).unwrap_err(), why);
            let why = format!("WORLD_SIZE is 2, but {ranks} is 3; {unset}");
            assert_eq!(beside(["1", "3"]).unwrap_err(), why);
        }
        let under =
            [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert_eq!(by(&[&under[..], &at].concat()).unwrap().unwrap().rank, 1);
        assert_eq!(by(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), Ok(None), "a job, not a step");
    }

    /// Kills: several processes of which each trains alone, one process that is refused.
    #[test]
    fn variables_without_a_rank_are_refused() {
        let all = LAUNCHERS.into_iter().flat_map(|[rank, others @ ..]| others.map(|name| (name, rank)));
        let address = ["MASTER_ADDR", "MASTER_PORT"].map(|name| (name, "RANK"));
        for (name, rank) in all.filter(|(name, _)| !name.is_empty()).chain(address) {
            let why = format!(
                "{name} is 2, and {rank} is not set; set {rank} to the rank of this process, or unset {name}"
            );
            assert_eq!(by(&[(name, "2")]), Err(why));
        }
        assert_eq!(by(&[("WORLD_SIZE", "1")]), Ok(None));
        assert_eq!(
            by(&[("MASTER_ADDR", "a"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]),
            Ok(None)
        );
    }
}
