//! The book shows the list of strategies, and each strategy fits some model and is proven.
use comm::Axis;
use kernels::{Heads, Kernels};
use layers::build::strategy::Row;
use layers::{
    Biases, BoxedLayer, Builder, Choice, Layer, NumberArgument, Params, RowLinear, Shape, Strategy,
    StrategyInfo,
};
use ops::{Draw, PassContext, Result, Split, Stream, WholeWeight, add_bias, bias_gradient};
use parallel::layout::entry::StrategyEntry;
use parallel::{Layout, Network, Scheme, strategies};
use prove::cases::{certify_panel, fitted, never_ran};
use prove::{Subject, certify};
use std::path::Path;
use tensor::{Category, Key, Tensor};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/strategies.md");

/// Rewrites the book's table where it differs, and then fails. Kills: a strategy missing from the book.
#[test]
fn the_book_has_the_list() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (begin, end) = ("<!-- the list -->\n", "<!-- end of the list -->");
    let (before, rest) = page.split_once(begin).expect("a mark before the table");
    let (table, after) = rest.split_once(end).expect("a mark after the table");
    let wanted = format!("\n{}\n", StrategyEntry::book());
    if table != wanted {
        std::fs::write(PAGE, format!("{before}{begin}{wanted}{end}{after}")).unwrap();
        panic!("docs/src/strategies.md had another list; it has been written anew");
    }
}

/// Every listed strategy on this many ranks, each with a small model that it fits.
pub(crate) fn listed(ranks: usize) -> impl Iterator<Item = (Layout, Subject)> {
    let heads = Heads::new(4, 2, 2);
    let bias = Biases { qkv: true, out: true, mlp: true };
    let shape = Shape { width: 6, blocks: 8, heads, hidden: 8, vocabulary: 11, bias, ..Shape::LLAMA };
    strategies::all().iter().map(move |about| {
        let layout: Layout = about.written(ranks).parse().unwrap();
        let shape = fitted(shape, &(&layout).into()).unwrap();
        (layout, Subject::small(shape, &layout).unwrap())
    })
}

/// Kills: a listed strategy that is not proven, a listed strategy that fits no model.
#[test]
fn every_strategy_of_the_list_is_proven() {
    for (layout, subject) in [2, 4].into_iter().flat_map(listed) {
        let verdict = certify(&subject, &layout, &[Key(1)], (&Network::default(), &|_| ())).unwrap();
        assert!(verdict.equal && verdict.tensors > 50, "{}", verdict.statement());
    }
}

/// Kills: a missing chapter.
#[test]
fn chapters_of_strategies_exist() {
    for about in strategies::all() {
        let there = |file| Path::new(PAGE).with_file_name(file).is_file();
        assert!(about.chapter.is_none_or(there), "{}: {:?}", about.name, about.chapter);
    }
}

/// Terms that the test strategy adds to the finished sum of its row layers.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Adds {
    /// The bias.
    Once,
    /// The bias, once for each rank: each rank adds it to its partial sum.
    OnEveryRank,
    /// Uninitialized memory.
    Fresh,
}

/// Strategy of another crate, with row layers of its own.
pub(crate) struct Newcomer(pub(crate) Adds);

static ABOUT: StrategyInfo = StrategyInfo {
    name: "my rows",
    axis: Some(Axis::Tp),
    choice: Choice::Layers,
    word: "mine",
    takes: NumberArgument::Nothing,
    needs: None,
    tries: layers::Tries::Always(&[]),
    shares: |_, _| vec![],
    alone: false,
    paper: "",
    chapter: None,
    hints: &[("", "where my bias is added")],
};

impl<D: Kernels> Strategy<D> for Newcomer {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn row(&self, at: &Builder<D>, row: &Row) -> Result<Option<BoxedLayer<D, Split<D>, Stream<D>>>> {
        let (draw, shape) = (Draw { mean: 0.0, std: 1.0 }, [1, row.sizes[1]]);
        let bias = || WholeWeight::new(at, format!("{}.bias", row.name), shape, at.placement(), draw);
        Ok(Some(BoxedLayer::new(Rows {
            sum: RowLinear::shard(at, &Row { bias: false, ..*row })?,
            bias: row.bias.then(bias).transpose()?,
            times: if self.0 == Adds::OnEveryRank { at.mesh.group(row.axis).size() } else { 1 },
            fresh: self.0 == Adds::Fresh,
        })))
    }
}

