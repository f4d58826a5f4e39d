//! `completions`: prints a shell's completion script.
use crate::terminal::out;
use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// Print the completion script of a shell
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script of this program.
    pub(super) fn print(self, mut program: Command) {
        let mut script = Vec::new();
        generate(self.shell, &mut program, "equipart", &mut script);
        out::plain(String::from_utf8_lossy(&script).trim_end());
    }
}
