//! `shard`: found shardings of products, or of a model's graph: their steps, traffic, proof and time.
mod check;
mod expression;

use crate::cli::config;
use crate::cli::pictures::{PicturesArgs, refuse};
use crate::cli::run::Run;
use crate::terminal::out;
use crate::views::Views;
use algorithms::Link;
use clap::{Args, ValueEnum};
use comm::Axis;
use draw::blocks;
use expression::{Statements, sized, sorted};
use layers::graph::prices::{Nominal, Prices};
use layers::graph::search::{FoundGraph, SearchEnd, search};
use layers::graph::sharding::{MeshSizes, Sharding, size};
use layers::graph::{Graph, OperatorKind, OperatorSplit, TensorSource};
use layers::{Design, counted};
use ops::TokenShards;
use parallel::{Error, Result, bail};
use plan::Machine;
use plan::clock::time;
use plan::found::MachinePrices;
use prove::GraphVerdict;
use run::records;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Examples, and the JSON.
const MORE: &str = "\
A matrix is cut into blocks: X=[2,1] is two blocks of rows, each on some of the ranks. What you do not state is found.

  equipart shard --mesh 2x2 \"Z = (X W) V\" \"X=[2,1]\" \"W=[1,2]\" \"V=[2,1]\"
  equipart shard --mesh 2x2x2 \"Y = A B\" \"Z = Y W\" \"Y=[2,4]\" \"W=[4,1]\"
  equipart shard --mesh 8 --model mlp
  equipart shard --mesh 4x2 --model block --machine h100 --slow-link 1ms,1GB/s

With --json: one object a line of the plan (phase, equation, step, elements, bytes), one a matrix (matrix, shape,
blocks; partial_sums: how many add up to a block, 1 if it has none), and at last the whole: price, search, proven, seconds.";

