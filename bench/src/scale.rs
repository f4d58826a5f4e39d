//! The sizes that are measured.
use kernels::Heads;
use layers::Shape;

/// Shape L: Llama-like, 41.95 million parameters.
pub const L: Shape = Shape {
    width: 512,
    blocks: 8,
    heads: Heads { queries: 8, keys: 8, dim: 64 },
    hidden: 2048,
    vocabulary: 8192,
    ..Shape::LLAMA
};

/// A shape of 106,816 parameters, for the proof, and to see that a card runs it.
pub const SMALL: Shape = Shape {
    width: 64,
    blocks: 2,
    heads: Heads { queries: 4, keys: 2, dim: 16 },
    hidden: 128,
    vocabulary: 256,
    ..Shape::LLAMA
};

/// How large everything is.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// The model of forward passes, training steps and decoding.
    pub shape: Shape,
    /// Sequences of a batch, and tokens of each.
    pub batch: [usize; 2],
    /// Microbatches of a pipeline's step, one sequence each, and tokens of each.
    pub pipeline: [usize; 2],
    /// Tokens of the prompt, and how many are added.
    pub decode: [usize; 2],
    /// The model whose proof is timed.
    pub proven: Shape,
    /// By how much products, all-reduces and probes are smaller than their names say.
    pub smaller: usize,
    /// How often a model's work is timed in a turn, after one that is not.
    pub tries: usize,
    /// How long a turn of a product tries, in seconds.
    pub seconds: f64,
}

impl Scale {
    /// What the figures' names say.
    pub(super) const FULL: Self = Self {
        shape: L,
        batch: [4, 256],
        pipeline: [8, 128],
        decode: [32, 64],
        proven: SMALL,
        smaller: 1,
        tries: 2,
        seconds: 0.15,
    };
    /// Enough to go through all of the code.
    pub(super) const TINY: Self = Self {
        shape: Shape {
            width: 8,
            blocks: 2,
            heads: Heads { queries: 2, keys: 2, dim: 4 },
            hidden: 8,
            vocabulary: 16,
            ..Shape::LLAMA
        },
        batch: [2, 4],
        pipeline: [3, 2],
        decode: [3, 4],
        proven: Shape {
            hidden: 4,
            vocabulary: 8,
            heads: Heads { queries: 2, keys: 2, dim: 2 },
            ..Shape::LLAMA
        },
        smaller: 1024,
        tries: 1,
        seconds: 0.0,
    };
    /// The full one, or the smallest.
    pub(super) fn new(small: bool) -> &'static Self {
        if small { &Self::TINY } else { &Self::FULL }
    }
    /// A size, as much smaller as this scale says.
    pub(super) fn of(&self, size: usize) -> usize {
        size.div_ceil(self.smaller)
    }
}
