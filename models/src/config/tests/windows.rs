//! Sliding windows of Mistral and Qwen.
use super::real::{MISTRAL, QWEN2, QWEN3};
use super::*;

fn window(text: &str, keys: &[(&str, &str)]) -> std::result::Result<Option<(usize, usize)>, String> {
    let config = changed(text, keys).map_err(|why| why.to_string())?;
    assert_eq!(Config::parse(&config.to_json(), "a.json").unwrap(), config, "{}", config.to_json());
    assert!(config.shape.window.is_none_or(|w| w.sinks == 0));
    Ok(size_and_first(&config.shape))
}

/// Returns the size of the window and the first block that has it; all later ones have it, too.
pub(super) fn size_and_first(shape: &Shape) -> Option<(usize, usize)> {
    let first = (0..shape.blocks).find(|block| shape.block(*block).window.is_some())?;
    assert!((first..shape.blocks).all(|block| shape.block(block).window == shape.window));
    shape.window.map(|window| (window.size, first))
}

/// Kills: null read as a missing key.
#[test]
fn mistrals_window_is_in_every_block_unless_it_is_null() {
    assert_eq!(window(MISTRAL, &[("sliding_window", "5")]), Ok(Some((5, 0))));
    assert_eq!(window(MISTRAL, &[("sliding_window", "null")]), Ok(None));
    let left_out = without(MISTRAL, "sliding_window").unwrap();
    assert_eq!(size_and_first(&left_out.shape), Some((4096, 0)));
    let wanted = "it must be a whole number, 1 or more";
    for bad in ["0", "-1", "false", "4096.0"] {
        let seen = format!("a.json: sliding_window is {bad}; {wanted}");
        assert_eq!(window(MISTRAL, &[("sliding_window", bad)]), Err(seen));
    }
}

/// Kills: a window that is given and not used, a window that begins one block early or late.
#[test]
fn qwens_window_is_in_the_later_blocks_if_it_is_used() {
    for text in [QWEN2, QWEN3] {
        let four = |keys: &[(&str, &str)]| {
            window(text, &[&[("num_hidden_layers", "4"), ("sliding_window", "9")], keys].concat())
        };
        let used = ("use_sliding_window", "true");
        assert_eq!(four(&[]), Ok(None));
        assert_eq!(four(&[used]), Ok(None)); // windows begin at block 24 or 28
        assert_eq!(four(&[used, ("max_window_layers", "3")]), Ok(Some((9, 3))));
        assert_eq!(four(&[used, ("max_window_layers", "0")]), Ok(Some((9, 0))));
        assert_eq!(four(&[used, ("max_window_layers", "4")]), Ok(None));
        assert_eq!(four(&[used, ("max_window_layers", "9007199254740993")]), Ok(None));
        assert_eq!(four(&[used, ("max_window_layers", "1"), ("sliding_window", "null")]), Ok(None));
        let whole = "it must be a whole number, 0 or more";
        let negative = format!("a.json: max_window_layers is -1; {whole}");
        assert_eq!(four(&[used, ("max_window_layers", "-1")]), Err(negative));
        let mut map: Map<String, Value> = serde_json::from_str(text).unwrap();
        map.retain(|key, _| !matches!(&**key, "sliding_window" | "max_window_layers"));
        let bare = Value::Object(map).to_string();
        assert_eq!(window(&bare, &[used, ("num_hidden_layers", "40")]), Ok(Some((4096, 28))));
    }
}

/// Kills: `layer_types` ignored, `layer_types` read as something else than its list.
#[test]
fn layer_types_are_full_attention_first_and_windows_then() {
    let (full, sliding) = ("\"full_attention\"", "\"sliding_attention\"");
    let types = |kinds: &str| {
        let kinds = kinds.chars().map(|kind| match kind {
            'f' => full,
            's' => sliding,
            _ => "\"chunked_attention\"",
        });
        format!("[{}]", kinds.collect::<Vec<_>>().join(","))
    };
    let read = |kinds: &str, keys: &[(&str, &str)]| {
        let usual = [
            ("num_hidden_layers", "3"),
            ("use_sliding_window", "true"),
            ("sliding_window", "9"),
            ("max_window_layers", "28"), // the list takes precedence over this key
            ("layer_types", &types(kinds)),
        ];
        window(QWEN2, &[&usual, keys].concat())
    };
    for (kinds, from) in [("fff", None), ("ffs", Some(2)), ("fss", Some(1)), ("sss", Some(0))] {
        assert_eq!(read(kinds, &[]), Ok(from.map(|from| (9, from))));
    }
    for kinds in ["ff", "ffff", "sff", "fsf", "ffx", ""] {
        let seen: String = types(kinds).chars().take(80).collect();
        let seen = if types(kinds).len() > 80 { seen + " …" } else { seen };
        let wanted = format!("{full} for the first layers and {sliding} for the others, 3 in all");
        assert_eq!(read(kinds, &[]), Err(format!("a.json: layer_types is {seen}; it must be {wanted}")));
    }
    let has = format!("because layer_types has {sliding}");
    assert_eq!(
        read("ffs", &[("use_sliding_window", "false")]),
        Err(format!("a.json: use_sliding_window is false; it must be true, {has}"))
    );
    assert_eq!(
        read("ffs", &[("sliding_window", "null")]),
        Err(format!("a.json: sliding_window is null; it must be a whole number, 1 or more, {has}"))
    );
    assert_eq!(read("fff", &[("use_sliding_window", "false")]), Ok(None));
    assert!(
        why("layer_types", &types("fff")).ends_with("remove it if the model computes the same without it")
    );
}
