//! The whole model under every layout equals the oracle, bit for bit in the field: logits, losses, norms, every
//! gradient, every new weight, over two clipped steps of two ragged microbatches.
use equipart::Layout;
use equipart::prove::{Subject, Truths, prove};
use kernels::{Activation, Heads};
use layers::{Biases, FeedForward, Kind, NormKind, Objective, Positions, Rates, Shape, Window};
use tensor::{Key, Rope, Scaling, mix};

const SHAPE: Shape = Shape {
    width: 12,
    blocks: 2,
    heads: Heads { queries: 8, keys: 4, dim: 3 },
    hidden: 8,
    vocabulary: 16,
    positions: Positions::Rotary(Rope { base: 100.0, scaling: Scaling::None }),
    ..Shape::LLAMA
};
const LAYOUTS: [&str; 9] =
    ["none", "tp=2", "tp=2,sp", "tp=4", "dp=2", "dp=3", "tp=4,sp,dp=2", "tp=4,dp=2", "tp=2,dp=3"];

/// Of each family one, with everything on that it may have, and a vocabulary that no ranks divide.
fn families() -> Vec<(&'static str, Shape)> {
    let heads = |keys| Heads { queries: 8, keys, dim: 2 };
    let gpt2 = Shape {
        norm: NormKind::Layer,
        positions: Positions::Learned(8),
        feed_forward: FeedForward::Plain(Activation::GeluTanh),
        bias: Biases { qkv: true, out: true, mlp: true },
        dropout: Rates { embedding: 0.25, attention: 0.5, residual: 0.125 },
        heads: heads(8),
        vocabulary: 17,
        tied: true,
        ..SHAPE
    };
    let qwen3 = Shape { head_norm: true, heads: heads(2), vocabulary: 13, ..SHAPE };
    let window = Some(Window { size: 2, sinks: 1, from: 1 });
    let loss = Objective { smoothing: 0.125, z: 1e-3 };
    let qkv = Biases { qkv: true, out: false, mlp: false };
    vec![
        ("gpt2", gpt2),
        ("gpt2 with erf", Shape { feed_forward: FeedForward::Plain(Activation::Gelu), tied: false, ..gpt2 }),
        ("relu", Shape { feed_forward: FeedForward::Plain(Activation::Relu), ..gpt2 }),
        ("qwen3", qwen3),
        ("qwen2", Shape { bias: qkv, head_norm: false, window, tied: true, ..qwen3 }),
        ("mistral", Shape { window: Some(Window { size: 1, sinks: 0, from: 0 }), ..SHAPE }),
        ("smoothed", Shape { loss, vocabulary: 19, heads: heads(1), ..SHAPE }),
    ]
}

/// Fixed keys, and one that no run had before.
fn keys() -> [Key; 3] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let fresh = Key(mix(now.as_nanos() as u64));
    println!("the fresh key is {:#x}", fresh.0);
    [Key(1), Key(2), fresh]
}

/// Kills, beyond what layers' own proofs do: unequal microbatches averaged, gradients of data ranks not summed or
/// averaged, a norm that counts replicas, decay of gains, moments mixed up, accumulation overwritten or kept on.
fn equal(tied: bool, optimizer: (Kind, Option<f64>)) {
    let (keys, truths) = (keys(), Truths::default());
    let shape = Shape { tied, ..SHAPE };
    let most: Layout = "dp=3".parse().unwrap();
    let subject = Subject { optimizer, ..Subject::small(shape, &most).unwrap() };
    for layout in LAYOUTS {
        let layout: Layout = layout.parse().unwrap();
        let verdict = prove(&subject, &layout, &keys, &truths).unwrap();
        assert!(verdict.equal, "tied {tied}, {optimizer:?}: {}", verdict.statement());
        let a_rank = 1 + 2 * (2 + 2 * if tied { 14 } else { 15 }); // logits; loss, norm², gradients, weights
        assert_eq!(verdict.tensors, a_rank * keys.len() * layout.ranks(), "{layout}");
    }
}

#[test]
fn plain_descent_equals_the_oracle_under_every_layout() {
    equal(false, (Kind::Sgd, Some(0.5)));
    equal(true, (Kind::Sgd, None));
}

#[test]
fn adamw_equals_the_oracle_under_every_layout() {
    equal(false, (Kind::ADAMW, Some(0.5)));
    equal(true, (Kind::ADAMW, Some(0.5)));
}

