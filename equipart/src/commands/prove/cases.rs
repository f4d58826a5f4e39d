//! `prove --cases` and `prove --case`: drawn cases, and saved cases.
use super::ProveArgs;
use super::{fresh_key, tell};
use crate::cli::show;
use crate::cli::watch::ProgressWatch;
use clap::Args;
use comm::caught;
use parallel::{Error, Network, Result, bail};
use prove::cases::{Campaign, Failure, ProofCase, judge};
use prove::{Verdict, certify};
use run::train::settings::at_least_1;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensor::files;

/// Flags of `prove` for drawn or saved cases.
#[derive(Args, Debug)]
pub(crate) struct CasesArgs {
    /// Prove this number of drawn cases: models, batches and, without --layout, layouts; a failing case is
    /// shrunk to the smallest
    #[arg(long, value_name = "N", conflicts_with_all = ["config", "dump", "model", "hidden", "limit", "split", "schedule"])]
    pub(super) cases: Option<usize>,
    /// Draw cases for this number of minutes; with --cases, until either limit is reached
    #[arg(long, value_name = "M", conflicts_with_all = ["config", "dump", "model", "hidden", "limit", "split", "schedule"])]
    pub(super) minutes: Option<f64>,
    /// Prove the cases of a file, or of standard input (-), one line of JSON each
    #[arg(long, value_name = "FILE|-",
        conflicts_with_all = ["cases", "minutes", "layout", "key", "config", "dump", "model", "hidden", "limit", "split", "schedule"])]
    pub(super) case: Option<PathBuf>,
}

/// The most minutes: a year.
const MINUTES: f64 = 525_600.0;
/// Name of standard input.
const STDIN: &str = "-";
/// The most bytes read from standard input: about ten thousand cases.
const MOST: u64 = 16 << 20;

/// Proves the cases that the flags request. Returns whether all were equal; `None` if no flag requests cases.
///
/// # Errors
/// If a flag or a case is invalid.
pub(crate) fn asked(a: &ProveArgs, json: bool) -> Result<Option<bool>> {
    match &a.cases {
        CasesArgs { case: Some(file), .. } => replay(file, json).map(Some),
        CasesArgs { cases: None, minutes: None, .. } => Ok(None),
        CasesArgs { cases, minutes, .. } => draw(a, *cases, *minutes, json).map(Some),
    }
}

fn draw(a: &ProveArgs, cases: Option<usize>, minutes: Option<f64>, json: bool) -> Result<bool> {
    at_least_1(&[("cases", cases.unwrap_or(1))])?;
    if let Some(minutes) = minutes.filter(|minutes| !(*minutes > 0.0 && *minutes <= MINUTES)) {
        bail!("--minutes is {minutes}; it must be above 0 and at most {MINUTES}");
    }
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
    let key = a.key.unwrap_or_else(fresh_key);
    let watch = cases.map_or_else(ProgressWatch::spinner, ProgressWatch::bar);
    watch.say(&format!("proving drawn cases from --key {key}"));
    let campaign = Campaign { key, cases, until, layout: a.layout, judge: &judge };
    let mut report = campaign.run(&|done, next| watch.case(done, next))?;
    report.failure = report.failure.map(Failure::located);
    watch.done();
    show::one(json, &report, || report.statement());
    Ok(report.equal)
}

fn replay(file: &Path, json: bool) -> Result<bool> {
    let mut equal = true;
    for case in read(file)? {
        let keys = [case.key, case.key.next()];
        let subject = case.subject()?;
        let verdict = match caught(|| certify(&subject, &case.layout, &keys, (&Network::default(), &|_| ())))
        {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(Error { why, .. })) | Err(why) => Verdict::failed(&subject, &case.layout, &keys, why),
        };
        equal &= tell(&verdict, json);
    }
    Ok(equal)
}

/// Reads all of standard input, up to a limit: it may never end.
fn all_of(input: impl Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = input.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|why| Error::new(format!("standard input cannot be read: {why}")))?;
    if bytes.len() as u64 > most {
        bail!("standard input has more than {most} bytes; give such cases in a file");
    }
    Ok(bytes)
}

/// Reads the cases of a file; one invalid case refuses the file.
fn read(file: &Path) -> Result<Vec<ProofCase>> {
    let (name, bytes) = if file == Path::new(STDIN) {
        ("standard input".to_string(), all_of(std::io::stdin().lock(), MOST)?)
    } else {
        (file.display().to_string(), files::read(file)?)
    };
    let text = String::from_utf8(bytes).map_err(|why| {
        Error::new(format!("{name} is not valid UTF-8 (at byte {})", why.utf8_error().valid_up_to()))
    })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let case = |(i, line)| {
        ProofCase::parse(line)
            .map_err(|Error { why, .. }| Error::new(format!("{name}, line {}: {why}", i + 1)))
    };
    let cases: Vec<_> = lines.map(case).collect::<Result<_>>()?;
    if cases.is_empty() {
        bail!("{name} has no case; a case is a line of JSON");
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: reading an endless input to its end, refusing an input of exactly the limit.
    #[test]
    fn standard_input_is_read_up_to_a_limit() {
        assert_eq!(all_of(&b"12345678"[..], 8).unwrap(), b"12345678");
        let why = all_of(std::io::repeat(0), 8).unwrap_err().why;
        assert_eq!(why, "standard input has more than 8 bytes; give such cases in a file");
    }
}
