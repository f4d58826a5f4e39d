//! A training run in a folder: the model in the Hugging Face layout, and the state that a resumed run needs.
//!
//! `optimizer-<step>.safetensors` is written first, then `model.safetensors`, which records its step: writing
//! it replaces the checkpoint. Optimizer files of other steps are removed last, even if a save fails. The
//! folder holds one whole checkpoint at every moment.
mod saves;

pub(crate) use saves::Saver;
pub use saves::Saves;

use super::data::DataFiles;
use super::evaluations::Evaluations;
use super::settings::Settings;
use models::{TrainableModel, tokenizer};
use ops::{Draw, ParamValues, ValueSource};
use parallel::dtype::RunDevice;
use parallel::{Error, Result, Trainer, bail, checkpoint};
use std::fs;
use std::path::{Path, PathBuf};
use tensor::quoted::quoted;
use tensor::safetensors::File;
use tensor::{Scalar, files};

const MODEL: &str = "model.safetensors";
/// Key of the format's number in the metadata of both files; files without it are of the first.
const FORMAT: &str = "checkpoint_format";
const CURRENT: u32 = 1;

fn optimizer_name(step: usize) -> String {
    format!("optimizer-{step}.safetensors")
}

/// Returns the step in the name of an optimizer's file, or of a shard.
fn step_of(name: &str) -> Option<usize> {
    let (rest, may_be_whole) = match name.strip_prefix("optimizer-") {
        Some(rest) => (rest, true),
        None => (name.strip_prefix("model-")?, false),
    };
    let (step, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let shard = rest.strip_prefix('-').and_then(|rest| rest.strip_suffix(".safetensors"));
    let is_shard =
        shard.and_then(|shard| shard.split_once("-of-")).is_some_and(|(i, n)| is_number(i) && is_number(n));
    let is_whole = may_be_whole && [".safetensors", ".safetensors.index.json"].contains(&rest);
    (is_shard || is_whole).then(|| step.parse().ok()).flatten()
}

/// Keeps other runs out of a folder; the system releases the lock when the process ends.
pub struct Lock(#[allow(dead_code)] Option<fs::File>); // held, not read

/// Prepares the folder before any work, so that an unwritable one is found early. A resumed run may continue
/// in the folder `from` that it was read from.
///
/// # Errors
/// If the folder already holds another model, another run uses it, it is a file, or it cannot be written to.
pub fn prepare(dir: &Path, from: Option<&Path>, model: &TrainableModel) -> Result<Lock> {
    let (lock, name, path) = (lock(dir)?, dir.display(), dir.join("config.json"));
    let is_weights = |file: &&String| {
        [".safetensors", ".safetensors.index.json"].iter().any(|end| file.ends_with(end))
            && step_of(file).is_none()
    };
    let is_another = |config: Vec<u8>| config != model.to_json().as_bytes();
    let is_new = !from.is_some_and(|from| tokenizer::is_same(dir, from));
    if is_new && files_of(dir).iter().find(is_weights).is_some() {
        bail!("{name} holds a model already; resume it with --resume or choose another folder");
    }
    if is_new && path.exists() && files::read(&path).map_or(true, is_another) {
        bail!("{name} holds another model's config.json; choose another folder");
    }
    write_about(dir, model)?;
    Ok(lock)
}

/// Removes the files of earlier checkpoints, which a run that was killed may have left, unless another run
/// uses the folder.
pub fn tidy(dir: &Path) {
    if let Ok(_lock) = lock(dir) {
        saves::remove_others(dir);
    }
}

/// Creates the folder if it is missing, and locks it for this run.
fn lock(dir: &Path) -> Result<Lock> {
    if dir.exists() && !dir.is_dir() {
        bail!("{} is a file; the output must be a folder", dir.display());
    }
    fs::create_dir_all(dir)
        .map_err(|why| Error::new(format!("{} cannot be created: {why}", dir.display())))?;
    let Ok(folder) = fs::File::open(dir) else { return Ok(Lock(None)) }; // some systems do not open folders
    match folder.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(Error::new(format!(
            "{} is in use by another run; wait for it or choose another folder",
            dir.display()
        ))),
        _ => Ok(Lock(Some(folder))),
    }
}

fn files_of(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

/// Writes the description of a model: config.json, and its tokenizer files. Removes unfinished files of a
/// killed run.
fn write_about(dir: &Path, model: &TrainableModel) -> Result<()> {
    let ours = ["model.", "model-", "optimizer-", "config.", "checkpoint-", "log."]
        .into_iter()
        .chain(tokenizer::ALONG);
    let half_written = |f: &str| {
        f.strip_prefix('.')
            .and_then(|f| f.strip_suffix(".tmp"))
            .is_some_and(|f| ours.clone().any(|o| f.starts_with(o)))
    };
    for file in files_of(dir).iter().filter(|f| half_written(f)) {
        let path = dir.join(file);
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
    files::replace_file(&dir.join("config.json"), model.to_json().as_bytes())?;
    if let Some(model) = &model.text {
        model.tokens.write(dir)?;
    }
    Ok(())
}

/// A checkpoint to resume from.
pub struct State {
    /// The weights.
    pub model: TrainableModel,
    /// Settings of the run.
    pub settings: Settings,
    /// Evaluations of the run so far.
    pub evaluations: Evaluations,
    /// Files of its training data.
    pub data: DataFiles,
    steps: usize,
    path: PathBuf,
    optimizer: File,
}

impl State {
    /// Reads the checkpoint in a folder.
    ///
    /// # Errors
    /// If it holds no such checkpoint.
    pub fn read(dir: &Path) -> Result<Self> {
        let model = TrainableModel::read(dir)?;
        let Some(steps) = model.note("step").and_then(|s| s.parse().ok()) else {
            let dir = dir.display();
            bail!("{dir} holds a model but no checkpoint of a training run to resume");
        };
        let format = model.note(FORMAT).map_or(Some(CURRENT), |format| format.parse().ok());
        if format.is_none_or(|format| format > CURRENT) {
            let (dir, format) = (dir.display(), quoted(model.note(FORMAT).unwrap_or_default()));
            bail!("{dir} is a checkpoint of format {format}; this version reads formats up to {CURRENT}");
        }
        let path = dir.join(optimizer_name(steps));
        let optimizer = File::open_whole_or_shards(&path)?;
        let noted = |key: &str| optimizer.metadata().get(key).map(String::as_str);
        let of_another = noted("steps") != model.note("step") || noted("training") != model.note("training");
        if of_another {
            bail!("{} is of another run or step than the model beside it", path.display());
        }
        let settings = noted("training").and_then(Settings::read);
        let evaluations = serde_json::from_str(noted("evaluations").unwrap_or("{}")).ok();
        let data = serde_json::from_str(noted("data").unwrap_or("{}")).ok();
        let (Some(settings), Some(evaluations), Some(data)) = (settings, evaluations, data) else {
            bail!("{}: the file does not record the settings of the run", path.display());
        };
        Ok(Self { model, settings, evaluations, data, steps, path, optimizer })
    }
    /// Number of finished steps.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// True if the run has done its last step.
    pub fn has_ended(&self) -> bool {
        self.steps >= self.settings.steps || self.evaluations.end()
    }
    /// Restores the optimizer state of a trainer that was built from this model.
    ///
    /// # Errors
    /// If the file holds another optimizer's state.
    pub fn restore<D: RunDevice>(&self, trainer: &mut Trainer<D>) -> Result<()> {
        trainer.set_steps(self.steps);
        let (model, optimizer, mesh) = trainer.parts();
        let design = model.design().clone();
        checkpoint::restore_optimizer(
            &self.path.display().to_string(),
            &self.optimizer,
            optimizer,
            (&design, &mut model.params()),
            mesh,
        )
    }
}

/// The weights of an f32 run, in any dtype: the draws of fresh weights are rounded to f32, too.
pub(super) struct InF32<'a>(pub(super) &'a (dyn ValueSource<f32> + Sync));

impl<S: Scalar> ValueSource<S> for InF32<'_> {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> ops::Result<ParamValues<'_, S>> {
        Ok(self.0.of(name, shape, draw)?.converted(name, |x| S::from_f64(f64::from(x))))
    }
}
