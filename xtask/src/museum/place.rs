//! Places in the sources. `layers: RowLinear::forward` is the item of the crate in the folder `layers` whose
//! path ends so. A path has the modules of files and of `mod`, the types and traits of `impl`, and functions;
//! `Layer for RowLinear` is the implementation of one trait, and `RowLinear` any of its implementations.
use std::ops::Range;
use std::path::Path;

/// Keywords that begin an item, before its name.
const KEYWORDS: [&str; 8] = ["fn", "impl", "mod", "trait", "struct", "enum", "const", "static"];

/// Splits a patch, after its label, into hunks: the place of each, and the lines that say what changes.
pub(crate) fn hunks(patch: &str) -> Vec<(&str, Vec<&str>)> {
    let mut hunks: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in patch.lines().skip_while(|line| !line.is_empty()).filter(|line| !line.is_empty()) {
        match hunks.last_mut() {
            Some((_, lines)) if line.starts_with([' ', '-', '+']) => lines.push(line),
            _ => hunks.push((line, Vec::new())),
        }
    }
    hunks
}

/// A named item of a source.
pub(crate) struct NamedItem<'a> {
    file: &'a Path,
    /// Names of the crate's folder, and of the modules, types and functions around it; then its own.
    path: Vec<String>,
    /// Its bytes, from its keyword to its end.
    at: Range<usize>,
}

/// Lists the named items of all Rust sources among these files.
pub(crate) fn items<'a>(files: impl Iterator<Item = (&'a Path, &'a [u8])>) -> Vec<NamedItem<'a>> {
    let sources = files.filter(|(file, _)| file.extension().is_some_and(|own| own == "rs"));
    sources.flat_map(|(file, text)| items_of(file, str::from_utf8(text).unwrap_or_default())).collect()
}

/// Finds the one item at a place: its file, and its bytes from its keyword to its end.
///
/// # Errors
/// The end of a sentence that begins with the place; it names the items found, or some that are like it.
pub(crate) fn find<'a>(items: &[NamedItem<'a>], place: &str) -> Result<(&'a Path, Range<usize>), String> {
    let (krate, path) = place.split_once(": ").ok_or("is no place such as `layers: RowLinear::forward`")?;
    let segments: Vec<&str> = path.split("::").collect();
    let is = |(name, segment): (&String, &&str)| {
        name == *segment || name.rsplit_once(" for ").is_some_and(|(_, of)| of == *segment)
    };
    let alike = |item: &NamedItem| {
        item.path[1..].iter().rev().zip(segments.iter().rev()).filter(|pair| is(*pair)).count()
    };
    let best = |least: usize| items.iter().filter(move |item| item.path[0] == krate && alike(item) >= least);
    let name = |item: &NamedItem| format!("{} in {}", item.path[1..].join("::"), item.file.display());
    let named =
        |items: &[&NamedItem]| items.iter().take(5).map(|item| name(item)).collect::<Vec<_>>().join(", ");
    match &best(segments.len()).collect::<Vec<_>>()[..] {
        [NamedItem { file, at, .. }] => Ok((file, at.clone())),
        [] => match &best(1).collect::<Vec<_>>()[..] {
            [] => Err("is no item".into()),
            near => Err(format!("is no item; near are {}", named(near))),
        },
        many => Err(format!("is {} items: {}", many.len(), named(many))),
    }
}

