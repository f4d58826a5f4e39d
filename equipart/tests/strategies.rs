//! The list of strategies is what the book shows, and each of them fits some model and is proven.
use equipart::Layout;
use equipart::layout::Entry;
use equipart::prove::{Subject, certify};
use kernels::Heads;
use layers::{Biases, Shape, strategies};
use std::path::Path;
use tensor::Key;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/strategies.md");

/// Writes the table anew where it differs, and fails then. Kills: a strategy that the book does not know.
#[test]
fn the_book_has_the_list() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (begin, end) = ("<!-- the list -->\n", "<!-- end of the list -->");
    let (before, rest) = page.split_once(begin).expect("a mark before the table");
    let (table, after) = rest.split_once(end).expect("a mark after the table");
    let wanted = format!("\n{}\n", Entry::book());
    if table != wanted {
        std::fs::write(PAGE, format!("{before}{begin}{wanted}{end}{after}")).unwrap();
        panic!("docs/src/strategies.md had another list; it has been written anew");
    }
}

/// Kills: a strategy that is listed and not proven, or fits no model.
#[test]
fn every_strategy_of_the_list_is_proven() {
    let heads = Heads { queries: 4, keys: 2, dim: 2 };
    let bias = Biases { qkv: true, out: true, mlp: true };
    let shape = Shape { width: 6, heads, hidden: 8, vocabulary: 11, bias, ..Shape::LLAMA };
    for about in strategies::all() {
        for ranks in [2, 4] {
            let layout: Layout = about.key.written(ranks).parse().unwrap();
            let verdict =
                certify(&Subject::small(shape, &layout).unwrap(), &layout, &[Key(1)], &|_| ()).unwrap();
            assert!(verdict.equal && verdict.tensors > 50, "{}", verdict.statement());
        }
    }
}

/// Kills: a chapter that is not there.
#[test]
fn chapters_of_strategies_exist() {
    for about in strategies::all() {
        let there = |file| Path::new(PAGE).with_file_name(file).is_file();
        assert!(about.chapter.is_none_or(there), "{}: {:?}", about.name, about.chapter);
    }
}
