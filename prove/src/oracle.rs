//! The same model and batch, in the oracle's types.
use layers::Design;
use parallel::{Batch, Sequence};
use std::ops::Range;

/// Converts a model of any kind.
pub fn design(design: &Design) -> reference::Design {
    match design {
        Design::Transformer(shape) => reference::Model::from(*shape).into(),
        Design::Blocks(shape) => reference::Model { shape: *shape, bare: true }.into(),
        Design::Classifier { sizes } => {
            reference::Design::Classifier(reference::Classifier { sizes: sizes.clone() })
        }
    }
}

/// Converts a batch. The oracle has documents only, each as a sequence of its own.
pub fn microbatches(batch: &Batch) -> Vec<Vec<reference::Sequence>> {
    batch.microbatches().iter().map(|m| m.iter().flat_map(documents).collect()).collect()
}

/// Returns the documents of a sequence.
pub(crate) fn documents(s: &Sequence) -> Vec<reference::Sequence> {
    fn part<T: Copy>(all: &[T], tokens: usize, at: &Range<usize>) -> Vec<T> {
        let each = all.len() / tokens; // 0 where there are none
        all[at.start * each..at.end * each].to_vec()
    }
    let (mut from, tokens) = (0, s.tokens());
    let document = |n: &usize| {
        let at = from..from + n;
        from = at.end;
        let (ids, targets) = (part(&s.ids, tokens, &at), part(&s.targets, tokens, &at));
        reference::Sequence { ids, targets, x: part(&s.x, tokens, &at), y: part(&s.y, tokens, &at) }
    };
    s.documents.iter().map(document).collect()
}
