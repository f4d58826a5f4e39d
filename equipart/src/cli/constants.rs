//! Flags of the optimizer's constants, one for each key in the list of optimizers.
use crate::cli::pictures::refuse;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use layers::{Constant, Range};
use ops::OPTIMIZERS;
use parallel::Result;
use run::train::constants::{GivenConstants, of_key};
use std::ops::Deref;

/// Constants of the optimizer that flags give, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConstantArgs(pub(crate) GivenConstants);

impl Deref for ConstantArgs {
    type Target = GivenConstants;
    fn deref(&self) -> &GivenConstants {
        &self.0
    }
}

/// Returns one constant of each key.
fn flags() -> Vec<&'static Constant> {
    let mut constants: Vec<&Constant> = Vec::new();
    for constant in OPTIMIZERS.iter().flat_map(|info| info.constants) {
        if constants.iter().all(|other| other.key != constant.key) {
            constants.push(constant);
        }
    }
    constants
}

/// Describes a constant, for each optimizer that has one; those with the same description together.
fn help(key: &str) -> String {
    let mut texts: Vec<(String, Vec<&str>)> = Vec::new();
    for (info, constant) in of_key(key) {
        let usual = constant.text(constant.usual);
        let usual = if constant.range == Range::Rate { "that of --lr" } else { &usual };
        let text = format!("{} [default: {usual}]", constant.help);
        match texts.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(info.title),
            None => texts.push((text, vec![info.title])),
        }
    }
    let each = texts.into_iter().map(|(text, names)| format!("{}: {text}", names.join(", ")));
    each.collect::<Vec<_>>().join("; ")
}

impl Args for ConstantArgs {
    fn augment_args(command: Command) -> Command {
        flags().into_iter().fold(command, |command, constant| {
            let names = match (constant.range, constant.usual) {
                (Range::OneOf(_), _) => "NAME",
                (_, [_]) => "X",
                _ => "X,Y",
            };
            let flag = Arg::new(constant.key).long(constant.key).value_name(names);
            command.arg(flag.help(help(constant.key)).value_parser(|text: &str| constant.parse(text)))
        })
    }
    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConstantArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let given = |of: &Constant| matches.get_one::<Vec<f64>>(of.key).cloned();
        let constants = flags().into_iter().filter_map(|of| Some((of.key, given(of)?))).collect();
        Ok(Self(GivenConstants(constants)))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConstantArgs {
    /// Refuses constants that a use of the command has no use for.
    ///
    /// # Errors
    /// If one is given, with what has no use for it.
    pub(crate) fn refused_by(&self, what: &str) -> Result<()> {
        self.0.0.iter().try_for_each(|(key, _)| refuse(&[(key, true)], &format!("training; {what}")))
    }
}
