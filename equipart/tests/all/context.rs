//! `context`: flags that are refused, and its figures for scripts.
use crate::child::{equipart, refused};
use serde_json::Value;

/// Kills: a diagram of something else than what is asked for, a file written before its flags are checked.
#[test]
fn what_cannot_be_drawn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("a.svg").display().to_string();
    let layouts = "must have 2 to 64 context ranks and no others, such as cp=4";
    let of = |layout: &str| format!("the layout {layout} {layouts}");
    for (flags, says) in [
        ("--layout tp=2", &of("tp=2")[..]),
        ("--layout none", &of("none")),
        ("--layout tp=2,cp=2", &of("tp=2,cp=2")),
        ("--layout cp=65", &of("cp=65")),
        ("--layout cp=4:ring:gathered", "ring"),
        ("--layout cp=4:spiral", "\"spiral\" is not a method of cp"),
        ("--layout cp=4:ulysses/3", "has 4 context ranks, which blocks of 3 do not divide"),
        ("--seq 3", "the sequence has 3 tokens; 4 context ranks need 4 to 1024"),
        ("--seq 18446744073709551615", "has 18446744073709551615 tokens; 4 context ranks need 4 to 1024"),
        (
            "--documents 20,12 --seq 31",
            "--documents have 32 tokens in all, but --seq is 31; they must be equal",
        ),
        ("--documents 20,0", "--documents has a document of 0 tokens; each must have 1 or more"),
        ("--documents 18446744073709551615,9", "4 context ranks need 4 to 1024"),
        ("--documents 20,twelve", "twelve"),
        ("--mask none", "'none' for '--mask <MASK>'"),
        ("--mask all --window 3", "cannot be used with"),
        ("--sinks 3", "--window <KEYS>"),
        ("--mask all --sinks 1", "'--mask <MASK>' cannot be used with '--sinks <KEYS>'"),
        ("--window 0", "--window is 0; it must be 1 or more, since a query sees its own key"),
    ] {
        refused(&[vec!["context", "--svg", &svg], flags.split(' ').collect()].concat(), says);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Kills: figures without the ranks' tokens, keys or pairs, an option that is accepted and ignored.
#[test]
fn scripts_read_the_hops() {
    let said = |flags: &[&str]| -> Value {
        let output = equipart(&[&["context", "--json"], flags].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let plain = said(&["--layout", "cp=2:contiguous", "--seq", "4"]);
    let wanted = serde_json::json!({
        "title": "cp=2:contiguous:ring: 4 tokens, causal mask", "tokens": [[[0, 2]], [[2, 4]]], "block": 1,
        "members": [
            [{ "from": 0, "keys": 0, "pairs": 3 }, { "from": 1, "keys": 0, "pairs": 0 }],
            [{ "from": 1, "keys": 0, "pairs": 3 }, { "from": 0, "keys": 2, "pairs": 4 }],
        ],
    });
    assert_eq!(plain, wanted);
    let titles = [
        (&["--documents", "9,7"][..], "cp=4:zigzag:ring: 16 tokens in 2 documents, causal mask"),
        (&["--mask", "all", "--seq", "16"], "cp=4:zigzag:ring: 16 tokens, no mask"),
        (&["--window", "4"], "cp=4:zigzag:ring: 32 tokens, window of 4"),
        (&["--window", "4", "--sinks", "1"], "cp=4:zigzag:ring: 32 tokens, window of 4, 1 sink"),
        (&["--layout", "cp=4:striped:ulysses/2"], "cp=4:striped:ulysses/2: 32 tokens, causal mask"),
    ];
    for (flags, title) in titles {
        assert_eq!(said(flags)["title"], title);
    }
}
