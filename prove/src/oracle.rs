//! The same model and batch, in the oracle's types.
use layers::Design;
use parallel::{Batch, Sequence};
use reference::{StaleTrainer, Weights};
use std::fmt::Arguments;
use std::ops::Range;
use tensor::Scalar;

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
    let mut from = 0;
    let tokens = s.tokens();
    let document = |n: &usize| {
        let range = from..from + n;
        from = range.end;
        let [ids, targets] = [&s.ids, &s.targets].map(|of_tokens| part(of_tokens, tokens, &range));
        reference::Sequence { ids, targets, x: part(&s.x, tokens, &range), y: part(&s.y, tokens, &range) }
    };
    s.documents.iter().map(document).collect()
}

/// The oracle in training: on the latest weights, or on stale ones.
pub(crate) enum Oracle<S> {
    Latest(reference::Trainer<S>),
    Stale(StaleTrainer<S>),
}

impl<S: Scalar> Oracle<S> {
    /// Does one step from an empty pipeline to an empty one, and shows the values of each microbatch.
    pub(crate) fn step_recorded(
        &mut self,
        microbatches: &[Vec<reference::Sequence>],
        lr: f64,
        see: &mut dyn FnMut(usize, Arguments, &[S]),
    ) -> reference::Step<S> {
        match self {
            Self::Latest(oracle) => oracle.step_recorded(microbatches, lr, see),
            Self::Stale(oracle) => {
                let step = oracle.step_recorded(microbatches, lr, see);
                oracle.drain();
                step
            }
        }
    }
    /// Returns the current weights.
    pub(crate) fn weights(&self) -> &Weights<S> {
        match self {
            Self::Latest(oracle) => oracle.weights(),
            Self::Stale(oracle) => oracle.weights(),
        }
    }
    /// Replaces the weights.
    pub(crate) fn replace(&mut self, weights: Weights<S>) {
        match self {
            Self::Latest(oracle) => oracle.replace(weights),
            Self::Stale(oracle) => oracle.replace(weights),
        }
    }
}
