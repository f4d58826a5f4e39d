//! Sparse communication, `tp=N:sparse/S`: before a row layer, each rank sends the others only the features
//! that matter most to them. S percent of each rank's features are left out.
//!
//! ```text
//! tp alone  Y[B,O]   = Σ_t X_t · W[I_t,O]                              all-reduce, B·O elements
//! sparse    Y[B,O_t] = X_t · W[I_t,O_t] + Σ_s X_s[sent] · W[sent,O_t]  all-gather, B·I/N·(1 − S) elements
//!           Y[B,O]   = all ranks' columns                              all-gather, B·O/N elements
//! backward  dX_t, dW: `ops/src/operators/features.rs`            reduce-scatter, B·I·(1 − S) elements
//! ```
//!
//! Source: Qin et al., "DISCO: distributed inference with sparse communications", §3, arXiv:2302.11180.
//! Chapter: sparse and shared.
use comm::{Axis, Group};
use kernels::Kernels;
use layers::build::strategy::Row;
use layers::model::classifier::GatherColumns;
use layers::{
    BoxedLayer, Builder, Choice, Design, InputHalf, Layer, NumberArgument, Params, Sizes, Strategy,
    StrategyInfo, Tries,
};
use ops::{
    ColumnWeight, DividedSize, DivisionRule, FeatureExchange, KeptValue, PassContext, ReceivedFeatures,
    Result, Split, Stream, add_columns, columns_bias_gradient,
};
use std::iter::once;
use std::sync::Arc;

/// Sparse communication between the tensor ranks.
///
/// A weight from a feature that is not sent to an output of another rank is 0, and stays 0: the mask is the
/// zeros of the weight, so a checkpoint is an ordinary folder. Building a model sets those weights to 0 that
/// are least important in its initial values, or in the values of a folder. A dense model becomes sparse step
/// by step: a run under `sparse/25` begins from its folder, one under `sparse/50` from that one's. The share
/// of a layer's weights that are 0 is `S·(N − 1)/N`, because weights within a rank stay.
pub struct SparseMessages;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "sparse communication",
    word: "sparse",
    takes: NumberArgument::Percent("percentage of features that are not sent"),
    tries: Tries::Never,
    shares,
    paper: "Qin et al., arXiv:2302.11180",
    chapter: Some("sparse-and-shared.md"),
    hints: &[
        ("gradient of", "a weight from a feature that is not sent to another rank's output has no gradient"),
        (".bias", "a row layer's bias is cut like its columns, and added before they are gathered"),
        ("dx", "dX is this rank's own part, and for features that were sent what the other ranks add"),
        ("", "a rank sends its own features that other ranks' outputs weigh most, the same ones to all"),
    ],
    ..StrategyInfo::of(Some(Axis::Tp), Choice::Features)
};

/// Number of features that a rank sends of `own`, if `percent` of them are left out.
pub fn sent_of(own: usize, percent: usize) -> usize {
    (own * (100 - percent) + 50) / 100
}

fn shares(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let ranks = sizes.along(Axis::Tp);
    let percent = sizes.number.unwrap_or(0);
    let one = |what, size, by| DividedSize { what, size, over: ranks, by };
    let sent = |inputs: usize| {
        one("features left to send", sent_of(inputs / ranks, percent) * ranks, DivisionRule::AtLeastOne)
    };
    let Some(shape) = design.shape() else {
        return design.shared().into_iter().map(sent).collect();
    };
    let dense = (0..shape.blocks).any(|block| shape.block(block).experts.is_none()).then_some(shape.hidden);
    let of_all = shape.experts.and_then(|experts| experts.shared).map(|shared| shared.hidden);
    let width = one("features of a token", shape.width, DivisionRule::Equally);
    let inputs = [Some(shape.heads.gathered()), dense, of_all];
    once(width).chain(inputs.into_iter().flatten().map(sent)).collect()
}

