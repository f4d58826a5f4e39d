//! Peaks of the planner's steps beside the price of every rank.
use super::{SHAPE, job, machine};
use layers::{Design, Experts, Pattern, Shape};
use ops::{ADAMW, MUON};
use parallel::price::training;
use parallel::{Batch, Layout};
use plan::step::{KnownPrices, TrainingJob};
use std::sync::Arc;
use tensor::{Bf16, Cpu};

/// Each number of microbatches with the prices of the others known. Kills: gradients that the last
/// backward finds in place where it is the first; a rank with few experts for one with many; whole
/// matrices of an update that are not held, or by a rank that is not their home; a stage taken for one of
/// other kinds of blocks.
#[test]
fn a_step_holds_what_its_price_says_of_the_fullest_rank() {
    let experts = Experts { count: 5, chosen: 2, hidden: 1024, ..Experts::MIXTRAL };
    let dense = Design::Transformer(Shape { blocks: 2, ..SHAPE });
    let sparse = Design::Transformer(Shape { blocks: 2, experts: Some(experts), ..SHAPE });
    let pattern = Pattern { dense: vec![0, 1, 3].into(), ..Pattern::NONE };
    let mixed = Shape { blocks: 4, hidden: 64, experts: Some(experts), pattern, ..SHAPE };
    let mixed = Design::Transformer(mixed);
    let machine = Arc::new(machine());
    let with = |kind| (kind, Some(1.0).into());
    let muon = &["none", "dp=2:zero1", "tp=2", "pp=2"][..];
    for (design, optimizer, seq, layouts) in [
        (
            &dense,
            with(ADAMW),
            64,
            &["none", "dp=2:zero1", "dp=2:zero2", "dp=2:zero3", "pp=2,dp=2:zero1", "tp=2,sp,cp=2"][..],
        ),
        (
            &sparse,
            with(ADAMW),
            64,
            &["ep=2,dp=2:zero1", "ep=3,dp=3", "ep=4,dp=4:zero1", "pp=2,ep=2,dp=2:zero1"],
        ),
        (&mixed, with(ADAMW), 64, &["pp=4"]),
        (&dense, with(MUON), 2, muon), // an update holds most
        (&sparse, with(MUON), 2, muon),
    ] {
        for layout in layouts {
            let (layout, known) = (layout.parse::<Layout>().unwrap(), &mut KnownPrices::default());
            for microbatches in [3, 1, 2, 5, 1] {
                let batch_size = 12 * microbatches;
                let job = TrainingJob { design: design.clone(), optimizer, seq, batch_size, ..job() };
                let step =
                    known.step::<Cpu<Bf16>>(&layout, &job, (microbatches, usize::MAX), &machine).unwrap();
                let batch = Batch::new(vec![job.sequence(); batch_size], microbatches).unwrap();
                let price = training::<Cpu<Bf16>>(&layout, &job.design, job.optimizer, &batch, |_, _| Ok(()));
                let wanted = price.unwrap().largest.total;
                assert_eq!(step.peak, wanted, "{layout}, {microbatches} microbatches");
            }
        }
    }
}
