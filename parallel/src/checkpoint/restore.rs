//! Optimizer state in a file: its names, and reading it under any layout.
use super::CheckpointFile;
use crate::{Entry, Error, Named, Result, Stored, bail, named};
use comm::Mesh;
use kernels::Kernels;
use layers::{Design, Optimizer, OptimizerKind, Param, SavedTensor, ValueSource, Wide};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::quoted::quoted;
use tensor::safetensors::File;

/// Names of the moments.
const MOMENTS: [&str; 2] = ["m", "v"];

/// Returns the moments of every trained parameter, as tensors of these names. There are none before the first
/// step, or for plain descent.
fn moments(kind: OptimizerKind, steps: usize, params: &[Named]) -> Vec<(Entry, SavedTensor)> {
    let count = if steps == 0 { 0 } else { kind.moments() };
    let of = |p: &Named, which: usize| {
        let entry = Entry::whole(format!("{}.{}", MOMENTS[which], p.name), p.shape);
        (entry, SavedTensor::Moment(which))
    };
    let trained = params.iter().filter(|p| p.trained);
    trained.flat_map(|p| (0..count).map(move |which| of(p, which))).collect()
}

/// Returns the file of an optimizer's state, with its kind and `updates`, their number, in its metadata.
/// Every rank calls it.
///
/// # Errors
/// If a collective fails.
pub fn optimizer_file<D: Kernels>(
    (path, shards, limit): (PathBuf, String, u64),
    mut metadata: BTreeMap<String, String>,
    optimizer: &Optimizer<D>,
    (design, params): (&Design, &[&mut Param<D>]),
    mesh: &Mesh<D::Place>,
) -> Result<CheckpointFile> {
    metadata.insert("optimizer".into(), optimizer.kind().name().into());
    metadata.insert("updates".into(), optimizer.steps().to_string());
    let tensors = moments(optimizer.kind(), optimizer.steps(), &named(design, params, mesh)?);
    let of_param = |(entry, which): (Entry, SavedTensor)| {
        let param = entry.param.split_once('.').expect("the moment's name comes first").1.to_string();
        (Entry { param, ..entry }, which)
    };
    let tensors = tensors.into_iter().map(of_param).collect();
    Ok(CheckpointFile { path, shards, limit, metadata, tensors })
}

/// Restores the optimizer's state from a file of [`optimizer_file`], under any layout. Each rank reads the
/// bytes of its own elements.
///
/// # Errors
/// If the file holds the state of another optimizer or another model, or does not have its digests.
pub fn restore_optimizer<D: Kernels>(
    path: &str,
    file: &File,
    optimizer: &mut Optimizer<D>,
    (design, params): (&Design, &mut [&mut Param<D>]),
    mesh: &Mesh<D::Place>,
) -> Result<()> {
    let noted = |key: &str| {
        let missing = || Error::new(format!("{path}: the file's metadata has no {key:?}"));
        file.metadata().get(key).ok_or_else(missing)
    };
    // files of the first format have `steps` only, one update each
    let (kind, steps) = (noted("optimizer")?, noted("updates").or_else(|_| noted("steps"))?);
    let wanted = optimizer.kind().name();
    if kind != wanted {
        bail!("{path}: the optimizer is {}; wanted {wanted}", quoted(kind));
    }
    let steps = steps.parse().map_err(|_| {
        Error::new(format!("{path}: the number of updates is {}; it must be a whole number", quoted(steps)))
    })?;
    let entries = moments(optimizer.kind(), steps, &named(design, params, mesh)?);
    let stored = Stored::new(file.clone(), entries.into_iter().map(|(entry, _)| entry).collect(), |_| false)?;
    let draw = layers::Draw { mean: 0.0, std: 0.0 };
    optimizer.restore(steps, params, |param, which| {
        let name = format!("{}.{}", MOMENTS[which], param.name());
        <Stored as ValueSource<Wide<D>>>::of(&stored, &name, param.shape(), draw)
    })?;
    Ok(())
}
