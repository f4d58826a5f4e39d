//! Sizes of the measured work.
use kernels::Heads;
use layers::Shape;

/// Shape L: Llama-like, 41.95 million parameters.
pub const L: Shape = Shape {
    width: 512,
    blocks: 8,
    heads: Heads::new(8, 8, 64),
    hidden: 2048,
    vocabulary: 8192,
    ..Shape::LLAMA
};

/// A shape of 106,816 parameters, for the proof, and for a quick test on a card.
pub const SMALL: Shape =
    Shape { width: 64, blocks: 2, heads: Heads::new(4, 2, 16), hidden: 128, vocabulary: 256, ..Shape::LLAMA };

/// Sizes of all work.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// The model of forward passes, training steps and decoding.
    pub shape: Shape,
    /// Sequences of a batch, and tokens of each.
    pub batch: [usize; 2],
    /// Microbatches of a pipeline's step, one sequence each, and tokens of each.
    pub pipeline: [usize; 2],
    /// Tokens of one long sequence.
    pub long: usize,
    /// Tokens of the prompt, and tokens to add.
    pub decode: [usize; 2],
    /// The model whose proof is timed.
    pub proven: Shape,
    /// Divisor of the sizes of products, all-reduces and probes.
    pub divisor: usize,
    /// Number of timed tries of a model's work in a turn, after one warm-up.
    pub tries: usize,
    /// Seconds that a turn of a product lasts.
    pub seconds: f64,
}

impl Scale {
    /// Sizes that the figures' names state.
    pub(super) const FULL: Self = Self {
        shape: L,
        batch: [4, 256],
        pipeline: [8, 128],
        long: 8192,
        decode: [32, 64],
        proven: SMALL,
        divisor: 1,
        tries: 2,
        seconds: 0.15,
    };
    /// Sizes just large enough to run all of the code.
    pub(super) const TINY: Self = Self {
        shape: Shape {
            width: 8,
            blocks: 2,
            heads: Heads::new(2, 2, 4),
            hidden: 8,
            vocabulary: 16,
            ..Shape::LLAMA
        },
        batch: [2, 4],
        pipeline: [3, 2],
        long: 8,
        decode: [3, 4],
        proven: Shape { hidden: 4, vocabulary: 8, heads: Heads::new(2, 2, 2), ..Shape::LLAMA },
        divisor: 1024,
        tries: 1,
        seconds: 0.0,
    };
    /// Returns the full or the smallest scale.
    pub(super) fn new(small: bool) -> &'static Self {
        if small { &Self::TINY } else { &Self::FULL }
    }
    /// Divides a size by [`divisor`](Self::divisor).
    pub(super) fn of(&self, size: usize) -> usize {
        size.div_ceil(self.divisor)
    }
}
