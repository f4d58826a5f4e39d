//! The logits of whole sequences, without a cache.
use crate::Model;
use kernels::{Kernels, MetaOf};
use layers::{Design, Shape};
use ops::PassContext;
use parallel::dtype::RunDevice;
use parallel::{BuildContext, Layout, Network, Result, Stages, price, session};
use tensor::{Real, Tensor, TokenIds};

/// Returns the logits of every token of whole sequences, as one row-major matrix in f64: for comparing
/// layouts and dtypes.
///
/// # Errors
/// If the layout does not fit the model, or a rank fails.
pub fn all_logits<D: RunDevice>(
    model: &Model,
    (layout, network): (&Layout, &Network),
    sequences: &[Vec<u32>],
) -> Result<Vec<f64>> {
    layout.fits(Design::from(model.config.shape).inferring())?;
    let world = network.world(layout, "logits")?;
    let ranks = session::run((layout, &world), model.values(), |at: BuildContext<D>| {
        let logits = whole_logits(&at, &model.config.shape, sequences)?;
        Ok(logits.read().expect("the host has values").into_iter().map(Real::to_f64).collect())
    })?;
    Ok(ranks.into_iter().next().expect("a rank"))
}

/// Returns the peak memory of the ranks while [`all_logits`] reads sequences of these lengths.
///
/// # Errors
/// As [`peak_of_all`](price::peak_of_all).
pub fn all_logits_peak<D: Kernels>(shape: &Shape, layout: &Layout, lengths: &[usize]) -> Result<price::Peak> {
    let sequences: Vec<_> = lengths.iter().map(|n| vec![0; *n]).collect();
    let program = |at: BuildContext<MetaOf<D>>| whole_logits(&at, shape, &sequences).map(drop);
    price::peak_of_all::<D, _>(layout, |_| Ok(()), program)
}

fn whole_logits<D: Kernels>(at: &BuildContext<D>, shape: &Shape, texts: &[Vec<u32>]) -> Result<Tensor<D>> {
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let mut chunk = Stages::new(at, shape.reaching(longest))?;
    let cx = PassContext::infer(texts.iter().map(Vec::len)).sharded(at.tokens);
    chunk.logits(&cx, TokenIds::new(at.device.place(), cx.own(texts), shape.vocabulary)?, true)
}
