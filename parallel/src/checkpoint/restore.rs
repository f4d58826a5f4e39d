//! Optimizer state in a file: its names, and reading it under any layout.
use super::files::CheckpointFile;
use crate::{Entry, Error, Named, Result, Stored, bail, named};
use comm::Mesh;
use kernels::Kernels;
use layers::{Design, RuleStates, StateInfo};
use ops::{LossScaling, Optimizer, Param, ValueSource, Wide};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tensor::quoted::quoted;
use tensor::safetensors::File;

/// Returns an optimizer's state of every trained parameter, as tensors of a file. There is none before the
/// first step.
fn states(infos: RuleStates, steps: usize, params: &[Named]) -> Vec<(Entry, &'static str)> {
    let of = |p: &Named, state: &StateInfo| {
        let name = format!("{}.{}", state.name, p.name);
        (Entry { name, ..Entry::whole(p.name.clone(), state.like.shape(p.shape)) }, state.name)
    };
    let trained = params.iter().filter(|p| steps > 0 && p.trained);
    trained.flat_map(|p| infos.of(&p.name, p.shape).iter().map(move |state| of(p, state))).collect()
}

/// Key of loss scaling in a file's metadata: the logarithm of the scale, and the good steps since it changed.
const LOSS_SCALE: &str = "loss_scale";

/// Returns loss scaling as it was saved, with its own window.
fn restored(own: LossScaling, saved: &str) -> Option<LossScaling> {
    let (log2, good) = saved.split_once(' ')?;
    let log2 = log2.parse().ok()?;
    (log2 <= LossScaling::MOST).then_some(LossScaling { log2, good: good.parse().ok()?, ..own })
}

/// Returns the file of an optimizer's state, with its kind and `updates`, their number, in its metadata, and
/// with loss scaling `loss_scale`. Every rank calls it.
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
    let rule = optimizer.rule();
    let steps = optimizer.steps();
    metadata.insert("optimizer".into(), rule.name().into());
    metadata.insert("updates".into(), steps.to_string());
    if let Some(LossScaling { log2, good, .. }) = optimizer.scaling().loss {
        metadata.insert(LOSS_SCALE.into(), format!("{log2} {good}"));
    }
    let tensors = states(rule.states(), steps, &named(design, params, mesh)?);
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
    let wanted = optimizer.rule().name();
    let infos = optimizer.rule().states();
    if kind != wanted {
        bail!("{path}: the optimizer is {}; wanted {wanted}", quoted(kind));
    }
    let steps = steps.parse().map_err(|_| {
        Error::new(format!("{path}: the number of updates is {}; it must be a whole number", quoted(steps)))
    })?;
    let loss = match (optimizer.scaling().loss, file.metadata().get(LOSS_SCALE)) {
        (Some(own), Some(saved)) => Some(restored(own, saved).ok_or_else(|| {
            let wanted = format!("two numbers, the first at most {}", LossScaling::MOST);
            Error::new(format!("{path}: the loss scale is {}; it must be {wanted}", quoted(saved)))
        })?),
        _ => None,
    };
    // a source of values goes by one name: the tensor's
    let by_name = |(entry, _): (Entry, _)| Entry { param: entry.name.clone(), ..entry };
    let entries = states(infos, steps, &named(design, params, mesh)?).into_iter().map(by_name).collect();
    let stored = Stored::new(file.clone(), entries, |_| false)?;
    let draw = ops::Draw { mean: 0.0, std: 0.0 };
    optimizer.restore((steps, loss), params, |param, state| {
        let name = format!("{}.{}", state.name, param.name());
        <Stored as ValueSource<Wide<D>>>::of(&stored, &name, state.like.shape(param.shape()), draw)
    })?;
    Ok(())
}
