//! Facts that a proof in the field does not cover, each with a test of its own: constants that its inputs
//! leave dead, ties, rounding that grows with the ranks. Sums that floats take exactly, too: there every
//! order must give the same bits.
use comm::{Axis, Mesh, World};
use kernels::{Heads, Kernels};
use layers::build::strategy::{Column, Row};
use layers::{
    Blocks, Builder, ColumnLinear, Design, Layer, Objective, OptimizerKind, Pattern, Positions, Rates,
    RowLinear, Shape, Window,
};
use models::embedded;
use models::sampling::Sampling;
use models::text::Corpus;
use ops::{ADAMW, Draw, ParamValues, PassContext, RandomValues, SGD, Stream, ValueSource};
use parallel::{Batch, Layout, Stages, Trainer};
use prove::{OracleTraces, Subject, prove};
use run::train::settings::sequences;
use tensor::{Category, Cpu, Device, Key, Real, Rope, Scalar, Scaling, Tensor, TokenIds};

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// A shape whose every constant does something: nothing is 0, and the window is narrower than the texts.
const ALIVE: Shape = Shape {
    width: 12,
    blocks: 2,
    heads: Heads::new(4, 2, 4),
    hidden: 8,
    vocabulary: 16,
    eps: 1e-5,
    positions: Positions::Rotary(Rope { base: 100.0, scaling: Scaling::Linear { factor: 2.0 } }),
    window: Some(Window { size: 2, sinks: 1 }),
    pattern: Pattern {
        whole: Blocks::FIRST,
        other_positions: Blocks::FIRST,
        other_rope: Some(Rope { base: 50.0, scaling: Scaling::None }),
        ..Pattern::NONE
    },
    dropout: Rates { embedding: 0.25, attention: 0.5, residual: 0.125 },
    loss: Objective { smoothing: 0.125, z: 1e-3 },
    ..Shape::LLAMA
};

/// A constant, and another value of it.
type Change = (&'static str, fn(&mut Subject));

/// Each constant, changed in the program and not in the oracle.
fn changes() -> Vec<Change> {
    const fn adamw(beta1: f64, beta2: f64, eps: f64, decay: f64) -> OptimizerKind {
        ADAMW.with(&[beta1, beta2, eps, decay])
    }
    vec![
        ("ε of the norms", |s| shape(s).eps = 1.1e-5),
        ("the rotary base", |s| {
            shape(s).positions =
                Positions::Rotary(Rope { base: 101.0, scaling: Scaling::Linear { factor: 2.0 } });
        }),
        ("the rotary scaling", |s| {
            shape(s).positions =
                Positions::Rotary(Rope { base: 100.0, scaling: Scaling::Linear { factor: 2.5 } });
        }),
        ("the window", |s| shape(s).window = Some(Window { size: 1, sinks: 1 })),
        ("the sinks", |s| shape(s).window = Some(Window { size: 2, sinks: 0 })),
        ("the blocks without the window", |s| shape(s).pattern.whole = Blocks::NONE),
        ("the other rotary base", |s| {
            shape(s).pattern.other_rope = Some(Rope { base: 51.0, scaling: Scaling::None });
        }),
        ("the block of the other base", |s| shape(s).pattern.other_positions = vec![1].into()),
        ("the embedding's dropout", |s| shape(s).dropout.embedding = 0.26),
        ("attention's dropout", |s| shape(s).dropout.attention = 0.51),
        ("the residuals' dropout", |s| shape(s).dropout.residual = 0.126),
        ("the smoothing", |s| shape(s).loss.smoothing = 0.126),
        ("the z-loss", |s| shape(s).loss.z = 1.1e-3),
        ("the rate", |s| s.steps[1].1 = 1.1),
        ("the clip limit", |s| s.optimizer.1 = Some(0.51).into()),
        ("β₁", |s| s.optimizer.0 = adamw(0.91, 0.95, 1e-8, 0.1)),
        ("β₂", |s| s.optimizer.0 = adamw(0.9, 0.96, 1e-8, 0.1)),
        ("Adam's ε", |s| s.optimizer.0 = adamw(0.9, 0.95, 1.1e-8, 0.1)),
        ("the decay", |s| s.optimizer.0 = adamw(0.9, 0.95, 1e-8, 0.11)),
    ]
}

/// The shape of a transformer under proof.
fn shape(subject: &mut Subject) -> &mut Shape {
    let Design::Transformer(shape) = &mut subject.model else { unreachable!("it has ids") };
    shape
}

/// The oracle runs once, with the constants as they are; then the program, with one of them changed. Kills: a
/// subject whose inputs multiply a constant by what is always 0, or never reach it: then the proof would say
/// nothing of it.
#[test]
fn every_constant_that_is_changed_is_seen() {
    let (none, key) = (layout("none"), [Key(11)]);
    let subject = Subject { optimizer: (ADAMW, Some(0.5).into()), ..Subject::small(ALIVE, &none).unwrap() };
    assert_eq!(subject.model, ALIVE.into(), "nothing was narrowed");
    let truths = OracleTraces::only(subject.clone());
    assert!(prove(&subject, &none, &key, &truths).unwrap().equal);
    for (what, change) in changes() {
        let mut changed = subject.clone();
        change(&mut changed);
        assert!(!prove(&changed, &none, &key, &truths).unwrap().equal, "{what} is dead");
    }
    let mut wide = ALIVE;
    wide.window = Some(Window { size: 1000, sinks: 1 });
    let wide = Subject { model: wide.into(), ..subject };
    let truths = OracleTraces::only(wide.clone());
    assert!(prove(&wide, &none, &key, &truths).unwrap().equal);
    let mut wider = wide.clone();
    shape(&mut wider).window = Some(Window { size: 1001, sinks: 1 });
    assert!(
        prove(&wider, &none, &key, &truths).unwrap().equal,
        "what no text shows is dead, and has to be narrowed"
    );
}

/// Weights of few values: each row of the embedding has one feature, blocks add nothing, the head's columns
/// repeat. So a logit is one product, exact in any order, and many are the same.
struct Tied;
impl<S: Scalar> ValueSource<S> for Tied {
    fn of(&self, name: &str, _: [usize; 2], _: Draw) -> ops::Result<ParamValues<'_, S>> {
        let number = match name {
            "embedding" => |[row, column]: [usize; 2]| f64::from(u8::from(row % 8 == column)),
            "head" => |[row, column]: [usize; 2]| [1.0, -1.0, 3.0, 0.0, 3.0][(row + column) % 5],
            name if name.ends_with("attention.out") || name.ends_with("mlp.down") => |_| 0.0,
            _ => |_| 1.0,
        };
        Ok(ParamValues::each(move |at| S::from_f64(number(at))))
    }
}

