//! What the work holds, known before any of it is done.
use super::{OPTIMIZER, Work, batch, subject};
use comm::Mesh;
use kernels::Kernels;
use models::generate::{Request, all_logits_peak};
use parallel::number::Runs;
use parallel::price::{self, Peak};
use parallel::{Batch, Layout, Result, Trainer, budget};
use tensor::Cpu;

/// Bytes that all ranks of a layout hold at most, in any part of the work.
///
/// # Errors
/// If a part needs more than a rank may hold; the one that needs the most is told.
pub(super) fn bytes<D: Runs>(work: &Work, layout: &Layout, request: &Request) -> Result<u128> {
    let new = |prompt: &Vec<u32>| (vec![0; prompt.len() + request.max_new], prompt.len());
    let (subject, _) = subject(work, layout, request.prompts.iter().map(new).collect())?;
    let lengths: Vec<_> = request.prompts.iter().map(|prompt| prompt.len() + request.max_new).collect();
    let (shape, batch) = (&work.model.config.shape, batch(work)?);
    let all = |peak: Result<Peak>| peak.map(|peak| peak.all);
    let mut parts = vec![
        all(request.peak::<D>(work.model, layout)),
        all(all_logits_peak::<D>(shape, layout, &lengths)),
        prove::bytes(&subject, layout),
        all(learnt::<D>(work, layout, &batch)),
    ];
    if layout.ranks() == 1 {
        parts.push(all(all_logits_peak::<Cpu<f64>>(shape, layout, &lengths)));
        parts.push(all(learnt::<Cpu<f64>>(work, layout, &batch)));
    }
    Ok(budget::all(parts)?.into_iter().max().unwrap_or(0))
}

/// What ranks hold at most in a step, and while the new weights are put together.
fn learnt<D: Kernels>(work: &Work, layout: &Layout, batch: &Batch) -> Result<Peak> {
    let shape = &work.model.config.shape;
    let gather = |trainer: &mut Trainer<_>, mesh: &Mesh<_>| price::gathering(trainer, mesh, shape);
    price::training::<D>(layout, shape, OPTIMIZER, batch, gather)
}

/// Bytes that the rank which holds the most would hold in a step, whatever it may hold.
///
/// # Errors
/// If 64 bits do not count them.
pub(super) fn by_a_step<D: Kernels>(work: &Work, layout: &Layout, batch: &Batch) -> Result<usize> {
    let shape = &work.model.config.shape;
    Ok(price::training::<D>(&layout.limited(None), shape, OPTIMIZER, batch, |_, _| Ok(()))?.largest)
}
