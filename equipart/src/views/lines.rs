//! Lines: words and tables for people on standard output, and notes on standard error.
use super::view::RunView;
use crate::terminal::{out, show};
use parallel::Result;
use run::event::RunEvent;

/// A view that prints notes on standard error.
pub struct NoteLines;

impl RunView for NoteLines {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        if let RunEvent::Note(words) = event {
            out::note(words);
        }
        Ok(())
    }
}

/// A view that prints words, and tables as wide as the terminal.
pub struct Lines;

impl RunView for Lines {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        match event {
            RunEvent::Text(words) => out::line(words),
            RunEvent::Screen(words) => out::plain(words),
            RunEvent::Table { heads, rows } => {
                let heads: Vec<_> = heads.iter().map(String::as_str).collect();
                out::line(&show::fitted_if_wide(show::table(&heads, rows.iter().cloned())).to_string());
            }
            _ => {}
        }
        Ok(())
    }
}
