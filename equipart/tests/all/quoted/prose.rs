//! Figures in prose are what commands print. A mark below the prose has a line for each:
//!
//! ```text
//! `dp=2` holds 22.99 MB, 6.82 MB more than with its moments in a file.
//!
//! <!-- prose: equipart price --seq 64 --layout
//! holds 22.99 MB = [dp=2 | peak_bytes.total]
//! 6.82 MB more = [dp=2 | peak_bytes.total] - [dp=2:offload-file | peak_bytes.total]
//! -->
//! ```
//! The last number of the words before ` = ` is checked, to the digits and in the unit that it has. What
//! follows are numbers and figures between `+`, `-`, `*` and `/`, from left to right. A figure is the largest
//! of its key in the objects that the command prints with these further arguments, or with a number before
//! the key (`0.seconds`) that of one object.
use super::{ROOT, pages};
use crate::child::{binary, output};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

const MARK: &str = "<!-- prose: equipart ";
const UNITS: [(&str, f64); 9] = [
    ("TB", 1e12),
    ("GB", 1e9),
    ("MB", 1e6),
    ("kB", 1e3),
    ("TFLOP", 1e12),
    ("GFLOP", 1e9),
    ("ms", 1e-3),
    ("µs", 1e-6),
    ("%", 1e-2),
];

/// Output of commands with `--json`, each run once.
type Printed = BTreeMap<String, Vec<Value>>;

fn printed(line: &str) -> Vec<Value> {
    let output = output(binary().args(line.split_whitespace()).arg("--json").current_dir(ROOT));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the figure of a key, if there is one.
fn figure(objects: &[Value], key: &str) -> Option<f64> {
    let (at, key) = key
        .split_once('.')
        .map_or((None, key), |(at, rest)| at.parse::<usize>().map_or((None, key), |at| (Some(at), rest)));
    let objects = at.map_or(objects, |at| objects.get(at..=at).unwrap_or_default());
    let pointer = format!("/{}", key.replace('.', "/"));
    objects.iter().filter_map(|object| object.pointer(&pointer)?.as_f64()).reduce(f64::max)
}

/// Returns the value of an expression, where `figure` gives that of arguments and a key.
fn value(expression: &str, figure: &mut dyn FnMut(&str, &str) -> Option<f64>) -> Option<f64> {
    let (mut rest, mut sum, mut operator) = (expression.trim(), 0.0, "+");
    loop {
        let (term, after) = if let Some(inside) = rest.strip_prefix('[') {
            let (inside, after) = inside.split_once(']')?;
            let (args, key) = inside.rsplit_once('|')?;
            (figure(args.trim(), key.trim())?, after)
        } else {
            let (number, after) = rest.split_once(' ').unwrap_or((rest, ""));
            (number.parse().ok()?, after)
        };
        sum = match operator {
            "+" => sum + term,
            "-" => sum - term,
            "*" => sum * term,
            _ => sum / term,
        };
        let after = after.trim_start();
        if after.is_empty() {
            return Some(sum);
        }
        let next = after.split_once(' ')?;
        (operator, rest) =
            (["+", "-", "*", "/"].into_iter().find(|known| *known == next.0)?, next.1.trim_start());
    }
}

/// Returns words whose last number is this value, in its unit and to its digits.
fn with(words: &str, value: f64) -> Option<String> {
    let chars: Vec<char> = words.chars().collect();
    let end = chars.iter().rposition(char::is_ascii_digit)? + 1;
    let is_digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let is_thousands = |at: usize| (1..4).all(|i| is_digit(at + i)) && !is_digit(at + 4) && is_digit(at - 1);
    let is_part = |at: &usize| match chars[*at] {
        '.' => *at > 0 && is_digit(at - 1),
        ' ' | ',' => *at > 0 && is_thousands(*at),
        c => c.is_ascii_digit(),
    };
    let start = (0..end).rev().take_while(is_part).last()?;
    let [before, number, after] =
        [&chars[..start], &chars[start..end], &chars[end..]].map(|part| part.iter().collect::<String>());
    let unit = UNITS.iter().find(|(name, _)| after.trim_start().starts_with(name)).map_or(1.0, |(_, of)| *of);
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let new = format!("{:.decimals$}", value / unit);
    let whole = new.find('.').unwrap_or(new.len());
    let separator = number.chars().find(|c| [' ', ','].contains(c));
    let grouped = new.char_indices().flat_map(|(at, c)| {
        let is_group = at > 0 && at < whole && (whole - at).is_multiple_of(3);
        separator.filter(|_| is_group).into_iter().chain([c])
    });
    Some(before + &grouped.collect::<String>() + &after)
}

/// Returns the page anew, and a sentence for each figure that is not what is printed.
fn checked(page: &str, said: &mut dyn FnMut(&str) -> Vec<Value>) -> (String, Vec<String>) {
    let (mut new, mut wrong, mut parts) = (String::new(), Vec::new(), page.split(MARK));
    let mut above = parts.next().unwrap().to_owned();
    for part in parts {
        let (mark, rest) = part.split_once("\n-->").unwrap_or_else(|| panic!("{MARK}{part} has no end"));
        let (command, lines) = mark.split_once('\n').unwrap_or((mark, ""));
        let mut anew = format!("{MARK}{command}");
        for line in lines.lines() {
            let (words, expression) = line.rsplit_once(" = ").unwrap_or((line, ""));
            let mut of = |args: &str, key: &str| figure(&said(format!("{command} {args}").trim()), key);
            let right = value(expression, &mut of).and_then(|value| with(words, value));
            let place = above.replace('\n', " ").rfind(words);
            let line = 1 + [&new, &above[..place.unwrap_or(above.len())]]
                .map(|text| text.matches('\n').count())
                .iter()
                .sum::<usize>();
            match (right, place) {
                (Some(right), Some(place)) => {
                    if right != words {
                        wrong.push(format!("{line}: \"{words}\", wanted \"{right}\", by equipart {command}"));
                    }
                    above.replace_range(place..place + words.len(), &right);
                    anew.extend(["\n", &right, " = ", expression]);
                    continue;
                }
                (None, _) => {
                    wrong.push(format!("{line}: \"{words}\", but equipart {command} has no {expression}"));
                }
                (_, None) => {
                    wrong.push(format!("{line}: no words \"{words}\" above a mark that checks them"));
                }
            }
            anew.extend(["\n", words, " = ", expression]);
        }
        new.extend([above, anew]);
        above = format!("\n-->{rest}");
    }
    (new + &above, wrong)
}

/// Kills: a figure in prose that is not the one that its command prints, or that nobody finds.
#[test]
fn prose_has_the_figures_that_commands_print() {
    let (mut said, mut wrong, mut marked) = (Printed::new(), Vec::new(), 0);
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        let mut of = |line: &str| said.entry(line.to_owned()).or_insert_with(|| printed(line)).clone();
        let (new, all) = checked(&page, &mut of);
        marked += page.matches(MARK).count();
        wrong.extend(all.iter().map(|why| format!("{}:{why}", path.file_name().unwrap().display())));
        if crate::rewrites::rewrites() && new != page {
            fs::write(&path, new).unwrap();
        }
    }
    assert!(wrong.is_empty(), "EQUIPART_REWRITE=1 writes figures anew:\n{}", wrong.join("\n"));
    assert!(marked >= 10, "{marked} marks");
}

