//! The book is whole: every chapter is listed, exists and runs, and no relative link leads nowhere. The first
//! half of the file holds the checks, each of which returns its violations; the second half plants some.

use std::collections::BTreeSet;

use crate::tree::markdown::{anchors, links, prose};
use crate::tree::{File, files, none, root};

/// Lists chapters that are missing in one of three: the folder, the list, the doctests of `lib.rs`.
fn missing_chapters(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
    let chapters = files.iter().filter(|file| file.is("md") && file.path != "docs/src/SUMMARY.md");
    let folder = chapters.filter_map(|file| file.path.strip_prefix("docs/src/").map(str::to_owned));
    let folder: BTreeSet<_> = folder.collect();
    let listed: BTreeSet<_> = links(text("docs/src/SUMMARY.md")).into_iter().map(|(_, link)| link).collect();
    let lines = text("docs/src/lib.rs").lines();
    let run = lines.filter_map(|line| line.strip_prefix("#[doc = include_str!(\"")?.strip_suffix("\")]"));
    let run: BTreeSet<_> = run.map(str::to_owned).collect();
    let places = [
        (&folder, "in the folder docs/src"),
        (&listed, "in docs/src/SUMMARY.md"),
        (&run, "in docs/src/lib.rs: its code blocks do not run"),
    ];
    let all: BTreeSet<_> = [&folder, &listed, &run].into_iter().flatten().collect();
    let missing = all.into_iter().flat_map(|chapter| {
        let lacking = places.iter().filter(move |(place, _)| !place.contains(chapter));
        lacking.map(move |(_, place)| format!("chapter `{chapter}` is missing {place}"))
    });
    missing.collect()
}

/// Lists relative links of Markdown files that lead to no file, or to no heading of it.
fn dead_links(files: &[File], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for file in files.iter().filter(|file| file.is("md")) {
        for (line, link) in links(&file.text) {
            let fate = if link.contains("://") || link.starts_with("mailto:") {
                Ok(())
            } else {
                follow(files, &exists, &file.path, &link)
            };
            dead.extend(fate.err().map(|why| format!("{}:{line}: `{link}` {why}", file.path)));
        }
    }
    dead
}

fn follow(files: &[File], exists: impl Fn(&str) -> bool, from: &str, link: &str) -> Result<(), &'static str> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = match path {
        "" if anchor.is_none() => return Err("is empty"),
        "" => from.to_owned(),
        path => resolve(from, path).ok_or("leads out of the repository")?,
    };
    if !exists(&target) {
        return Err("leads to no file");
    }
    match (anchor, files.iter().find(|file| file.path == target && file.is("md"))) {
        (None, _) => Ok(()),
        (Some(anchor), Some(file)) if anchors(&file.text).iter().any(|there| there == anchor) => Ok(()),
        (Some(_), Some(_)) => Err("leads to no heading of that file"),
        (Some(_), None) => Err("has an anchor, but leads to no Markdown file"),
    }
}

/// Resolves `path`, as seen from the file `from`, to a path from the root, if there is one.
fn resolve(from: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Lists whole files in chapters, as forges show them, that are not the files; the line before each block
/// announces it.
fn other_files(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is("md")) {
        for (at, _) in file.text.match_indices("{{#include") {
            wrong.push(format!("{}: {:?} shows nothing on a forge", file.path, &file.text[at..at + 10]));
        }
        for (_, after) in file.text.match_indices(WHOLE).map(|(at, mark)| file.text.split_at(at + mark.len()))
        {
            let (path, block) = after.split_once(" -->\n```rs\n").unwrap_or((after, ""));
            let there =
                resolve(&file.path, path).and_then(|path| files.iter().find(|file| file.path == path));
            let is_it =
                |there: &File| block.strip_prefix(&*there.text).is_some_and(|rest| rest.starts_with("```\n"));
            if !there.is_some_and(is_it) {
                let path = path.lines().next().unwrap_or_default();
                wrong.push(format!("{}: the block shown as {path} differs from that file", file.path));
            }
        }
    }
    wrong
}

/// Beginning of the line that announces a file.
const WHOLE: &str = "<!-- the whole of ";

#[test]
fn every_file_that_a_chapter_shows_is_the_file() {
    none(&other_files(&files()));
}

#[test]
fn a_planted_file_that_changed_is_seen() {
    let displayed =
        |what: &str| File::new("docs/src/a.md", format!("x\n{WHOLE}../b.rs -->\n```rs\n{what}```\ny\n"));
    let seen = |what: &str| other_files(&[displayed(what), File::new("docs/b.rs", "one\ntwo\n")]);
    let wrong = ["docs/src/a.md: the block shown as ../b.rs differs from that file"];
    assert_eq!(seen("one\ntwo\n"), [""; 0]);
    assert_eq!(
        (seen("one\n"), seen("one\ntwo\nthree\n")),
        (wrong.map(String::from).into(), wrong.map(String::from).into())
    );
    let other = other_files(&[File::new("a.md", "{{#include b.rs}}")]);
    assert_eq!(other, ["a.md: \"{{#include\" shows nothing on a forge"]);
}

#[test]
fn every_chapter_is_listed_exists_and_runs() {
    none(&missing_chapters(&files()));
}

#[test]
fn every_relative_link_leads_somewhere() {
    none(&dead_links(&files(), |path| root().join(path).exists()));
}

