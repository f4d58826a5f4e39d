//! Kinds of files that lie in the place of another: pointers, pages and compressed files, known by their
//! first bytes.
use super::Error;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// Number of bytes that tell the kind.
const FIRST: u64 = 64;

/// Returns the program that compressed a file with these first bytes, if one did.
pub fn compression(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"PK\x03\x04", "zip"),
    ];
    KNOWN.iter().find_map(|(begin, name)| bytes.starts_with(begin).then_some(*name))
}

/// Refuses a pointer of Git LFS; and pages and marks in front of JSON or weights, by the name's end.
pub(super) fn check(path: &Path, file: &mut File) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let read = file.take(FIRST).read_to_end(&mut bytes).and_then(|_| file.rewind());
    read.map_err(Error::system("read", path))?;
    let end = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    match mistaken(&bytes, &end) {
        Some(what) => Err(Error::Mistaken { path: path.to_owned(), what }),
        None => Ok(()),
    }
}

fn mistaken(bytes: &[u8], end: &str) -> Option<&'static str> {
    let begins =
        |with: &str| bytes.get(..with.len()).is_some_and(|b| b.eq_ignore_ascii_case(with.as_bytes()));
    let is_json = ["json", "jsonl", "ndjson"].contains(&end);
    if begins("version https://git-lfs.github.com/spec/") {
        Some("a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`")
    } else if (is_json || end == "safetensors") && ["<!doctype html", "<html"].into_iter().any(begins) {
        Some("an HTML page, not the file itself; download the file again")
    } else if is_json && bytes.starts_with(b"\xef\xbb\xbf") {
        Some("JSON behind a byte order mark (the bytes EF BB BF); save it as UTF-8 without one")
    } else if is_json && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")) {
        Some("UTF-16; save it as UTF-8")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a kind that is not named, a text that is refused for what only JSON cannot be, a file that is
    /// read from behind its first bytes.
    #[test]
    fn files_in_the_place_of_others_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            crate::files::read(&path).map_err(|why| why.to_string())
        };
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
        for (name, bytes, says) in [
            ("a.safetensors", &pointer[..], "is a Git LFS pointer"),
            ("a.txt", pointer, "is a Git LFS pointer"),
            ("config.json", b"<!DOCTYPE html><html>", "is an HTML page"),
            ("a.safetensors", b"<html lang=\"en\">", "is an HTML page"),
            ("a.JSONL", b"\xef\xbb\xbf{}", "byte order mark"),
            ("a.json", b"\xff\xfe{\0", "is UTF-16"),
        ] {
            let why = read(name, bytes).unwrap_err();
            assert!(why.contains(name) && why.contains(says), "{why}");
        }
        for (name, bytes) in [("a.txt", &b"<html>"[..]), ("a.json", b"{}"), ("b.txt", b"\xef\xbb\xbfa")] {
            assert_eq!(read(name, bytes).unwrap(), bytes);
        }
        assert_eq!(compression(b"\x1f\x8b\x08"), Some("gzip"));
        assert_eq!(compression(b"BZ"), None);
    }
}
