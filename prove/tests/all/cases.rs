//! Random cases: those that failed once, some of a fixed key, and some of a fresh key. A failing case is
//! shrunk, reported and added to `regressions.jsonl`, where it stays.
use prove::cases::{Campaign, Failure, ProofCase, judge};
use std::fs::OpenOptions;
use std::io::Write;
use tensor::{Key, mix};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/regressions.jsonl");

/// Appends a shrunk case to the regressions and panics with its report.
fn keep(failure: Failure) -> ! {
    let kept = OpenOptions::new().append(true).open(KEPT);
    let kept = kept.and_then(|mut file| writeln!(file, "{}", failure.case.line()));
    let reported = match kept {
        Ok(()) => "the case has been added to prove/tests/regressions.jsonl".to_string(),
        Err(why) => format!("{KEPT} could not be written: {why}"),
    };
    panic!("{}\n{reported}", failure.located().statement());
}

fn campaign(key: Key, cases: usize) {
    let campaign = Campaign { key, cases: Some(cases), until: None, layout: None, judge: &judge };
    let report = campaign.run(&|_, _| ()).unwrap();
    if let Some(failure) = report.failure {
        keep(failure);
    }
    assert_eq!(report.cases, cases);
    assert!(report.tensors > 20 * cases && report.elements > 1000 * cases, "{}", report.statement());
}

/// Kills: a bug that returned.
#[test]
fn what_failed_once_does_not_fail_again() {
    let kept = std::fs::read_to_string(KEPT).unwrap();
    assert!(!kept.is_empty());
    for line in kept.lines() {
        let case = ProofCase::parse(line).unwrap();
        let verdict = judge(&case);
        assert!(verdict.equal, "{case}\n{verdict:?}");
    }
}

/// Kills: two settings that break only together, in a combination that no other test runs.
#[test]
fn drawn_cases_equal_the_oracle() {
    campaign(Key(1), 100);
}

#[test]
fn cases_of_a_fresh_key_equal_the_oracle() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let fresh = Key(mix(now.as_nanos() as u64));
    println!("the fresh key is {:#x}", fresh.0);
    campaign(fresh, 30);
}
