//! Recomputation, of every kind.
use crate::{Batch, BuildContext, Layout, Sequence, Trainer, session};
use comm::Mesh;
use kernels::{Heads, Kernels};
use layers::{Balance, Chunk, Experts, Half, Input, Output, Shape, StageRequest, Targets};
use ops::{ADAMW, Draw, Keeper, ParamValues, PassContext, RandomValues, Record, ValueSource, Wide};
use tensor::{Bf16, Category, Cpu, Device, Dual, F61, Host, Key, Scalar, TokenIds, Work};

type Seen = (Vec<Vec<(usize, F61)>>, String);

const TOKENS: usize = 5;
const SHAPE: Shape = Shape {
    width: 4,
    blocks: 2,
    heads: Heads::new(2, 1, 2),
    hidden: 8,
    vocabulary: 7,
    dropout: layers::Rates { embedding: 0.0, attention: 0.5, residual: 0.5 },
    ..Shape::LLAMA
};
const ALL: [&str; 3] = ["recompute", "recompute:full/2", "recompute:selective"];

fn ids<D: Kernels<Place = Host>>(device: &D, last: u32) -> TokenIds<Host> {
    TokenIds::new(device.place(), &[1, 2, 3, 4, last], SHAPE.vocabulary).unwrap()
}

/// A microbatch forward and back, with the loss; calls `between` after the forward.
fn pass<D: Kernels<Place = Host>>(
    model: &mut Chunk<D>,
    (device, cx): (&D, &PassContext<D>),
    half: Half,
    between: impl FnOnce(),
) -> Vec<Wide<D>> {
    let loss = Some(StageRequest::Loss(Targets::Ids(ids(device, 6))));
    let output = model.forward(0, cx, &mut Keeper::default(), Input::Tokens(ids(device, 0)), loss).unwrap();
    let Output::Loss(loss) = output else { panic!("a loss is requested") };
    let loss = loss.all_reduce(&Mesh::alone().over(comm::Axes::LOSS).unwrap()).unwrap().read().unwrap();
    between();
    model.backward(0, cx, &mut Keeper::default(), None, half, true).unwrap();
    if half == Half::Input {
        model.backward_weight(0, cx, &mut Keeper::default(), true).unwrap();
    }
    loss
}

/// A model's gradients with what its layers took and gave, the bytes that are kept between forward and
/// backward, and the layers of each direction in a profile.
fn gone_through(layout: &str, blocks: usize, half: Half) -> (Seen, usize, [usize; 2]) {
    let (_key, device, mesh) = (Key(3).enter(), Cpu::<F61>::default(), Mesh::alone());
    let layout: Layout = layout.parse().unwrap();
    let at = layout.place(&device, &mesh, &RandomValues { seed: 1 });
    let mut model = Chunk::whole(&at, &Shape { blocks, ..SHAPE }).unwrap();
    let cx = PassContext::train(0, [TOKENS], TOKENS).dropping(9, 2).profiled(&device);
    let record = Record::new(&mesh);
    let cx = cx.recorded(Some(record.clone()));
    let held = || device.meter().now(Category::Activations);
    let profile = device.profile().expect("the host has one");
    profile.begin(0);
    let (before, mut kept) = (held(), 0);
    pass(&mut model, (&device, &cx), half, || kept = held() - before);
    assert_eq!(held(), before, "nothing is left of a microbatch that is back");
    let worked = profile.end();
    let ways = [tensor::Direction::Forward, tensor::Direction::Backward];
    let layers = ways.map(|way| {
        let is = |work: &Work| matches!(work, Work::Layer { pass, .. } if *pass == way);
        worked.iter().filter(|worked| is(&worked.work)).count()
    });
    let gradients = model.params().iter().map(|p| p.gradient_elements()).collect();
    ((gradients, format!("{:?}", record.take())), kept, layers)
}

/// Kills: anything kept but a block's input, a second forward that drops other numbers, a forward that a
/// profile or a record has twice; the odd blocks recomputed, or blocks counted from 1; a feed-forward
/// recomputed with the attention, or an attention that keeps more than its input.
#[test]
fn a_block_keeps_its_input_and_has_the_gradients_of_one_that_keeps_all() {
    let input = TOKENS * SHAPE.width * size_of::<F61>();
    for half in [Half::Both, Half::Input] {
        let usual = gone_through("none", 3, half);
        assert!(usual.0.0.iter().all(|gradient| gradient.iter().any(|(_, x)| *x != F61::ZERO)));
        for layout in ALL {
            let again = gone_through(layout, 3, half);
            assert_eq!(again.0, usual.0, "{layout}");
            assert_eq!(again.2[0], usual.2[0], "one forward, {layout}");
            assert!(again.1 < usual.1, "{layout}");
        }
        let more =
            |layout, blocks| gone_through(layout, blocks, half).1 - gone_through(layout, blocks - 1, half).1;
        let usual = more("none", 4);
        assert_eq!(more("recompute", 4), input);
        assert_eq!([3, 4, 5].map(|blocks| more("recompute:full/2", blocks)), [input, usual, input]);
        let Heads { queries, keys, dim, .. } = SHAPE.heads;
        // Q, K and V, the core's output and its sums
        let kept = (queries + 2 * keys) * dim + queries * dim + queries;
        assert_eq!(usual - more("recompute:selective", 4), TOKENS * kept * size_of::<F61>());
    }
}

