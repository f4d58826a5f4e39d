//! Flags of the optimizer's constants, one for each key in the list of optimizers.
use crate::cli::args::differs_from;
use crate::cli::pictures::refuse;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use layers::{Constant, OptimizerInfo, OptimizerKind, Range};
use ops::OPTIMIZERS;
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

/// Returns values as an optimizer has them: rates as factors of the largest learning rate.
fn stored(constant: &Constant, values: &[f64], lr: f64) -> Vec<f64> {
    values.iter().map(|x| if constant.range == Range::Rate { x / lr } else { *x }).collect()
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
        Ok(Self(flags().into_iter().filter_map(|of| Some((of.key, given(of)?))).collect()))
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
        self.0.iter().try_for_each(|(key, _)| refuse(&[(key, true)], &format!("training; {what}")))
    }
    /// Returns the optimizer with the constants that are given, in a run whose largest learning rate is `lr`.
    ///
    /// # Errors
    /// If a given constant is another optimizer's, or out of range.
    pub(crate) fn of(&self, kind: OptimizerKind, lr: f64) -> Result<OptimizerKind> {
        for (key, _) in self.0.iter().filter(|(key, _)| kind.get(key).is_none()) {
            let names: Vec<_> = of_key(key).map(|(info, _)| info.name).collect();
            let names = names.join(", ");
            let names =
                names.rsplit_once(", ").map_or(names.clone(), |(all, last)| format!("{all} or {last}"));
            refuse(&[(key, true)], &format!("--optimizer {names}; {}", kind.name()))?;
        }
        let set = |kind: OptimizerKind, (key, values): &(&str, Vec<f64>)| {
            let Some((_, constant)) = of_key(key).next() else { return Ok(kind) };
            constant.check(values)?;
            if constant.range == Range::Rate && lr == 0.0 {
                return Err(format!(
                    "--{key} is {}, but --lr is 0, of which it would be a multiple",
                    values[0]
                ));
            }
            kind.set(key, &stored(constant, values, lr))
        };
        self.0.iter().try_fold(kind, set).map_err(Error::new)
    }
    /// Returns one sentence on the first given constant that differs from that of a run that has begun.
    pub(crate) fn differ(&self, begun: OptimizerKind, lr: f64) -> Option<String> {
        self.0.iter().find_map(|(key, values)| {
            let (_, constant) = of_key(key).next()?;
            let begun = begun.get(key).filter(|begun| *begun != stored(constant, values, lr))?;
            let scale = if constant.range == Range::Rate { lr } else { 1.0 };
            let begun: Vec<_> = begun.iter().map(|x| x * scale).collect();
            Some(differs_from(constant.key, &constant.text(values), &constant.text(&begun)))
        })
    }
}
