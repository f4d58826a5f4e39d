//! Published files of the families that differ from Llama in which blocks and features have positions, and
//! what is refused of them.
use super::real::{PHI3, SMOLLM3, is_known};
use super::*;
use kernels::{Gate, ScoreTerms};
use layers::NormPlaces;

/// Returns the configuration of a file with these keys, which must read back as itself; or why there is none.
pub(super) fn read(text: &str, keys: &[(&str, &str)]) -> std::result::Result<Config, String> {
    let config = changed(text, keys).map_err(|why| why.to_string())?;
    assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config, "{}", config.to_json());
    Ok(config)
}

/// Compares every size and setting with values written by hand. Kills: a key read and forgotten.
#[test]
fn decoders_as_they_are_found_have_the_shapes_they_are_known_for() {
    let phi3 = Shape {
        width: 3072,
        blocks: 32,
        heads: Heads { rotated: 96, ..Heads::new(24, 8, 128) },
        hidden: 8192,
        vocabulary: 200_064,
        padding: Some(199_999),
        tied: true,
        positions: rotary(1e4),
        window: Some(Window { size: 262_144, sinks: 0 }),
        ..Shape::LLAMA
    };
    let every_fourth = (0..36).filter(|block| block % 4 == 3).collect();
    let smollm3 = Shape {
        width: 2048,
        blocks: 36,
        heads: Heads::new(16, 4, 128),
        hidden: 11008,
        vocabulary: 128_256,
        padding: Some(128_004),
        positions: rotary(5e6),
        pattern: Pattern { other_positions: every_fourth, ..Pattern::NONE },
        eps: 1e-6,
        tied: true,
        ..Shape::LLAMA
    };
    let ids = (Some(199_999), vec![199_999]);
    is_known(PHI3, (crate::families::PHI3, phi3, 4096, ids, 3_836_021_760));
    is_known(SMOLLM3, (crate::families::SMOLLM3, smollm3, 65536, (None, vec![128_012]), 3_075_098_624));
}

/// The blocks of a rule.
fn blocks(config: &Config, rule: fn(&layers::BlockShape) -> bool) -> Vec<usize> {
    (0..config.shape.blocks).filter(|block| rule(&config.shape.block(*block))).collect()
}

