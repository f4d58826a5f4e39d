//! Flags of saving.
use crate::cli::args::size;
use clap::Args;
use parallel::{Result, bail};
use run::train::data::DataFiles;
use run::train::settings::at_least_1;
use run::train::state::Saves;
use std::path::Path;
use tensor::quoted::quoted;

/// Bytes of a checkpoint's largest file, unless a flag says otherwise.
const LARGEST: usize = 5_000_000_000;

/// Flags of saving.
#[derive(Args, Debug)]
pub(crate) struct SaveArgs {
    /// Steps between checkpoints; the last step has one in any case [default: 100; pictures: an epoch]
    #[arg(long)]
    pub(crate) checkpoint_every: Option<usize>,
    /// Number of checkpoints to keep: the newest in the folder itself, older ones in its folders checkpoint-N
    /// [default: the newest, and older folders are left as they are]
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Write checkpoints between two steps, or during the next ones, from a copy that counts against
    /// --memory-limit
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    save: SaveWhen,
    /// Largest size of a checkpoint's file; a larger model is written as shards with an index [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_shard_size: Option<usize>,
}

/// Time at which a checkpoint is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum SaveWhen {
    /// Between two steps.
    #[default]
    Sync,
    /// During the next steps.
    Async,
}

impl SaveArgs {
    /// Returns the options of a run with or without a folder.
    ///
    /// # Errors
    /// If a number is 0, or there is nothing to save, but a flag about it.
    pub(crate) fn of(&self, out: Option<&Path>, data: DataFiles) -> Result<Saves> {
        let Self { checkpoint_every, keep, save, max_shard_size } = *self;
        let limit = max_shard_size.unwrap_or(LARGEST);
        let background = save == SaveWhen::Async;
        let [every, kept] = [checkpoint_every, keep].map(|given| given.unwrap_or(1));
        at_least_1(&[("checkpoint-every", every), ("keep", kept), ("max-shard-size", limit)])?;
        let given = [("checkpoint-every", checkpoint_every.is_some()), ("keep", keep.is_some())];
        let more = [("save async", background), ("max-shard-size", max_shard_size.is_some())];
        if let (None, Some((flag, _))) = (out, given.into_iter().chain(more).find(|(_, given)| *given)) {
            bail!("--{flag} needs --out; without it nothing is saved");
        }
        let mut files = data.batch.iter().chain(&data.data);
        if let (Some(_), Some(file)) = (out, files.find(|file| file.to_str().is_none())) {
            bail!(
                "{} is not valid UTF-8, so checkpoints cannot record it; give the data another name",
                quoted(&file.display().to_string())
            );
        }
        Ok(Saves { keep, background, limit, data })
    }
}
