//! The museum's page agrees with the labels of its exhibits. `EQUIPART_REWRITE=1 cargo test -p docs museum`
//! rewrites its cards.
#[path = "../../../xtask/src/museum/header.rs"]
pub(crate) mod header;

use crate::tree::{File, files, none, root};
use header::{Killer, Label, ReportSource, disorder};
use std::fs;

const PAGE: &str = "docs/src/museum.md";
/// Line before the cards.
const BEGIN: &str = "<!-- exhibits -->\n";
/// Line after the cards.
const END: &str = "<!-- end of exhibits -->\n";

/// Every exhibit, by number.
fn labels(files: &[File]) -> Vec<Label> {
    let is_exhibit = |file: &&File| file.path.starts_with("museum/") && (file.is("patch") || file.is("rs"));
    let label =
        |file: &File| header::read::<Label>(&file.path, &file.text).unwrap_or_else(|why| panic!("{why}"));
    let mut labels: Vec<_> = files.iter().filter(is_exhibit).map(label).collect();
    labels.sort_by(|a, b| a.path.cmp(&b.path));
    labels
}

/// The cards of the page.
fn cards(labels: &[Label]) -> String {
    let card = |label: &Label| {
        let Label { exhibit, title, breaks, killed_by, f32_loss, path, .. } = label;
        let ReportSource { name, address, reported } = &label.source;
        let source = address.as_ref().map_or(name.clone(), |address| format!("[{name}]({address})"));
        let killer = match killed_by {
            Killer::Compiler { .. } => killed_by.to_string(),
            Killer::Test { .. } => format!("`{killed_by}`"),
        };
        format!(
            "### {exhibit}. {title}\n\n\
             - **Breaks**: {breaks}\n\
             - **Source**: {source}: {reported}\n\
             - **Killed by**: {killer}, with [this code](../../{path})\n\
             - **f32 loss**: {f32_loss}\n\n"
        )
    };
    labels.iter().map(card).collect()
}

/// Kills: a page whose exhibits differ from those of the museum.
#[test]
fn the_page_says_what_the_labels_say() {
    let (labels, path) = (labels(&files()), root().join(PAGE));
    none(&disorder(&labels));
    let page = fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the cards begin");
    let (seen, after) = rest.split_once(END).expect("the cards end");
    let wanted = cards(&labels);
    if crate::rewrites::rewrites() {
        fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("the page is written");
    } else {
        assert!(
            seen == wanted,
            "{PAGE} differs from the labels; the top of this file says how to write it anew"
        );
    }
}

/// Kills: cards out of order, links to another address than the source, a test named in another form.
#[test]
fn cards_are_made_of_labels() {
    let exhibit = |number: usize, name: &str, source: &str| {
        let label = format!(
            "Exhibit: {number}\nTitle: t\nSource: {source}: s\nBreaks: b\nKilled by: a lib t\nF32 loss: l\n\ndiff --git\n"
        );
        File::new(name, label)
    };
    let good =
        [exhibit(2, "museum/02-b.patch", "a/b#1 (issue)"), exhibit(1, "museum/01-a.patch", "textbook")];
    assert_eq!(
        cards(&labels(&good)),
        "### 1. t\n\n- **Breaks**: b\n- **Source**: textbook: s\n\
         - **Killed by**: `a::t`, with [this code](../../museum/01-a.patch)\n- **f32 loss**: l\n\n\
         ### 2. t\n\n- **Breaks**: b\n- **Source**: [a/b#1](https://github.com/a/b/issues/1): s\n\
         - **Killed by**: `a::t`, with [this code](../../museum/02-b.patch)\n- **f32 loss**: l\n\n"
    );
}
