//! A model of one's own whose blocks differ: four kinds, in a pattern that repeats.
//!
//! ```text
//! block           0        1        2        3        4        5        6        7
//! attention       window   window   whole    whole    window   window   whole    whole
//! feed-forward    dense    experts  dense    experts  dense    experts  dense    experts
//! positions       rotary   rotary   rotary   none     rotary   rotary   rotary   none
//! ```
//!
//! A [`Shape`] says what all blocks have, and its [`Pattern`] which of them differ. Layers, proofs, prices
//! and plans ask for a block ([`Shape::block`]) or for the distinct ones ([`Shape::kinds`]), so that no line
//! of them knows this model.
use kernels::Heads;
use layers::{Experts, Pattern, Shape, Window};

/// Returns the model.
///
/// ```
/// let kinds = outside::mixed().kinds();
/// let places: Vec<_> = kinds.into_iter().map(|kind| kind.places).collect();
/// assert_eq!(places, [[0, 4], [1, 5], [2, 6], [3, 7]]);
/// ```
pub fn mixed() -> Shape {
    let every = |of: &[usize]| (0..8).filter(|block| of.contains(&(block % 4))).collect();
    Shape {
        width: 4,
        blocks: 8,
        heads: Heads::new(4, 2, 2),
        hidden: 4,
        vocabulary: 11,
        experts: Some(Experts { count: 2, chosen: 1, hidden: 2, ..Experts::MIXTRAL }),
        window: Some(Window { size: 2, sinks: 0 }),
        pattern: Pattern {
            dense: every(&[0, 2]),
            whole: every(&[2, 3]),
            other_positions: every(&[3]),
            other_rope: None,
        },
        ..Shape::LLAMA
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::proven::{LAYOUTS, prices, proves};
    use layers::Design;
    use ops::ADAMW;
    use plan::Machine;
    use plan::search::LayoutSearch;
    use plan::step::TrainingJob;
    use plan::weighed::Goal;
    use std::sync::Arc;
    use tensor::Bf16;
    use tensor::Cpu;

    /// Kills: the pattern begun anew on each stage, a window of the block before, angles of the first block
    /// for all, experts that are built where none are.
    #[test]
    fn four_kinds_of_blocks_equal_the_unsplit_model_in_every_layout() {
        proves(mixed(), &LAYOUTS);
    }

    /// Kills: a block that is priced as one of another kind, a table of angles for each kind of block.
    #[test]
    fn what_is_priced_is_what_is_held() {
        prices(mixed(), &LAYOUTS);
    }

    /// The best layouts of four ranks, in much memory and in little. Kills: the dearest kind priced as the
    /// cheapest, a bound of one kind for all blocks.
    #[test]
    fn a_plan_equals_that_of_weighing_everything() {
        let experts = Some(Experts { count: 4, chosen: 2, hidden: 64, ..Experts::MIXTRAL });
        let shape = Shape {
            width: 512,
            heads: Heads::new(16, 4, 32),
            hidden: 4096,
            vocabulary: 1000,
            window: Some(Window { size: 16, sinks: 0 }),
            experts,
            ..mixed().of_blocks(&[0, 1, 2, 3])
        };
        let (design, optimizer) = (Design::Transformer(shape), (ADAMW, Some(1.0).into()));
        let job = TrainingJob { design, optimizer, seq: 64, batch_size: 2, dtype: "bf16" };
        let machine = Arc::new(Machine::named("h100").unwrap());
        let found = |memory, all| {
            let goal = Goal::Time;
            let search = LayoutSearch {
                job: &job,
                machine: &machine,
                memory,
                ranks: 4,
                microbatches: Some(2),
                goal,
                all,
                watch: &|_| true,
            };
            search.find::<Cpu<Bf16>>()
        };
        let words = |found: &plan::weighed::SearchResult| {
            found
                .best
                .iter()
                .map(|of| (of.layout.to_string(), of.microbatches, of.step.seconds))
                .collect::<Vec<_>>()
        };
        let [all, some] = [true, false].map(|all| found(usize::MAX, all));
        assert_eq!(words(&some), words(&all));
        assert!(2 * some.weighed < all.weighed, "{} of {} were weighed", some.weighed, all.weighed);
    }
}
