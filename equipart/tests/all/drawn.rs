//! `draw` refuses what a picture cannot show, and leaves the file as it is; `collectives --chunk` refuses a
//! chunk that is not there. The pictures themselves are compared with the book's.
use crate::child::{equipart, refused};
use std::fs;

/// Kills: a picture of half of what was asked for, a layout of another kind that is drawn all the same, a
/// file that is replaced before the picture is made.
#[test]
fn what_no_picture_shows_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.svg");
    let svg = path.to_str().unwrap();
    fs::write(&path, "mine").unwrap();
    for (flags, says) in [
        (
            "draw ranks --layout tp=2,dp=3 --node 4",
            "--node is 4; it must be 1 or more, and divide the 6 ranks of tp=2,dp=3",
        ),
        ("draw ranks --layout dp=2 --node 0", "--node is 0; it must be 1 or more"),
        ("draw ranks --layout dp=512", "dp=512 has 512 ranks; a picture has 256 at most"),
        ("draw matrices --ranks 5", "--ranks is 5; the picture has 2 to 4"),
        ("draw block --layout dp=2", "dp=2 is more than tensor ranks; the picture is of tp=N or tp=N,sp"),
        ("draw block --layout tp=2,recompute", "tp=2,recompute is more than tensor ranks"),
        ("draw block --layout recompute", "recompute is more than tensor ranks"),
        ("draw memory --layout tp=3", "tp=3 does not fit 4 query heads and 2 KV heads: tp can be 1, 2 or 4"),
        ("draw memory --layout dp=16", "a microbatch of 8 sequences cannot be dealt over dp=16"),
        ("draw time --layout pp=2", "pp=2 has stages, whose times `schedule` draws"),
        ("draw time --layout dp=2 --machine x", "x"),
        ("draw roofline --layout dp=2 --seq 0", "seq"),
        (
            "collectives --algorithm ring --ranks 4 --chunk 4",
            "--chunk is 4; ring all-reduce has 4 chunks, from 0",
        ),
    ] {
        refused(&[flags.split(' ').collect(), vec!["--svg", svg]].concat(), says);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine", "{flags}");
    }
    refused(&["draw", "memory", "--layout", "dp=2"], "--svg <FILE>");
    let gone = folder.path().join("no/own.svg");
    refused(&["draw", "matrices", "--svg", gone.to_str().unwrap()], "own.svg");
    let output = equipart(&["draw", "matrices", "--json", "--svg", svg]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{{\"picture\":\"{svg}\"}}\n"));
    assert!(fs::read_to_string(&path).unwrap().starts_with("<svg"));
}
