//! `convert`: writes a model again, in one file and in another dtype.
//!
//! Tensors are copied one at a time, with a few thousand elements in memory. Names become those that
//! `save_pretrained` of `transformers` writes. The folder gets its model.safetensors last: until then it
//! holds no model, whenever the program stops.
use crate::{Config, Model, names, tokenizer};
use parallel::{Entry, Error, Result, Stored, bail};
use std::fs;
use std::path::Path;
use tensor::dtype::Dtype;
use tensor::files;
use tensor::safetensors::Writer;

const CONFIG: &str = "config.json";

/// Summary of the files written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Dtype of every tensor.
    pub dtype: Dtype,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of bytes of their elements.
    pub bytes: usize,
    /// Files beside model.safetensors.
    pub along: Vec<String>,
}

/// Writes a model to a folder that is empty or does not exist. Values are rounded to nearest, ties to even.
/// Without a `dtype`, it is that of the model's tensors, or f32 if they have several.
///
/// # Errors
/// If the folder is not empty, the model has no files, a value is too large for the new dtype, or a file
/// cannot be written. After a failed write, the folder is empty again.
pub fn convert(model: &Model, out: &Path, dtype: Option<Dtype>) -> Result<Converted> {
    written(model, &model.config, (out, dtype), &|stored, writer, (at, to)| {
        Ok(writer.matrix(&to.name, &stored.tensor(&stored.entries()[at])?)?)
    })
}

/// Writes the tensor with this index and entry, from a model's files.
type Writes<'a> = &'a dyn Fn(&Stored, &mut Writer, (usize, &Entry)) -> Result<()>;

/// Writes a model with this configuration from another model's tensors.
pub(crate) fn written(
    model: &Model,
    config: &Config,
    (out, dtype): (&Path, Option<Dtype>),
    tensor: Writes<'_>,
) -> Result<Converted> {
    let Some(stored) = model.tensors() else {
        bail!(
            "{} are not in a file; train the model, then convert the folder that training writes",
            model.origin
        );
    };
    let (shards, from) = (stored.shards(), stored.entries());
    shards.verify()?;
    let kinds = || from.iter().filter_map(|entry| shards.info(&entry.name)).map(|info| info.dtype);
    let uniform = kinds().next().filter(|first| kinds().all(|kind| kind == *first));
    let dtype = dtype.or(uniform).unwrap_or(Dtype::F32);
    if !matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        bail!("weights cannot be written as {dtype}; choose F32, BF16 or F16");
    }
    prepare(out)?;
    let to = names::entries(config);
    let header: Vec<_> = to.iter().map(|entry| (&entry.name, dtype, entry.shape())).collect();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let write = || {
        let mut writer = Writer::create(&out.join("model.safetensors"), &metadata, &header)?;
        to.iter().enumerate().try_for_each(|to| tensor(stored, &mut writer, to))?;
        files::replace_file(&out.join(CONFIG), config.to_json_in(dtype).as_bytes())?;
        let mut along = vec![CONFIG.to_owned()];
        along.extend(model.tokens.write(out)?);
        writer.finish()?;
        Ok::<_, Error>(along)
    };
    let along = write().inspect_err(|_| empty(out))?;
    let numbers: usize = to.iter().map(|entry| entry.shape().iter().product::<usize>()).sum();
    Ok(Converted { dtype, tensors: to.len(), bytes: numbers * dtype.bitsize() / 8, along })
}

/// Creates the folder, or checks that it is empty.
fn prepare(out: &Path) -> Result<()> {
    let what = if out.exists() && !out.is_dir() {
        "is a file"
    } else if fs::read_dir(out).is_ok_and(|mut files| files.next().is_some()) {
        "is not empty"
    } else {
        return fs::create_dir_all(out)
            .map_err(|why| Error::new(format!("cannot create {}: {why}", out.display())));
    };
    bail!("{} {what}; the output must be an empty folder or a new one", out.display());
}

/// Removes the files beside a model that could not be written, so that the folder is empty again.
fn empty(out: &Path) {
    for file in [CONFIG].iter().chain(&tokenizer::ALONG) {
        let _ = fs::remove_file(out.join(file));
    }
}

#[cfg(test)]
mod tests;
