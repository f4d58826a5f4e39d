//! Patches that name an item and words in it, never a file or a line. A hunk is a [`place`], and lines with
//! ` ` before words that stay, `-` before words that go, and `+` before text that comes. The words follow
//! each other once in the item, with any white space and comments between them; a comma before a closing
//! bracket may be there or not. A hunk without words puts its text first in the item's body.
use super::place::{self, NamedItem};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Files by their paths from the repository's root.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Edits of patches by their paths.
pub(crate) type Edits<'a> = BTreeMap<&'a str, Vec<Edit>>;

/// A change of a file.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    /// The file, from the repository's root.
    pub(crate) file: PathBuf,
    at: Range<usize>,
    text: String,
    patch: String,
}

/// Reads the edits of patches, by their paths.
///
/// # Errors
/// One sentence for the terminal. It names every patch whose place or words are not there once.
pub(crate) fn read<'a>(files: &Files, paths: impl Iterator<Item = &'a String>) -> Result<Edits<'a>, String> {
    let items = items(files);
    let mut read = BTreeMap::new();
    let mut stuck = Vec::new();
    for path in paths {
        let text = files.get(Path::new(path)).ok_or_else(|| format!("{path} does not exist"))?;
        match edits(files, &items, path, &place::hunks(&String::from_utf8_lossy(text))) {
            Ok(edits) => drop(read.insert(&**path, edits)),
            Err(why) => stuck.push(why),
        }
    }
    if stuck.is_empty() {
        return Ok(read);
    }
    Err(format!("these patches do not apply to the tree as it is:\n  {}", stuck.join("\n  ")))
}

/// Lists the named items of files.
pub(crate) fn items(files: &Files) -> Vec<NamedItem<'_>> {
    place::items(files.iter().map(|(file, text)| (&**file, &**text)))
}

/// Returns the edits of a patch's hunks.
///
/// # Errors
/// One sentence: the patch, and the place or the words that are not there once.
pub(crate) fn edits(
    files: &Files,
    items: &[NamedItem],
    patch: &str,
    hunks: &[(&str, Vec<&str>)],
) -> Result<Vec<Edit>, String> {
    let mut edits = Vec::new();
    for (place, lines) in hunks {
        let says = |why| format!("{patch}: {place} {why}");
        let (file, item) = place::find(items, place).map_err(says)?;
        let source = str::from_utf8(&files[file]).expect("a source that has an item is text");
        for (at, text) in changes(&source[item.clone()], lines).map_err(says)? {
            edits.push(Edit {
                file: file.into(),
                at: item.start + at.start..item.start + at.end,
                text: format!("\n{text}\n"),
                patch: patch.into(),
            });
        }
    }
    Ok(edits)
}

/// Makes edits of files that are as they were when the edits were read.
///
/// # Errors
/// One sentence that names two patches, if both change the same words.
pub(crate) fn make(files: &mut Files, mut edits: Vec<Edit>) -> Result<(), String> {
    edits.sort_by(|a, b| (&a.file, a.at.start, a.at.end).cmp(&(&b.file, b.at.start, b.at.end)));
    let overlap = |two: &&[Edit]| two[0].file == two[1].file && two[0].at.end > two[1].at.start;
    if let Some([a, b]) = edits.windows(2).find(overlap) {
        return Err(format!("{} and {} change the same words of {}", a.patch, b.patch, a.file.display()));
    }
    for Edit { file, at, text, .. } in edits.into_iter().rev() {
        files.get_mut(&file).expect("the edits are of these files").splice(at, text.bytes());
    }
    Ok(())
}

/// Returns the bytes of an item that a hunk changes, each with the text that takes their place.
fn changes(item: &str, lines: &[&str]) -> Result<Vec<(Range<usize>, String)>, String> {
    let (words, changes) = parsed(lines);
    let tokens: Vec<_> = place::tokens(item).into_iter().map(|at| (&item[at.clone()], at)).collect();
    let body = tokens.iter().find(|(word, _)| *word == "{").map_or(0, |(_, at)| at.end);
    let found: Vec<_> = (0..tokens.len()).filter_map(|from| spans(&tokens[from..], &words)).collect();
    let spans = match &found[..] {
        _ if words.is_empty() => &[],
        [spans] => &spans[..],
        _ => {
            let words = lines.iter().filter(|line| !line.starts_with('+')).map(|line| line[1..].trim());
            let words = words.collect::<Vec<_>>().join(" ");
            return Err(format!("has {} times the words `{words}`", found.len()));
        }
    };
    let place = |gone: Range<usize>| match (gone.start, gone.end) {
        (0, 0) => spans.first().map_or(body..body, |at| at.start..at.start),
        (from, to) if from == to => spans[from - 1].end..spans[from - 1].end,
        (from, to) => spans[from].start..spans[to - 1].end,
    };
    Ok(changes.into_iter().map(|(gone, text)| (place(gone), text)).collect())
}

