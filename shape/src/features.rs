//! The table of a model's options, one entry each. A model's description, the random models of proofs, the
//! report of options that a proof did not try, the panel of small models and the keys of `config.json` are
//! built from this table: a new entry appears in all of them.
use crate::Activation::{Gelu, GeluTanh, Relu};
use crate::FeedForward::{Gated, Plain};
use crate::Gate::{Clamped, GeluTanh as GeGlu};
use crate::NormKind::{Layer, Rms};
use crate::Positions::{Learned, Rotary};
use crate::Scoring::{Sigmoid, Softmax};
use crate::{
    Blocks, Experts, FeedForward, Groups, Heads, Latent, NormPlaces, Shape, SharedExpert, Window, counted,
};
use tensor::{Rope, Scaling};

/// An option of a model.
#[derive(Debug)]
pub struct Feature {
    /// Name of the option: "a tied head".
    pub what: &'static str,
    /// Percentage of random models that ask for the option; a later option may remove it again. 0: no random
    /// model and no family has it; it is for measurements, or for models of one's own.
    pub often: u32,
    /// Key of `config.json` that holds this option alone, in files of `equipart_moe`, and the field it sets.
    pub key: Option<(&'static str, ConfigField)>,
    is: Is,
}

/// A field of [`Experts`] that has a key of its own in files.
#[derive(Clone, Copy, Debug)]
pub enum ConfigField {
    /// True or false.
    Switch(fn(&mut Experts) -> &mut bool),
    /// A number of 0 or more.
    Weight(fn(&mut Experts) -> &mut f64),
    /// A number above 0.
    Factor(fn(&mut Experts) -> &mut f64),
    /// A number above 0, or null.
    Limit(fn(&mut Experts) -> &mut Option<f64>),
}

/// Words of a feature, and access to it in a shape.
#[derive(Debug)]
enum Is {
    /// A switch: its words in a description, and its field. The field is `None` if the model has no such
    /// part.
    Flag(&'static str, fn(&mut Shape) -> Option<&mut bool>),
    /// A number above 0: its words in a description, its field, and values to try.
    Rate(&'static str, fn(&mut Shape) -> Option<&mut f64>, &'static [f64]),
    /// Anything else: a test for it, its words in a description (or none), and a function that gives a model
    /// one of its values.
    Part(fn(&Shape) -> bool, fn(&Shape) -> String, fn(&mut Shape, usize)),
    /// The same for an option of a model's experts.
    Routed(fn(&Experts) -> bool, fn(&Experts) -> String, fn(&mut Experts, usize)),
}
use ConfigField::{Factor, Limit, Switch, Weight};
use Is::{Flag, Part, Rate, Routed};

impl Feature {
    /// Returns true if a model has the option.
    pub fn is_of(&self, shape: &Shape) -> bool {
        let mut shape = *shape;
        match self.is {
            Flag(_, at) => at(&mut shape).is_some_and(|on| *on),
            Rate(_, at, _) => at(&mut shape).is_some_and(|rate| *rate > 0.0),
            Part(has, ..) => has(&shape),
            Routed(has, ..) => shape.experts.as_ref().is_some_and(has),
        }
    }
    /// Returns the option's words in the description of a model that has it; empty if another entry describes
    /// it.
    pub(crate) fn words(&self, shape: &Shape) -> String {
        let mut shape = *shape;
        match self.is {
            Flag(name, _) => name.to_string(),
            Rate(name, at, _) => at(&mut shape).map_or_else(String::new, |rate| format!("{name} {rate}")),
            Part(_, words, _) => words(&shape),
            Routed(_, words, _) => shape.experts.as_ref().map_or_else(String::new, words),
        }
    }
    /// Gives the option to a model, with a value that depends on `n`. A model without experts gets no option
    /// of experts.
    pub fn give(&self, shape: &mut Shape, n: usize) {
        match self.is {
            Flag(_, at) => at(shape).into_iter().for_each(|on| *on = true),
            Rate(_, at, values) => at(shape).into_iter().for_each(|rate| *rate = values[n % values.len()]),
            Part(.., give) => give(shape, n),
            Routed(.., give) => shape.experts.iter_mut().for_each(|experts| give(experts, n)),
        }
    }
}

/// Makes a table of features. An entry has a name, a percentage, and a part, a flag or a rate; then the key
/// of `config.json` that holds the option alone, if there is one, and its field.
macro_rules! features {
    () => { None };
    ($key:literal $field:expr) => { Some(($key, $field)) };
    ($($what:literal $often:literal $is:expr $(, $key:literal $field:expr)?;)*) => {
        &[$(Feature { what: $what, often: $often, is: $is, key: features!($($key $field)?) }),*]
    };
}

/// All options, in the order of a description.
pub const FEATURES: &[Feature] = features! {
    "RMS norm" 50
        Part(|s| s.norm == Rms, |s| format!("RMS norm, ε {}", s.eps), |s, n| s.eps = [0.25, 1e-5][n % 2]);
    "layer norm" 50
        Part(|s| s.norm == Layer, |s| format!("layer norm, ε {}", s.eps), |s, _| s.norm = Layer);
    "norms after attention and feed-forward" 25 Part(
        |s| s.norms == NormPlaces::After, |_| "norms after both parts".into(), |s, _| s.norms = NormPlaces::After
    );
    "norms before and after attention and feed-forward" 25 Part(
        |s| s.norms == NormPlaces::Both, |_| "norms before and after both parts".into(),
        |s, _| s.norms = NormPlaces::Both
    );
    "an embedding that is multiplied" 25 Part(
        |s| s.embedding_root.is_some(),
        |s| s.embedding_root.map_or_else(String::new, |root| format!("embedding × √{root}")),
        |s, n| s.embedding_root = Some(2 + n % 7)
    );
    "a cap of logits" 25 Part(
        |s| s.logit_cap.is_some(),
        |s| s.logit_cap.map_or_else(String::new, |cap| format!("logits capped at {cap}")),
        |s, n| s.logit_cap = Some([1.5, 4.0][n % 2])
    );
    "SwiGLU" 1 Part(
        |s| s.feed_forward == FeedForward::SWIGLU, |_| "SwiGLU".into(), |s, _| s.feed_forward = FeedForward::SWIGLU
    );
    "GeGLU" 33
        Part(|s| s.feed_forward == Gated(GeGlu), |_| "GeGLU".into(), |s, _| s.feed_forward = Gated(GeGlu));
    "clamped SwiGLU" 25 Part(
        |s| s.feed_forward == Gated(Clamped), |_| "clamped SwiGLU".into(), |s, _| s.feed_forward = Gated(Clamped)
    );
    "GELU" 33 Part(|s| s.feed_forward == Plain(Gelu), |_| "GELU".into(), |s, _| s.feed_forward = Plain(Gelu));
    "GELU by tanh" 33
        Part(|s| s.feed_forward == Plain(GeluTanh), |_| "GELU by tanh".into(), |s, _| s.feed_forward = Plain(GeluTanh));
    "ReLU" 25
        Part(|s| s.feed_forward == Plain(Relu), |_| "ReLU".into(), |s, _| s.feed_forward = Plain(Relu));
    "rotary positions" 50
        Part(|s| rope(s).is_some(), rotary, |s, n| s.positions = Rotary([100.0, 10_000.0][n % 2].into()));
    "rotary positions, scaled" 66
        Part(|s| rope(s).is_some_and(|rope| rope.scaling != Scaling::None), nothing, scale);
    "learned positions" 33 Part(
        |s| s.context().is_some(),
        |s| counted(s.context().unwrap_or(0), "learned position"),
        |s, n| s.positions = Learned(1 + n % 7)
    );
    "experts" 30 Part(
        |s| s.experts.is_some(),
        |s| s.experts.map_or_else(String::new, |e| {
            format!("{} of {} hidden, {} chosen", counted(e.count, "expert"), e.hidden, e.chosen)
        }),
        |s, n| {
            let hidden = 1 + n / 21 % 5;
            s.experts = Some(Experts { count: 1 + n % 7, chosen: 1 + n / 7 % 3, hidden, ..Experts::MIXTRAL });
            s.bias.mlp = false;
        }
    );
    "experts by softmax" 1 Routed(|e| e.scoring == Softmax, |e| scored("softmax", e), |_, _| ());
    "experts by sigmoids" 50
        Routed(|e| e.scoring == Sigmoid, |e| scored("sigmoids", e), |e, _| e.scoring = Sigmoid);
    "experts by sigmoids with a bias" 50 Routed(
        |e| e.scoring == Sigmoid && e.bias.is_some(), nothing, |e, _| e.bias = (e.scoring == Sigmoid).then_some(0.0)
    );
    "a bias of the choice that moves after each step" 50
        Routed(|e| e.bias.is_some_and(|rate| rate > 0.0), nothing, |e, _| e.bias = e.bias.map(|_| 0.25));
    "groups of experts" 40 Routed(
        |e| e.groups.is_some(),
        |e| e.groups.map_or_else(String::new, grouped),
        |e, n| e.groups = Some(Groups { count: 1 + n % 3, chosen: 1 + n / 3 % 2 })
    );
    "groups of experts, not all of which are chosen" 1 Routed(
        |e| e.groups.is_some_and(|groups| groups.chosen < groups.count),
        nothing,
        |e, _| e.groups = Some(Groups { count: 2, chosen: 1 })
    );
    "gates of sum 1" 1 Flag("gates of sum 1", |s| Some(&mut s.experts.as_mut()?.normalize)),
        "norm_topk_prob" Switch(|e| &mut e.normalize);
    "gates that are not of sum 1" 50 Routed(|e| !e.normalize, nothing, |e, _| e.normalize = false);
    "gates that are multiplied" 50
        Routed(|e| e.scale != 1.0, |e| format!("gates × {}", e.scale), |e, _| e.scale = 2.5),
        "routed_scaling_factor" Factor(|e| &mut e.scale);
    "experts with a capacity" 50 Routed(
        |e| e.capacity.is_some(),
        |e| format!("capacity {}", e.capacity.unwrap_or(0.0)),
        |e, n| e.capacity = Some([0.5, 0.5, 1.25][n % 3])
    ),
        "capacity_factor" Limit(|e| &mut e.capacity);
    "a shared expert without a gate" 33 Routed(
        |e| e.shared.is_some_and(|shared| !shared.gated),
        |e| shared(e, ""),
        |e, n| e.shared = Some(SharedExpert { hidden: 1 + n % 4, gated: false })
    );
    "a shared expert with a gate" 33 Routed(
        |e| e.shared.is_some_and(|shared| shared.gated),
        |e| shared(e, " with a gate"),
        |e, n| e.shared = Some(SharedExpert { hidden: 1 + n % 4, gated: true })
    );
    "biases of the router and of experts" 33
        Flag("biases of the router and of experts", |s| Some(&mut s.experts.as_mut()?.biases)),
        "expert_biases" Switch(|e| &mut e.biases);
    "a balance of microbatches" 50
        Rate("balance of microbatches", |s| Some(&mut s.experts.as_mut()?.balance.microbatch), &[0.125]);
    "a balance of sequences" 50
        Rate("balance of sequences", |s| Some(&mut s.experts.as_mut()?.balance.sequence), &[0.125]),
        "sequence_balance_loss_coef" Weight(|e| &mut e.balance.sequence);
    "a balance of all blocks together" 50
        Rate("balance of all blocks together", |s| Some(&mut s.experts.as_mut()?.balance.pooled), &[0.125]);
    "z-loss of the router" 50
        Rate("z-loss of the router", |s| Some(&mut s.experts.as_mut()?.balance.z), &[0.125]),
        "router_z_loss_coef" Weight(|e| &mut e.balance.z);
    "noise of the router" 30 Rate("noise of the router", |s| Some(&mut s.experts.as_mut()?.noise), &[0.5]),
        "router_noise" Weight(|e| &mut e.noise);
    "experts in some blocks only" 30 Part(
        |s| s.experts.is_some() && s.kinds().iter().any(|kind| kind.shape.experts.is_none()),
        |s| format!("no experts in block {}", numbers(s.pattern.dense)),
        |s, n| s.pattern.dense = [n % 2].into_iter().filter(|_| s.experts.is_some()).collect()
    );
    "experts that choose tokens" 25 Routed(|e| e.by_experts, |_| "experts choose tokens".into(), choosing),
        "expert_choice" Switch(|e| &mut e.by_experts);
    "tokens dealt to experts in turn" 0 Flag("tokens dealt in turn", |s| Some(&mut s.experts.as_mut()?.forced));
    "an id of padding" 30 Part(
        |s| s.padding.is_some(), |s| format!("padding {}", s.padding.unwrap_or(0)), |s, n| s.padding = Some(n % 6)
    );
    "a window" 50 Part(
        |s| s.window.is_some(),
        windowed,
        |s, n| {
            s.window = Some(Window { size: 1 + n % 3, sinks: n / 3 % 3 });
            s.pattern.whole = (0..n / 9 % 2).collect();
        }
    );
    "value heads of another size" 25 Part(
        |s| s.heads.value != s.heads.dim,
        |s| format!("value heads of {}", counted(s.heads.value, "feature")),
        |s, n| s.heads.value = 1 + n % 5
    );
    "a part of each head rotated" 25 Part(
        |s| rope(s).is_some() && s.heads.rotated < s.heads.dim,
        |s| format!("{} rotated after {} of a head", counted(s.heads.rotated, "feature"), s.heads.plain),
        |s, n| (s.heads.plain, s.heads.rotated) = (n % 2 * (s.heads.dim / 2), s.heads.dim / 2)
    );
    "rotary pairs of neighbours" 25
        Flag("pairs of neighbours", |s| rope(s).is_some().then_some(&mut s.heads.neighbours));
    "scores multiplied by a factor" 25 Part(
        |s| s.scores.factor.is_some(),
        |s| s.scores.factor.map_or_else(String::new, |factor| format!("scores × {factor}")),
        |s, n| s.scores.factor = Some([0.75, 1.5][n % 2])
    );
    "scores divided by another root" 25 Part(
        |s| s.scores.divisor.is_some_and(|divisor| divisor != s.heads.dim),
        |s| s.scores.divisor.map_or_else(String::new, |divisor| format!("scores divided by √{divisor}")),
        |s, n| s.scores.divisor = Some(1 + n % 9)
    );
    "a cap of scores" 25 Part(
        |s| s.scores.cap.is_some(),
        |s| s.scores.cap.map_or_else(String::new, |cap| format!("scores capped at {cap}")),
        |s, n| s.scores.cap = Some([1.5, 4.0][n % 2])
    );
    "a sink of each head" 25 Flag("a sink of each head", |s| Some(&mut s.scores.sinks));
    "a tied head" 50 Flag("tied head", |s| Some(&mut s.tied));
    "norms of queries and keys" 50 Flag("norms of queries and keys", |s| Some(&mut s.head_norm));
    "one norm of all queries, and one of all keys" 25 Part(
        |s| s.joint_norm,
        |_| "one norm of all queries, and one of all keys".into(),
        |s, _| (s.head_norm, s.joint_norm) = (false, true)
    );
    "bias of queries, keys and values" 50 Flag("bias of QKV", |s| Some(&mut s.bias.qkv));
    "bias of attention's output" 50 Flag("bias of attention's output", |s| Some(&mut s.bias.out));
    "keys and values from a latent" 25 Part(
        |s| s.latent.is_some(),
        |s| s.latent.map_or_else(String::new, |of| format!("keys and values from a latent of {}", of.keys)),
        |s, n| {
            s.latent = Some(Latent { keys: 1 + n % 4, queries: None, eps: [0.125, 1e-6][n / 4 % 2] });
            let Heads { queries, plain, rotated, .. } = s.heads;
            let dim = s.heads.dim.max(2);
            let plain = plain.clamp(1, dim - 1);
            s.heads = Heads { keys: queries, dim, plain, rotated: rotated.min(dim - plain), ..s.heads };
            (s.bias.qkv, s.scores.sinks) = (false, false);
            (s.head_norm, s.joint_norm) = (false, false);
        }
    );
    "queries from a latent, too" 50 Part(
        |s| s.latent.is_some_and(|of| of.queries.is_some()),
        |s| s.latent.and_then(|of| of.queries).map_or_else(String::new, |n| format!("queries from one of {n}")),
        |s, n| s.latent = s.latent.map(|of| Latent { queries: Some(1 + n % 3), ..of })
    );
    "biases of the feed-forward" 50
        Flag("biases of the feed-forward", |s| s.experts.is_none().then_some(&mut s.bias.mlp));
    "dropout of the embedding" 75 Rate("dropout of the embedding", |s| Some(&mut s.dropout.embedding), RATES);
    "dropout of probabilities" 75 Rate("dropout of probabilities", |s| Some(&mut s.dropout.attention), RATES);
    "dropout of residuals" 75 Rate("dropout of residuals", |s| Some(&mut s.dropout.residual), RATES);
    "smoothed labels" 50 Rate("label smoothing", |s| Some(&mut s.loss.smoothing), &[0.125]);
    "z-loss" 50 Rate("z-loss", |s| Some(&mut s.loss.z), &[1e-3]);
    "other positions in some blocks" 33 Part(
        |s| rope(s).is_some() && s.kinds().iter().any(|kind| kind.shape.rope != rope(s)),
        |s| {
            let base = s.pattern.other_rope.map_or("no positions".into(), |rope| format!("rotary from {}", rope.base));
            format!("{base} in block {}", numbers(s.pattern.other_positions))
        },
        |s, n| {
            s.pattern.other_positions = [n % 2].into_iter().filter(|_| rope(s).is_some()).collect();
            s.pattern.other_rope = [None, Some(300.0.into())][n / 2 % 2];
        }
    );
};

/// Dropout rates.
const RATES: &[f64] = &[0.125, 0.25, 0.5];

fn numbers(blocks: Blocks) -> String {
    blocks.iter().map(|block| block.to_string()).collect::<Vec<_>>().join(" and ")
}
fn scored(by: &str, experts: &Experts) -> String {
    let moves = |rate: f64| if rate > 0.0 { format!(" that moves by {rate}") } else { String::new() };
    format!(
        "by {by}{}",
        experts.bias.map_or_else(String::new, |r| format!(" with a bias of the choice{}", moves(r)))
    )
}
fn grouped(groups: Groups) -> String {
    format!("from {} of {}", groups.chosen, counted(groups.count, "group"))
}
fn shared(experts: &Experts, with: &str) -> String {
    format!("a shared expert of {} hidden{with}", experts.shared.map_or(0, |shared| shared.hidden))
}
fn choosing(experts: &mut Experts, n: usize) {
    let Experts { count, chosen, hidden, scale, shared, biases, .. } = *experts;
    let plain = Experts { count, chosen, hidden, scale, shared, biases, ..Experts::MIXTRAL };
    *experts = Experts { by_experts: true, normalize: false, capacity: Some([0.5, 1.25][n % 2]), ..plain };
}
fn windowed(shape: &Shape) -> String {
    let Some(Window { size, sinks }) = shape.window else { return String::new() };
    let (whole, first) = (shape.pattern.whole, shape.pattern.whole.iter().count());
    let places = if whole.iter().eq(0..first) {
        format!("from block {first}")
    } else {
        format!("not in block {}", numbers(whole))
    };
    format!("window {size}, {}, {places}", counted(sinks, "sink"))
}
fn rope(shape: &Shape) -> Option<Rope> {
    if let Rotary(rope) = shape.positions { Some(rope) } else { None }
}
fn scale(shape: &mut Shape, n: usize) {
    if let Rotary(rope) = &mut shape.positions {
        let llama3 = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8.0 };
        let (factor, original) = (4.0, 8.0);
        let yarn = Scaling::Yarn { factor, original, fast: 1.0, slow: 0.1, magnitude: 1.25, truncate: true };
        let [short, long] =
            [1.25, 2.5].map(|by| (0..8).map(|i| f64::from(i) * by + 1.0).collect::<Vec<_>>().into());
        let listed = Scaling::Long { short, long, original, magnitude: 1.125, reach: [8.0, 9.0][n / 5 % 2] };
        let dynamic = Scaling::Dynamic { factor, original, reach: 12.0 };
        rope.scaling = [Scaling::Linear { factor: 2.0 }, llama3, yarn, listed, dynamic][n % 5];
    }
}
/// Empty words, for a feature that another entry describes.
fn nothing<T>(_: &T) -> String {
    String::new()
}
fn rotary(shape: &Shape) -> String {
    let Some(rope) = rope(shape) else { return String::new() };
    let scaling = match rope.scaling {
        Scaling::None => "",
        Scaling::Linear { .. } => ", scaled alike",
        Scaling::Llama3 { .. } => ", scaled as Llama 3's",
        Scaling::Yarn { .. } => ", scaled by YaRN",
        Scaling::Long { .. } => ", scaled by LongRoPE",
        Scaling::Dynamic { .. } => ", scaled dynamically",
    };
    format!("rotary from {}{scaling}", rope.base)
}
