//! `schedule`: draws and measures a pipeline's schedule before anything runs.
use crate::cli::args::{self, DtypeArgs, ModelName};
use crate::cli::config;
use crate::cli::files::picture;
use crate::cli::run::Run;
use crate::terminal::out;
use crate::views::Views;
use clap::Args;
use clap::builder::PossibleValuesParser;
use draw::pipeline::{MOST_RANKS, Timeline, svg};
use layers::NumberArgument;
use models::{Config, Model};
use parallel::pipeline::table::{self, Table};
use parallel::step::simulate::CellTimes;
use parallel::step::{PassKind, Plan, check};
use parallel::{Error, Pipeline, Result, Schedule, bail, pipeline};
use run::device::DeviceName;
use run::event::RunEvent;
use run::records;
use run::schedule::partition::PartitionRun;
use run::schedule::peaks;
use run::train::settings::SEQ;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::str::FromStr;
use tensor::files;

/// The most ranks of a pipeline.
const MOST_STAGES: usize = 4096;
/// The most chunks of a rank, and the most slices of a sequence.
const MOST_PARTS: usize = 16;
/// The most forwards of a step.
const MOST_FORWARDS: usize = 1 << 24;
/// The most forwards of a built-in schedule that is verified before it is drawn: that takes seconds.
const MOST_VERIFIED: usize = 1 << 16;
/// Default time of an update.
const UPDATE: f64 = 0.25;
/// The most cells of a diagram that a browser can still show.
const MOST_DRAWN: usize = 100_000;
/// Number of first cells, and of last cells, of a rank that are kept for a terminal.
const KEPT: usize = 2000;

/// Help on JSON.
pub(crate) const JSON: &str = "With --json: one object. messages: number of those in a table of --file, which\nagree with its cells. makespan: from the first cell's start to the last one's end. bubble_time: the longest wait of a\nrank between its first and its last cell; bubble_fraction: its fraction of the time between them; bubbles: of every\nrank. peak_saved: most saved activations of each rank, in microbatches through all its chunks. peak_bytes, with\n--model: peak bytes of each rank, over all categories. With --partition, in seconds and bytes: parts, their forward and\nbackward, bytes of the activation that they pass on, and of weights; bandwidth; stages, with first and last part, ranks\nand seconds; bottleneck; speedup over one rank; layout and split that run it, or null.";

/// Draw a pipeline's schedule, built-in or your own: the work, waiting time and memory of each rank
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = JSON)]
pub(crate) struct ScheduleArgs {
    /// The kind of schedule [default: 1f1b]
    #[arg(long, value_parser = PossibleValuesParser::new(pipeline::ALL.iter().map(|s| s.about().word)))]
    kind: Option<String>,
    /// Ranks of the pipeline [default: 4]
    #[arg(long, value_name = "RANKS")]
    stages: Option<usize>,
    /// Microbatches of the step [default: 8]
    #[arg(long)]
    microbatches: Option<usize>,
    /// Chunks of the model on each rank, for kinds that accept a number of them
    #[arg(long)]
    chunks: Option<usize>,
    /// Slices of each sequence, for kinds that cut sequences
    #[arg(long)]
    slices: Option<usize>,
    /// Times of a microbatch in a rank's whole part of the model: forward, input half of the backward, weight
    /// half
    #[arg(long, value_name = "F,B,W", default_value = "1,1,1", allow_hyphen_values = true)]
    times: NumberList<3>,
    /// Time of an update after a microbatch, for kinds that have them [default: 0.25]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    update: Option<NumberList<1>>,
    /// Latency of a message between ranks, and the time that the message of a whole microbatch occupies its
    /// link
    #[arg(long, value_name = "LATENCY,TIME", default_value = "0,0", allow_hyphen_values = true)]
    link: NumberList<2>,
    /// A table of your own in place of a kind: CSV or JSON, a row for each rank, cells such as 0F0, 0B0, 0I0,
    /// 0W0; also in the format of `_dump_csv` of torch.distributed.pipelining, whose sends and receives are
    /// compared with those that follow from the cells
    #[arg(long, conflicts_with_all = ["kind", "stages", "microbatches", "chunks", "slices"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    held: HeldArgs,
    #[command(flatten)]
    partition: PartitionArgs,
    /// Write the diagram to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the table to this file, as CSV, a column for each tick
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Flags that draw a schedule, beside which the partitioner has nothing to do.
const DRAWS: [&str; 11] =
    ["kind", "stages", "microbatches", "chunks", "slices", "times", "update", "link", "file", "svg", "csv"];

/// Flags of the partitioner.
#[derive(Args, Debug)]
struct PartitionArgs {
    /// Measure the blocks of --model on this machine, and split them into stages over at most this number of
    /// ranks, with more ranks for slower stages
    #[arg(long = "partition", value_name = "RANKS", requires = "model", conflicts_with_all = DRAWS)]
    ranks: Option<usize>,
    /// With --partition, sequences of a microbatch
    #[arg(long, default_value_t = 4, requires = "ranks", conflicts_with_all = DRAWS)]
    sequences: usize,
}

/// The smallest and the largest number of a list beside 0: a picture tells their sums apart.
const NUMBERS: [f64; 2] = [1e-9, 1e9];

/// Numbers from 0 up, separated by commas.
#[derive(Clone, Copy, Debug)]
struct NumberList<const N: usize>([f64; N]);

impl<const N: usize> FromStr for NumberList<N> {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let [least, most] = NUMBERS;
        let number =
            |part: &str| part.trim().parse().ok().filter(|x| *x == 0.0 || (least..=most).contains(x));
        let numbers = text.split(',').map(number).collect::<Option<Vec<f64>>>();
        numbers
            .and_then(|numbers| numbers.try_into().ok())
            .map(Self)
            .ok_or_else(|| format!("wanted {N} numbers, 0 or from 10^-9 to 10^9, separated by commas"))
    }
}

