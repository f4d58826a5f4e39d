//! Files, opened and refused; tensors taken from them.
use super::*;
use crate::dtype::Dtype;
use crate::safetensors::adversary::assemble;
use crate::safetensors::writer::Writer;

fn why<T>(result: Result<T, Error>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn a_matrix_is_given_only_as_what_it_is() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "v":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}, "n":{"dtype":"U64","shape":[],"data_offsets":[12,20]},
        "a":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}, "b":{"dtype":"F32","shape":[1,1,1],"data_offsets":[20,24]},
        "z":{"dtype":"F32","shape":[1,1],"data_offsets":[24,28]}}"#;
    let mut data = vec![0; 28];
    data[12] = 7;
    let file = File::from_memory(assemble(header, &data)).unwrap();
    assert_eq!(file.names().collect::<String>(), "abnvz");
    assert_eq!(file.metadata()["format"], "pt");
    assert_eq!(
        (file.info("v").unwrap().shape.as_slice(), file.info("n").unwrap().dtype),
        (&[3][..], Dtype::U64)
    );
    assert!(file.info("w").is_none());
    assert!(file.matrix("v", [1, 3]).is_ok() && file.matrix("a", [0, 4]).is_ok());
    assert_eq!(file.values::<u64>("n", &[]).unwrap(), [7]);
    assert_eq!(file.values::<f32>("v", &[3]).unwrap(), [0.0; 3]);
    assert_eq!(why(file.matrix("v", [3, 1])), r#"memory: tensor "v" has shape [3], wanted [3, 1]"#);
    assert_eq!(why(file.matrix("b", [1, 1])), r#"memory: tensor "b" has shape [1, 1, 1], wanted [1, 1]"#);
    assert_eq!(why(file.matrix("z", [2, 1])), r#"memory: tensor "z" has shape [1, 1], wanted [2, 1]"#);
    assert_eq!(why(file.values::<f64>("v", &[3])), r#"memory: tensor "v" has dtype F32, wanted F64"#);
    assert_eq!(why(file.values::<f64>("n", &[])), r#"memory: tensor "n" has dtype U64, wanted F64"#);
    assert_eq!(why(file.values::<f32>("v", &[1, 3])), r#"memory: tensor "v" has shape [3], wanted [1, 3]"#);
    assert_eq!(
        why(file.matrix("w", [1, 3])),
        r#"memory: there is no tensor "w" among the 5 of the file (a, b, n, v, …)"#
    );
    let header = r#"{"n":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}}"#;
    let file = File::from_memory(assemble(header, &[0; 8])).unwrap();
    assert_eq!(
        why(file.matrix("n", [1, 1])),
        r#"memory: tensor "n" has dtype U64, wanted F64, F32, F16 or BF16"#
    );
}

/// Kills: a name, a shape or a word of a header that is told raw or whole.
#[test]
fn what_a_header_says_is_told_in_short_and_on_one_line() {
    let name = format!("\\u001b[31m\\n{}", "w".repeat(100_000));
    let dims = vec!["1"; 100_000].join(",");
    for (dtype, shape, more) in
        [("F32", dims.as_str(), ""), ("F32", "2", ""), (name.as_str(), "1", ""), ("F32", "1", name.as_str())]
    {
        let offsets = if more.is_empty() { "data_offsets" } else { more };
        let header = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":[{shape}],"{offsets}":[0,4]}}}}"#);
        let file = File::from_memory(assemble(&header, &[0; 4]));
        let reported = file.and_then(|file| file.matrix("x", [1, 1]).map(|_| ())).unwrap_err().to_string();
        assert!(
            reported.len() < 1000 && !reported.contains(['\u{1b}', '\n']),
            "{}",
            &reported[..reported.len().min(2000)]
        );
    }
}

#[test]
fn files_say_their_path_and_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    static EMPTY: &[u8] = b"\x08\0\0\0\0\0\0\0{}      ";
    shared(&File::from_static(EMPTY, "built in").unwrap());
    assert_eq!(
        why(File::from_static(&EMPTY[..9], "built in")),
        "built in: the header's length is 8 bytes, but only 1 follow in the file"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let displayed = path.display();
    assert_eq!(why(File::open(&path)), format!("{displayed}: there is no such file"));
    files::replace_file(&path, &EMPTY[..7]).unwrap();
    assert_eq!(
        why(File::open(&path)),
        format!("{displayed}: the file has 7 bytes, wanted at least 8 for the length of its header")
    );
    assert!(why(File::open(folder.path())).ends_with(" is a directory where a file should be"));
}

/// Kills: writing into the old file's bytes, which others have mapped.
#[test]
fn a_mapped_file_stays_as_it_was_when_another_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let write = |x: f32| {
        let mut writer = Writer::create(&path, &BTreeMap::new(), &[("x", Dtype::F32, vec![2, 2])]).unwrap();
        writer.tensor("x", &[x; 4]).unwrap();
        writer.finish().unwrap();
        File::open(&path).unwrap()
    };
    let (old, new) = (write(1.0), write(2.0));
    let at = |file: &File| file.matrix("x", [2, 2]).unwrap().get(1, 1);
    assert_eq!((at(&old), at(&new)), (1.0, 2.0));
}

/// Kills: a file that is read into memory, a check that looks at the data, a row that reads its neighbours.
#[test]
#[cfg(target_os = "linux")]
fn a_share_of_a_large_file_touches_only_its_pages() {
    const ROWS: usize = 1 << 18; // of 4 KiB: a file of 1 GiB, all holes, which takes no place on the disk
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let data = ROWS * 4096;
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":[{ROWS},1024],"data_offsets":[0,{data}]}}}}"#);
    let header = assemble(&header, &[]);
    std::fs::write(&path, &header).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((header.len() + data) as u64).unwrap();

    let file = File::open(&path).unwrap();
    let w = file.matrix("w", [ROWS, 1024]).unwrap();
    let mut share = [1.0; 256];
    for row in ROWS / 2..ROWS / 2 + 16 {
        w.row(row, 512, &mut share);
        assert!(share.iter().all(|x| *x == 0.0));
    }
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    let mut ours = maps.lines().skip_while(|line| !line.ends_with("/large.safetensors"));
    let resident = ours.find_map(|line| line.strip_prefix("Rss:")).expect("the file is mapped");
    let kib: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!((4..16 << 10).contains(&kib), "{kib} KiB of {} are resident", data >> 10);
}
