//! `--dump DIR`: writes a split run's activations, gradients and weights as whole tensors, for inspection.
//!
//! ```text
//! activations.safetensors    blocks.0.attention.qkv.in, .out, … and, where something was learnt, gradient of
//!                            blocks.0.attention.qkv.in, …; rows are tokens, sequence by sequence
//! gradients.safetensors      by Hugging Face names, oriented as theirs; none where nothing was learnt
//! weights.safetensors        the same, as they were before the step
//! new_weights.safetensors    the same, as they were after it; of `prove` alone, as the next is
//! step.safetensors           loss, and norm2: the square of the gradient's norm, before it was clipped
//! names.json                 our names, and theirs of each
//! ```
//!
//! Anyone can check products, sums and residuals: `out = in · W + bias`, `dW = inᵀ · (gradient of out)` and
//! `norm2.in = norm1.in + attention.added` (`attention.out.out` after dropout), in f32 up to rounding, in the
//! field exactly; [`After`] says how to check a whole step.
use crate::{Batch, Entry, Error, Report, Result, Trainer};
use comm::Mesh;
use kernels::{Kernels, loss_scale};
use layers::{OptimizerKind, Params};
use ops::{Activations, Param, Record, Wide};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensor::dtype::Storable;
use tensor::safetensors::Writer;
use tensor::{F61, Scalar, Tensor, every_float, files};

/// A dtype that a dump can hold. Files hold floats in the wide dtype (f32, bf16 and f16 as F32), and elements
/// of the field as U64 (`0 ≤ x < 2^61 − 1`). All gradients are divided by the loss scale.
pub trait DumpDtype: Scalar {
    /// Its type in a file.
    type Stored: Storable;
    /// Converts a value, multiplied by this number, to its type in a file.
    fn stored(self, by: Self::Wide) -> Self::Stored;
}

/// Defines that files hold floats in their wide dtype.
macro_rules! stored {
    ($($variant:ident $number:ty, $about:literal;)*) => {
        $(impl DumpDtype for $number {
            type Stored = <$number as Scalar>::Wide;
            fn stored(self, by: Self::Wide) -> Self::Stored {
                self.widen() * by
            }
        })*
    };
}
every_float!(stored);

impl DumpDtype for F61 {
    type Stored = u64;
    fn stored(self, by: F61) -> u64 {
        (self * by).canonical()
    }
}

/// Whole parameters, or their gradients, by canonical name.
pub type Tensors<E> = Vec<(String, Vec<E>)>;

/// Tensors that one rank recorded.
#[derive(Clone, Debug)]
pub struct Recorded<E: Scalar> {
    /// Its local parts of the activations.
    pub activations: Activations<E>,
    /// Synced gradients; empty if nothing was learnt.
    pub gradients: Tensors<E::Wide>,
    /// Weights before the step.
    pub weights: Tensors<E>,
    /// Logarithm of the loss scale, which multiplies all gradients.
    pub log2: u32,
    /// Results of the step, if requested.
    pub after: Option<After<E>>,
}

/// Results of a step, the same on all ranks. In the field they are enough to check the whole step: `norm2` is
/// the sum of all gradients' squares, and plain descent subtracts `lr · c · gradient` from each old weight,
/// with one clip factor `c` for all of them (a keyed hash of `norm2` and the limit).
#[derive(Clone, Debug)]
pub struct After<E: Scalar> {
    /// The loss, and the norm² before clipping, by name.
    pub numbers: Tensors<E::Wide>,
    /// The new weights.
    pub weights: Tensors<E>,
}

/// Metadata of the files. Each file has key, layout, number and step; under `prove` also optimizer, lr and
/// clip. The activations' file also has `rows`: the [sequence, position] of each row.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// The key of the field; none on floats.
    pub key: Option<u64>,
    /// The layout.
    pub layout: String,
    /// Index of the step, counted from 0; none if nothing was learnt.
    pub step: Option<usize>,
    /// Optimizer, clip limit and learning rate, if noted.
    pub optimizer: Option<(OptimizerKind, Option<f64>, f64)>,
}

/// Gathers the whole parameters.
///
/// # Errors
/// If a collective fails.
pub fn weights<D: Kernels>(params: Params<D>, mesh: &Mesh<D::Place>) -> ops::Result<Tensors<D::Elem>> {
    let whole = |p: &mut Param<D>| Ok((p.name().to_string(), p.gather(mesh)?.unwrap_or_default()));
    params.into_iter().map(whole).collect()
}

