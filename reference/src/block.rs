//! One transformer block: norms in front, two residual branches.
//!
//! ```text
//! X₁ = X  + attention(rotary(norm1(X)·W_qkv))·W_out
//! X₂ = X₁ + swiglu(norm2(X₁)·W_gate_up)·W_down
//! ```
//! Backward in the opposite order; at each branch dX is the sum of what came around and what came through.
//!
//! Source: Touvron et al., Llama, arXiv:2302.13971, §2.2.
use crate::attention::{attention, attention_backward};
use crate::linear::{add, linear, linear_backward};
use crate::model::{Model, Weights, part};
use crate::norm::{rms_norm, rms_norm_backward};
use crate::rotary::rotary;
use crate::swiglu::{swiglu, swiglu_backward};
use tensor::Scalar;

/// What a block's backward needs of its forward, in the order in which it came about.
pub struct BlockSaved<S> {
    x: Vec<S>,       // X
    norm1: Vec<S>,   // norm1(X)
    qkv: Vec<S>,     // turned rows [Q | K | V]
    o: Vec<S>,       // what the heads gathered
    x1: Vec<S>,      // X₁
    norm2: Vec<S>,   // norm2(X₁)
    gate_up: Vec<S>, // rows [gate | up]
    h: Vec<S>,       // swiglu of them
}

impl Model {
    /// Block `i`: `X[B,D]` → `X₂[B,D]`, and what its backward needs. `w` has at least this block's parameters.
    pub fn block<S: Scalar>(
        &self,
        w: &Weights<S>,
        i: usize,
        x: Vec<S>,
        lengths: &[usize],
    ) -> (Vec<S>, BlockSaved<S>) {
        let (of, [qkv_shape, out_shape, up_shape, down_shape]) = (|p| &w[&part(i, p)], self.block_shapes());
        let norm1 = rms_norm(&x, of("norm1"), self.eps);
        let mut qkv = linear(&norm1, of("attention.qkv"), qkv_shape);
        rotary(&mut qkv, self.heads, &positions(lengths), self.rope, false);
        let o = attention(&qkv, self.heads, lengths);
        let mut x1 = x.clone();
        add(&mut x1, linear(&o, of("attention.out"), out_shape));
        let norm2 = rms_norm(&x1, of("norm2"), self.eps);
        let gate_up = linear(&norm2, of("mlp.gate_up"), up_shape);
        let h = swiglu(&gate_up, self.hidden);
        let mut x2 = x1.clone();
        add(&mut x2, linear(&h, of("mlp.down"), down_shape));
        (x2, BlockSaved { x, norm1, qkv, o, x1, norm2, gate_up, h })
    }

    /// `dX₂[B,D]` → `dX[B,D]`; the gradients of the block's parameters go into `g`.
    pub fn block_backward<S: Scalar>(
        &self,
        w: &Weights<S>,
        i: usize,
        saved: &BlockSaved<S>,
        mut dx: Vec<S>,
        lengths: &[usize],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let (of, [qkv_shape, out_shape, up_shape, down_shape]) = (|p| &w[&part(i, p)], self.block_shapes());
        let (dh, d_down) = linear_backward(&saved.h, of("mlp.down"), &dx, down_shape);
        let d_gate_up = swiglu_backward(&saved.gate_up, &dh, self.hidden);
        let (dn, d_up) = linear_backward(&saved.norm2, of("mlp.gate_up"), &d_gate_up, up_shape);
        let (through, d_norm2) = rms_norm_backward(&saved.x1, of("norm2"), &dn, self.eps);
        add(&mut dx, through); // dX₁
        let (d_o, d_out) = linear_backward(&saved.o, of("attention.out"), &dx, out_shape);
        let mut dqkv = attention_backward(&saved.qkv, &d_o, self.heads, lengths);
        rotary(&mut dqkv, self.heads, &positions(lengths), self.rope, true);
        let (dn, d_qkv) = linear_backward(&saved.norm1, of("attention.qkv"), &dqkv, qkv_shape);
        let (through, d_norm1) = rms_norm_backward(&saved.x, of("norm1"), &dn, self.eps);
        add(&mut dx, through);
        g.extend([
            (part(i, "norm1"), d_norm1),
            (part(i, "attention.qkv"), d_qkv),
            (part(i, "attention.out"), d_out),
            (part(i, "norm2"), d_norm2),
            (part(i, "mlp.gate_up"), d_up),
            (part(i, "mlp.down"), d_down),
        ]);
        dx
    }

    /// `[inputs, outputs]` of a block's four matrices: qkv, out, `gate_up`, down.
    pub(crate) fn block_shapes(&self) -> [[usize; 2]; 4] {
        let (d, f, gathered) = (self.width, self.hidden, self.heads.queries * self.heads.dim);
        [[d, self.heads.row()], [gathered, d], [d, 2 * f], [f, d]]
    }
}

/// Where each token stands in its sequence, counted from 0.
fn positions(lengths: &[usize]) -> Vec<usize> {
    lengths.iter().flat_map(|&length| 0..length).collect()
}
