//! What is made of the arguments themselves: completions for shells, and the manual.
use super::args::Arguments;
use super::out;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use parallel::{Error, Result};
use std::fs;
use std::path::Path;
use tensor::files;

/// Prints what a shell reads to complete commands and flags; nothing is compared, so nothing differs.
pub(crate) fn completions(shell: Shell) -> bool {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "equipart", &mut script);
    out::line(String::from_utf8_lossy(&script).trim_end());
    true
}

/// Prints the page of the program, or writes it and one for each command into a folder.
///
/// # Errors
/// If the folder or a page cannot be written.
pub(crate) fn run(folder: Option<&Path>) -> Result<bool> {
    let mut program = Arguments::command();
    program.build();
    let Some(folder) = folder else {
        out::line(page(&Man::new(program))?.trim_end());
        return Ok(true);
    };
    fs::create_dir_all(folder)
        .map_err(|why| Error::new(format!("{} cannot be made a folder: {why}", folder.display())))?;
    let commands = program.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
    for command in std::iter::once(&program).chain(commands) {
        let manual = Man::new(command.clone());
        files::replace_file(&folder.join(manual.get_filename()), page(&manual)?.as_bytes())?;
    }
    Ok(true)
}

fn page(manual: &Man) -> Result<String> {
    let mut page = Vec::new();
    manual.render(&mut page).map_err(|why| Error::new(format!("the page cannot be made: {why}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
