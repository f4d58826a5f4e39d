//! A block of a model: its sizes, and the kind of each part. A model is a list of such blocks, few of which
//! are distinct.
use crate::{
    Biases, Experts, FeedForward, Heads, Latent, NormKind, NormPlaces, Positions, Rates, ScoreTerms, Shape,
    Window,
};
use tensor::Rope;

/// One block of a model: everything but its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockShape {
    /// Features of the residual stream.
    pub width: usize,
    /// Kind of the norms.
    pub norm: NormKind,
    /// Places of the norms.
    pub norms: NormPlaces,
    /// ε of the norms.
    pub eps: f64,
    /// Attention heads.
    pub heads: Heads,
    /// Scores of attention.
    pub scores: ScoreTerms,
    /// Latents that attention computes keys, values and maybe queries from.
    pub latent: Option<Latent>,
    /// Rotary positions, if it has any.
    pub rope: Option<Rope>,
    /// True if queries and keys are normalised per head.
    pub head_norm: bool,
    /// True if the queries of a token are normalised together, and so are its keys.
    pub joint_norm: bool,
    /// Attention window, if it has one.
    pub window: Option<Window>,
    /// Kind of feed-forward, also of experts.
    pub feed_forward: FeedForward,
    /// Features inside the feed-forward.
    pub hidden: usize,
    /// Experts in place of the feed-forward.
    pub experts: Option<Experts>,
    /// Biases of linear layers.
    pub bias: Biases,
    /// Dropout while training.
    pub dropout: Rates,
}

/// Distinct blocks of a model, and where they stand.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockKind {
    /// Each of these blocks.
    pub shape: BlockShape,
    /// Their numbers in the model, in order.
    pub places: Vec<usize>,
}

