//! Corpora of bytes and of tokens, their batches and their windows.
use super::*;
use crate::tokenizer::tests as tokenizer;
use std::collections::BTreeSet;

fn ids(n: usize) -> Vec<u8> {
    (0..n).map(|at| at as u8).collect()
}

/// Tokenizer of this JSON, read from a file that is then deleted.
fn read(value: &serde_json::Value) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), value.to_string()).unwrap();
    Tokenizer::read(&folder.path().join("a")).unwrap()
}

/// Kills: held-out bytes used in training, bytes that are in neither part.
#[test]
fn the_last_tenth_is_held_out() {
    for (n, cut) in [(20, 18), (29, 27), (30, 27), (256, 231)] {
        let corpus = Corpus::new(&ids(n), "a", 1).unwrap();
        assert_eq!((corpus.train.len(), corpus.held_out[0]), (cut, cut as u32));
        assert_eq!(corpus.held_out_bytes, n - cut - 1);
        let whole: Vec<u32> = (0..n as u32).collect();
        assert_eq!([corpus.train, corpus.held_out].concat(), whole);
    }
}

#[test]
fn what_is_no_corpus_is_said_in_one_sentence() {
    let why = |n: usize, seq: usize| Corpus::new(&ids(n), "a.txt", seq).unwrap_err().to_string();
    assert_eq!(why(0, 4), "a.txt is empty (0 bytes)");
    assert_eq!(why(9, 0), "the sequence length is 0; it must be at least 1 token");
    let short = "a.txt has 649 bytes, and its last tenth is held out; that tenth has 64 tokens, but \
                 sequences of 64 need at least 65";
    assert_eq!(why(649, 64), short);
    assert!(Corpus::new(&ids(650), "a.txt", 64).is_ok());
    assert!(why(9, usize::MAX).ends_with(&format!("need at least {}", usize::MAX)));

    let folder = tempfile::tempdir().unwrap();
    let why = |name: &str| {
        let why = Corpus::read(&folder.path().join(name), 4, &Tokenizer::bytes()).unwrap_err().to_string();
        why.replace(folder.path().to_str().unwrap(), "")
    };
    std::fs::write(folder.path().join("a"), ids(50)).unwrap();
    std::fs::write(folder.path().join("short"), ids(49)).unwrap();
    std::fs::write(folder.path().join("empty"), "").unwrap();
    let corpus = Corpus::read(&folder.path().join("a"), 4, &Tokenizer::bytes()).unwrap();
    assert_eq!(corpus, Corpus::new(&ids(50), "", 4).unwrap());
    assert_eq!(why("none"), "/none: there is no such file");
    assert_eq!(why("."), "/. is a directory where a file should be");
    assert_eq!(why("empty"), "/empty is empty (0 bytes)");
    assert!(why("short").starts_with("/short has 49 bytes, and its last tenth is held out"));
}

/// Kills: a split inside a character, a split after tokenization, a first token counted among the predicted
/// bytes.
#[test]
fn a_text_is_cut_before_it_becomes_tokens() {
    let merges = read(&tokenizer::merges());
    // 118 bytes; the eleventh byte from the end is inside 🦀
    let text = "the other the é".repeat(6) + "the crab🦀 other the";
    let corpus = Corpus::tokenized(text.as_bytes(), "a", 2, &merges).unwrap();
    assert_eq!((&corpus.held_out[..], corpus.held_out_bytes), (&[32, 111, 257, 114, 258][..], 9));
    assert_eq!(corpus.train, merges.encode(&text[..108]).unwrap().ids);
    let bytes = Corpus::new(text.as_bytes(), "a", 2).unwrap();
    assert_eq!((bytes.held_out.len(), bytes.held_out_bytes), (11, 10));
    assert!(corpus.fits(259).is_ok() && bytes.fits(241).is_ok());
    let why = corpus.fits(258).unwrap_err().to_string();
    assert_eq!(why, "the text has token id 258; ids must be below the model's vocab_size of 258");
}