/// Values that move in random directions.
struct Moving;

impl ValueSource<Dual<F61>> for Moving {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> ops::Result<ParamValues<'_, Dual<F61>>> {
        RandomValues { seed: 7 }.of(name, shape, draw)
    }
}

/// The loss on dual numbers moves as its gradient says: dL = Σ⟨dW, Ẇ⟩, for weights that move in random
/// directions. Kills: a second forward on other values, a gradient of what was kept wrongly.
#[test]
fn gradients_through_recomputation_are_derivatives() {
    for layout in ALL {
        let (_key, device, mesh) = (Key(4).enter(), Cpu::<Dual<F61>>::default(), Mesh::alone());
        let layout: Layout = layout.parse().unwrap();
        let at = layout.place(&device, &mesh, &Moving);
        let mut model = Chunk::whole(&at, &SHAPE).unwrap();
        let cx = PassContext::train(0, [TOKENS], TOKENS).dropping(9, 2);
        let loss = pass(&mut model, (&device, &cx), Half::Input, || ());
        let mut sum = F61::ZERO;
        for param in model.params() {
            let (gradient, values) = (param.gradient_elements(), param.elements());
            sum += gradient
                .iter()
                .zip(values)
                .fold(F61::ZERO, |sum, ((_, g), (_, w))| sum + g.value * w.tangent);
        }
        assert_eq!(loss[0].tangent, sum, "{layout}");
        assert_ne!(sum, F61::ZERO, "{layout}");
    }
}

/// Two steps in bf16 with dropout, of two microbatches. Kills: a value that is rounded once with and twice
/// without recomputation, a mask of another step.
#[test]
fn steps_in_bf16_are_the_same_bit_for_bit() {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    let batch = Batch::new([5, 2, 6, 3].map(sequence).to_vec(), 2).unwrap();
    let trained = |layout: &str| {
        let layout: Layout = layout.parse().unwrap();
        let values = RandomValues { seed: 2 };
        let ranks =
            session::run((&layout, &layout.world().unwrap()), &values, |at: BuildContext<Cpu<Bf16>>| {
                let shape = Shape { blocks: 3, ..SHAPE };
                let mut trainer = Trainer::new(&at, shape, (ADAMW, Some(0.5)))?.seeded(3);
                let losses = [0, 1].map(|_| trainer.step(&batch, 0.5).map(|report| report.loss.read()));
                let weights: Vec<_> = trainer.model().params().iter().map(|param| param.elements()).collect();
                let [first, second] = losses;
                Ok((first?, second?, weights))
            });
        ranks.unwrap().swap_remove(0)
    };
    let usual = trained("none");
    for layout in ALL {
        assert!(trained(layout) == usual, "{layout}");
    }
}

/// Two steps of a model with experts, with every balance loss and a bias that moves. Kills: experts that are
/// chosen anew in a second forward, or from other scores; a load, a loss or a pooled row that is counted
/// twice.
#[test]
fn experts_are_chosen_and_counted_once() {
    let _key = Key(6).enter();
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    let batch = Batch::new([5, 2, 6, 3].map(sequence).to_vec(), 2).unwrap();
    let balance = Balance { microbatch: 0.5, sequence: 0.25, pooled: 0.5, z: 0.125 };
    let experts =
        Experts { count: 4, chosen: 2, hidden: 4, bias: Some(0.25), balance, noise: 0.5, ..Experts::MIXTRAL };
    let shape = Shape { experts: Some(experts), ..SHAPE };
    let seen = |layout: &str| {
        let (layout, values): (Layout, _) = (layout.parse().unwrap(), RandomValues { seed: 2 });
        let ranks =
            session::run((&layout, &layout.world().unwrap()), &values, |at: BuildContext<Cpu<F61>>| {
                let mut trainer = Trainer::new(&at, shape, (ADAMW, Some(0.5)))?.seeded(3);
                let mut seen = Vec::new();
                for _ in 0..2 {
                    let report = trainer.step(&batch, 0.5)?;
                    seen.push((
                        report.loss.read(),
                        report.norm2.as_ref().expect("one update").read(),
                        format!("{:?}", trainer.take_counts()),
                    ));
                }
                let weights: Vec<_> = trainer.model().params().iter().map(|param| param.elements()).collect();
                Ok((seen, weights))
            });
        ranks.unwrap()
    };
    for split in ["none", "ep=2", "pp=2:zb-h1"] {
        let usual = seen(split);
        for means in ALL {
            let layout = if split == "none" { means.into() } else { format!("{split},{means}") };
            assert!(seen(&layout) == usual, "{layout}");
        }
    }
}
