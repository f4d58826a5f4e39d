//! Floors inside a crate. Its `lib.rs` declares the modules from the ground up: a blank line begins a floor,
//! and a comment says what the floor is. A module, with the files below it, may name its own floor and those
//! below, and no two modules name each other in a circle. The map of the book lists the floors.

use std::fs;

use crate::circles::{Arrows, arrows, circles, declared_in_lib};
use crate::rewrites::rewrites;
use crate::tree::{File, files, none, root};

/// The crates, from the ground up.
pub(crate) const CRATES: &[&str] = &[
    "tensor",
    "shape",
    "kernels",
    "algorithms",
    "comm",
    "cuda",
    "reference",
    "ops",
    "layers",
    "moe",
    "parallel",
    "models",
    "plan",
    "prove",
    "bench",
    "run",
    "draw",
    "equipart",
    "xtask",
];

/// Lines of the map between which the floors are listed.
const MARKS: [&str; 2] = ["<!-- floors -->\n", "<!-- end of floors -->\n"];

/// A floor: its comment, and its modules.
#[derive(Debug, Default, PartialEq)]
struct Floor {
    says: String,
    modules: Vec<String>,
}

/// Reads the floors from the text of a `lib.rs`; modules of tests are on none.
fn floors(lib: &str) -> Vec<Floor> {
    let (mut floors, mut floor, mut is_test) = (Vec::new(), Floor::default(), false);
    for line in lib.lines().chain([""]) {
        let module = line.strip_suffix(';').and_then(|line| line.split("mod ").nth(1));
        match module {
            Some(_) if is_test => {}
            Some(name) => floor.modules.push(name.to_owned()),
            None if line.starts_with("// ") => floor.says += &line[2..],
            None if line.is_empty() && floor.modules.is_empty() => floor = Floor::default(),
            None if line.is_empty() => floors.push(std::mem::take(&mut floor)),
            None => {}
        }
        let is_only = !line.contains("feature") && !line.contains("not(test)");
        is_test =
            line.starts_with("#[cfg(") && line.contains("test") && is_only || is_test && module.is_none();
    }
    floors
}

/// The file that declares a crate's modules.
fn lib<'a>(krate: &str, files: &'a [File]) -> &'a File {
    let named = |name: &str| files.iter().find(|file| file.path == format!("{krate}/src/{name}.rs"));
    named("lib").or_else(|| named("main")).unwrap_or_else(|| panic!("{krate} has neither lib.rs nor main.rs"))
}

/// The module of a crate that a file lies in.
fn module(file: &str) -> &str {
    file.split('/').next().unwrap_or(file)
}

/// Lists the names that files take from higher floors or from `lib.rs`, circles of modules, and modules or
/// floors that are not declared as such.
fn wrong_floors(krate: &str, files: &[File]) -> Vec<String> {
    let floors = floors(&lib(krate, files).text);
    let floor_of = |module: &str| floors.iter().position(|floor| floor.modules.iter().any(|m| m == module));
    let arrows = arrows(krate, files, false);
    let mut wrong = Vec::new();
    for floor in floors.iter().filter(|floor| floor.says.is_empty()) {
        wrong.push(format!("{krate}: the floor of {} has no comment", floor.modules.join(", ")));
    }
    let mut rooms = Arrows::new();
    for (file, named) in &arrows {
        let from = module(file);
        if floor_of(from).is_none() {
            wrong.push(format!("{krate}/src/{file}.rs: on no floor of lib.rs"));
        }
        let room = rooms.entry(from.to_owned()).or_default();
        for to in named {
            room.insert(module(to).to_owned());
            if floor_of(module(to)) > floor_of(from) {
                wrong.push(format!("{krate}/src/{file}.rs names {to}, of a higher floor"));
            }
        }
        room.remove(from);
    }
    let named = declared_in_lib(krate, files);
    wrong.extend(
        named.iter().map(|(file, name)| format!("{krate}/src/{file}.rs names `{name}`, declared in lib.rs")),
    );
    let in_circle = circles(&rooms).into_iter().filter(|circle| circle.len() > 1);
    wrong.extend(in_circle.map(|circle| format!("{krate}: modules in a circle: {}", circle.join(" "))));
    wrong
}

/// The part of the map that lists the floors of every crate, from the ground up.
fn map(files: &[File]) -> String {
    let line = |(n, Floor { says, modules }): (usize, &Floor)| {
        format!("{}. {}: `{}`\n", n + 1, says.trim().trim_end_matches('.'), modules.join("`, `"))
    };
    let of_crate = |krate: &&str| {
        let lines: String = floors(&lib(krate, files).text).iter().enumerate().map(line).collect();
        format!("\n### `{krate}`\n\n{lines}")
    };
    CRATES.iter().map(of_crate).collect()
}

#[test]
fn a_file_names_its_own_floor_and_those_below() {
    let files = files();
    none(&CRATES.iter().flat_map(|krate| wrong_floors(krate, &files)).collect::<Vec<_>>());
}

/// Kills: a floor that the book does not know.
#[test]
fn the_map_lists_every_floor() {
    let (path, files) = (root().join("docs/src/map.md"), files());
    let text = fs::read_to_string(&path).expect("the map");
    let (before, rest) = text.split_once(MARKS[0]).expect("the mark of the floors");
    let (_, after) = rest.split_once(MARKS[1]).expect("the mark of their end");
    let wanted = [before, MARKS[0], &map(&files), "\n", MARKS[1], after].concat();
    if rewrites() {
        fs::write(&path, wanted).expect("the map can be written");
    } else {
        assert!(text == wanted, "docs/src/map.md lists other floors: EQUIPART_REWRITE=1 cargo test -p docs");
    }
}

#[test]
fn a_planted_stair_is_seen() {
    let lib = "//! X.\nuse far::Z;\n\n// Ground\n// floor.\nmod a;\n#[cfg(unix)]\npub mod b;\n\nmod c;\n\n\
               #[cfg(test)]\n#[path = \"tests/d.rs\"]\nmod d;\n\npub use c::C;\npub struct L;";
    let file = |name: &str, text: &str| File::new(&format!("x/src/{name}.rs"), text);
    let says =
        |floors: &[Floor]| floors.iter().map(|f| (f.says.clone(), f.modules.join(" "))).collect::<Vec<_>>();
    assert_eq!(says(&floors(lib)), [(" Ground floor.".into(), "a b".into()), (String::new(), "c".into())]);
    let wrong = wrong_floors(
        "x",
        &[
            file("lib", lib),
            file("a", "use crate::b::B;\nuse crate::C;\npub struct A;"),
            file("b", "mod e;\npub struct B;"),
            file("b/e", "use crate::{a::A, L};\n#[cfg(test)]\nmod tests { use crate::C; }"),
            file("c", "use crate::a::A;\npub struct C;"),
            file("f", "use super::a::A;"),
            file("tests/d", "use crate::C;"),
        ],
    );
    assert_eq!(
        wrong,
        [
            "x: the floor of c has no comment",
            "x/src/a.rs names c, of a higher floor",
            "x/src/f.rs: on no floor of lib.rs",
            "x/src/f.rs names a, of a higher floor",
            "x/src/b/e.rs names `L`, declared in lib.rs",
            "x: modules in a circle: a b c",
        ]
    );
}
