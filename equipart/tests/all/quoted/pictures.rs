//! Pictures of the book are what their commands draw. An image of the folder `pictures` is followed by the
//! command, in a line of its own, which ends with the image's name:
//!
//! ```text
//! ![words](pictures/zero.svg)
//!
//! *`equipart draw memory --layout dp=4 --svg zero.svg`*
//! ```
//! `EQUIPART_REWRITE=1` draws them anew.
use super::{pages, printed};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/pictures");

/// Kills: a picture of another program than this one, a picture without its command, one that no page shows.
#[test]
fn pictures_are_what_their_commands_draw() {
    let folder = tempfile::tempdir().unwrap();
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for part in page.split("pictures/").skip(1) {
            let (name, rest) = part.split_once(')').unwrap();
            let command = rest.trim_start().lines().next().unwrap_or_default();
            let command = command.strip_prefix("*`").and_then(|line| line.strip_suffix("`*"));
            let command = command.filter(|line| line.ends_with(&format!(" --svg {name}")));
            let Some(command) = command else {
                wrong.push(format!("{}: {name} is not followed by its command", path.display()));
                continue;
            };
            if seen.insert(name.to_owned()) {
                let said = printed(command, folder.path());
                let drawn = fs::read_to_string(folder.path().join(name));
                let drawn = drawn.unwrap_or_else(|_| panic!("{command}: {said:?}"));
                let file = Path::new(FOLDER).join(name);
                if crate::rewrites::rewrites() {
                    fs::create_dir_all(FOLDER).unwrap();
                    fs::write(&file, drawn).unwrap();
                } else if fs::read_to_string(&file).ok() != Some(drawn) {
                    wrong.push(format!("{name} is not what `{command}` draws"));
                }
            }
        }
    }
    let files = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    wrong.extend(files.filter(|name| !seen.contains(name)).map(|name| format!("no page shows {name}")));
    assert!(seen.len() > 20 && wrong.is_empty(), "{wrong:#?}");
}
