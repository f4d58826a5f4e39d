//! Builds a block of a transformer.
use super::Residual;
use crate::build::part::{Block, BoxedLayer};
use crate::build::strategy;
use crate::{BlockShape, Builder};
use comm::Axis;
use kernels::Kernels;
use ops::{Result, Rotary};

/// Builds block `i` of a transformer: X + attention(norm1(X)), then X + mlp(norm2(X)), wrapped by the
/// strategies. Parameters `blocks.i.norm1`, `.attention…`, `.norm2`, `.mlp…`, and `.post_norm1`,
/// `.post_norm2` if norms are after the parts.
///
/// # Errors
/// If the ranks do not divide a size that they must divide.
pub fn shard<D: Kernels>(
    at: &Builder<D>,
    axis: Axis,
    of: &BlockShape,
    i: usize,
    rotary: Option<&Rotary<D>>,
) -> Result<Block<D>> {
    let norm = |part, n| {
        let name = &format!("blocks.{i}.{part}{n}");
        at.build(&strategy::Norm { kind: of.norm, name, width: of.width, eps: of.eps })
    };
    let before = |n| of.norms.before().then(|| norm("norm", n)).transpose();
    let after = |n| of.norms.after().then(|| norm("post_norm", n)).transpose();
    let rate = of.dropout.residual;
    let names = ["attention", "mlp"].map(|part| format!("blocks.{i}.{part}"));
    let attention = at.build(&strategy::Attention::of(axis, &names[0], of, i, rotary))?;
    let attention = at.strategies.iter().fold(attention, |inner, strategy| strategy.around_attention(inner));
    let mlp = at.build(&strategy::Mlp {
        axis,
        name: &names[1],
        kind: of.feed_forward,
        sizes: [of.width, of.hidden],
        bias: of.bias.mlp,
        experts: of.experts,
    })?;
    let [name, other] = names;
    let attention = Residual::around(name, [before(1)?, after(1)?], attention, rate);
    let block = BoxedLayer::new((attention, Residual::around(other, [before(2)?, after(2)?], mlp, rate)));
    Ok(at.strategies.iter().fold(block, |block, strategy| strategy.block(at, i, block)))
}