/// Kills: a block of the interval's begin, a list that is ignored or turned, a window in the other blocks.
#[test]
fn blocks_without_positions_are_listed_or_end_an_interval() {
    let plain = |keys: &[(&str, &str)]| {
        let config = read(SMOLLM3, &[&[("num_hidden_layers", "5"), ("layer_types", "null")], keys].concat())?;
        Ok((blocks(&config, |b| b.rope.is_none()), blocks(&config, |b| b.window.is_some())))
    };
    let by_default = [("no_rope_layers", "null")];
    assert_eq!(plain(&by_default), Ok((vec![3], vec![])));
    assert_eq!(plain(&[by_default[0], ("no_rope_layer_interval", "2")]), Ok((vec![1, 3], vec![])));
    let windows = [("use_sliding_window", "true"), ("sliding_window", "7")];
    let listed = ("no_rope_layers", "[0, 1, 1, 0, 1, 0]");
    assert_eq!(plain(&[listed]), Ok((vec![0, 3], vec![])));
    assert_eq!(plain(&[&windows[..], &[listed]].concat()), Ok((vec![0, 3], vec![0, 3])));
    let types = (
        "layer_types",
        r#"["full_attention", "sliding_attention", "full_attention", "full_attention", "full_attention"]"#,
    );
    assert_eq!(plain(&[&windows[..], &[listed, types]].concat()), Ok((vec![0, 3], vec![1])));
    let list = "it must be a list of 0 and 1, 5 or more";
    for bad in ["[1,1,1,1]", "[1,1,1,1,2]", "7"] {
        assert_eq!(
            plain(&[("no_rope_layers", bad)]),
            Err(format!("a.json: no_rope_layers is {bad}; {list}"))
        );
    }
    let has = "because layer_types has \"sliding_attention\"";
    let unused = format!("a.json: use_sliding_window is false; it must be true, {has}");
    assert_eq!(plain(&[listed, types]), Err(unused));
    let short = plain(&[("layer_types", r#"["full_attention"]"#)]).unwrap_err();
    let wanted = "\"full_attention\" or \"sliding_attention\" for each of the 5 layers";
    assert_eq!(short, format!("a.json: layer_types is [\"full_attention\"]; it must be {wanted}"));
    let deep = plain(&[("num_hidden_layers", "129"), by_default[0]]).unwrap_err();
    assert!(deep.ends_with("it must be at most 128 in a model with no positions in some blocks"), "{deep}");
}

/// Kills: a part that is rounded up, read in one place alone or written beside another; an id of padding that
/// is the default of a larger vocabulary.
#[test]
fn a_part_of_each_head_is_rotated() {
    let rotated = |keys: &[(&str, &str)]| read(PHI3, keys).map(|config| config.shape.heads.rotated);
    assert_eq!(rotated(&[]), Ok(96));
    assert_eq!(rotated(&[("partial_rotary_factor", "null")]), Ok(128));
    let both =
        [("rope_parameters", r#"{ "partial_rotary_factor": 0.5 }"#), ("partial_rotary_factor", "null")];
    assert_eq!(rotated(&both), Ok(64));
    assert_eq!(
        rotated(&both[..1]),
        Err("a.json: partial_rotary_factor is 0.75; it must be 0.5, as everywhere".into())
    );
    for dim in [6, 10, 14, 96, 98] {
        for features in (2..=dim).step_by(2) {
            let part = (features as f64 / dim as f64).next_up().to_string();
            let keys = [("head_dim", &*dim.to_string()), ("partial_rotary_factor", &part)];
            if features < dim {
                assert_eq!(rotated(&keys), Ok(features), "{dim}");
            }
        }
    }
    for (bad, wanted) in [
        ("0", "a number above 0 and at most 1"),
        ("1.5", "a number above 0 and at most 1"),
        ("0.001", "a number that rotates an even number of the 128 features of a head"),
        ("0.1953125", "a number that rotates an even number of the 128 features of a head"),
    ] {
        let seen = format!("a.json: partial_rotary_factor is {bad}; it must be {wanted}");
        assert_eq!(rotated(&[("partial_rotary_factor", bad)]), Err(seen));
    }
    let other = why("partial_rotary_factor", "0.5");
    assert!(other.ends_with("it must be 1, or left out"), "Llama rotates whole heads: {other}");
    let small = without(PHI3, "pad_token_id").unwrap().to_json();
    let small: String = small.lines().filter(|line| !line.contains("pad_token_id")).collect();
    assert_eq!(changed(&small, &[("vocab_size", "9")]).unwrap().shape.padding, None);
    assert_eq!(without(PHI3, "pad_token_id").unwrap().shape.padding, Some(32_000));
}

const GEMMA2: &str = r#"{ "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 128, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608, "initializer_range": 0.02,
    "intermediate_size": 36864, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16, "pad_token_id": 0, "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
    "torch_dtype": "float32", "transformers_version": "4.42.0.dev0", "use_cache": true, "vocab_size": 256000 }"#;
/// The text model of Gemma 3 27B, within the file of the model that also reads pictures.
const GEMMA3: &str = r#"{ "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02,
    "mm_tokens_per_image": 256, "model_type": "gemma3", "text_config": { "head_dim": 128, "hidden_size": 5376,
    "intermediate_size": 21504, "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62,
    "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "rope_scaling": { "factor": 8.0,
    "rope_type": "linear" }, "sliding_window": 1024 }, "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0", "vision_config": { "hidden_size": 1152 } }"#;

/// Kills: a cap or a divisor of the other place, windows of the other blocks, frequencies of the other kind,
/// a default of the other Gemma.
#[test]
fn gemmas_as_they_are_found_have_the_shapes_they_are_known_for() {
    let scores = |divisor, cap| ScoreTerms { divisor: Some(divisor), cap, ..ScoreTerms::NONE };
    let gemma = Shape {
        norms: NormPlaces::Both,
        feed_forward: FeedForward::Gated(Gate::GeluTanh),
        eps: 1e-6,
        tied: true,
        padding: Some(0),
        ..Shape::LLAMA
    };
    let gemma2 = Shape {
        width: 4608,
        blocks: 46,
        heads: Heads::new(32, 16, 128),
        hidden: 36864,
        vocabulary: 256_000,
        embedding_root: Some(4608),
        scores: scores(144, Some(50.0)),
        logit_cap: Some(30.0),
        positions: rotary(1e4),
        window: Some(Window { size: 4096, sinks: 0 }),
        pattern: Pattern { whole: (0..46).filter(|block| block % 2 == 1).collect(), ..Pattern::NONE },
        ..gemma
    };
    is_known(GEMMA2, (crate::families::GEMMA2, gemma2, 8192, (Some(2), vec![1]), 27_227_128_320));
    let (whole, local): (Vec<_>, Vec<_>) = (0..62).partition(|block| block % 6 == 5);
    let gemma3 = Shape {
        width: 5376,
        blocks: 62,
        heads: Heads::new(32, 16, 128),
        hidden: 21504,
        vocabulary: 262_208,
        embedding_root: Some(5376),
        scores: scores(168, None),
        head_norm: true,
        positions: Positions::Rotary(Rope { base: 1e6, scaling: Scaling::Linear { factor: 8.0 } }),
        window: Some(Window { size: 1024, sinks: 0 }),
        pattern: Pattern {
            whole: whole.into(),
            other_positions: local.into(),
            other_rope: Some(1e4.into()),
            ..Pattern::NONE
        },
        ..gemma
    };
    let config = Config::parse(GEMMA3, "a.json").unwrap();
    assert_eq!((config.family, config.shape), (crate::families::GEMMA3, gemma3));
    assert_eq!((config.positions, config.bos, &config.eos[..]), (131_072, Some(2), &[1][..]));
    assert_eq!(parallel::price::parameters(gemma3).unwrap(), 27_009_346_304);
    let written = Config { wrapper: None, ..config.clone() };
    assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), written);
}

