//! The label of an exhibit: the lines that stand before its patch, or as comments before code that does not compile.

/// What a label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// Its number, from 1.
    pub(crate) number: usize,
    /// The bug, in a few words.
    pub(crate) title: String,
    /// Who shipped it: `owner/repository#number`, of an issue or a pull request. None: it is in textbooks.
    pub(crate) source: Option<Source>,
    /// What the source says, or where the bug is known from.
    pub(crate) told: String,
    /// What goes wrong.
    pub(crate) breaks: String,
    /// The check that rejects it.
    pub(crate) killer: Killer,
    /// What a comparison of split with unsplit losses in f32 says.
    pub(crate) loss: String,
    /// The file that holds it, from the repository's root.
    pub(crate) path: String,
}

/// A public report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// `owner/repository#number`.
    pub(crate) name: String,
    /// Where to read it.
    pub(crate) address: String,
}

/// Something that a chapter of the book tells its reader to break, and what is then printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exercise {
    /// The chapter and the number under "Break it", as `heads-1`; a letter follows where one item has several.
    pub(crate) name: String,
    /// The exhibit of the museum, or the exercise, that is the same edit; its patch is used.
    pub(crate) same_as: Option<String>,
    /// The exercise that is done before, and stays.
    pub(crate) beside: Option<String>,
    /// The check that fails.
    pub(crate) killer: Killer,
    /// Parts of its output, in this order.
    pub(crate) says: Vec<String>,
    /// The file that holds it, from the repository's root.
    pub(crate) path: String,
}

impl Exercise {
    /// Reads the label of a patch.
    ///
    /// # Errors
    /// One sentence on what is missing or is no line of a label.
    pub(crate) fn read(path: &str, text: &str) -> Result<Self, String> {
        let says = |why: String| format!("{path}: {why}");
        let (name, fields) = (path.rsplit('/').next().unwrap_or_default(), fields(text).map_err(says)?);
        if let Some((key, _)) = fields.iter().find(|(k, _)| !EXERCISE.contains(&&**k)) {
            return Err(says(format!("{key:?} is none of {EXERCISE:?}")));
        }
        let field = |key: &str| fields.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
        let killer =
            field("Killed by").ok_or_else(|| says("the label needs a line `Killed by: ..`".into()))?;
        Ok(Self {
            name: name.trim_end_matches(".patch").into(),
            same_as: field("Same as"),
            beside: field("Beside"),
            killer: self::killer(&killer).map_err(says)?,
            says: field("Says").iter().flat_map(|text| text.split(" … ")).map(str::to_owned).collect(),
            path: path.into(),
        })
    }
}

/// The lines of an exercise's label.
const EXERCISE: [&str; 4] = ["Same as", "Beside", "Killed by", "Says"];

/// What rejects an exhibit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Killer {
    /// A test: its crate, `lib` or the name of a file of tests, its path.
    Test {
        /// The crate.
        krate: String,
        /// `lib`, or a file of the crate's tests.
        target: String,
        /// The test's path in it.
        test: String,
    },
    /// The compiler.
    Compiler {
        /// A part of what it says.
        says: String,
    },
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

impl Label {
    /// Reads the label of a file.
    ///
    /// # Errors
    /// One sentence on what is missing or is no line of a label.
    pub(crate) fn read(path: &str, text: &str) -> Result<Self, String> {
        let says = |why: String| format!("{path}: {why}");
        let fields = fields(text).map_err(says)?;
        let field = |key: &str| -> Result<String, String> {
            let mut found = fields.iter().filter(|(k, _)| k == key);
            match (found.next(), found.next()) {
                (Some((_, value)), None) if !value.is_empty() => Ok(value.clone()),
                _ => Err(says(format!("the label needs one line `{key}: ..`"))),
            }
        };
        let number = field("Exhibit")?;
        let number = number.parse().map_err(|_| says(format!("{number:?} is no number of an exhibit")))?;
        let (source, told) = source(&field("Source")?).map_err(says)?;
        Ok(Self {
            number,
            title: field("Title")?,
            source,
            told,
            breaks: field("Breaks")?,
            killer: killer(&field("Killed by")?).map_err(says)?,
            loss: field("F32 loss")?,
            path: path.into(),
        })
    }
}

