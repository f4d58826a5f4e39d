//! Drawing of cases: wishes that shrink to the plainest, and a fitting case made of them.
//!
//! Wishes are independent, so each shrinks while the others stay: axes to one rank, sizes to 1, optional
//! features to none. The shape is then fitted to the ranks of the layout, so that no draw is wasted, and a
//! shrunk case always fits.
use super::case::{CaseStep, ProofCase};
use super::document::Document;
use super::fitted::{fitted, in_blocks, sound};
use crate::subject::reads_alone;
use comm::Axis;
use kernels::Heads;
use layers::{Choice, OptimizerKind, StrategyInfo};
use ops::OPTIMIZERS;
use parallel::layout::split_axes;
use parallel::{Layout, strategies};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use shape::{FEATURES, Feature, Pattern, Shape};
use std::iter::successors;
use tensor::{Key as FieldKey, mix};

/// Largest number of ranks of a drawn layout.
const RANKS: usize = 8;
/// Largest number of tokens of a document.
const TOKENS: usize = 5;

/// Draws the case of this number. If a layout is given, every case has it, and shapes are fitted to it; if no
/// small shape fits, the model stays unsplit.
pub fn draw(number: u64, layout: Option<Layout>) -> ProofCase {
    wishes(number, layout).current().case(number)
}

/// All wishes of one case.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    shape: Shape,
    steps: (StepWish, Option<StepWish>),
    texts: Vec<(usize, usize)>,
    optimizer: (OptimizerKind, f64),
    clip: Option<f64>,
    loss_scale: Option<u32>,
    layout: Layout,
}

/// Returns the wishes of this number, with everything they shrink to.
pub(super) fn wishes(number: u64, layout: Option<Layout>) -> Box<dyn ValueTree<Value = Wish>> {
    let seed: Vec<u8> =
        successors(Some(mix(number)), |n| Some(mix(*n))).take(4).flat_map(u64::to_le_bytes).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let tree = all(layout).new_tree(&mut TestRunner::new_with_rng(Config::default(), rng));
    tree.expect("wishes are refused nothing")
}

/// Returns the generator of wishes. The layout comes last, because the others shrink alike under many ranks
/// and under few.
fn all(given: Option<Layout>) -> BoxedStrategy<Wish> {
    let layout = given.map_or_else(|| layouts().boxed(), |given| Just(given).boxed());
    let steps = (step(), proptest::option::weighted(0.85, step()));
    let texts = vec((1..=TOKENS, 1..=TOKENS), 0..=3);
    let clip = proptest::option::weighted(0.7, select(vec![0.5, 1e9]));
    let loss_scale = proptest::option::weighted(0.2, select(vec![1, 16]));
    let wish = |(shape, steps, texts, optimizer, clip, layout, loss_scale)| Wish {
        shape,
        steps,
        texts,
        optimizer,
        clip,
        loss_scale,
        layout,
    };
    (shapes(), steps, texts, optimizers(), clip, layout, loss_scale).prop_map(wish).boxed()
}

impl Wish {
    /// Returns this wish under another layout.
    pub(super) fn under(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }
    /// Returns a fitting case, whose key is derived from this number.
    pub(super) fn case(self, number: u64) -> ProofCase {
        let (layout, shape) = together(self.layout, self.shape);
        let longest = shape.context().unwrap_or(TOKENS);
        let steps = [Some(self.steps.0), self.steps.1].into_iter().flatten();
        let steps = steps.map(|wish| wish.step(layout.tokens().data_ranks(), longest)).collect();
        let text = |(tokens, prompt): (usize, usize)| (tokens.min(longest), prompt.min(tokens.min(longest)));
        let texts = self.texts.into_iter().filter(|_| reads_alone(&shape)).map(text).collect();
        let ((optimizer, lr), clip, key) = (self.optimizer, self.clip, FieldKey(number).next());
        let shape = in_blocks(shape, optimizer, &layout);
        ProofCase { key, layout, shape, optimizer, lr, clip, loss_scale: self.loss_scale, steps, texts }
    }
}

/// Returns a layout and a shape that fit: the shape is changed, including its experts. If none fits, the
/// model stays unsplit.
fn together(layout: Layout, wish: Shape) -> (Layout, Shape) {
    let scheme = (&layout).into();
    let wishes = [wish, Shape { experts: None, ..wish }, Shape::LLAMA];
    let shape = wishes.into_iter().find_map(|wish| fitted(wish, &scheme));
    let (layout, shape) = shape.map_or((Layout::UNSPLIT, wish), |shape| (layout, shape));
    (layout, Shape { padding: shape.padding.filter(|id| *id < shape.vocabulary), ..shape })
}

/// Adds a strategy to the layout, unless the strategy's axis is not split, or another of the layout's
/// strategies excludes it. A strategy that stands alone takes the place of what was drawn before.
fn with(layout: Layout, named: &str) -> Layout {
    let alone = strategies::all().iter().find(|about| about.alone && about.method() == named);
    let axis = alone.and_then(|about| about.axis).filter(|axis| layout.size(*axis) > 1);
    let layout = axis.map_or(layout, |axis| Layout::new(&[(axis, layout.size(axis))]).expect("one axis"));
    let with = layout.with(named).unwrap_or(layout);
    let n = layout.ranks();
    let shape = Shape { heads: Heads::new(n, n, 2), hidden: n, ..Shape::LLAMA };
    if with.conflict(shape).is_some() { layout } else { with }
}