/// Gathers the whole gradients of the last step.
///
/// # Errors
/// If a collective fails.
pub fn gradients<D: Kernels>(params: Params<D>, mesh: &Mesh<D::Place>) -> ops::Result<Tensors<Wide<D>>> {
    let whole = |p: &mut Param<D>| Ok((p.name().to_string(), p.gather_gradient(mesh)?.unwrap_or_default()));
    params.into_iter().map(whole).collect()
}

/// Runs one training step and records its activations, gradients and weights.
///
/// # Errors
/// As [`Trainer::step`].
pub fn step<D: Kernels>(
    trainer: &mut Trainer<D>,
    mesh: &Mesh<D::Place>,
    batch: &Batch,
    lr: f64,
) -> Result<(Report<D>, Recorded<D::Elem>)> {
    let record = Record::new(mesh);
    let weights = weights(trainer.model().params(), mesh)?;
    trainer.record(Some(record.clone()));
    let report = trainer.step(batch, lr);
    trainer.record(None);
    let report = report?;
    let gradients = gradients(trainer.model().params(), mesh)?;
    let log2 = report.scale.unwrap_or(0);
    Ok((report, Recorded { activations: record.take(), gradients, weights, log2, after: None }))
}

/// Reads the results of the step that gave this report, before its weights change again.
///
/// # Errors
/// If a collective fails.
pub fn after<D: Kernels>(
    report: &Report<D>,
    params: Params<D>,
    mesh: &Mesh<D::Place>,
) -> ops::Result<After<D::Elem>> {
    let norm2 = report.norm2.as_ref().map(|norm2| ("norm2", norm2));
    let read =
        |(name, number): (&str, &Tensor<D::Wide>)| (name.to_string(), number.read().unwrap_or_default());
    let numbers = [("loss", &report.loss)].into_iter().chain(norm2).map(read).collect();
    Ok(After { numbers, weights: weights(params, mesh)? })
}

const ACTIVATIONS: &str = "activations.safetensors";
const GRADIENTS: &str = "gradients.safetensors";
const WEIGHTS: &str = "weights.safetensors";
const NEW_WEIGHTS: &str = "new_weights.safetensors";
const STEP: &str = "step.safetensors";
const NAMES: &str = "names.json";

/// Creates the folder if it is missing, and removes an earlier dump from it, so that no two are mixed.
/// Nothing else is touched.
///
/// # Errors
/// If the folder cannot be created, an earlier dump cannot be removed, or nothing can be written there.
pub fn prepare(dir: &Path) -> Result<()> {
    let fail = |what: &str, why: std::io::Error| Error::new(format!("{} {what}: {why}", dir.display()));
    fs::create_dir_all(dir).map_err(|why| fail("cannot be created", why))?;
    if let Some((name, why)) = clear(dir) {
        return Err(fail(&format!("holds a {name} that cannot be replaced"), why));
    }
    drop(files::Replacement::beside(&dir.join(NAMES))?); // checks that files can be written here; leaves none
    Ok(())
}

/// Removes the files of a dump. Returns the first that cannot be removed.
fn clear(dir: &Path) -> Option<(&'static str, std::io::Error)> {
    let mut all = [ACTIVATIONS, GRADIENTS, WEIGHTS, NEW_WEIGHTS, STEP, NAMES].into_iter();
    all.find_map(|name| match fs::remove_file(dir.join(name)) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Some((name, why)),
        _ => None,
    })
}

/// Writes the records of all ranks, each parameter from the first rank that has it. The folder has been
/// prepared.
///
/// # Errors
/// If a file cannot be written; then no file is left.
pub fn write<E: DumpDtype<Wide: DumpDtype>>(
    dir: &Path,
    entries: &[Entry],
    ranks: Vec<Recorded<E>>,
    about: &Provenance,
) -> Result<()> {
    write_all(dir, entries, ranks, about).inspect_err(|_| drop(clear(dir)))
}

