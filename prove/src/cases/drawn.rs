//! How cases are drawn: wishes, each shrinking to the plainest, and a case made of them that fits.
//!
//! Wishes are independent of each other, so each shrinks while the others stay: axes to one rank, sizes to 1, what a
//! model may have to nothing. A layout is wished for first; then the shape is brought to what its ranks can share, so
//! none is drawn in vain, and a shrunk case always fits.
use super::fitted::{fitted, sound};
use super::{Case, CaseStep, Document};
use crate::subject::reads_alone;
use comm::Axis;
use kernels::Heads;
use layers::{About, Choice, Kind};
use parallel::layout::split_axes;
use parallel::{Layout, strategies};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use shape::{FEATURES, Feature, Shape, Window};
use std::iter::successors;
use tensor::{Key as FieldKey, mix};

/// The most ranks of a drawn layout.
const RANKS: usize = 8;
/// The most tokens of a document.
const TOKENS: usize = 5;

/// The case of this number. A layout that is given is that of every case, and shapes give way to it; if no small one fits
/// it, the model stays whole.
pub fn draw(number: u64, layout: Option<Layout>) -> Case {
    wishes(number, layout).current().case(number)
}

/// All that is wished for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    shape: Shape,
    steps: (StepWish, Option<StepWish>),
    texts: Vec<(usize, usize)>,
    optimizer: (Kind, f64),
    clip: Option<f64>,
    layout: Layout,
}

/// What is wished for by this number, and what that shrinks to.
pub(super) fn wishes(number: u64, layout: Option<Layout>) -> Box<dyn ValueTree<Value = Wish>> {
    let seed: Vec<u8> =
        successors(Some(mix(number)), |n| Some(mix(*n))).take(4).flat_map(u64::to_le_bytes).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let tree = all(layout).new_tree(&mut TestRunner::new_with_rng(Config::default(), rng));
    tree.expect("wishes are refused nothing")
}

/// The layout comes last: what the others shrink to under many ranks, they shrink to under few.
fn all(given: Option<Layout>) -> BoxedStrategy<Wish> {
    let layout = given.map_or_else(|| layouts().boxed(), |given| Just(given).boxed());
    let steps = (step(), proptest::option::weighted(0.85, step()));
    let texts = vec((1..=TOKENS, 1..=TOKENS), 0..=3);
    let clip = proptest::option::weighted(0.7, select(vec![0.5, 1e9]));
    let wish = |(shape, steps, texts, optimizer, clip, layout)| Wish {
        shape,
        steps,
        texts,
        optimizer,
        clip,
        layout,
    };
    (shapes(), steps, texts, optimizers(), clip, layout).prop_map(wish).boxed()
}

impl Wish {
    /// This wish under another layout.
    pub(super) fn under(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }
    /// A case that fits, whose keys are those of this number.
    pub(super) fn case(self, number: u64) -> Case {
        let (layout, shape) = together(self.layout, self.shape);
        let longest = shape.context().unwrap_or(TOKENS);
        let steps = [Some(self.steps.0), self.steps.1].into_iter().flatten();
        let steps = steps.map(|wish| wish.step(layout.tokens().data_ranks(), longest)).collect();
        let text = |(tokens, prompt): (usize, usize)| (tokens.min(longest), prompt.min(tokens.min(longest)));
        let texts = self.texts.into_iter().filter(|_| reads_alone(&shape)).map(text).collect();
        let ((optimizer, lr), clip, key) = (self.optimizer, self.clip, FieldKey(number).next());
        Case { key, layout, shape, optimizer, lr, clip, steps, texts }
    }
}

/// A layout and a shape that fit: the shape gives way, its experts too. Where none is found, the model stays whole.
fn together(layout: Layout, wish: Shape) -> (Layout, Shape) {
    let scheme = (&layout).into();
    let all = [wish, Shape { experts: None, ..wish }, Shape::LLAMA];
    let shape = all.into_iter().find_map(|wish| fitted(wish, &scheme));
    let (layout, shape) = shape.map_or((Layout::UNSPLIT, wish), |shape| (layout, shape));
    (layout, Shape { padding: shape.padding.filter(|id| *id < shape.vocabulary), ..shape })
}

/// The layout with a strategy more, unless its axis is not split, or another of its strategies excludes it.
fn with(layout: Layout, named: &str) -> Layout {
    let (with, n) = (layout.with(named).unwrap_or(layout), layout.ranks());
    let shape = Shape { heads: Heads { queries: n, keys: n, dim: 2 }, hidden: n, ..Shape::LLAMA };
    if with.conflict(shape).is_some() { layout } else { with }
}

/// The layout with its axes nested the other way round.
fn reversed(layout: Layout) -> Layout {
    let split: Vec<_> = layout.axes().iter().filter(|(_, n)| *n > 1).map(|(axis, _)| axis.name()).collect();
    format!("{layout},order={}", split.join(".")).parse().unwrap_or(layout)
}

