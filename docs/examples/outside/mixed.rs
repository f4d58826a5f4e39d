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
    use layers::Design;
    use ops::{ADAMW, RandomValues, SGD};
    use parallel::{Batch, BuildContext, Layout, Sequence, Trainer, price, session};
    use plan::Machine;
    use plan::search::LayoutSearch;
    use plan::step::TrainingJob;
    use plan::weighed::Goal;
    use prove::{OracleTraces, Subject, prove};
    use std::sync::Arc;
    use tensor::{Bf16, Cpu, Device, Key};

    /// Layouts of every kind: axes, all attentions over cp, chunks that cut the pattern, and states of
    /// parameters.
    const LAYOUTS: [&str; 17] = [
        "none",
        "tp=4",
        "tp=2,sp",
        "cp=2",
        "cp=2:ulysses",
        "cp=2:gathered",
        "cp=2:ring",
        "pp=3",
        "pp=2:interleaved/3",
        "pp=2:dualpipe-v",
        "ep=2,dp=2",
        "dp=2:zero1",
        "dp=2:zero2",
        "dp=2:zero3",
        "recompute",
        "pp=2,recompute:full/2",
        "tp=2,pp=2,dp=2:zero2,recompute",
    ];

    /// The values, gradients and new weights of two steps, and logits of texts that are read with a cache.
    /// Kills: the pattern begun anew on each stage, a window of the block before, angles of the first block
    /// for all, experts that are built where none are.
    #[test]
    fn four_kinds_of_blocks_equal_the_unsplit_model_in_every_layout() {
        let truths = OracleTraces::default();
        for text in LAYOUTS {
            let layout: Layout = text.parse().unwrap();
            let subject = Subject::small(mixed(), &layout).unwrap();
            assert!(!subject.texts.is_empty(), "texts are read token by token");
            let verdict = prove(&subject, &layout, &[Key(1)], &truths).unwrap();
            assert!(verdict.equal, "{text}: {:?}", verdict.first_difference);
        }
    }

    /// Kills: a block that is priced as one of another kind, a table of angles for each kind of block.
    #[test]
    fn what_is_priced_is_what_is_held() {
        let sequence = || Sequence::new(vec![1, 2, 3, 4, 5, 6, 7, 8], vec![2, 3, 4, 5, 6, 7, 8, 9]);
        let dealt = |experts| Experts { forced: true, ..experts }; // the same number on all ranks
        let experts = mixed().experts.map(dealt);
        let shape = Shape { experts, ..mixed() };
        let batch = Batch::new((0..4).map(|_| sequence()).collect(), 2).unwrap();
        for text in LAYOUTS {
            let layout: Layout = text.parse().unwrap();
            let held = session::run(
                (&layout, &layout.world().unwrap()),
                &RandomValues { seed: 0 },
                |at: BuildContext<Cpu<f32>>| {
                    let mut trainer = Trainer::new(&at, shape, (SGD, None))?;
                    (0..price::STEPS).try_for_each(|_| trainer.step(&batch, 1.0).map(drop))?;
                    Ok(at.device.meter().peaks_of_all().total)
                },
            );
            let held = held.unwrap();
            let price = price::training::<Cpu<f32>>(&layout, shape, (SGD, None), &batch, |_, _| Ok(()));
            assert_eq!(price.unwrap().all, held.iter().map(|bytes| *bytes as u128).sum::<u128>(), "{text}");
        }
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
