//! Proof of the best layout, on a small image of the model.
use crate::event::Observer;
use crate::prove::fresh_key;
use layers::Shape;
use parallel::{Error, Layout, Network, Result};
use prove::cases::image;
use prove::{KEYS, Keys, Subject, Verdict, certify};

/// The most ranks of a proof: each is a thread.
const MOST_RANKS: usize = 16;

/// Proves a layout; with too many ranks, the same with fewer along each axis.
///
/// # Errors
/// If no small model fits the layout, or the proof does not fit this machine.
pub(super) fn of(shape: Option<&Shape>, layout: &Layout, observer: &Observer) -> Result<Verdict> {
    let small =
        |of: Layout| (of.ranks() <= MOST_RANKS).then(|| image(*shape?, &of).map(|(image, _)| (of, image)))?;
    let shrunk = (2..=MOST_RANKS).rev().filter_map(|most| shrunk(layout, most)).find_map(small);
    let (proven, image) = small(*layout).or(shrunk).ok_or_else(|| {
        Error::new(format!("{layout} cannot be proven: no small model fits it, not with fewer ranks, either"))
    })?;
    let subject = Subject::smallest(image, &proven)?;
    let network = Network::default();
    let keys = Keys::Sure(fresh_key(), *KEYS.start());
    let verdict = certify(&subject, &proven, keys, (&network, &|what| drop(observer.doing(what))));
    let fewer = (proven != *layout).then(|| format!("{layout} with fewer ranks along its axes"));
    verdict.map(|verdict| Verdict { image: fewer, ..verdict })
}

/// Returns the layout with at most this number of ranks along each axis.
fn shrunk(layout: &Layout, most: usize) -> Option<Layout> {
    let sizes: Vec<_> = layout.axes().into_iter().map(|(axis, ranks)| (axis, ranks.min(most))).collect();
    layout.named().iter().try_fold(Layout::new(&sizes).ok()?, |layout, word| layout.with(word).ok())
}

/// Says in a sentence what was proven; in more if it was not equal.
pub(super) fn sentence(of: &Verdict) -> String {
    if !of.equal {
        return of.statement();
    }
    let stands = of.image.as_ref().map_or_else(String::new, |words| format!(", which stands for {words}"));
    let sure = of.bound_log2.map_or_else(String::new, |log2| {
        format!("; a wrong program would pass with probability at most 2^{log2:.1}")
    });
    format!(
        "Proven on a small image of the model: under {}{stands}, generation and training equal the unsplit model \
         bit for bit, in {} tensors{sure}.",
        of.layout, of.tensors
    )
}
