//! Predicted and measured times of training steps on this machine:
//! `cargo run --release -p bench --example measured [FILE]`, with a file of `equipart machine --measure`.
use bench::measure::{self, MeasureScale};
use kernels::Heads;
use layers::{Design, EvenValues, OptimizerKind, Shape};
use parallel::{Batch, BuildContext, Layout, Network, Result, Trainer, session};
use plan::Machine;
use plan::step::{KnownPrices, TrainingJob};
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    let heads = Heads { queries: width / 32, keys: width / 32, dim: 32 };
    Shape { width, blocks: 4, heads, hidden: 4 * width, vocabulary: 8 * width, ..Shape::LLAMA }
}

/// Seconds that this thread has been on a core.
fn on_core() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(0.0, |ns| ns * 1e-9)
}

/// Waits until other processes leave the cores alone, but no longer than this.
fn quiet(longest: Duration) {
    let busy = || -> f64 {
        let told = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks = told.lines().next().unwrap_or_default().split_whitespace().skip(1).take(3);
        ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
    };
    let start = Instant::now();
    while start.elapsed() < longest {
        let before = busy();
        std::thread::sleep(Duration::from_millis(150));
        if busy() - before <= 2.0 {
            return;
        }
    }
}

/// Best seconds of a few steps after one that allocates; and seconds for which its ranks were on a core,
/// divided by the cores.
fn steps(layout: &Layout, job: &TrainingJob, microbatches: usize, steps: usize) -> Result<[f64; 2]> {
    let batch = Batch::new(vec![job.sequence(); job.batch_size], microbatches)?;
    let world = Network::default().world(layout, "a step")?;
    let ranks = session::run((layout, &world), &EvenValues, |at: BuildContext<Cpu<f32>>| {
        let mut trainer = Trainer::new(&at, job.design.clone(), job.optimizer)?;
        trainer.step(&batch, 1e-4)?;
        let one = |_| {
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

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let turns: usize = arguments.get(1).map_or(3, |n| n.parse().expect("a number of turns"));
    let machine = match arguments.first().filter(|name| *name != "measure") {
        Some(file) => Machine::named(file)?,
        None => measure::machine(&MeasureScale::FULL, &|what| eprintln!("{what}"))?,
    };
    std::fs::write("/tmp/w/meas.json", serde_json::to_string_pretty(&machine).unwrap()).unwrap();
    let machine = Arc::new(machine);
    let wait = Duration::from_secs(arguments.get(2).map_or(0, |n| n.parse().expect("seconds")));
    let mut rows: Vec<(String, f64, f64, String, f64)> = Vec::new();
    for width in [128, 256] {
        let job = TrainingJob {
            design: Design::Transformer(shape(width)),
            optimizer: (OptimizerKind::ADAMW, Some(1.0)),
            seq: 64,
            batch_size: 8,
            dtype: "f32",
        };
        for layout in LAYOUTS {
            let at: Layout = layout.parse()?;
            let microbatches = at.usual_microbatches().min(8 / at.tokens().data_ranks());
            let known = &mut KnownPrices::default();
            let priced = known.step::<Cpu<f32>>(&at, &job, (microbatches, usize::MAX), &machine);
            let Ok(step) = priced.inspect_err(|why| eprintln!("{layout}: {}", why.why)) else { continue };
            let parts: Vec<_> =
                step.parts.iter().chain([&step.bubble]).map(|s| format!("{:.1}", s * 1e3)).collect();
            rows.push((
                format!("{width} {layout}"),
                f64::INFINITY,
                step.seconds,
                parts.join(" "),
                f64::INFINITY,
            ));
        }
    }
    // layouts take turns, so that a slow minute of the machine affects all of them
    for _ in 0..turns {
        for (name, best, .., worked) in &mut rows {
            let (width, layout) = name.split_once(' ').expect("two words");
            let job = TrainingJob {
                design: Design::Transformer(shape(width.parse().expect("a width"))),
                optimizer: (OptimizerKind::ADAMW, Some(1.0)),
                seq: 64,
                batch_size: 8,
                dtype: "f32",
            };
            let at: Layout = layout.parse()?;
            let microbatches = at.usual_microbatches().min(8 / at.tokens().data_ranks());
            quiet(wait);
            let [took, on_cores] = steps(&at, &job, microbatches, 4)?;
            (*best, *worked) = (best.min(took), worked.min(on_cores));
        }
    }
    println!(
        "layout                        measured  (on cores)  predicted  error   ms of products attention kernels tp cp ep dp pp bubble"
    );
    for (name, best, predicted, parts, worked) in &rows {
        println!(
            "{name:28} {:8.2}ms ({:8.2}) {:8.2}ms {:+6.1}% ({:+6.1}%)  {parts}",
            best * 1e3,
            worked * 1e3,
            predicted * 1e3,
            100.0 * (predicted / best - 1.0),
            100.0 * (predicted / worked - 1.0)
        );
    }
    let mut errors: Vec<_> = rows.iter().map(|row| (row.2 / row.1 - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let ranked = |of: fn(&(String, f64, f64, String, f64)) -> f64| {
        let place = |row| rows.iter().filter(|other| of(other) < of(row)).count() as f64;
        rows.iter().map(place).collect::<Vec<_>>()
    };
    let (n, seen, told) = (rows.len() as f64, ranked(|row| row.1), ranked(|row| row.2));
    let apart: f64 = seen.iter().zip(&told).map(|(a, b)| (a - b).powi(2)).sum();
    println!(
        "{n} steps: median error {:.1} %, largest {:.1} %, Spearman's correlation {:.3}",
        100.0 * errors[errors.len() / 2],
        100.0 * errors[errors.len() - 1],
        1.0 - 6.0 * apart / (n * (n * n - 1.0))
    );
    Ok(())
}
