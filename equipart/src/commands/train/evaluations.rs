//! Evaluations during a run, which end it early if they no longer improve.
//!
//! A text's evaluation is its bits a byte on the held-out text, that of pictures the fraction of the test
//! pictures that are wrong after an epoch. Checkpoints keep the evaluations: a resumed run ends where the
//! uninterrupted one does.
use super::data::{TrainData, held_out_batch};
use super::epochs::{self, Epoch};
use super::run::{StepLine, TrainRun};
use super::settings::at_least_1;
use clap::Args;
use layers::counted;
use parallel::dtype::RunDevice;
use parallel::{Result, Trainer, bail};
use serde::{Deserialize, Serialize};

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

/// Evaluations of a run so far. Smaller values are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// Steps between evaluations on the held-out text.
    pub every: Option<usize>,
    /// Number of evaluations in a row without a better value that ends the run.
    pub patience: Option<usize>,
    /// The best value so far.
    pub best: Option<f64>,
    /// Number of evaluations since the best one.
    #[serde(default)]
    pub since: usize,
}

impl Evaluations {
    /// Adds the value of an evaluation.
    pub(super) fn add(&mut self, value: f64) {
        match self.best {
            Some(best) if value >= best => self.since += 1,
            _ => (self.best, self.since) = (Some(value), 0),
        }
    }
    /// Returns true if the run ends here.
    pub(super) fn end(&self) -> bool {
        self.patience.is_some_and(|patience| self.since >= patience)
    }
    /// Returns the reason, in words, if evaluations ended the run.
    pub(crate) fn ended(&self, source: &TrainData) -> Option<String> {
        let best = self.best.filter(|_| self.end())?;
        let best = match source {
            TrainData::Digits(_) => format!("{:.2} % right", 100.0 * (1.0 - best)),
            _ => format!("{best:.4} bits a byte"),
        };
        Some(format!("no value better than {best} in the last {}", counted(self.since, "evaluation")))
    }
}

impl TrainRun<'_> {
    /// Evaluates after a step, if it ends an epoch or an evaluation is due.
    pub(super) fn evaluate<D: RunDevice>(
        &self,
        trainer: &mut Trainer<D>,
        (line, epoch): (&mut StepLine, Option<&Epoch>),
        evaluations: &mut Evaluations,
    ) -> Result<()> {
        let ends = |steps: usize| line.step.is_multiple_of(steps);
        if let (TrainData::Digits(digits), Some(epoch)) = (self.source, epoch) {
            if ends(epochs::steps(digits, self.settings.batch_size)) {
                let judged = epoch.judged(&digits.test, trainer)?;
                line.accuracy = Some(judged.accuracy);
                line.epoch = Some(judged);
            }
        } else if evaluations.every.is_some_and(ends) {
            line.held_out_bits_per_byte = self.held_out(trainer, &|_, _| ())?;
            drop(trainer.take_counts()); // of tokens that are not trained on
        }
        let wrong = line.accuracy.filter(|_| evaluations.patience.is_some()).map(|right| 1.0 - right);
        line.held_out_bits_per_byte.or(wrong).into_iter().for_each(|value| evaluations.add(value));
        Ok(())
    }
    /// Checks that the run has something to evaluate, and that it has not ended.
    pub(super) fn check_evaluations(&self) -> Result<()> {
        let Evaluations { every, patience, .. } = self.evaluations;
        at_least_1(&[("eval-every", every.unwrap_or(1)), ("patience", patience.unwrap_or(1))])?;
        if patience.is_some() && self.dump.is_some() {
            bail!(
                "--dump keeps the last step, but --patience leaves it open which one that is; leave one out"
            );
        }
        if let Some(why) = self.evaluations.ended(self.source) {
            bail!("{why}; give a larger --patience to continue");
        }
        match (self.source, every) {
            (TrainData::Ids(_), _) if every.or(patience).is_some() => {
                bail!(
                    "--eval-every and --patience need a held-out text, but --batch has none; leave them out"
                )
            }
            (TrainData::Text(_), None) if patience.is_some() => {
                bail!("--patience counts evaluations on the held-out text; give --eval-every too")
            }
            (TrainData::Text(corpus), Some(_)) => {
                let (seq, data) = (self.settings.seq, self.layout.tokens().data_ranks());
                if held_out_batch(corpus, seq, data)?.is_none() {
                    bail!(
                        "--eval-every needs a sequence of held-out text for each of the {data} data ranks; the \
                         held-out text has {} tokens, and sequences have {seq}",
                        corpus.held_out.len()
                    );
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
