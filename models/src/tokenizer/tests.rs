//! Exact ids of small tokenizers, and one error message for each invalid file.
use super::*;
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

fn special(id: u32, content: &str) -> Value {
    json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
}

/// Tokenizer of words, with a special token before each prompt and one after it.
pub(crate) fn words() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "<s>", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": "</s>", "type_id": 0 } },
            ],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
            "special_tokens": {
                "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] },
                "</s>": { "id": "</s>", "ids": [2], "tokens": ["</s>"] },
            },
        },
        "decoder": null,
        "model": {
            "type": "WordLevel", "unk_token": "<unk>",
            "vocab": { "<unk>": 0, "<s>": 1, "</s>": 2, "to": 3, "be": 4, "or": 5, "not": 6, "naïve": 7 },
        },
    })
}

/// Tokenizer of bytes with three merges; GPT-2's expression splits texts before merging.
pub(crate) fn merges() -> Value {
    let mut whole: Value = serde_json::from_str(&super::bytes::json()).unwrap();
    whole["pre_tokenizer"]["use_regex"] = json!(true);
    for (id, token) in [(256, "th"), (257, "the"), (258, "Ġthe")] {
        whole["model"]["vocab"][token] = json!(id);
    }
    whole["model"]["merges"] = json!(["t h", "th e", "Ġ the"]);
    whole["added_tokens"] = json!([special(259, "<|end|>")]);
    whole
}

fn read(value: &Value) -> Tokenizer {
    let (_folder, tokenizer) = put(value.to_string().as_bytes());
    tokenizer.unwrap()
}

fn put(text: &[u8]) -> (TempDir, Result<Tokenizer>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, text).unwrap();
    let tokenizer = Tokenizer::read(&path);
    (folder, tokenizer)
}

