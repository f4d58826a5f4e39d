//! One file, or several with an index: what is found where, and what contradicts itself.
use super::*;
use crate::dtype::Dtype;
use crate::mix;
use crate::safetensors::writer::Writer;
use std::fs;
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";

/// Writes a file of matrices `[1, 2]`, each with this number twice.
fn write(folder: &TempDir, file: &str, tensors: &[(&str, f32)]) {
    let announced: Vec<_> = tensors.iter().map(|(name, _)| (*name, Dtype::F32, vec![1, 2])).collect();
    let mut writer = Writer::create(&folder.path().join(file), &BTreeMap::new(), &announced).unwrap();
    for (name, x) in tensors {
        writer.tensor(name, &[*x; 2]).unwrap();
    }
    writer.finish().unwrap();
}
const MAP: &str = r#"{"metadata":{"total_size":24},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"}}"#;

/// Three tensors in two files, and this index.
fn folder(index: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "1.safetensors", &[("a", 1.0)]);
    write(&folder, "2.safetensors", &[("b", 2.0), ("c", 1.0)]);
    fs::write(folder.path().join(INDEX), index).unwrap();
    folder
}
fn why(folder: &TempDir) -> String {
    let why = File::open_folder(folder.path()).err().unwrap().to_string();
    why.replace(&format!("{}", folder.path().display()), "DIR")
}

/// Kills: tensors by name where they should come as they lie, a row that is read as another kind of number.
#[test]
fn tensors_come_as_they_lie_and_as_one_row() {
    let folder = folder(MAP);
    write(&folder, WHOLE, &[("b", 7.0), ("c", 8.0), ("a", 9.0)]);
    let whole = File::open_folder(folder.path()).unwrap();
    assert_eq!(
        (whole.in_order(), whole.names().collect::<Vec<_>>()),
        (vec!["b", "c", "a"], vec!["a", "b", "c"])
    );
    let row = whole.flat("a").unwrap();
    assert_eq!((row.rows(), row.cols(), row.get(0, 1), whole.flat("d").is_none()), (1, 2, 9.0, true));
    let (dtype, shape, bytes) = whole.whole("a").unwrap();
    assert_eq!((dtype, shape, bytes), (Dtype::F32, &[1, 2][..], &[0, 0, 0x10, 0x41, 0, 0, 0x10, 0x41][..]));
    let counts = [("n", Dtype::U64, vec![1])];
    let mut writer = Writer::create(&folder.path().join(WHOLE), &BTreeMap::new(), &counts).unwrap();
    writer.tensor("n", &[1u64]).unwrap();
    writer.finish().unwrap();
    assert!(File::open_folder(folder.path()).unwrap().flat("n").is_none());
}

/// Kills: a tensor looked for in the first file only, an index preferred to the whole file.
#[test]
fn tensors_are_read_from_the_file_that_has_them() {
    let folder = folder(MAP);
    let shards = File::open_folder(folder.path()).unwrap();
    assert_eq!(shards.path(), folder.path().join(INDEX).display().to_string());
    assert_eq!(shards.names().collect::<String>(), "abc");
    let at = |name: &str| shards.matrix(name, [1, 2]).unwrap().get(0, 1);
    assert_eq!((at("a"), at("b"), at("c")), (1.0, 2.0, 1.0));
    assert_eq!(shards.info("c").unwrap().shape, [1, 2]);
    assert!(shards.info("d").is_none() && shards.metadata().is_empty());
    assert!(
        shards.equal("a", "c")
            && !shards.equal("a", "b")
            && !shards.equal("a", "d")
            && !shards.equal("d", "d")
    );
    let said = shards.matrix("d", [1, 2]).err().unwrap().to_string();
    assert_eq!(
        said,
        format!("{}: there is no tensor \"d\" among the 3 of the file (a, b, c)", shards.path())
    );
    let said = shards.matrix("b", [2, 1]).err().unwrap().to_string();
    assert!(said.ends_with("2.safetensors: tensor \"b\" has shape [1, 2], wanted [2, 1]"), "{said}");

    write(&folder, WHOLE, &[("b", 7.0)]);
    let whole = File::open_folder(folder.path()).unwrap();
    assert_eq!(
        (whole.names().collect::<String>(), whole.matrix("b", [1, 2]).unwrap().get(0, 0)),
        ("b".into(), 7.0)
    );
}

