//! Flags of the optimizer's constants, one for each key in the list of optimizers.
use crate::cli::args::differs_from;
use crate::cli::pictures::refuse;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use layers::{Constant, OPTIMIZERS, OptimizerInfo, OptimizerKind};
use parallel::{Error, Result};

/// Constants of the optimizer that flags give, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConstantArgs(Vec<(&'static str, Vec<f64>)>);

/// Returns the constants of this key, each with its optimizer.
fn of_key(key: &str) -> impl Iterator<Item = (&'static OptimizerInfo, &'static Constant)> {
    let all = OPTIMIZERS.iter().flat_map(|info| info.constants.iter().map(move |constant| (*info, constant)));
    all.filter(move |(_, constant)| constant.key == key)
}

/// Returns one constant of each key.
fn flags() -> Vec<&'static Constant> {
    let mut all: Vec<&Constant> = Vec::new();
    for constant in OPTIMIZERS.iter().flat_map(|info| info.constants) {
        if all.iter().all(|other| other.key != constant.key) {
            all.push(constant);
        }
    }
    all
}

/// Describes a constant, for each optimizer that has one; those with the same description together.
fn help(key: &str) -> String {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for (info, constant) in of_key(key) {
        let text = format!("{} [default: {}]", constant.help, constant.text(constant.usual));
        match all.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(info.title),
            None => all.push((text, vec![info.title])),
        }
    }
    let each = all.into_iter().map(|(text, names)| format!("{}: {text}", names.join(", ")));
    each.collect::<Vec<_>>().join("; ")
}

impl Args for ConstantArgs {
    fn augment_args(command: Command) -> Command {
        flags().into_iter().fold(command, |command, constant| {
            let names = if constant.usual.len() == 1 { "X" } else { "X,Y" };
            let parse = |text: &str| constant.parse(text);
            let flag = Arg::new(constant.key).long(constant.key).value_name(names);
            command.arg(flag.help(help(constant.key)).value_parser(parse))
        })
    }
    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConstantArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let given = |of: &Constant| matches.get_one::<Vec<f64>>(of.key).cloned();
        Ok(Self(flags().into_iter().filter_map(|of| Some((of.key, given(of)?))).collect()))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConstantArgs {
    /// Returns the optimizer with the constants that are given.
    ///
    /// # Errors
    /// If a given constant is another optimizer's, or out of range.
    pub(crate) fn of(&self, kind: OptimizerKind) -> Result<OptimizerKind> {
        for (key, _) in self.0.iter().filter(|(key, _)| kind.get(key).is_none()) {
            let names: Vec<_> = of_key(key).map(|(info, _)| info.name).collect();
            let others = format!("--optimizer {}; {}", names.join(" or "), kind.name());
            refuse(&[(key, true)], &others)?;
        }
        self.0.iter().try_fold(kind, |kind, (key, values)| kind.set(key, values)).map_err(Error::new)
    }
    /// Returns one sentence on the first given constant that differs from that of a run that has begun.
    pub(crate) fn differ(&self, begun: OptimizerKind) -> Option<String> {
        self.0.iter().find_map(|(key, values)| {
            let (_, constant) = of_key(key).next()?;
            let begun = begun.get(key).filter(|begun| begun != values)?;
            let [given, begun] = [values, begun].map(|values| constant.text(values));
            Some(differs_from(constant.key, &given, &begun))
        })
    }
}
