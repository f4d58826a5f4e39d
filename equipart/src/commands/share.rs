//! `share`: the cores that a model should get.
use crate::cli;
use crate::cli::args::ModelName;
use crate::cli::processes::program;
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::Args;
use layers::counted;
use parallel::{Result, bail};
use run::share::{Forward, ModelShares, PERIOD, Worker, cores, tell};
use tensor::quoted::escaped;

/// Help on the columns.
const MORE: &str = "\
E is the time of a forward on S cores; A = 1/(E·S) is the throughput of a core, -1/(E²·S) its slope (equations (13) \
and (14) of\nD-STACK, arXiv:2304.13541). The knee is the S with the steepest slope. Each rank is pinned to a core; for \
less than a core\nit is paused for a part of the time.";

/// Find the cores that models should get: their times on shares of this machine, predicted and measured
#[derive(Args, Debug)]
#[command(after_help = MORE)]
pub(crate) struct ShareArgs {
    /// Models of text: folders, embedded or moe
    #[arg(value_name = "DIR|NAME", default_value = "embedded", value_parser = ModelName::parser())]
    models: Vec<ModelName>,
    /// Tokens of a forward, for all models or for each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "256")]
    tokens: Vec<usize>,
    /// Seconds that each share is measured, in each of five rounds; rounded up to whole periods of 40 ms
    #[arg(long, default_value_t = 0.24, conflicts_with_all = ["cores", "forwards"])]
    seconds: f64,
    /// Only run the model on these cores, --forwards times, and print the seconds
    #[arg(long, value_name = "CORE,CORE,...", value_delimiter = ',', requires = "forwards")]
    cores: Option<Vec<usize>>,
    /// With --cores: number of forwards
    #[arg(long, requires = "cores")]
    forwards: Option<usize>,
}

/// The most tokens of a forward.
const MOST: usize = 1 << 16;

impl Run for ShareArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let cores = cores()?;
        self.check(&cores)?;
        if let (Some(cores), Some(forwards)) = (&self.cores, self.forwards) {
            let forward = Forward::new(cli::model(self.models.first())?, self.tokens[0]);
            forward.tell(cores, forwards, views)?;
            return Ok(true);
        }
        let mut of_models = Vec::new();
        for (name, &tokens) in self.models.iter().zip(self.tokens.iter().cycle()) {
            let forward = Forward::new(cli::model(Some(name))?, tokens);
            let label = format!("{}, {}", escaped(&name.given().to_string_lossy()), counted(tokens, "token"));
            let command = move |cores: &[usize], forwards: usize| {
                let cores: Vec<_> = cores.iter().map(usize::to_string).collect();
                let mut command = program()?;
                command.args(["--json", "share"]).arg(name.given());
                command.args(["--tokens", &tokens.to_string()]);
                command.args(["--cores", &cores.join(","), "--forwards", &forwards.to_string()]);
                Ok(command)
            };
            let worker = Worker { label, command: Box::new(command) };
            of_models.push(ModelShares::measured(forward, worker, (&cores, self.seconds), views)?);
        }
        tell(&of_models, (&cores, self.seconds), views)?;
        Ok(true)
    }
}

impl ShareArgs {
    fn check(&self, all: &[usize]) -> Result<()> {
        let Self { models, tokens, seconds, .. } = self;
        if self.cores.is_some() && models.len() > 1 {
            bail!("--cores runs one model; {} are given", models.len());
        }
        if models.len() > all.len() {
            let there = counted(all.len(), "core");
            bail!("{} models are more than the {there} of this machine; each needs one", models.len());
        }
        if tokens.len() != 1 && tokens.len() != models.len() {
            bail!("--tokens has {} numbers for {}", tokens.len(), counted(models.len(), "model"));
        }
        if let Some(bad) = tokens.iter().find(|tokens| !(1..=MOST).contains(*tokens)) {
            bail!("--tokens has {bad}; a forward has 1 to {MOST} tokens");
        }
        if self.forwards == Some(0) {
            bail!("--forwards is 0; it must be 1 or more");
        }
        let period = PERIOD.as_secs_f64();
        if !(period..=600.0).contains(seconds) {
            bail!("--seconds is {seconds}; it must be {period}, a period of a paused process, to 600");
        }
        if let Some(bad) = self.cores.iter().flatten().find(|core| !all.contains(core)) {
            bail!("--cores has {bad}, which this process may not use; it may use {all:?}");
        }
        Ok(())
    }
}
