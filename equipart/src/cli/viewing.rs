//! Flags of views, made from their list; and the views that every command has.
use super::echo::arguments;
use super::files;
use crate::terminal::out;
use crate::views::report::REPORT;
use crate::views::view::{ViewContext, ViewInfo};
use crate::views::{VIEWS, Views};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use parallel::{Result, bail};
use std::path::{Path, PathBuf, absolute};

/// The views that flags ask for, each with its path, of a command whose runs have what `HAS` says:
/// [`RECORDS`](crate::views::view::RECORDS), [`CURVES`](crate::views::view::CURVES).
#[derive(Clone, Debug, Default)]
pub(crate) struct ViewArgs<const HAS: u8>(Vec<(&'static ViewInfo, PathBuf)>);

impl<const HAS: u8> ViewArgs<HAS> {
    fn listed() -> impl Iterator<Item = &'static ViewInfo> {
        VIEWS.into_iter().filter(|view| view.needs & !HAS == 0)
    }
    /// True if a report is asked for.
    pub(crate) fn has_report(&self) -> bool {
        self.0.iter().any(|(view, _)| view.flag == REPORT.flag)
    }
    /// Refuses two flags that want the same file; `others` are flags of files that are no views.
    ///
    /// # Errors
    /// If two do.
    pub(crate) fn apart(&self, others: &[(&'static str, Option<&PathBuf>)]) -> Result<()> {
        let others = others.iter().filter_map(|(flag, path)| Some((*flag, *path.as_ref()?)));
        let paths: Vec<_> = self.0.iter().map(|(view, path)| (view.flag, path)).chain(others).collect();
        for (at, (two, path)) in paths.iter().enumerate() {
            let is_same = |other: &Path| other == *path || absolute(other).ok() == absolute(path).ok();
            if let Some((one, _)) = paths[..at].iter().find(|(_, other)| is_same(other)) {
                bail!("--{one} and --{two} both want {}; give each a file of its own", path.display());
            }
        }
        Ok(())
    }
    /// Opens the views: lines for people or JSON, and those of the flags, whose files rank 0 writes. `name`
    /// is the run's beside others; of records of the kind `without` only logs and curves are shown.
    ///
    /// # Errors
    /// If a file cannot be written, or two views want the same.
    pub(crate) fn open(&self, is_json: bool, name: &str, without: &'static str) -> Result<Views> {
        self.apart(&[])?;
        let mut views = Views::default();
        let title = format!("equipart {}", arguments().join(" "));
        views.print(is_json, without);
        if !out::is_silent() {
            self.0.iter().try_for_each(|(view, path)| files::unread(view.flag, path))?;
            views.open(&self.0, &ViewContext { title: &title, name, without })?;
        }
        Ok(views)
    }
}

impl<const HAS: u8> Args for ViewArgs<HAS> {
    fn augment_args(command: Command) -> Command {
        Self::listed().fold(command, |command, view| {
            let flag = Arg::new(view.flag).long(view.flag).value_name(view.value).help(view.help);
            command.arg(flag.value_parser(value_parser!(PathBuf)))
        })
    }
    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const HAS: u8> FromArgMatches for ViewArgs<HAS> {
    fn from_arg_matches(flags: &ArgMatches) -> std::result::Result<Self, Error> {
        Ok(Self(Self::listed().filter_map(|view| Some((view, flags.get_one(view.flag).cloned()?))).collect()))
    }
    fn update_from_arg_matches(&mut self, flags: &ArgMatches) -> std::result::Result<(), Error> {
        *self = Self::from_arg_matches(flags)?;
        Ok(())
    }
}
