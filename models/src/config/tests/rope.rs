//! Rotary frequencies, in the format of both versions of `transformers`.
use super::*;

fn rope_of(config: Config) -> Rope {
    match config.shape.positions {
        Positions::Rotary(rope) => rope,
        Positions::Learned(_) => panic!("a table"),
    }
}
fn rope(keys: &[(&str, &str)]) -> std::result::Result<Rope, String> {
    changed(SHORT, keys).map(rope_of).map_err(|why| why.to_string())
}
const LLAMA3: &str = r#"{ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024 }"#;
const EIGHT: Scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 1024.0 };

/// Kills: the base of `rope_parameters` used where `rope_scaling` replaces it.
#[test]
fn the_rotary_base_is_read_where_either_version_has_it() {
    let in_new = |text: &str| rope(&[("rope_parameters", text)]).map(|rope| rope.base);
    assert_eq!(rope(&[("rope_theta", "500000")]), Ok(5e5.into()));
    for text in [
        r#"{ "rope_type": "default", "rope_theta": 500000.0 }"#,
        r#"{ "type": "default", "rope_theta": 500000, "partial_rotary_factor": 1.0 }"#,
    ] {
        assert_eq!(in_new(text), Ok(5e5));
        assert_eq!(rope(&[("rope_scaling", text)]), Ok(5e5.into()));
    }
    assert_eq!(in_new("{}"), Ok(1e4));
    let both = |top: &str| rope(&[("rope_theta", top), ("rope_parameters", r#"{ "rope_theta": 7 }"#)]);
    assert_eq!(both("7.0"), Ok(7.0.into()));
    assert_eq!(
        both("8.0"),
        Err("a.json: rope_parameters.rope_theta is 7.0; it must be 8, as rope_theta is".into())
    );
    let two = [("rope_parameters", r#"{ "rope_theta": 7 }"#), ("rope_scaling", r#"{ "rope_theta": 8 }"#)];
    let instead = "because transformers uses rope_scaling instead";
    assert_eq!(
        rope(&two),
        Err(format!("a.json: rope_parameters.rope_theta is 7.0; it must be 8, {instead}"))
    );
    let says_nothing_of_a_base = [two[0], ("rope_scaling", r#"{ "rope_type": "default" }"#)];
    assert_eq!(
        rope(&says_nothing_of_a_base),
        Err(format!("a.json: rope_parameters.rope_theta is 7.0; it must be 10000, {instead}"))
    );
    let at_the_top = [&says_nothing_of_a_base[..], &[("rope_theta", "7")]].concat();
    assert_eq!(rope(&at_the_top), Ok(7.0.into()));
    assert_eq!(rope(&[two[0], ("rope_scaling", "{}")]), Ok(7.0.into()), "an empty object is none");
}

/// Kills: a scaling read from one key only, its values exchanged.
#[test]
fn scalings_are_read_where_either_version_has_them() {
    let linear = r#"{ "type": "linear", "factor": 2.5 }"#;
    for key in ["rope_parameters", "rope_scaling"] {
        let scaled = |text: &str| rope(&[(key, text), ("rope_theta", "100")]);
        let of = |scaling| Ok(Rope { base: 100.0, scaling });
        assert_eq!(scaled(linear), of(Scaling::Linear { factor: 2.5 }));
        assert_eq!(
            scaled(r#"{ "rope_type": "linear", "type": "linear", "factor": 2 }"#),
            of(Scaling::Linear { factor: 2.0 })
        );
        assert_eq!(scaled(LLAMA3), of(EIGHT));
        let left_out = LLAMA3.replace(",\n    \"original_max_position_embeddings\": 1024", "");
        assert_ne!(left_out, LLAMA3);
        let Scaling::Llama3 { factor, low, high, .. } = EIGHT else { unreachable!() };
        assert_eq!(scaled(&left_out), of(Scaling::Llama3 { factor, low, high, original: 2048.0 }));
    }
    let both = [("rope_parameters", LLAMA3), ("rope_scaling", LLAMA3)];
    assert_eq!(rope(&both), Ok(Rope { base: 1e4, scaling: EIGHT }));
    for (text, scaling) in [(LLAMA3, EIGHT), (linear, Scaling::Linear { factor: 2.5 })] {
        let config = with("rope_scaling", text).unwrap();
        let again = Config::parse(&config.to_json(), "a.json").unwrap();
        assert_eq!((rope_of(again.clone()).scaling, again), (scaling, config.clone()));
        let written: Value = serde_json::from_str(&config.to_json()).unwrap();
        let (new, old) = (&written["rope_parameters"], &written["rope_scaling"]);
        assert_eq!(new["rope_theta"], 1e4);
        assert!(old["rope_type"].is_string() && old.get("rope_theta").is_none());
        assert!(old.as_object().unwrap().iter().all(|(key, value)| new[key] == *value));
    }
}

/// Kills: positions of the original context that come from the object although the file has them, the lists
/// exchanged, a magnitude of the other factor, positions of a dynamic scaling that end where it begins.
#[test]
fn scalings_by_what_texts_reach_are_read_and_written() {
    let phi = |keys: &[(&str, &str)]| {
        let sizes = r#"{ "model_type": "phi3", "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2,
            "num_hidden_layers": 2, "vocab_size": 11, "max_position_embeddings": 131072 }"#;
        let config = changed(sizes, keys).unwrap();
        assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config);
        rope_of(config).scaling
    };
    let object = |more: &str| {
        format!(r#"{{ "type": "longrope", "short_factor": [1.0, 1.25], "long_factor": [2, 30.5] {more} }}"#)
    };
    let long = |original: f64, magnitude| Scaling::Long {
        short: vec![1.0, 1.25].into(),
        long: vec![2.0, 30.5].into(),
        original,
        magnitude,
        reach: 131_072.0,
    };
    let usual = (1.0 + 32f64.ln() / 4096f64.ln()).sqrt();
    let top = ("original_max_position_embeddings", "4096");
    assert_eq!(phi(&[("rope_scaling", &object("")), top]), long(4096.0, usual));
    let both = object(r#", "original_max_position_embeddings": 8192, "attention_factor": 1.5"#);
    assert_eq!(phi(&[("rope_scaling", &both), top]), long(4096.0, 1.5));
    assert_eq!(phi(&[("rope_parameters", &both)]), long(8192.0, 1.5));
    let config = with("rope_scaling", r#"{ "type": "dynamic", "factor": 2.5 }"#).unwrap();
    assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config);
    assert_eq!(config.positions, 5120);
    let dynamic = |reach| Scaling::Dynamic { factor: 2.5, original: 2048.0, reach };
    assert_eq!(rope_of(config.clone()).scaling, dynamic(2048.0));
    let reaching = Config { shape: config.shape.reaching(4000), ..config };
    assert_eq!(rope_of(reaching).scaling, dynamic(4000.0));
}

#[test]
fn other_frequencies_are_refused() {
    let types =
        r#"it must be "default" or "linear" or "dynamic" or "llama3" or "yarn" or "longrope", or left out"#;
    let lists = "it must be 64 numbers above 0, one for each rotated pair of features";
    let unknown = "but this key is not supported; remove it if the model computes the same without it";
    let above = "it must be a number above 0 and in the range of f32";
    for (text, wanted) in [
        (r#"{ "rope_type": "su" }"#, format!(": .rope_type is \"su\"; {types}")),
        (r#"{ "rope_type": "longrope" }"#, format!(" has no .short_factor; {lists}")),
        (r#"{ "type": "longrope", "short_factor": [1, 2] }"#, format!(": .short_factor is [1,2]; {lists}")),
        (
            r#"{ "type": "longrope", "original_max_position_embeddings": 1 }"#,
            ": .original_max_position_embeddings is 1; it must be 2 or more".into(),
        ),
        (r#"{ "type": "dynamic" }"#, format!(" has no .factor; {above}")),
        (r#"{ "rope_type": 3 }"#, format!(": .rope_type is 3; {types}")),
        (
            r#"{ "rope_type": "llama3", "type": "linear" }"#,
            ": .type is \"linear\"; it must be \"llama3\", as rope_type is".into(),
        ),
        (
            r#"{ "partial_rotary_factor": 0.5 }"#,
            ": .partial_rotary_factor is 0.5; it must be 1, or left out".into(),
        ),
        (r#"{ "rope_theta": 0 }"#, format!(": .rope_theta is 0; {above}")),
        (r#"{ "factor": 2.0 }"#, format!(": .factor is 2.0, {unknown}")),
        (r#"{ "type": "linear" }"#, format!(" has no .factor; {above}")),
        (r#"{ "type": "linear", "factor": 0 }"#, format!(": .factor is 0; {above}")),
        (r#"{ "type": "linear", "factor": 2, "beta_fast": 32 }"#, format!(": .beta_fast is 32, {unknown}")),
        (r#"{ "type": "llama3", "factor": 2 }"#, format!(" has no .low_freq_factor; {above}")),
        (
            r#"{ "type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4 }"#,
            ": .high_freq_factor is 4.0; it must be more than the low_freq_factor of 4".into(),
        ),
        (
            r#"{ "type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4,
                "original_max_position_embeddings": 8192.5 }"#,
            ": .original_max_position_embeddings is 8192.5; it must be a whole number, 1 or more".into(),
        ),
    ] {
        for key in ["rope_parameters", "rope_scaling"] {
            let wanted = wanted.replacen(" .", &format!(" {key}."), 1);
            assert_eq!(rope(&[(key, text)]), Err(format!("a.json{wanted}")));
        }
    }
    for key in ["rope_parameters", "rope_scaling"] {
        assert_eq!(why(key, "3"), format!("a.json: {key} is 3; it must be an object in braces"));
    }
    let two = [
        ("rope_parameters", r#"{ "rope_type": "default" }"#),
        ("rope_scaling", r#"{ "type": "linear", "factor": 2 }"#),
    ];
    assert_eq!(
        rope(&two),
        Err("a.json: rope_scaling is {\"factor\":2,\"type\":\"linear\"}; it must be as rope_parameters is, or left out"
            .into())
    );
    assert_eq!(
        why("original_max_position_embeddings", "4096"), // a key of Phi, which version 5 reads
        format!("a.json: original_max_position_embeddings is 4096, {unknown}")
    );
}