/// What is wrong with a collection of exhibits, which are sorted by their numbers.
pub(crate) fn disorder(labels: &[Label]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, label) in labels.iter().enumerate() {
        let (number, name) = (label.number, label.path.rsplit('/').next().unwrap_or_default());
        if number != at + 1 {
            wrong.push(format!("{}: number {number} where {} follows", label.path, at + 1));
        }
        if !name.starts_with(&format!("{number:02}-")) {
            wrong.push(format!("{}: the name begins with another number than {number:02}", label.path));
        }
    }
    let textbook = labels.iter().filter(|label| label.source.is_none()).count();
    if textbook > 5 {
        wrong.push(format!("{textbook} exhibits without a public source; at most 5 may be textbook"));
    }
    wrong
}

/// The `Key: value` lines up to the patch or the code; a line that begins with a blank goes on with the one before.
fn fields(text: &str) -> Result<Vec<(String, String)>, String> {
    let code = text.starts_with("//! ");
    let lines = text.lines().map_while(|line| {
        if code { line.strip_prefix("//! ") } else { Some(line).filter(|line| !line.starts_with("diff ")) }
    });
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        match (line.strip_prefix(' '), fields.last_mut(), line.split_once(": ")) {
            (Some(more), Some((_, value)), _) => *value = format!("{value} {}", more.trim()),
            (None, _, Some((key, value))) => fields.push((key.into(), value.trim().into())),
            _ => return Err(format!("{line:?} is no line of a label")),
        }
    }
    Ok(fields)
}

/// `owner/repository#7 (issue): what it says`, or `textbook: where it is known from`.
fn source(text: &str) -> Result<(Option<Source>, String), String> {
    let wanted = || format!("{text:?} is no source: `owner/repository#7 (issue): ..` or `textbook: ..`");
    let (from, told) = text.split_once(": ").ok_or_else(wanted)?;
    if from == "textbook" {
        return Ok((None, told.into()));
    }
    let (name, kind) = from.split_once(' ').ok_or_else(wanted)?;
    let (repository, number) = name.split_once('#').ok_or_else(wanted)?;
    let folder = match kind {
        "(issue)" => "issues",
        "(pull request)" => "pull",
        _ => return Err(wanted()),
    };
    if repository.split('/').count() != 2 || number.parse::<u32>().is_err() {
        return Err(wanted());
    }
    let address = format!("https://github.com/{repository}/{folder}/{number}");
    Ok((Some(Source { name: name.into(), address }), told.into()))
}

