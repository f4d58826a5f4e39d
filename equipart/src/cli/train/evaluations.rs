//! Flags of the evaluations during a run.
use clap::Args;
use run::train::evaluations::Evaluations;

/// Flags of the evaluations during a run.
#[derive(Args, Debug)]
pub(crate) struct EvaluationArgs {
    /// Steps between evaluations on the held-out text [default: only at the end; with --resume, as before]
    #[arg(long, value_name = "N")]
    pub(crate) eval_every: Option<usize>,
    /// End the run after this number of evaluations in a row without a better value; with --model mlp, of
    /// epochs [default: never; with --resume, as before]
    #[arg(long, value_name = "N")]
    patience: Option<usize>,
}

impl EvaluationArgs {
    /// Returns the evaluations of a run that begins, or continues `begun`.
    pub(crate) fn of(&self, begun: Option<Evaluations>) -> Evaluations {
        let begun = begun.unwrap_or_default();
        let Self { eval_every, patience } = *self;
        Evaluations { every: eval_every.or(begun.every), patience: patience.or(begun.patience), ..begun }
    }
}
