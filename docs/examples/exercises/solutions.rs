//! An answer to each exercise, and wrong attempts with what the check says of them.
//!
//! The tests show that each answer is right, that each wrong attempt is told so in these words, and that the
//! holes are empty or rightly filled.
mod dispatch;
mod dot;
mod mean;
mod pipeline;
mod ring;
mod row;
mod state;
mod vocabulary;

use crate::check::Verdict;

/// Asserts that the answer is right, and that a wrong attempt is refused in these words.
fn assert_judged<A: Copy>(check: fn(A) -> Verdict, answer: A, wrong: &[(A, &str)]) {
    assert_eq!(check(answer), Verdict::Solved);
    for &(attempt, why) in wrong {
        assert_eq!(check(attempt), Verdict::Wrong(why.into()));
    }
}

/// Kills: a hole that is committed with an attempt in it, a check that takes an empty hole for solved.
#[test]
fn holes_are_empty_or_rightly_filled() {
    for exercise in &crate::ALL {
        let verdict = (exercise.check)();
        let text =
            std::fs::read_to_string(format!(concat!(env!("CARGO_MANIFEST_DIR"), "/{}.rs"), exercise.name));
        let holes = text.unwrap().matches("    unsolved((").count();
        let wanted = if holes == 0 { Verdict::Solved } else { Verdict::Unsolved };
        assert_eq!(verdict, wanted, "{}", exercise.name);
    }
}

/// Kills: a verdict on the book's page that no wrong attempt gets.
#[test]
fn verdicts_of_the_page_are_those_of_wrong_attempts() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let page = std::fs::read_to_string(format!("{folder}/../../src/exercises.md")).unwrap();
    let (_, rows) = page.split_once("| exercise | verdict |\n|---|---|\n").unwrap();
    let rows = rows.lines().map_while(|row| row.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
    let mut count = 0;
    for (name, verdict) in rows {
        let text = std::fs::read_to_string(format!("{folder}/solutions/{name}.rs")).unwrap();
        assert!(text.contains(&format!("\"{verdict}\"")), "{name}: {verdict}");
        count += 1;
    }
    assert_eq!(count, 7);
}
