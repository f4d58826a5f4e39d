//! Rank of a process, from the variables that torchrun sets. Source: PyTorch, "torchrun (Elastic Launch)",
//! "Environment Variables".
use super::Secret;
use std::fmt::Display;

/// Rank of a process, number of ranks, and the address where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank: `RANK`.
    pub rank: usize,
    /// Number of ranks: `WORLD_SIZE`.
    pub ranks: usize,
    /// Rank on its machine, which picks its GPU: `LOCAL_RANK`, or the rank.
    pub local: usize,
    /// Host on which rank 0 listens: `MASTER_ADDR`.
    pub host: String,
    /// Port on which rank 0 listens: `MASTER_PORT`, or the next one if torchrun's own store listens there.
    pub port: u16,
    /// Number of ranks on this machine: `LOCAL_WORLD_SIZE`, or the number of ranks that have its address.
    pub here: Option<usize>,
    /// Secret that only the processes of this run know: `EQUIPART_SECRET`.
    pub secret: Secret,
}

impl Launch {
    /// Reads the variables of this process; `None` if `RANK` is not set.
    ///
    /// # Errors
    /// In one sentence: a variable is missing, or is not a valid number.
    pub fn of_process() -> Result<Option<Self>, String> {
        Self::by(&|name| std::env::var(name).ok())
    }
    /// Reads the variables of a process.
    pub(crate) fn by(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let Some(rank) = get("RANK") else { return alone(get).map(|()| None) };
        let wanted = |name: &str, what: &str| {
            get(name).ok_or_else(|| format!("RANK is {rank}, and {name} is not set; set it to {what}"))
        };
        let (ranks, host) = (
            number("WORLD_SIZE", &wanted("WORLD_SIZE", "the number of ranks")?)?,
            wanted("MASTER_ADDR", "the host of rank 0, where ranks meet")?,
        );
        let port = wanted("MASTER_PORT", "a free port of rank 0's host, where ranks meet")?;
        // torchrun's store listens on MASTER_PORT
        let store = get("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
        let free = port.trim().parse::<u16>().ok().filter(|&port| port > 0);
        let free = free.and_then(|port| port.checked_add(store.into()));
        let port =
            free.ok_or_else(|| format!("MASTER_PORT is {port:?}; it must be a port from 1 to 65535"))?;
        let rank = number("RANK", &rank)?;
        if rank >= ranks {
            return Err(format!(
                "RANK is {rank} and WORLD_SIZE is {ranks}; RANK must be 0 to WORLD_SIZE - 1"
            ));
        }
        let local = get("LOCAL_RANK").map_or(Ok(rank), |local| number("LOCAL_RANK", &local))?;
        let here = get("LOCAL_WORLD_SIZE").map(|here| number("LOCAL_WORLD_SIZE", &here)).transpose()?;
        if let Some(here) = here.filter(|here| !(1..=ranks).contains(here)) {
            return Err(format!(
                "LOCAL_WORLD_SIZE is {here} and WORLD_SIZE is {ranks}; \
                 LOCAL_WORLD_SIZE must be 1 to WORLD_SIZE"
            ));
        }
        let secret = get("EQUIPART_SECRET").map(|secret| Secret::new(secret.as_bytes(), "EQUIPART_SECRET"));
        let secret = secret.transpose()?.unwrap_or_default();
        Ok(Some(Self { rank, ranks, local, host, port, here, secret }))
    }
}

/// Refuses a process that was started several times by a launcher that does not set `RANK`: each copy would
/// do all the work.
fn alone(get: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    const LAUNCHERS: [(&str, &str); 3] =
        [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpiexec"), ("SLURM_STEP_NUM_TASKS", "srun")];
    for (name, launcher) in LAUNCHERS {
        if let Some(n) = get(name).and_then(|n| n.trim().parse::<usize>().ok()).filter(|n| *n > 1) {
            return Err(format!(
                "{name} is {n}, so {launcher} started {n} processes, and RANK is not set: each would do all the work; start ranks \
                 with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"
            ));
        }
    }
    Ok(())
}

fn number(name: impl Display, text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| format!("{name} is {text:?}; it must be a whole number from 0 on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(variables: &[(&str, &str)]) -> Result<Option<Launch>, String> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        Launch::by(&get)
    }

    /// Kills: a variable taken for another, one that is missing or no number and goes unnoticed, a rank too
    /// many.
    #[test]
    fn variables_are_read_or_named() {
        let all = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
        let (host, secret) = ("a".into(), Secret::default());
        let launch = Launch { rank: 3, ranks: 4, local: 3, host, port: 29500, here: None, secret };
        assert_eq!((by(&[]), by(&all[1..])), (Ok(None), Ok(None)));
        assert_eq!(by(&all), Ok(Some(launch.clone())));
        let more = |name, value| by(&[&[(name, value)], &all[..]].concat());
        assert_eq!(more("LOCAL_RANK", "1"), Ok(Some(Launch { local: 1, ..launch.clone() })));
        assert_eq!(more("LOCAL_WORLD_SIZE", "2"), Ok(Some(Launch { here: Some(2), ..launch.clone() })));
        assert_eq!(
            more("TORCHELASTIC_USE_AGENT_STORE", "True"),
            Ok(Some(Launch { port: 29501, ..launch.clone() }))
        );
        let secret = Secret::new(b"sixteen letters!", "").unwrap();
        assert_eq!(more("EQUIPART_SECRET", " sixteen letters!\n"), Ok(Some(Launch { secret, ..launch })));
        for (name, n, refused) in [
            ("OMPI_COMM_WORLD_SIZE", "2", true),
            ("PMI_SIZE", "3", true),
            ("SLURM_STEP_NUM_TASKS", "2", true),
            ("PMI_SIZE", "1", false),
            ("SLURM_NTASKS", "4", false),
        ] {
            let seen = by(&[(name, n)]);
            assert_eq!(seen.is_err(), refused, "{name}={n}: {seen:?}");
            assert!(more(name, n).is_ok(), "a launcher of launchers may set it, too");
        }
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
}
