//! The code of a Rust file, without comments, strings and tests.

use super::place::tokens;

/// Blanks out comments, strings and characters of a file; lines stay where they are.
pub(crate) fn code(text: &str) -> String {
    let (mut code, mut end) = (String::with_capacity(text.len()), 0);
    let blank = |text: &str| text.chars().map(|c| if c == '\n' { c } else { ' ' }).collect::<String>();
    for at in tokens(text) {
        code += &blank(&text[end..at.start]);
        end = at.end;
        let token = &text[at];
        let is_opaque = token.contains('"') || token.len() > 1 && token.starts_with('\'');
        code += &if is_opaque { blank(token) } else { token.to_owned() };
    }
    code + &blank(&text[end..])
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
    let text = "a /* b // c */ \"d\\\"\" 'e' '\\'' r#\"f\"\"# br\"g\" <'h> r#i // j\n\
                #[cfg(test)]\nmod k {\n{}}\nl";
    let code = code(text);
    assert_eq!(code.split_whitespace().collect::<Vec<_>>()[..3], ["a", "<'h>", "r#i"]);
    assert_eq!(code.lines().count(), text.lines().count());
    let (kept, modules) = without_tests(&code);
    assert_eq!(kept.split_whitespace().collect::<Vec<_>>(), ["a", "<'h>", "r#i", "l"]);
    assert_eq!(kept.lines().count(), text.lines().count());
    assert!(modules.is_empty());
    let elsewhere = "#[cfg(test)]\n#[rustfmt::skip]\npub(crate) mod far;\nfn f() -> [u8; 2] { g }";
    assert_eq!(without_tests(elsewhere).1, ["far"]);
    assert!(without_tests(elsewhere).0.contains('g'));
    assert_eq!(without_tests("#![cfg(test)]\nuse far;").0, "");
}
