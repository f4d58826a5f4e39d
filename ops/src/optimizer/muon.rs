//! Muon: momentum, orthogonalised matrix by matrix, for the matrices of blocks; `AdamW` for all else.
//!
//! ```text
//! m = μ·m + (1−μ)·cg,  u = μ·m + (1−μ)·cg         each matrix W[I,O] of u whole: O = orthogonal(u)
//! w −= lr·λ·w + lr·s·O,  s = √max(1, O/I)         or 0.2·√max(I, O): AdamW's root mean square
//! ```
//! `[Q|K|V]` are three matrices, `[gate|up]` two, and each expert has its own: orthogonalised as one, they
//! would get other updates. The norm of a shard is not that of the matrix, so ranks exchange their parts
//! (`duplicated.rs`, `owner.rs`). Routers and gates of shared experts are matrices of blocks, too, as by
//! Jordan's rule: all parameters of two dimensions but embeddings and heads.
//!
//! Source: Jordan et al., kellerjordan.github.io/posts/muon; `torch.optim.Muon`; the second scale: Liu et
//! al., §2.2, arXiv:2502.16982. Chapter: whole matrices.
use crate::filled;
use crate::optimizer::matrices::EXCHANGE;
use crate::optimizer::newton_schulz::orthogonalise;
use crate::optimizer::rule::{MatrixRule, UpdateStep};
use crate::optimizer::{adamw, lion};
use crate::param::part::UpdatePart;
use crate::param::placement::matrices::ParamMatrix;
use kernels::Kernels;
use shape::{Constant, OptimizerInfo, OptimizerKind, Range};
use tensor::{Category, Scalar, ViewMut};

pub(super) const INFO: &OptimizerInfo = &OptimizerInfo {
    name: "muon",
    title: "Muon",
    about: "orthogonalised momentum for matrices of blocks, AdamW for all other parameters",
    paper: "Jordan et al., kellerjordan.github.io/posts/muon",
    constants: &[
        Constant {
            key: "muon-lr",
            usual: &[1.0],
            range: Range::Rate,
            help: "Largest learning rate of matrices of blocks; --lr is that of all other parameters",
        },
        Constant { key: "muon-momentum", usual: &[0.95], range: Range::Below1, help: "Nesterov momentum" },
        Constant {
            key: "muon-scale",
            usual: &[0.0],
            range: Range::OneOf(&["original", "match_rms_adamw"]),
            help: "Scale of an update of a matrix; original: the root of outputs/inputs, at least 1; \
                   match_rms_adamw: 0.2 times the root of the larger of both",
        },
        EXCHANGE,
        adamw::BETAS,
        adamw::EPS,
        adamw::DECAY,
    ],
    states: |_| adamw::STATES,
    matrices: Some(lion::STATES),
};

/// Updates a part of a parameter that is no matrix of a block.
pub(super) fn update<D: Kernels>(of: OptimizerKind, part: UpdatePart<D>, step: &UpdateStep<D>) {
    adamw::update(OptimizerKind::usual(adamw::INFO).with(&of.constants::<8>()[4..]), part, step);
}

/// The rule for matrices of blocks.
pub(super) struct Muon(pub(super) OptimizerKind);

impl<D: Kernels> MatrixRule<D> for Muon {
    fn exchange(&self) -> usize {
        self.0.constants::<4>()[3] as usize
    }
    fn direction(&self, part: UpdatePart<D>, to: ViewMut<D::Wide>, step: &UpdateStep<D>) {
        let ([_, momentum], [m]) = (self.0.constants(), part.states.all());
        part.device.wide().momentum(to, m, part.gradient, step.factor.view(), momentum);
    }
    fn change(&self, device: &D::Wide, whole: ViewMut<D::Wide>, of: &ParamMatrix) {
        let [_, _, by_rms] = self.0.constants();
        let [inputs, outputs] = of.features().map(|n| n as f64);
        let scale =
            if by_rms == 0.0 { (outputs / inputs).max(1.0).sqrt() } else { 0.2 * outputs.max(inputs).sqrt() };
        orthogonalise(device, whole, scale);
    }
    fn apply(&self, part: UpdatePart<D>, step: &UpdateStep<D>) {
        let [rate, _, _, _, _, _, _, decay] = self.0.constants();
        let one = filled(part.device.wide(), Category::Buffers, [1, 1], Scalar::ONE);
        part.device.sgd(part.value, part.master, part.gradient, one.view(), [step.lr * rate, decay]);
    }
}