/// Splits the lines of a hunk into the words that are there, and its changes: which of these words go, and
/// the text in their place.
fn parsed(lines: &[&str]) -> (Vec<String>, Vec<(Range<usize>, String)>) {
    let mut words = Vec::new();
    let mut changes = Vec::new();
    let mut stays = true;
    for run in lines.chunk_by(|a, b| a[..1] == b[..1]) {
        let mark = &run[0][..1];
        let text = run.iter().map(|line| &line[1..]).collect::<Vec<_>>().join("\n");
        if stays && mark != " " {
            changes.push((words.len()..words.len(), String::new()));
        }
        stays = mark == " ";
        match changes.last_mut() {
            Some((_, to)) if mark == "+" => to.push_str(&text),
            last => {
                words.extend(place::tokens(&text).into_iter().map(|at| text[at].to_owned()));
                last.filter(|_| mark == "-").into_iter().for_each(|(gone, _)| gone.end = words.len());
            }
        }
    }
    (words, changes)
}

/// Returns the bytes of each of the words, if the tokens begin with them.
fn spans(tokens: &[(&str, Range<usize>)], words: &[String]) -> Option<Vec<Range<usize>>> {
    let closes = |word: &str| [")", "]", "}"].contains(&word);
    let mut spans = Vec::new();
    let mut next = 0;
    for word in words {
        if next > 0 && tokens.get(next)?.0 == "," && closes(word) {
            next += 1;
        }
        let (own, at) = tokens.get(next)?;
        if own == word {
            next += 1;
            spans.push(at.clone());
        } else if next > 0 && word == "," && closes(own) {
            spans.push(at.start..at.start);
        } else {
            return None;
        }
    }
    Some(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
/// Doc of f: fn f() {}
pub fn f<T: Fn(&'static str) -> [u8; 2]>(x: [T; 2]) -> impl Iterator<Item = u8> {
    let s = \"fn g() { // no code\"; // fn g() {
    call(x, s); call(x, s);
    call(
        y, // a comment
        s,
    )
}
const SIZES: [usize; 2] = [1, 2];
mod near { pub fn f() { one() } }
impl<T: Copy> super::Layer<T> for Row<T, 3> where T: Into<u8> {
    fn forward(&self) -> u8 { match self.0 { '{' => 1, _ => r#\"\"}\"#.len() } }
}
impl<T> Row<T> { fn new() -> Self { Self(x) } }
impl Layer<u8> for Column { fn forward(&self) -> u8 { 2 } }
macro_rules! small { ($($t:ident),*) => {$( impl Scalar for $t { fn one() -> Self { 1 } } )*} }
#[cfg(test)]
mod tests { fn case() { let a = 5; } }
";

    fn files(at: &str, code: &str) -> Files {
        let other = b"fn forward() { 2 }".to_vec();
        Files::from([
            (at.into(), code.into()),
            ("other/src/row.rs".into(), other),
            ("x/a.cu".into(), vec![255]),
        ])
    }

    /// The words of the code with a patch.
    fn with(files: &Files, hunks: &str) -> Result<String, String> {
        let mut files = files.clone();
        let read = edits(&files, &items(&files), "p", &place::hunks(&format!("\n{hunks}")))?;
        let file = read[0].file.clone();
        make(&mut files, read)?;
        let text = String::from_utf8(files.remove(&file).unwrap()).unwrap();
        Ok(place::tokens(&text).into_iter().map(|at| &text[at]).collect())
    }

    /// Kills: an item in a comment or a string, an item that ends too early or too late, a place in another
    /// crate; a patch that a moved file, another order of lines, a last comma or a comment stops.
    #[test]
    fn words_change_wherever_their_item_is() {
        let was = files("x/src/row.rs", CODE);
        let reformatted =
            CODE.replace("y, // a comment\n        s,", "y, s").replace("(x, s);", "(\n  x,\n  s,\n);");
        let moved = files("x/src/deep/er/row.rs", &reformatted.replace(") -> u8 {", ") -> u8\n{ /* new */"));
        let all = with(&was, "x: near::f\n+").unwrap();
        for (hunk, from, to) in [
            ("x: row::f\n call(\n-y\n+z,\n+ z\n , s,)", "call(y,s", "call(z,z,s"),
            ("x: row::f\n+first();", "u8>{", "u8>{first();"),
            ("x: row::f\n-let s = \"fn g() { // no code\";", "lets=\"fn g() { // no code\";", ""),
            ("x: row::f\n , s); call(y, s)\n+.z()", "s,)", "s,).z()"),
            ("x: Row::forward\n-1\n+3\n , _ =>\n+3 +", "1,_=>", "3,_=>3+"),
            ("x: Layer for Column::forward\n-2\n+3", "u8{2}", "u8{3}"),
            ("x: Row::new\n-x", "Self(x)", "Self()"),
            ("x: SIZES\n [1,\n-2\n+3", "[1,2]", "[1,3]"),
            ("x: Scalar for t::one\n { 1\n++ 1", "Self{1", "Self{1+1"),
            ("x: tests::case\n let\n+mut", "leta", "letmuta"),
        ] {
            assert_eq!(with(&was, hunk), Ok(all.replacen(from, to, 1)), "{hunk}");
            with(&moved, hunk).unwrap();
        }
    }

    /// Kills: a bug in one of two places, or nowhere, and a sentence that does not say where to look.
    #[test]
    fn what_is_not_there_once_is_said() {
        let files = files("x/src/row.rs", CODE);
        let why = |hunk: &str| with(&files, hunk).unwrap_err();
        let of_row = "row::Layer for Row::forward in x/src/row.rs";
        let of_column = "row::Layer for Column::forward in x/src/row.rs";
        assert_eq!(why("x: forward\n+y"), format!("p: x: forward is 2 items: {of_row}, {of_column}"));
        assert_eq!(
            why("x: Rwo::forward\n+y"),
            format!("p: x: Rwo::forward is no item; near are {of_row}, {of_column}")
        );
        assert_eq!(why("y: Row::forward\n+y"), "p: y: Row::forward is no item");
        assert_eq!(why("+y"), "p: +y is no place such as `layers: RowLinear::forward`");
        assert_eq!(why("x: row::f\n call(\n-z"), "p: x: row::f has 0 times the words `call( z`");
        assert_eq!(why("x: row::f\n call(\n-x"), "p: x: row::f has 2 times the words `call( x`");
        assert_eq!(
            why("x: Row::new\n-(x)\nx: Row::new\n-x"),
            "p and p change the same words of x/src/row.rs"
        );
    }

    /// Kills: a patch that is left out, or that depends on the one before; both patches of a word applied.
    #[test]
    fn patches_live_beside_each_other() {
        let mut files = files("x/src/row.rs", "fn f() { a(b); c(); }");
        for (name, hunk) in
            [("1", "x: f\n-b\n+e"), ("2", "x: f\n a(b)\n+.d()"), ("3", "x: f\n-(b);\n+;"), ("4", "y: f\n+a")]
        {
            files.insert(name.into(), format!("Title: t\n\n{hunk}\n").into());
        }
        let names = ["1", "2", "3", "4"].map(str::to_owned);
        let mut both = read(&files, names[..2].iter()).unwrap();
        let edits = both.remove("2").unwrap().into_iter().chain(both.remove("1").unwrap());
        let mut made = files.clone();
        make(&mut made, edits.collect()).unwrap();
        let text =
            String::from_utf8_lossy(&made[Path::new("x/src/row.rs")]).split_whitespace().collect::<String>();
        assert_eq!(text, "fnf(){a(e).d();c();}");
        let all = read(&files, names[..3].iter()).unwrap().into_values().flatten().collect();
        assert_eq!(make(&mut made, all).unwrap_err(), "3 and 1 change the same words of x/src/row.rs");
        let why = read(&files, names.iter()).unwrap_err();
        assert_eq!(why, "these patches do not apply to the tree as it is:\n  4: y: f is no item");
    }
}
