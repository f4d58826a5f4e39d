//! Progress on standard error: a bar on a terminal, plain lines elsewhere. It is cleared before results.
use super::view::RunView;
use crate::terminal::out;
use indicatif::{ProgressBar, ProgressStyle};
use parallel::Result;
use run::event::RunEvent;
use std::io::IsTerminal;
use std::time::Duration;
use tensor::quoted::escaped;

/// Progress bar in 80 columns, with the message of a training step.
const BAR: &str = "{pos}/{len} {msg}, {eta} left {wide_bar}";
/// Work of a length that is not known.
const SPINNER: &str = "{spinner} {wide_msg} ({elapsed})";

/// A view that shows parts of work, and steps, on a bar.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// True if results are JSON; then of a run with steps only notable ones are shown.
    is_json: bool,
    is_terminal: bool,
    has_steps: bool,
    has_length: Option<bool>, // none before the first activity
}

impl Progress {
    /// Makes a bar that appears with the first activity.
    pub(crate) fn new(is_json: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal() && !out::is_silent();
        Self { bar: ProgressBar::hidden(), is_json, is_terminal, has_steps: false, has_length: None }
    }
    /// Shows the bar of work of this length; of 0, if it is not known.
    fn begin(&mut self, of: usize) {
        if self.has_length.is_none() && self.is_terminal {
            self.bar = ProgressBar::new(0);
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
        if self.has_length != Some(of > 0) {
            let template = if of > 0 { BAR } else { SPINNER };
            self.bar.set_style(ProgressStyle::with_template(template).expect("a template that was tried"));
            self.has_length = Some(of > 0);
        }
        if of > 0 {
            self.bar.set_length(of as u64);
        }
    }
    /// Says a line where there is no terminal.
    fn note(&self, words: &str) {
        if !self.is_terminal && !words.is_empty() {
            out::note(words);
        }
    }
}

impl RunView for Progress {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        let is_quiet = self.is_json && self.has_steps;
        match event {
            RunEvent::Steps(steps) => {
                self.has_steps = true;
                self.begin(*steps);
            }
            RunEvent::Progress { what: "", .. }
            | RunEvent::Text(_)
            | RunEvent::Table { .. }
            | RunEvent::Screen(_) => self.end(None)?,
            RunEvent::Progress { what, of: 0, .. } => {
                self.begin(0);
                self.bar.set_message(escaped(what));
                self.note(what);
            }
            RunEvent::Progress { what, done, of } if !is_quiet => {
                self.begin(*of);
                self.bar.set_position(*done as u64);
                self.bar.set_message(escaped(what));
                if 10 * done / of > 10 * (done - 1) / of {
                    self.note(&format!("{what} {done} of {of}"));
                }
            }
            RunEvent::Reached { words, done, of } => {
                self.begin(*of);
                self.bar.set_position(*done as u64);
                self.bar.set_message((*words).to_owned());
                if done.is_multiple_of(100) {
                    self.note(words);
                }
            }
            RunEvent::Record(record) if record.is_step() => {
                let step = record.number();
                let says = record.words();
                let is_notable = record.is_notable();
                self.bar.set_position(step as u64);
                let text = format!("step {step}: {says}");
                if !self.is_json
                    && !record.is_detail()
                    && (step.is_multiple_of(10) || step == 1 || is_notable)
                {
                    self.note(&text);
                }
                if is_notable {
                    self.bar.println(text); // above the bar on a terminal, else nowhere
                }
                self.bar.set_message(says);
            }
            RunEvent::Record(record) if !is_quiet && !record.words().is_empty() => {
                self.bar.set_message(escaped(&record.words()));
                self.note(&record.words());
            }
            _ => {}
        }
        Ok(())
    }
    fn end(&mut self, _: Option<&str>) -> Result<()> {
        self.bar.finish_and_clear();
        self.has_length = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Progress, RunView};
    use indicatif::{ProgressDrawTarget, TermLike};
    use run::event::RunEvent;
    use run::train::StepLine;
    use std::io::Result;
    use std::sync::{Arc, Mutex};

    /// A terminal of 80 columns that keeps what is written.
    #[derive(Debug, Clone, Default)]
    struct Paper(Arc<Mutex<String>>);

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> Result<()> {
            self.write_str(&format!("{text}\n"))
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            self.write_str("\n")
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    /// Kills: a full bar of 0 steps, a bar of two lines, an unclear message.
    #[test]
    fn a_bar_begins_with_its_steps_and_fits_80_columns() {
        let paper = Paper::default();
        let mut progress = Progress { is_terminal: true, ..Progress::new(false) };
        progress.see(&RunEvent::Steps(2000)).unwrap();
        progress.bar.disable_steady_tick();
        progress.bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(paper.clone())));
        let (peak_bytes, tokens_per_second) = (vec![466_526_208_032], 123_456.0);
        let line = StepLine {
            step: 1234,
            loss: 12.3456,
            lr: 2.5e-4,
            tokens_per_second,
            peak_bytes,
            ..StepLine::default()
        };
        progress.see(&RunEvent::Record(&line)).unwrap();
        progress.bar.tick();
        let text = paper.0.lock().unwrap().clone();
        assert!(
            !text.contains("0/0")
                && text.contains("1234/2000 loss 12.3456, lr 2.5e-4, 123.5k token/s, 466.53 GB, "),
            "{text:?}"
        );
        assert!(text.contains(" left"), "{text:?}");
        assert!(text.lines().all(|line| line.trim_end().chars().count() <= 80), "{text:?}");
    }
}
