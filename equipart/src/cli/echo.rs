//! Errors, and arguments as messages quote them: cut to a length, with control and invisible characters
//! escaped.
use crate::terminal::out;
use parallel::Error;
use tensor::quoted::{escaped, escaped_lines};

/// Number of characters shown of an argument.
const MOST: usize = 100;

/// Prints an error on one line, with the names in it escaped, and the last calls of the ranks if ranks
/// failed; nothing if another process tells of it.
pub(crate) fn tell(Error { why, calls, told, .. }: &Error) {
    if *told {
        return;
    }
    out::failure(&format!("error: {}", displayed(&escaped(why), &arguments())));
    if let Some(calls) = calls {
        out::failure(&format!("\n{calls}"));
    }
}

/// Returns the arguments of this process; bytes that are not UTF-8 are replaced.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// Returns a message that may quote parts of these arguments, raw or escaped, with long quotes cut. Invisible
/// characters are escaped, except line ends.
pub(crate) fn displayed(message: &str, arguments: &[String]) -> String {
    let message = escaped_lines(message);
    let long = arguments.iter().filter(|argument| argument.chars().count() > MOST);
    let long: Vec<_> =
        long.flat_map(|of| [escaped(of), format!("{of:?}").trim_matches('"').to_string()]).collect();
    message.split('\n').map(|line| cut(line, &long)).collect::<Vec<_>>().join("\n")
}

/// Cuts each stretch of the line that is longer than [`MOST`] characters and is part of one of the long
/// arguments.
fn cut(line: &str, long: &[String]) -> String {
    let (mut kept, mut rest) = (String::new(), line);
    while let Some(c) = rest.chars().next() {
        let begin = rest.char_indices().nth(MOST).map_or(rest, |(end, _)| &rest[..end]);
        let quoted = long.iter().filter_map(|of| of.find(begin).map(|at| common(rest, &of[at..]))).max();
        if let Some(len) = quoted.filter(|len| *len > begin.len()) {
            kept += begin;
            kept.push('…');
            rest = &rest[len..];
        } else {
            kept.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    kept
}

/// Number of bytes of the common prefix.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: an argument shown whole, as it is or in Debug's escapes; cut words around an argument; a
    /// reversed order of letters; a change to a message without long arguments.
    #[test]
    fn what_is_quoted_is_short_and_seen() {
        let long = format!("tp=2,{}\u{202e}\n\"{}", "x".repeat(5000), "é".repeat(5000));
        let arguments = ["prove".to_string(), long.clone()];
        let begin = &long[..MOST];
        for quoted in [escaped(&long), format!("{long:?}").trim_matches('"').to_string()] {
            let reported =
                displayed(&format!("invalid value '{quoted}': it is no layout\n\nsee help"), &arguments);
            assert!(
                reported.contains(begin) && reported.ends_with("…': it is no layout\n\nsee help"),
                "{reported}"
            );
            assert!(reported.chars().count() < 2 * MOST + 60 && reported.lines().count() == 3, "{reported}");
        }
        let part = format!("axis {:?} is none", &long[1000..3000]);
        assert_eq!(displayed(&part, &arguments), format!("axis \"{}…\" is none", "x".repeat(MOST)));
        let other = "y".repeat(5000);
        assert_eq!(displayed(&other, &arguments), other);
        assert_eq!(displayed("a\u{202e}\u{1b}[31m", &["a".into()]), "a\\u{202e}\\u{1b}[31m");
    }
}