impl<D: Kernels> Strategy<D> for SparseMessages {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, at: &Builder<D>, row: &Row) -> Result<Option<BoxedLayer<D, Split<D>, Stream<D>>>> {
        Ok(Some(BoxedLayer::new(shard(at, row, at.numbers[Choice::Features as usize] as usize)?)))
    }
}

/// A row layer: the sparse layer, and its outputs gathered.
pub type SparseRow<D> = (SparseLinear<D>, GatherColumns<D>);

/// Builds `W[inputs, outputs]` of a row layer, and `name.bias` if there is one, with the initial values of a
/// [`RowLinear`](layers::RowLinear); `percent` of the inputs are not sent.
///
/// # Errors
/// If the ranks do not divide the inputs and the outputs.
pub fn shard<D: Kernels>(at: &Builder<D>, row: &Row, percent: usize) -> Result<SparseRow<D>> {
    Ok((SparseLinear::shard(at, row, percent)?, GatherColumns::new(at, row.axis, row.name)))
}

/// A linear layer whose inputs and outputs the ranks have in parts, and that send each other some inputs.
pub struct SparseLinear<D: Kernels> {
    name: Arc<str>,
    weight: ColumnWeight<D>,       // W[I,O_t]
    bias: Option<ColumnWeight<D>>, // b[O_t]
    exchange: FeatureExchange<D>,
    group: Group<D::Place>, // the ranks of axis t
}

impl<D: Kernels> SparseLinear<D> {
    fn shard(at: &Builder<D>, row: &Row, percent: usize) -> Result<Self> {
        let Row { axis, name, sizes: [inputs, outputs], bias } = *row;
        let group = at.mesh.group(axis).named(name);
        let each = sent_of(inputs / group.size(), percent);
        let (weight, sent) = ColumnWeight::sparse(at, axis, name, row.sizes, each)?;
        let bias = bias.then(|| ColumnWeight::bias(at, axis, name, &[outputs.into()])).transpose()?;
        let exchange = FeatureExchange::new(at.device, group.clone(), &sent);
        Ok(Self { name: name.into(), weight, bias, exchange, group })
    }
}

impl<D: Kernels> Layer<D> for SparseLinear<D> {
    type In = Split<D>; // X[B,I_t]
    type Out = Split<D>; // Y[B,O_t]
    type Saved = KeptValue<(Split<D>, ReceivedFeatures<D>)>;
    type Pending = (Split<D>, ReceivedFeatures<D>, Split<D>);

    fn forward(&self, cx: &PassContext<D>, x: Split<D>) -> Result<(Split<D>, Self::Saved)> {
        cx.record(&self.name, "in", &(&x, &self.group, x.shape()[1] * self.group.size()))?;
        let (mut y, received) = self.exchange.columns(&x, &self.weight.columns()?)?;
        if let Some(bias) = &self.bias {
            y = add_columns(y, &bias.columns()?)?;
        }
        cx.record(&self.name, "out", &(&y, &self.weight))?;
        Ok((y, cx.keep((x, received))))
    }

    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Split<D>,
    ) -> InputHalf<D, Self> {
        cx.record_gradient(&self.name, "out", &(&dy, &self.weight))?;
        let dx = self.exchange.input_gradient(&dy, &self.weight.columns()?)?;
        cx.record_gradient(&self.name, "in", &(&dx, &self.group, dx.shape()[1] * self.group.size()))?;
        let (x, received) = saved.open();
        Ok((dx, (x, received, dy)))
    }

    fn backward_weight(&mut self, _: &PassContext<D>, (x, received, dy): Self::Pending) -> Result<()> {
        self.exchange.weight_gradient(&mut self.weight, (&x, &received), &dy);
        if let Some(bias) = &mut self.bias {
            columns_bias_gradient(bias, &dy);
        }
        Ok(())
    }

    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        into.push(self.weight.param());
        into.extend(self.bias.as_mut().map(ColumnWeight::param));
    }
}

#[cfg(test)]
mod tests;
