//! Peak memory of the work, known before any of it runs.
use super::partitioning::Partitioning;
use super::work::{Comparison, Data, batch, has_own_truth, optimizer, subject};
use comm::Mesh;
use kernels::Kernels;
use models::generate::{Prompts, all_logits_peak};
use parallel::dtype::RunDevice;
use parallel::price::{self, Peak};
use parallel::{Batch, Result, Trainer, budget};
use tensor::Cpu;

/// Peak bytes of all ranks of a way, over all parts of the work.
///
/// # Errors
/// If a part needs more than a rank may hold; reports the part that needs the most.
pub(super) fn bytes<D: RunDevice>(
    work: &Comparison,
    way: &Partitioning,
    request: Option<&Prompts>,
) -> Result<u128> {
    let layout = &way.layout;
    let new = |prompt: &Vec<u32>| prompt.len() + request.map_or(0, |request| request.max_new);
    let prompts = request.map_or(&[][..], |request| &request.prompts);
    let texts = prompts.iter().map(|prompt| (vec![0; new(prompt)], prompt.len())).collect();
    let (subject, _) = subject(work, layout, texts)?;
    let lengths = prompts.iter().map(new).collect::<Vec<_>>();
    let batch = batch(work)?;
    let total = |peak: Result<Peak>| peak.map(|peak| peak.all);
    let mut parts = vec![prove::bytes(&subject, way.scheme()), total(training_peak::<D>(work, way, &batch))];
    if layout.ranks() == 1 || has_own_truth(layout) {
        parts.push(total(training_peak::<Cpu<f64>>(work, way, &batch)));
    }
    if let (Data::Text(model, _), Some(request)) = (work.data, request) {
        let shape = &model.config.shape;
        parts.push(total(way.request(request).peak::<D>(model, layout)));
        parts.push(total(all_logits_peak::<D>(shape, layout, &lengths)));
        if layout.ranks() == 1 || layout.is_sparse() {
            parts.push(total(all_logits_peak::<Cpu<f64>>(shape, layout, &lengths)));
        }
    }
    Ok(budget::all(parts)?.into_iter().max().unwrap_or(0))
}

/// Peak of a step and of gathering the new weights.
fn training_peak<D: Kernels>(work: &Comparison, way: &Partitioning, batch: &Batch) -> Result<Peak> {
    price::training(
        way.scheme::<D>(),
        &work.model.design,
        optimizer::<D>(work, &way.layout.pipeline()),
        batch,
        |trainer: &mut Trainer<_>, mesh: &Mesh<_>| price::gathering(trainer, mesh),
    )
}

/// Peak bytes of a step on the rank that holds the most, without a memory limit.
///
/// # Errors
/// If the number of bytes overflows 64 bits.
pub(super) fn step_peak<D: Kernels>(work: &Comparison, way: &Partitioning, batch: &Batch) -> Result<usize> {
    let way = Partitioning { layout: way.layout.limited(None), ..*way };
    let pipeline = way.layout.pipeline();
    let design = &work.model.design;
    let peak =
        price::training(way.scheme::<D>(), design, optimizer::<D>(work, &pipeline), batch, |_, _| Ok(()))?;
    Ok(peak.largest.total)
}
