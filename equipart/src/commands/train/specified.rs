//! The run of the flags: its settings, its network, and the numbers that memory decides.
use crate::cli::processes;
use crate::cli::train::{TrainArgs, largest};
use crate::terminal::out;
use crate::views::Views;
use bench::profile;
use models::TrainableModel;
use parallel::price::largest::Unknown;
use parallel::{Network, Result};
use run::records;
use run::train::data::TrainData;
use run::train::settings::Settings;
use run::train::state::State;
use run::train::{TrainRun, epochs};
use serde::Serialize;
use serde_json::{Value, json};

/// The batch that memory decided.
#[derive(Serialize)]
struct FoundBatch(Value);

records!(FoundBatch: "largest batch");

impl TrainArgs {
    /// Settings of a new run, or of one that is resumed, which keeps the number that memory would decide.
    pub(super) fn begun(
        &self,
        resume: Option<&State>,
        learnt: &TrainData,
        unknown: Option<Unknown>,
    ) -> Result<(Settings, Option<Unknown>)> {
        let Some(state) = resume else { return Ok((self.settings_for(learnt)?, unknown)) };
        learnt.check(&state.settings, state.model.positions())?; // of a file
        let settings = self.again(state, learnt)?;
        if unknown.is_some() {
            let Settings { batch_size, microbatches, .. } = settings;
            out::note(&format!(
                "note: the resumed run keeps its batch size, {batch_size}, and microbatches, {microbatches}"
            ));
        }
        Ok((settings, None))
    }
    /// Steps between checkpoints.
    fn checkpoint_every(&self, learnt: &TrainData, settings: &Settings) -> usize {
        self.saving.checkpoint_every.unwrap_or_else(|| match learnt {
            TrainData::Digits(digits) => epochs::steps(digits, settings.batch_size),
            TrainData::Text(_) | TrainData::Ids(_) => 100,
        })
    }
    /// The run of these flags.
    pub(super) fn specified<'a>(
        &self,
        (model, source): (TrainableModel, &'a TrainData),
        settings: Settings,
        resume: Option<State>,
        views: &Views,
    ) -> Result<TrainRun<'a>> {
        let layout = self.planned(&settings, &model, source, views)?;
        let out = self.out.clone().or_else(|| self.resume.clone());
        let network = Network { counts_waits: self.stragglers, ..self.network.network(out.as_deref())? };
        let here = processes::launch()?.is_none_or(|launch| launch.ranks == 1);
        let profiled = match (self.profile, views.wants_details()) {
            (true, _) => profile::MOST,
            (false, true) if here => 1, // for its timeline
            _ => 0,
        };
        Ok(TrainRun {
            source,
            checkpoint_every: self.checkpoint_every(source, &settings),
            settings,
            layout: self.offload.of(self.ranks.each.of(layout, &model.design)?, self.device)?,
            model,
            network: if profiled > 0 { network.profiling(profiled) } else { network },
            evaluations: self.evaluations.of(resume.as_ref().map(|state| state.evaluations)),
            saves: self.saving.of(out.as_deref(), self.files(resume.as_ref()))?,
            out,
            check_every: self.check_every,
            stop_after: self.stop_after,
            dump: self.dump.clone(),
            resume,
            epoch_before: None,
            priced: None,
        })
    }
    /// Gives a run its network of processes, and the numbers that memory decides.
    pub(super) fn join(&mut self, run: &mut TrainRun, unknown: Option<Unknown>, views: &Views) -> Result<()> {
        run.fit_microbatches().iter().for_each(|note| out::note(note));
        let engine = run.settings.device.open(run.layout.ranks(), &out::note)?;
        run.check()?;
        let only = [("dump", self.dump.is_some()), ("profile", self.profile)];
        run.network = self.ranks.join_on(engine, std::mem::take(&mut run.network), &[run.layout], &only)?;
        let Some(unknown) = unknown else { return Ok(()) };
        let found = run.largest(unknown)?;
        self.take(&found);
        run.settings = self.settings_for(run.source)?;
        run.checkpoint_every = self.checkpoint_every(run.source, &run.settings);
        run.priced = Some(found.peak_bytes);
        out::note(&format!("note: --{} auto takes {found}", largest::flag(unknown)));
        views.record(&FoundBatch(json!({ "largest_batch": found })))
    }
}
