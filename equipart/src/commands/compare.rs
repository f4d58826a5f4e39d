//! `compare`: the same work under several layouts, with time, memory, traffic and equality.
mod flags;
mod ways;

pub(crate) use flags::{CompareArgs, SECONDS};

use crate::cli::files;
use crate::cli::pictures::refuse;
use crate::cli::run::Run;
use crate::cli::{self, any_ids, learner, pictures};
use crate::views::Views;
use crate::views::view::RECORDS;
use draw::{compared, details, epochs};
use models::digits::Digits;
use models::text::Corpus;
use models::{Model, TrainableModel};
use ops::SGD;
use parallel::Result;
use run::compare::{Comparison, Data, LR, LayoutRow, Partitioning};
use run::train::data::TrainData;
use run::train::epochs::steps;
use run::train::settings::{Settings, at_least_1};

/// Number of microbatches that satisfies the schedule of every way; at least 2, so that gradients are
/// accumulated.
fn usual_microbatches(ways: &[Partitioning]) -> usize {
    ways.iter().map(|way| way.layout.usual_microbatches()).max().unwrap_or(1).max(2)
}

/// Texts or pictures that a model reads and learns.
enum ReadData<'a> {
    Text(&'a Model, Corpus),
    Digits(Digits),
}

impl<'a> ReadData<'a> {
    /// Reads the data of the flags.
    fn of(a: &CompareArgs, model: &'a TrainableModel) -> Result<Self> {
        let Some(text) = &model.text else {
            pictures::only_text(&[("requests", a.requests)])?;
            return Ok(Self::Digits(pictures::digits(a.data.as_deref())?));
        };
        refuse(&[("epochs", a.epochs.is_some())], "--model mlp; a model of text")?;
        let seq = text.config.positions.min(64);
        let corpus = match a.data.as_deref() {
            None if !text.tokens.are_known() => any_ids(seq, text.config.shape.vocabulary)?,
            data => cli::corpus(data, seq, &text.tokenizer()?)?,
        };
        Ok(Self::Text(text, corpus))
    }
    fn data(&self) -> Data<'_> {
        match self {
            Self::Text(model, corpus) => Data::Text(model, corpus),
            Self::Digits(digits) => Data::Digits(digits),
        }
    }
}

impl Run for CompareArgs {
    const BY_PROCESSES: bool = true;
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let a = self;
        let model = learner(a.model.as_ref(), &a.pictures)?;
        let source = ReadData::of(&a, &model)?;
        let (ways, experiment) = ways::asked(&a, &model.design)?;
        let most = ways.iter().map(|way| way.layout.ranks()).max().unwrap_or(1);
        let mut layouts: Vec<_> = ways.iter().map(|way| way.layout).collect();
        if most > 1 {
            layouts.retain(|layout| layout.ranks() > 1); // the unsplit work needs one rank of any number
        }
        let network = a.ranks.join(a.network.network(None)?, &layouts, a.number.device, &[])?;
        let work = Comparison {
            model: &model,
            data: source.data(),
            learns: !experiment,
            network,
            microbatches: a.microbatches.unwrap_or_else(|| usual_microbatches(&ways)),
            ways,
            optimizer: a.constants.of(a.optimizer.unwrap_or(SGD), LR)?,
            seconds: a.seconds,
        };
        work.check()?;
        views.open("this run")?;
        let right = if a.epochs.is_some() { a.epochs(&work, views) } else { a.rows(&work, views) };
        a.network.keep_trace(&work.network, right)
    }
}

impl CompareArgs {
    /// Compares steps and generation. Returns true if all rows are right.
    fn rows(&self, work: &Comparison, views: &Views) -> Result<bool> {
        let number = (self.number.device, self.number.name);
        let rows = work.run(number, views)?;
        match compared::draw(&rows) {
            Ok(svg) => self.picture(views, || svg)?,
            Err(why) if self.svg.is_some() => return Err(why),
            Err(_) => {}
        }
        views.details(|observer| details::compared(work, number, &rows, observer))?;
        Ok(rows.iter().all(LayoutRow::is_right))
    }
    /// Shows the picture of the rows, and writes it to the file of the flag.
    fn picture(&self, views: &Views, draw: impl FnOnce() -> String) -> Result<()> {
        files::picture(self.svg.as_ref(), "The rows above as a picture.", views, draw)
    }
    /// Trains a classifier for epochs with the settings of `train`. Returns true if all rows are equal.
    fn epochs(&self, work: &Comparison, views: &Views) -> Result<bool> {
        let Data::Digits(digits) = work.data else { unreachable!("a model of text has no epochs") };
        let source = TrainData::Digits(digits.clone());
        let usual = source.usual_settings(self.optimizer);
        let epochs = self.epochs.unwrap_or_default();
        at_least_1(&[("epochs", epochs)])?;
        let settings = Settings {
            steps: epochs.saturating_mul(steps(digits, usual.batch_size)),
            optimizer: self.constants.of(usual.optimizer, usual.lr)?,
            loss_scaling: self.number.name.loss_scaling(),
            number: self.number.name,
            device: self.number.device,
            ..usual
        };
        let rows = work.run_epochs(&settings, self.microbatches, views)?;
        self.picture(views, || epochs::draw(&rows))?;
        Ok(rows.iter().all(|row| row.equal))
    }
}