/// Kills: null read as a missing cap, a divisor of the head's own size kept apart, frequencies of windows
/// where there are none, an object of the old form taken for one of the new.
#[test]
fn gemmas_keys_mean_what_transformers_means() {
    let two = |keys: &[(&str, &str)]| read(GEMMA2, keys).map(|config| config.shape);
    let none = two(&[("attn_logit_softcapping", "null"), ("final_logit_softcapping", "null")]).unwrap();
    assert_eq!((none.scores.cap, none.logit_cap), (None, None));
    assert_eq!(two(&[("query_pre_attn_scalar", "128")]).unwrap().scores.divisor, None);
    assert_eq!(without(GEMMA2, "final_logit_softcapping").unwrap().shape.logit_cap, Some(30.0));
    let gelu = two(&[("hidden_activation", "\"gelu\"")]).unwrap_err();
    assert!(gelu.ends_with("it must be \"gelu_pytorch_tanh\", or left out"), "{gelu}");
    let positive = "it must be a number above 0 and in the range of f32";
    let cap = two(&[("final_logit_softcapping", "0")]).unwrap_err();
    assert_eq!(cap, format!("a.json: final_logit_softcapping is 0; {positive}"));

    let text: Value = serde_json::from_str(GEMMA3).unwrap();
    let text = text["text_config"].to_string();
    let three = |keys: &[(&str, &str)]| read(&text, keys).map(|config| config.shape);
    let full = format!("[{}]", vec!["\"full_attention\""; 62].join(","));
    let plain = three(&[("layer_types", &full)]).unwrap();
    assert_eq!((plain.window, plain.pattern), (None, Pattern::NONE));
    assert_eq!(three(&[("sliding_window_pattern", "2")]).unwrap().block(2).rope, Some(1e4.into()));
    let new = r#"{ "full_attention": { "rope_theta": 5e5 }, "sliding_attention": { "rope_theta": 7.0 } }"#;
    let new = three(&[("rope_scaling", "null"), ("rope_parameters", new)]).unwrap();
    assert_eq!([0, 5].map(|block| new.block(block).rope), [Some(7.0.into()), Some(5e5.into())]);
    let same = three(&[("rope_scaling", "null"), ("rope_local_base_freq", "1e6")]).unwrap();
    assert_eq!(same.pattern.other_rope, None, "frequencies are those of the other blocks");
    let old = three(&[("rope_parameters", r#"{ "rope_theta": 1e6 }"#)]).unwrap_err();
    assert!(old.contains("rope_parameters.rope_theta is 1000000"), "{old}");
    let zero = three(&[("rope_local_base_freq", "0")]).unwrap_err();
    assert_eq!(zero, format!("a.json: rope_local_base_freq is 0; {positive}"));
}
