//! Progress on standard error: a bar on a terminal, plain lines elsewhere.
use super::out;
use crate::commands::train::run::StepLine;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tensor::Key;

pub(crate) struct Watch {
    bar: ProgressBar,
    terminal: bool,
}

impl Watch {
    /// For work of so many steps.
    pub(crate) fn bar(steps: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg} (still {eta})");
        Self::new(ProgressBar::new(steps as u64), style)
    }
    /// The work is of so many steps.
    pub(crate) fn of(&self, steps: usize) {
        self.bar.set_length(steps as u64);
    }
    /// For work of unknown length.
    pub(crate) fn spinner() -> Self {
        Self::new(ProgressBar::new_spinner(), ProgressStyle::with_template("{spinner} {msg} ({elapsed})"))
    }
    fn new(bar: ProgressBar, style: Result<ProgressStyle, indicatif::style::TemplateError>) -> Self {
        let terminal = std::io::stderr().is_terminal() && !out::hushed();
        bar.set_style(style.expect("a template that was tried"));
        if terminal {
            bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, terminal }
    }
    /// What is being done now.
    pub(crate) fn say(&self, what: &str) {
        self.bar.set_message(what.to_string());
        if !self.terminal {
            out::note(what);
        }
    }
    /// One step of training.
    pub(crate) fn step(&self, line: &StepLine, quiet: bool) {
        let memory = line.peak_bytes.iter().max().copied().unwrap_or(0) as f64 / 1e6;
        let says = format!("loss {:.4}, {:.0} token/s, {memory:.1} MB", line.loss, line.tokens_per_second);
        self.bar.set_position(line.step as u64);
        let shown = !self.terminal && !quiet && (line.step.is_multiple_of(10) || line.step == 1);
        if shown {
            out::note(&format!("step {}: {says}", line.step));
        }
        self.bar.set_message(says);
    }
    /// So many cases were equal; a campaign that ends here is gone on with from this key.
    pub(crate) fn case(&self, done: usize, next: Key) {
        let says = format!("{done} cases equal; go on with --key {next}");
        self.bar.set_position(done as u64);
        if !self.terminal && done.is_multiple_of(100) {
            out::note(&says);
        }
        self.bar.set_message(says);
    }
    /// So many of these parts are done; lines come at each tenth of them.
    pub(crate) fn part(&self, what: &str, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        if !self.terminal && 10 * done / of > 10 * (done - 1) / of {
            out::note(&format!("{what} {done} of {of}"));
        }
    }
    /// One token.
    pub(crate) fn tick(&self) {
        self.bar.inc(1);
    }
    /// The end.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}
