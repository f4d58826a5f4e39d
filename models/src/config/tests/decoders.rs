//! Published files of the families that differ from Llama in which blocks and features have positions, and
//! what is refused of them.
use super::real::{PHI3, SMOLLM3, is_known};
use super::*;

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
