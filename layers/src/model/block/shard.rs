//! Builds a block of a transformer.
use super::Residual;
use crate::build::part::{Block, BoxedLayer};
use crate::build::strategy;
use crate::{Builder, Shape};
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
    shape: &Shape,
    i: usize,
    rotary: Option<Rotary<D>>,
) -> Result<Block<D>> {
    let norm = |n| {
        let name = &format!("blocks.{i}.norm{n}");
        at.build(&strategy::Norm { kind: shape.norm, name, width: shape.width, eps: shape.eps })
    };
    let rate = shape.dropout.residual;
    let sizes = [shape.width, shape.hidden];
    let names = ["attention", "mlp"].map(|part| format!("blocks.{i}.{part}"));
    let attention = at.build(&strategy::Attention::of(axis, &names[0], shape, i, rotary.as_ref()))?;
    let attention = at.strategies.iter().fold(attention, |inner, strategy| strategy.around_attention(inner));
    let (kind, bias) = (shape.feed_forward, shape.bias.mlp);
    let mlp =
        at.build(&strategy::Mlp { axis, name: &names[1], kind, sizes, bias, experts: shape.experts(i) })?;
    let [name, other] = names;
    let attention = Residual::around(name, norm(1)?, attention, rate);
    let block = BoxedLayer::new((attention, Residual::around(other, norm(2)?, mlp, rate)));
    Ok(at.strategies.iter().fold(block, |block, strategy| strategy.block(at, i, block)))
}
