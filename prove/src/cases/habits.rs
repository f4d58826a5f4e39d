//! Habits: properties that drawn cases must often have, because bugs hide in what cases do not cover.
use super::case::{CaseStep, ProofCase};
use super::document::Document;
use comm::Axis;
use ops::{OPTIMIZERS, SGD};
use parallel::deal;
use shape::{Experts, FEATURES, Shape, Window};
use std::sync::LazyLock;

/// Name of a property of cases, and a test for it.
pub type Habit = (&'static str, Box<dyn Fn(&ProofCase) -> bool + Send + Sync>);

/// All habits: optional features of models ([`FEATURES`]), optimizers, and other properties of cases. Each
/// occurs in at least one of fifty drawn cases.
pub static HABITS: LazyLock<Vec<Habit>> = LazyLock::new(|| {
    let of_cases = OF_CASES.iter().map(|&(what, is)| -> Habit { (what, Box::new(is)) });
    let features = FEATURES.iter().filter(|feature| feature.often > 0);
    let rules = OPTIMIZERS
        .iter()
        .map(|&info| -> Habit { (info.title, Box::new(move |case| case.optimizer.name() == info.name)) });
    of_cases
        .chain(rules)
        .chain(features.map(|f| -> Habit { (f.what, Box::new(|case| f.is_of(&ran(case)))) }))
        .collect()
});

/// Properties that do not depend on a feature of the model alone.
const OF_CASES: &[(&str, fn(&ProofCase) -> bool)] = &[
    ("two steps or more", |c| c.steps.len() > 1),
    ("two microbatches or more", |c| c.steps.iter().any(|step| step.microbatches > 1)),
    ("sequences of unequal length", |c| c.steps.iter().any(unequal)),
    ("packed documents", |c| c.steps.iter().any(|step| step.sequences.iter().any(|s| s.len() > 1))),
    ("ignored targets", |c| documents(c).any(|d| d.counted().any(|counts| !counts))),
    ("a step of which no target counts", |c| c.steps.iter().any(|step| counted(&step.sequences) == 0)),
    ("a data rank of which no target counts", silent_rank),
    ("a rank without tokens", empty_region),
    ("texts read token by token", |c| c.texts.iter().any(|(tokens, prompt)| tokens > prompt)),
    ("grouped heads", |c| c.shape.heads.keys < c.shape.heads.queries),
    ("more tensor ranks than KV heads", |c| c.layout.size(Axis::Tp) > c.shape.heads.keys),
    ("heads that do not divide the width", |c| !c.shape.width.is_multiple_of(c.shape.heads.queries)),
    ("a width that tensor ranks do not divide", |c| !c.shape.width.is_multiple_of(c.layout.size(Axis::Tp))),
    ("ids that tensor ranks do not divide", |c| !c.shape.vocabulary.is_multiple_of(c.layout.size(Axis::Tp))),
    ("fewer ids than tensor ranks", |c| c.shape.vocabulary < c.layout.size(Axis::Tp)),
    ("two blocks or more", |c| c.shape.blocks > 1),
    ("an id of padding, and a tied head", |c| c.shape.padding.is_some() && c.shape.tied),
    ("a window that hides tokens", |c| hides(c, |window| window.sinks == 0)),
    ("a window that hides tokens, with sinks", |c| hides(c, |window| window.sinks > 0)),
    ("a window that only later blocks have", |c| {
        let has = |i: usize| c.shape.block(i).window.is_some();
        !has(0) && (1..c.shape.blocks).any(has)
    }),
    ("experts that drop tokens", drops),
    ("plain descent at rate 1", |c| c.optimizer == SGD && c.lr == 1.0),
    ("weight decay", |c| above(c, "weight-decay", 0.0)),
    ("an ε that matters", |c| above(c, "eps", 0.1)),
    ("a limit of the norm", |c| c.clip.is_some()),
    ("no limit of the norm", |c| c.clip.is_none()),
    ("a scaled loss", |c| c.loss_scale.is_some()),
];

/// Returns true if the optimizer has a constant of this key above this value.
fn above(case: &ProofCase, key: &str, least: f64) -> bool {
    case.optimizer.get(key).is_some_and(|values| values[0] > least)
}

/// Returns the shape that ran: without experts if no block has them.
fn ran(case: &ProofCase) -> Shape {
    let shape = case.shape;
    let some = shape.kinds().iter().any(|kind| kind.shape.experts.is_some());
    Shape { experts: shape.experts.filter(|_| some), ..shape }
}

/// Returns true if experts accept fewer tokens of some microbatch than choose them, whatever the choices.
fn drops(case: &ProofCase) -> bool {
    let rooms = |step: &CaseStep, of: Experts| {
        (0..step.microbatches).any(|m| {
            let tokens = tokens(&step.sequences[deal(step.sequences.len(), m, step.microbatches)]);
            !of.by_experts && of.capacity_of(tokens).is_some_and(|most| of.count * most < of.chosen * tokens)
        })
    };
    let of = ran(case).experts;
    of.is_some_and(|of| case.steps.iter().any(|step| rooms(step, of)))
}

fn documents(case: &ProofCase) -> impl Iterator<Item = &Document> {
    case.steps.iter().flat_map(|step| step.sequences.iter().flatten())
}

fn tokens(sequences: &[Vec<Document>]) -> usize {
    sequences.iter().flatten().map(Document::tokens).sum()
}

fn counted(sequences: &[Vec<Document>]) -> usize {
    sequences.iter().flatten().map(|d| d.counted().filter(|counts| *counts).count()).sum()
}

fn unequal(step: &CaseStep) -> bool {
    let mut lengths = step.sequences.iter().map(|s| tokens(std::slice::from_ref(s)));
    let first = lengths.next();
    lengths.any(|n| Some(n) != first)
}

/// Returns the local batch of each data rank, microbatch by microbatch.
fn shares(case: &ProofCase) -> impl Iterator<Item = &[Vec<Document>]> {
    let ranks = case.layout.tokens().data_ranks();
    case.steps.iter().flat_map(move |step| {
        let microbatch = move |m| &step.sequences[deal(step.sequences.len(), m, step.microbatches)];
        (0..step.microbatches)
            .flat_map(move |m| (0..ranks).map(move |r| &microbatch(m)[deal(microbatch(m).len(), r, ranks)]))
    })
}

fn silent_rank(case: &ProofCase) -> bool {
    case.layout.tokens().data_ranks() > 1 && shares(case).any(|share| counted(share) == 0)
}

fn empty_region(case: &ProofCase) -> bool {
    let regions = case.layout.strategies().iter().any(|about| about.word == "sp");
    regions && shares(case).any(|share| tokens(share) < case.layout.size(Axis::Tp))
}

/// Returns true if such a window hides a token from the last token of some document.
fn hides(case: &ProofCase, such: fn(&Window) -> bool) -> bool {
    let window = case.shape.window.filter(such);
    window.is_some_and(|window| documents(case).any(|d| d.tokens() > window.size + window.sinks))
}
