//! Progress on standard error: a bar on a terminal, plain lines elsewhere.
use super::out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use run::event::RunRecord;
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;
use tensor::Key;
use tensor::quoted::escaped;

/// Progress bar in 80 columns, with the message of a training step.
const BAR: &str = "{pos}/{len} {msg}, {eta} left {wide_bar}";

pub(crate) struct ProgressWatch {
    bar: ProgressBar,
    terminal: bool,
    ticks: OnceLock<()>,
}

impl ProgressWatch {
    /// Returns a bar for `steps` steps; with 0, nothing is shown until the number is known.
    pub(crate) fn bar(steps: usize) -> Self {
        let watch = Self::new(ProgressBar::new(steps as u64), ProgressStyle::with_template(BAR));
        if steps > 0 {
            watch.of(steps);
        }
        watch
    }
    /// Sets the number of steps.
    pub(crate) fn of(&self, steps: usize) {
        self.bar.set_length(steps as u64);
        self.tick_steadily();
    }
    /// Returns a spinner for work of unknown length, which appears with the first activity.
    pub(crate) fn spinner() -> Self {
        let style = ProgressStyle::with_template("{spinner} {wide_msg} ({elapsed})");
        Self::new(ProgressBar::new_spinner(), style)
    }
    fn tick_steadily(&self) {
        if self.terminal {
            self.ticks.get_or_init(|| self.bar.enable_steady_tick(Duration::from_millis(200)));
        }
    }
    fn new(bar: ProgressBar, style: Result<ProgressStyle, indicatif::style::TemplateError>) -> Self {
        let terminal = std::io::stderr().is_terminal() && !out::is_silent();
        bar.set_style(style.expect("a template that was tried"));
        if !terminal {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, terminal, ticks: OnceLock::new() }
    }
    /// Shows the current activity.
    pub(crate) fn say(&self, what: &str) {
        self.tick_steadily();
        self.bar.set_message(escaped(what));
        if !self.terminal {
            out::note(what);
        }
    }
    /// Shows one step.
    pub(crate) fn step(&self, record: &dyn RunRecord, quiet: bool) {
        let (step, says, notable) = (record.number(), record.words(), record.is_notable());
        self.bar.set_position(step as u64);
        let text = format!("step {step}: {says}");
        if !self.terminal && !quiet && (step.is_multiple_of(10) || step == 1 || notable) {
            out::note(&text);
        }
        if notable {
            self.bar.println(text); // above the bar on a terminal, else nowhere
        }
        self.bar.set_message(says);
    }
    /// Shows the number of equal cases, and the key to continue the campaign from.
    pub(crate) fn case(&self, done: usize, next: Key) {
        let says = format!("{done} cases equal; continue with --key {next}");
        self.bar.set_position(done as u64);
        if !self.terminal && done.is_multiple_of(100) {
            out::note(&says);
        }
        self.bar.set_message(says);
    }
    /// Shows that `done` of `of` parts are done; plain lines appear at each tenth.
    pub(crate) fn part(&self, what: &str, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(escaped(what));
        if !self.terminal && 10 * done / of > 10 * (done - 1) / of {
            out::note(&format!("{what} {done} of {of}"));
        }
    }
    /// Advances the bar by one token.
    pub(crate) fn tick(&self) {
        self.bar.inc(1);
    }
    /// Ends and clears the bar.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
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
        let (paper, mut watch) = (Paper::default(), ProgressWatch::bar(0));
        watch.bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(paper.clone())));
        watch.terminal = true;
        assert_eq!(*paper.0.lock().unwrap(), "");
        watch.of(2000);
        let (peak_bytes, tokens_per_second) = (vec![466_526_208_032], 123_456.0);
        let line = StepLine {
            step: 1234,
            loss: 12.3456,
            lr: 2.5e-4,
            tokens_per_second,
            peak_bytes,
            ..StepLine::default()
        };
        watch.step(&line, false);
        watch.bar.tick();
        watch.bar.disable_steady_tick();
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
