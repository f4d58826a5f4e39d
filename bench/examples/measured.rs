//! Predicted and measured times of training steps on this machine:
//! `cargo run --release -p bench --example measured FILE [TURNS [MILLISECONDS [TOKENS]]]`, with a file of
//! `equipart machine --measure --out FILE`. On a busy machine, let threads rest for some milliseconds before
//! each step.
use bench::measure::{self, MeasureScale};
use kernels::Heads;
use layers::{Design, Shape};
use ops::{ADAMW, EvenValues};
use parallel::{Batch, BuildContext, Layout, Network, Result, Trainer, session};
use plan::Machine;
use plan::step::{KnownPrices, StepTime, TrainingJob};
use std::sync::Arc;
use std::time::Duration;
use tensor::{Cpu, Phase};

const LAYOUTS: [&str; 28] = [
    "none",
    "recompute",
    "tp=2",
    "tp=2,sp",
    "tp=2,sp,recompute",
    "dp=2",
    "dp=2:zero1",
    "dp=2:zero2",
    "dp=2:zero3",
    "cp=2",
    "cp=2:striped:ulysses",
    "pp=2",
    "pp=2:gpipe",
    "pp=2:zb-h1",
    "pp=2:interleaved/2",
    "pp=2:naive",
    "tp=2,dp=2",
    "tp=2,sp,dp=2:zero3",
    "tp=2,pp=2",
    "pp=2,dp=2",
    "pp=2:zb-h1,dp=2:zero1",
    "cp=2,dp=2",
    "cp=2,tp=2",
    "tp=4",
    "tp=4,sp",
    "dp=4",
    "dp=4:zero3",
    "pp=4",
];

fn shape(width: usize) -> Shape {
    let heads = Heads::new(width / 16, width / 16, 16);
    Shape { width, blocks: 4, heads, hidden: 4 * width, vocabulary: 8 * width, ..Shape::LLAMA }
}

/// Seconds that this thread has been on a core.
fn on_core() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(0.0, |ns| ns * 1e-9)
}

/// Best seconds of a few steps after one that allocates; and seconds for which its ranks were on a core,
/// divided by the cores.
fn steps(
    layout: &Layout,
    job: &TrainingJob,
    microbatches: usize,
    (steps, rest): (usize, Duration),
) -> Result<[f64; 2]> {
    let batch = Batch::new(vec![job.sequence(); job.batch_size], microbatches)?;
    let world = Network::default().world(layout, "a step")?;
    let ranks = session::run((layout, &world), &EvenValues, |at: BuildContext<Cpu<f32>>| {
        let mut trainer = Trainer::new(&at, job.design.clone(), job.optimizer)?;
        trainer.step(&batch, 1e-4)?;
        let one = |_| {
            std::thread::sleep(rest); // a thread that has rested is less often sent off its core
            let before = on_core();
            let (_, took) = parallel::measure::work(&at, Phase::Step, || trainer.step(&batch, 1e-4))?;
            Ok([took.seconds, on_core() - before])
        };
        (0..steps).map(one).collect::<Result<Vec<_>>>()
    })?;
    let last = |step: usize| ranks.iter().map(|rank| rank[step][0]).fold(0.0, f64::max);
    let cores = layout.ranks().min(std::thread::available_parallelism().map_or(1, usize::from));
    let worked = |step: usize| ranks.iter().map(|rank| rank[step][1]).sum::<f64>() / cores as f64;
    let best = |of: &dyn Fn(usize) -> f64| (0..steps).map(of).fold(f64::INFINITY, f64::min);
    Ok([best(&last), best(&worked)])
}

/// A step, predicted and measured.
struct Row {
    name: String,
    at: (Layout, TrainingJob, usize),
    step: StepTime,
    best: [f64; 2],
}

impl Row {
    fn new(width: usize, seq: usize, layout: &str, machine: &Arc<Machine>) -> Result<Self> {
        let at: Layout = layout.parse()?;
        let microbatches = at.usual_microbatches().min(8 / at.tokens().data_ranks());
        let design = Design::Transformer(shape(width));
        let optimizer = (ADAMW, Some(1.0).into());
        let job = TrainingJob { design, optimizer, seq, batch_size: 8, dtype: "f32" };
        let step = KnownPrices::default().step::<Cpu<f32>>(&at, &job, (microbatches, usize::MAX), machine)?;
        Ok(Self {
            name: format!("{width} {layout}"),
            at: (at, job, microbatches),
            step,
            best: [f64::INFINITY; 2],
        })
    }
}

/// Rank of each number among all.
fn places(numbers: &[f64]) -> Vec<f64> {
    numbers.iter().map(|one| numbers.iter().filter(|other| *other < one).count() as f64).collect()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| arguments.get(at).map_or(usual, |n| n.parse().expect("a number"));
    let (turns, rest, seq) = (number(1, 3), Duration::from_millis(number(2, 0)), number(3, 64) as usize);
    let machine = Arc::new(match arguments.first() {
        Some(file) => Machine::named(file)?,
        None => measure::machine(&MeasureScale::FULL, &|what| eprintln!("{what}"))?,
    });
    let all = [64, 128].into_iter().flat_map(|width| LAYOUTS.map(|layout| (width, layout)));
    let rows = all.map(|(width, layout)| Row::new(width, seq, layout, &machine));
    let mut rows = rows.collect::<Result<Vec<_>>>()?;
    // layouts take turns, so that a slow minute of the machine affects all of them
    for _ in 0..turns {
        for Row { at: (layout, job, microbatches), best, .. } in &mut rows {
            let took = steps(layout, job, *microbatches, (8, rest))?;
            best.iter_mut().zip(took).for_each(|(best, one)| *best = best.min(one));
        }
    }
    println!(
        "layout                        measured  on cores  predicted: error   ms of products attention kernels tp cp ep dp pp bubble"
    );
    for Row { name, step, best: [best, worked], .. } in &rows {
        let parts = step.parts.iter().chain([&step.bubble]).map(|s| format!("{:.1}", s * 1e3));
        println!(
            "{name:28} {:8.2}ms {:8.2}ms {:8.2}ms: {:+6.1}%  {}",
            best * 1e3,
            worked * 1e3,
            step.seconds * 1e3,
            100.0 * (step.seconds / best - 1.0),
            parts.collect::<Vec<_>>().join(" ")
        );
    }
    let (seen, told): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.best[0], row.step.seconds)).unzip();
    let mut errors: Vec<_> = seen.iter().zip(&told).map(|(seen, told)| (told / seen - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let apart: f64 = places(&seen).iter().zip(places(&told)).map(|(a, b)| (a - b).powi(2)).sum();
    let n = rows.len() as f64;
    println!(
        "{n} steps: median error {:.1} %, largest {:.1} %, Spearman's correlation {:.3}",
        100.0 * errors[errors.len() / 2],
        100.0 * errors[errors.len() - 1],
        1.0 - 6.0 * apart / (n * (n * n - 1.0))
    );
    Ok(())
}
