//! The layers between two bars, as one layer.
use super::super::hidden;
use crate::Builder;
use crate::build::part::Block;
use crate::proof::{Answer, Case, LayerInput, proves, proves_in_regions};
use comm::{Axis, Op};
use kernels::Kernels;
use ops::Result;
use std::collections::BTreeMap;
use tensor::Scalar;

/// Sizes between two bars: a pair, or one layer that is gathered.
struct Between(&'static [usize]);
impl Between {
    fn outputs(&self) -> usize {
        self.0[self.0.len() - 1]
    }
}
impl Case for Between {
    type Layer<D: Kernels> = Block<D>;
    fn features(&self) -> [usize; 2] {
        [self.0[0], self.outputs()]
    }
    fn build<D: Kernels>(&self, at: &Builder<D>) -> Result<Block<D>> {
        hidden(at, Axis::Tp, 3, self.0)
    }
    fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let (relu, mut before, mut gradients) =
            (kernels::Activation::Relu, vec![g.x.clone()], BTreeMap::new());
        let name = |i: usize| format!("layers.{}", 3 + i);
        let sizes = |i: usize| [self.0[i], self.0[i + 1]];
        let given = |before: &[Vec<S>], i: usize| {
            if i == 0 { before[0].clone() } else { reference::activate(&before[i], relu) }
        };
        for i in 0..self.0.len() - 1 {
            let mut y = reference::linear(&given(&before, i), &g.weights[&name(i)], sizes(i));
            reference::add_bias(&mut y, &g.weights[&format!("{}.bias", name(i))]);
            before.push(y);
        }
        let mut dx = g.dy.clone();
        for i in (0..self.0.len() - 1).rev() {
            let dy = reference::activate_backward(&before[i + 1], &dx, relu);
            let (next, dw) =
                reference::linear_backward(&given(&before, i), &g.weights[&name(i)], &dy, sizes(i));
            gradients.insert(name(i), dw);
            gradients.insert(format!("{}.bias", name(i)), reference::bias_gradient(&dy, self.0[i + 1]));
            dx = next;
        }
        Answer { y: reference::activate(&before[self.0.len() - 1], relu), dx, gradients }
    }
    fn traffic(&self, tokens: usize, ranks: usize) -> Vec<(Op, usize)> {
        let (dx, y) = (tokens * self.0[0], tokens * self.outputs());
        if self.0.len() == 2 {
            return vec![(Op::AllReduce, dx), (Op::AllGather, y / ranks)];
        }
        vec![(Op::AllReduce, dx + y)]
    }
    fn traffic_on(&self, (_, ranks): (usize, usize), each: &[usize], regions: bool) -> Vec<(Op, usize)> {
        let tokens = each.iter().sum();
        if !regions {
            return self.traffic(tokens, ranks);
        }
        let share: usize = each.iter().map(|n| n.div_ceil(ranks)).sum();
        let ([x, y], gathered) = ([self.0[0], self.outputs()], self.0.len() == 2);
        let columns = if gathered { tokens * y / ranks } else { 0 };
        let reduced = if gathered { x } else { x + y };
        // X twice, dY, and Y where it is gathered; dX, and Y where it is summed.
        vec![(Op::AllGather, share * (2 * x + y) + columns), (Op::ReduceScatter, ranks * share * reduced)]
    }
    fn synced(&self, _: usize, regions: bool) -> usize {
        if regions && self.0.len() == 3 { self.outputs() } else { 0 } // the bias of rows
    }
}

/// Kills: a ReLU lost, doubled or of the wrong side of a bias; columns gathered in another order, another
/// rank's columns or tokens of dY; a gradient summed where it is the same.
#[test]
fn what_stands_between_two_bars_equals_its_formula_bit_for_bit() {
    for sizes in [&[5, 24, 7][..], &[5, 24]] {
        proves(&Between(sizes));
        proves_in_regions(&Between(sizes));
    }
}