#[test]
fn an_index_and_files_that_contradict_each_other_are_refused() {
    let map = |entries: &str| format!("{{\"weight_map\":{{{entries}}}}}");
    let all = r#""a":"1.safetensors","b":"2.safetensors","c":"2.safetensors""#;
    for (index, wanted) in [
        (
            map(&all.replace("1.", "3.")),
            r#"the index puts tensor "a" in "3.safetensors", but there is no such file"#,
        ),
        (
            map(&all.replace("c\":\"2", "c\":\"1")),
            r#"the index puts tensor "c" in "1.safetensors", which has no such tensor"#,
        ),
        (
            map(&format!("{all},\"d\":\"1.safetensors\"")),
            r#"the index puts tensor "d" in "1.safetensors", which has no such tensor"#,
        ),
        (
            map(r#""a":"1.safetensors","b":"2.safetensors""#),
            r#"tensor "c" is in "2.safetensors", but not in the index"#,
        ),
        (map(&format!("{all},\"\\u0061\":\"1.safetensors\"")), r#"tensor "a" appears twice, wanted once"#),
    ] {
        assert_eq!(why(&folder(&index)), format!("DIR/{INDEX}: {wanted}"));
    }
    for file in
        ["", ".", "..", "/1.safetensors", "../1.safetensors", "x/1.safetensors", "x\\\\1", "C:1", "\\u0000"]
    {
        let seen: String = serde_json::from_str(&format!("\"{file}\"")).unwrap();
        let wanted =
            format!("the index puts tensor \"a\" in {seen:?}, wanted the name of a file in the same folder");
        assert_eq!(why(&folder(&map(&format!("\"a\":\"{file}\"")))), format!("DIR/{INDEX}: {wanted}"));
    }
    let endless = why(&folder(&map(&format!("\"a\":\"{}\"", "x".repeat(5000)))));
    assert!(endless.contains("xxx\"…, wanted the name of a file in the same folder") && endless.len() < 300);
    let twice = folder(MAP);
    write(&twice, "1.safetensors", &[("a", 1.0), ("b", 2.0)]);
    assert_eq!(
        why(&twice),
        format!("DIR/{INDEX}: tensor \"b\" is in \"1.safetensors\" and in \"2.safetensors\", wanted once")
    );
    fs::write(twice.path().join("1.safetensors"), "short").unwrap();
    assert!(why(&twice).starts_with("DIR/1.safetensors: the file has 5 bytes, wanted at least 8"));
}

#[test]
fn an_index_that_is_none_is_said_in_one_sentence() {
    for (index, wanted) in [
        ("[]", "invalid length 0, expected an object with a weight_map"),
        ("{}", "missing field `weight_map`"),
        ("{", "EOF while parsing an object"),
        (r#"{"weight_map":3}"#, "invalid type: integer `3`, expected an object of strings by key"),
        (r#"{"weight_map":{"a":3}}"#, "invalid type: integer `3`, expected a string"),
        (r#"{"weight_map":{},"weight_map":{}}"#, "duplicate field `weight_map`"),
    ] {
        let (seen, start) = (why(&folder(index)), "the index is not the JSON of a list of tensors by file: ");
        assert!(seen.starts_with(&format!("DIR/{INDEX}: {start}{wanted}")), "{seen}");
    }
    assert_eq!(why(&folder("")), format!("DIR/{INDEX} is empty (0 bytes)"));
}

#[test]
fn a_folder_without_safetensors_says_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(why(&folder), format!("DIR/{WHOLE}: there is no such file"));
    for name in PICKLED.iter().rev() {
        fs::write(folder.path().join(name), "x").unwrap();
        let wanted = "wanted model.safetensors, as save_pretrained of transformers writes it";
        assert_eq!(why(&folder), format!("DIR: the weights are in {name}, {wanted}"));
    }
    write(&folder, WHOLE, &[("a", 1.0)]);
    assert!(File::open_folder(folder.path()).is_ok());
}

/// Kills: whatever panics when a byte of an index is lost or changed, and an index that is taken for what it
/// is not.
#[test]
fn broken_indices_do_no_harm() {
    let folder = folder(MAP);
    let path = folder.path().join(INDEX);
    let mut opened = 0;
    for (at, change) in (0..MAP.len()).flat_map(|at| (0..8).map(move |bit| (at, 1u8 << bit))) {
        let mut index = MAP.as_bytes().to_vec();
        index[at] ^= change;
        fs::write(&path, &index).unwrap();
        if let Ok(shards) = File::open_folder(folder.path()) {
            assert_eq!(shards.names().collect::<String>(), "abc");
            opened += 1;
        }
    }
    assert!((50..500).contains(&opened), "{opened}"); // what is beside the map does not matter
    for len in 0..MAP.len() {
        fs::write(&path, &MAP[..len]).unwrap();
        assert!(File::open_folder(folder.path()).is_err());
    }
    for i in 0..500u64 {
        let noise: Vec<u8> = (0..i).map(|j| mix(i << 32 | j) as u8).collect();
        fs::write(&path, noise).unwrap();
        assert!(File::open_folder(folder.path()).is_err());
    }
}
