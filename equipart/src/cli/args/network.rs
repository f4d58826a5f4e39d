//! Flags of the network between ranks: train, generate and compare have them.
use crate::cli::echo::tell;
use crate::views::view::unread;
use algorithms::Link;
use clap::Args;
use comm::{Axis, RankError, StuckReport, Trace};
use draw::trace;
use parallel::layout::split_axes;
use parallel::{Error, Network, bail};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

#[derive(Args, Debug, Default)]
pub(crate) struct NetworkArgs {
    /// Simulate a slow link between the ranks of an axis, such as tp=20us,1GB/s; may be repeated, once for
    /// each axis; an unsplit layout has no links
    #[arg(long, value_name = "AXIS=LATENCY,BANDWIDTH", value_parser = link)]
    pub(crate) link: Vec<(Axis, Link)>,
    /// Seconds that a rank waits for the others in one call before the run fails; the transfer time of a slow
    /// link does not count [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = patience)]
    timeout: Option<Duration>,
    /// Write a timeline of every rank to this file, for ui.perfetto.dev; in compare, each row is a run of its
    /// own
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

impl NetworkArgs {
    /// Returns the network of these flags, for a run that writes to the folder `out`.
    ///
    /// # Errors
    /// If the trace file cannot be written, or lies in `out`, where the run chooses the names.
    pub(crate) fn network(&self, out: Option<&Path>) -> parallel::Result<Network> {
        if let Some(file) = &self.trace {
            let inside = |out: &Path| Some(absolute(file).ok()?.starts_with(absolute(out).ok()?));
            if let Some(out) = out.filter(|out| inside(out) == Some(true)) {
                let [file, out] = [file, out].map(Path::display);
                bail!("--trace {file} is inside {out}, the folder of the run; choose a file outside of it");
            }
            unread("trace", file)?;
            trace::prepare(file)?;
        }
        let trace = self.trace.as_ref().map(|_| Trace::new());
        Ok(Network {
            links: self.link.clone(),
            timeout: self.timeout,
            stuck: Some(stuck(self.trace.clone(), trace.clone())),
            trace,
            profile: 0,
            counts_waits: false,
            processes: None,
        })
    }
    /// Returns the name of the first of these flags that is given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let Self { link, timeout, trace } = self;
        let given = [("link", !link.is_empty()), ("timeout", timeout.is_some()), ("trace", trace.is_some())];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
    /// Writes the trace of the runs over a network, even if they failed. Writes nothing if nothing ran.
    ///
    /// # Errors
    /// If `outcome` is an error, or the trace cannot be written.
    pub(crate) fn keep_trace<T>(
        &self,
        network: &Network,
        outcome: parallel::Result<T>,
    ) -> parallel::Result<T> {
        let written = match (&self.trace, &network.trace) {
            (Some(file), Some(trace)) if !trace.runs().is_empty() => trace::write(file, trace),
            _ => Ok(()),
        };
        match (outcome, written) {
            (Ok(value), written) => written.map(|()| value),
            (Err(mut error), Err(also)) => {
                error.why = format!("{error}; the trace could not be written either: {also}");
                Err(error)
            }
            (failed, Ok(())) => failed,
        }
    }
}

/// Returns the handler for ranks that do not end: it writes the trace, prints the error, and ends the
/// process.
fn stuck(file: Option<PathBuf>, trace: Option<Trace>) -> StuckReport {
    StuckReport::new(move |error, running| {
        let words = words(error, running);
        let mut error = Error::from(error.clone());
        error.why = words;
        let written = file.as_deref().zip(trace.as_ref()).map(|(file, trace)| trace::write(file, trace));
        if let Some(Err(also)) = written {
            error.why = format!("{error}; the trace could not be written either: {also}");
        }
        tell(&error);
        std::process::exit(2)
    })
}

fn words(error: &RankError, running: &[usize]) -> String {
    let ranks: Vec<_> = running.iter().map(usize::to_string).collect();
    format!("{error} (still running, and ended with the process: rank {})", ranks.join(", rank "))
}

/// Parses a link along an axis.
pub(crate) fn link(text: &str) -> Result<(Axis, Link), String> {
    let axes: Vec<_> = split_axes().rev().map(Axis::name).collect();
    let (name, link) = text.split_once('=').ok_or_else(|| {
        format!("{text:?} is not a link of an axis; write axis=latency,bandwidth, such as tp=20us,1GB/s")
    })?;
    let axis = split_axes().find(|axis| axis.name() == name.trim());
    let axis = axis.ok_or_else(|| format!("{name:?} is not an axis; the axes are {}", axes.join(", ")))?;
    link.parse().map(|link| (axis, link)).map_err(|why: algorithms::LinkError| why.to_string())
}

/// The longest time to wait.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// Parses the seconds of `--timeout`.
pub(crate) fn patience(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.filter(|time| !time.is_zero() && *time <= LONGEST);
    let wanted = "write seconds above 0, a year (31536000) at most, such as 2.5";
    time.ok_or_else(|| format!("{text:?} is not a time to wait; {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use parallel::Error;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        network: NetworkArgs,
    }

    /// Kills: a flag that is parsed and ignored.
    #[test]
    fn flags_become_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trace.json").display().to_string();
        let flags =
            ["x", "--link", "tp=20us,1GB/s", "--link", "dp=1ms,2MB/s", "--timeout", "2.5", "--trace", &file];
        let network = |flags: &[&str]| Only::try_parse_from(flags).unwrap().network.network(None).unwrap();
        let all = network(&flags);
        let links = ["20us,1GB/s", "1ms,2MB/s"].map(|link| link.parse().unwrap());
        assert_eq!(all.links, [(Axis::Tp, links[0]), (Axis::Dp, links[1])]);
        assert_eq!((all.timeout, all.trace.is_some()), (Some(Duration::from_millis(2500)), true));
        let none = network(&["x"]);
        assert!(none.links.is_empty() && none.timeout.is_none() && none.trace.is_none());
        assert!(none.stuck.is_some());
    }

    /// Kills: a trace that overwrites a file of the run.
    #[test]
    fn a_trace_in_the_folder_of_the_run_is_refused() {
        let args = |trace: &str| NetworkArgs { trace: Some(trace.into()), ..NetworkArgs::default() };
        for trace in ["run/config.json", "./run/deep/t.json"] {
            let reported = args(trace).network(Some(Path::new("run"))).unwrap_err().why;
            assert_eq!(
                reported,
                format!("--trace {trace} is inside run, the folder of the run; choose a file outside of it")
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let beside = dir.path().join("run.json").display().to_string();
        assert!(args(&beside).network(Some(&dir.path().join("run"))).is_ok());
    }

    #[test]
    fn ranks_that_still_run_are_named() {
        let (reason, calls) = ("rank 3 did not come".to_string(), comm::FlightRecorder::default());
        let error = RankError { rank: 0, reason, calls, told_by: None };
        let expected =
            "rank 0: rank 3 did not come (still running, and ended with the process: rank 3, rank 5)";
        assert_eq!(words(&error, &[3, 5]), expected);
    }

    /// Kills: a failure hidden by the trace's failure, a trace's failure hidden by success, an empty trace.
    #[test]
    fn a_trace_that_cannot_be_kept_is_told_and_nothing_is_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let args = NetworkArgs { trace: Some(folder.join("trace.json")), ..NetworkArgs::default() };
        let network = args.network(None).unwrap();
        assert_eq!(args.keep_trace(&network, Err::<(), _>(Error::new("no"))).unwrap_err().why, "no");
        assert!(std::fs::read_dir(&folder).unwrap().next().is_none(), "nothing ran, nothing is told");
        let world = network.world(&"tp=2".parse().unwrap(), "nothing").unwrap();
        world.run(|_: tensor::Cpu<f32>, _| Ok::<_, Error>(())).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        let why = |outcome| args.keep_trace(&network, outcome).unwrap_err().why;
        assert!(why(Ok(())).starts_with("cannot write beside "), "{}", why(Ok(())));
        let both = why(Err(Error::new("no")));
        assert!(
            both.starts_with("no; the trace could not be written either: cannot write beside "),
            "{both}"
        );
    }
}
