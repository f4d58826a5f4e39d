//! `completions`: prints a shell's completion script.
use super::{Arguments, Run};
use crate::cli::out;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use parallel::Result;

/// Print the completion script of a shell
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl Run for CompletionsArgs {
    fn run(self, _: bool) -> Result<bool> {
        let mut script = Vec::new();
        generate(self.shell, &mut Arguments::command(), "equipart", &mut script);
        out::plain(String::from_utf8_lossy(&script).trim_end());
        Ok(true)
    }
}