/// Find the shardings of products, or of a model's operators: the rest of those that you state, or all
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_help = MORE)]
pub(crate) struct ShardArgs {
    /// Equations of products, such as "Z = (X W) V", and shardings, such as "X=[2,1]"
    #[arg(value_name = "EQUATION|SHARDING")]
    all: Vec<String>,
    /// Numbers of ranks along one to three axes, the outermost first
    #[arg(long, default_value = "2x2", value_parser = mesh)]
    mesh: MeshArg,
    /// Split this graph instead of equations: the classifier of pictures, or a block of a transformer with
    /// its head
    #[arg(long)]
    model: Option<GraphModel>,
    #[command(flatten)]
    pictures: PicturesArgs,
    /// A config.json of the block [default: the embedded model's]
    #[arg(long, value_name = "FILE", requires = "model")]
    config: Option<PathBuf>,
    /// Examples, or sequences, of a step
    #[arg(long, default_value_t = 64, requires = "model")]
    batch_size: usize,
    /// Tokens of a sequence of the block [default: 64]
    #[arg(long, requires = "model")]
    seq: Option<usize>,
    /// Size of a matrix of the equations, such as X=64x32 [default: 64x64]; may be repeated
    #[arg(long, value_name = "NAME=ROWSxCOLUMNS", value_parser = sized, conflicts_with = "model")]
    size: Vec<(String, [usize; 2])>,
    /// The machine whose times are the prices: a100, h100, h200, or a file of JSON [default: nominal prices]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// A slower link between the halves of the mesh
    #[arg(long, value_name = "LATENCY,BANDWIDTH", requires = "machine")]
    slow_link: Option<Link>,
    /// Seconds after which a search stops that cannot be exact
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Draw which rank has which block
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A graph that is not made of equations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum GraphModel {
    /// The classifier of pictures.
    Mlp,
    /// A block of a transformer, with its head.
    Block,
}

/// A mesh, which clap parses as one value.
#[derive(Clone, Debug)]
struct MeshArg(MeshSizes);

/// The axes of meshes of one to three axes.
const AXES: [Axis; 3] = [TokenShards::SEQUENCES, TokenShards::CONTEXT, Axis::Tp];
/// The most ranks of a mesh.
const RANKS: usize = 4096;

fn mesh(text: &str) -> std::result::Result<MeshArg, String> {
    let bad =
        || format!("write one to three numbers of ranks, such as 8, 2x2 or 2x2x2, {RANKS} ranks at most");
    let sizes: Vec<usize> = text
        .split('x')
        .map(|n| n.parse().ok().filter(|n| (1..=RANKS).contains(n)))
        .collect::<Option<_>>()
        .ok_or_else(bad)?;
    if sizes.len() > AXES.len() || sizes.iter().product::<usize>() > RANKS {
        return Err(bad());
    }
    let axes = match sizes.len() {
        2 => vec![AXES[0], AXES[2]],
        n => AXES[AXES.len() - n..].to_vec(),
    };
    Ok(MeshArg(axes.into_iter().zip(sizes).collect()))
}

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

records!(MatrixBlocks: "matrix", FoundSharding: "sharding");

impl Run for ShardArgs {
    fn run(self, views: &Views) -> Result<bool> {
        let MeshArg(mesh) = &self.mesh;
        let (equations, statements) = sorted(&self.all)?;
        if !(0.0..=3600.0).contains(&self.seconds) {
            bail!("--seconds is {}; it must be 0 to 3600", self.seconds);
        }
        let graph = match (self.model, equations.is_empty()) {
            (Some(_), false) => bail!("--model has equations of its own; leave {} out", equations[0].0),
            (None, true) => bail!("give an equation, such as \"Z = X W\", or --model"),
            (None, false) => {
                refuse(&[("hidden", self.pictures.hidden.is_some())], "--model mlp; a graph of equations")?;
                expression::graph(&equations, &statements, &self.size.iter().cloned().collect())?
            }
            (Some(model), true) => self.graph(model)?,
        };
        if let Some((name, _)) =
            self.size.iter().find(|(name, _)| !graph.tensors.iter().any(|t| *t.name == **name))
        {
            bail!("--size {name}: no equation has a matrix of this name");
        }
        check_statements(&graph, mesh, &statements)?;
        let ranks: usize = mesh.iter().map(|(_, size)| size).product();
        let prices: Box<dyn Prices> = match &self.machine {
            None => Box::new(Nominal::new(mesh)?),
            Some(name) => {
                let machine = Machine::named(name)?;
                let machine = self.slow_link.map_or(machine.clone(), |link| machine.halved(ranks, link));
                Box::new(MachinePrices::new(mesh, &Arc::new(machine))?)
            }
        };
        let start = Instant::now();
        let limit = Duration::from_secs_f64(self.seconds);
        let allowed = |o: usize, split: &_| is_stated((&graph, mesh), &statements, o, split);
        let found = search((&graph, mesh), &allowed, &*prices, &|_| start.elapsed() < limit)
            .map_err(|why| contradiction(&graph, mesh, &statements).unwrap_or_else(|| why.into()))?;
        let took = start.elapsed();
        let checked = check::run(&found.plan)?;
        self.show(&found, &*prices, (took, &checked), views)?;
        if let Some(file) = self.svg.as_ref().filter(|_| !out::is_silent()) {
            let svg = blocks::draw(&found.plan, &shown(&found));
            tensor::files::replace_file(file, svg.as_bytes())?;
        }
        Ok(checked.is_none_or(|(verdict, _)| verdict.differs.is_none()))
    }
}

impl ShardArgs {
    fn graph(&self, model: GraphModel) -> Result<Graph> {
        let seq = self.seq.unwrap_or(64);
        for (what, n) in [("--batch-size", self.batch_size), ("--seq", seq)] {
            if !(1..=1 << 20).contains(&n) {
                bail!("{what} is {n}; it must be 1 to {}", 1 << 20);
            }
        }
        match model {
            GraphModel::Mlp if self.config.is_some() => bail!("--config is of --model block"),
            GraphModel::Mlp if self.seq.is_some() => bail!("--seq is of --model block"),
            GraphModel::Mlp => match self.pictures.fresh(None, 0).design {
                Design::Classifier { sizes } => Ok(Graph::classifier(self.batch_size, &sizes)),
                other => bail!("{other} is no classifier"),
            },
            GraphModel::Block => {
                self.pictures.unused()?;
                let shape = config(self.config.as_deref())?.shape;
                if shape.experts.is_some() {
                    bail!("--model block has no experts; give a --config of a dense model");
                }
                Ok(Graph::block(&shape, [self.batch_size, seq], true))
            }
        }
    }
    /// Shows what was found, and its price and check.
    fn show(
        &self,
        found: &FoundGraph,
        prices: &dyn Prices,
        (took, checked): (Duration, &Option<(GraphVerdict, f64)>),
        views: &Views,
    ) -> Result<()> {
        let plan = &found.plan;
        let lines = plan.lines(prices);
        lines.iter().try_for_each(|line| views.record(line))?;
        for (tensor, at) in shown(found) {
            let (matrix, blocks) = (&plan.graph.tensors[tensor], at.blocks(&plan.mesh));
            let sums: usize = at.partial.iter().map(|axis| size(&plan.mesh, axis)).product();
            let name = matrix.name.to_string();
            views.record(&MatrixBlocks { blocks, matrix: name, partial_sums: sums, shape: matrix.shape })?;
        }
        let proven = checked.as_ref().map(|(verdict, _)| verdict.differs.is_none());
        let seconds = checked.as_ref().map(|(_, seconds)| *seconds);
        let end = ended(found, took);
        views.record(&FoundSharding { price: plan.price, proven, search: end.clone(), seconds })?;
        let axes: Vec<_> = plan.mesh.iter().map(|(axis, n)| format!("{axis}={n}")).collect();
        views.say(&format!("Mesh {}. Blocks of rows and columns:", axes.join(" x ")))?;
        for (tensor, at) in shown(found) {
            let tensor = &plan.graph.tensors[tensor];
            let [rows, columns] = tensor.shape;
            views.say(&format!("  {} {rows}x{columns} {}", tensor.name, plan.blocks(&at)))?;
        }
        let mut phase = "";
        for of in &lines {
            if phase != of.phase {
                phase = of.phase;
                views.say(&format!("{phase}:"))?;
            }
            views.say(&match &of.step {
                None => format!("  {}", of.equation),
                Some(step) if of.elements == 0 => format!("    {}: {step}", of.equation),
                Some(step) => {
                    let sent = tensor::readable(of.bytes as u128);
                    format!("    {}: {step}, {} elements, {sent} sent", of.equation, of.elements)
                }
            })?;
        }
        let price = match self.machine {
            Some(_) => time(plan.price),
            None => format!("that of {} operations", run::words::amount(plan.price)),
        };
        views.say(&format!("Price of a step: {price}. Search: {end}."))?;
        views.say(&checked_in_words(checked.as_ref()))
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
fn shown(found: &FoundGraph) -> Vec<(usize, Sharding)> {
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

/// Returns the stated blocks of a matrix.
fn stated(graph: &Graph, statements: &Statements, tensor: usize) -> Option<[usize; 2]> {
    statements.get(&*graph.tensors[tensor].name).copied().filter(|_| is_named(graph, tensor))
}

/// Returns whether a split of an operator has the stated shardings.
fn is_stated((graph, mesh): (&Graph, &MeshSizes), all: &Statements, o: usize, split: &OperatorSplit) -> bool {
    let operator = &graph.operators[o];
    let is = |tensor: usize, at: &Sharding| {
        stated(graph, all, tensor).is_none_or(|blocks| at.blocks(mesh) == blocks && at.partial.is_empty())
    };
    let is_result = |tensor: usize| graph.tensors[tensor].source == TensorSource::Result;
    let mut inputs = operator.inputs.iter().zip(&split.inputs);
    inputs.all(|(&input, at)| is_result(input) || is(input, at)) && is(operator.output, &split.output)
}

/// Checks that each stated sharding alone is possible.
fn check_statements(graph: &Graph, mesh: &MeshSizes, all: &Statements) -> Result<()> {
    let axes: Vec<_> = mesh.iter().map(|(_, size)| *size).collect();
    for (name, blocks) in all {
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
fn contradiction(graph: &Graph, mesh: &MeshSizes, all: &Statements) -> Option<Error> {
    let none =
        |o: &usize| graph.splits(*o, mesh).iter().all(|split| !is_stated((graph, mesh), all, *o, split));
    let operator = &graph.operators[(0..graph.operators.len()).find(none)?];
    let name = |tensor: usize| &*graph.tensors[tensor].name;
    let cuts = |tensor: &usize| Some((*tensor, stated(graph, all, *tensor)?));
    let mut known: Vec<_> = operator.inputs.iter().chain([&operator.output]).filter_map(cuts).collect();
    known.dedup();
    let written =
        |(tensor, [rows, columns]): &(usize, [usize; 2])| format!("{}=[{rows},{columns}]", name(*tensor));
    let named: Vec<_> = known.iter().map(written).collect();
    let why = match (operator.kind, &known[..]) {
        (OperatorKind::Product, [(x, [_, cut]), (w, [other, _]), ..]) if cut != other => {
            let [cut, other] = [(*cut, "block of columns"), (*other, "block of rows")].map(|(n, what)| {
                if n == 1 {
                    format!("1 {what}")
                } else {
                    format!("{n} {}", what.replacen("block", "blocks", 1))
                }
            });
            format!("{} has {cut} and {} {other}, which a product cuts alike", name(*x), name(*w))
        }
        _ => "no axis cuts two dimensions, and both factors of a product are cut alike".into(),
    };
    let verb = if named.len() == 1 { "contradicts itself" } else { "contradict each other" };
    Some(Error::new(format!("{} {verb} in {}: {why}", named.join(" and "), name(operator.output))))
}
