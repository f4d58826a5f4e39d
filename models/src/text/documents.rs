//! Files of texts: a plain text is one document; a file of JSON (`.jsonl`, `.ndjson`, `.json`, in letters of
//! any case) has an object on each line, and a field of it is a document.
use parallel::{Error, Result, bail};
use serde_json::Value;
use std::borrow::Cow;
use std::path::PathBuf;
use tensor::files;
use tensor::quoted::{displayed, of_line, quoted};

/// A file of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile<'a> {
    /// Its name, for messages.
    pub name: String,
    /// Its documents in order.
    pub documents: Vec<Cow<'a, [u8]>>,
}

/// Reads files. `field` is the documents' field of files of JSON, `text` by default. With `newline`, each of
/// their documents gets a newline at its end, for models without a token that ends a text.
///
/// # Errors
/// If a file cannot be read, is empty or compressed, a line is no JSON object with the text in this field, or
/// a field is given but no file has fields.
pub fn read(files: &[PathBuf], field: Option<&str>, newline: bool) -> Result<Vec<TextFile<'static>>> {
    let has_fields = |path: &PathBuf| {
        let end = path.extension().unwrap_or_default().to_ascii_lowercase();
        ["jsonl", "ndjson", "json"].into_iter().any(|json| end == json)
    };
    if let (Some(field), false) = (field, files.iter().any(has_fields)) {
        bail!(
            "--data-field is {}, but no file of --data ends in .jsonl, .ndjson or .json; leave it out",
            quoted(field)
        );
    }
    let read = |path: &PathBuf| {
        let (name, bytes) = (path.display().to_string(), files::read(path)?);
        if let Some(program) = files::compression(&bytes) {
            bail!("{name} is compressed by {program}; decompress it first");
        }
        let documents = if has_fields(path) {
            documents(&bytes, &name, field.unwrap_or("text"), newline)?
        } else {
            vec![bytes.into()]
        };
        Ok(TextFile { name, documents })
    };
    files.iter().map(read).collect()
}

/// Documents of lines of JSON; blank lines are skipped.
fn documents(bytes: &[u8], name: &str, field: &str, newline: bool) -> Result<Vec<Cow<'static, [u8]>>> {
    let document = |(line, number): (&[u8], usize)| {
        let (place, asked) = (format!("{name}, line {number}"), quoted(field));
        let value = serde_json::from_slice(line)
            .map_err(|why| Error::new(format!("{place} is not JSON: {}", of_line(&why))))?;
        let Value::Object(mut object) = value else {
            bail!("{place} is {}; it must be a JSON object", displayed(&value.to_string()));
        };
        match object.remove(field) {
            Some(Value::String(text)) => Ok((text + if newline { "\n" } else { "" }).into_bytes().into()),
            Some(other) => {
                let other = displayed(&other.to_string());
                bail!("{place}: the field {asked} is {other}; it must be a string")
            }
            None => {
                let fields: Vec<_> = object.keys().map(|field| quoted(field)).collect();
                let fields = if fields.is_empty() { "none".into() } else { displayed(&fields.join(", ")) };
                bail!("{place} has no field {asked}; its fields are {fields}: choose one with --data-field")
            }
        }
    };
    let lines = bytes.split(|byte| *byte == b'\n').zip(1..);
    lines.filter(|(line, _)| !line.trim_ascii().is_empty()).map(document).collect()
}
