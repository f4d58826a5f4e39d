//! Habits that may only become rarer: tuples that stand for several statements, tuples as parameters, and
//! local names that are no nouns. Tests do not count. The first half of the file holds the check, which
//! returns its violations, one line each; the second half plants some.

use crate::circles;
use crate::floors::CRATES;
use crate::tree::{File, files, none};

/// A habit: its name, its number in all crates together, and the function that counts it in code.
type Habit = (&'static str, usize, fn(&str) -> usize);

const LITERALS: usize = 510;
const PARAMETERS: usize = 12;
const NAMES: usize = 338;

const HABITS: [Habit; 3] = [
    ("`let` of a tuple from a tuple of expressions", LITERALS, literals),
    ("parameters that are tuples of three or more", PARAMETERS, parameters),
    ("`let` of a name such as `of` instead of a noun", NAMES, names),
];

/// Names that do not tell what a local variable holds.
const UNCLEAR: [&str; 5] = ["all", "at", "of", "own", "to"];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The texts that follow a word in code.
fn after<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let is_whole = |at: &usize| !code[..*at].ends_with(is_word);
    code.match_indices(word).map(|(at, _)| at).filter(is_whole).map(move |at| &code[at + word.len()..])
}

/// Splits a text that begins with a bracket into the contents of the bracket and the rest.
fn bracket(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (at > 0).then(|| (&text[1..at], &text[at + 1..])); // else there is no bracket
        }
    }
    None
}

/// The parts of a text between the commas that are in no bracket.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_comma = |c: char| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(is_comma).map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn literals(code: &str) -> usize {
    let is_literal = |text: &&str| {
        let rest = bracket(text).and_then(|(_, rest)| rest.trim_start().strip_prefix('='));
        let value = rest.map(str::trim_start).filter(|value| value.starts_with('(')).and_then(bracket);
        value.is_some_and(|(_, rest)| rest.trim_start().starts_with(';'))
    };
    after(code, "let ").filter(|text| text.starts_with('(')).filter(is_literal).count()
}

fn parameters(code: &str) -> usize {
    let declared = |text| {
        let name = str::trim_start_matches(text, is_word);
        let mut angles = 0;
        let begin = name.char_indices().find(|&(at, c)| {
            angles += i32::from(c == '<') - i32::from(c == '>' && !name[..at].ends_with('-'));
            c == '(' && angles == 0
        });
        begin.and_then(|(at, _)| bracket(&name[at..])).map_or("", |(inside, _)| inside)
    };
    let is_long = |part: &&str| {
        bracket(part).is_some_and(|(inside, rest)| rest.starts_with(':') && parts(inside).len() > 2)
    };
    let of_all = after(code, "fn ").flat_map(|text| parts(declared(text)));
    of_all.filter(|part| part.starts_with('(')).filter(is_long).count()
}

fn names(code: &str) -> usize {
    let unclear = |text: &str| {
        let pattern = text.split(['=', ':', '{', ';']).next().unwrap_or_default().trim();
        let named = bracket(pattern).map_or_else(|| vec![pattern], |(inside, _)| parts(inside));
        named.iter().filter(|name| UNCLEAR.contains(&name.trim_start_matches("mut "))).count()
    };
    after(code, "let ").map(unclear).sum()
}

/// Habits whose number is not the one that is written down.
fn wrong_numbers(crates: &[&str], files: &[File], habits: &[Habit]) -> Vec<String> {
    let code: Vec<(&str, String)> = crates
        .iter()
        .map(|krate| (*krate, circles::texts(krate, files).into_values().collect::<Vec<_>>().join("\n")))
        .collect();
    let wrong = |&(habit, number, count): &Habit| {
        let by_crate: Vec<_> = code.iter().map(|(krate, code)| (krate, count(code))).collect();
        let seen: usize = by_crate.iter().map(|(_, n)| n).sum();
        let named = by_crate.iter().filter(|(_, n)| *n > 0).map(|(krate, n)| format!("{krate} {n}"));
        let named = named.collect::<Vec<_>>().join(", ");
        let advice =
            if seen > number { "write them in another way" } else { "lower the number in this file" };
        (seen != number).then(|| format!("{habit}: {seen}, not {number}: {advice} ({named})"))
    };
    habits.iter().filter_map(wrong).collect()
}

#[test]
fn habits_become_rarer() {
    let crates: Vec<_> = CRATES.iter().copied().chain(["python"]).collect();
    none(&wrong_numbers(&crates, &files(), &HABITS));
}

#[test]
fn planted_habits_are_counted() {
    let code = "let (a, mut b) = (1, f(2, 3));\nlet (a, [b, c]) =\n    (x, y);\nlet (a, b) = (x, y).into();\n\
                let (a, b) = f(x, y);\nif let (1, Some(b)) = (x, y) {}\nlet a = (x, y);";
    assert_eq!(literals(code), 2);
    let code = "fn f<F: Fn(u8, u8, u8) -> u8>(&self, (a, b, [c, d]): (A, B, C), (e, f): (E, F)) {}\n\
                fn g((a, b, c): G<A, (B, C, D)>, (d, _, ..): D) {}\nf((1, 2, 3));\nlet (a, b, c): A = x;";
    assert_eq!(parameters(code), 3);
    let code = "let of = |to: u8| to;\nlet mut all: Vec<u8> = x;\nlet (rows, mut at) = (to, 0);\nlet own_rows = own;\n\
                let Span { at, .. } = x;\nlet &(to, own) = f(of, all) else { return };\noutlet at";
    assert_eq!(names(code), 3);
    let files = [
        File::new("x/src/a.rs", "let (a, b) = (1, 2);\n#[cfg(test)]\nmod tests { let (a, b) = (1, 2); }"),
        File::new("y/src/a.rs", "// let (a, b) = (1, 2);"),
        File::new("y/src/b.rs", "let (a, b) = (1, 2);\nlet (a, b) = (1, 2);"),
    ];
    let seen = |number| wrong_numbers(&["x", "y"], &files, &[("pairs", number, literals)]);
    assert_eq!(seen(2), ["pairs: 3, not 2: write them in another way (x 1, y 2)"]);
    assert_eq!(seen(3), [""; 0]);
    assert_eq!(seen(4), ["pairs: 3, not 4: lower the number in this file (x 1, y 2)"]);
}