/// `crate lib path::of::test`, `crate file test`, or `the compiler: ` and a part of what it says.
fn killer(text: &str) -> Result<Killer, String> {
    if let Some(says) = text.strip_prefix("the compiler: ") {
        return Ok(Killer::Compiler { says: says.into() });
    }
    match text.split(' ').collect::<Vec<_>>()[..] {
        [krate, target, test] => {
            Ok(Killer::Test { krate: krate.into(), target: target.into(), test: test.into() })
        }
        _ => Err(format!(
            "{text:?} names no check: `crate lib path::of::test`, or `the compiler: what it says`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "Exhibit: 7\nTitle: A title\nSource: a/b#12 (pull request): says so\n  and so\n\
        Breaks: all: everything\nKilled by: layers lib row::tests::x\nF32 loss: as much as rounding\n\n\
        diff --git a/x b/x\nBreaks: no label\n";

    /// Kills: a label that ends too early or too late, a line that is lost, an address of the wrong kind.
    #[test]
    fn labels_say_what_is_written() {
        let label = Label::read("museum/07.patch", PATCH).unwrap();
        let source = label.source.clone().unwrap();
        assert_eq!((label.number, &*label.told, &*label.breaks), (7, "says so and so", "all: everything"));
        assert_eq!((&*source.name, &*source.address), ("a/b#12", "https://github.com/a/b/pull/12"));
        assert_eq!(label.killer.to_string(), "layers::row::tests::x");
        assert_eq!(label.loss, "as much as rounding");
        let lines: Vec<_> = PATCH.lines().take(7).map(|line| format!("//! {line}")).collect();
        let code = lines.join("\n");
        let code = code
            .replace("layers lib row::tests::x", "the compiler: no method")
            .replace("a/b#12 (pull request)", "textbook");
        let label = Label::read("x.rs", &format!("{code}\nuse a: b;\n")).unwrap();
        assert_eq!((label.killer, label.source), (Killer::Compiler { says: "no method".into() }, None));
    }

    /// Kills: a line that is taken for another, a label with two titles or none.
    #[test]
    fn what_is_no_label_is_said() {
        let why = |from: &str, to: &str| Label::read("p", &PATCH.replace(from, to)).unwrap_err();
        assert_eq!(why("Title: A title\n", ""), "p: the label needs one line `Title: ..`");
        assert_eq!(why("Title", "Title: x\nTitle"), "p: the label needs one line `Title: ..`");
        assert_eq!(why("Exhibit: 7", "Exhibit: seven"), "p: \"seven\" is no number of an exhibit");
        assert_eq!(why("Title: A title", "A title"), "p: \"A title\" is no line of a label");
        for source in
            ["a/b (issue): x", "a#1 (issue): x", "a/b#x (issue): y", "a/b#1 (commit): x", "textbook"]
        {
            let why = why("a/b#12 (pull request): says so", source);
            assert!(why.contains("is no source"), "{why}");
        }
        assert!(why("layers lib row::tests::x", "some test or other").contains("names no check"));
    }

    /// Kills: an exercise of another chapter, a line that nobody reads, an output that is read as one.
    #[test]
    fn labels_of_exercises_say_what_is_written() {
        let text = "Same as: 7\nKilled by: layers lib row::tests::x\nSays: Y … 3 of 4\n  differ\n";
        let read = |text: &str| Exercise::read("docs/break/the-ring-12b.patch", text);
        let exercise = read(text).unwrap();
        assert_eq!((&*exercise.name, exercise.same_as), ("the-ring-12b", Some("7".into())));
        assert_eq!((exercise.says, exercise.beside), (vec!["Y".to_string(), "3 of 4 differ".into()], None));
        let why = read(&text.replace("Says", "Prints")).unwrap_err();
        assert!(why.contains("\"Prints\" is none of"), "{why}");
        assert!(read("Says: Y\n").unwrap_err().contains("needs a line `Killed by"));
    }

    /// Kills: numbers that leave a gap, a file under another's number, a museum of textbooks.
    #[test]
    fn planted_disorder_is_seen() {
        let exhibit = |number: usize, path: String, source: bool| Label {
            number,
            path,
            source: source.then(|| Source { name: "a/b#1".into(), address: String::new() }),
            ..Label::read("p", PATCH).unwrap()
        };
        let many = |source| {
            (1..=6).map(|n| exhibit(n, format!("museum/{n:02}-x.patch"), source)).collect::<Vec<_>>()
        };
        assert_eq!(disorder(&many(true)), [""; 0]);
        let textbook = "6 exhibits without a public source; at most 5 may be textbook";
        assert_eq!(disorder(&many(false)), [textbook]);
        let seen = disorder(&[exhibit(2, "museum/03-b.patch".into(), true)]);
        let name = "museum/03-b.patch: the name begins with another number than 02";
        assert_eq!(seen, ["museum/03-b.patch: number 2 where 1 follows", name]);
    }
}
