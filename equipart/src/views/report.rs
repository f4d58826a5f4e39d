//! A report: one page of HTML that needs no other file, with words, tables, pictures, and the curves of all
//! records that have some. It is written when the run shows something first, every few seconds, and at the
//! end, so a run that is stopped leaves a page that says so. A command that is refused leaves an older page.
use super::plot::{Points, picture};
use super::view::{RunView, ViewContext, ViewInfo};
use draw::picture::escaped;
use parallel::Result;
use parallel::measure::median_and_spread;
use run::event::{Curve, RunEvent, RunRecord};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensor::files::{Replacement, replace_file};

/// The view and its flag.
pub static REPORT: ViewInfo = ViewInfo {
    flag: "report",
    value: "FILE",
    help: "Write a report to this file: one page of HTML with the results, tables and pictures",
    needs: 0,
    wants_details: true,
    open: |path, context| Ok(Box::new(ReportPage::begin(path, context)?)),
};

/// Time between two writes of the page while the run goes on.
const EVERY: Duration = Duration::from_secs(5);

/// Style of the page: the browser chooses light or dark; wide tables and pictures scroll.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--paper:#fff;--muted:#59636e;--line:#d0d7de;--wrong:#b3261e}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#14181d;--muted:#9aa4af;--line:#343b44;--wrong:#ff8a80}\
svg{filter:invert(.92) hue-rotate(180deg)}}\
body{margin:0 auto;max-width:76rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\
h1{font-size:1.4rem;overflow-wrap:anywhere}p{white-space:pre-line;max-width:60rem}.state,figcaption{color:var(--muted)}.failed{color:var(--wrong)}\
div,figure{overflow-x:auto;margin:1.5rem 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .8rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:bottom;white-space:pre}\
th:first-child,td:first-child{text-align:left}svg{height:auto;max-width:100%}@media(max-width:60rem){svg{max-width:none}}";

/// The page, and where it is.
struct ReportPage {
    file: PathBuf,
    title: String,
    name: String,
    body: String,
    /// True if the body ends with words, which more words continue.
    in_words: bool,
    curves: Vec<(&'static str, Points)>,
    written: Option<Instant>,
}

impl ReportPage {
    fn begin(path: &Path, context: &ViewContext) -> Result<Self> {
        drop(Replacement::beside(path)?);
        Ok(Self {
            file: path.to_owned(),
            title: context.title.to_owned(),
            name: context.name.to_owned(),
            body: String::new(),
            in_words: false,
            curves: Vec::new(),
            written: None,
        })
    }
    /// Writes the page, with a sentence on the state of the run.
    fn write(&self, state: &str, class: &str) -> Result<()> {
        let [title, state] = [&*self.title, state].map(escaped);
        let curves: String = self.curves.iter().map(|(kind, points)| section(kind, points)).collect();
        let page = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n<p class=\"{class}\">{state}</p>\n{}{}{curves}</html>\n",
            self.body,
            if self.in_words { "</p>\n" } else { "" }
        );
        Ok(replace_file(&self.file, page.as_bytes())?)
    }
    /// Adds a part of the page that is no words.
    fn add(&mut self, part: &str) {
        if std::mem::take(&mut self.in_words) {
            self.body += "</p>\n";
        }
        self.body += part;
    }
    /// Adds words; those that follow each other are one paragraph, up to an empty line.
    fn say(&mut self, words: &str) {
        if words.is_empty() {
            self.add("");
        }
        for line in words.lines() {
            if line.is_empty() {
                self.add("");
                continue;
            }
            self.body += if self.in_words { "\n" } else { "<p>" };
            self.body += &escaped(line);
            self.in_words = true;
        }
    }
    /// Adds the points of a record that has some.
    fn point(&mut self, record: &dyn RunRecord) {
        if record.is_detail() || record.cells().iter().all(|(column, _)| column.curve.is_none()) {
            return;
        }
        let index = self.curves.iter().position(|(kind, _)| *kind == record.kind()).unwrap_or_else(|| {
            self.curves.push((record.kind(), Points::new(self.name.clone())));
            self.curves.len() - 1
        });
        self.curves[index].1.add(record);
    }
}

/// State of a run that has not ended.
const UNENDED: &str = "The run had not ended when this page was written: it goes on, or it was stopped.";

impl RunView for ReportPage {
    fn see(&mut self, event: &RunEvent) -> Result<()> {
        match event {
            RunEvent::Text(words) | RunEvent::Note(words) => self.say(words),
            RunEvent::Table { heads, rows, .. } => self.add(&tabled(heads, rows)),
            RunEvent::Picture { title, svg } => self.add(&drawn(title, svg)),
            RunEvent::Record(record) => self.point(*record),
            RunEvent::Progress { .. }
            | RunEvent::Steps(_)
            | RunEvent::Reached { .. }
            | RunEvent::Screen(_) => {}
        }
        let is_note = matches!(event, RunEvent::Note(_));
        if self.written.map_or(!is_note, |written| written.elapsed() > EVERY) {
            self.written = Some(Instant::now());
            self.write(UNENDED, "state")?;
        }
        Ok(())
    }
    fn earlier(&mut self, record: &dyn RunRecord) {
        self.point(record);
    }
    fn wants_details(&self) -> bool {
        true
    }
    fn end(&mut self, failure: Option<&str>) -> Result<()> {
        match failure {
            None => self.write("The run has ended.", "state"),
            Some(_) if self.written.is_none() => Ok(()),
            Some(why) => self.write(&format!("The run failed and ended early: {why}"), "failed"),
        }
    }
}

/// Returns the curves of records of a kind, and their values in a table.
fn section(kind: &str, points: &Points) -> String {
    let mut rows = Vec::new();
    for (column, points) in points.columns().iter().filter(|(_, points)| !points.is_empty()) {
        let (curve, name) = column.curve.expect("a column with a curve");
        let values: Vec<_> = points.iter().map(|(_, value)| *value).collect();
        let ends = [values[0], values[values.len() - 1]].map(digits);
        let number = values.len().to_string();
        let measured = (curve == Curve::Measured).then(|| median_and_spread(values));
        let median = measured.map_or_else(|| "-".into(), |(median, _)| digits(median));
        let spread = measured.and_then(|(_, spread)| spread);
        let spread = spread.map_or_else(|| "-".into(), |part| format!("±{:.0} %", 100.0 * part));
        rows.push([vec![name.into(), number], ends.to_vec(), vec![median, spread]].concat());
    }
    let curves = picture("training", std::slice::from_ref(points), &format!("{kind}s"));
    tabled(&[&format!("{kind}s"), "values", "first", "last", "median", "spread"], &rows)
        + &drawn("Each value over its number; spread: half of the interquartile range.", &curves)
}

/// Formats with four digits that count.
fn digits(x: f64) -> String {
    let size = x.abs();
    match size {
        0.0 => "0".into(),
        _ if !(1e-3..1e7).contains(&size) => format!("{x:.3e}"),
        _ => format!("{x:.0$}", (3 - size.log10().floor() as i32).max(0) as usize),
    }
}

fn tabled(heads: &[&str], rows: &[Vec<String>]) -> String {
    fn row(cells: &[impl AsRef<str>], tag: &str) -> String {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell.as_ref())));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    }
    let rows: String = rows.iter().map(|cells| row(cells, "td")).collect();
    format!("<div><table>\n{}{rows}</table></div>\n", row(heads, "th"))
}