/// Kills: a tie that goes to whichever rank's share comes last, or to the higher id; candidates of equal
/// logits in an order that depends on the layout.
#[test]
fn ties_go_to_the_lower_id_under_every_layout() {
    let heads = Heads::new(4, 4, 2);
    let shape = Shape { width: 8, heads, hidden: 8, vocabulary: 19, ..Shape::LLAMA };
    let ids: Vec<u32> = (0..19).collect();
    let logits = |text: &str| -> Vec<f32> {
        let layout = layout(text);
        let world = World::threads(&layout.axes()).unwrap();
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let mut chunk = Stages::new(&layout.place(&device, &mesh, &Tied), shape)?;
            let ids = TokenIds::new(device.place(), &ids, shape.vocabulary)?;
            Ok::<_, parallel::Error>(chunk.logits(&PassContext::infer([10, 9]), ids, true)?.read().unwrap())
        };
        world.run(run).unwrap().swap_remove(0)
    };
    let alone = logits("none");
    for text in ["tp=2", "tp=2,sp", "tp=4", "tp=4,sp"] {
        assert_eq!(logits(text), alone, "{text}");
    }
    let top = |k| Sampling { temperature: Some(0.5), top_k: Some(k), seed: 3, ..Sampling::default() };
    for (position, row) in alone.chunks(19).enumerate() {
        let largest = row.iter().fold(f32::MIN, |m, &x| m.max(x));
        let ties: Vec<usize> = (0..19).filter(|&id| row[id] == largest).collect();
        assert!(ties.len() >= 7, "{row:?}");
        let greedy = Sampling::default().choose(row, 0, position).unwrap();
        assert_eq!((greedy.id as usize, greedy.margin), (ties[0], 0.0));
        assert_eq!(top(1).choose(row, 0, position).unwrap().id as usize, ties[0]);
        for sequence in 0..20 {
            let id = top(3).choose(row, sequence, position).unwrap().id as usize;
            assert!(ties[..3].contains(&id), "{id} is not among the first three of {ties:?}");
        }
    }
}

/// The gradients of one step on the embedded text, under a layout: those of the parameters, one after the
/// other.
fn gradients<S: Real<Wide = S>>(shape: &Shape, text: &str) -> Vec<f64>
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host>,
{
    let (layout, corpus) = (layout(text), Corpus::new(embedded::CORPUS, "the embedded text", 16).unwrap());
    let batch = Batch::new(sequences(corpus.batch(1, 0, 8, 16)), 1).unwrap();
    let run = |device: Cpu<S>, mesh: Mesh<_>| {
        let at = layout.place(&device, &mesh, &Rounded);
        let mut trainer = Trainer::new(&at, shape, (SGD, None))?;
        trainer.step(&batch, 0.0)?;
        let mut all = Vec::new();
        for param in trainer.model().params() {
            all.extend(param.gather_gradient(&mesh)?.unwrap().into_iter().map(Real::to_f64));
        }
        Ok::<_, parallel::Error>(all)
    };
    World::threads(&layout.axes()).unwrap().run(run).unwrap().swap_remove(0)
}