fn write_all<E: DumpDtype<Wide: DumpDtype>>(
    dir: &Path,
    entries: &[Entry],
    ranks: Vec<Recorded<E>>,
    about: &Provenance,
) -> Result<()> {
    let (mut activations, mut gradients, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    let mut after: Option<After<E>> = None;
    let log2 = ranks.first().map_or(0, |seen| seen.log2);
    for seen in ranks {
        activations.push(seen.activations);
        joined(&mut gradients, seen.gradients);
        joined(&mut weights, seen.weights);
        match (&mut after, seen.after) {
            (Some(after), Some(other)) => joined(&mut after.weights, other.weights),
            (after, other) => *after = after.take().or(other),
        }
    }
    let all = Activations::whole(activations);
    let notes = about.notes::<E>();
    let mut with_rows = notes.clone();
    if let Some((_, rows)) = all.first() {
        let rows: Vec<_> = rows.keys().map(|(sequence, position)| [sequence, position]).collect();
        with_rows.insert("rows".into(), json!(rows).to_string());
    }
    let unscaled = loss_scale::<E::Wide>(log2).inv();
    let rows = |(name, rows): (String, BTreeMap<_, Vec<E>>)| {
        let shape = vec![rows.len(), rows.values().next().map_or(0, Vec::len)];
        let by = if name.starts_with("gradient of ") { unscaled } else { Scalar::ONE };
        (name, shape, rows.into_values().flatten().map(|x| x.stored(by)).collect())
    };
    put(&dir.join(ACTIVATIONS), &with_rows, all.into_iter().map(rows).collect())?;
    let (numbers, new) = after.map_or_else(Default::default, |after| (after.numbers, after.weights));
    if !gradients.is_empty() {
        put(&dir.join(GRADIENTS), &notes, theirs(entries, &gradients, (unscaled.widen(), false)))?;
    }
    for (file, tensors) in [(WEIGHTS, weights), (NEW_WEIGHTS, new)] {
        if !tensors.is_empty() {
            put(&dir.join(file), &notes, theirs(entries, &tensors, (Scalar::ONE, true)))?;
        }
    }
    if !numbers.is_empty() {
        let one = |(name, x): (String, Vec<E::Wide>)| {
            (name, vec![x.len()], x.into_iter().map(|x| x.stored(Scalar::ONE)).collect())
        };
        put(&dir.join(STEP), &notes, numbers.into_iter().map(one).collect())?;
    }
    let mut names = serde_json::Map::new();
    for entry in entries {
        let all = names.entry(entry.param.clone()).or_insert_with(|| json!([]));
        all.as_array_mut().expect("put there as one").push(json!(entry.name));
    }
    Ok(files::replace_file(&dir.join(NAMES), format!("{:#}\n", serde_json::Value::Object(names)).as_bytes())?)
}

impl Provenance {
    fn notes<E: DumpDtype>(&self) -> BTreeMap<String, String> {
        let mut notes: BTreeMap<String, String> =
            [("format".into(), "pt".into()), ("layout".into(), self.layout.clone())].into();
        notes.insert("number".into(), E::NAME.into());
        notes.extend(self.key.map(|key| ("key".into(), format!("{key:#018x}"))));
        notes.extend(self.step.map(|step| ("step".into(), step.to_string())));
        if let Some((kind, clip, lr)) = self.optimizer {
            let clip = clip.map(|limit| ("clip", json!(limit)));
            let all = [("optimizer", json!(kind)), ("lr", json!(lr))].into_iter().chain(clip);
            notes.extend(all.map(|(name, value)| (name.to_string(), value.to_string())));
        }
        notes
    }
}

/// Adds another rank's tensors: those of other stages.
fn joined<E>(all: &mut Tensors<E>, other: Tensors<E>) {
    let new = |(name, _): &(String, Vec<E>)| all.iter().all(|(known, _)| known != name);
    let other: Vec<_> = other.into_iter().filter(new).collect();
    all.extend(other);
}

/// A tensor of a file: its name, shape and values.
type DumpTensor<T> = (String, Vec<usize>, Vec<T>);

/// The parameters, multiplied by this number, under the file's names and in its orientation; less what files
/// lack if they are `values`, not gradients. A parameter that is not trained has no gradient.
fn theirs<E: DumpDtype>(
    entries: &[Entry],
    tensors: &Tensors<E>,
    (by, values): (E::Wide, bool),
) -> Vec<DumpTensor<E::Stored>> {
    let one = |entry: &Entry| {
        let whole = tensors.iter().find(|(name, _)| *name == entry.param);
        let (_, whole) = whole.expect("a model has its parameters");
        if whole.is_empty() {
            return None;
        }
        let less = if values && entry.plus_one { E::ONE } else { E::ZERO };
        Some((entry.name.clone(), entry.shape(), entry.arrange(whole, |x| (x - less).stored(by))))
    };
    entries.iter().filter_map(one).collect()
}

fn put<T: Storable>(
    path: &Path,
    notes: &BTreeMap<String, String>,
    tensors: Vec<DumpTensor<T>>,
) -> Result<()> {
    let header: Vec<_> =
        tensors.iter().map(|(name, shape, _)| (name.clone(), T::DTYPE, shape.clone())).collect();
    let mut writer = Writer::create(path, notes, &header)?;
    for (name, _, values) in &tensors {
        writer.tensor(name, values)?;
    }
    Ok(writer.finish()?)
}