/// Lists the named items of a source.
fn items_of<'a>(file: &'a Path, source: &str) -> Vec<NamedItem<'a>> {
    let tokens = tokens(source);
    let word = |at: usize| tokens.get(at).map_or("", |token| &source[token.clone()]);
    let is_name = |at| word(at).starts_with(|c: char| c.is_alphabetic() || c == '_') && word(at) != "fn";
    let begins = |at: usize| {
        KEYWORDS.contains(&word(at))
            && (word(at) == "impl" || is_name(at + 1))
            && at.checked_sub(1).is_none_or(|before| !["*", "'"].contains(&word(before)))
    };
    let mut path = modules(file);
    let mut items = Vec::new();
    let mut open = Vec::new(); // brackets, each with the keyword of the item whose body it is
    let mut begun = None; // the keyword of an item whose body is to come, and the number of brackets around
    for at in 0..tokens.len() {
        let here = begun.filter(|&(_, around)| around == open.len()).map(|(keyword, _)| keyword);
        match (word(at), here) {
            ("{", Some(keyword)) if !["const", "static"].contains(&word(keyword)) => {
                path.push(match word(keyword) {
                    "impl" => implemented(&(keyword + 1..at).map(word).collect::<Vec<_>>()),
                    _ => word(keyword + 1).to_owned(),
                });
                open.push(Some(keyword));
                begun = None;
            }
            ("{" | "(" | "[", _) => open.push(None),
            ("}" | ")" | "]", _) => {
                if let Some(Some(keyword)) = open.pop() {
                    items.push(NamedItem {
                        path: path.clone(),
                        file,
                        at: tokens[keyword].start..tokens[at].end,
                    });
                    path.pop();
                }
                begun = begun.filter(|&(_, around)| around <= open.len());
            }
            (";", Some(keyword)) => {
                let path = [&path[..], &[word(keyword + 1).to_owned()]].concat();
                items.push(NamedItem { path, file, at: tokens[keyword].start..tokens[at].end });
                begun = None;
            }
            _ if begun.is_none() && begins(at) => begun = Some((at, open.len())),
            _ => {}
        }
    }
    items
}

/// Names the crate's folder and the modules of a file: `layers/src/linear/row.rs` has `layers`, `linear` and
/// `row`.
fn modules(file: &Path) -> Vec<String> {
    let file = file.with_extension("");
    let parts = file.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| !["src", "lib", "main", "mod"].contains(&&**part)).collect()
}

/// Names an implementation by the words between `impl` and its body, without paths and arguments of types:
/// `Layer for RowLinear`.
fn implemented(words: &[&str]) -> String {
    let mut names = vec![""];
    let mut depth = 0;
    for (at, &word) in words.iter().enumerate() {
        match word {
            "<" => depth += 1,
            ">" if words[at - 1] != "-" => depth -= 1,
            "where" => break,
            "for" if depth == 0 => names.push(""),
            name if depth == 0 && name.starts_with(|c: char| c.is_alphabetic()) => {
                *names.last_mut().expect("there is one") = name;
            }
            _ => {}
        }
    }
    names.join(" for ")
}

/// Splits a source into its tokens, without comments: words, strings, characters, and signs one by one.
pub(crate) fn tokens(source: &str) -> Vec<Range<usize>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while start < source.len() {
        let rest = &source[start..];
        let end = start + length(rest);
        if !rest.starts_with(char::is_whitespace) && !["//", "/*"].iter().any(|of| rest.starts_with(of)) {
            tokens.push(start..end);
        }
        start = end;
    }
    tokens
}

/// Length of the token, the comment or the white space at the beginning of a text.
fn length(text: &str) -> usize {
    let until =
        |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    let word = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let hashes = text[word..].bytes().take_while(|&byte| byte == b'#').count();
    let first = text.chars().next().map_or(0, char::len_utf8);
    match &text[..word] {
        "r" | "br" | "cr" if text[word + hashes..].starts_with('"') => {
            until(word + hashes + 1, &format!("\"{}", "#".repeat(hashes)))
        }
        "" if text.starts_with(char::is_whitespace) => {
            text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len())
        }
        "" if text.starts_with("//") => until(0, "\n"),
        "" if text.starts_with("/*") => until(2, "*/"),
        "" if text.starts_with('"') => quoted(text, '"'),
        "" if text.starts_with('\'')
            && (text[1..].starts_with('\\') || text.chars().nth(2) == Some('\'')) =>
        {
            quoted(text, '\'')
        }
        "" => first,
        _ => word,
    }
}

/// Length of the string or the character at the beginning of a text.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, c)| at + c.len_utf8())
}
