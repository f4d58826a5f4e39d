//! Drawn cases: those that failed once, some of a fixed key, some of a key that no run had before. What fails
//! is shrunk, told, and added to `regressions.jsonl`, where it stays.
use prove::cases::{Campaign, Failure, ProofCase, judge};
use std::fs::OpenOptions;
use std::io::Write;
use tensor::{Key, mix};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/regressions.jsonl");

/// Adds a shrunk case to those that are kept, and says all that is known of it.
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

/// Kills: a bug that came back.
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

/// Kills: what two choices break together that no other test makes at once.
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