impl ScheduleArgs {
    /// Returns a built-in schedule and its sizes.
    fn listed(&self) -> Result<(&'static dyn Schedule, Plan)> {
        let named = |s: &&&dyn Schedule| self.kind.as_ref().is_none_or(|kind| s.about().word == kind);
        let schedule = *pipeline::ALL.iter().find(named).expect("a kind of the list");
        let (stages, microbatches) = (self.stages.unwrap_or(4), self.microbatches.unwrap_or(8));
        for (flag, value, most) in [
            ("stages", Some(stages), MOST_STAGES),
            ("microbatches", Some(microbatches), MOST_FORWARDS),
            ("chunks", self.chunks, MOST_PARTS),
            ("slices", self.slices, MOST_PARTS),
        ] {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                bail!("--{flag} is {value}; it must be 1 to {most}");
            }
        }
        let sizes = |number| schedule.plan(stages, microbatches, number);
        let takes = schedule.about().takes != NumberArgument::Nothing;
        for (flag, value, takes) in [
            ("chunks", self.chunks, takes && sizes(Some(2)).chunks != sizes(Some(3)).chunks),
            ("slices", self.slices, takes && sizes(Some(2)).slices != sizes(Some(3)).slices),
        ] {
            if let (Some(value), false) = (value, takes) {
                bail!("--{flag} is {value}, but {} takes none; leave it out", schedule.about().word);
            }
        }
        let plan = sizes(self.chunks.or(self.slices));
        let forwards = plan.all_chunks() * plan.slices * microbatches;
        if forwards > MOST_FORWARDS {
            bail!("{plan} make {forwards} forwards; they must be {MOST_FORWARDS} or fewer");
        }
        if forwards <= MOST_VERIFIED { check(schedule, &plan).map(drop) } else { schedule.fits(&plan) }
            .map_err(Error::new)?;
        Ok((schedule, plan))
    }
}

impl Run for ScheduleArgs {
    fn run(self, views: &Views) -> Result<bool> {
        let a = &self;
        let (Some(ranks), Some(model)) = (a.partition.ranks, a.held.model()?) else {
            return a.draw(views).map(|()| true);
        };
        if a.held.number.device == DeviceName::Cuda {
            bail!("--partition measures on the CPU; leave out --device cuda");
        }
        let sequences = a.partition.sequences;
        let seq = a.held.seq(&model.config)?;
        let split = PartitionRun { model: &model, sequences, seq, ranks, dtype: a.held.number.name };
        split.run(views).map(|()| true)
    }
}

impl ScheduleArgs {
    /// Times of the cells of a schedule.
    fn cell_times(&self, schedule: &dyn Schedule) -> Result<CellTimes> {
        let [f, i, w] = self.times.0;
        if f + i + w == 0.0 {
            bail!("--times is 0,0,0; at least one must be above 0");
        }
        let [latency, message] = self.link.0;
        let mut times = CellTimes { latency, message, ..CellTimes::new(f, i, w) };
        match (self.update, schedule.updates_each()) {
            (Some(NumberList([update])), false) => {
                bail!("--update is {update}, but {} has no update cells; leave it out", schedule.about().word)
            }
            (None, false) => {}
            (update, true) => times.acts[PassKind::U.number()] = update.map_or(UPDATE, |update| update.0[0]),
        }
        Ok(times)
    }
    /// Draws a schedule, and shows its figures.
    fn draw(&self, views: &Views) -> Result<()> {
        let table = self.file.as_deref().map(args::table).transpose()?;
        let (schedule, plan) =
            table.map_or_else(|| self.listed(), |table| Ok((table as &dyn Schedule, table.sizes())))?;
        let times = self.cell_times(schedule)?;
        let drawn = 3 * plan.all_chunks() * plan.slices * plan.microbatches;
        if self.svg.is_some() && drawn > MOST_DRAWN {
            bail!("--svg would draw {drawn} cells; it draws {MOST_DRAWN} or fewer");
        }
        let has_picture = self.svg.is_some() || views.wants_details() && drawn <= MOST_DRAWN;
        let kept = match (has_picture, views.wants_words()) {
            (true, _) => [plan.ranks, drawn],
            (_, true) => [MOST_RANKS, KEPT],
            _ => [0, 0],
        };
        let timeline = Timeline::of(schedule, plan, &times, kept).map_err(Error::new)?;
        let pipeline = Pipeline { number: self.chunks.or(self.slices), ..schedule.into() };
        let bytes = self.held.peaks(pipeline, &plan, table)?;
        if has_picture {
            picture(self.svg.as_ref(), "The schedule.", views, || svg::draw(&timeline))?;
        }
        if let Some(file) = &self.csv {
            files::replace_file(file, table::csv(schedule, &plan).map_err(Error::new)?.as_bytes())?;
        }
        let mut object = object(self, schedule, &timeline);
        if let Some(table) = table {
            object["messages"] = json!(table.messages());
        }
        if let Some(bytes) = &bytes {
            object["peak_bytes"] = json!(bytes);
        }
        views.record(&DrawnSchedule(object))?;
        if views.wants_words() { say(self, &timeline, (bytes.as_deref(), table), views) } else { Ok(()) }
    }
}