/// Error of reading a file, without its path.
fn why(text: &[u8]) -> String {
    let (folder, tokenizer) = put(text);
    let why =
        tokenizer.err().unwrap_or_else(|| panic!("{} is read", String::from_utf8_lossy(text))).to_string();
    assert!(!why.contains('\n') && why.len() < 700, "{why}");
    why.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn bytes_are_ids() {
    let bytes = Tokenizer::bytes();
    for text in ["", "to be", "naïve – 数 🦀\n\0"] {
        let ids = bytes.encode(text).unwrap().ids;
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(bytes.encode_prompt(text).unwrap(), ids);
        assert_eq!(bytes.decode(&ids).unwrap(), text);
    }
    assert_eq!(bytes.encode("é").unwrap(), Encoded { ids: vec![195, 169], first: 1 });
    assert_eq!(bytes.encode("").unwrap(), Encoded::default());
    let (_folder, ours) = put(super::bytes::json().as_bytes());
    assert!(ours.unwrap().is_of_bytes() && !read(&merges()).is_of_bytes());
}

/// Kills: special tokens in a training text, none in a prompt, any in decoded text.
#[test]
fn prompts_get_special_tokens_and_texts_get_none() {
    let words = read(&words());
    assert_eq!(words.encode_prompt("To be or\nNOT").unwrap(), [1, 3, 4, 5, 6, 2]);
    assert_eq!(words.encode("To be or\nNOT").unwrap(), Encoded { ids: vec![3, 4, 5, 6], first: 2 });
    assert_eq!(
        (words.encode_prompt("").unwrap(), words.encode("").unwrap()),
        (vec![1, 2], Encoded::default())
    );
    assert_eq!(words.encode("  naïve hamlet <s>").unwrap(), Encoded { ids: vec![7, 0, 1], first: 8 });
    assert_eq!(words.decode(&[1, 3, 4, 0, 5, 2]).unwrap(), "to be or");
}

/// Kills: merges out of order, an expression that splits elsewhere, characters torn apart in decoding.
#[test]
fn merged_bytes_have_the_ids_of_their_merges() {
    let merges = read(&merges());
    for (text, ids) in [
        ("the other the", vec![257, 32, 111, 257, 114, 258]),
        ("then  the\n\nthe", vec![257, 110, 32, 258, 10, 10, 257]),
        // here " it'the" is split into it, 't and he
        ("Thé🦀 it'the", vec![84, 104, 195, 169, 240, 159, 166, 128, 32, 105, 116, 39, 116, 104, 101]),
        ("a<|end|> the", vec![97, 259, 258]),
        ("", vec![]),
    ] {
        let encoded = merges.encode(text).unwrap();
        assert_eq!(encoded.ids, ids, "{text}");
        assert_eq!(merges.encode_prompt(text).unwrap(), ids, "{text}");
        assert_eq!(merges.decode(&ids).unwrap(), text.replace("<|end|>", ""));
    }
    assert_eq!(merges.encode(" the other").unwrap().first, 4);
    assert_eq!(merges.decode(&[195, 257]).unwrap(), "\u{FFFD}the");
}

/// Kills: a text truncated or padded as the file says, merges dropped at random.
#[test]
fn equal_texts_have_equal_ids_whatever_the_file_says() {
    let mut other = merges();
    other["truncation"] =
        json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
    other["padding"] = json!({ "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 7, "pad_type_id": 0, "pad_token": "x" });
    other["model"]["dropout"] = json!(0.9);
    let (other, plain) = (read(&other), read(&merges()));
    let text = "the other the then the ".repeat(20);
    assert_eq!(other.encode(&text).unwrap(), plain.encode(&text).unwrap());
    assert_eq!(other.encode_prompt("the").unwrap(), [257]);
}

#[test]
fn files_that_are_no_tokenizers_are_said_in_one_sentence() {
    let wanted = |rest: &str| format!("tokenizer.json is not a readable tokenizer: {rest}");
    assert_eq!(why(b""), "tokenizer.json is empty (0 bytes)");
    assert_eq!(why(b"{"), wanted("EOF while parsing an object at line 1 column 1"));
    assert_eq!(why(b"{}"), wanted("Model missing. at line 1 column 2"));
    assert_eq!(why(b"\xff\xfd"), wanted("expected value at line 1 column 1"));
    assert_eq!(why(b"\xff\xfe"), "tokenizer.json is UTF-16; save it as UTF-8");
    assert!(why("[".repeat(100_000).as_bytes()).starts_with(&wanted("invalid type: sequence")));
    let with = |part: &str, value: Value| {
        let mut whole = words();
        whole[part] = value;
        why(whole.to_string().as_bytes())
    };
    assert!(with("version", json!("2.0")).starts_with(&wanted("Unknown tokenizer version '2.0'")));
    for (part, value) in [
        ("model", json!({ "type": "Telepathy" })),
        ("model", json!([])),
        ("model", json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": ["a b"] })),
        ("model", json!({ "type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9 })),
        ("model", json!({ "type": "WordLevel", "unk_token": "<unk>", "vocab": { "a": -1 } })),
        ("model", json!({ "type": "WordLevel", "unk_token": "<unk>", "vocab": { "a": 5_000_000_000_u64 } })),
        (
            "pre_tokenizer",
            json!({ "type": "Split", "pattern": { "Regex": "(" }, "behavior": "Isolated", "invert": false }),
        ),
        ("added_tokens", json!([{ "id": "no number" }])),
        ("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "?" })),
        ("decoder", json!([1])),
    ] {
        let why = with(part, value.clone());
        assert!(why.starts_with(&wanted("")), "{part} {value}: {why}");
    }
    let panics = with("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "?" }));
    let hostile = with("version", json!(format!("\u{1b}[31m{}", "x".repeat(5000))));
    assert!(hostile.contains(r"\u{1b}[31mxx") && hostile.ends_with('…'), "{hostile}");
    assert_eq!(panics, wanted("the tokenizers library panicked on this input"));

    let folder = tempfile::tempdir().unwrap();
    let why = |path: &Path| Tokenizer::read(path).unwrap_err().to_string();
    let none = folder.path().join("none");
    assert_eq!(why(&none), format!("{}: there is no such file", none.display()));
    assert_eq!(
        why(folder.path()),
        format!("{} is a directory where a file should be", folder.path().display())
    );
}

#[test]
fn texts_without_tokens_are_said_in_one_sentence() {
    let mut whole = words();
    whole["model"]["unk_token"] = json!("?");
    let (folder, tokenizer) = put(whole.to_string().as_bytes());
    let why = tokenizer.unwrap().encode("to be hamlet").unwrap_err().to_string();
    let said = "tokenizer.json: the tokenizer cannot turn this text into ids: ";
    let why = why.replace(&format!("{}/", folder.path().display()), "");
    assert!(why.starts_with(said) && why.contains("Missing [UNK] token"), "{why}");
}

/// Kills: an unchecked id of the vocabulary, of an added token or of a special token around a prompt.
#[test]
fn ids_are_below_the_vocabulary() {
    let fits = |value: &Value, vocabulary: usize| {
        let (folder, tokenizer) = put(value.to_string().as_bytes());
        let fits = tokenizer.unwrap().fits(vocabulary).map_err(|why| why.to_string());
        fits.map_err(|why| why.replace(&format!("{}/", folder.path().display()), ""))
    };
    let says = |origin: &str, largest: u32, vocabulary: usize| {
        let must = format!("they must be below the model's vocab_size of {vocabulary}");
        Err(format!("{origin} has token ids up to {largest}; {must}"))
    };
    assert_eq!(fits(&words(), 8), Ok(()));
    assert_eq!(fits(&words(), 7), says("tokenizer.json", 7, 7));
    assert_eq!(fits(&merges(), 260), Ok(()));
    assert_eq!(fits(&merges(), 259), says("tokenizer.json", 259, 259));
    let mut around = words();
    around["post_processor"]["special_tokens"]["</s>"]["ids"] = json!([99]);
    assert_eq!((fits(&around, 99), fits(&around, 100)), (says("tokenizer.json", 99, 99), Ok(())));
    assert!(Tokenizer::bytes().fits(256).is_ok());
    let bytes = Tokenizer::bytes().fits(255).unwrap_err().to_string();
    assert_eq!(Err(bytes), says("text that is read as bytes", 255, 255) as std::result::Result<(), _>);
}

/// Copies tokenizers from one folder to another. Kills: a tokenizer that is not copied.
#[test]
fn tokenizers_go_along() {
    let instead = "has no tokenizer.json to read text with; give token ids (train and eval: --batch; generate: --prompt-ids)";
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let tokens = TokenizerSource::Folder(from.path().to_owned());
    assert!(!tokens.are_known() && tokens.write(to.path()).unwrap().is_empty());
    assert_eq!(tokens.read(300).unwrap_err().why, format!("{} {instead}", from.path().display()));
    assert_eq!(TokenizerSource::beside(&from.path().join("config.json")), None);

    for (name, text) in
        [("tokenizer.json", words().to_string()), ("merges.txt", "m".into()), ("notes.txt", "n".into())]
    {
        fs::write(from.path().join(name), text).unwrap();
    }
    assert_eq!(TokenizerSource::beside(&from.path().join("config.json")).unwrap(), tokens);
    assert_eq!(tokens.read(8).unwrap().encode("not").unwrap().ids, [6]);
    assert!(tokens.read(7).unwrap_err().why.ends_with("vocab_size of 7"));
    assert_eq!(tokens.write(to.path()).unwrap(), ["merges.txt", "tokenizer.json"]);
    assert_eq!(fs::read_to_string(to.path().join("tokenizer.json")).unwrap(), words().to_string());
    assert!(!to.path().join("notes.txt").exists());
    assert_eq!(tokens.write(from.path()).unwrap().len(), 2, "onto itself");

    assert_eq!(TokenizerSource::Bytes.write(to.path()).unwrap(), ["tokenizer.json"]);
    let bytes = TokenizerSource::Folder(to.path().to_owned());
    assert!(
        bytes.read(256).unwrap().is_of_bytes() && TokenizerSource::Bytes.read(256).unwrap().is_of_bytes()
    );
    assert!(TokenizerSource::Bytes.read(255).is_err());
    let unknown = format!("a new model with a vocabulary of 37 {instead}");
    assert_eq!(TokenizerSource::Unknown.read(37).unwrap_err().why, unknown);
    assert!(
        TokenizerSource::Unknown.write(to.path()).unwrap().is_empty()
            && !TokenizerSource::Unknown.are_known()
    );
}
