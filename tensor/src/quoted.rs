//! Words of messages: names, values and sentences from files, made safe (control characters and invisible
//! characters are escaped, and long text is cut), and numbers with their nouns.

/// Largest number of characters shown of a name or a value.
const NAME: usize = 100;
/// Largest number of characters shown of a library's sentence.
const SENTENCE: usize = 300;

/// Formats a number with its noun: "1 rank", "2 ranks", "2 batches".
#[must_use]
pub fn counted(n: usize, what: &str) -> String {
    let plural = if what.ends_with("batch") { "es" } else { "s" };
    format!("{n} {what}{}", if n == 1 { "" } else { plural })
}

/// Returns a name or a value in quotes, escaped and cut.
pub fn quoted(name: &str) -> String {
    let (begin, rest) = cut(name, NAME);
    format!("{begin:?}{rest}")
}

/// Returns a name or a value without quotes, for places where it is recognisable without them.
pub fn displayed(name: &str) -> String {
    let (begin, rest) = cut(name, NAME);
    escaped(begin) + rest
}

/// Returns a library's message on one line.
pub fn sentence(words: &str) -> String {
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let (begin, rest) = cut(&words, SENTENCE);
    escaped(begin) + rest
}

/// Returns the message about a JSON text of one line: only the column, as the line is known to the caller.
pub fn of_line(why: &serde_json::Error) -> String {
    sentence(&why.to_string().replace(" at line 1 column ", " at column "))
}

/// Escapes control characters, and characters that hide or reorder other characters.
pub fn escaped(text: &str) -> String {
    let is_unseen = |c: char| {
        let hides = matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
        c.is_control() || hides || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Escapes a text as [`escaped`], but for the ends of its lines.
pub fn escaped_lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Returns the first `most` characters, and "…" if the text is longer.
fn cut(text: &str, most: usize) -> (&str, &'static str) {
    text.char_indices().nth(most).map_or((text, ""), |(end, _)| (&text[..end], "…"))
}

/// Formats numbers: `3`, `0, 2 and 5`.
pub fn listing(numbers: &[usize], last_word: &str) -> String {
    let texts: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} {last_word} {last}", first.join(", ")),
        _ => texts.concat(),
    }
}

/// Formats all divisors of `n`: `1, 2 or 4`.
#[must_use]
pub fn sizes(n: usize) -> String {
    listing(&divisors(n), "or")
}
fn divisors(n: usize) -> Vec<usize> {
    let mut sizes: Vec<_> = (1..=n.isqrt()).filter(|&size: &usize| n.is_multiple_of(size)).collect();
    let large: Vec<_> = sizes.iter().rev().map(|size| n / size).filter(|&size| size > n.isqrt()).collect();
    sizes.extend(large);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a divisor that is missing or twice, a list without its last word.
    #[test]
    fn divisors_are_listed() {
        assert_eq!((divisors(1), listing(&divisors(12), "or")), (vec![1], "1, 2, 3, 4, 6 or 12".to_string()));
        assert!((1..200).all(|n| divisors(n).into_iter().eq((1..=n).filter(|&size| n.is_multiple_of(size)))));
    }

    /// Kills: an escape sequence, a second line or a turned order of letters in a message; a name without an
    /// end; a cut within a character.
    #[test]
    fn what_is_shown_of_a_file_is_seen_short_and_on_one_line() {
        let hostile = "a\u{1b}[31m\nb\u{9b}2J\u{202e}\u{200b}\"ü\\";
        assert_eq!(quoted(hostile), r#""a\u{1b}[31m\nb\u{9b}2J\u{202e}\u{200b}\"ü\\""#);
        assert_eq!(displayed(hostile), r#"a\u{1b}[31m\nb\u{9b}2J\u{202e}\u{200b}"ü\"#);
        assert_eq!(escaped(hostile), displayed(hostile));
        assert_eq!(sentence(&format!("{hostile} \n\t c")), r#"a\u{1b}[31m b\u{9b}2J\u{202e}\u{200b}"ü\ c"#);
        let long = "é".repeat(1000);
        assert_eq!(quoted(&long), format!("\"{}\"…", "é".repeat(NAME)));
        assert_eq!(displayed(&long), format!("{}…", "é".repeat(NAME)));
        assert_eq!(sentence(&long), format!("{}…", "é".repeat(SENTENCE)));
        assert_eq!(
            (quoted("lm_head.weight"), displayed(&long[..200])),
            (r#""lm_head.weight""#.into(), "é".repeat(100))
        );
    }
}
