//! Sparse communication: a linear layer's inputs and outputs are cut into equal parts, one per rank, and an
//! input leads to outputs of other parts only if it is among the most important ones of its own part. All
//! other weights are 0, and have no gradient.
//!
//! ```text
//! importance of input i = Σ W[i,o]² over the outputs o of other parts
//! ```
//! Source: Qin et al., "DISCO: distributed inference with sparse communications", §3, arXiv:2302.11180.
use crate::parameters::{Shapes, Weights};
use std::collections::BTreeMap;
use tensor::Scalar;

/// Linear layers whose parts send each other only some of their inputs; by default none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparsity {
    /// Names of the layers' weights.
    pub layers: Vec<String>,
    /// Number of parts.
    pub ranks: usize,
    /// Percentage of the inputs of each part that are not sent, rounded to a whole number of inputs.
    pub percent: usize,
}

/// The weights that may be other than 0, of each sparse layer.
pub(crate) type Masks = BTreeMap<String, Vec<bool>>;

impl Sparsity {
    /// Chooses the inputs that are sent, by these weights.
    pub(crate) fn masks<S: Scalar>(&self, shapes: &Shapes, weights: &Weights<S>) -> Masks {
        let mask = |(name, shape): &(String, [usize; 2])| {
            self.layers.contains(name).then(|| (name.clone(), self.mask(*shape, &weights[name])))
        };
        shapes.iter().filter_map(mask).collect()
    }
    fn mask<S: Scalar>(&self, [inputs, outputs]: [usize; 2], w: &[S]) -> Vec<bool> {
        let part = |i: usize, of: usize| i * self.ranks / of;
        let inside = |i: usize, o: usize| part(i, inputs) == part(o, outputs);
        let importance = |i: usize| {
            let out = (0..outputs).filter(|o| !inside(i, *o)).map(|o| w[i * outputs + o]);
            out.fold(S::ZERO, |sum, w| sum + w * w)
        };
        let importance: Vec<S> = (0..inputs).map(importance).collect();
        let columns = inputs / self.ranks;
        let sent = (columns as f64 * (1.0 - self.percent as f64 / 100.0) + 1e-9).round() as usize;
        let before = |a: usize, b: usize| importance[a].order(importance[b]).then(b.cmp(&a)).is_gt();
        let rank = |i: usize| {
            (0..inputs).filter(|other| part(*other, inputs) == part(i, inputs) && before(*other, i)).count()
        };
        let is_sent: Vec<bool> = (0..inputs).map(|i| rank(i) < sent).collect();
        (0..inputs * outputs).map(|at| is_sent[at / outputs] || inside(at / outputs, at % outputs)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two parts of two inputs, one of which is sent. Kills: a choice by the weights that stay in a part, a
    /// sum of weights in place of their squares, the least important input, of equal ones the last; weights
    /// that stay in a part masked.
    #[test]
    fn the_most_important_inputs_are_those_of_the_largest_weights_to_other_parts() {
        #[rustfmt::skip]
        let w = [
            9.0, 9.0,   1.0, 1.0,
            0.0, 0.0,  -2.0, 1.0,
            3.0, 0.0,   0.0, 0.0,
            0.0, -3.0,  9.0, 9.0,
        ];
        let sparsity = Sparsity { layers: vec!["w".into()], ranks: 2, percent: 50 };
        let (yes, no) = (true, false);
        #[rustfmt::skip]
        let wanted = vec![
            yes, yes,  no, no,
            yes, yes,  yes, yes,
            yes, yes,  yes, yes,
            no, no,    yes, yes,
        ];
        let masks = sparsity
            .masks(&vec![("w".into(), [4, 4]), ("b".into(), [1, 4])], &[("w".into(), w.to_vec())].into());
        assert_eq!(masks, [("w".into(), wanted)].into());
        let all = Sparsity { percent: 0, ..sparsity };
        assert_eq!(all.mask([4, 4], &w), vec![true; 16]);
    }
}