/// Kills, beyond what layers' own proofs do: a mask of dropout that depends on the layout or the microbatch, documents
/// that see each other, ignored targets that count, key heads' replicas counted in the norm, positions by row.
#[test]
fn every_family_equals_the_oracle_under_every_layout() {
    let most: Layout = "dp=3".parse().unwrap();
    for (family, shape) in families() {
        let (subject, truths) = (Subject::small(shape, &most).unwrap(), Truths::default());
        for layout in LAYOUTS.iter().chain(&["tp=8", "tp=8,sp"]) {
            let verdict = prove(&subject, &layout.parse().unwrap(), &keys()[1..], &truths).unwrap();
            assert!(verdict.equal, "{family}: {}", verdict.statement());
        }
    }
}

/// The subject of a proof has what hides nothing. Kills: a drawing that loses one of its habits.
#[test]
fn a_small_subject_packs_documents_and_ignores_targets() {
    for layout in ["none", "tp=2", "dp=3"] {
        let subject = Subject::small(SHAPE, &layout.parse().unwrap()).unwrap();
        let sequences = || subject.steps.iter().flat_map(|(batch, _)| batch.microbatches().iter().flatten());
        assert!(sequences().any(|s| s.documents.len() > 1), "{layout}");
        assert!(sequences().any(|s| s.targets.contains(&tensor::IGNORED)), "{layout}");
        assert!(subject.steps.iter().all(|(batch, _)| batch.counted() < batch.tokens()), "{layout}");
    }
}

/// A window that short texts would not show is narrowed, and that is said; few positions make short documents.
/// Kills: a proof that never looks through the window it was asked about.
#[test]
fn a_subject_shows_its_window_and_keeps_to_its_positions() {
    let window = |size| Some(Window { size, sinks: 0, from: 0 });
    let layout = Layout::default();
    let wide = Subject::small(Shape { window: window(4096), ..SHAPE }, &layout).unwrap();
    assert_eq!((wide.shape.window, wide.narrowed), (window(2), Some(2)));
    assert!(wide.texts.iter().any(|(ids, _)| ids.len() > 2), "a token beyond the window");
    let says = prove(&wide, &layout, &[Key(1)], &Truths::default()).unwrap().statement();
    assert!(says.contains("narrowed to 2 tokens"), "{says}");
    let narrow = Subject::small(Shape { window: window(2), ..SHAPE }, &layout).unwrap();
    assert_eq!(narrow.narrowed, None);
    for n in [1, 2, 3] {
        let shape = Shape { positions: Positions::Learned(n), ..SHAPE };
        let verdict = prove(&Subject::small(shape, &layout).unwrap(), &layout, &[Key(1)], &Truths::default());
        assert!(verdict.unwrap().equal, "{n} positions");
    }
}

/// Another oracle is told apart: what differs first is named, with the rank and how many elements.
#[test]
fn another_model_is_rejected_by_name() {
    let layout: Layout = "tp=2".parse().unwrap();
    let subject = Subject::small(SHAPE, &layout).unwrap();
    let mut other = subject.clone();
    other.steps[0].1 = 0.5; // half the learning rate
    let truths = Truths::default();
    assert!(prove(&other, &layout, &[Key(1)], &truths).unwrap().equal);
    let verdict = prove(&subject, &layout, &[Key(1)], &truths).unwrap();
    let first = verdict.first_difference.clone().unwrap();
    assert!(!verdict.equal && first.name == "step 0: new embedding" && first.rank == 0, "{first:?}");
    assert!(first.differ > 0 && first.differ <= first.of && first.of == 16 * 12, "{first:?}");
    let says = verdict.statement();
    assert!(says.contains("Not equal") && says.contains("\"step 0: new embedding\", rank 0"), "{says}");
}

#[test]
fn the_bound_is_small_and_grows_with_the_shapes() {
    let bound = |blocks| {
        let shape = Shape { blocks, ..SHAPE };
        Subject::small(shape, &Layout::default()).unwrap().bound_log2(2).unwrap()
    };
    assert!(bound(1) < -50.0 && bound(1) < bound(2) && bound(2) < -40.0, "{} {}", bound(1), bound(2));
}

#[test]
fn layouts_that_do_not_fit_are_refused_before_anything_runs() {
    let why = |layout: &str| {
        let layout: Layout = layout.parse().unwrap();
        prove(&Subject::small(SHAPE, &layout).unwrap(), &layout, &[Key(1)], &Truths::default())
            .unwrap_err()
            .why
    };
    assert_eq!(
        why("tp=16"),
        "tp=16 does not fit 8 query heads and 8 hidden features: tp can be 1, 2, 4 or 8"
    );
    assert!(why("tp=3").ends_with("tp can be 1, 2, 4 or 8"), "{}", why("tp=3"));
}
