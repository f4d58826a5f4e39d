//! A byte-level tokenizer in the format of Hugging Face `tokenizers`, so that other programs read our models' text:
//! each byte is one token whose id is the byte.
use serde_json::{Map, Value, json};

/// How GPT-2's byte-level alphabet writes a byte: itself where it prints, else a character from U+0100 on.
fn letter(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !prints(*b)).count() as u32;
    char::from_u32(256 + before).expect("a letter of the Latin Extended blocks")
}

/// The text of a tokenizer.json.
pub fn json() -> String {
    let vocabulary: Map<String, Value> = (0..=u8::MAX).map(|b| (letter(b).to_string(), json!(b))).collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let tokenizer = json!({
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
    });
    serde_json::to_string_pretty(&tokenizer).expect("plain values") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Kills: two bytes with one letter, a space that does not become Ġ.
    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        assert_eq!((0..=u8::MAX).map(letter).collect::<BTreeSet<_>>().len(), 256);
        assert_eq!((letter(b' '), letter(b'a'), letter(b'\n'), letter(0)), ('Ġ', 'a', 'Ċ', 'Ā'));
        let text: Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(text["model"]["vocab"]["Ġ"], json!(32));
    }
}
