//! Cases that the harness does not cover: few tokens, ties, additions to the loss, traffic of a stated
//! routing, memory in use.
use super::*;
use crate::Balancing;
use crate::dispatcher::all_gather::AllGather;
use comm::{Axes, Ledger, Mesh, World};
use kernels::Meta;
use layers::{Balance, Hooks as _, Layer as _, Shape};
use ops::{
    Draw, Error, LayerCounts, ParamValues, Pass, PassContext, RandomValues, Region, Stream, ValueSource,
    filled,
};
use std::collections::BTreeMap;
use tensor::{Category, Cpu, Device, Dual, F61, Key, Tensor, mix};

type Axis1 = (Axis, usize);

/// Tokens of the step, of which a microbatch has some.
const MEAN_OVER: usize = 20;
/// All of them, counted or not.
const STEP: usize = 24;

/// Results of one microbatch, whole.
struct Ran<S> {
    weights: BTreeMap<String, Vec<S>>,
    y: Vec<S>,
    dx: Vec<S>,
    gradients: BTreeMap<String, Vec<S>>,
    loss: Option<S>,
}

fn drawn<S: Scalar>(salt: u64, tokens: usize) -> Vec<S> {
    (0..(tokens * D) as u64).map(|i| S::sample(mix(mix(salt) ^ i), 1.0)).collect()
}

/// One microbatch of these lengths there and back, drawn by this number.
fn ran<T: Kernels<Wide = T>, X: super::TokenDispatcher<T> + Copy>(
    (device, mesh): (&T, &Mesh<T::Place>),
    layer: &mut ExpertFeedForward<T, X>,
    (lengths, salt): (&[usize], u64),
) -> Result<Ran<T::Elem>> {
    let (tokens, tp) = (lengths.iter().sum(), mesh.group(Axis::Tp));
    let whole = |x: Vec<T::Elem>| {
        Stream::cut(&Tensor::from_fn(device, Category::Activations, tokens, D, |i| x[i]), Region::Whole)
    };
    let pass = PassContext::<T>::train(0, lengths, MEAN_OVER).pass();
    let cx = PassContext::default().then(Pass { tokens: [tokens, STEP], ..pass }, lengths);
    let shape = Shape { blocks: 1, experts: Some(layer.experts), ..Shape::LLAMA };
    let hooks = Balancing::<T>::of(mesh, &shape).expect("it has experts");
    if let Some(n) = hooks.row() {
        *cx.beside() = Some(filled(device, Category::Buffers, [1, n], T::Elem::ZERO));
    }
    let (y, saved) = layer.forward(&cx, whole(drawn(salt, tokens)))?;
    if hooks.row().is_some() {
        let row = cx.beside().take().expect("begun above");
        *cx.beside() = Some(hooks.turn(&cx, row)?);
    }
    let dx = layer.backward(&cx, saved, whole(drawn(salt + 1, tokens)))?;
    let loss = cx.take_loss().map(|loss| loss.all_reduce(&mesh.over(Axes::LOSS)?)).transpose()?;
    let mut params = layers::Params::new();
    layer.params(&mut params);
    let (mut weights, mut gradients) = (BTreeMap::new(), BTreeMap::new());
    for param in params {
        param.sync()?;
        weights.insert(param.name().to_string(), param.gather(mesh)?.unwrap_or_default());
        if param.placement().trained {
            gradients.insert(param.name().to_string(), param.gather_gradient(mesh)?.unwrap_or_default());
        }
    }
    let read = |x: Stream<T>| Ok::<_, Error>(x.gather(tp)?.read().unwrap_or_default());
    let loss = loss.and_then(|loss| loss.read()).map(|loss| loss[0]);
    Ok(Ran { weights, y: read(y)?, dx: read(dx)?, gradients, loss })
}

fn built<T: Kernels<Wide = T>, X: super::TokenDispatcher<T> + Copy>(
    at: (&T, &Mesh<T::Place>),
    values: &dyn ValueSource<T::Elem>,
    (experts, exchange): (Experts, X),
) -> Result<ExpertFeedForward<T, X>> {
    ExpertFeedForward::new(
        &Builder::new(at.0, at.1, values),
        &Layer(experts, SWIGLU).mlp(),
        experts,
        exchange,
    )
}

