//! Byte-level tokenizer: each byte is one token, whose id is the byte. Its tokenizer.json lets other programs
//! read our models' text.
use serde_json::{Map, Value, json};

/// Returns the character of a byte in GPT-2's byte-level alphabet: the byte itself if it is printable, else a
/// character from U+0100 on.
fn letter(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !prints(*b)).count() as u32;
    char::from_u32(256 + before).expect("a letter of the Latin Extended blocks")
}

/// Returns the text of a tokenizer.json.
pub fn json() -> String {
    serde_json::to_string_pretty(&value()).expect("plain values") + "\n"
}

fn value() -> Value {
    let vocabulary: Map<String, Value> = (0..=u8::MAX).map(|b| (letter(b).to_string(), json!(b))).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocabulary,
            "merges": [],
        },
    })
}

/// Returns true if a tokenizer.json equals this one, except for missing fields, truncation and padding.
pub(super) fn is_of_bytes(text: &[u8]) -> bool {
    let Ok(theirs) = serde_json::from_slice::<Value>(text) else { return false };
    let ours = value();
    let same = |part: &str| {
        let [theirs, ours] = [&theirs, &ours].map(|whole| whole.pointer(part).filter(|part| !part.is_null()));
        theirs == ours
    };
    let parts = ["added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"];
    let of_model =
        ["type", "vocab", "merges", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"];
    parts.iter().all(|part| same(&format!("/{part}")))
        && of_model.iter().all(|part| same(&format!("/model/{part}")))
}

/// Returns the text of these bytes. Invalid UTF-8, and a number that is not a byte, become `�`.
pub(super) fn text(ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len());
    for &id in ids {
        match u8::try_from(id) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend("�".bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Kills: two bytes with one letter, a space not written as Ġ.
    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        assert_eq!((0..=u8::MAX).map(letter).collect::<BTreeSet<_>>().len(), 256);
        assert_eq!((letter(b' '), letter(b'a'), letter(b'\n'), letter(0)), ('Ġ', 'a', 'Ċ', 'Ā'));
        let text: Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(text["model"]["vocab"]["Ġ"], json!(32));
    }

    /// Kills: a file of other ids taken for ours, a file not taken for ours because of a difference that
    /// changes no id.
    #[test]
    fn a_tokenizer_of_bytes_is_known_by_what_makes_its_ids() {
        let with = |part: &str, value: Value| {
            let mut whole = super::value();
            let (parent, name) = part.rsplit_once('/').unwrap();
            whole.pointer_mut(parent).unwrap()[name] = value;
            is_of_bytes(whole.to_string().as_bytes())
        };
        assert!(is_of_bytes(json().as_bytes()));
        assert!(with("/truncation", json!(1)) && with("/model/ignore_merges", json!(false)));
        for (part, value) in [
            ("/model/vocab/Ġ", json!(33)),
            ("/model/merges", json!(["a b"])),
            ("/model/type", json!("WordLevel")),
            ("/model/end_of_word_suffix", json!("</w>")),
            ("/model/continuing_subword_prefix", json!("##")),
            ("/model/unk_token", json!("a")),
            ("/normalizer", json!({ "type": "Lowercase" })),
            ("/pre_tokenizer/add_prefix_space", json!(true)),
            ("/post_processor", json!({ "type": "TemplateProcessing" })),
            ("/decoder", Value::Null),
            ("/added_tokens", json!([{ "id": 97, "content": "a" }])),
        ] {
            assert!(!with(part, value), "{part}");
        }
        assert!(!is_of_bytes(b"{") && !is_of_bytes(b"{}"));
    }

    #[test]
    fn bytes_that_are_no_text_show() {
        assert_eq!(text(&[97, 195, 98, 255]), "a\u{FFFD}b\u{FFFD}");
        assert_eq!(text(&[97, 256, 195, 169, u32::MAX]), "a\u{FFFD}é\u{FFFD}");
    }
}
