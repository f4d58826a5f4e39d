//! The files of a checkpoint: one, or shards with an index above a size, as `transformers` reads them.
//!
//! ```text
//! model.safetensors                          up to the limit
//! model-100-00001-of-00002.safetensors, ..   above it; their names have the step, so that those of an older
//! model.safetensors.index.json               checkpoint stay until this index replaces its own
//! ```
use crate::{Entry, Error, Orientation, Result};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tensor::dtype::Storable;
use tensor::files;
use tensor::safetensors::{SplitFile, index_of};

/// A file of a checkpoint, or its shards.
pub struct CheckpointFile {
    /// Path of the file.
    pub path: PathBuf,
    /// First part of the names of shards.
    pub shards: String,
    /// Largest number of bytes of a file; a tensor is never divided.
    pub limit: u64,
    /// Metadata of each file.
    pub metadata: BTreeMap<String, String>,
    /// The tensors in the order of the file, each with its name among the parameter's tensors, such as
    /// [`VALUE`](ops::VALUE).
    pub tensors: Vec<(Entry, &'static str)>,
}

/// A file whose layout is known.
pub(super) struct PlannedFile {
    pub(super) file: SplitFile,
    /// Each tensor, and the byte at which it begins.
    pub(super) tensors: Vec<(Entry, &'static str, u64)>,
    last: Option<ShardIndex>, // written after this file
}

/// Last change that makes the files of a group current: their index appears, or an old one goes.
struct ShardIndex {
    path: PathBuf,        // of the index
    file: PathBuf,        // of the one file
    text: Option<String>, // none for one file
}

impl CheckpointFile {
    /// Computes the layout of the files.
    pub(super) fn plan<S: Storable>(self) -> Result<Vec<PlannedFile>> {
        let Self { path, shards, limit, metadata, tensors } = self;
        let bytes = |entry: &Entry| (entry.shape().iter().product::<usize>() * size_of::<S>()) as u64;
        let mut groups: Vec<(u64, Vec<_>)> = vec![(0, Vec::new())];
        for tensor in tensors {
            let more = bytes(&tensor.0);
            let (held, group) = groups.last_mut().expect("there is a first one");
            if group.is_empty() || *held + more <= limit {
                *held += more;
                group.push(tensor);
            } else {
                groups.push((more, vec![tensor]));
            }
        }
        let n = groups.len();
        let total = groups.iter().map(|(held, _)| held).sum::<u64>();
        let (mut all, mut weight_map) = (Vec::new(), BTreeMap::new());
        for (i, (_, group)) in groups.into_iter().enumerate() {
            let name = format!("{shards}-{:05}-of-{n:05}.safetensors", i + 1);
            weight_map.extend(group.iter().map(|(entry, _)| (entry.name.clone(), name.clone())));
            let path = if n > 1 { path.with_file_name(name) } else { path.clone() };
            let announced: Vec<_> =
                group.iter().map(|(entry, _)| (&entry.name, S::DTYPE, entry.shape())).collect();
            let file = SplitFile::plan(&path, &metadata, &announced)?;
            let begin = |name: &str| file.begin_of(name).expect("the tensor was announced");
            let tensors = group.iter().map(|(e, which)| (e.clone(), *which, begin(&e.name))).collect();
            all.push(PlannedFile { file, tensors, last: None });
        }
        let text = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        let index =
            ShardIndex { path: index_of(&path), file: path, text: (n > 1).then(|| format!("{text:#}\n")) };
        all.last_mut().expect("there is a first one").last = Some(index);
        Ok(all)
    }
}

impl PlannedFile {
    pub(super) fn create(&mut self) -> Result<()> {
        Ok(self.file.create()?)
    }
    /// True if columns of a tensor alternate.
    pub(super) fn alternates(&self) -> bool {
        self.tensors.iter().any(|(entry, ..)| entry.orientation == Orientation::Alternate)
    }
    pub(super) fn blocks(&self) -> usize {
        self.file.blocks()
    }
    /// Moves the file to its place, on the rank that created it. After the last file of a group, its index
    /// replaces the one file, or the other way round.
    pub(super) fn finish(self, digests: &[u64]) -> Result<()> {
        if !self.file.finish(digests)? {
            return Ok(());
        }
        let Some(ShardIndex { path, file, text }) = self.last else { return Ok(()) };
        let needless = match text {
            Some(text) => {
                files::replace_file(&path, text.as_bytes())?;
                file
            }
            None => path,
        };
        match fs::remove_file(&needless) {
            Err(why) if needless.exists() => {
                Err(Error::new(format!("cannot remove {}: {why}", needless.display())))
            }
            _ => Ok(()),
        }
    }
}