impl Shape {
    /// Returns block `i`.
    #[inline]
    #[must_use]
    pub fn block(&self, i: usize) -> BlockShape {
        let pattern = &self.pattern;
        let rope = match self.positions {
            Positions::Rotary(_) if pattern.other_positions.contains(i) => pattern.other_rope,
            Positions::Rotary(rope) => Some(rope),
            Positions::Learned(_) => None,
        };
        BlockShape {
            width: self.width,
            norm: self.norm,
            norms: self.norms,
            eps: self.eps,
            heads: self.heads,
            scores: self.scores,
            latent: self.latent,
            rope,
            head_norm: self.head_norm,
            joint_norm: self.joint_norm,
            window: self.window.filter(|_| !pattern.whole.contains(i)),
            feed_forward: self.feed_forward,
            hidden: self.hidden,
            experts: self.experts.filter(|_| !pattern.dense.contains(i)),
            bias: self.bias,
            dropout: self.dropout,
        }
    }
    /// Returns the distinct blocks of the model with the numbers of their places, by the first of these.
    #[must_use]
    pub fn kinds(&self) -> Vec<BlockKind> {
        let mut kinds: Vec<BlockKind> = Vec::new();
        for i in 0..self.blocks {
            let shape = self.block(i);
            match kinds.iter_mut().find(|kind| kind.shape == shape) {
                Some(kind) => kind.places.push(i),
                None => kinds.push(BlockKind { shape, places: vec![i] }),
            }
        }
        kinds
    }
    /// Returns the first block of each kind.
    #[must_use]
    pub fn first_of_kinds(&self) -> Vec<usize> {
        self.kinds().iter().map(|kind| kind.places[0]).collect()
    }
    /// Returns a model like this one that has these of its blocks, in order.
    #[must_use]
    pub fn of_blocks(&self, blocks: &[usize]) -> Self {
        let any = |has: fn(&BlockShape) -> bool| blocks.iter().any(|i| has(&self.block(*i)));
        let window = self.window.filter(|_| any(|block| block.window.is_some()));
        let experts = self.experts.filter(|_| any(|block| block.experts.is_some()));
        Self { blocks: blocks.len(), window, experts, pattern: self.pattern.of_blocks(blocks), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocks, Pattern};

    /// A window in all blocks but 1 and 3, experts in all but 0, no positions in block 3.
    fn mixed() -> Shape {
        let pattern = Pattern {
            dense: Blocks::FIRST,
            whole: vec![1, 3].into(),
            other_positions: vec![3].into(),
            other_rope: None,
        };
        let (window, experts) = (Some(Window { size: 3, sinks: 1 }), Some(Experts::MIXTRAL));
        Shape { blocks: 6, window, experts, pattern, ..Shape::LLAMA }
    }

    /// Kills: a window of the block before, experts where there are none, positions of another block, kinds
    /// that are told apart by a set that changes nothing, a kind that lists another's place.
    #[test]
    fn blocks_are_what_the_pattern_says() {
        let shape = mixed();
        let facts = |i| {
            let block = shape.block(i);
            [block.window.is_some(), block.experts.is_some(), block.rope.is_some()]
        };
        let wanted = [[true, false, true], [false, true, true], [true; 3], [false, true, false]];
        assert_eq!([0, 1, 2, 3].map(facts), wanted);
        let places = |shape: Shape| shape.kinds().into_iter().map(|kind| kind.places).collect::<Vec<_>>();
        assert_eq!(places(shape), [vec![0], vec![1], vec![2, 4, 5], vec![3]]);
        assert_eq!(places(Shape { window: None, ..shape }), [vec![0], vec![1, 2, 4, 5], vec![3]]);
        assert_eq!(places(Shape { positions: Positions::Learned(9), window: None, ..shape }).len(), 2);
        assert_eq!(Blocks::from(vec![127, 64, 300, 0]).iter().collect::<Vec<_>>(), [0, 64, 127]);
    }

    /// Kills: a model of one kind that keeps what another block has, blocks in another order.
    #[test]
    fn a_model_of_some_blocks_has_these() {
        let shape = mixed();
        for kind in shape.kinds() {
            let alike = shape.of_blocks(&[kind.places[0]; 9]);
            let places = (0..9).collect();
            assert_eq!(alike.kinds(), [BlockKind { shape: kind.shape, places }]);
        }
        let dense = shape.of_blocks(&[0, 0]);
        assert_eq!((dense.experts, dense.window), (None, shape.window));
        let some = [3, 1, 5, 0];
        assert_eq!([0, 1, 2, 3].map(|i| shape.of_blocks(&some).block(i)), some.map(|i| shape.block(i)));
    }

    /// Kills: an older file whose dense blocks or first block with a window are lost, a misspelt key that is
    /// not refused, a set that is not written.
    #[test]
    fn files_of_all_ages_are_read() {
        let shape = mixed();
        let text = serde_json::to_string(&shape).unwrap();
        assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
        let older =
            r#"{"blocks":4,"experts":{"count":2,"dense":[0,2]},"window":{"size":3,"sinks":1,"from":2}}"#;
        let read: Shape = serde_json::from_str(older).unwrap();
        let pattern = Pattern { dense: vec![0, 2].into(), whole: vec![0, 1].into(), ..Pattern::NONE };
        let (window, experts) = (Some(Window { size: 3, sinks: 1 }), Some(Experts::MIXTRAL));
        assert_eq!(read, Shape { blocks: 4, window, experts, pattern, ..Shape::LLAMA });
        let late = r#"{"window":{"size":3,"sinks":1,"from":18446744073709551615}}"#;
        let late: Shape = serde_json::from_str(late).unwrap();
        assert!((0..Blocks::MOST).all(|block| late.block(block).window.is_none()));
        for wrong in [
            r#"{"width":1,"depth":2}"#,
            r#"{"pattern":{"sparse":[0]}}"#,
            r#"{"window":{"size":3}}"#,
            r#"{"window":{"size":3,"sinks":1,"from":"2"}}"#,
            r#"{"experts":{"dense":3}}"#,
            r#"{"pattern":5,"experts":{"dense":[0]}}"#,
        ] {
            assert!(serde_json::from_str::<Shape>(wrong).is_err(), "{wrong}");
        }
    }
}
