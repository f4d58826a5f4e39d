//! Saving a run's checkpoints: the newest in the folder itself, older ones beside it if they are kept.
//!
//! ```text
//! DIR/model.safetensors, DIR/optimizer-200.safetensors     the newest
//! DIR/checkpoint-100/                                      an older one, a whole folder; its files are links
//! ```
use super::{CURRENT, FORMAT, MODEL, files_of, optimizer_name, step_of};
use crate::train::data::DataFiles;
use crate::train::evaluations::Evaluations;
use crate::train::settings::Settings;
use comm::{Mesh, SharedPlace};
use models::{TrainableModel, tokenizer};
use ops::VALUE;
use parallel::checkpoint::{self, CheckpointFile, Saving, optimizer_file};
use parallel::dtype::RunDevice;
use parallel::{Error, Result, Trainer, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tensor::bulk::finite_f32;
use tensor::safetensors::{self, File};
use tensor::{files, mix};

const OLDER: &str = "checkpoint-";
const TOKEN: &str = ".model.token.tmp";

/// Options of saving a run's checkpoints.
#[derive(Clone, Debug)]
pub struct Saves {
    /// Number of checkpoints to keep; `None`: the newest, and no others are removed.
    pub keep: Option<usize>,
    /// True if steps go on while a checkpoint is written.
    pub background: bool,
    /// Largest number of bytes of a file; a tensor is never divided.
    pub limit: usize,
    /// Files of the training data, which a resumed run reads again.
    pub data: DataFiles,
}

impl Default for Saves {
    /// The newest checkpoint, written between two steps, in files of at most 5 GB as `transformers` writes.
    fn default() -> Self {
        Self { keep: None, background: false, limit: 5_000_000_000, data: DataFiles::default() }
    }
}

/// The checkpoints of a run, from one rank's point of view.
pub(crate) struct Saver<'a, D: RunDevice> {
    dir: &'a Path,
    saves: &'a Saves,
    about: (&'a Settings, &'a TrainableModel),
    under_way: Option<Saving<D>>,
}

impl<'a, D: RunDevice> Saver<'a, D> {
    /// Prepares saving. Every rank calls it.
    ///
    /// # Errors
    /// If the ranks do not share the folder.
    pub(crate) fn new(
        (dir, saves): (&'a Path, &'a Saves),
        about: (&'a Settings, &'a TrainableModel),
        mesh: &Mesh<D::Place>,
    ) -> Result<Self> {
        is_shared(dir, mesh)?;
        Ok(Self { dir, saves, about, under_way: None })
    }
    /// Begins the checkpoint of a step, once the one before it is whole, and waits for it unless it is
    /// written in the background. Every rank calls it.
    ///
    /// # Errors
    /// If a file cannot be written: the checkpoint before it is still whole, and no other file is left.
    pub(crate) fn save(&mut self, trainer: &mut Trainer<D>, evaluations: &Evaluations) -> Result<()> {
        let mesh = trainer.parts().2.clone();
        self.advance(&mesh, true)?;
        let begun = self.begin((trainer, &mesh), evaluations);
        self.under_way = Some(self.cleared(&mesh, begun)?);
        self.advance(&mesh, !self.saves.background).map(drop)
    }
    fn begin(
        &self,
        (trainer, mesh): (&mut Trainer<D>, &Mesh<D::Place>),
        evaluations: &Evaluations,
    ) -> Result<Saving<D>> {
        let dir = self.dir;
        let Saves { keep, background, limit, data } = self.saves;
        if mesh.rank() == 0 && keep.is_some_and(|keep| keep > 1) {
            keep_current(dir)?;
        }
        let (settings, model) = self.about;
        let step = trainer.steps();
        let (stages, optimizer, mesh) = trainer.parts();
        let design = stages.design().clone();
        let params = stages.params();
        let unwritable = |why: serde_json::Error| Error::new(why.to_string());
        let noted = serde_json::to_string(settings).map_err(unwritable)?;
        let note = |key: &str, value: String| (key.to_string(), value);
        let mut notes: BTreeMap<_, _> = [note("training", noted), note(FORMAT, CURRENT.to_string())].into();
        if *evaluations != Evaluations::default() {
            notes.extend([note("evaluations", serde_json::to_string(evaluations).map_err(unwritable)?)]);
        }
        let place = (dir.join(optimizer_name(step)), format!("optimizer-{step}"), *limit as u64);
        let files = serde_json::to_string(data).map_err(unwritable)?;
        let of_state = [note("steps", step.to_string()), note("data", files)];
        let of_state = notes.clone().into_iter().chain(of_state).collect();
        let state = optimizer_file(place, of_state, optimizer, (&design, &params), mesh)?;
        let tensors = model.entries().into_iter().map(|entry| (entry, VALUE)).collect();
        let about = [note("format", "pt".into()), note("step", step.to_string())];
        let metadata = notes.into_iter().chain(about).collect();
        let path = dir.join(MODEL);
        let shards = format!("model-{step}");
        let weights = CheckpointFile { path, shards, limit: *limit as u64, metadata, tensors };
        checkpoint::save(vec![state, weights], &params, mesh, (finite_f32, *background))
    }
    /// Goes on with the checkpoint that is under way, if there is one; waits for it if `wait`. Every rank
    /// calls it.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub(crate) fn advance(&mut self, mesh: &Mesh<D::Place>, wait: bool) -> Result<()> {
        let Some(saving) = &mut self.under_way else { return Ok(()) };
        let whole = saving.advance(mesh, wait);
        if self.cleared(mesh, whole)? {
            self.under_way = None;
            if mesh.rank() == 0 {
                remove_others(self.dir);
                self.saves.keep.inspect(|keep| remove_older(self.dir, keep.saturating_sub(1)));
            }
        }
        Ok(())
    }
    /// Removes the files of a checkpoint that failed.
    fn cleared<T>(&self, mesh: &Mesh<D::Place>, result: Result<T>) -> Result<T> {
        if result.is_err() && mesh.rank() == 0 {
            remove_others(self.dir);
        }
        result
    }
}

