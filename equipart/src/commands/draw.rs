//! `draw`: pictures of layouts, from shapes and a machine's file: nothing runs.
use crate::cli::args::{DtypeArgs, microbatches, offloads_on};
use crate::cli::config;
use crate::cli::run::Run;
use crate::views::Views;
use clap::{Args, Subcommand};
use comm::Axis;
use draw::bars::MemoryBar;
use draw::roofline::{AxisPoint, Roof};
use draw::{bars, gates, matrices, mesh, roofline, tracks};
use parallel::{Layout, Result, bail, layout};
use plan::Machine;
use plan::spans::{RankSpan, SpanWork};
use run::price::PriceRun;
use run::records;
use run::train::settings::{SEQ, Settings};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tensor::files;

/// Draw a layout as SVG: its ranks on nodes, matrices, a block's calls, memory, a rank's time, or rooflines
#[derive(Args, Debug)]
pub(crate) struct DrawArgs {
    #[command(subcommand)]
    picture: LayoutPicture,
}

/// Picture to draw.
#[derive(Subcommand, Debug)]
enum LayoutPicture {
    /// The ranks on nodes, with their coordinates; with experts, once more for these
    Ranks {
        #[arg(long, help = layout::grammar())]
        layout: Layout,
        /// Ranks of a node
        #[arg(long, default_value_t = 8)]
        node: usize,
        #[command(flatten)]
        file: PictureFile,
    },
    /// A column-parallel and a row-parallel product, with partial sums
    Matrices {
        /// Tensor ranks, 2 to 4
        #[arg(long, default_value_t = 2)]
        ranks: usize,
        #[command(flatten)]
        file: PictureFile,
    },
    /// The calls of a transformer block as gates, with the parts of tensors between them
    Block {
        /// A layout of tensor ranks: tp=2, or tp=2,sp
        #[arg(long, default_value = "tp=2")]
        layout: Layout,
        #[command(flatten)]
        file: PictureFile,
    },
    /// Peak memory of layouts by category, a bar for each
    Memory {
        #[arg(long, required = true, help = layout::grammar())]
        layout: Vec<Layout>,
        #[command(flatten)]
        step: StepArgs,
        #[command(flatten)]
        file: PictureFile,
    },
    /// Kernels and calls of rank 0 in a step, as a machine's file predicts them
    Time {
        #[arg(long, help = layout::grammar())]
        layout: Layout,
        #[command(flatten)]
        on: TimedStepArgs,
        #[command(flatten)]
        file: PictureFile,
    },
    /// Rooflines of a machine's memory and links, with the axes of layouts as points
    Roofline {
        #[arg(long, required = true, help = layout::grammar())]
        layout: Vec<Layout>,
        #[command(flatten)]
        on: TimedStepArgs,
        #[command(flatten)]
        file: PictureFile,
    },
}

/// File of the picture.
#[derive(Args, Debug)]
struct PictureFile {
    /// Write the diagram to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
}

/// Model and sizes of a step.
#[derive(Args, Debug)]
struct StepArgs {
    /// A config.json [default: the embedded model's]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    number: DtypeArgs,
    /// Tokens of a sequence
    #[arg(long, default_value_t = SEQ)]
    seq: usize,
    /// Sequences of a step
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// Microbatches of a step [default: 2 for each stage of a pipeline]
    #[arg(long)]
    microbatches: Option<usize>,
}

/// A step on a machine.
#[derive(Args, Debug)]
struct TimedStepArgs {
    /// a100, a100-2022, h100, h200, or a file of JSON
    #[arg(long, value_name = "NAME|FILE", default_value = "h100")]
    machine: String,
    #[command(flatten)]
    step: StepArgs,
}

impl StepArgs {
    /// The price of a step under a layout.
    fn run(&self, layout: Layout) -> Result<PriceRun> {
        let counted =
            microbatches(&layout, self.microbatches)?.unwrap_or_else(|| layout.usual_microbatches());
        let settings = Settings {
            steps: 1,
            seq: self.seq,
            batch_size: self.batch_size,
            microbatches: counted,
            number: self.number.name,
            device: self.number.device,
            ..Settings::default()
        };
        let config = config(self.config.as_deref())?;
        settings.check(config.positions)?;
        offloads_on(settings.device, &[layout])?;
        Ok(PriceRun { design: settings.shape(&config).into(), experts: None, settings, layout })
    }
}

/// A picture that was drawn: its file.
#[derive(Serialize)]
struct DrawnPicture {
    picture: String,
}

records!(DrawnPicture: "picture");

impl Run for DrawArgs {
    fn run(self, views: &Views) -> Result<bool> {
        let (svg, file) = match self.picture {
            LayoutPicture::Ranks { layout, node, file } => (ranks(&layout, node)?, file),
            LayoutPicture::Matrices { ranks, file } => (pair(ranks)?, file),
            LayoutPicture::Block { layout, file } => (block(&layout)?, file),
            LayoutPicture::Memory { layout, step, file } => (memory(&layout, &step)?, file),
            LayoutPicture::Time { layout, on, file } => (track(layout, &on)?, file),
            LayoutPicture::Roofline { layout, on, file } => (roofs(&layout, &on)?, file),
        };
        files::replace_file(&file.svg, svg.as_bytes())?;
        let path = file.svg.display().to_string();
        views.picture("The picture.", &svg)?;
        views.say(&format!("the picture is in {path}"))?;
        views.record(&DrawnPicture { picture: path })?;
        Ok(true)
    }
}

