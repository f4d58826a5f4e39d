//! The run of the flags, in its network, with the sizes that memory decides.
use crate::cli::processes;
use crate::cli::train::TrainArgs;
use crate::cli::train::auto::LayoutFlag;
use crate::views::Views;
use bench::profile;
use layers::counted;
use models::TrainableModel;
use parallel::price::largest::Unknown;
use parallel::{Layout, Network, Result, bail};
use run::records;
use run::train::asked::AskedSettings;
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
    /// Steps between checkpoints.
    fn checkpoint_every(&self, learnt: &TrainData, settings: &Settings) -> usize {
        self.saving.checkpoint_every.unwrap_or_else(|| match learnt {
            TrainData::Digits(digits) => epochs::steps(digits, settings.batch_size),
            TrainData::Text(_) | TrainData::Ids(_) => 100,
        })
    }
    /// The layout: the given one, or the planner's for as many ranks as a launcher has started.
    fn layout_for(
        &self,
        settings: &Settings,
        (model, learnt): (&TrainableModel, &TrainData),
        views: &Views,
    ) -> Result<Layout> {
        let Some(ranks) = processes::launch()?.map(|launch| launch.ranks) else {
            bail!(
                "--layout auto is for the number of ranks that a launcher starts, but RANK is not set; write a layout, or \
                 start `equipart launch`"
            )
        };
        let planner = self.planner_of(settings, model, learnt)?;
        let Some(layout) = planner.find(ranks, views) else {
            bail!("no layout of {} fits {}; start fewer", counted(ranks, "rank"), planner.step())
        };
        views.note(&format!("note: --layout auto takes {layout}"))?;
        Ok(layout)
    }
    /// The run of these flags.
    pub(super) fn specified<'a>(
        &self,
        (model, source): (TrainableModel, &'a TrainData),
        (settings, layout): (Settings, Layout),
        resume: Option<State>,
        views: &Views,
    ) -> Result<TrainRun<'a>> {
        let is_auto = self.layout == LayoutFlag::Auto;
        let layout = if is_auto { self.layout_for(&settings, (&model, source), views)? } else { layout };
        let out = self.out.clone().or_else(|| self.resume.clone());
        let network = Network { counts_waits: self.stragglers, ..self.network.network(out.as_deref())? };
        let here = processes::launch()?.is_none_or(|launch| launch.ranks == 1);
        let profiled = match (self.profile, views.wants_details()) {
            (true, _) => profile::MOST,
            (false, true) if here => 1, // for its timeline
            _ => 0,
        };
        let run = TrainRun {
            source,
            checkpoint_every: self.checkpoint_every(source, &settings),
            settings,
            layout: self.offload.of(self.ranks.each.of(layout, &model.design)?, self.device)?,
            model,
            network: if profiled > 0 { network.profiling(profiled) } else { network },
            evaluations: self.evaluations(resume.as_ref()),
            saves: self.saving.of(out.as_deref(), self.files(resume.as_ref()))?,
            out,
            check_every: self.check_every,
            stop_after: self.stop_after,
            dump: self.dump.clone(),
            resume,
        };
        Ok(match run.fitting_microbatches(views)? {
            Some(microbatches) => {
                TrainRun { settings: Settings { microbatches, ..run.settings.clone() }, ..run }
            }
            None => run,
        })
    }
    /// The same run in its network of processes.
    pub(super) fn joined<'a>(&self, run: TrainRun<'a>, views: &Views) -> Result<TrainRun<'a>> {
        let note = |words: &str| drop(views.note(words)); // the results tell of an error
        let engine = run.settings.device.open(run.layout.ranks(), &note)?;
        run.check()?;
        let only = [("dump", self.dump.is_some()), ("profile", self.profile)];
        let network = self.ranks.join_on(engine, run.network, &[run.layout], &only)?;
        Ok(TrainRun { network, ..run })
    }
    /// The same run with the sizes of a step that memory decides, and its price.
    pub(super) fn sized<'a>(
        &self,
        run: TrainRun<'a>,
        (unknown, asked): (Unknown, &AskedSettings),
        views: &Views,
    ) -> Result<(TrainRun<'a>, Option<usize>)> {
        let found = run.largest(unknown)?;
        let settings = asked.sized(&found).settings(None, run.source, views)?;
        let checkpoint_every = self.checkpoint_every(run.source, &settings);
        let flag = if unknown == Unknown::BatchSize { "batch-size" } else { "microbatches" };
        views.note(&format!("note: --{flag} auto takes {found}"))?;
        views.record(&FoundBatch(json!({ "largest_batch": found })))?;
        Ok((TrainRun { settings, checkpoint_every, ..run }, Some(found.peak_bytes)))
    }
}
