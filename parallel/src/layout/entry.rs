//! The list of strategies as a table: for the command, and for the book.
use layers::model::strategy::About;
use layers::{Shape, strategies};
use serde::Serialize;

/// One strategy, in words.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// How a layout names it, for two ranks: `tp=2`.
    pub key: String,
    /// Its name.
    pub name: String,
    /// What each rank has its part of.
    pub splits: String,
    /// What the ranks share, and so where it fits; any number fits where it is "anything".
    pub fits: String,
    /// Where it comes from.
    pub paper: String,
    /// The file of the book's chapter, if there is one.
    pub chapter: Option<String>,
}

impl Entry {
    /// All of the list, in its order.
    #[must_use]
    pub fn all() -> Vec<Entry> {
        strategies::all().into_iter().map(Entry::of).collect()
    }
    fn of(about: &About) -> Entry {
        let shared = (about.shares)(&Shape::LLAMA);
        let fits: Vec<_> = shared
            .iter()
            .map(|s| if s.copies { format!("{} (or copies)", s.what) } else { s.what.to_string() })
            .collect();
        Entry {
            key: about.key.written(2),
            name: about.name.into(),
            splits: about.splits.into(),
            fits: if fits.is_empty() { "anything".into() } else { fits.join(", ") },
            paper: about.paper.into(),
            chapter: about.chapter.map(str::to_owned),
        }
    }
    /// The table of the book, in Markdown.
    #[must_use]
    pub fn book() -> String {
        let row = |e: Entry| {
            let chapter = e.chapter.map_or_else(String::new, |file| format!("[{file}]({file})"));
            let cells = [format!("`{}`", e.key), e.name, e.splits, e.fits, e.paper, chapter];
            format!("| {} |\n", cells.join(" | "))
        };
        let head = "| layout | strategy | each rank has its part of | its ranks share | source | chapter |\n\
                    |---|---|---|---|---|---|\n";
        head.to_string() + &Entry::all().into_iter().map(row).collect::<String>()
    }
}
