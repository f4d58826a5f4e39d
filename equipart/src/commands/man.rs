//! The manual, made of the arguments themselves.
use crate::terminal::out;
use clap::{Args, Command};
use clap_mangen::Man;
use parallel::{Error, Result};
use std::fs;
use std::path::PathBuf;
use tensor::files;

/// Print the manual page of the program
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct ManArgs {
    /// Write that page and those of all commands to this folder, instead of printing it
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl ManArgs {
    /// Prints or writes the pages of this program.
    pub(super) fn print(self, mut program: Command) -> Result<bool> {
        program.build();
        let Some(folder) = self.out else {
            out::plain(page(&Man::new(program))?.trim_end());
            return Ok(true);
        };
        fs::create_dir_all(&folder)
            .map_err(|why| Error::new(format!("the folder {} cannot be created: {why}", folder.display())))?;
        let commands = program.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
        for command in std::iter::once(&program).chain(commands) {
            let manual = Man::new(command.clone());
            files::replace_file(&folder.join(manual.get_filename()), page(&manual)?.as_bytes())?;
        }
        Ok(true)
    }
}

fn page(manual: &Man) -> Result<String> {
    let mut page = Vec::new();
    manual.render(&mut page).map_err(|why| Error::new(format!("the page cannot be made: {why}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
