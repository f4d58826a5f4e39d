//! Labels of exhibits and exercises: lines `Key: value` before a patch, or as comments before code that does
//! not compile. A line that begins with two blanks continues the line before.
use serde::Deserialize;
use serde::de::{DeserializeOwned, value::MapDeserializer};
use serde_json::{Error, Value};

/// Label of an exhibit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Label {
    /// The file's name without its ending.
    pub(crate) name: String,
    /// Path of the file, from the repository's root.
    pub(crate) path: String,
    /// Number of the exhibit, from 1.
    pub(crate) exhibit: String,
    /// The bug, in a few words.
    pub(crate) title: String,
    /// Report of the bug in the system that shipped it.
    pub(crate) source: ReportSource,
    /// Effect of the bug.
    pub(crate) breaks: String,
    /// Check that rejects the exhibit.
    pub(crate) killed_by: Killer,
    /// Result of comparing split with unsplit losses in f32.
    pub(crate) f32_loss: String,
}

/// A public report, or textbook knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ReportSource {
    /// `owner/repository#number`, of an issue or a pull request, or `textbook`.
    pub(crate) name: String,
    /// Address of the report.
    pub(crate) address: Option<String>,
    /// Content of the report, or the textbook origin of the bug.
    pub(crate) reported: String,
}

/// An edit that a chapter of the book asks its reader to make, and the output that follows.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exercise {
    /// Chapter and number under "Break it", such as `heads-1`; a letter follows if one item has several
    /// exercises.
    pub(crate) name: String,
    /// Path of the file, from the repository's root.
    pub(crate) path: String,
    /// Exhibit of the museum, or exercise, with the same edit; its patch is used.
    pub(crate) same_as: Option<String>,
    /// Exercise that is applied before, and stays applied.
    pub(crate) beside: Option<String>,
    /// Check that fails.
    pub(crate) killed_by: Killer,
    /// Parts of the check's output, in this order, with ` … ` between them.
    pub(crate) says: Option<String>,
}

impl Exercise {
    /// Splits the output into its parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.says.iter().flat_map(|says| says.split(" … "))
    }
}

/// A check that rejects an exhibit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Killer {
    /// A test: its crate, `lib` or the name of a file of tests, its path.
    Test { krate: String, target: String, test: String },
    /// The compiler, and a part of its message.
    Compiler { says: String },
}

impl std::fmt::Display for Killer {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Killer::Compiler { .. } => to.write_str("the compiler"),
            Killer::Test { krate, target, test } if target == "lib" => write!(to, "{krate}::{test}"),
            Killer::Test { krate, target, test } => write!(to, "{krate}/tests/{target}.rs::{test}"),
        }
    }
}

/// Reads the label of a file.
///
/// # Errors
/// One sentence that names the missing field, or the line that is not `Key: value`.
pub(crate) fn read<L: DeserializeOwned>(path: &str, text: &str) -> Result<L, String> {
    let code = text.starts_with("//! ");
    let lines = text.lines().take_while(|line| !line.is_empty() && line.starts_with("//! ") == code);
    let lines: Vec<_> = lines.map(|line| line.trim_start_matches("//! ")).collect();
    let name = path.rsplit(['/', '.']).nth(1).unwrap_or_default();
    let mut fields = vec![("name".to_owned(), Value::from(name)), ("path".to_owned(), path.into())];
    for line in lines.join("\n").replace("\n  ", " ").lines() {
        let pair = line.trim_end().split_once(": ");
        let (key, value) = pair.ok_or_else(|| format!("{path}: {line:?} is not a line `Key: value`"))?;
        fields.push((key.to_lowercase().replace(' ', "_"), value.into()));
    }
    L::deserialize(MapDeserializer::new(fields.into_iter())).map_err(|why: Error| format!("{path}: {why}"))
}

/// Lists the errors of a collection of exhibits, which are sorted by their names.
pub(crate) fn disorder(labels: &[Label]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, Label { exhibit, name, path, .. }) in (1..).zip(labels) {
        if *exhibit != at.to_string() {
            wrong.push(format!("{path}: exhibit {exhibit} stands in the place of {at}"));
        }
        if !name.starts_with(&format!("{exhibit:0>2}-")) {
            wrong.push(format!("{path}: the name must begin with {exhibit:0>2}"));
        }
    }
    let textbook = labels.iter().filter(|label| label.source.address.is_none()).count();
    if textbook > 5 {
        wrong.push(format!("{textbook} exhibits have no public source; at most 5 may be textbook"));
    }
    wrong
}

/// Parses `owner/repository#7 (issue): content`, or `textbook: origin`.
impl TryFrom<String> for ReportSource {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let read = || {
            let (from, reported) = text.split_once(": ")?;
            let (name, kind) = from.split_once(' ').unwrap_or((from, ""));
            let folder = match kind {
                "(issue)" => "issues",
                "(pull request)" => "pull",
                _ => return (from == "textbook").then_some((from, None, reported)),
            };
            let (repository, number) = name.split_once('#')?;
            let is_right = repository.split('/').count() == 2 && number.parse::<u32>().is_ok();
            let address = format!("https://github.com/{repository}/{folder}/{number}");
            is_right.then_some((name, Some(address), reported))
        };
        let wanted = "`owner/repository#7 (issue): ..` or `textbook: ..`";
        let (name, address, reported) = read().ok_or_else(|| format!("{text:?} is not a source {wanted}"))?;
        Ok(Self { name: name.into(), address, reported: reported.into() })
    }
}

