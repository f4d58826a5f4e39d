//! A data rank's local batch, slice by slice: the tokens of each sequence, and their features.
use crate::{LocalBatch, Sequence, deal};
use kernels::{Kernels, Segment};
use ops::TokenShards;
use std::ops::Range;
use tensor::{Category, Scalar, Tensor};

impl<'a> LocalBatch<'a> {
    /// Returns this rank's tokens of the `slice`th of `slices` nearly equal slices of each document: the
    /// sequence, and the range of its tokens.
    pub fn slice(
        self,
        slice: usize,
        slices: usize,
        tokens: &TokenShards,
    ) -> impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone + use<'a> {
        let tokens = *tokens;
        let of = move |s: &'a Sequence| {
            let documents = s.documents.iter().scan(0, move |first, &len| {
                let Range { start, end } = deal(len, slice, slices);
                let part = *first + start..*first + end;
                *first += len;
                Some(part)
            });
            let stretches = move |part: Range<usize>| {
                let first = part.start;
                tokens.stretches(part.len()).map(move |of| (s, first + of.start..first + of.end))
            };
            documents.flat_map(stretches)
        };
        self.sequences.iter().flat_map(of)
    }
    /// Returns the same slices as positions in each document, before context ranks divide them.
    pub fn segments(self, slice: usize, slices: usize) -> impl Iterator<Item = Segment> {
        let lengths = self.sequences.iter().flat_map(|s| s.documents.iter().copied());
        lengths.enumerate().map(move |(sequence, len)| {
            let tokens = deal(len, slice, slices);
            Segment { row: 0, len: tokens.len(), position: tokens.start, sequence }
        })
    }
}

/// Returns a rank's features of these sequences, in a model whose tokens are rows of `width` features.
pub fn features<D: Kernels>(
    device: &D,
    width: usize,
    sequences: &[Sequence],
    tokens: &TokenShards,
) -> Tensor<D> {
    rows(device, width, LocalBatch { sequences, first: 0 }.slice(0, 1, tokens), |s| &s.x)
}

/// Returns the features of these tokens of sequences, a row of `width` for each token.
pub(super) fn rows<'a, D: Kernels>(
    device: &D,
    width: usize,
    all: impl Iterator<Item = (&'a Sequence, Range<usize>)> + Clone,
    of: fn(&Sequence) -> &Vec<f32>,
) -> Tensor<D> {
    let tokens = all.clone().map(|(_, tokens)| tokens.len()).sum();
    let mut rows = all.map(|(s, tokens)| &of(s)[tokens.start * width..tokens.end * width]);
    let mut x = Tensor::empty(device, Category::Activations, tokens, width);
    let mut from = &[][..];
    x.write_slices(&mut |_, mut to| {
        while !to.is_empty() {
            if from.is_empty() {
                from = rows.next().expect("a row for each token");
            }
            let (now, rest) = to.split_at_mut(to.len().min(from.len()));
            now.iter_mut().zip(from).for_each(|(to, x)| *to = D::Elem::from_f64(f64::from(*x)));
            (to, from) = (rest, &from[now.len()..]);
        }
    });
    x
}
