//! Tensors to compare: a folder that `--dump` wrote, a model's folder, or one file; each file is a section of
//! tensors.
//!
//! Sections come in program order: the weights that the step begins with, then activations, then gradients,
//! the last layer's first. A file's tensors come in file order, which in our files is program order. Programs
//! that write by name leave alphabetical order: then numbers in names count as numbers, so that layer 2 comes
//! before layer 10.
use parallel::dtype::DtypeName;
use parallel::{Error, Result, bail};
use serde::Serialize;
use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use tensor::dtype::Dtype;
use tensor::safetensors::{File, Matrix};

const SUFFIX: &str = ".safetensors";
/// The sections of a dump, in program order.
const PROGRAM: [&str; 5] = ["weights", "activations", "gradients", "step", "new_weights"];

/// A tensor that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename = "unmatched")]
pub struct Unmatched {
    /// Name of its file without `.safetensors`.
    pub file: String,
    /// Its name.
    pub name: String,
    /// Reason: the run that lacks it, or its shapes.
    pub why: String,
}

/// One file, or one model in several files.
pub(super) struct FileSet {
    /// Name of the file without `.safetensors`.
    pub(super) name: String,
    pub(super) tensors: File,
    /// The [sequence, position] of each row, if the file records them.
    pub(super) rows: Option<Vec<[usize; 2]>>,
    /// Dtype of the run, if the file records one: that of the tensors may be wider.
    computed_in: Option<Dtype>,
    /// Names of the tensors, in program order.
    pub(super) order: Vec<String>,
}

/// Opens a folder or a file: all sections of one run.
pub(super) fn open(path: &Path) -> Result<Vec<FileSet>> {
    if !path.is_dir() {
        return Ok(vec![FileSet::read(path)?]);
    }
    let files = files(path)?;
    if files.is_empty() {
        let path = path.display();
        bail!("{path} holds no safetensors file; wanted a dump, a model or a file");
    }
    let is_model = |name: &String| name == "model.safetensors" || name == "model.safetensors.index.json";
    let is_dump = files.iter().any(|file| PROGRAM.contains(&stem(file).as_str()));
    if !is_dump && names(path)?.iter().any(is_model) {
        return Ok(vec![FileSet::of("model", File::open_folder(path)?)]);
    }
    files.iter().map(|file| FileSet::read(file)).collect()
}

/// Returns the section like one of a run of `sections` sections: that of its name; two single sections match
/// in any case.
pub(super) fn like<'a>(run: &'a [FileSet], name: &str, sections: usize) -> Option<&'a FileSet> {
    match run {
        [only] if sections == 1 => Some(only),
        all => all.iter().find(|section| section.name == name),
    }
}

impl FileSet {
    fn read(file: &Path) -> Result<Self> {
        Ok(Self::of(&stem(file), File::open(file)?))
    }
    fn of(name: &str, tensors: File) -> Self {
        let mut order: Vec<String> = tensors.in_order().into_iter().map(str::to_owned).collect();
        if order.is_sorted() {
            order.sort_by(|a, b| natural(a, b));
        }
        if name == "gradients" {
            order.reverse();
        }
        let noted = |key: &str| tensors.metadata().get(key).cloned();
        let rows = noted("rows").and_then(|rows| serde_json::from_str(&rows).ok());
        let number = noted("number");
        let known = DtypeName::ALL.iter().find(|(dtype, _)| number.as_deref() == Some(dtype.name()));
        let computed_in = known.map(|(dtype, _)| dtype.stored());
        Self { name: name.to_owned(), tensors, rows, computed_in, order }
    }
    /// Dtype in which a tensor of the file was computed.
    pub(super) fn dtype(&self, of: &Matrix<'_>) -> Dtype {
        self.computed_in.unwrap_or(of.dtype())
    }
    /// Shape of a tensor that exists.
    pub(super) fn shape(&self, name: &str) -> &[usize] {
        &self.tensors.info(name).expect("it is there").shape
    }
    pub(super) fn lacks(&self, name: &str, why: &str) -> Unmatched {
        Unmatched { file: self.name.clone(), name: name.to_owned(), why: why.to_owned() }
    }
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let unreadable = |why| Error::new(format!("{} cannot be read: {why}", folder.display()));
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    fs::read_dir(folder).map_err(unreadable)?.map(name).collect::<std::io::Result<_>>().map_err(unreadable)
}

/// The safetensors files of a folder, in program order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<_> = names(folder)?.into_iter().filter(|name| name.ends_with(SUFFIX)).collect();
    let place = |name: &String| {
        PROGRAM.iter().position(|known| name.strip_suffix(SUFFIX) == Some(known)).unwrap_or(PROGRAM.len())
    };
    files.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| natural(a, b)));
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

fn stem(file: &Path) -> String {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.strip_suffix(SUFFIX).map_or(name.clone(), str::to_owned)
}

/// Alphabetical order in which runs of digits count as numbers.
fn natural(a: &str, b: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(u128, String)> {
        let mut parts = vec![(0u128, String::new())];
        for c in text.chars() {
            let (number, word) = parts.last_mut().expect("never empty");
            match c.to_digit(10) {
                Some(digit) if word.is_empty() => {
                    *number = number.saturating_mul(10).saturating_add(digit.into());
                }
                Some(digit) => parts.push((digit.into(), String::new())),
                None => word.push(c),
            }
        }
        parts
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: layer 10 before layer 2, equal names taken as different.
    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["l.10.w", "l.2.w", "l.2.b", "head", "l.02.b", "l.2"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["head", "l.2", "l.02.b", "l.2.b", "l.2.w", "l.10.w"]);
        assert_eq!(natural("a1", "a1"), Ordering::Equal);
    }
}
