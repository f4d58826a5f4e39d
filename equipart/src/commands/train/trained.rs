//! A training run in its views, and its end in words and tables.
use super::stragglers;
use crate::cli::train::TrainArgs;
use crate::cli::{loads, profile};
use crate::views::Views;
use comm::Trace;
use draw::{details, timeline};
use layers::counted;
use parallel::Result;
use parallel::dtype::DtypeName;
use run::device::DeviceName;
use run::price::PriceRun;
use run::records;
use run::train::data::TrainData;
use run::train::stragglers::stragglers;
use run::train::{Finished, RunFacts, TrainRun};
use serde::Serialize;
use serde_json::{Value, json};

/// Tokens of each expert, by layer.
#[derive(Serialize)]
struct ExpertLoads(Value);

records!(ExpertLoads: "experts");

impl TrainArgs {
    /// Trains, and shows it in the views that flags ask for.
    ///
    /// # Errors
    /// If the run or a view fails.
    pub(super) fn trained(&self, run: &TrainRun, facts: &RunFacts, views: &Views) -> Result<bool> {
        views.details(|observer| details::tell(&PriceRun::step_of(run), observer))?;
        let finished = run.train_on(facts, views);
        views.doing("")?;
        self.ended(run, &self.network.keep_trace(&run.network, finished)?, views).map(|()| true)
    }
    /// Shows the end of a run, and what flags ask for besides.
    ///
    /// # Errors
    /// If a view fails.
    fn ended(&self, run: &TrainRun, finished: &Finished, views: &Views) -> Result<()> {
        if let Some(why) = finished.evaluations.ended(run.source) {
            views.note(&format!("note: the run ends after step {}: {why}", finished.steps))?;
        }
        if let TrainData::Digits(digits) = run.source {
            views.table_of(&finished.epochs)?;
            let test = digits.test.len();
            views.say(&format!(
                "\nloss: the epoch's mean in training; accuracy: on {test} test pictures, after it"
            ))?;
        } else {
            let bits = |bits| format!("; {bits:.3} bits a byte on the held-out text");
            let held_out = finished.held_out_bits_per_byte.map(bits).unwrap_or_default();
            views.say(&format!("{} done{held_out}", counted(finished.steps, "step")))?;
        }
        views.say(&run.out.as_ref().map_or_else(
            || "nothing was saved; --out DIR keeps the model".into(),
            |dir| format!("the model is in {}", dir.display()),
        ))?;
        if !finished.experts.is_empty() {
            views.record(&ExpertLoads(json!({ "experts": finished.experts })))?;
        }
        loads::loads(&finished.experts, views)?;
        if self.stragglers {
            stragglers::tell(&stragglers(&finished.waits, run.layout.ranks()), views)?;
        }
        views.details(|observer| {
            let runs = run.network.trace.as_ref().map_or_else(Vec::new, Trace::runs);
            let svg = runs.last().and_then(timeline::draw);
            let title = "What each rank did in a step, as measured.";
            svg.map_or(Ok(()), |svg| observer.picture(title, &svg))
        })?;
        if self.profile {
            // the dtype of the measured peak
            let known = (run.settings.device, run.settings.number) == (DeviceName::Cpu, DtypeName::F32);
            profile::tell(&run.network, known.then(|| bench::peak_gflops(run.layout.ranks())), views)?;
        }
        Ok(())
    }
}
