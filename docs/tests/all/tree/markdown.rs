//! Links and headings of a Markdown file, for the checks of the book.

/// Returns the targets of links, images and includes, each with its line number. In code, only includes
/// count.
pub(crate) fn links(markdown: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in markdown.lines().enumerate() {
        found.extend(between(line, "{{#include ", &[':', '}']).into_iter().map(|to| (at + 1, to)));
    }
    for (at, line) in prose(markdown) {
        let line = without_code(line);
        let line = line.trim();
        let mut targets = between(&line.replace("](<", "]("), "](", &[')', '>', ' ']);
        targets.extend(["href=\"", "src=\""].iter().flat_map(|attribute| between(line, attribute, &['"'])));
        let definition = line.strip_prefix('[').and_then(|line| line.split_once("]: "));
        targets.extend(definition.map(|(_, target)| target.split(' ').next().unwrap_or_default().to_owned()));
        found.extend(targets.into_iter().map(|to| (at, to)));
    }
    found
}

/// Returns the anchors of the headings, which may follow the file's path as `#name`, spelt as Markdown
/// viewers and the book spell them.
pub(crate) fn anchors(markdown: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(markdown) {
        let title = line.trim_start_matches('#');
        if !(1..=6).contains(&(line.len() - title.len())) || !title.starts_with(' ') {
            continue;
        }
        let targets = between(title, "](", &[')']);
        let title = targets.iter().fold(title.to_owned(), |title, to| title.replace(&format!("]({to})"), ""));
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase();
        let mut again = (1..=anchors.len()).map(|n| format!("{name}-{n}"));
        let fresh = if anchors.contains(&name) { again.find(|name| !anchors.contains(name)) } else { None };
        anchors.push(fresh.unwrap_or(name));
    }
    anchors
}

/// Returns the lines outside fenced code, each with its number.
pub(crate) fn prose(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    markdown.lines().enumerate().filter_map(move |(at, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (mark, fence) {
            (Some(_), None) => fence = mark,
            (Some(mark), Some(open)) if mark == open => fence = None,
            (None, None) => return Some((at + 1, line)),
            _ => {}
        }
        None
    })
}

/// The line without its code spans.
fn without_code(line: &str) -> String {
    let Some(start) = line.find('`') else { return line.to_owned() };
    let ticks = line[start..].len() - line[start..].trim_start_matches('`').len();
    let (before, after) = (&line[..start], &line[start + ticks..]);
    let rest = after.find(&line[start..start + ticks]).map_or(after, |end| &after[end + ticks..]);
    format!("{before} {}", without_code(rest))
}

/// Returns the text between each `open` and the next of `close`.
fn between(line: &str, open: &str, close: &[char]) -> Vec<String> {
    let starts = line.match_indices(open).map(|(at, open)| &line[at + open.len()..]);
    starts.map(|rest| rest.split(close).next().unwrap_or_default().trim().to_owned()).collect()
}

#[test]
fn links_and_headings_are_found() {
    let text = "# A `b` [c](d.md), e_f!\n[g](h.md#i) ![j](<k.svg> \"l\") `[m](n)` ``o`[p](q)``\n[r]: s.md 't'\n\
        ```rust\n# u\na[v](w)\n{{#include x.rs:2}}\n```\n<img src=\"y.svg\">\n## A\n## A\n#z\n";
    let mut targets = links(text);
    targets.sort();
    let wanted = [(1, "d.md"), (2, "h.md#i"), (2, "k.svg"), (3, "s.md"), (7, "x.rs"), (9, "y.svg")];
    assert_eq!(targets, wanted.map(|(line, to)| (line, to.to_owned())));
    assert_eq!(anchors(text), ["a-b-c-e_f", "a", "a-1"]);
}