fn drawn(title: &str, svg: &str) -> String {
    format!("<figure>\n{svg}<figcaption>{}</figcaption></figure>\n", escaped(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a page that is written at the end alone, a refused command that replaces an older page, a
    /// stopped run whose page does not say so, words after a table that lie in it, paragraphs that run
    /// together.
    #[test]
    fn a_page_is_there_from_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.html");
        let context = ViewContext { title: "a < b", name: "run" };
        let mut page = ReportPage::begin(&path, &context).unwrap();
        std::fs::write(&path, "older").unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        page.see(&RunEvent::Note("note: refused")).unwrap();
        page.end(Some("refused")).unwrap();
        assert_eq!(read(), "older");
        let mut page = ReportPage::begin(&path, &context).unwrap();
        page.see(&RunEvent::Progress { what: "begun", done: 0, of: 0 }).unwrap();
        assert!(read().contains("<h1>a &lt; b</h1>") && read().contains(UNENDED));
        for words in ["one", "two", "", "three"] {
            page.see(&RunEvent::Text(words)).unwrap();
        }
        page.see(&RunEvent::Table { heads: &["x"], rows: &[vec!["1".into()]], is_text: false }).unwrap();
        page.see(&RunEvent::Text("four")).unwrap();
        assert!(read().contains(UNENDED));
        page.end(None).unwrap();
        let (text, table) =
            (read(), "<div><table>\n<tr><th>x</th></tr>\n<tr><td>1</td></tr>\n</table></div>");
        assert!(!text.contains(UNENDED) && text.contains("The run has ended."), "{text}");
        let body = format!("<p>one\ntwo</p>\n<p>three</p>\n{table}\n<p>four</p>\n</html>");
        assert!(text.contains(&body), "{text}");
    }

    /// Kills: more digits than count, a 0 with an exponent, a negative number read as small.
    #[test]
    fn four_digits_count() {
        let numbers = [0.0, 1.0, -2.34567, 123.456, 98765.4, 1e-5, 4e9];
        assert_eq!(numbers.map(digits), ["0", "1.000", "-2.346", "123.5", "98765", "1.000e-5", "4.000e9"]);
    }
}
