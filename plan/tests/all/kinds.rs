//! Models whose blocks are of several kinds, in any order.
use crate::machines::Draws;
use crate::{SHAPE, found_for, job, machine, words};
use comm::Axis;
use layers::{Design, Experts, Pattern, Shape, Window};
use ops::TokenShards;
use parallel::Layout;
use plan::block::{BlockCost, has_halves, staged};
use plan::bound::StageWork;
use plan::hold::{StateBytes, held};
use plan::step::{KnownPrices, TrainingJob};
use plan::weighed::Goal;
use std::sync::Arc;
use tensor::{Bf16, Cpu};

/// Draws a model of six blocks of this number of kinds, which differ in what costs time and memory.
fn drawn(draws: &mut Draws, kinds: usize) -> Shape {
    let (hidden, of_expert) = [(64, 2048), (8192, 64)][draws.below(2) as usize];
    let experts = Some(Experts { count: 8, chosen: 2, hidden: of_expert, ..Experts::MIXTRAL });
    let window = Some(Window { size: 8, sinks: 0 });
    let mut set = || (0..6).filter(|_| draws.below(2) == 1).collect();
    loop {
        let pattern = Pattern { dense: set(), whole: set(), other_positions: set(), other_rope: None };
        let shape = Shape { blocks: 6, hidden, experts, window, pattern, ..SHAPE };
        if shape.kinds().len() == kinds {
            return shape;
        }
    }
}

fn of(shape: Shape) -> TrainingJob {
    TrainingJob { design: Design::Transformer(shape), seq: 64, batch_size: 4, ..job() }
}

/// Times and bytes of layouts with chunks of one block and of several. Kills: the dearest kind priced as the
/// cheapest, a block that is taken for its neighbour, a stage that is taken for one of other kinds.
#[test]
fn bounds_of_up_to_five_kinds_are_below_the_step_and_close() {
    let (mut draws, machine) = (Draws(5), Arc::new(machine()));
    let (mut close, mut all) = (0, 0);
    for kinds in 1..=5 {
        let job = of(drawn(&mut draws, kinds));
        for text in
            ["none", "tp=2", "dp=2:zero1", "pp=2", "pp=3:interleaved/2", "pp=2:zb-h1", "recompute:full/2"]
        {
            let layout: Layout = text.parse().unwrap();
            let (stages, unlike) = staged(&layout).unwrap();
            let sequences = (job.batch_size / 2, true);
            let cost = BlockCost::new::<Cpu<Bf16>>((&stages, unlike), &job, sequences, &machine).unwrap();
            let state = StateBytes::new::<Cpu<Bf16>>(&layout, &job, &machine).unwrap();
            let (pipeline, halves) = (layout.pipeline(), has_halves(&layout));
            let plan = pipeline.plan(layout.size(Axis::Pp), 2 / layout.size(TokenShards::SEQUENCES));
            let ranks = StageWork::of_ranks(&pipeline, 6, &plan);
            let limits = (plan.microbatches, usize::MAX);
            let step = KnownPrices::default().step::<Cpu<Bf16>>(&layout, &job, limits, &machine).unwrap();
            let closed = cost.seconds(&ranks, &plan, halves, &state.times);
            let simulated = cost.simulated(&pipeline, 6, &plan, state.times.update).unwrap();
            let bytes = cost.bytes(&state, 6, (&plan, halves), &held(&pipeline, 6, &plan));
            for bound in [closed, simulated] {
                assert!(bound <= step.seconds, "{kinds} kinds, {layout}: {bound} of {}", step.seconds);
            }
            assert!(
                bytes as f64 * 0.98 <= step.peak as f64,
                "{kinds} kinds, {layout}: {bytes} of {}",
                step.peak
            );
            all += 2;
            close += usize::from(simulated > 0.8 * step.seconds)
                + usize::from(bytes as f64 > 0.7 * step.peak as f64);
        }
    }
    assert!(close * 4 > all * 3, "{close} of {all} bounds are close");
}

/// Kills: a bound that prunes the best layout of a model whose cheapest blocks are not its first.
#[test]
fn the_search_finds_what_weighing_everything_finds_for_up_to_five_kinds() {
    let mut draws = Draws(3);
    for kinds in [3, 5] {
        let job = of(drawn(&mut draws, kinds));
        let [all, some] = [true, false].map(|all| found_for(&job, 2, usize::MAX, Goal::Time, all));
        assert_eq!(words(&some), words(&all), "{kinds} kinds");
        assert!(some.weighed < all.weighed, "{} of {} were weighed", some.weighed, all.weighed);
    }
}
