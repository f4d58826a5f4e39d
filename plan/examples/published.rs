//! Predicted and published times of training steps: `cargo run --release -p plan --example published`.
use kernels::Heads;
use layers::{Design, OptimizerKind, Rates, Shape};
use parallel::Layout;
use plan::Machine;
use plan::step::{KnownPrices, TrainingJob};
use std::sync::Arc;
use tensor::{Bf16, Cpu};

/// Korthikanti et al., arXiv:2205.05198, tables 3 and 5: name, width, heads, blocks, stages, chunks,
/// sequences of a step and of a microbatch, and seconds with full recomputation, and with sequence
/// parallelism and selective recomputation. The last two columns are Calculon's (SC'23, table 2).
const STEPS: [(&str, [usize; 7], [f64; 4]); 4] = [
    ("22B", [6144, 64, 48, 1, 1, 4, 4], [1.42, 1.10, 1.40, 1.14]),
    ("175B", [12288, 96, 96, 8, 3, 64, 1], [18.13, 13.75, 18.03, 13.64]),
    ("530B", [20480, 128, 105, 35, 3, 280, 1], [49.05, 37.83, 49.89, 34.47]),
    ("1T", [25600, 160, 128, 64, 1, 512, 1], [94.42, 71.49, 90.08, 66.04]),
];

fn main() -> parallel::Result<()> {
    let name = std::env::args().nth(1).unwrap_or("a100-2022".into());
    let machine = Arc::new(Machine::named(&name)?);
    let mut errors = Vec::new();
    println!(
        "model  recompute  measured  predicted  error  Calculon  products attention kernels tp pp bubble"
    );
    for (name, [width, heads, blocks, stages, chunks, batch_size, each], seconds) in STEPS {
        let drop = Rates { embedding: 0.1, attention: 0.1, residual: 0.1 };
        let shape = Shape {
            width,
            blocks,
            heads: Heads { queries: heads, keys: heads, dim: width / heads },
            hidden: 4 * width,
            vocabulary: 51200,
            dropout: drop,
            positions: layers::Positions::Learned(2048),
            ..Shape::GPT2
        };
        for (row, recompute) in ["recompute", "sp,recompute:selective"].into_iter().enumerate() {
            let pipeline = match (stages, chunks) {
                (1, _) => String::new(),
                (_, 1) => format!(",pp={stages}"),
                _ => format!(",pp={stages}:interleaved/{chunks}"),
            };
            let layout: Layout = format!("tp=8{pipeline},{recompute}").parse()?;
            let job = TrainingJob {
                design: Design::Transformer(shape),
                optimizer: (OptimizerKind::ADAMW, Some(1.0)),
                seq: 2048,
                batch_size,
                dtype: "bf16",
            };
            let start = std::time::Instant::now();
            let step = KnownPrices::default().step::<Cpu<Bf16>>(
                &layout,
                &job,
                (batch_size / each, usize::MAX),
                &machine,
            )?;
            let error = step.seconds / seconds[row] - 1.0;
            errors.push(error.abs());
            let p = step.parts;
            println!(
                "{name:>5}  {:9}  {:8.2}  {:9.2}  {:+.1}%  {:+.1}%   {:.2} {:.2} {:.2} {:.2} {:.2} {:.2}  [{:.0} ms, {:.1} GB]",
                ["full", "selective"][row],
                seconds[row],
                step.seconds,
                100.0 * error,
                100.0 * (seconds[row + 2] / seconds[row] - 1.0),
                p[0],
                p[1],
                p[2],
                p[3],
                p[7],
                step.bubble,
                start.elapsed().as_secs_f64() * 1e3,
                step.peak as f64 / 1e9
            );
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let largest = errors.iter().fold(0.0, |a: f64, b| a.max(*b));
    println!("mean error {:.2}%, largest {:.2}% (Calculon: 3.65%, 8.87%)", 100.0 * mean, 100.0 * largest);
    Ok(())
}
