//! Shardings of a graph that are found: their steps, traffic, proof and time.
mod check;
pub mod expression;

use self::expression::Statements;
use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column};
use crate::records;
use crate::words::amount;
use layers::counted;
use layers::graph::lines::GraphLine;
use layers::graph::prices::{Nominal, Prices};
use layers::graph::search::{FoundGraph, SearchEnd, search};
use layers::graph::sharding::{MeshSizes, Sharding, size};
use layers::graph::{Graph, OperatorKind, OperatorSplit, TensorSource};
use parallel::{Error, Result, bail};
use plan::Machine;
use plan::clock::time;
use plan::found::MachinePrices;
use prove::GraphVerdict;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensor::readable;

/// Blocks of a matrix.
#[derive(Serialize)]
struct MatrixBlocks {
    blocks: [usize; 2],
    matrix: String,
    partial_sums: usize,
    shape: [usize; 2],
}

/// Price, search, proof and time of a plan.
#[derive(Serialize)]
struct FoundSharding {
    price: f64,
    proven: Option<bool>,
    search: String,
    seconds: Option<f64>,
}

impl RunRecord for GraphLine {
    fn kind(&self) -> &'static str {
        "step"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        vec![
            (column("phase", "phase"), CellValue::word(self.phase)),
            (column("equation", "equation"), CellValue::word(&self.equation)),
            (column("step", "step"), self.step.clone().map_or(CellValue::None, CellValue::Word)),
            (column("elements", "elements"), CellValue::Count(self.elements)),
            (column("bytes", "sent"), CellValue::bytes(self.bytes as u128)),
        ]
    }
}

records!(MatrixBlocks: "matrix", FoundSharding: "sharding");

/// A graph whose shardings are to be found.
pub struct ShardRun {
    /// The graph.
    pub graph: Graph,
    /// The axes that cut its matrices.
    pub mesh: MeshSizes,
    /// The shardings that are stated.
    pub statements: Statements,
    /// The machine whose times are the prices; nominal prices, if there is none.
    pub machine: Option<Arc<Machine>>,
    /// Time after which a search stops that cannot be exact.
    pub limit: Duration,
}