fn ranks(layout: &Layout, node: usize) -> Result<String> {
    if node == 0 || layout.ranks() > node && !layout.ranks().is_multiple_of(node) {
        bail!("--node is {node}; it must be 1 or more, and divide the {} ranks of {layout}", layout.ranks());
    }
    let Some(svg) = mesh::on_nodes(layout, node.min(layout.ranks())) else {
        bail!("{layout} has {} ranks; a picture has 256 at most", layout.ranks());
    };
    Ok(svg)
}

fn pair(ranks: usize) -> Result<String> {
    if !(2..=4).contains(&ranks) {
        bail!("--ranks is {ranks}; the picture has 2 to 4");
    }
    Ok(matrices::draw(ranks))
}

fn block(layout: &Layout) -> Result<String> {
    let tp = layout.size(Axis::Tp);
    let name = layout.to_string();
    let sp = name == format!("tp={tp},sp");
    if !sp && name != format!("tp={tp}") && *layout != Layout::UNSPLIT {
        bail!("{layout} is more than tensor ranks; the picture is of tp=N or tp=N,sp");
    }
    Ok(gates::draw(&format!("A block under {layout}"), &gates::halves(tp, sp)))
}

fn memory(layouts: &[Layout], step: &StepArgs) -> Result<String> {
    let bar = |layout: &Layout| {
        let prices = step.run(*layout)?.prices()?;
        let fullest = prices.into_iter().max_by_key(|price| price.peak_bytes["total"]).expect("a rank");
        let part = |name| (name, fullest.peak_bytes.get(name).copied().unwrap_or(0));
        let parts = ["weights", "gradients", "optimizer", "activations", "buffers"].map(part).to_vec();
        Ok(MemoryBar { name: layout.to_string(), total: fullest.peak_bytes["total"], parts })
    };
    let bars = layouts.iter().map(bar).collect::<Result<Vec<_>>>()?;
    let sequences = format!("{} sequences of {} tokens", step.batch_size, step.seq);
    Ok(bars::draw(&format!("Memory of the fullest rank in {}, {sequences}", step.number.name), &bars))
}

fn track(layout: Layout, TimedStepArgs { machine, step }: &TimedStepArgs) -> Result<String> {
    if layout.size(Axis::Pp) > 1 {
        bail!("{layout} has stages, whose times `schedule` draws; this picture is of a rank without stages");
    }
    let run = step.run(layout)?;
    let spans = run.spans(&Arc::new(Machine::named(machine)?))?;
    let sum = |is: &dyn Fn(&RankSpan) -> bool| {
        let taken = spans.iter().filter(|span| is(span)).map(|span| span.at[1] - span.at[0]);
        plan::clock::time(taken.fold(0.0, |sum, seconds| sum + seconds))
    };
    let is_call = |span: &RankSpan| matches!(span.work, SpanWork::Call { .. });
    let kernels = format!("kernels {}", sum(&|span| !is_call(span)));
    let lines = if spans.iter().any(is_call) {
        format!("{kernels}, calls {}, of which a part runs beside kernels", sum(&is_call))
    } else {
        kernels
    };
    let title =
        if layout.ranks() == 1 { "A step of one rank".into() } else { format!("Rank 0 under {layout}") };
    Ok(tracks::draw(&title, &[lines], &spans))
}

fn roofs(layouts: &[Layout], TimedStepArgs { machine, step }: &TimedStepArgs) -> Result<String> {
    let machine = Arc::new(Machine::named(machine)?);
    let dtype = step.number.name.name();
    let fastest = |rates: &[[f64; 2]]| rates.iter().map(|[_, rate]| *rate).reduce(f64::max);
    let memory = machine.kernels.get("*").and_then(|rates| fastest(&rates.bytes)).unwrap_or(0.0);
    let names = [format!("product/{dtype}"), "product".into()];
    let products = names.iter().find_map(|name| fastest(&machine.kernels.get(name)?.operations));
    let mut roofs = vec![Roof { name: "memory".into(), bandwidth: memory }];
    let mut drawn = Vec::new(); // the roof of each level: one as fast as the level before is the same
    for level in &machine.levels {
        let bandwidth = level.bandwidth.value;
        if roofs.last().is_some_and(|before| bandwidth < before.bandwidth) {
            roofs.push(Roof { name: format!("links, {}", level.name), bandwidth });
        }
        drawn.push(roofs.len() - 1);
    }
    let mut points = Vec::new();
    for layout in layouts {
        let run = step.run(*layout)?;
        let flops = run.prices()?[0].flops as f64;
        let mut sent: BTreeMap<String, (usize, usize)> = BTreeMap::new(); // bytes and level, by axes
        for span in run.spans(&machine)? {
            if let SpanWork::Call { axes, bytes, level, .. } = span.work {
                let sum = sent.entry(axes.to_string()).or_default();
                *sum = (sum.0 + bytes, sum.1.max(level));
            }
        }
        for (axes, (bytes, level)) in sent.into_iter().filter(|(_, (bytes, _))| *bytes > 0) {
            let intensity = flops / bytes as f64;
            points.push(AxisPoint {
                name: format!("{axes} of {layout}: {intensity:.0}"),
                intensity,
                roof: drawn[level],
            });
        }
    }
    let title =
        format!("Rooflines of {}", machine.about.split([',', ':', ';']).next().unwrap_or("a machine"));
    Ok(roofline::draw(&title, products.unwrap_or_else(|| machine.peak(dtype)), &roofs, &points))
}
