//! The tensors of a model: one file, or several with an index that says which is where.
//!
//! ```text
//! model.safetensors                                   or else
//! model.safetensors.index.json                        {"metadata": .., "weight_map": {"name": "file", ..}}
//! model-00001-of-00002.safetensors, ..                beside it
//! ```
//! Each file is checked as it is opened, and the index against the files: every tensor lies in the file that the index
//! names, and nowhere else.
use super::dtype::{Dtype, is_float, size};
use super::header::Object;
use super::{Error, File, Flaw, Info, Matrix};
use crate::files;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Tensors in one file or several. Clones share them.
#[derive(Clone)]
pub struct Shards(Arc<Indexed>);

struct Indexed {
    path: String, // of the one file, or of the index
    files: Vec<File>,
    place: BTreeMap<String, usize>,
}

/// An index as it stands in its file.
#[derive(Deserialize)]
#[serde(expecting = "an object with a weight_map")]
struct Index {
    weight_map: Object<String>,
}

impl From<File> for Shards {
    fn from(file: File) -> Self {
        let place = file.names().map(|name| (name.to_owned(), 0)).collect();
        Self(Arc::new(Indexed { path: file.path().to_owned(), files: vec![file], place }))
    }
}

impl Shards {
    /// The weights in a folder of the Hugging Face layout. Where there are both, the one file is taken, as
    /// `transformers` takes it.
    ///
    /// # Errors
    /// If there are none, a file of the index is missing or broken, or index and files contradict each other.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let (whole, index) = (folder.join(WHOLE), folder.join(INDEX));
        if !whole.exists() && index.exists() {
            return Self::indexed(folder, &index);
        }
        let pickled = PICKLED.into_iter().find(|name| folder.join(name).exists());
        if let Some(seen) = pickled.filter(|_| !whole.exists()) {
            return Err(Flaw::of(&folder.display().to_string())(Flaw::Pickled { seen }));
        }
        Ok(File::open(&whole)?.into())
    }
    fn indexed(folder: &Path, index: &Path) -> Result<Self, Error> {
        let path = index.display().to_string();
        let fail = Flaw::of(&path);
        let listed: Index = serde_json::from_slice(&files::read(index)?)
            .map_err(|why| fail(Flaw::Index { why: why.to_string() }))?;
        let (mut numbers, mut place) = (BTreeMap::new(), BTreeMap::new());
        let mut opened: Vec<(String, File)> = Vec::new();
        for (name, file) in listed.weight_map.once("tensor").map_err(&fail)? {
            if !numbers.contains_key(&file) {
                if !is_plain(&file) {
                    return Err(fail(Flaw::NoPlainName { name, file }));
                }
                let shard = File::open(&folder.join(&file)).map_err(|why| match why {
                    Error::File(files::Error::Missing(_)) => {
                        fail(Flaw::NoShard { name: name.clone(), file: file.clone() })
                    }
                    other => other,
                })?;
                numbers.insert(file.clone(), opened.len());
                opened.push((file.clone(), shard));
            }
            place.insert(name, numbers[&file]);
        }
        check(&opened, &place).map_err(&fail)?;
        Ok(Self(Arc::new(Indexed { path, files: opened.into_iter().map(|(_, file)| file).collect(), place })))
    }

    /// The one file, or the index: for messages.
    pub fn path(&self) -> &str {
        &self.0.path
    }
    /// The tensors' names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.place.keys().map(String::as_str)
    }
    /// The tensors' names, file after file as they lie in each.
    pub fn in_order(&self) -> Vec<&str> {
        self.0.files.iter().flat_map(File::in_order).collect()
    }
    /// What the tensor called `name` is.
    pub fn info(&self, name: &str) -> Option<&Info> {
        self.file(name)?.info(name)
    }
    /// What the writer of the first file noted in it.
    pub fn metadata(&self) -> Option<&BTreeMap<String, String>> {
        self.0.files.first().map(File::metadata)
    }
    /// As [`File::matrix`], from whichever file has it.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix<'_>, Error> {
        self.holder(name)?.matrix(name, shape)
    }
    /// The tensor called `name`, which holds `count` matrices of this many rows and columns, one below the other.
    ///
    /// # Errors
    /// If there is none, or it has another shape or dtype.
    pub fn stack(&self, name: &str, shape: [usize; 3]) -> Result<Matrix<'_>, Error> {
        self.holder(name)?.stack(name, shape)
    }
    fn holder(&self, name: &str) -> Result<&File, Error> {
        self.file(name).ok_or_else(|| Flaw::missing(&self.0.path, name, self.0.place.keys()))
    }
    /// All numbers of the tensor called `name`, whatever its shape, as one row; none if there is no such tensor, or its
    /// numbers are no floats of 16 bits or more.
    pub fn flat(&self, name: &str) -> Option<Matrix<'_>> {
        let (dtype, _, bytes) = self.whole(name)?;
        is_float(dtype).then(|| Matrix::new(bytes, dtype, [1, bytes.len() / size(dtype)], None))
    }
    /// All of a tensor: its dtype, its shape, its bytes.
    pub fn whole(&self, name: &str) -> Option<(Dtype, &[usize], &[u8])> {
        self.file(name)?.whole(name)
    }
    /// Whether two tensors are there and have the same dtype, shape and bytes; all of these are then read.
    pub fn equal(&self, name: &str, other: &str) -> bool {
        self.whole(name).is_some_and(|one| self.whole(other) == Some(one))
    }
    fn file(&self, name: &str) -> Option<&File> {
        self.0.place.get(name).map(|at| &self.0.files[*at])
    }
}

/// Whether a name is that of a file in the folder itself, on any system.
fn is_plain(file: &str) -> bool {
    !matches!(file, "" | "." | "..") && file.len() <= 255 && !file.contains(['/', '\\', ':', '\0'])
}

/// Every tensor is in the file that the index says, and in no other.
fn check(opened: &[(String, File)], place: &BTreeMap<String, usize>) -> Result<(), Flaw> {
    for (name, at) in place {
        let (file, shard) = &opened[*at];
        if shard.info(name).is_none() {
            return Err(Flaw::NotInShard { name: name.clone(), file: file.clone() });
        }
    }
    for (at, (file, shard)) in opened.iter().enumerate() {
        for name in shard.names() {
            let (name_of, file) = (|| name.to_owned(), file.clone());
            match place.get(name) {
                None => return Err(Flaw::Unlisted { name: name_of(), file }),
                Some(other) if *other != at => {
                    return Err(Flaw::InTwo { name: name_of(), file, other: opened[*other].0.clone() });
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
