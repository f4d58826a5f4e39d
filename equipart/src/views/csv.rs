//! Comma-separated values: a line of column names, and one for each record of the first kind that comes.
use super::view::{RECORDS, ViewInfo, record_file};

/// The view and its flag.
pub static CSV: ViewInfo = ViewInfo {
    flag: "csv",
    value: "FILE",
    help: "Write the results to this file as comma-separated values, one line each",
    needs: RECORDS,
    wants_details: false,
    open: |path, _| {
        let mut kind = None;
        Ok(Box::new(record_file(path, move |record| {
            if record.is_detail() || kind.is_some_and(|kind| kind != record.kind()) {
                return Vec::new();
            }
            let (columns, cells): (Vec<_>, Vec<_>) = record.cells().into_iter().unzip();
            if columns.is_empty() {
                return Vec::new();
            }
            let heads = columns.into_iter().map(|column| column.key.to_owned());
            let heads = if kind.replace(record.kind()).is_none() { row(heads) } else { String::new() };
            (heads + &row(cells.into_iter().map(|cell| cell.plain()))).into_bytes()
        })?))
    },
};

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
    use run::event::CellValue;

    /// Kills: a comma, a quote or a line's end that ends a field; a field that is quoted without need.
    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let fields = ["tp=2,dp=2", "a \"b\"", "one\ntwo", "plain", ""].map(str::to_owned);
        assert_eq!(row(fields.into_iter()), "\"tp=2,dp=2\",\"a \"\"b\"\"\",\"one\ntwo\",plain,\n");
        let cells = [
            CellValue::word("tp=2"),
            CellValue::Number(0.25),
            CellValue::Count(3),
            CellValue::Shown(0.5, "50.0 %".into()),
            CellValue::bytes(2_000),
            CellValue::None,
        ];
        assert_eq!(cells.clone().map(|cell| cell.plain()), ["tp=2", "0.25", "3", "0.5", "2000", ""]);
        assert_eq!(cells.map(|cell| cell.shown()), ["tp=2", "0.25", "3", "50.0 %", "2.00 kB", "-"]);
    }
}
