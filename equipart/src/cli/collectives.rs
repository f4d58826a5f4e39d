//! The command that draws and prices all-reduces: collectives.
use super::{out, show};
use crate::collectives::{Plan, bytes, drawing, svg};
use crate::{Error, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use comm::{Algorithm, Link};
use std::path::PathBuf;
use tensor::files;

/// What scripts get.
pub(super) const JSON: &str = "With --json: a line for each algorithm, with its steps, the bytes that the busiest rank and \
all ranks send,\nand its seconds. With --algorithm a line for each step follows, with its phase and its transfers: \
from, to,\nchunks and elements ([first, one after the last]), and how they arrive (add or replace).";

#[derive(Args, Debug)]
pub(super) struct CollectivesArgs {
    /// The algorithm to draw [default: compare all]
    #[arg(long, value_parser = PossibleValuesParser::new(Algorithm::NAMES))]
    algorithm: Option<String>,
    /// How many ranks, 1 to 64
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
    /// A file for the drawing of --algorithm as a space-time diagram
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl CollectivesArgs {
    /// One plan, or those of all algorithms.
    fn plans(&self) -> Result<Vec<Plan>> {
        let chosen = self.algorithm.as_deref();
        let has_nodes = |name| Algorithm::named(name, 1).is_some_and(|a| a.node().is_some());
        if let (Some(name), Some(_)) = (chosen.filter(|name| !has_nodes(name)), self.node) {
            return Err(Error::new(format!(
                "--node is for --algorithm hierarchical; {name} has no use for it"
            )));
        }
        if self.svg.is_some() && chosen.is_none() {
            return Err(Error::new("--svg draws one algorithm; give --algorithm too"));
        }
        let mut plans = Plan::all(self.ranks, self.node, self.elements, self.link)?;
        plans.retain(|plan| chosen.is_none_or(|name| plan.algorithm.name() == name));
        Ok(plans)
    }
}

pub(super) fn run(a: &CollectivesArgs, json: bool) -> Result<bool> {
    let plans = a.plans()?;
    let drawn = plans.first().filter(|_| a.algorithm.is_some());
    if let (Some(file), Some(plan)) = (&a.svg, drawn) {
        files::replace_file(file, svg::draw(plan).as_bytes())?;
    }
    if json {
        for plan in &plans {
            show::json(&plan.summary());
        }
        drawn.into_iter().flat_map(Plan::steps).for_each(|step| show::json(&step));
        return Ok(true);
    }
    match drawn {
        Some(plan) => draw(plan),
        None => compare(&plans),
    }
    if let Some(file) = &a.svg {
        out::line(&format!("\nthe diagram is in {}", file.display()));
    }
    Ok(true)
}

fn draw(plan: &Plan) {
    out::line(&format!("{}: {}\n", plan.name(), plan.data()));
    out::line(&format!("{}\n\n{}\n", drawing::draw(plan), drawing::legend(plan)));
    plan.figures().iter().for_each(|figures| out::line(figures));
}

fn compare(plans: &[Plan]) {
    let cells = |plan: &Plan| {
        let summary = plan.summary();
        vec![
            summary
                .node
                .map_or(summary.algorithm.into(), |node| format!("{}, nodes of {node}", summary.algorithm)),
            summary.steps.to_string(),
            bytes(summary.busiest_bytes),
            bytes(summary.total_bytes),
            format!("{:.2?}", plan.time()),
            plan.of_bound().map_or("-".into(), |times| format!("x{times:.2}")),
        ]
    };
    let Some(any) = plans.first() else { return };
    let (ranks, elements) = (any.schedule.ranks(), any.elements);
    out::line(&format!(
        "An all-reduce of {elements} f32 elements on each of {ranks} ranks, links of {}.\n",
        any.link
    ));
    let head = ["algorithm", "steps", "busiest rank sends", "all send", "time", "of the bound"];
    out::line(&show::table(&head, plans.iter().map(cells)).to_string());
    out::line(&format!(
        "\nbound: {:.2?}, which no all-reduce takes less than. --algorithm NAME draws one.",
        any.bound()
    ));
}