struct Rows<D: Kernels> {
    sum: RowLinear<D>,
    bias: Option<WholeWeight<D>>,
    times: usize,
    fresh: bool,
}

impl<D: Kernels> Layer<D> for Rows<D> {
    type In = Split<D>;
    type Out = Stream<D>;
    type Saved = <RowLinear<D> as Layer<D>>::Saved;
    type Pending = (<RowLinear<D> as Layer<D>>::Pending, Stream<D>);

    fn forward(&self, cx: &PassContext<D>, x: Split<D>) -> Result<(Stream<D>, Self::Saved)> {
        let (mut y, saved) = self.sum.forward(cx, x)?;
        for _ in 0..self.times {
            if let Some(bias) = &self.bias {
                y = add_bias(y, &bias.whole()?);
            }
        }
        if self.fresh {
            let unwritten = Tensor::empty(y.device(), Category::Buffers, 1, y.cols());
            y = add_bias(y, &unwritten);
        }
        Ok((y, saved))
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        dy: Stream<D>,
    ) -> Result<(Split<D>, Self::Pending)> {
        let (dx, pending) = self.sum.backward_input(cx, saved, dy.clone())?;
        Ok((dx, (pending, dy)))
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, (pending, dy): Self::Pending) -> Result<()> {
        if let Some(bias) = &mut self.bias {
            bias_gradient(bias, &dy);
        }
        self.sum.backward_weight(cx, pending)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.sum.params(into);
        into.extend(self.bias.as_mut().map(WholeWeight::param));
    }
}

/// Kills: a proof of a layout that never ran the strategy's wrong code because its model has no biases, a
/// proof that does not list what never ran, a user's strategy left out of the proof.
#[test]
fn a_bias_added_on_every_rank_is_refused_without_a_model() {
    let layout: Layout = "tp=2".parse().unwrap();
    let (wrong, right) = (Newcomer(Adds::OnEveryRank), Newcomer(Adds::Once));
    let panel = |mine| {
        certify_panel(Scheme::with(&layout, &[mine]), &[Key(3)], (&Network::default(), &|_| ())).unwrap()
    };
    let staged: Layout = "tp=2,dp=2:zero1,pp=2".parse().unwrap();
    let refused =
        certify_panel(Scheme::with(&staged, &[&wrong]), &[Key(3)], (&Network::default(), &|_| ())).unwrap();
    let says = refused.statement();
    assert!(!refused.verdict.equal && says.contains("texts: blocks.0.attention.out"), "{says}");
    assert!(says.contains("Look first at my rows: where my bias is added."), "{says}");
    let refused = panel(&wrong);
    let says = refused.statement();
    assert!(!refused.verdict.equal && says.starts_with("Not equal: under tp=2 with my rows"), "{says}");
    assert!(says.contains("of biased Llama") && says.contains("texts: blocks.0.attention.out"), "{says}");
    assert!(says.contains("Look first at my rows: where my bias is added."), "{says}");
    assert!(panel(&right).verdict.equal, "{}", panel(&right).statement());
    // A model without biases cannot detect the bug, and its proof lists the feature as never run.
    let subject = Subject::small(Shape { heads: Heads::new(2, 2, 2), ..Shape::LLAMA }, &layout);
    let subject = subject.unwrap();
    assert!(
        certify(&subject, Scheme::with(&layout, &[&wrong]), &[Key(3)], (&Network::default(), &|_| ()))
            .unwrap()
            .equal
    );
    assert!(never_ran(&subject, &layout).contains(&"bias of attention's output"));
}

/// Kills: a panic that does not name its layer.
#[test]
#[cfg(debug_assertions)]
fn arithmetic_on_the_sentinel_names_its_layer() {
    let layout: Layout = "tp=2".parse().unwrap();
    let scheme = Scheme::with(&layout, &[&Newcomer(Adds::Fresh)]);
    let why = certify_panel(scheme, &[Key(3)], (&Network::default(), &|_| ())).unwrap_err().why;
    assert!(why.contains("arithmetic on the sentinel"), "{why}");
    assert!(why.ends_with("(forward through blocks.0.attention.out)"), "{why}");
}
