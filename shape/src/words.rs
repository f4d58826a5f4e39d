//! The description of a model in words.

use crate::{FEATURES, Heads, Shape, counted};
use std::fmt;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { width, blocks, heads: Heads { queries, keys, dim, .. }, hidden, vocabulary, .. } = *self;
        let sizes = [
            counted(blocks, "block"),
            format!("width {width}"),
            format!("{} of {}", counted(queries, "query head"), counted(dim, "feature")),
            counted(keys, "KV head"),
            format!("{hidden} hidden"),
            counted(vocabulary, "id"),
        ];
        let has = FEATURES.iter().filter(|feature| feature.is_of(self)).map(|feature| feature.words(self));
        let says: Vec<_> = sizes.into_iter().chain(has.filter(|words| !words.is_empty())).collect();
        f.write_str(&says.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Balance, Experts, Groups, Pattern, Scoring, SharedExpert, Window};

    fn in_words(experts: Experts, dense: &[usize]) -> String {
        let pattern = Pattern { dense: dense.to_vec().into(), ..Pattern::NONE };
        let shape = Shape { experts: Some(experts), pattern, ..Shape::LLAMA };
        shape.to_string().strip_prefix(&format!("{}, ", Shape::LLAMA)).unwrap().to_string()
    }

    /// Kills: a part of a router that is not said, or said of one that has it not.
    #[test]
    fn experts_are_said_with_all_that_sets_them_apart() {
        let mixtral = Experts { count: 8, chosen: 2, hidden: 14336, ..Experts::MIXTRAL };
        assert_eq!(in_words(mixtral, &[]), "8 experts of 14336 hidden, 2 chosen, by softmax, gates of sum 1");
        let everything = Experts {
            scoring: Scoring::Sigmoid,
            normalize: false,
            scale: 2.5,
            bias: Some(0.125),
            groups: Some(Groups { count: 4, chosen: 2 }),
            capacity: Some(1.25),
            shared: Some(SharedExpert { hidden: 32, gated: true }),
            balance: Balance { microbatch: 0.5, sequence: 0.25, pooled: 0.75, z: 0.125 },
            forced: true,
            by_experts: true,
            noise: 0.0625,
            biases: true,
            ..mixtral
        };
        assert_eq!(
            in_words(everything, &[0, 3]),
            "8 experts of 14336 hidden, 2 chosen, by sigmoids with a bias of the choice that moves by 0.125, from 2 of 4 groups, \
             gates × 2.5, capacity 1.25, a shared expert of 32 hidden with a gate, biases of the router and of experts, balance of microbatches 0.5, \
             balance of sequences 0.25, balance of all blocks together 0.75, z-loss of the router 0.125, noise of the router 0.0625, no experts in block 0 and 3, experts choose tokens, \
             tokens dealt in turn"
        );
    }
    /// Kills: a pattern that is not said, or said of blocks that have no such option.
    #[test]
    fn blocks_that_differ_are_said() {
        let pattern = Pattern { whole: vec![0, 2].into(), other_positions: vec![1].into(), ..Pattern::NONE };
        let llama = Shape { blocks: 3, pattern, ..Shape::LLAMA };
        let base = "3 blocks, width 2, 1 query head of 2 features, 1 KV head, 2 hidden, 2 ids, RMS norm, ε 0.00001, SwiGLU";
        assert_eq!(llama.to_string(), format!("{base}, rotary from 10000, no positions in block 1"));
        let windowed = Shape { window: Some(Window { size: 4, sinks: 0 }), ..llama };
        let other_rope = Some(50.0.into());
        let windowed = Shape { pattern: Pattern { other_rope, ..pattern }, ..windowed };
        let said = "window 4, 0 sinks, not in block 0 and 2, rotary from 50 in block 1";
        assert_eq!(windowed.to_string(), format!("{base}, rotary from 10000, {said}"));
        let from = Pattern { whole: vec![0, 1].into(), ..Pattern::NONE };
        let from = Shape { window: windowed.window, pattern: from, ..llama };
        assert!(from.to_string().ends_with("window 4, 0 sinks, from block 2"), "{from}");
    }
}