/// Random weights as f32 holds them, in any number.
struct Rounded;
impl<S: Scalar> ValueSource<S> for Rounded {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> ops::Result<ParamValues<'_, S>> {
        static RANDOM: RandomValues = RandomValues { seed: 2 };
        let numbers: ParamValues<f32> = RANDOM.of(name, shape, draw)?;
        Ok(numbers.map(|_, x| S::from_f64(f64::from(x))))
    }
}

/// Kills: an order of sums, or a number in between, that loses digits as ranks are added.
#[test]
fn errors_do_not_grow_with_the_ranks() {
    let heads = Heads::new(8, 8, 8);
    let shape = Shape { width: 64, blocks: 4, heads, hidden: 128, vocabulary: 256, ..Shape::LLAMA };
    let truth = gradients::<f64>(&shape, "none");
    let size = truth.iter().map(|x| x.abs()).sum::<f64>();
    let mut alone = 0.0;
    for text in ["none", "tp=2", "tp=4", "tp=8", "tp=8,sp", "dp=2", "dp=4", "dp=8"] {
        let apart =
            gradients::<f32>(&shape, text).iter().zip(&truth).map(|(x, t)| (x - t).abs()).sum::<f64>();
        let error = apart / size;
        alone = if text == "none" { error } else { alone };
        assert!(error > 0.0 && error <= 2.0 * alone && error < 1e-5, "{text}: {error:e}, alone {alone:e}");
    }
}

/// Small whole numbers by hash of a name and an index.
struct Whole;
impl<S: Scalar> ValueSource<S> for Whole {
    fn of(&self, name: &str, _: [usize; 2], _: Draw) -> ops::Result<ParamValues<'_, S>> {
        let salt = name.bytes().map(u64::from).sum::<u64>();
        Ok(ParamValues::each(move |[row, column]| whole(salt, row * 1000 + column)))
    }
}

fn whole<S: Scalar>(salt: u64, i: usize) -> S {
    S::from_f64((tensor::mix(salt ^ tensor::mix(i as u64)) % 7) as f64 - 3.0)
}

/// A column layer, a row layer after it, and both backward, on whole numbers: everything that comes out.
fn both_layers<S: Real<Wide = S>>(ranks: usize, regions: bool) -> Vec<f64>
where
    Cpu<S>: Kernels<Elem = S, Place = tensor::Host>,
{
    let run = |device: Cpu<S>, mesh: Mesh<_>| {
        let at = Builder::new(&device, &mesh, &Whole);
        let at = if regions { at.in_regions() } else { at };
        let mut column = ColumnLinear::shard(
            &at,
            &Column { axis: Axis::Tp, name: "column", inputs: 20, sections: &[40.into()], bias: true },
        )?;
        let mut row =
            RowLinear::shard(&at, &Row { axis: Axis::Tp, name: "row", sizes: [40, 20], bias: true })?;
        let matrix = |salt| Tensor::from_fn(&device, Category::Activations, 7, 20, |i| whole(salt, i));
        let (x, dy) = (Stream::cut(&matrix(1), at.region), Stream::cut(&matrix(2), at.region));
        let (cx, tp) = (PassContext::train(0, [7], 1), mesh.group(Axis::Tp));
        let (h, kept) = column.forward(&cx, x)?;
        let (y, kept_h) = row.forward(&cx, h)?;
        let (dh, pending) = row.backward_input(&cx, kept_h, dy)?;
        row.backward_weight(&cx, pending)?;
        let (dx, pending) = column.backward_input(&cx, kept, dh)?;
        column.backward_weight(&cx, pending)?;
        let mut all: Vec<S> = [y.gather(tp)?.read().unwrap(), dx.gather(tp)?.read().unwrap()].concat();
        let mut params = layers::Params::new();
        column.params(&mut params);
        row.params(&mut params);
        for param in params {
            param.sync()?;
            all.extend(param.gather_gradient(&mesh)?.unwrap());
        }
        Ok::<_, ops::Error>(all.into_iter().map(Real::to_f64).collect())
    };
    World::threads(&[(Axis::Tp, ranks)]).unwrap().run(run).unwrap().swap_remove(0)
}

/// The largest number is below 2^24, so f32 rounds nothing. Kills: a sum or a product in f32 that drops or
/// doubles an addend where the field's own code does not, in the SIMD kernels above all; a collective that
/// rounds on the way.
#[test]
fn whole_numbers_have_the_same_bits_under_every_split() {
    let truth = both_layers::<f64>(1, false);
    let largest = truth.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    assert!(largest > 500.0 && largest < f64::from(1 << 24) && truth.iter().all(|x| x.fract() == 0.0));
    for (ranks, regions) in [1, 2, 4, 8].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        assert!(both_layers::<f32>(ranks, regions) == truth, "{ranks} ranks, regions {regions}");
    }
}
