//! CSV: records of one kind as comma-separated values, below a line with the columns' names.
use super::{RunView, appended, of_kind};
use parallel::Result;
use run::event::CellValue;
use std::path::Path;

/// Opens a file for records of this kind. Each record is written when it is told, so a run that ends early
/// leaves those until then.
///
/// # Errors
/// If the file cannot be written.
pub fn view(kind: &'static str, path: &Path) -> Result<impl RunView + use<>> {
    let (mut append, mut begun) = (appended(path, "")?, false);
    Ok(of_kind(kind, move |record| {
        let mut text = String::new();
        if !begun {
            text = row(record.columns().iter().map(|column| column.key.to_owned()));
        }
        begun = true;
        text += &row(record.cells().into_iter().map(word));
        append(&text)
    }))
}

/// Returns a cell's text; empty, if it has no value.
fn word(cell: CellValue) -> String {
    match cell {
        CellValue::Word(word) => word,
        CellValue::Count(count) => count.to_string(),
        CellValue::Number(number) => number.to_string(),
        CellValue::None => String::new(),
    }
}

/// Returns a line of fields, quoted where a comma, a quote or a line's end is in one (RFC 4180).
fn row(fields: impl Iterator<Item = String>) -> String {
    let quoted = |field: String| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field
        }
    };
    fields.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a comma, a quote or a line's end that ends a field; a field that is quoted without need.
    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let fields = ["tp=2,dp=2", "a \"b\"", "one\ntwo", "plain", ""].map(str::to_owned);
        assert_eq!(row(fields.into_iter()), "\"tp=2,dp=2\",\"a \"\"b\"\"\",\"one\ntwo\",plain,\n");
        assert_eq!(
            [CellValue::Number(0.25), CellValue::Count(3), CellValue::None].map(word),
            ["0.25", "3", ""]
        );
    }
}
