//! Compares the losses of split f32 runs with those of the unsplit run.
//!
//! Trains three small models, which together use all features of model families, for some steps under several
//! layouts. Prints every loss, and at last the largest relative difference. Rounding alone causes a
//! difference; so does a mistake that an f32 loss can show.

use kernels::{Activation, Heads};
use layers::{
    Balance, Biases, Blocks, Experts, FeedForward, NormKind, Objective, Pattern, Positions, Rates, Scoring,
    Shape, SharedExpert, Window,
};
use ops::{ADAMW, RandomValues};
use parallel::{Batch, Layout, Sequence, Trainer};
use tensor::{Cpu, IGNORED, Rope, Scaling, mix};

const STEPS: usize = 6;
const LAYOUTS: [&str; 8] =
    ["tp=2", "tp=4", "tp=2,sp", "tp=4,sp", "dp=2", "tp=2,dp=2", "pp=2:zb-h1", "pp=2:seq1f1b"];

const SHAPE: Shape = Shape { width: 12, blocks: 2, heads: Heads::new(8, 8, 4), hidden: 16, ..Shape::LLAMA };

/// Learned positions, biases, a tied head, and a vocabulary that no number of ranks divides.
const GPT2: Shape = Shape {
    norm: NormKind::Layer,
    positions: Positions::Learned(8),
    feed_forward: FeedForward::Plain(Activation::GeluTanh),
    bias: Biases { qkv: true, out: true, mlp: true },
    dropout: Rates { embedding: 0.1, attention: 0.1, residual: 0.1 },
    loss: Objective { smoothing: 0.1, z: 1e-3 },
    vocabulary: 29,
    tied: true,
    ..SHAPE
};

/// Rotary queries and keys, normalised before; few KV heads, with biases, and a window.
const QWEN: Shape = Shape {
    positions: Positions::Rotary(Rope { base: 100.0, scaling: Scaling::None }),
    heads: Heads::new(8, 2, 4),
    bias: Biases { qkv: true, out: false, mlp: false },
    head_norm: true,
    window: Some(Window { size: 2, sinks: 0 }),
    pattern: Pattern { whole: Blocks::FIRST, ..Pattern::NONE },
    vocabulary: 31,
    ..SHAPE
};

/// Experts that drop tokens, with a selection bias that moves, every balance loss, and a shared expert.
const MOE: Shape = Shape {
    experts: Some(Experts {
        count: 4,
        chosen: 2,
        hidden: 8,
        scoring: Scoring::Sigmoid,
        bias: Some(0.01),
        capacity: Some(1.25),
        shared: Some(SharedExpert { hidden: 8, gated: true }),
        balance: Balance { microbatch: 0.1, sequence: 0.1, pooled: 0.0, z: 0.01 },
        ..Experts::MIXTRAL
    }),
    vocabulary: 23,
    ..SHAPE
};
const OF_EXPERTS: [&str; 4] = ["ep=2", "tp=2,ep=2", "dp=2,ep=2:all-gather", "tp=2,sp,dp=2,ep=2,etp=2"];

/// Five sequences of one to six tokens in two microbatches; one packs two documents, some targets are
/// ignored.
fn batch(vocabulary: usize, step: usize) -> parallel::Result<Batch> {
    let id = |salt: usize, i: usize| (mix((salt * 64 + i) as u64) % vocabulary as u64) as u32;
    let document = |salt: usize, len: usize| {
        let ids: Vec<u32> = (0..len).map(|i| id(salt, i)).collect();
        let targets = (1..=len).map(|i| if i % 4 == 3 { IGNORED } else { id(salt, i) }).collect();
        (ids, targets)
    };
    let sequence = |n: usize| {
        let salt = step % 2 * 16 + n;
        let documents = [document(salt, 1 + n), document(salt + 8, 3)];
        Sequence::packed(&documents[..=usize::from(n == 3)])
    };
    Batch::new((0..5).map(sequence).collect(), 2)
}

/// Returns each step's loss, on the rank that is farthest from `beside`.
fn losses(shape: &Shape, layout: &Layout, beside: &[f64]) -> Result<Vec<f64>, parallel::Error> {
    let ranks = layout.world()?.run(|device: Cpu<f32>, mesh| {
        let at = layout.place(&device, &mesh, &RandomValues { seed: 5 });
        let mut trainer = Trainer::new(&at, shape, (ADAMW, Some(0.5)))?.seeded(9);
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let loss = trainer.step(&batch(shape.vocabulary, step)?, 1e-2)?.loss;
            losses.push(f64::from(loss.read().expect("the host has values")[0]));
        }
        Ok::<_, parallel::Error>(losses)
    })?;
    let farthest = |step: usize| {
        let far = |loss: &f64| (loss - beside.get(step).unwrap_or(loss)).abs();
        ranks.iter().map(|losses| losses[step]).max_by(|a, b| far(a).total_cmp(&far(b)))
    };
    Ok((0..STEPS).filter_map(farthest).collect())
}

fn main() -> Result<(), parallel::Error> {
    let mut largest = (0.0, String::new());
    for (name, shape, layouts) in
        [("gpt2", &GPT2, &LAYOUTS[..]), ("qwen", &QWEN, &LAYOUTS), ("moe", &MOE, &OF_EXPERTS)]
    {
        let unsplit = losses(shape, &Layout::UNSPLIT, &[])?;
        println!("{name:6} {:12} {unsplit:.7?}", "none");
        for layout in layouts {
            let split = losses(shape, &layout.parse()?, &unsplit)?;
            println!("{name:6} {layout:24} {split:.7?}");
            for (step, (split, unsplit)) in split.iter().zip(&unsplit).enumerate() {
                let difference = ((split - unsplit) / unsplit).abs();
                if difference > largest.0 || difference.is_nan() {
                    largest = (difference, format!(" at step {} under {layout}", step + 1));
                }
            }
        }
    }
    println!("largest: {:e}{}", largest.0, largest.1);
    Ok(())
}
