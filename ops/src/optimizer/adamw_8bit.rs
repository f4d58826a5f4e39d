//! `AdamW` with moments of 8 bits: a byte an element for each, and a unit for each block of a row.
//!
//! ```text
//! m, v = unit of the block · value of the code;  a step of AdamW;  unit = max |m| / 8⁷, max v / 8⁸
//! state of n elements in blocks of b    2n bytes and 2n/b numbers, for the 2n numbers of AdamW
//! ```
//! A step uses its moments before they are rounded. Blocks begin at multiples of b in the whole row, and no
//! rank has a part of one: so weights do not depend on the layout, and ranks must share rows in whole blocks.
//! `tensor::Coded` has the codes.
//!
//! Source: Dettmers et al., "8-bit optimizers via block-wise quantization", arXiv:2110.02861.
use crate::optimizer::adamw;
use crate::optimizer::rule::UpdateStep;
use crate::param::part::UpdatePart;
use kernels::Kernels;
use shape::{Constant, Like, OptimizerInfo, OptimizerKind, Range, StateInfo};

pub(super) const INFO: &OptimizerInfo = &OptimizerInfo {
    name: "adamw-8bit",
    title: "8-bit AdamW",
    about: "AdamW with moments of 8 bits",
    paper: "Dettmers et al., arXiv:2110.02861",
    constants: &[
        adamw::BETAS,
        adamw::EPS,
        adamw::DECAY,
        Constant {
            key: "block-size",
            usual: &[256.0],
            range: Range::PowerOfTwo([4, 256]),
            help: "Elements of a row whose moments share a unit, a power of two from 4 to 256",
        },
    ],
    states: |values| &STATES[values[4].log2() as usize - 2],
    matrices: None,
};

/// The tensors of state for blocks of 4 to 256 elements.
const STATES: [[StateInfo; 4]; 7] =
    [of_blocks(4), of_blocks(8), of_blocks(16), of_blocks(32), of_blocks(64), of_blocks(128), of_blocks(256)];

/// Codes, of which an element holds four, and units.
const fn of_blocks(n: usize) -> [StateInfo; 4] {
    [each("m", 4), each("m.unit", n), each("v", 4), each("v.unit", n)]
}

const fn each(name: &'static str, n: usize) -> StateInfo {
    StateInfo { name, like: Like::Blocks(n) }
}

pub(super) fn update<D: Kernels>(of: OptimizerKind, part: UpdatePart<D>, step: &UpdateStep<D>) {
    let UpdatePart { device, value, master, states, gradient } = part;
    let [beta1, beta2, eps, decay, block] = of.constants();
    let constants = ([step.lr, beta1, beta2, eps, decay * step.decays], [step.number, block as usize]);
    device.adamw_8bit(value, master, states.all(), gradient, step.factor.view(), constants);
}
