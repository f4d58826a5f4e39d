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

use crate::check::{Compared, Verdict, judge};
use comm::Op;
use tensor::{F61, Scalar};

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

/// Kills: a judge that looks at the values, or at the traffic, of rank 0 only.
#[test]
fn every_rank_is_judged() {
    for (wrong, on) in [
        (0, "the only rank"),
        (1, "rank 1 of 2; right on 1 rank"),
        (2, "rank 2 of 3; right on 1 and 2 ranks"),
        (7, "rank 7 of 8; right on 1, 2, 3 and 4 ranks"),
    ] {
        let one = |rank: usize| vec![F61::from_usize(usize::from(rank == wrong))];
        let values = judge(
            |_, _| Vec::new(),
            |ranks| Ok(vec![Compared::new("y", one(ranks.rank()), vec![F61::ZERO])]),
        );
        assert_eq!(values, Verdict::Wrong(format!("y: differs, on {on}")));
        if wrong > 0 {
            let traffic =
                judge(|rank, _| vec![(Op::AllReduce, usize::from(rank == wrong))], |_| Ok(Vec::new()));
            let why =
                format!("all values are right, but all_reduce is given 0 elements and needs 1, on {on}");
            assert_eq!(traffic, Verdict::Wrong(why));
        }
    }
}
