//! The code of a Rust file, without comments, strings and tests.

/// Blanks out comments, strings and characters of a file; lines stay where they are.
pub(crate) fn code(text: &str) -> String {
    let text: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let part = opaque(&text[at..], at.checked_sub(1).map(|before| text[before]));
        code.extend(text[at..at + part].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at += part;
        if part == 0 {
            code.push(text[at]);
            at += 1;
        }
    }
    code
}

/// Number of characters from here on that are one comment, string or character; 0 if there is code.
fn opaque(text: &[char], before: Option<char>) -> usize {
    match text {
        ['/', '/', ..] => text.iter().position(|&c| c == '\n').unwrap_or(text.len()),
        ['/', '*', ..] => block_comment(text),
        ['"', ..] => quoted(text, '"'),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => quoted(text, '\''),
        ['r', ..] if before.is_none_or(|c| !c.is_alphanumeric() && c != '_') || before == Some('b') => {
            raw(text)
        }
        _ => 0,
    }
}

fn block_comment(text: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match text[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(text: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    text.len().min(at + 1)
}

fn raw(text: &[char]) -> usize {
    let hashes = text[1..].iter().take_while(|&&c| c == '#').count();
    if text.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = &text[2 + hashes..];
    body.windows(end.len()).position(|w| w == end).map_or(text.len(), |at| 2 + hashes + at + end.len())
}

/// Returns `code` without the items that `#[cfg(test)]` marks, and the names of the modules in other files
/// that it marks.
pub(crate) fn without_tests(code: &str) -> (String, Vec<String>) {
    let mark = "#[cfg(test)]";
    let (mut rest, mut kept, mut modules) = (code, String::new(), Vec::new());
    if code.contains("#![cfg(test)]") {
        return (kept, modules);
    }
    while let Some(at) = rest.find(mark) {
        let (before, item) = rest.split_at(at);
        let (item, after) = item.split_at(mark.len() + item_length(&item[mark.len()..]));
        let words: Vec<_> = item.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        if let Some(name) = words.iter().position(|word| *word == "mod")
            && item.ends_with(';')
        {
            modules.push(words[name + 1].to_owned());
        }
        kept.push_str(before);
        kept.extend(item.matches('\n'));
        rest = after;
    }
    kept.push_str(rest);
    (kept, modules)
}

/// Length up to the end of the next item: its `;`, or the brace that closes its first.
fn item_length(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth <= 0 && matches!(c, ';' | '}') {
            return at + 1;
        }
    }
    code.len()
}

#[test]
fn comments_strings_and_tests_are_no_code() {
    let text = "a /* b /* c */ */ \"d\\\"\" 'e' '\\'' r#\"f\"\"# br\"g\" <'h> r#i // j\n\
                #[cfg(test)]\nmod k {\n{}}\nl";
    let code = code(text);
    assert_eq!(code.split_whitespace().collect::<Vec<_>>()[..4], ["a", "b", "<'h>", "r#i"]);
    assert_eq!(code.lines().count(), text.lines().count());
    let (kept, modules) = without_tests(&code);
    assert_eq!(kept.split_whitespace().collect::<Vec<_>>(), ["a", "b", "<'h>", "r#i", "l"]);
    assert_eq!(kept.lines().count(), text.lines().count());
    assert!(modules.is_empty());
    let elsewhere = "#[cfg(test)]\n#[rustfmt::skip]\npub(crate) mod far;\nfn f() -> [u8; 2] { g }";
    assert_eq!(without_tests(elsewhere).1, ["far"]);
    assert!(without_tests(elsewhere).0.contains('g'));
    assert_eq!(without_tests("#![cfg(test)]\nuse far;").0, "");
}
