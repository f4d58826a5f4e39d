//! Processes of ranks on this machine: their output with rank prefixes, signals to them, and their end.
use crate::cli::processes::program;
use crate::terminal::out;
use comm::Launch;
use parallel::{Error, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::c_int;
use std::io::{self, BufRead, BufReader, Read, Write, stderr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Interval at which processes and signals are polled.
const EVERY: Duration = Duration::from_millis(10);
/// Time for the other processes to end by themselves once one has failed; then they get SIGTERM, and after as
/// long again SIGKILL. Processes that the user stops get SIGKILL after this time.
const GRACE: Duration = Duration::from_secs(10);

/// End of the processes of a run.
pub(super) enum RunEnd {
    /// All ended well.
    Well,
    /// The user stopped them by this signal to the launcher.
    Stopped(c_int),
    /// One failed.
    Failed(FirstEnd),
}

/// The failure that the others followed: the end of the first process that was lost, also of one that had to
/// be killed; or if none was, of the first that ended with exit code 1 or 2.
pub(super) struct FirstEnd {
    /// The failure in words: that a rank was lost, for example.
    pub(super) what: String,
    pub(super) status: ExitStatus,
}

impl FirstEnd {
    /// True if the process ended by a signal or a panic, and not by an exit code of the command.
    pub(super) fn is_lost(&self) -> bool {
        self.status.code().is_none_or(|code| code > 2)
    }
}

/// Processes of all ranks.
pub(super) struct LocalRanks {
    processes: Vec<Child>,
    by: Option<&'static str>, // the launcher whose one process this is, and which starts all ranks
    readers: Vec<JoinHandle<()>>,
}

/// Returns the signals that stop a run. From now on they do not end this process.
pub(super) fn signals() -> Result<Signals> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]);
    signals.map_err(|why| Error::new(format!("signals cannot be received: {why}")))
}

/// Variables of a rank, as torchrun names them; all ranks are on this machine.
fn numbers(rank: usize, ranks: usize) -> [(&'static str, usize); 4] {
    [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)]
}

