//! Predicted and published times of training steps: `cargo run --release -p plan --example published`.
use kernels::Heads;
use layers::{Design, Rates, Shape};
use ops::ADAMW;
use parallel::Layout;
use plan::Machine;
use plan::step::{KnownPrices, StepTime, TrainingJob, model_flops};
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
        let shape = gpt([width, heads, blocks]);
        for (row, recompute) in ["recompute", "sp,recompute:selective"].into_iter().enumerate() {
            let pipeline = match (stages, chunks) {
                (1, _) => String::new(),
                (_, 1) => format!(",pp={stages}"),
                _ => format!(",pp={stages}:interleaved/{chunks}"),
            };
            let layout: Layout = format!("tp=8{pipeline},{recompute}").parse()?;
            let start = std::time::Instant::now();
            let (_, step) = predicted(&layout, (shape, 2048, batch_size), batch_size / each, &machine)?;
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
    println!("mean error {:.2}%, largest {:.2}% (Calculon: 3.65%, 8.87%)\n", 100.0 * mean, 100.0 * largest);
    reported()
}

/// Llama 3 405B (Llama Team, arXiv:2407.21783, table 4): ranks of data and context parallelism, tokens of
/// a sequence, sequences of a data rank, and teraflops of a card.
const LLAMA: [([usize; 4], f64); 3] =
    [([64, 1, 8192, 32], 430.0), ([128, 1, 8192, 16], 400.0), ([8, 16, 131_072, 16], 380.0)];

/// Steps of which only the speed was published.
fn reported() -> parallel::Result<()> {
    println!("model  layout  reported  predicted, in teraflops of a card  error");
    let shape = gpt([25600, 160, 128]);
    // Narayanan et al., arXiv:2104.04473, table 1; operations with those of recomputation, by its formula
    let [b, s, l, h, v] = [3072.0, 2048.0, 128.0, 25600.0, 51200.0];
    let flops = 96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    row(
        "1T",
        "tp=8,dp=6,pp=64:interleaved/2,recompute",
        (shape, 2048, 3072, 512),
        ("a100-2022", 163.0, Some(flops)),
    )?;
    let shape = Shape {
        width: 16384,
        blocks: 126,
        heads: Heads::new(128, 8, 128),
        hidden: 53248,
        vocabulary: 128_256,
        ..Shape::LLAMA
    };
    for ([dp, cp, seq, each], speed) in LLAMA {
        let context = if cp > 1 { format!("cp={cp}:gathered,") } else { String::new() };
        let layout = format!("tp=8,sp,{context}dp={dp}:zero1,pp=16:interleaved/4");
        row("405B", &layout, (shape, seq, each * dp, each), ("h100", speed, None))?;
    }
    Ok(())
}

fn row(
    name: &str,
    layout: &str,
    (shape, seq, batch_size, microbatches): (Shape, usize, usize, usize),
    (machine, speed, flops): (&str, f64, Option<f64>),
) -> parallel::Result<()> {
    let (machine, parsed) = (Arc::new(Machine::named(machine)?), layout.parse::<Layout>()?);
    let (job, step) = predicted(&parsed, (shape, seq, batch_size), microbatches, &machine)?;
    let flops = flops.map_or_else(|| model_flops::<Cpu<Bf16>>(&job), Ok)?;
    let predicted = flops / step.seconds / parsed.ranks() as f64 / 1e12;
    let error = 100.0 * (predicted / speed - 1.0);
    println!(
        "{name:>5}  {layout}  {speed:.0}  {predicted:.0}  {error:+.1}%  [{:.1} GB]",
        step.peak as f64 / 1e9
    );
    Ok(())
}

/// A GPT of Megatron-LM of this width, number of heads and of blocks.
fn gpt([width, heads, blocks]: [usize; 3]) -> Shape {
    Shape {
        width,
        blocks,
        heads: Heads::new(heads, heads, width / heads),
        hidden: 4 * width,
        vocabulary: 51200,
        dropout: Rates { embedding: 0.1, attention: 0.1, residual: 0.1 },
        positions: layers::Positions::Learned(2048),
        ..Shape::GPT2
    }
}

fn predicted(
    layout: &Layout,
    (shape, seq, batch_size): (Shape, usize, usize),
    microbatches: usize,
    machine: &Arc<Machine>,
) -> parallel::Result<(TrainingJob, StepTime)> {
    let optimizer = (ADAMW, Some(1.0).into());
    let job = TrainingJob { design: Design::Transformer(shape), optimizer, seq, batch_size, dtype: "bf16" };
    let at = (microbatches, usize::MAX);
    let step = KnownPrices::default().step::<Cpu<Bf16>>(layout, &job, at, machine)?;
    Ok((job, step))
}