/// Results of ranks split this way, by rank.
fn world<T, X>(
    axes: &[Axis1],
    values: &(dyn ValueSource<T::Elem> + Sync),
    (experts, exchange): (Experts, X),
    lengths: &[usize],
) -> Vec<Ran<T::Elem>>
where
    T: Kernels<Wide = T> + Device<Place = tensor::Host> + Default,
    X: super::TokenDispatcher<T> + Copy,
{
    let run = |device: T, mesh: Mesh<_>| {
        let mut layer = built((&device, &mesh), values, (experts, exchange))?;
        ran((&device, &mesh), &mut layer, (lengths, 3))
    };
    World::threads(axes).unwrap().run(run).unwrap_or_else(|why: comm::RankError| panic!("{why}"))
}

const ALONE: &[Axis1] = &[];
const WORLDS: [&[Axis1]; 4] = [
    ALONE,
    &[(Axis::Tp, 2), (Axis::Ep, 2)],
    &[(Axis::Tp, 4), (Axis::Ep, 4)],
    &[(Axis::Tp, 4), (Axis::Ep, 2), (Axis::Etp, 2)],
];

/// One token, two, and two sequences of one: ranks have no token, experts no copy, and some ranks' experts
/// none at all. Kills: a gradient that is missing where no copy came, a share that is taken to be there.
#[test]
fn few_tokens_equal_the_oracle_whoever_has_none() {
    let _key = Key(5).enter();
    for experts in [mixtral(), deepseek(), qwen()] {
        for lengths in [&[1][..], &[2], &[1, 1]] {
            for axes in WORLDS {
                let values = RandomValues { seed: 7 };
                let all = world::<Cpu<F61>, _>(axes, &values, (experts, AllToAll), lengths);
                let gathered = world::<Cpu<F61>, _>(axes, &values, (experts, AllGather), lengths);
                let n = lengths.iter().sum();
                let given = LayerInput {
                    step: 0,
                    first: 0,
                    lengths: lengths.to_vec(),
                    tokens: vec![],
                    shards: None,
                    x: drawn(3, n),
                    memory_lengths: vec![],
                    memory: vec![],
                    ids: vec![],
                    dy: drawn(4, n),
                    weights: all[0].weights.clone(),
                };
                let truth = Layer(experts, SWIGLU).oracle(&given);
                let without = truth.gradients["mlp.experts.down"].chunks(D * experts.hidden);
                let without = without.filter(|of| of.iter().all(|g| *g == F61::ZERO)).count();
                assert!(without >= experts.count - experts.chosen * n, "{without} experts without tokens");
                for ran in all.iter().chain(&gathered) {
                    assert_eq!(ran.y, truth.y, "Y, {axes:?}");
                    assert_eq!(ran.dx, truth.dx, "dX, {axes:?}");
                    assert_eq!(ran.gradients, truth.gradients, "{axes:?}");
                }
            }
        }
    }
}

/// A router of zeros: no token prefers an expert.
struct Indifferent;
impl<S: Scalar> ValueSource<S> for Indifferent {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, S>> {
        if name.contains("router") {
            return Ok(ParamValues::each(|_| S::ZERO));
        }
        let all: ParamValues<'_, S> = RandomValues { seed: 7 }.of(name, shape, draw)?;
        Ok(all)
    }
}

/// In f32, where every score is the same number, the lowest experts (of the lowest groups) are chosen, on all
/// ranks of every layout. Kills: ties that go by rank, by place in memory, or to the last.
#[test]
fn of_tied_scores_the_lower_index_wins_in_every_layout() {
    for experts in [mixtral(), deepseek(), qwen()] {
        let experts = Experts { capacity: None, ..experts };
        for axes in WORLDS {
            let all = world::<Cpu<f32>, _>(axes, &Indifferent, (experts, AllToAll), &[7, 4]);
            let gathered = world::<Cpu<f32>, _>(axes, &Indifferent, (experts, AllGather), &[7, 4]);
            for ran in all.iter().chain(&gathered) {
                let each = ran.gradients["mlp.experts.down"].chunks(D * experts.hidden);
                let chosen: Vec<bool> = each.map(|of| of.iter().any(|g| *g != 0.0)).collect();
                let lowest: Vec<bool> = (0..experts.count).map(|e| e < experts.chosen).collect();
                assert_eq!(chosen, lowest, "{axes:?}");
            }
        }
    }
}