impl LocalRanks {
    /// Starts this program once for each rank, with these arguments and variables.
    ///
    /// # Errors
    /// If the system starts no more processes; then none is left.
    pub(super) fn start(ranks: usize, arguments: &[String], meeting: &[(&str, String)]) -> Result<Self> {
        let mut started = Self { processes: Vec::new(), by: None, readers: Vec::new() };
        for rank in 0..ranks {
            let mut command = program()?;
            command.args(arguments).envs(numbers(rank, ranks).map(|(name, n)| (name, n.to_string())));
            command.envs(meeting.iter().cloned()).env_remove("TORCHELASTIC_USE_AGENT_STORE");
            command.env(Launch::LAUNCHER, std::process::id().to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            if let Err(why) = started.add(command, rank) {
                started.kill();
                started.processes.iter_mut().for_each(|process| drop(process.wait()));
                bail!("the process of rank {rank} of {ranks} cannot be started: {why}");
            }
        }
        Ok(started)
    }
    /// Starts another launcher, which writes its output itself.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn by(name: &'static str, mut command: Command) -> Result<Self> {
        Launch::signal_at_end(&mut command, Signal::TERM);
        let process =
            command.spawn().map_err(|why| Error::new(format!("{name} cannot be started: {why}")))?;
        Ok(Self { processes: vec![process], by: Some(name), readers: Vec::new() })
    }
    /// Starts a rank's process, and threads that pass on what it prints.
    fn add(&mut self, mut command: Command, rank: usize) -> io::Result<()> {
        Launch::signal_at_end(&mut command, Signal::CONT); // a stopped rank goes on, and ends itself
        let mut process = command.spawn()?;
        let (results, notes) = (process.stdout.take(), process.stderr.take());
        self.processes.push(process);
        let prefix = format!("rank {rank}: ");
        let of_results = if rank == 0 { String::new() } else { prefix.clone() };
        if let Some(from) = results {
            self.readers.push(Builder::new().spawn(move || pass(from, &of_results, out::raw))?);
        }
        if let Some(from) = notes {
            let note = |line: &[u8]| drop(stderr().write_all(line));
            self.readers.push(Builder::new().spawn(move || pass(from, &prefix, note))?);
        }
        Ok(())
    }
    /// Waits until all have ended. Passes the first of these signals on to them; a second one kills them.
    ///
    /// # Errors
    /// If the system does not tell how a process ended.
    pub(super) fn wait(mut self, signals: &mut Signals) -> Result<RunEnd> {
        let (mut ended, mut first) = (vec![false; self.processes.len()], None::<FirstEnd>);
        let (mut since, mut stopped, mut asked, mut hung) = (None::<Instant>, None, false, false);
        while ended.contains(&false) {
            for (rank, process) in self.processes.iter_mut().enumerate() {
                if ended[rank] {
                    continue;
                }
                let status = process.try_wait();
                let status = status
                    .map_err(|why| Error::new(format!("the end of rank {rank} is not known: {why}")))?;
                let Some(status) = status else { continue };
                ended[rank] = true;
                if status.success() {
                    continue;
                }
                let lost = || format!("rank {rank} was lost");
                let what = self.by.map_or_else(lost, |name| format!("{name} ended the run"));
                let end = FirstEnd { what, status };
                let begun = since.get_or_insert_with(Instant::now);
                // others may notice a lost process before this one does; later, this one ends them, and lost
                // is one that SIGTERM did not end
                let in_time = begun.elapsed() < GRACE || hung;
                if first.as_ref().is_none_or(|first| !first.is_lost() && end.is_lost() && in_time) {
                    first = Some(end);
                }
            }
            sleep(EVERY); // a terminal's signal to all comes to this one, too
            for number in signals.pending() {
                if stopped.replace(number).is_some() && self.by.is_none() {
                    self.kill();
                }
                since = Some(Instant::now());
                // launchers end their ranks at SIGTERM, and not at every signal that ends themselves
                let signal = Signal::from_named_raw(number).filter(|_| self.by.is_none());
                self.send(signal.unwrap_or(Signal::TERM));
            }
            match since.map(|since| since.elapsed()) {
                Some(late) if late > 2 * GRACE || stopped.is_some() && late > GRACE => {
                    hung = true;
                    self.kill();
                }
                Some(late) if late > GRACE && !asked => {
                    asked = true;
                    self.send(Signal::TERM);
                }
                _ => {}
            }
        }
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        let failed = || first.map_or(RunEnd::Well, RunEnd::Failed);
        Ok(stopped.map_or_else(failed, RunEnd::Stopped))
    }
    /// Sends a signal to all that have not ended.
    fn send(&mut self, signal: Signal) {
        for process in &mut self.processes {
            if let Ok(None) = process.try_wait() {
                let _ = kill_process(Pid::from_child(process), signal); // it may have ended just now
            }
        }
    }
    fn kill(&mut self) {
        self.processes.iter_mut().for_each(|process| drop(process.kill()));
    }
}

/// Passes lines on, each with a prefix. Lines that cannot be written are lost: a
/// reader that closes the pipe ends no run.
fn pass(from: impl Read, prefix: &str, to: impl Fn(&[u8])) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        to(&[prefix.as_bytes(), &line].concat());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: ranks that would all use the first GPU.
    #[test]
    fn ranks_of_one_machine_have_devices_of_their_own() {
        let all: Vec<_> = (0..4).map(|rank| std::collections::BTreeMap::from(numbers(rank, 4))).collect();
        let of = |name: &str| all.iter().map(|one| one[name]).collect::<Vec<_>>();
        assert_eq!((of("RANK"), of("LOCAL_RANK")), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
        assert_eq!((of("WORLD_SIZE"), of("LOCAL_WORLD_SIZE")), (vec![4; 4], vec![4; 4]));
    }
}
