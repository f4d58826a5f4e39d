//! Builds a block of a transformer.
use super::Residual;
use crate::build::part::{Block, BoxedLayer};
use crate::build::strategy;
use crate::{BlockShape, Builder};
use comm::Axis;
use kernels::Kernels;
use ops::{Result, Rotary};

/// Builds block `i` of a transformer: X + attention(norm1(X)), then X + mlp(norm2(X)), wrapped by the
/// strategies. Parameters `blocks.i.norm1`, `.attention…`, `.norm2`, `.mlp…`.
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
    let norm = |n| {
        let name = &format!("blocks.{i}.norm{n}");
        at.build(&strategy::Norm { kind: of.norm, name, width: of.width, eps: of.eps })
    };
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
    let attention = Residual::around(name, norm(1)?, attention, rate);
    let block = BoxedLayer::new((attention, Residual::around(other, norm(2)?, mlp, rate)));
    Ok(at.strategies.iter().fold(block, |block, strategy| strategy.block(at, i, block)))
}
