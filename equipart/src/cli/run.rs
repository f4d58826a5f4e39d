//! The trait of commands, and their flags together with those of the views that fit them.
use super::echo::arguments;
use crate::views::view::ViewInfo;
use crate::views::{AskedView, VIEWS, Views};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use parallel::Result;
use std::path::PathBuf;

/// Flags of a command, and the work they ask for.
pub(crate) trait Run: Args {
    /// True if each rank may be a process of its own.
    const BY_PROCESSES: bool = false;
    /// Results that its runs have, [`RECORDS`](crate::views::view::RECORDS) and
    /// [`CURVES`](crate::views::view::CURVES): it has the flags of the views that need no others. None, if it
    /// has no results.
    const HAS: Option<u8> = Some(0);

    /// Runs the command, and shows its results in the views. Returns false if a comparison found a
    /// difference.
    ///
    /// # Errors
    /// One sentence on the failure.
    fn run(self, views: &Views) -> Result<bool>;
}

/// Flags of a command, and the views that flags ask for.
#[derive(Debug)]
pub(crate) struct Shown<A> {
    pub(crate) flags: A,
    asked: Vec<AskedView>,
}

impl<A: Run> Shown<A> {
    /// Makes a command that no flags belong to.
    pub(crate) fn bare(flags: A) -> Self {
        Self { flags, asked: Vec::new() }
    }
    /// Runs the command, shown in its views. Returns false if a comparison found a difference.
    ///
    /// # Errors
    /// That of the command, or of a view.
    pub(crate) fn run(self, is_json: bool) -> Result<bool> {
        let title = format!("equipart {}", arguments().join(" "));
        Views::new(is_json, title, self.asked).during(|views| self.flags.run(views))
    }
}

/// The views that fit a command.
fn fitting<A: Run>() -> impl Iterator<Item = &'static ViewInfo> {
    VIEWS.into_iter().filter(|view| A::HAS.is_some_and(|has| view.needs & !has == 0))
}

/// Adds the flags of the views that fit a command.
fn with_views<A: Run>(command: Command) -> Command {
    fitting::<A>().fold(command, |command, view| {
        let flag = Arg::new(view.flag).long(view.flag).value_name(view.value).help(view.help);
        command.arg(flag.value_parser(value_parser!(PathBuf)))
    })
}

impl<A: Run> Args for Shown<A> {
    fn augment_args(command: Command) -> Command {
        with_views::<A>(A::augment_args(command))
    }
    fn augment_args_for_update(command: Command) -> Command {
        with_views::<A>(A::augment_args_for_update(command))
    }
}

impl<A: Run> FromArgMatches for Shown<A> {
    fn from_arg_matches(flags: &ArgMatches) -> std::result::Result<Self, Error> {
        let asked =
            fitting::<A>().filter_map(|view| Some((view, flags.get_one(view.flag).cloned()?))).collect();
        Ok(Self { flags: A::from_arg_matches(flags)?, asked })
    }
    fn update_from_arg_matches(&mut self, flags: &ArgMatches) -> std::result::Result<(), Error> {
        *self = Self::from_arg_matches(flags)?;
        Ok(())
    }
}
