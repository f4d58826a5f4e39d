use super::*;
use comm::Op;
use layers::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
use ops::ParamValues;
use ops::param::placement::sent::SentFeatures;
use tensor::{F61, Scalar};

const SIZES: [usize; 2] = [24, 24];

struct Sparse {
    bias: bool,
    percent: usize,
}

/// The gradient of a weight that is 0 is 0: it is no part of the model.
fn masked<S: Scalar>(w: &[S], dw: Vec<S>) -> Vec<S> {
    w.iter().zip(dw).map(|(w, dw)| if *w == S::ZERO { S::ZERO } else { dw }).collect()
}

impl Case for Sparse {
    type Layer<D: Kernels> = SparseRow<D>;
    fn features(&self) -> [usize; 2] {
        SIZES
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<SparseRow<D>> {
        shard(at, &Row { axis: Axis::Tp, name: "w", sizes: SIZES, bias: self.bias }, self.percent)
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let w = &g.weights["w"];
        let (dx, dw) = reference::linear_backward(&g.x, w, &g.dy, SIZES);
        let mut y = reference::linear(&g.x, w, SIZES);
        let mut answer = Answer { y: vec![], dx, gradients: [("w".into(), masked(w, dw))].into() };
        if self.bias {
            reference::add_bias(&mut y, &g.weights["w.bias"]);
            answer.gradients.insert("w.bias".into(), reference::bias_gradient(&g.dy, SIZES[1]));
        }
        Answer { y, ..answer }
    }
    fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)> {
        let sent = sent_of(24 / ranks, self.percent);
        // some of X, and Y; dX of what was sent
        vec![(Op::AllGather, tokens * (sent + 24 / ranks)), (Op::ReduceScatter, tokens * ranks * sent)]
    }
    fn traffic_on(
        &self,
        (_, ranks): (usize, usize),
        microbatches: &[usize],
        regions: bool,
    ) -> Vec<(Op, usize)> {
        let share: usize = microbatches.iter().map(|n| n.div_ceil(ranks)).sum();
        let mut all = self.traffic(microbatches.iter().sum(), ranks);
        all[0].1 += if regions { share * 24 } else { 0 }; // dY
        all
    }
}

/// Kills: a feature that is not sent, or sent to no place, or in another's; a gradient for what was not
/// sent; another rank's mask; a sum over ranks of what each has whole.
#[test]
fn sparse_rows_equal_the_linear_layer_of_their_weights_bit_for_bit() {
    for (bias, percent) in [(true, 50), (false, 0), (false, 80)] {
        proves(&Sparse { bias, percent });
    }
}

#[test]
fn sparse_rows_equal_their_linear_layer_under_sequence_parallelism() {
    proves_in_regions(&Sparse { bias: true, percent: 50 });
}

/// Four ranks have 3, 3, 3 and 1 of ten columns. Kills: columns of another rank, in the choice or in the
/// mask.
#[test]
fn features_are_chosen_and_masked_by_the_columns_that_ranks_have() {
    let (shape, w) = ([8, 10], |[row, column]: [usize; 2]| F61::from_usize(10 * row + column + 1));
    let is_own = |[row, column]: [usize; 2]| column / 3 == row / 2;
    let (values, sent) = (ParamValues::each(w), SentFeatures::choose(shape, (4, 1), |row| w([8 - row, 0])));
    let zeros = sent.unreached(10).flat_map(|(row, columns)| columns.map(move |column| [row, column]));
    let zeros: Vec<_> = zeros.collect();
    for row in 0..8 {
        let others = (0..10).map(|column| [row, column]).filter(|at| !is_own(*at));
        let wanted = others.fold(F61::ZERO, |sum, at| sum + w(at) * w(at));
        assert_eq!(SentFeatures::importance(&values, shape, 4, row), wanted, "{row}");
        for at in (0..10).map(|column| [row, column]) {
            let is_zero = row % 2 == 1 && !is_own(at);
            assert_eq!((zeros.contains(&at), sent.reaches(at)), (is_zero, !is_zero), "{at:?}");
        }
    }
}