/// Weights that move in a random direction; the input does not.
struct Moving;
impl ValueSource<Dual<F61>> for Moving {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, Dual<F61>>> {
        let all: ParamValues<'_, Dual<F61>> = RandomValues { seed: 7 }.of(name, shape, draw)?;
        let still = name.ends_with("router.bias");
        Ok(all.map(move |_, x| if still { Dual::constant(x.value) } else { x }))
    }
}

/// ⟨dY, Ẏ⟩ and what the loss moves by, together, are ⟨dX, Ẋ⟩ + Σ⟨dW, Ẇ⟩, and the loss is the oracle's in
/// every layout. Kills: a loss that is told and not learnt, or learnt and not told; once for each rank, or
/// whole for each microbatch; of another sequence's tokens.
#[test]
fn what_is_added_to_the_loss_is_what_the_router_learns_from() {
    let _key = Key(6).enter();
    let one = |i: usize| [0, 1, 2, 3].map(|j| if i == j { 0.5 } else { 0.0 });
    let balances = [one(0), one(1), one(2), one(3), [0.25, 0.5, 0.75, 0.125]];
    for experts in [mixtral(), deepseek(), qwen()] {
        for [microbatch, sequence, pooled, z] in balances {
            let experts = Experts { balance: Balance { microbatch, sequence, pooled, z }, ..experts };
            let (mut losses, mut weights) = (Vec::new(), None);
            for axes in WORLDS {
                for ran in world::<Cpu<Dual<F61>>, _>(axes, &Moving, (experts, AllToAll), &[7, 4]) {
                    let along = |gradient: &[Dual<F61>], moved: &[Dual<F61>]| {
                        gradient.iter().zip(moved).fold(F61::ZERO, |sum, (g, m)| sum + g.value * m.tangent)
                    };
                    let loss = ran.loss.expect("something is added");
                    let moved = along(&drawn(4, 11), &ran.y) + loss.tangent;
                    let of_weights = ran.gradients.iter().map(|(name, g)| along(g, &ran.weights[name]));
                    let learnt = of_weights.fold(along(&ran.dx, &drawn(3, 11)), |sum, one| sum + one);
                    assert_eq!(moved, learnt, "{axes:?}, {:?}", experts.balance);
                    assert_ne!(loss.tangent, F61::ZERO, "the loss moves");
                    losses.push(loss);
                    weights = Some(ran.weights);
                }
            }
            let weights = weights.expect("one world or more");
            let pass = reference::Pass { mean_over: MEAN_OVER, tokens: STEP, ..reference::Pass::default() };
            let mut walk = Walk::unseen(&weights, Some(pass));
            let layer = Layer(experts, SWIGLU).mixture();
            let own = layer.forward(drawn(3, 11), &[7, 4], &mut walk).1.loss();
            let truth = own + layer.pooled(&walk);
            assert!(losses.iter().all(|loss| *loss == truth), "{losses:?}, and should be {truth:?}");
        }
    }
}

/// The tokens of each rank, of 11.
const SHARES: [usize; 2] = [6, 5];

