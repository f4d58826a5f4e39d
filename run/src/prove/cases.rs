//! Drawn cases, and saved ones.
use super::tell;
use crate::event::{Observer, RunEvent};
use crate::train::settings::at_least_1;
use comm::caught;
use parallel::{Error, Layout, Network, Result, bail};
use prove::cases::{Campaign, Failure, ProofCase, ended_well, judge};
use prove::{Verdict, certify};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use tensor::{Key, files};

/// The most minutes: a year.
const MINUTES: f64 = 525_600.0;
/// Name of standard input.
const STDIN: &str = "-";
/// The most bytes read from standard input: about ten thousand cases.
const MOST: u64 = 16 << 20;

/// Proves drawn cases under a layout, or each under a layout of its own, until so many are done or so many
/// minutes have passed; `watch` receives the number of equal ones and the next key. Tells the report. Returns
/// true if all were equal.
///
/// # Errors
/// If a number is out of range, a case cannot be run, or the observer fails.
pub fn draw(
    (layout, key): (Option<Layout>, Key),
    (cases, minutes): (Option<usize>, Option<f64>),
    observer: &Observer,
) -> Result<bool> {
    at_least_1(&[("cases", cases.unwrap_or(1))])?;
    if let Some(minutes) = minutes.filter(|minutes| !(*minutes > 0.0 && *minutes <= MINUTES)) {
        bail!("--minutes is {minutes}; it must be above 0 and at most {MINUTES}");
    }
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
    observer.doing(&format!("proving drawn cases from --key {key}"))?;
    let watch = |done, next| {
        let words = format!("{done} cases equal; continue with --key {next}");
        drop(observer.see(&RunEvent::Reached { words: &words, done, of: cases.unwrap_or(0) }));
    };
    let mut report = Campaign { key, cases, until, layout, judge: &judge }.run(&watch)?;
    report.failure = report.failure.map(Failure::located);
    observer.record(&report)?;
    observer.say(&report.statement())?;
    Ok(report.equal)
}

/// Proves the cases of a file, or of standard input, and tells each verdict. Returns true if all were equal.
///
/// # Errors
/// If the file is no list of cases, or the observer fails.
pub fn replay(file: &Path, observer: &Observer) -> Result<bool> {
    let mut equal = true;
    for case in read(file)? {
        let keys = [case.key, case.key.next()];
        let subject = case.subject()?;
        let verdict = match caught(|| certify(&subject, &case.layout, &keys, (&Network::default(), &|_| ())))
        {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(Error { why, .. })) | Err(why) => {
                ended_well(&Some(why.clone()))?;
                Verdict::failed(&subject, &case.layout, &keys, why)
            }
        };
        equal &= tell(&verdict, observer)?;
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