/// Kills: a number that is not seen, or is written in another unit or with other digits; an operation that
/// is another; a figure of another object; words that are elsewhere.
#[test]
fn planted_figures_are_seen() {
    let said = |line: &str| match line {
        "price a" => {
            vec![
                json!({"b": {"c": 4e6}}),
                json!({"b": {"c": 9_120_000}, "d": 0.5}),
                json!({"n": [7, 22_203]}),
            ]
        }
        _ => Vec::new(),
    };
    let page = |words: &str, rest: &str| {
        format!(
            "# X\n\nIt holds 1 MB,\n{words} more\nthan y.\n\n{MARK}price\n{words} more = {rest}\n-->\nz\n"
        )
    };
    for (right, wrong, rest) in [
        ("holds 9.12 MB", "holds 9.13 MB", "[a | b.c]"),
        ("`x2` 4.00 MB", "`x2` 9.12 MB", "[a | 0.b.c]"),
        ("5 120 kB", "4 120 kB", "[a | 1.b.c] - [a | 0.b.c]"),
        ("22,203 steps", "1,000 steps", "[a | n.1]"),
        ("50 %", "5 %", "[a | d]"),
        ("2.25 times", "2.31 times", "[a | d] + 4 * 0.5"),
        ("228 %", "9 %", "[a | b.c] / [a | 0.b.c]"),
    ] {
        assert_eq!(
            checked(&page(right, rest), &mut |line| said(line)),
            (page(right, rest), vec![]),
            "{rest}"
        );
        let (new, why) = checked(&page(wrong, rest), &mut |line| said(line));
        assert_eq!(new, page(right, rest));
        assert_eq!(why, [format!("4: \"{wrong} more\", wanted \"{right} more\", by equipart price")]);
    }
    let why = |page: String| checked(&page, &mut |line| said(line)).1.join("\n");
    for unknown in ["[a | e]", "[b | n]", "[a | 9.d]", "[a | d] ^ 2", "", "[a | d] 3"] {
        assert!(
            why(page("50 %", unknown)).starts_with("4: \"50 % more\", but equipart price has no "),
            "{unknown}"
        );
    }
    let elsewhere = page("50 %", "[a | d]").replacen("\n50 %", "\n50.0 %", 1);
    assert_eq!(why(elsewhere), "7: no words \"50 % more\" above a mark that checks them");
}