#[test]
fn a_planted_stray_chapter_is_seen() {
    let missing = missing_chapters(&[
        File::new("docs/src/SUMMARY.md", "- [A](a.md)\n- [B](b.md)\n- [D]()\n"),
        File::new(
            "docs/src/lib.rs",
            "#[doc = include_str!(\"a.md\")]\nmod a {}\n// #[doc = include_str!(\"c.md\")]\n",
        ),
        File::new("docs/src/a.md", ""),
        File::new("docs/src/c.md", ""),
    ]);
    assert_eq!(
        missing,
        [
            "chapter `` is missing in the folder docs/src",
            "chapter `` is missing in docs/src/lib.rs: its code blocks do not run",
            "chapter `b.md` is missing in the folder docs/src",
            "chapter `b.md` is missing in docs/src/lib.rs: its code blocks do not run",
            "chapter `c.md` is missing in docs/src/SUMMARY.md",
            "chapter `c.md` is missing in docs/src/lib.rs: its code blocks do not run",
        ]
    );
}

#[test]
fn planted_dead_links_are_seen() {
    let good =
        "[a](b.md) [c](b.md#d-e) [f](#g) [h](../../x.rs) [i](https://example.org/j) [k](../src/)\n# G\n";
    let bad = "[a](c.md)\n[b](b.md#f)\n[c](#h)\n[d](../../../x.rs)\n[e](/x.rs)\n[f](../../x.rs#L1)\n[g]()\n";
    let files = [
        File::new("docs/src/good.md", good),
        File::new("docs/src/bad.md", bad),
        File::new("docs/src/b.md", "# D e?"),
    ];
    let there = ["docs/src", "docs/src/good.md", "docs/src/bad.md", "docs/src/b.md", "x.rs"];
    let dead = dead_links(&files, |path| there.contains(&path));
    let whys: Vec<_> =
        dead.iter().map(|line| line.strip_prefix("docs/src/bad.md:").unwrap_or(line)).collect();
    assert_eq!(
        whys,
        [
            "1: `c.md` leads to no file",
            "2: `b.md#f` leads to no heading of that file",
            "3: `#h` leads to no heading of that file",
            "4: `../../../x.rs` leads out of the repository",
            "5: `/x.rs` leads out of the repository",
            "6: `../../x.rs#L1` has an anchor, but leads to no Markdown file",
            "7: `` is empty",
        ]
    );
}

/// Most words of a chapter's main path: what stands outside of folds, code, tables and the sections that a
/// reader does. Two printed pages have as many.
const MAIN: usize = 1250;

/// Sections that a reader does, or looks up.
const DONE: [&str; 6] = ["Goals", "Predict", "Run", "Break it", "Questions", "Source"];

/// Lists chapters of the course and its appendix that do not say, below their title, how long they take and
/// what one should know, or whose main path is too long; and chapters of the course without a picture.
fn unpaced(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
    let parts = text("docs/src/SUMMARY.md").split("\n# ");
    let chapters = parts.flat_map(|part| {
        let (is_course, is_appendix) = (part.starts_with("The course\n"), part.starts_with("Appendix\n"));
        let own = if is_course || is_appendix { links(part) } else { Vec::new() };
        own.into_iter().map(move |(_, link)| (link, is_course)).filter(|(link, _)| link != "exercises.md")
    });
    let wrong = chapters.filter_map(|(chapter, is_course)| {
        let text = text(&format!("docs/src/{chapter}"));
        let line = text.lines().nth(2).unwrap_or_default();
        let minutes = line.strip_prefix("*About ").and_then(|rest| rest.split_once(" minutes. Before: "));
        if minutes.is_none_or(|(n, _)| n.parse::<usize>().is_err()) {
            return Some(format!("{chapter}: no line \"*About 20 minutes. Before: …*\" below its title"));
        }
        if is_course && !text.contains("](pictures/") {
            return Some(format!("{chapter}: no picture"));
        }
        let words = main_path(text);
        (words > MAIN).then(|| format!("{chapter}: a main path of {words} words, more than {MAIN}"))
    });
    wrong.collect()
}

/// Words of a chapter's main path.
fn main_path(text: &str) -> usize {
    let (mut folds, mut is_done, mut is_mark, mut words) = (0, false, false, 0);
    for (_, line) in prose(text) {
        is_mark |= line.starts_with("<!--");
        if is_mark {
            is_mark = !line.ends_with("-->"); // not printed
            continue;
        }
        folds += usize::from(line.starts_with("<details>"));
        if let Some(section) = line.strip_prefix("## ") {
            is_done = DONE.contains(&section);
        }
        let counts = folds == 0 && !is_done && !line.starts_with(['|', '<']);
        words += if counts { line.split_whitespace().count() } else { 0 };
        folds -= usize::from(line.starts_with("</details>"));
    }
    words
}

#[test]
fn chapters_say_how_long_they_take_and_are_short() {
    none(&unpaced(&files()));
}

#[test]
fn planted_long_chapters_are_seen() {
    let chapter = |name: &str, text: &str| File::new(&format!("docs/src/{name}.md"), text);
    let words = "word ".repeat(MAIN);
    let head = "# T\n\n*About 20 minutes. Before: [a](a.md).*\n![x](pictures/x.svg)\n";
    let files = [
        chapter(
            "SUMMARY",
            "# S\n\n# The course\n\n- [A](a.md)\n- [B](b.md)\n- [C](c.md)\n- [E](e.md)\n\n# R\n\n- [D](d.md)\n",
        ),
        chapter("a", "# T\n\ntext\n"),
        chapter("b", &format!("{head}{words}\n")),
        chapter("c", &format!("{head}```\n{words}\n```\n<details>\n{words}\n</details>\n## Run\n{words}\n")),
        chapter("d", &words),
        chapter("e", "# T\n\n*About 20 minutes. Before: nothing.*\n"),
    ];
    let wrong = unpaced(&files);
    assert_eq!(
        wrong,
        [
            "a.md: no line \"*About 20 minutes. Before: …*\" below its title".to_owned(),
            format!("b.md: a main path of {} words, more than {MAIN}", MAIN + 8),
            "e.md: no picture".to_owned(),
        ]
    );
}
