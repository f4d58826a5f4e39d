//! Generation settings: which file counts, what its keys mean, which settings are noted and which refused.
//! The values are those that version 5 of `transformers` takes from the same files.
use super::*;
use crate::sampling::Sampling;
use parallel::Error;
use std::fs;

/// Reads the generation settings of a folder with these files.
fn says([config, own]: [Option<&str>; 2], draws: Option<bool>) -> Result<Generation> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("config.json", config), ("generation_config.json", own)] {
        if let Some(text) = text {
            fs::write(folder.path().join(name), text).unwrap();
        }
    }
    let said = Generation::read(folder.path(), draws);
    said.map_err(|why| Error::new(why.to_string().replace(&format!("{}/", folder.path().display()), "")))
}
fn own(text: &str) -> Generation {
    says([Some(r#"{"eos_token_id": 7}"#), Some(text)], None).unwrap()
}
fn sampling(text: &str) -> Sampling {
    own(text).sampling
}

/// Kills: keys of both files mixed, a list of ids reduced to one, the architecture's default id where no file
/// gives one.
#[test]
fn one_file_counts() {
    let eos = |files| says(files, None).unwrap().eos;
    let config = Some(r#"{"eos_token_id": 7, "do_sample": true, "max_new_tokens": 4}"#);
    assert_eq!(eos([config, Some(r#"{"eos_token_id": [2, 5]}"#)]), [2, 5]);
    assert_eq!(eos([config, Some(r#"{"eos_token_id": 3}"#)]), [3]);
    assert_eq!((eos([config, Some("{}")]), eos([Some("{}"), None])), (vec![], vec![]));
    let legacy = says([config, None], None).unwrap();
    assert_eq!((legacy.eos, legacy.max_new, legacy.sampling.temperature), (vec![7], Some(4), Some(1.0)));
    let other = says([config, Some("{}")], None).unwrap();
    assert_eq!((other.max_new, other.sampling), (None, Sampling::default()));
}

/// Kills: a temperature that turns on sampling by itself, sampling from all tokens where `transformers`
/// samples from 50, a `top_k` of 0 or a `top_p` of 1 that restricts the choice.
#[test]
fn sampling_is_that_of_the_file() {
    let likeliest = Sampling::default();
    for text in [
        "{}",
        r#"{"temperature": 0.5, "top_k": 5}"#,
        r#"{"do_sample": false, "temperature": 0.0, "top_k": -1}"#,
    ] {
        assert_eq!(sampling(text), likeliest, "{text}");
    }
    let drawn = Sampling { temperature: Some(1.0), top_k: Some(50), top_p: None, seed: 0 };
    for (text, wanted) in [
        (r#"{"do_sample": true}"#, drawn),
        (r#"{"do_sample": true, "temperature": null, "top_k": null, "top_p": 1.0}"#, drawn),
        (
            r#"{"do_sample": true, "temperature": 0.5, "top_k": 0}"#,
            Sampling { temperature: Some(0.5), top_k: None, ..drawn },
        ),
        (
            r#"{"do_sample": true, "top_k": 7, "top_p": 0.9}"#,
            Sampling { top_k: Some(7), top_p: Some(0.9), ..drawn },
        ),
        (r#"{"do_sample": true, "top_p": 0}"#, Sampling { top_p: Some(f64::MIN_POSITIVE), ..drawn }),
    ] {
        assert_eq!(sampling(text), wanted, "{text}");
    }
    let forced = |text, draws| says([None, Some(text)], Some(draws)).unwrap().sampling;
    assert_eq!(forced(r#"{"do_sample": true, "top_k": 7}"#, false), likeliest);
    assert_eq!(forced(r#"{"top_k": 7}"#, true), Sampling { top_k: Some(7), ..drawn });
    assert_eq!(forced("{}", true), Sampling { top_k: None, ..drawn });
    assert!(says([None, Some(r#"{"do_sample": true, "temperature": 0.0}"#)], Some(true)).is_ok());
    let logits = [0.5, 2.0, 1.0];
    let first = Sampling { temperature: Some(1.0), top_p: Some(f64::MIN_POSITIVE), ..likeliest };
    assert!((0..20).all(|n| first.choose(&logits, n, 0).unwrap().id == 1));
}

/// Kills: a key ignored in silence, a note about a key that changes nothing, a note about a length that a
/// flag replaces.
#[test]
fn what_is_not_followed_is_noted() {
    let note = |text: &str, sized: bool| {
        own(text).note(sized).map(|note| note.split_once("asks for ").unwrap().1.to_owned())
    };
    let tail = "; equipart does not support this, so transformers may continue a text differently";
    let both = r#"{"repetition_penalty": 1.2, "suppress_tokens": [3, 4]}"#;
    assert_eq!(note(both, false).unwrap(), format!("repetition_penalty 1.2, suppress_tokens [3,4]{tail}"));
    let neutral = r#"{"repetition_penalty": 1.0, "suppress_tokens": [], "num_beams": 1, "bad_words_ids": null, "use_cache": true,
        "pad_token_id": 0, "transformers_version": "5.23.0", "min_length": 0, "length_penalty": 2.0, "min_p": 0.1}"#;
    assert_eq!(note(neutral, false), None);
    let drawn = r#"{"do_sample": true, "min_p": 0.1, "typical_p": 1.0}"#;
    assert_eq!(note(drawn, false).unwrap(), format!("min_p 0.1{tail}"));
    let length = r#"{"max_length": 9}"#;
    assert_eq!((note(length, false).unwrap(), note(length, true)), (format!("max_length 9{tail}"), None));
    assert_eq!(note(r#"{"max_length": 9, "max_new_tokens": 3}"#, false), None);
    for key in [
        "num_beams",
        "no_repeat_ngram_size",
        "forced_eos_token_id",
        "min_new_tokens",
        "guidance_scale",
        "stop_strings",
    ] {
        assert!(note(&format!(r#"{{"{key}": 3}}"#), false).unwrap().starts_with(key));
        assert!(with(key, "3").is_ok(), "{key} is no key of the model");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let why = |text: &str| says([None, Some(text)], None).unwrap_err().to_string();
    let drawn = |key: &str, value: &str| why(&format!(r#"{{"do_sample": true, "{key}": {value}}}"#));
    let is = |key: &str, seen: &str, wanted: &str| {
        format!("generation_config.json: {key} is {seen}; it must be {wanted}")
    };
    for (key, value, wanted) in [
        ("temperature", "0.0", "a number above 0"),
        ("temperature", "\"hot\"", "a number above 0"),
        ("top_k", "-1", "a whole number, 0 or more"),
        ("top_k", "2.5", "a whole number, 0 or more"),
        ("top_p", "1.5", "a number from 0 to 1"),
        ("max_new_tokens", "0", "a whole number, 1 or more"),
        ("eos_token_id", "-1", "null, a token id (a whole number below 2^32), or a list of such ids"),
    ] {
        assert_eq!(drawn(key, value), is(key, value, wanted));
    }
    assert_eq!(why(r#"{"do_sample": "yes"}"#), is("do_sample", "\"yes\"", "true or false"));
    let text = why("{");
    assert!(text.starts_with("generation_config.json is not a generation configuration: "), "{text}");
    assert_eq!(
        why("[]"),
        "generation_config.json is not a generation configuration: it must be an object in braces"
    );
}