/// Checks that all ranks see one folder: rank 0 writes a token, which all read. A rank alone has its own.
fn is_shared<P: SharedPlace>(dir: &Path, mesh: &Mesh<P>) -> Result<()> {
    if mesh.size() == 1 {
        return Ok(());
    }
    let path = dir.join(TOKEN);
    let world = mesh.world().named("a shared folder");
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let token = mix(time ^ u64::from(std::process::id()));
    if mesh.rank() == 0 {
        let fail = |why: std::io::Error| Error::new(format!("cannot write {}: {why}", path.display()));
        fs::write(&path, token.to_string()).map_err(fail)?; // it need not survive a power failure
    }
    let token = world.all_gather_values(&[token])?[0][0].to_string();
    let sees = fs::read(&path).is_ok_and(|seen| seen == token.as_bytes());
    let answers = world.all_gather_values(&[u8::from(sees)])?.concat();
    if mesh.rank() == 0 {
        let _ = fs::remove_file(&path);
    }
    if let Some(rank) = answers.iter().position(|sees| *sees == 0) {
        let dir = dir.display();
        bail!(
            "rank {rank} does not see the files that rank 0 writes in {dir}; give all ranks one shared folder"
        );
    }
    Ok(())
}

/// Returns the step of a folder's checkpoint; `None` if it has none.
fn step_in(dir: &Path) -> Result<Option<usize>> {
    match File::open_folder(dir) {
        Ok(model) => Ok(model.metadata().get("step").and_then(|step| step.parse().ok())),
        Err(safetensors::Error::File(files::Error::Missing(_))) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// Links the files of a folder's checkpoint into a folder of their own, which appears whole.
fn keep_current(dir: &Path) -> Result<()> {
    let Some(step) = step_in(dir)? else { return Ok(()) };
    let [older, new] = [format!("{OLDER}{step}"), format!(".{OLDER}{step}.tmp")].map(|name| dir.join(name));
    if older.exists() {
        return Ok(());
    }
    let belongs = |name: &&String| {
        step_of(name).map_or_else(
            || {
                ["config.json"].iter().chain(&tokenizer::ALONG).any(|other| *other == **name)
                    || name.starts_with(MODEL)
            },
            |other| other == step,
        )
    };
    let fail =
        |why: std::io::Error| Error::new(format!("cannot keep the checkpoint in {}: {why}", older.display()));
    let _ = fs::remove_dir_all(&new);
    fs::create_dir(&new).map_err(fail)?;
    for name in files_of(dir).iter().filter(belongs) {
        let [from, to] = [dir, &new].map(|folder| folder.join(name));
        fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).map_err(fail)?;
    }
    fs::rename(&new, &older).map_err(fail)
}

/// Removes all but so many of the newest older checkpoints.
fn remove_older(dir: &Path, keep: usize) {
    let step = |name: &String| name.strip_prefix(OLDER)?.parse::<usize>().ok();
    let mut steps: Vec<_> = files_of(dir).iter().filter_map(step).collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    for step in steps.into_iter().skip(keep) {
        let hidden = dir.join(format!(".{OLDER}{step}.tmp"));
        if fs::rename(dir.join(format!("{OLDER}{step}")), &hidden).is_ok() {
            let _ = fs::remove_dir_all(&hidden); // a reader never sees half of it
        }
    }
}

/// Removes files of other steps than the model's: they belong to an earlier checkpoint, or to one that failed
/// before the model was written. A file that cannot be removed is ignored.
pub(super) fn remove_others(dir: &Path) {
    let Ok(step) = step_in(dir) else { return }; // unreadable: its step is not known
    for file in files_of(dir).iter().filter(|name| step_of(name).is_some_and(|other| Some(other) != step)) {
        let _ = fs::remove_file(dir.join(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::{Axis, World};
    use tensor::{Cpu, Host};

    /// Kills: a shard of a model of `transformers` that is removed as an old one, a shard of ours that stays.
    #[test]
    fn only_our_own_files_have_a_step() {
        for (name, step) in [
            ("optimizer-20.safetensors", Some(20)),
            ("optimizer-20.safetensors.index.json", Some(20)),
            ("optimizer-20-00001-of-00002.safetensors", Some(20)),
            ("model-7-00002-of-00002.safetensors", Some(7)),
            ("model-00001-of-00002.safetensors", None),
            ("model-7.safetensors", None),
            ("model.safetensors.index.json", None),
            ("optimizer-.safetensors", None),
            ("optimizer-x.safetensors", None),
            ("model-7-00002-of-x.safetensors", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
    }

    /// Kills: a rank that would write into a folder of its own, a token that stays.
    #[test]
    fn a_folder_that_ranks_do_not_share_is_refused() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let of = |other: usize| {
            let run = |_: Cpu<f32>, mesh: Mesh<Host>| is_shared(folders[mesh.rank() * other].path(), &mesh);
            World::threads(&[(Axis::Dp, 2)]).unwrap().run(run).map(drop).map_err(|error| error.reason)
        };
        assert_eq!(of(0), Ok(()));
        let why = of(1).unwrap_err();
        assert!(why.starts_with("rank 1 does not see the files that rank 0 writes in "), "{why}");
        assert!(folders.iter().all(|folder| fs::read_dir(folder.path()).unwrap().next().is_none()));
    }
}
