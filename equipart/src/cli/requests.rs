//! Flags of requests: their prompts in a file, and the order in which they are answered.
use crate::cli::args::named;
use clap::Args;
use clap::builder::TypedValueParser;
use models::generate::RequestMode;
use parallel::{Error, Result, bail};
use std::path::{Path, PathBuf};
use tensor::files;
use tensor::quoted::displayed;

/// Flags of the requests of `generate`.
#[derive(Args, Debug)]
pub(crate) struct RequestsArgs {
    /// File with one more prompt in each line; empty lines count for nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Order of the requests in pipeline stages
    #[arg(long, value_name = "MODE", default_value_t, value_parser = mode())]
    pub(crate) requests: RequestMode,
    /// Requests in the stages at a time, with --requests async; later ones wait [default: two for each stage,
    /// or for each of its chunks]
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<usize>,
}

fn mode() -> impl TypedValueParser<Value = RequestMode> {
    let about = |mode| match mode {
        RequestMode::Sync => "one after the other",
        RequestMode::Async { .. } => "in slots that take turns, so that each stage has a request of its own",
        RequestMode::Batch => "all at once",
    };
    named(RequestMode::ALL.map(|mode| (mode.name(), about(mode), mode)))
}

impl RequestsArgs {
    /// Returns the order of the requests.
    ///
    /// # Errors
    /// If there are slots without `async`, or 0 of them.
    pub(crate) fn mode(&self) -> Result<RequestMode> {
        match (self.requests, self.slots) {
            (mode, None) => Ok(mode),
            (_, Some(0)) => bail!("--slots is 0; it must be at least 1"),
            (RequestMode::Async { .. }, slots) => Ok(RequestMode::Async { slots }),
            (mode, Some(n)) => {
                let mode = mode.name();
                bail!(
                    "--slots is {n}, but --requests {mode} has no slots; give --requests async, or leave --slots out"
                )
            }
        }
    }
    /// Returns the prompts of the file, if one is given.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8, or has no prompt.
    pub(crate) fn texts(&self) -> Result<Vec<String>> {
        self.prompts.as_deref().map_or(Ok(Vec::new()), lines)
    }
}

fn lines(file: &Path) -> Result<Vec<String>> {
    let name = displayed(&file.display().to_string());
    let text = String::from_utf8(files::read(file)?).map_err(|why| {
        Error::new(format!("{name} is not valid UTF-8 (at byte {})", why.utf8_error().valid_up_to()))
    })?;
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).map(String::from).collect();
    if lines.is_empty() {
        bail!("{name} has no prompt; write one in each line");
    }
    Ok(lines)
}
