//! A training run in a folder: the model in the Hugging Face layout, and the state that a resumed run needs.
//!
//! `optimizer-<step>.safetensors` is written first, then `model.safetensors`, which records its step: writing
//! it replaces the checkpoint. Optimizer files of other steps are removed last, even if a save fails. The
//! folder holds one whole checkpoint at every moment.
use super::evaluations::Evaluations;
use super::settings::Settings;
use layers::{Draw, ParamValues, ValueSource};
use models::{TrainableModel, tokenizer};
use parallel::dtype::RunDevice;
use parallel::{Error, Result, Trainer, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tensor::Scalar;
use tensor::files;
use tensor::safetensors::{self, File};

const MODEL: &str = "model.safetensors";

fn optimizer_file(step: usize) -> String {
    format!("optimizer-{step}.safetensors")
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
    let is_weights = |file: &&String| file.ends_with(".safetensors") && step_of(file).is_none();
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
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

/// Writes the description of a model: config.json, and its tokenizer files. Removes unfinished files of a
/// killed run.
fn write_about(dir: &Path, model: &TrainableModel) -> Result<()> {
    let ours = ["model.", "optimizer-", "config.", "log."].into_iter().chain(tokenizer::ALONG);
    let half_written = |f: &str| {
        f.strip_prefix('.')
            .and_then(|f| f.strip_suffix(".tmp"))
            .is_some_and(|f| ours.clone().any(|o| f.starts_with(o)))
    };
    for file in files_of(dir).iter().filter(|f| half_written(f)) {
        let _ = fs::remove_file(dir.join(file));
    }
    files::replace_file(&dir.join("config.json"), model.to_json().as_bytes())?;
    if let Some(model) = &model.text {
        model.tokens.write(dir)?;
    }
    Ok(())
}

/// Writes the checkpoint of a step. Every rank calls it; the folder has been prepared.
///
/// # Errors
/// If a file cannot be written: the checkpoint before it is still whole, and no other file is left.
pub fn save<D: RunDevice>(
    dir: &Path,
    (settings, evaluations): (&Settings, &Evaluations),
    model: &TrainableModel,
    trainer: &mut Trainer<D>,
) -> Result<()> {
    let entries = model.entries();
    let (stages, optimizer, mesh) = trainer.parts();
    let (design, step) = (stages.design().clone(), optimizer.steps());
    let params = (&*design, &*stages.params());
    let unwritable = |why: serde_json::Error| Error::new(why.to_string());
    let noted = serde_json::to_string(settings).map_err(unwritable)?;
    let training = || ("training".to_string(), noted.clone());
    let mut notes: BTreeMap<_, _> = [training()].into();
    if *evaluations != Evaluations::default() {
        notes.insert("evaluations".into(), serde_json::to_string(evaluations).map_err(unwritable)?);
    }
    let saved = parallel::save_optimizer(&dir.join(optimizer_file(step)), notes, optimizer, params, mesh);
    let noted = |key: &str, value: String| (key.to_string(), value);
    let notes = [noted("format", "pt".into()), noted("step", step.to_string()), training()].into();
    let saved = saved.and_then(|()| parallel::save_params(&dir.join(MODEL), &notes, &entries, params, mesh));
    if mesh.rank() == 0 {
        remove_others(dir);
    }
    saved
}

/// Returns the step of an optimizer file's name.
fn step_of(name: &str) -> Option<usize> {
    name.strip_prefix("optimizer-")?.strip_suffix(".safetensors")?.parse().ok()
}

/// Removes optimizer files of other steps than the model's: they belong to an earlier checkpoint, or to one
/// that failed before the model was written. A file that cannot be removed is ignored.
fn remove_others(dir: &Path) {
    let step: Option<usize> = match File::open(&dir.join(MODEL)) {
        Ok(model) => model.metadata().get("step").and_then(|step| step.parse().ok()),
        Err(safetensors::Error::File(files::Error::Missing(_))) => None,
        Err(_) => return, // unreadable: its step is not known
    };
    for file in files_of(dir).iter().filter(|name| step_of(name).is_some_and(|other| Some(other) != step)) {
        let _ = fs::remove_file(dir.join(file));
    }
}

/// A checkpoint to resume from.
pub struct State {
    /// The weights.
    pub model: TrainableModel,
    /// Settings of the run.
    pub settings: Settings,
    /// Evaluations of the run so far.
    pub evaluations: Evaluations,
    steps: usize,
    path: PathBuf,
    optimizer: File,
}

impl State {
    /// Reads a folder that [`save`] wrote.
    ///
    /// # Errors
    /// If it holds no such checkpoint.
    pub fn read(dir: &Path) -> Result<Self> {
        let model = TrainableModel::read(dir)?;
        let Some(steps) = model.note("step").and_then(|s| s.parse().ok()) else {
            let dir = dir.display();
            bail!("{dir} holds a model but no checkpoint of a training run to resume");
        };
        let path = dir.join(optimizer_file(steps));
        let optimizer = File::open(&path)?;
        let noted = |key: &str| optimizer.metadata().get(key).map(String::as_str);
        let of_another = noted("steps") != model.note("step") || noted("training") != model.note("training");
        if of_another {
            bail!("{} is of another run or step than the model beside it", path.display());
        }
        let settings = noted("training").and_then(|s| serde_json::from_str(s).ok());
        let evaluations = serde_json::from_str(noted("evaluations").unwrap_or("{}")).ok();
        let (Some(settings), Some(evaluations)) = (settings, evaluations) else {
            bail!("{}: the file does not record the settings of the run", path.display());
        };
        Ok(Self { model, settings, evaluations, steps, path, optimizer })
    }
    /// Number of finished steps.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// Restores the optimizer state of a trainer that was built from this model.
    ///
    /// # Errors
    /// If the file holds another optimizer's state.
    pub fn restore<D: RunDevice>(&self, trainer: &mut Trainer<D>) -> Result<()> {
        let (model, optimizer, mesh) = trainer.parts();
        let origin = self.path.display().to_string();
        let design = model.design().clone();
        parallel::restore_optimizer(&origin, &self.optimizer, optimizer, (&design, &mut model.params()), mesh)
    }
}

/// The weights of an f32 run, in any dtype: the draws of fresh weights are rounded to f32, too.
pub(super) struct InF32<'a>(pub(super) &'a (dyn ValueSource<f32> + Sync));

impl<S: Scalar> ValueSource<S> for InF32<'_> {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> layers::Result<ParamValues<'_, S>> {
        Ok(self.0.of(name, shape, draw)?.map(|_, x| S::from_f64(f64::from(x))))
    }
}