#[test]
fn what_is_no_text_of_tokens_is_said_in_one_sentence() {
    let merges = read(&tokenizer::merges());
    let why = |bytes: &[u8]| Corpus::tokenized(bytes, "a", 3, &merges).unwrap_err().to_string();
    let short = |bytes: usize, part: &str, tokens: usize| {
        let held_out = format!("a has {bytes} bytes, and its last tenth is held out");
        let tokens = layers::counted(tokens, "token");
        format!("{held_out}; {part} has {tokens}, but sequences of 3 need at least 4")
    };
    assert_eq!(why(" the".repeat(20).as_bytes()), short(80, "that tenth", 2));
    let one_word = "x".repeat(117) + "to be or not ";
    let why_words = Corpus::tokenized(one_word.as_bytes(), "a", 3, &read(&tokenizer::words())).unwrap_err();
    assert_eq!(why_words.to_string(), short(130, "the rest", 1));
    let no_text = |at: usize, byte: &str| {
        let reads = "a tokenizer.json reads UTF-8 text only";
        format!("a is not valid UTF-8 (at byte {at}: {byte}); {reads}")
    };
    assert_eq!(why(&[b"the ".repeat(9), vec![0xff], b"the ".repeat(9)].concat()), no_text(36, "0xff"));
    assert_eq!(why(&[b"the ".repeat(19), vec![0xc3, b'a', b'a', b'a']].concat()), no_text(76, "0xc3"));
    assert_eq!(why(&[0x80; 40]), no_text(0, "0x80"));
}

/// Kills: targets equal to the ids, targets two positions ahead, a start beyond the text, a first or last
/// start never drawn.
#[test]
fn batches_are_pieces_of_the_text_from_its_beginning_to_its_end() {
    let corpus = Corpus::new(&ids(60), "a", 3).unwrap();
    let mut starts = BTreeSet::new();
    for step in 0..200 {
        for (ids, targets) in corpus.batch(1, step, 4, 3) {
            assert_eq!((ids.len(), targets.len()), (3, 3));
            assert_eq!(ids, corpus.train[ids[0] as usize..][..3]);
            assert_eq!(targets, corpus.train[ids[0] as usize + 1..][..3]);
            starts.insert(ids[0]);
        }
    }
    assert_eq!(starts, (0..=50).collect()); // 51 + 3 = 54 bytes of training text
    assert_eq!(corpus.batch(1, 0, 1, 53)[0].1[52], 53); // the longest possible sequence
}

/// Kills: a draw that depends on earlier draws or on the batch size, a draw that depends on nothing.
#[test]
fn a_sequence_is_the_same_in_whatever_batch_it_comes() {
    let corpus = Corpus::new(&ids(250).repeat(9), "a", 8).unwrap();
    let all = corpus.batch(5, 0, 64, 8);
    for size in [1, 2, 4, 16] {
        let cut: Vec<_> = (0..64 / size).flat_map(|step| corpus.batch(5, step, size, 8)).collect();
        assert_eq!(cut, all, "{size}");
    }
    assert_ne!(corpus.batch(6, 0, 64, 8), all);
    assert!(all.iter().collect::<BTreeSet<_>>().len() > 50);
    let starts: Vec<u32> = all[..6].iter().map(|(ids, _)| ids[0]).collect();
    assert_eq!(starts, [226, 26, 35, 68, 52, 18]); // fixed: these draws must never change
}

/// Kills: a token predicted twice or never, a short last window left out.
#[test]
fn windows_predict_every_token_once_but_the_first() {
    for n in 0..20 {
        let text: Vec<u32> = (0..n).collect();
        for seq in 1..25 {
            let windows = windows(&text, seq);
            let targets: Vec<u32> = windows.iter().flat_map(|(_, targets)| targets.clone()).collect();
            assert_eq!(targets, (1..n).collect::<Vec<_>>());
            for (at, (ids, targets)) in windows.iter().enumerate() {
                assert_eq!((ids[0] as usize, ids.len()), (at * seq, targets.len()));
                assert!(ids.len() == seq || at + 1 == windows.len());
                assert!(ids.iter().zip(targets).all(|(id, target)| id + 1 == *target));
            }
        }
    }
}

