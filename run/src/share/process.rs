//! A model's forwards in a process of their own, which may be paused for a part of the time.
use super::forwards::READY;
use parallel::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::iter::repeat;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// A running process is stopped once in this time.
pub const PERIOD: Duration = Duration::from_millis(40);
/// Rounds seconds up to whole periods: forwards of less are not paused for their part of the time.
pub(super) fn periods(seconds: f64) -> f64 {
    let period = PERIOD.as_secs_f64();
    (seconds / period - 1e-9).ceil() * period
}

/// A model whose forwards a process of its own runs.
pub struct Worker<'a> {
    /// The model and its tokens, in words.
    pub label: String,
    /// Returns the command of a process that tells of so many forwards on these cores, as JSON.
    pub command: Box<dyn Fn(&[usize], usize) -> Result<Command> + 'a>,
}

/// A process that runs forwards; dropping it ends the process.
pub(super) struct ForwardProcess {
    process: Child,
    out: BufReader<ChildStdout>,
    forwards: usize,
    model: String,
}

impl Drop for ForwardProcess {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

impl Worker<'_> {
    /// Starts forwards on these cores, and waits until they have warmed up.
    ///
    /// # Errors
    /// If the process fails.
    pub(super) fn start(&self, cores: &[usize], forwards: usize) -> Result<ForwardProcess> {
        let mut command = (self.command)(cores, forwards)?;
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |why| Error::new(format!("a process for {} cannot be started: {why}", self.label));
        let mut process = command.spawn().map_err(failed)?;
        let out = BufReader::new(process.stdout.take().expect("piped"));
        let mut running = ForwardProcess { process, out, forwards, model: self.label.clone() };
        let mut said = String::new();
        if running.out.read_line(&mut said).is_err() || said.trim_end() != READY {
            return Err(running.failure());
        }
        Ok(running)
    }
    /// Measures the seconds of an unsplit forward on each of these cores, all at once.
    ///
    /// # Errors
    /// If a process fails.
    pub(super) fn beside(&self, cores: &[usize], forwards: usize) -> Result<f64> {
        let processes =
            cores.iter().map(|core| self.start(&[*core], forwards)).collect::<Result<Vec<_>>>()?;
        let ends = processes.into_iter().map(|one| one.end(1.0)).collect::<Result<Vec<_>>>()?;
        Ok(ends.iter().sum::<f64>() / ends.len() as f64)
    }
}

/// Returns how long a process with this part of the time runs and is stopped, in turns without end; none if
/// it has all of it. It runs for half a turn first: then forwards of whole turns take as many periods.
fn turns(part: f64) -> impl Iterator<Item = [Duration; 2]> {
    let turn = |runs: f64| [runs, 1.0 - part].map(|part| PERIOD.mul_f64(part));
    [turn(part / 2.0)].into_iter().chain(repeat(turn(part))).take_while(move |_| part < 1.0)
}

/// Stops a process for this time.
fn pause(pid: Pid, stops: Duration) {
    let _ = kill_process(pid, Signal::STOP); // it may have ended
    sleep(stops);
    let _ = kill_process(pid, Signal::CONT);
}

impl ForwardProcess {
    /// Lets the process run for this part of the time, until it ends. Returns the seconds of a
    /// forward.
    ///
    /// # Errors
    /// If the process fails.
    pub(super) fn end(mut self, part: f64) -> Result<f64> {
        let pid = Pid::from_child(&self.process);
        for [runs, stops] in turns(part) {
            if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
            sleep(runs);
            pause(pid, stops);
        }
        let mut said = String::new();
        let _ = self.out.read_to_string(&mut said); // what is missing is an error below
        let said: Value = serde_json::from_str(&said).unwrap_or_default();
        match said["seconds"].as_f64() {
            Some(seconds) if seconds > 0.0 => Ok(seconds / self.forwards as f64),
            _ => Err(self.failure()),
        }
    }
    fn failure(&mut self) -> Error {
        let mut said = String::new();
        let _ = self.process.kill();
        if let Some(mut error) = self.process.stderr.take() {
            let _ = error.read_to_string(&mut said);
        }
        let why = said.lines().last().unwrap_or("it ended without a word").trim_start_matches("error: ");
        Error::new(format!("{} forwards of {} failed: {why}", self.forwards, self.model))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::thread::spawn;

    /// Kills: a share that is not paused, or all of them alike; a part of the time that is its rest.
    #[test]
    fn a_share_runs_for_its_part_of_each_period() {
        let ms = |part: f64| -> Vec<_> {
            turns(part).take(3).map(|turn| turn.map(|time| time.as_micros())).collect()
        };
        assert_eq!(ms(0.1), [[2_000, 36_000], [4_000, 36_000], [4_000, 36_000]]);
        assert_eq!(ms(0.75), [[15_000, 10_000], [30_000, 10_000], [30_000, 10_000]]);
        assert_eq!(ms(1.0), [[0; 2]; 0]);
    }

    /// Kills: a pause in which the process runs on, one that does not end.
    #[test]
    fn a_paused_process_is_stopped_and_goes_on() {
        let child = Command::new("sleep").arg("60").spawn().expect("a process");
        let mut running = TestChild(child);
        let pid = Pid::from_child(&running.0);
        let is_stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        pause(pid, Duration::from_millis(1));
        while is_stopped() {
            assert!(running.0.try_wait().unwrap().is_none(), "it never went on");
            sleep(Duration::from_millis(1));
        }
        let paused = spawn(move || pause(pid, Duration::from_secs(30))); // it outlives the test
        while !is_stopped() {
            assert!(!paused.is_finished(), "it ran on");
            sleep(Duration::from_millis(1));
        }
    }

    /// Kills: a part of a period, in which a process is not paused for its part of the time; a period more
    /// than is asked for.
    #[test]
    fn seconds_are_whole_periods() {
        let of = |seconds| (periods(seconds) / PERIOD.as_secs_f64()).round();
        assert_eq!([0.04, 0.041, 0.08, 0.24, 0.28, 0.3].map(of), [1.0, 2.0, 2.0, 6.0, 7.0, 8.0]);
        assert_eq!(periods(0.05), 0.08);
    }

    /// A process that ends with its test.
    struct TestChild(Child);

    impl Drop for TestChild {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
