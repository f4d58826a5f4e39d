//! One training step of a small model, with attention and loss over two ranks, compared with the oracle at a
//! small prime.
use kernels::{Heads, Kernels};
use layers::Shape;
use ops::{RandomValues, SGD};
use parallel::{Batch, Layout, Sequence, Trainer, dump};
use prove::oracle;
use reference::{Degree, Weights};
use tensor::{Cpu, Field, Host, Key, Scalar, mix};

const SHAPE: Shape = Shape {
    width: 4,
    heads: Heads::new(2, 2, 2),
    vocabulary: 4, // two ids on each rank
    ..Shape::LLAMA
};
const CLIP: Option<f64> = Some(0.5);
const RATE: f64 = 1.0;

/// Number of runs with each outcome.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) equal: usize,
    pub(crate) refused: usize,
    /// No verdict: the program or the oracle divided by zero.
    pub(crate) nothing: usize,
}

/// Two sequences, each a microbatch.
fn batch() -> Batch {
    let sequence = |ids: &[u32], targets: &[u32]| Sequence::new(ids.to_vec(), targets.to_vec());
    let sequences = vec![sequence(&[0, 3, 1], &[3, 1, 2]), sequence(&[2, 1], &[1, 1])];
    Batch::new(sequences, 2).expect("two microbatches")
}

/// Loss, norm² and new weights that the oracle computes from these weights.
fn unsplit<S: Scalar>(weights: Weights<S>) -> ([S; 2], Weights<S>) {
    let mut trainer = reference::Trainer::new(reference::Model::from(SHAPE), SGD, CLIP, weights);
    let step = trainer.step(&oracle::microbatches(&batch()), RATE);
    let loss = step.losses.iter().fold(S::ZERO, |sum, &loss| sum + loss);
    ([loss, step.norm2], trainer.weights().clone())
}

/// Σ of the degrees of all values that the oracle inverts; divided by p, it bounds the probability of a zero.
pub(crate) fn inverted() -> f64 {
    let _ = Degree::take_tally();
    let numbers = |n: usize| (0..n).map(|_| Degree::variable()).collect();
    let shapes = reference::Model::from(SHAPE).shapes();
    let _ = unsplit(shapes.into_iter().map(|(name, [r, c])| (name, numbers(r * c))).collect());
    Degree::take_tally().inverted
}

/// Runs the step under `tp=2` in the field of 2^BITS − 1, under this number of keys.
pub(crate) fn ends<const BITS: u32>(keys: u64) -> Ends
where
    Cpu<Field<BITS>>: Kernels<Place = Host, Elem = Field<BITS>>,
{
    let layout: Layout = "tp=2".parse().expect("a layout");
    let mut ends = Ends::default();
    for n in 0..keys {
        let _key = Key(mix(n)).enter();
        let ranks = layout.world().expect("two ranks").run(|device: Cpu<Field<BITS>>, mesh| {
            let at = layout.place(&device, &mesh, &RandomValues { seed: 0 });
            let mut trainer = Trainer::new(&at, SHAPE, (SGD, CLIP))?;
            let start = dump::weights(trainer.model().params(), &mesh)?;
            let report = trainer.step(&batch(), RATE)?;
            let new: Weights<_> = dump::weights(trainer.model().params(), &mesh)?.into_iter().collect();
            let seen = [&report.loss, report.norm2.as_ref().expect("one update a step")]
                .map(|x| x.read().expect("the host has values")[0]);
            Ok::<_, parallel::Error>((seen, new) == unsplit(start.into_iter().collect()))
        });
        match ranks {
            Ok(equal) if equal == [true; 2] => ends.equal += 1,
            Ok(_) => ends.refused += 1,
            Err(why) if why.to_string().contains("division by zero in the field") => ends.nothing += 1,
            Err(why) => panic!("{why}"),
        }
    }
    ends
}