/// Two plain texts and a file of documents. Kills: a file of which nothing is held out, an end within a
/// text, at its border or beside an empty document, an end counted as a byte, bytes lost where a document is
/// split.
#[test]
fn files_are_joined_in_order_and_each_is_judged() {
    let documents = |documents: &[&'static str]| TextFile {
        name: "a".into(),
        documents: documents.iter().map(|text| text.as_bytes().into()).collect(),
    };
    let tokenizer = Tokenizer::bytes();
    let files = [
        documents(&["aaaaaaaaaA"]),
        documents(&["bbbb", "", "ccccc", "dddddddeeDD"]),
        documents(&["fffffffffF"]),
    ];
    let corpus = Corpus::joined(&files, (2, Some(0)), &tokenizer).unwrap();
    let text = |ids: &[u32]| ids.iter().map(|id| *id as u8 as char).collect::<String>();
    assert_eq!(text(&corpus.train), "aaaaaaaaa\0bbbb\0ccccc\0dddddddee\0fffffffff");
    assert_eq!((&*text(&corpus.held_out), corpus.held_out_bytes), ("A\0DD\0F", 3));
    let plain = Corpus::joined(&files, (2, None), &tokenizer).unwrap();
    assert_eq!((&*text(&plain.held_out), plain.held_out_bytes), ("ADDF", 3));
    let one = Corpus::joined(&files[2..], (0, Some(0)), &tokenizer).unwrap_err().to_string();
    assert_eq!(one, "the sequence length is 0; it must be at least 1 token");
    let why = Corpus::joined(&files, (6, Some(0)), &tokenizer).unwrap_err().to_string();
    let wanted = "the text of 3 files has 40 bytes, and the last tenth of each file is held out; that tenth has 6 \
                  tokens, but sequences of 6 need at least 7";
    assert_eq!(why, wanted);
}

/// Kills: a name in other letters whose braces are learned, a line number that counts from 0 or leaves out
/// blank lines, another field than the one asked for, an error without the fields seen, a newline in place of
/// a token or both.
#[test]
fn documents_are_fields_of_lines() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str, field: Option<&str>, newline: bool| {
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, text).unwrap();
        let read = documents::read(&[path], field, newline).map(|mut files| {
            let documents = files.remove(0).documents;
            documents.iter().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect::<Vec<_>>()
        });
        read.map_err(|why| why.to_string().replace(&format!("{}/", folder.path().display()), ""))
    };
    let two = "{\"text\": \"a\\nb\", \"body\": \"c\"}\n \n{\"body\": \"d\", \"text\": \"e\"}";
    assert_eq!(read(two, None, false).unwrap(), ["a\nb", "e"]);
    assert_eq!(read(two, Some("body"), true).unwrap(), ["c\n", "d\n"]);
    for (line, why) in [
        ("{\"text\": 3}", ": the field \"text\" is 3; it must be a string"),
        (
            "{\"a\": 1, \"b\": 2}",
            " has no field \"text\"; its fields are \"a\", \"b\": choose one with --data-field",
        ),
        ("{}", " has no field \"text\"; its fields are none: choose one with --data-field"),
        ("[1]", " is [1]; it must be a JSON object"),
        ("{\"text\": \"a\"", " is not JSON: EOF while parsing an object at column 12"),
    ] {
        assert_eq!(
            read(&format!("{two}\n{line}"), None, false).unwrap_err(),
            format!("a.jsonl, line 4{why}")
        );
    }
    assert_eq!(read("", None, false).unwrap_err(), "a.jsonl is empty (0 bytes)");
    for name in ["b.JSONL", "b.ndjson", "b.Json"] {
        let path = folder.path().join(name);
        std::fs::write(&path, two).unwrap();
        assert_eq!(
            documents::read(&[path], None, false).unwrap()[0].documents,
            [&b"a\nb"[..], b"e"],
            "{name}"
        );
    }
    let why = documents::read(&["a.txt".into()], Some("body"), false).unwrap_err().to_string();
    assert_eq!(
        why,
        "--data-field is \"body\", but no file of --data ends in .jsonl, .ndjson or .json; leave it out"
    );
}
