//! `shard`: found shardings of products, or of a model's graph: their steps, traffic, proof and time.
use crate::cli::config;
use crate::cli::files;
use crate::cli::pictures::{PicturesArgs, refuse};
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use algorithms::Link;
use clap::{Args, ValueEnum};
use comm::Axis;
use draw::blocks;
use layers::Design;
use layers::graph::Graph;
use layers::graph::sharding::MeshSizes;
use ops::TokenShards;
use parallel::{Result, bail};
use plan::Machine;
use run::shard::expression::{self, sized, sorted};
use run::shard::{ShardRun, shown};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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

impl Run for ShardArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        let MeshArg(mesh) = self.mesh.clone();
        let (equations, statements) = sorted(&self.all)?;
        if !(0.0..=3600.0).contains(&self.seconds) {
            bail!("--seconds is {}; it must be 0 to 3600", self.seconds);
        }
        let graph = match (self.model, equations.is_empty()) {
            (Some(_), false) => bail!("--model has equations of its own; leave {} out", equations[0].0),
            (None, true) => bail!("give an equation, such as \"Z = X W\", or --model"),
            (None, false) => {
                refuse(&[("hidden", self.pictures.hidden.is_some())], "--model mlp; a graph of equations")?;
                expression::graph(&equations, &statements, &self.size)?
            }
            (Some(model), true) => self.graph(model)?,
        };
        let ranks = mesh.iter().map(|(_, size)| size).product();
        let machine = self.machine.as_deref().map(Machine::named).transpose()?;
        let machine = machine.map(|of| self.slow_link.map_or(of.clone(), |link| of.halved(ranks, link)));
        let run = ShardRun {
            graph,
            mesh,
            statements,
            machine: machine.map(Arc::new),
            limit: Duration::from_secs_f64(self.seconds),
        };
        let (found, equal) = run.tell(views)?;
        let draw = || blocks::draw(&found.plan, &shown(&found));
        files::picture(self.svg.as_ref(), "Which rank has which block.", views, draw)?;
        Ok(equal)
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
}