/// Parses `crate lib path::of::test`, `crate file test`, or `the compiler: ` and a part of its message.
impl TryFrom<String> for Killer {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        if let Some(says) = text.strip_prefix("the compiler: ") {
            return Ok(Killer::Compiler { says: says.into() });
        }
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        let wanted =
            |_| format!("{text:?} names no check: expected `crate lib test` or `the compiler: message`");
        let [krate, target, test] = words.try_into().map_err(wanted)?;
        Ok(Killer::Test { krate, target, test })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "Exhibit: 7\nTitle: A title\nSource: a/b#12 (pull request): says so\n  and so\n\
        Breaks: all: everything\nKilled by: layers lib row::tests::x\nF32 loss: as much as rounding\n\n\
        diff --git a/x b/x\nBreaks: no label\n";

    /// Kills: a label that ends too early or too late, a lost line, an address of the wrong kind.
    #[test]
    fn labels_say_what_is_written() {
        let label: Label = read("museum/07.patch", PATCH).unwrap();
        let ReportSource { name, address, reported } = label.source;
        assert_eq!((&*label.exhibit, &*reported, &*label.breaks), ("7", "says so and so", "all: everything"));
        assert_eq!((&*name, &*address.unwrap()), ("a/b#12", "https://github.com/a/b/pull/12"));
        assert_eq!(label.killed_by.to_string(), "layers::row::tests::x");
        assert_eq!(label.f32_loss, "as much as rounding");
        let lines: Vec<_> = PATCH.lines().take(7).map(|line| format!("//! {line}")).collect();
        let code = lines.join("\n");
        let code = code
            .replace("layers lib row::tests::x", "the compiler: no method")
            .replace("a/b#12 (pull request)", "textbook");
        let label: Label = read("x.rs", &format!("{code}\nuse a: b;\n")).unwrap();
        assert_eq!(label.killed_by, Killer::Compiler { says: "no method".into() });
        assert_eq!((&*label.source.name, label.source.address), ("textbook", None));
    }

    /// Kills: a line taken for another, a label with two titles or none.
    #[test]
    fn what_is_no_label_is_said() {
        let why = |from: &str, to: &str| read::<Label>("p", &PATCH.replace(from, to)).unwrap_err();
        assert_eq!(why("Title: A title\n", ""), "p: missing field `title`");
        assert_eq!(why("Title", "Title: x\nTitle"), "p: duplicate field `title`");
        assert_eq!(why("Title: A title", "A title"), "p: \"A title\" is not a line `Key: value`");
        assert_eq!(why("A title", ""), "p: \"Title: \" is not a line `Key: value`");
        assert!(why("Title", "Name: x\nTitle").contains("duplicate field `name`"));
        for source in
            ["a/b (issue): x", "a#1 (issue): x", "a/b#x (issue): y", "a/b#1 (commit): x", "textbook"]
        {
            let why = why("a/b#12 (pull request): says so", source);
            assert!(why.contains("is not a source"), "{why}");
        }
        assert!(why("layers lib row::tests::x", "some test or other").contains("names no check"));
    }

    /// Kills: an exercise of another chapter, a line that is not read, an output of two parts read as one.
    #[test]
    fn labels_of_exercises_say_what_is_written() {
        let text = "Same as: 7\nKilled by: layers lib row::tests::x\nSays: Y … 3 of 4\n  differ\n";
        let read = |text: &str| read::<Exercise>("docs/break/the-ring-12b.patch", text);
        let exercise = read(text).unwrap();
        assert_eq!((&*exercise.name, exercise.same_as.as_deref()), ("the-ring-12b", Some("7")));
        assert_eq!((exercise.parts().collect(), &exercise.beside), (vec!["Y", "3 of 4 differ"], &None));
        let why = read(&text.replace("Says", "Prints")).unwrap_err();
        assert!(why.contains("unknown field `prints`"), "{why}");
        assert!(read("Says: Y\n").unwrap_err().contains("missing field `killed_by`"));
    }

    /// Kills: a gap in the numbers, a file under another number, a museum of textbook bugs.
    #[test]
    fn planted_disorder_is_seen() {
        let exhibit = |number: usize, path: String, source: bool| {
            let text = PATCH.replace("Exhibit: 7", &format!("Exhibit: {number}"));
            let text = if source { text } else { text.replace("a/b#12 (pull request)", "textbook") };
            read::<Label>(&path, &text).unwrap()
        };
        let many = |source| {
            (1..=6).map(|n| exhibit(n, format!("museum/{n:02}-x.patch"), source)).collect::<Vec<_>>()
        };
        assert_eq!(disorder(&many(true)), [""; 0]);
        let textbook = "6 exhibits have no public source; at most 5 may be textbook";
        assert_eq!(disorder(&many(false)), [textbook]);
        let seen = disorder(&[exhibit(2, "museum/03-b.patch".into(), true)]);
        let name = "museum/03-b.patch: the name must begin with 02";
        assert_eq!(seen, ["museum/03-b.patch: exhibit 2 stands in the place of 1", name]);
    }
}
