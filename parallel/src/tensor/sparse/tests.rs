use super::*;
use comm::Op;
use layers::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
use tensor::Scalar;

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