/// Shows the timeline, its figures, and the files that were written.
fn say(
    a: &ScheduleArgs,
    timeline: &Timeline,
    (bytes, table): (Option<&[usize]>, Option<&Table>),
    views: &Views,
) -> Result<()> {
    let (terminal, width) = out::terminal();
    views.say(&format!("{}\n", timeline.title()))?;
    for line in timeline.lines(width, terminal) {
        views.see(&RunEvent::Screen(&line))?;
    }
    let mut lines = vec![String::new()];
    lines.extend(timeline.figures());
    if let Some(messages) = table.map(Table::messages).filter(|messages| *messages > 0) {
        lines.push(format!("its {messages} sends and receives match its cells"));
    }
    if let Some((bytes, most)) = bytes.and_then(|bytes| Some((bytes, bytes.iter().max()?))) {
        let [each, most] = [bytes, &[*most]].map(|all| {
            all.iter().map(|bytes| tensor::readable(*bytes as u128)).collect::<Vec<_>>().join(", ")
        });
        lines.push(format!("a rank holds at most {most}; by rank: {each}"));
    }
    let written = [("diagram", &a.svg), ("table", &a.csv)].into_iter();
    let written = written.filter_map(|(what, file)| Some((what, file.as_ref()?)));
    lines.extend(written.map(|(what, file)| format!("the {what} is in {}", file.display())));
    lines.iter().try_for_each(|line| views.say(line))
}

/// A schedule and its figures.
#[derive(Serialize)]
struct DrawnSchedule(Value);

records!(DrawnSchedule: "schedule");

fn object(a: &ScheduleArgs, schedule: &dyn Schedule, Timeline { plan, of, .. }: &Timeline) -> Value {
    json!({
        "kind": schedule.about().word, "stages": plan.ranks, "microbatches": plan.microbatches,
        "chunks": plan.chunks, "slices": plan.slices, "times": a.times.0, "link": a.link.0,
        "makespan": of.makespan, "bubble_time": of.bubble_time, "bubble_fraction": of.bubble_fraction,
        "bubbles": of.bubbles, "peak_saved": of.peak_saved,
    })
}

/// Flags of the peak bytes of each rank.
#[derive(Args, Debug)]
#[command(mut_arg("name", |dtype| dtype.requires("model")))]
#[command(mut_arg("device", |device| device.requires("model")))]
struct HeldArgs {
    /// A folder with a config.json, or embedded, or moe: the model of --partition; without that, also print
    /// the peak bytes of each rank in training with AdamW, one sequence a microbatch
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    model: Option<ModelName>,
    /// With --model, tokens of a sequence [default: 256, or the model's positions if fewer]
    #[arg(long, requires = "model")]
    seq: Option<usize>,
    #[command(flatten)]
    number: DtypeArgs,
}

impl HeldArgs {
    /// Returns the model, if one is given; of a folder only its config.json is read, and weights are drawn.
    fn model(&self) -> Result<Option<Model>> {
        Ok(Some(match &self.model {
            None => return Ok(None),
            Some(ModelName::Mlp) => {
                bail!("--model mlp has no config.json; write a folder, or embedded, or moe")
            }
            Some(ModelName::Embedded) => Model::embedded()?,
            Some(ModelName::Moe) => Model::moe()?,
            Some(ModelName::Folder(folder)) => Model::fresh(config(Some(&folder.join("config.json")))?, 0),
        }))
    }
    /// Returns the tokens of a sequence.
    fn seq(&self, config: &Config) -> Result<usize> {
        let seq = self.seq.unwrap_or(SEQ.min(config.positions));
        if !(1..=config.positions).contains(&seq) {
            bail!("--seq is {seq}; it must be 1 to {}, the positions of the model", config.positions);
        }
        Ok(seq)
    }
    /// Peak bytes of each rank, if a model is given.
    fn peaks(
        &self,
        pipeline: Pipeline,
        plan: &Plan,
        table: Option<&'static Table>,
    ) -> Result<Option<Vec<usize>>> {
        let Some(Model { config, .. }) = self.model()? else { return Ok(None) };
        let (design, seq) = (config.shape.into(), self.seq(&config)?);
        peaks((&design, seq), pipeline, plan, table, (self.number.device, self.number.name)).map(Some)
    }
}