/// In a stated routing the traffic of each rank follows from sizes and counts, and a ghost predicts it to the
/// byte: with all experts alike, with given shares, and with copies dropped. Kills: a gate or a row that is
/// sent twice, results of all experts where those of some will do, a price of another routing, of copies that
/// are dropped or of other ranks' shares.
#[test]
fn a_stated_routing_sends_what_it_should_and_is_priced() {
    const AXES: &[Axis1] = &[(Axis::Tp, 2), (Axis::Ep, 2)];
    fn seen<T: Kernels<Wide = T>, X: super::TokenDispatcher<T> + Copy>(
        (device, mesh): (&T, &Mesh<T::Place>),
        (experts, exchange, routing): (Experts, X, Option<&LayerCounts>),
    ) -> Result<(Ledger, impl PartialEq + std::fmt::Debug + use<T, X>)> {
        let at = Builder { counts: routing, ..Builder::new(device, mesh, &RandomValues { seed: 7 }) };
        let mut layer = ExpertFeedForward::new(&at, &Layer(experts, SWIGLU).mlp(), experts, exchange)?;
        let cx = PassContext::train(0, [7usize, 4], 1);
        let x = || Tensor::from_fn(device, Category::Activations, 11, D, |i| T::Elem::from_usize(i % 3));
        let (y, saved) = layer.forward(&cx, Stream::cut(&x(), Region::Whole))?;
        drop((layer.backward(&cx, saved, Stream::cut(&x(), Region::Whole))?, y));
        Ok((mesh.ledger(), (device.meter().peaks_of_all(), device.meter().flops())))
    }
    fn both<X: super::TokenDispatcher<Cpu<f32>> + super::TokenDispatcher<Meta<f32>> + Copy>(
        of: (Experts, X, Option<&LayerCounts>),
    ) -> Vec<Ledger> {
        let run = |device: Cpu<f32>, mesh: Mesh<_>| seen((&device, &mesh), of);
        let measured = World::threads(AXES).unwrap().run(run).unwrap_or_else(|why| panic!("{why}"));
        for (rank, (ledger, held)) in measured.iter().enumerate() {
            let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::ghost(AXES, rank).unwrap());
            let (priced, foreseen) = seen((&device, &mesh), of).unwrap();
            assert_eq!(priced, *ledger, "traffic of rank {rank}");
            assert_eq!(format!("{foreseen:?}"), format!("{held:?}"), "what rank {rank} holds and does");
        }
        measured.into_iter().map(|(ledger, _)| ledger).collect()
    }
    let elements = |ledger: &Ledger, op| ledger.get(Axis::Ep, op).elements;
    let mut uneven = LayerCounts::default();
    uneven.add("mlp", &[11, 1, 7, 0, 3]);
    for (capacity, routing, taken) in [
        (None, None, [14, 8]), // of 22 copies in turn
        (None, Some(&uneven), [19, 3]),
        (Some(0.75), None, [12, 8]), // 4 copies of an expert at most
        (Some(0.75), Some(&uneven), [9, 3]),
    ] {
        let experts = Experts { forced: true, capacity, ..mixtral() };
        let all = both((experts, AllToAll, routing));
        let given: usize = taken.iter().sum();
        let sent: Vec<_> = all.iter().map(|ledger| elements(ledger, Op::AllToAll) / (2 * D + 1)).collect();
        assert_eq!(sent.iter().sum::<usize>(), 2 * given, "{capacity:?}, {routing:?}");
        for (rank, ledger) in all.iter().enumerate().filter(|_| capacity.is_none()) {
            let all = 2 * SHARES[rank] + taken[rank]; // copies of its tokens, and that its experts are handed
            assert_eq!(elements(ledger, Op::AllToAll), all * (2 * D + 1), "rank {rank}, {routing:?}");
        }
        for (rank, ledger) in both((experts, AllGather, routing)).iter().enumerate() {
            let gathered = SHARES[rank] * (2 * D + 4); // X, dY; two gates and two experts of each token
            assert_eq!(elements(ledger, Op::AllGather), gathered, "rank {rank}");
            let scattered = 11 * (2 * D + 2); // Y, dX and gates' gradients
            assert_eq!(elements(ledger, Op::ReduceScatter), scattered, "rank {rank}");
        }
    }
}

/// Every microbatch is routed as none was before. Memory is taken only when experts here are handed a 16th
/// more than ever before. Kills: room that is taken anew where the number of rows is another than before, in
/// a direction, a list or an exchange; a piece that is not given back.
#[test]
fn no_memory_is_taken_in_a_steady_state_though_counts_vary() {
    fn varied<X: super::TokenDispatcher<Cpu<f32>> + Copy>(of: (Experts, X)) {
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let mut layer = built((&device, &mesh), &RandomValues { seed: 7 }, of)?;
            let mut seen = Vec::new();
            for salt in 0..64 {
                let held = device.meter().now(Category::Activations);
                ran((&device, &mesh), &mut layer, (&[7, 40, 3], 2 * salt))?;
                assert_eq!(device.meter().now(Category::Activations), held, "what was kept is given back");
                seen.push((layer.room.rows(), device.meter().reserved()));
            }
            Ok::<_, Error>(seen)
        };
        for seen in World::threads(WORLDS[1]).unwrap().run(run).unwrap_or_else(|why| panic!("{why}")) {
            let grew = seen.windows(2).filter(|pair| pair[0].0 < pair[1].0).count();
            assert!(grew < 8 && seen[0].1 > 0, "{seen:?}");
            for three in seen.windows(3).filter(|three| three[0].0 == three[2].0) {
                assert_eq!(three[1].1, three[2].1, "{seen:?}");
            }
        }
    }
    let wide = |of: Experts| Experts { hidden: 64, ..of };
    for experts in [wide(deepseek()), wide(qwen())] {
        varied((experts, AllToAll));
        varied((experts, AllGather));
    }
}