/// Returns the layout with its axes nested the other way round.
fn reversed(layout: Layout) -> Layout {
    let split: Vec<_> = layout.axes().iter().filter(|(_, n)| *n > 1).map(|(axis, _)| axis.name()).collect();
    format!("{layout},order={}", split.join(".")).parse().unwrap_or(layout)
}

/// Returns the axis and the choice that a strategy is drawn with: its own, or those of the one that it needs.
pub(super) fn drawn_with(about: &StrategyInfo) -> (Option<Axis>, Choice) {
    let needed = |of: &&&StrategyInfo| of.axis == about.axis && Some(of.word) == about.needs;
    (about.axis, strategies::all().iter().find(needed).map_or(about.choice, |of| of.choice))
}

/// Draws the ranks along the axes, and the strategies. The first axis and the first strategy get their wish,
/// the others the rest; expert axes get a size that divides the ranks of a stage.
fn layouts() -> impl Strategy<Value = Layout> {
    let axes: Vec<_> = split_axes().rev().collect();
    // methods of each choice; each strategy of layers is its own choice
    let mut choices: Vec<(&StrategyInfo, Vec<String>)> = Vec::new();
    for about in strategies::all() {
        let same = |of: &&StrategyInfo| of.choice != Choice::Layers && drawn_with(of) == drawn_with(about);
        let index = choices.iter().position(|(of, _)| same(of)).unwrap_or(choices.len());
        if index == choices.len() {
            choices.push((about, Vec::new()));
        }
        choices[index].1.extend(about.is_named().then(|| about.method()));
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
                let most = (sizes[i] / 2).max(1); // often 1, so that many models have no experts
                let size = (1..=most).rev().find(|size| of_a_stage.is_multiple_of(*size)).unwrap_or(1);
                of_a_stage /= size;
                ranks.push((axes[i], size));
            }
            let layout = Layout::new(&ranks).expect("each axis once");
            let said = (0..m).map(|i| (from + i) % m).filter_map(|i| {
                let (_, methods) = &choices[i];
                // half of the cases name none
                methods.get(said[i].index(2 * methods.len().max(1)).wrapping_sub(methods.len()))
            });
            let layout = said.fold(layout, |layout, method| with(layout, method));
            if reverse { reversed(layout) } else { layout }
        },
    )
}

/// Draws a shape with any sizes and features. KV heads come before the query heads that they must divide, so
/// that they shrink first.
fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1..=9usize, 1..=2usize, 1..=8usize, 1..=8usize, 1..=4usize, 1..=12usize, 1..=19usize);
    let features = FEATURES.iter().filter(|feature| feature.often > 0);
    let given = |feature: &Feature| proptest::option::weighted(f64::from(feature.often) / 100.0, 0..210usize);
    let given: Vec<_> = features.clone().map(given).collect();
    (sizes, given).prop_map(move |((width, blocks, keys, queries, dim, hidden, vocabulary), given)| {
        let keys = (1..=keys).rev().find(|keys| queries.is_multiple_of(*keys)).unwrap_or(1);
        let heads = Heads::new(queries, keys, dim);
        let mut shape = Shape { width, blocks, heads, hidden, vocabulary, ..Shape::LLAMA };
        for (feature, n) in features.clone().zip(given).filter_map(|(feature, n)| Some((feature, n?))) {
            feature.give(&mut shape, n);
        }
        let whole = shape.pattern.whole.iter().filter(|block| block + 1 < blocks).collect();
        let pattern = Pattern { whole, ..shape.pattern };
        Shape { pattern, experts: shape.experts.map(sound), ..shape }
    })
}

/// Draws an optimizer of the list, its constants from their usual values and others that matter, and a
/// learning rate; of plain descent, rate 1.
fn optimizers() -> impl Strategy<Value = (OptimizerKind, f64)> {
    (select(OPTIMIZERS), vec(any::<Index>(), 8), select(vec![1.0, 0.125])).prop_map(|(info, at, lr)| {
        let mut indices = at.into_iter();
        let kind = info.constants.iter().fold(OptimizerKind::usual(info), |kind, constant| {
            let value = |i| *indices.next().expect("few constants").get(&constant.drawn(i));
            let values: Vec<f64> = (0..constant.usual.len()).map(value).collect();
            kind.set(constant.key, &values).expect("values of its range")
        });
        (kind, if info.constants.is_empty() { 1.0 } else { lr })
    })
}

/// Wish for a step, independent of the layout.
#[derive(Clone, Debug)]
struct StepWish {
    microbatches: usize,
    sequences: Vec<Vec<Vec<bool>>>, // by document and token: true if the target is ignored
    more: usize,                    // sequences beyond those that data ranks need
}

fn step() -> impl Strategy<Value = StepWish> {
    let mixed = vec(proptest::bool::weighted(0.2), 1..=TOKENS);
    let document = prop_oneof![6 => mixed, 1 => (1..=TOKENS).prop_map(|tokens| vec![true; tokens])];
    let sequences = vec(vec(document, 1..=2), 1..=4);
    (select(vec![1usize, 2, 2, 2, 3]), sequences, 0..=2usize)
        .prop_map(|(microbatches, sequences, more)| StepWish { microbatches, sequences, more })
}

impl StepWish {
    /// Returns the step for this number of data ranks. Too few sequences are repeated, with other ids.
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
