//! `collectives`: all-reduce algorithms round by round, and their time in the α–β model.
use crate::cli::run::Run;
use crate::terminal::out;
use crate::views::Views;
use crate::views::view::RECORDS;
use algorithms::{Algorithm, Link};
use clap::Args;
use clap::builder::PossibleValuesParser;
use draw::{schedule, svg};
use layers::counted;
use parallel::{Result, bail};
use run::collectives::AllReducePlan;
use std::path::PathBuf;
use tensor::files;

/// Help on JSON.
pub(crate) const JSON: &str = "With --json: a line for each algorithm, with its steps, the bytes that the busiest rank and \
all ranks send,\nand its seconds. With --algorithm a line for each step follows, with its phase and its transfers: \
from, to,\nchunks and elements ([first, one after the last]), and how they arrive (add or replace).";

/// Draw and price all-reduce algorithms: every message, step by step
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = JSON)]
pub(crate) struct CollectivesArgs {
    /// The algorithm to draw [default: compare all]
    #[arg(long, value_parser = PossibleValuesParser::new(Algorithm::NAMES))]
    algorithm: Option<String>,
    /// Number of ranks, 1 to 64
    #[arg(long, default_value_t = 8)]
    ranks: usize,
    /// f32 elements of every rank
    #[arg(long, default_value_t = 1 << 20)]
    elements: usize,
    /// Latency and bandwidth of the link between any two ranks, such as 20us,1GB/s
    #[arg(long, default_value = "5us,25GB/s")]
    link: Link,
    /// Ranks of a node, for hierarchical [default: the smallest divisor of --ranks from its square root up]
    #[arg(long, value_name = "RANKS")]
    node: Option<usize>,
    /// Draw --algorithm to this file, as a space-time diagram in SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// With --svg, highlight the messages of this chunk, and draw the others in grey
    #[arg(long, value_name = "CHUNK", requires = "svg")]
    chunk: Option<usize>,
}

impl CollectivesArgs {
    /// Returns one plan, or the plans of all algorithms.
    fn plans(&self) -> Result<Vec<AllReducePlan>> {
        let chosen = self.algorithm.as_deref();
        let has_nodes = |name| Algorithm::named(name, 1).is_some_and(|a| a.node().is_some());
        if let (Some(name), Some(_)) = (chosen.filter(|name| !has_nodes(name)), self.node) {
            bail!("--node is for --algorithm hierarchical; {name} has no use for it");
        }
        if self.svg.is_some() && chosen.is_none() {
            bail!("--svg draws one algorithm; give --algorithm too");
        }
        let mut plans = AllReducePlan::all(self.ranks, self.node, self.elements, self.link)?;
        plans.retain(|plan| chosen.is_none_or(|name| plan.algorithm.name() == name));
        Ok(plans)
    }
}

impl Run for CollectivesArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let a = &self;
        let plans = a.plans()?;
        let drawn = plans.first().filter(|_| a.algorithm.is_some());
        if let (Some(file), Some(plan)) = (&a.svg, drawn) {
            let chunks = plan.schedule.chunks();
            if let Some(chunk) = a.chunk.filter(|chunk| *chunk >= chunks) {
                bail!("--chunk is {chunk}; {} has {}, from 0", plan.name(), counted(chunks, "chunk"));
            }
            files::replace_file(file, svg::draw(plan, a.chunk).as_bytes())?;
        }
        plans.iter().try_for_each(|plan| views.record(&plan.summary()))?;
        let mut steps = drawn.into_iter().flat_map(AllReducePlan::steps);
        steps.try_for_each(|step| views.record(&step))?;
        match drawn {
            Some(plan) => draw(plan, views)?,
            None => compare(&plans, views)?,
        }
        if let Some(file) = &a.svg {
            views.say(&format!("\nthe diagram is in {}", file.display()))?;
        }
        Ok(true)
    }
}

fn draw(plan: &AllReducePlan, views: &Views) -> Result<()> {
    views.say(&format!("{}: {}\n", plan.name(), plan.data()))?;
    let table = schedule::draw(plan, out::terminal().1);
    views.say(&format!("{table}\n\n{}\n", schedule::legend(plan)))?;
    plan.figures().iter().try_for_each(|figures| views.say(figures))
}

fn compare(plans: &[AllReducePlan], views: &Views) -> Result<()> {
    let Some(any) = plans.first() else { return Ok(()) };
    let AllReducePlan { elements, link, .. } = any;
    views.say(&format!(
        "An all-reduce of {elements} f32 elements on each of {} ranks, links of {link}.\n",
        any.schedule.ranks()
    ))?;
    views.table_of(&plans.iter().map(AllReducePlan::summary).collect::<Vec<_>>())?;
    views.say(&format!(
        "\nbound: {:.2?}, the least time of any all-reduce. --algorithm NAME draws one algorithm.",
        any.bound()
    ))
}
