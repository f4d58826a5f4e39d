//! The layouts that a search tries: all divisions of the ranks over the axes, and of each choice of the lists
//! every entry with the numbers that it states ([`Tries`]).
use comm::Axis;
use layers::{Choice, Design, StrategyInfo, Tries};
use ops::TokenShards;
use parallel::{Layout, strategies};

/// Choices that decide what a stage computes for a microbatch.
pub const WORK: &[Choice] =
    &[Choice::Layers, Choice::Recompute, Choice::Dealing, Choice::Core, Choice::Dispatcher];
/// Choices that decide where parameters rest.
pub const STATE: &[Choice] = &[Choice::State, Choice::Tiling, Choice::Offload];
/// Choices that decide the order of the cells.
pub const ORDER: &[Choice] = &[Choice::Schedule];

/// The most ranks that share a sequence, and the fewest tokens of it that each has: beyond that, messages are
/// shorter than their latency, and attention's tiles are not full.
const CONTEXT: [usize; 2] = [64, 256];

/// Returns the numbers of ranks along the axes whose product is `ranks`, as layouts that fit the model and a
/// batch of these sequences of `seq` tokens.
pub fn divisions(ranks: usize, design: &Design, [sequences, seq]: [usize; 2]) -> Vec<Layout> {
    let most = CONTEXT[0].min(seq / CONTEXT[1]).max(1);
    let divisors = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let mut layouts = Vec::new();
    for pp in divisors(ranks).filter(|pp| *pp <= design.parts(1)) {
        for dp in divisors(ranks / pp).filter(|dp| *dp <= sequences) {
            for cp in divisors(ranks / pp / dp).filter(|cp| *cp <= most) {
                let tp = ranks / pp / dp / cp;
                let dense = [
                    (Axis::Pp, pp),
                    (TokenShards::SEQUENCES, dp),
                    (TokenShards::CONTEXT, cp),
                    (Axis::Tp, tp),
                ];
                let inner = dp * cp * tp;
                let has_experts = design.shape().is_some_and(|shape| shape.experts.is_some());
                let shared = if has_experts { inner } else { 1 };
                for ep in divisors(inner).filter(|ep| *ep <= shared) {
                    let experts = if ep > 1 { vec![(Axis::Ep, ep)] } else { Vec::new() };
                    let layout = Layout::new(&[&dense[..], &experts].concat());
                    layouts.extend(layout.ok().filter(|layout| layout.fits(design).is_ok()));
                }
            }
        }
    }
    layouts
}

/// Returns the layout with every entry of these choices, and with none: all that fit the model. With
/// `needed`, also with entries that only save memory.
pub fn variants(layout: Layout, choices: &[Choice], design: &Design, needed: bool) -> Vec<Layout> {
    let mut layouts = vec![layout];
    for choice in choices {
        let listed = strategies::all().iter().filter(|about| about.choice == *choice && about.is_named());
        // one rank, too, can offload
        let is_needed = |about: &StrategyInfo| matches!(about.tries, Tries::Needed(_));
        let has_ranks =
            |about: &&&StrategyInfo| about.axis.is_none_or(|axis| layout.size(axis) > 1) || is_needed(about);
        let words: Vec<String> = listed.filter(has_ranks).flat_map(|about| words(about, needed)).collect();
        let with = |layout: &Layout| {
            let with = |word: &String| layout.with(word).ok();
            std::iter::once(*layout).chain(words.iter().filter_map(with)).collect::<Vec<_>>()
        };
        layouts = layouts.iter().flat_map(with).collect();
        layouts.retain(|layout| layout.fits(design).is_ok());
        layouts.sort_unstable();
        layouts.dedup();
    }
    layouts
}

/// Words that a search tries for an entry.
fn words(about: &StrategyInfo, needed: bool) -> Vec<String> {
    let numbers = match about.tries {
        Tries::Always(numbers) => numbers,
        Tries::Needed(numbers) if needed => numbers,
        Tries::Needed(_) | Tries::Never => return Vec::new(),
    };
    match numbers {
        [] => vec![about.word.into()],
        some => some.iter().map(|number| format!("{}/{number}", about.word)).collect(),
    }
}

/// Returns the powers of two that are tried as sequences of a data rank in a microbatch, up to all of a step.
pub fn powers(sequences: usize, data_ranks: usize) -> impl Iterator<Item = u8> {
    let most = sequences.div_ceil(data_ranks).next_power_of_two().trailing_zeros() as u8;
    let number = move |power| microbatches([sequences, data_ranks], power);
    let is_new = move |power: &u8| *power == 0 || number(*power) < number(*power - 1);
    (0..=most).filter(move |power| data_ranks <= sequences && is_new(power))
}

/// Returns the fewest microbatches in which a data rank has at most this power of two of sequences, but no
/// more than leave each data rank one.
pub fn microbatches([sequences, data_ranks]: [usize; 2], power: u8) -> usize {
    sequences.div_ceil(data_ranks << power).min(sequences / data_ranks)
}

/// Returns the layout without stages, which do not change a block's state.
pub(crate) fn state_key(layout: &Layout) -> Layout {
    let sizes: Vec<_> = layout.axes().into_iter().filter(|(axis, _)| *axis != Axis::Pp).collect();
    named_as(&sizes, layout)
}

/// Returns the layout with as few data ranks as ranks that share experts need: what a block computes and
/// sends in a pass does not depend on the others, unless parameters are gathered for it.
pub(crate) fn few_data_ranks(layout: &Layout) -> Layout {
    let data = TokenShards::SEQUENCES;
    let inner = layout.size(TokenShards::CONTEXT) * layout.size(Axis::Tp);
    let shared = if layout.shares_experts() { layout.size(Axis::Ep) * layout.size(Axis::Etp) } else { 1 };
    let ranks = layout.size(data);
    let is_enough = |few: &usize| ranks.is_multiple_of(*few) && (few * inner).is_multiple_of(shared);
    let few = (1..=ranks).find(is_enough).expect("as many as there are");
    let sizes = layout.axes().into_iter().map(|(axis, size)| (axis, if axis == data { few } else { size }));
    named_as(&sizes.collect::<Vec<_>>(), layout)
}

/// Returns the layout without stages, and with few data ranks.
pub(crate) fn block_key(layout: &Layout) -> Layout {
    state_key(&few_data_ranks(layout))
}

/// Returns the layout with those choices alone that change what a head computes.
pub(crate) fn head_key(layout: &Layout) -> Layout {
    let base = Layout::new(&layout.axes()).expect("the same ranks");
    let of_head =
        layout.strategies().into_iter().filter(|about| about.choice == Choice::Layers && about.is_named());
    of_head.fold(base, |layout, about| layout.with(about.word).unwrap_or(layout))
}

/// Returns a layout of these sizes with the words of another, where they fit.
fn named_as(sizes: &[(Axis, usize)], layout: &Layout) -> Layout {
    let base = Layout::new(sizes).expect("fewer ranks");
    layout.named().iter().fold(base, |layout, word| layout.with(word).unwrap_or(layout))
}
