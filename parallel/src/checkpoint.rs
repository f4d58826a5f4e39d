//! Parameters and optimizer state in files, independent of the layout: gathered one tensor at a time by their
//! placements, written by rank 0, read by each rank for its share. Files are replaced when they are whole.
use crate::{Entry, Error, Orientation, Result, Stored};
use comm::Mesh;
use kernels::Kernels;
use layers::{Kind, Optimizer, Param, Values};
use std::collections::BTreeMap;
use std::path::Path;
use tensor::quoted::quoted;
use tensor::safetensors::{Dtype, File, Writer};
use tensor::{Device, Real};

type Metadata = BTreeMap<String, String>;

/// Begins a file of f32 tensors, on the rank that writes.
fn on_rank_0<D: Kernels>(
    path: &Path,
    metadata: &Metadata,
    entries: &[Entry],
    mesh: &Mesh<D>,
) -> Result<Option<Writer>> {
    if mesh.rank() != 0 {
        return Ok(None);
    }
    let header: Vec<_> = entries.iter().map(|e| (e.name.clone(), Dtype::F32, e.shape())).collect();
    Ok(Some(Writer::create(path, metadata, &header)?))
}

/// Writes the entries of one whole matrix, in f32, on the rank that writes.
fn put<E: Real>(
    writer: &mut Option<Writer>,
    path: &Path,
    entries: &[Entry],
    param: &str,
    whole: Option<Vec<E>>,
) -> Result<()> {
    let (Some(writer), Some(whole)) = (writer, whole) else { return Ok(()) };
    if !whole.iter().all(|x| (x.to_f64() as f32).is_finite()) {
        let path = path.display();
        return Err(Error::File(format!(
            "{path} is left as it is: {param} has values that are no finite numbers"
        )));
    }
    for entry in entries.iter().filter(|e| e.param == param) {
        writer.tensor(&entry.name, &entry.arrange(&whole, |x| x.to_f64() as f32))?;
    }
    Ok(())
}

/// Writes parameters as the entries say, in f32. Every rank calls it; rank 0 writes.
///
/// # Errors
/// If ranks do not meet, a value is no finite number, or the file cannot be written; then the old file is untouched.
pub fn save_params<D>(
    path: &Path,
    metadata: &Metadata,
    entries: &[Entry],
    params: &[&mut Param<D>],
    mesh: &Mesh<D>,
) -> Result<()>
where
    D: Kernels,
    D::Elem: Real,
{
    let mut writer = on_rank_0(path, metadata, entries, mesh)?;
    for param in params {
        put(&mut writer, path, entries, param.name(), param.gather(mesh)?)?;
    }
    writer.map_or(Ok(()), |w| Ok(w.finish()?))
}

/// The moments of every parameter, as tensors of a file; there are none before the first step, or of plain descent.
fn moments<D: Kernels>(kind: Kind, steps: usize, params: &[&mut Param<D>]) -> Vec<Entry> {
    if kind == Kind::Sgd || steps == 0 {
        return Vec::new();
    }
    let entry = |moment: &str, p: &Param<D>| {
        let [rows, cols] = p.shape();
        let name = format!("{moment}.{}", p.name());
        Entry { param: name.clone(), name, rows, columns: 0..cols, orientation: Orientation::Same }
    };
    params.iter().flat_map(|p| MOMENTS.map(|m| entry(m, p))).collect()
}
const MOMENTS: [&str; 2] = ["m", "v"];

/// Writes the optimizer's state, in f32; `metadata` gets `optimizer` and `steps`. Every rank calls it.
///
/// # Errors
/// As [`save_params`].
pub fn save_optimizer<D>(
    path: &Path,
    mut metadata: Metadata,
    optimizer: &Optimizer<D>,
    params: &[&mut Param<D>],
    mesh: &Mesh<D>,
) -> Result<()>
where
    D: Kernels,
    D::Elem: Real,
{
    metadata.insert("optimizer".into(), optimizer.kind().name().into());
    metadata.insert("steps".into(), optimizer.steps().to_string());
    let entries = moments(optimizer.kind(), optimizer.steps(), params);
    let mut writer = on_rank_0(path, &metadata, &entries, mesh)?;
    optimizer.gather::<Error>(params, mesh, |name, both| {
        let mut named = MOMENTS.iter().zip(both);
        named.try_for_each(|(m, whole)| put(&mut writer, path, &entries, &format!("{m}.{name}"), whole))
    })?;
    writer.map_or(Ok(()), |w| Ok(w.finish()?))
}

/// Brings the optimizer to the state of a file that [`save_optimizer`] wrote, under whatever layout.
///
/// # Errors
/// If the file holds the state of another optimizer or another model.
pub fn restore_optimizer<D: Kernels>(
    path: &str,
    file: &File,
    optimizer: &mut Optimizer<D>,
    params: &[&mut Param<D>],
) -> Result<()> {
    let noted = |key: &str| {
        let missing = || Error::File(format!("{path}: no {key:?} is noted in the file"));
        file.metadata().get(key).ok_or_else(missing)
    };
    let (kind, steps) = (noted("optimizer")?, noted("steps")?);
    let wanted = optimizer.kind().name();
    if kind != wanted {
        return Err(Error::File(format!(
            "{path}: holds the state of {}, wanted that of {wanted}",
            quoted(kind)
        )));
    }
    let steps =
        steps.parse().map_err(|_| Error::File(format!("{path}: {} is no number of steps", quoted(steps))))?;
    let entries = moments(optimizer.kind(), steps, params);
    let stored = Stored::new(file.clone(), entries, |_| false)?;
    let draw = layers::Draw { mean: 0.0, std: 0.0 };
    optimizer.restore(steps, params, |param, which| {
        let name = format!("{}.{}", MOMENTS[which], param.name());
        <Stored as Values<<D as Device>::Elem>>::of(&stored, &name, param.shape(), draw)
    })?;
    Ok(())
}