/// Ranks along the axes of the lists, and their strategies. The first axis and the first strategy have what they wish for,
/// the others what is left; axes of experts what divides the ranks of a stage.
fn layouts() -> impl Strategy<Value = Layout> {
    let axes: Vec<_> = split_axes().rev().collect();
    let mut choices: Vec<(&About, Vec<String>)> = Vec::new(); // what may be named of each; of several layers' words each is one
    for about in strategies::all() {
        let same =
            |of: &&About| of.choice != Choice::Layers && (of.axis, of.choice) == (about.axis, about.choice);
        let at = choices.iter().position(|(of, _)| same(of)).unwrap_or(choices.len());
        if at == choices.len() {
            choices.push((about, Vec::new()));
        }
        choices[at].1.extend(about.is_named().then(|| about.method()));
    }
    let (n, m) = (axes.len(), choices.len());
    let said = (vec(any::<Index>(), m), 0..m, proptest::bool::weighted(0.2));
    (vec(select(vec![1usize, 1, 1, 1, 2, 2, 3, 4, 8]), n), 0..n, said).prop_map(
        move |(sizes, first, (said, from, reverse))| {
            let (mut left, mut of_a_stage, mut ranks) = (RANKS, 1, Vec::new());
            let order = || (0..n).map(|i| (first + i) % n);
            for i in order().filter(|&i| Axis::DENSE.contains(&axes[i])) {
                let size = sizes[i].min(left);
                left /= size;
                of_a_stage *= if axes[i] == Axis::Pp { 1 } else { size };
                ranks.push((axes[i], size));
            }
            for i in order().filter(|&i| !Axis::DENSE.contains(&axes[i])) {
                let most = (sizes[i] / 2).max(1); // often one, or few models would have none
                let size = (1..=most).rev().find(|size| of_a_stage.is_multiple_of(*size)).unwrap_or(1);
                of_a_stage /= size;
                ranks.push((axes[i], size));
            }
            let layout = Layout::new(&ranks).expect("each axis once");
            let said = (0..m).map(|i| (from + i) % m).filter_map(|i| {
                let (_, methods) = &choices[i];
                methods.get(said[i].index(methods.len() + 1).wrapping_sub(1)) // the first names none
            });
            let layout = said.fold(layout, |layout, method| with(layout, method));
            if reverse { reversed(layout) } else { layout }
        },
    )
}

/// A shape, of whatever sizes and features. KV heads come before the query heads that they must divide, so that they shrink
/// first.
fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1..=9usize, 1..=2usize, 1..=8usize, 1..=8usize, 1..=4usize, 1..=12usize, 1..=19usize);
    let features = FEATURES.iter().filter(|feature| feature.often > 0);
    let given = |feature: &Feature| proptest::option::weighted(f64::from(feature.often) / 100.0, 0..210usize);
    let given: Vec<_> = features.clone().map(given).collect();
    (sizes, given).prop_map(move |((width, blocks, keys, queries, dim, hidden, vocabulary), given)| {
        let keys = (1..=keys).rev().find(|keys| queries.is_multiple_of(*keys)).unwrap_or(1);
        let heads = Heads { queries, keys, dim };
        let mut shape = Shape { width, blocks, heads, hidden, vocabulary, ..Shape::LLAMA };
        for (feature, n) in features.clone().zip(given).filter_map(|(feature, n)| Some((feature, n?))) {
            feature.give(&mut shape, n);
        }
        let window = shape.window.map(|window| Window { from: window.from.min(blocks - 1), ..window });
        Shape { window, experts: shape.experts.map(sound), ..shape }
    })
}

/// Plain descent at rate 1, or `AdamW` whose ε and decay matter.
fn optimizers() -> impl Strategy<Value = (Kind, f64)> {
    let adamw =
        (select(vec![(0.9, 0.95), (0.5, 0.25)]), select(vec![1e-8, 0.25]), select(vec![0.0, 0.1, 0.5]));
    let adamw = adamw.prop_map(|((beta1, beta2), eps, decay)| Kind::AdamW { beta1, beta2, eps, decay });
    prop_oneof![Just((Kind::Sgd, 1.0)), (adamw, select(vec![1.0, 0.125])),]
}

/// A step that is wished for, whatever the layout.
#[derive(Clone, Debug)]
struct StepWish {
    microbatches: usize,
    sequences: Vec<Vec<Vec<bool>>>, // by documents, by tokens: whether the target is ignored
    more: usize,                    // sequences beyond those that data ranks need
}

fn step() -> impl Strategy<Value = StepWish> {
    let mixed = vec(proptest::bool::weighted(0.2), 1..=TOKENS);
    let ignored = (1..=TOKENS).prop_map(|tokens| vec![true; tokens]);
    let document = prop_oneof![6 => mixed, 1 => ignored];
    let sequence = vec(document, 1..=2);
    let sequences = vec(sequence, 1..=4);
    (select(vec![1usize, 2, 2, 2, 3]), sequences, 0..=2usize)
        .prop_map(|(microbatches, sequences, more)| StepWish { microbatches, sequences, more })
}

impl StepWish {
    /// The step for so many data ranks: where sequences are too few, they come again, with other ids.
    fn step(self, ranks: usize, longest: usize) -> CaseStep {
        let Self { microbatches, sequences, more } = self;
        let needed = microbatches * ranks;
        let n = if sequences.len() < needed { needed + more } else { sequences.len() };
        let document =
            |ignored: &Vec<bool>| Document::new(ignored.iter().take(longest).map(|ignored| !ignored));
        let sequence = |documents: &Vec<Vec<bool>>| documents.iter().map(document).collect();
        CaseStep { microbatches, sequences: sequences.iter().cycle().take(n).map(sequence).collect() }
    }
}