impl ShardRun {
    /// Tells what is found, its price, and its proof and time if they do not take too much. Returns false
    /// with it if it is proven to be wrong.
    ///
    /// # Errors
    /// If the statements fit no sharding, or the machine has no such mesh.
    pub fn tell(&self, observer: &Observer) -> Result<(FoundGraph, bool)> {
        self.check_statements()?;
        let Self { graph, mesh, .. } = self;
        let prices: Box<dyn Prices> = match &self.machine {
            None => Box::new(Nominal::new(mesh)?),
            Some(machine) => Box::new(MachinePrices::new(mesh, machine)?),
        };
        let start = Instant::now();
        let allowed = |o: usize, split: &_| self.is_stated(o, split);
        let found = search((graph, mesh), &allowed, &*prices, &|_| start.elapsed() < self.limit)
            .map_err(|why| self.contradiction().unwrap_or_else(|| why.into()))?;
        let took = start.elapsed();
        let checked = check::run(&found.plan)?;
        let end = ended(&found, took);
        let plan = &found.plan;
        let lines = plan.lines(&*prices);
        observer.records(&lines)?;
        for (tensor, at) in shown(&found) {
            let tensor = &plan.graph.tensors[tensor];
            let (matrix, blocks) = (tensor.name.to_string(), at.blocks(&plan.mesh));
            let partial_sums = at.partial.iter().map(|axis| size(&plan.mesh, axis)).product();
            observer.record(&MatrixBlocks { blocks, matrix, partial_sums, shape: tensor.shape })?;
        }
        let (proven, seconds) =
            checked.as_ref().map(|(verdict, seconds)| (verdict.differs.is_none(), *seconds)).unzip();
        observer.record(&FoundSharding { price: plan.price, proven, search: end.clone(), seconds })?;
        let axes: Vec<_> = plan.mesh.iter().map(|(axis, n)| format!("{axis}={n}")).collect();
        observer.say(&format!("Mesh {}. Blocks of rows and columns:", axes.join(" x ")))?;
        for (tensor, at) in shown(&found) {
            let tensor = &plan.graph.tensors[tensor];
            let [rows, columns] = tensor.shape;
            observer.say(&format!("  {} {rows}x{columns} {}", tensor.name, plan.blocks(&at)))?;
        }
        let mut phase = "";
        for of in &lines {
            if phase != of.phase {
                phase = of.phase;
                observer.say(&format!("{phase}:"))?;
            }
            observer.say(&match &of.step {
                None => format!("  {}", of.equation),
                Some(step) if of.elements == 0 => format!("    {}: {step}", of.equation),
                Some(step) => {
                    let sent = readable(of.bytes as u128);
                    format!("    {}: {step}, {} elements, {sent} sent", of.equation, of.elements)
                }
            })?;
        }
        let price = match self.machine {
            Some(_) => time(plan.price),
            None => format!("that of {} operations", amount(plan.price)),
        };
        observer.say(&format!("Price of a step: {price}. Search: {end}."))?;
        observer.say(&checked_in_words(checked.as_ref()))?;
        Ok((found, proven != Some(false)))
    }
    /// Returns the stated blocks of a matrix.
    fn stated(&self, tensor: usize) -> Option<[usize; 2]> {
        let name = &*self.graph.tensors[tensor].name;
        self.statements.get(name).copied().filter(|_| is_named(&self.graph, tensor))
    }
    /// Returns whether a split of an operator has the stated shardings.
    fn is_stated(&self, o: usize, split: &OperatorSplit) -> bool {
        let Self { graph, mesh, .. } = self;
        let operator = &graph.operators[o];
        let is = |tensor: usize, at: &Sharding| {
            self.stated(tensor).is_none_or(|blocks| at.blocks(mesh) == blocks && at.partial.is_empty())
        };
        let is_result = |tensor: usize| graph.tensors[tensor].source == TensorSource::Result;
        let mut inputs = operator.inputs.iter().zip(&split.inputs);
        inputs.all(|(&input, at)| is_result(input) || is(input, at)) && is(operator.output, &split.output)
    }
    /// Checks that each stated sharding alone is possible.
    fn check_statements(&self) -> Result<()> {
        let graph = &self.graph;
        let axes: Vec<_> = self.mesh.iter().map(|(_, size)| *size).collect();
        for (name, blocks) in &self.statements {
            let Some(tensor) = graph.tensors.iter().find(|tensor| *tensor.name == **name) else {
                let mut names: Vec<_> = graph.tensors.iter().map(|tensor| &*tensor.name).collect();
                names.dedup();
                bail!("{name} is no matrix of the graph; it has {}", names.join(", "));
            };
            let [rows, columns] = *blocks;
            // each axis cuts rows, columns or nothing
            let products = axes.iter().fold(BTreeSet::from([[1, 1]]), |all: BTreeSet<[usize; 2]>, n| {
                all.iter().flat_map(|&[r, c]| [[r, c], [r * n, c], [r, c * n]]).collect()
            });
            if !products.contains(blocks) {
                let sizes: Vec<_> = axes.iter().map(usize::to_string).collect();
                bail!(
                    "{name}=[{rows},{columns}]: no axes of the mesh {} have as many ranks; more axes, such as \
                     2x2x2 for 8 ranks, have more blocks",
                    sizes.join("x")
                );
            }
            for (n, size, what) in [(rows, tensor.shape[0], "row"), (columns, tensor.shape[1], "column")] {
                if !size.is_multiple_of(n) {
                    let size = counted(size, what);
                    bail!("{name}=[{rows},{columns}]: {n} does not divide the {size} of {name}");
                }
            }
        }
        Ok(())
    }
    /// Returns why no split of an operator has its stated shardings, if that is so for one.
    fn contradiction(&self) -> Option<Error> {
        let graph = &self.graph;
        let none = |o: &usize| graph.splits(*o, &self.mesh).iter().all(|split| !self.is_stated(*o, split));
        let operator = &graph.operators[(0..graph.operators.len()).find(none)?];
        let name = |tensor: usize| &*graph.tensors[tensor].name;
        let cuts = |tensor: &usize| Some((*tensor, self.stated(*tensor)?));
        let mut known: Vec<_> = operator.inputs.iter().chain([&operator.output]).filter_map(cuts).collect();
        known.dedup();
        let written =
            |(tensor, [rows, columns]): &(usize, [usize; 2])| format!("{}=[{rows},{columns}]", name(*tensor));
        let named: Vec<_> = known.iter().map(written).collect();
        let why = match (operator.kind, &known[..]) {
            (OperatorKind::Product, [(x, [_, cut]), (w, [other, _]), ..]) if cut != other => {
                let [cut, other] = [(*cut, "columns"), (*other, "rows")]
                    .map(|(n, what)| format!("{} of {what}", counted(n, "block")));
                format!("{} has {cut} and {} {other}, which a product cuts alike", name(*x), name(*w))
            }
            _ => "no axis cuts two dimensions, and both factors of a product are cut alike".into(),
        };
        let verb = if named.len() == 1 { "contradicts itself" } else { "contradict each other" };
        Some(Error::new(format!("{} {verb} in {}: {why}", named.join(" and "), name(operator.output))))
    }
}

/// The end of a search, in words.
fn ended(found: &FoundGraph, took: Duration) -> String {
    let took = time(took.as_secs_f64());
    match found.end {
        SearchEnd::Exact => format!("exact, in {took}"),
        SearchEnd::Stopped { found, alike, after } => format!(
            "stopped after {took}: of {found} plans that no single change makes cheaper {alike} have this price, \
             the first after {}",
            time(after.as_secs_f64())
        ),
    }
}

/// The outcome of a check.
fn checked_in_words(checked: Option<&(GraphVerdict, f64)>) -> String {
    let Some((GraphVerdict { tensors, differs }, seconds)) = checked else {
        return "Neither proven nor run: it has more work, ranks or bytes than a check here may take.".into();
    };
    let verdict = match differs {
        None => format!("all {tensors} results, gradients and new parameters equal the unsplit ones"),
        Some((rank, name)) => format!("{name} DIFFERS from the unsplit one on rank {rank}"),
    };
    format!("In the field, {verdict}. A step of f32 takes {} here.", time(*seconds))
}

/// Returns the matrices to show, each once, with their shardings: parameters and inputs as they are used, and
/// results as they are given.
pub fn shown(found: &FoundGraph) -> Vec<(usize, Sharding)> {
    let graph = &found.plan.graph;
    let sharding = |t: usize| match graph.tensors[t].source {
        TensorSource::Result => graph.giver(t).map(|o| found.plan.splits[o].output.clone()),
        _ => graph.takers(t).next().map(|(o, i)| found.plan.splits[o].inputs[i].clone()),
    };
    (0..graph.tensors.len()).filter(|t| is_named(graph, *t)).filter_map(|t| Some((t, sharding(t)?))).collect()
}

/// Returns whether its name means this matrix: of two with one name, the product and its value, the value.
fn is_named(graph: &Graph, tensor: usize) -> bool {
    let name = &graph.tensors[tensor].name;
    graph.tensors.iter().rposition(|of| of.name == *name) == Some(tensor)
}
