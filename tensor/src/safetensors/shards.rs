//! Tensors of a model: one file, or several with an index that gives the file of each.
//!
//! ```text
//! model.safetensors                                   or else
//! model.safetensors.index.json                        {"metadata": .., "weight_map": {"name": "file", ..}}
//! model-00001-of-00002.safetensors, ..                beside it
//! ```
//! Each file is checked when it is opened, and the index against the files: every tensor lies in the file
//! that the index names, and in no other.
use super::error::{Error, FormatError};
use super::file::{File, SafetensorsFile, TensorFiles};
use super::header::Object;
use crate::files;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WHOLE: &str = "model.safetensors";
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Index as it is in its file.
#[derive(Deserialize)]
#[serde(expecting = "an object with a weight_map")]
struct IndexFile {
    weight_map: Object<String>,
}

/// Returns the path of the index of the shards that stand for a file.
pub fn index_of(file: &Path) -> PathBuf {
    file.with_added_extension("index.json")
}

impl File {
    /// Opens the weights in a folder of the Hugging Face layout. If both forms exist, the one file is taken,
    /// as `transformers` does.
    ///
    /// # Errors
    /// If there are none, a file of the index is missing or broken, or index and files contradict each other.
    pub fn open_folder(folder: &Path) -> Result<Self, Error> {
        let whole = folder.join(WHOLE);
        let pickled = PICKLED.into_iter().find(|name| folder.join(name).exists());
        if let Some(seen) = pickled.filter(|_| !whole.exists() && !index_of(&whole).exists()) {
            return Err(FormatError::of(&folder.display().to_string())(FormatError::Pickled { seen }));
        }
        Self::open_whole_or_shards(&whole)
    }
    /// Opens a file, or the shards that stand for it if there is only their index: `file.index.json`.
    ///
    /// # Errors
    /// As [`open_folder`](Self::open_folder).
    pub fn open_whole_or_shards(file: &Path) -> Result<Self, Error> {
        let index = index_of(file);
        if file.exists() || !index.exists() { Self::open(file) } else { Self::indexed(&index) }
    }
    fn indexed(index: &Path) -> Result<Self, Error> {
        let folder = files::folder(index);
        let path = index.display().to_string();
        let fail = FormatError::of(&path);
        let listed: IndexFile = serde_json::from_slice(&files::read(index)?)
            .map_err(|why| fail(FormatError::Index { why: why.to_string() }))?;
        let (mut numbers, mut place) = (BTreeMap::new(), BTreeMap::new());
        let mut opened: Vec<(String, SafetensorsFile)> = Vec::new();
        for (name, file) in listed.weight_map.once("tensor").map_err(&fail)? {
            if !numbers.contains_key(&file) {
                if !is_plain(&file) {
                    return Err(fail(FormatError::NoPlainName { name, file }));
                }
                let shard = SafetensorsFile::open(&folder.join(&file)).map_err(|why| match why {
                    Error::File(files::Error::Missing(_)) => {
                        fail(FormatError::NoShard { name: name.clone(), file: file.clone() })
                    }
                    other => other,
                })?;
                numbers.insert(file.clone(), opened.len());
                opened.push((file.clone(), shard));
            }
            place.insert(name, numbers[&file]);
        }
        check(&opened, &place).map_err(&fail)?;
        Ok(Self(Arc::new(TensorFiles {
            path,
            files: opened.into_iter().map(|(_, part)| part).collect(),
            place,
        })))
    }
}

/// True if a name is that of a file in the folder itself, on any system.
fn is_plain(file: &str) -> bool {
    !matches!(file, "" | "." | "..") && file.len() <= 255 && !file.contains(['/', '\\', ':', '\0'])
}

/// Checks that every tensor is in the file that the index names, and in no other.
fn check(opened: &[(String, SafetensorsFile)], place: &BTreeMap<String, usize>) -> Result<(), FormatError> {
    for (name, at) in place {
        let (file, shard) = &opened[*at];
        if !shard.header.tensors.contains_key(name) {
            return Err(FormatError::NotInShard { name: name.clone(), file: file.clone() });
        }
    }
    for (at, (file, shard)) in opened.iter().enumerate() {
        for name in shard.header.tensors.keys() {
            let name_of = || name.clone();
            let file = file.clone();
            match place.get(name) {
                None => return Err(FormatError::Unlisted { name: name_of(), file }),
                Some(other) if *other != at => {
                    return Err(FormatError::InTwo {
                        name: name_of(),
                        file,
                        other: opened[*other].0.clone(),
                    });
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
