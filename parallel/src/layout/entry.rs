//! The lists of strategies as a table: for the command, and for the book.
use super::Layout;
use ::tensor::Cpu;
use comm::Axis;
use kernels::Heads;
use layers::{Chunk, Experts, Shape, Sizes, StrategyInfo};
use ops::{AtRest, DivisionRule, RandomValues, Region, TokenShards};
use serde::Serialize;

/// One strategy, in words.
#[derive(Clone, Debug, Serialize)]
pub struct StrategyEntry {
    /// A layout for two ranks that names it: `tp=2`. It runs with the embedded model, or with the embedded
    /// model of experts if its ranks share experts.
    pub layout: String,
    /// Its name.
    pub name: String,
    /// Dimensions and state of which each rank has only a part: batch, sequence, hidden, weights, gradients,
    /// optimizer.
    pub shards: Vec<&'static str>,
    /// Quantities that its ranks share, which decide where it fits; "anything" if any number of ranks fits.
    pub fits: String,
    /// Source: the paper.
    pub paper: String,
    /// The file of the book's chapter, if there is one.
    pub chapter: Option<String>,
}

impl StrategyEntry {
    /// All strategies of the lists, in their order.
    #[must_use]
    pub fn all() -> Vec<StrategyEntry> {
        crate::strategies::all().iter().map(|about| StrategyEntry::of(about)).collect()
    }
    fn of(about: &StrategyInfo) -> StrategyEntry {
        let shared =
            (about.shares)(&Shape::LLAMA.into(), &Sizes { ranks: Layout::UNSPLIT.sizes, number: None });
        let what = |by| if by == DivisionRule::OrCopies { " (or copies)" } else { "" };
        let mut fits: Vec<_> = shared.iter().map(|s| format!("{}{}", s.what, what(s.by))).collect();
        fits.dedup(); // of two layers
        let layout: Layout = about.written(2).parse().expect("what an entry is written as");
        StrategyEntry {
            layout: about.written(2),
            name: about.name.into(),
            shards: shards(&layout),
            fits: if fits.is_empty() { "anything".into() } else { fits.join(", ") },
            paper: about.paper.into(),
            chapter: about.chapter.map(str::to_owned),
        }
    }
    /// The table of the book, in Markdown.
    #[must_use]
    pub fn book() -> String {
        let row = |e: StrategyEntry| {
            let chapter = e.chapter.map_or_else(String::new, |file| format!("[{file}]({file})"));
            let cells = [format!("`{}`", e.layout), e.name, e.shards.join(", "), e.fits, e.paper, chapter];
            format!("| {} |\n", cells.join(" | "))
        };
        let head = "| layout | strategy | each rank has its part of | its ranks share | source | chapter |\n\
                    |---|---|---|---|---|---|\n";
        head.to_string() + &StrategyEntry::all().into_iter().map(row).collect::<String>()
    }
}

/// Returns the dimensions and state of which a rank has only a part. Builds a small model under the layout,
/// on the meta device. Its cut parameters, the tokens that its layers expect and its sharding at rest show
/// all but how sequences and blocks are dealt.
fn shards(layout: &Layout) -> Vec<&'static str> {
    let heads = Heads::new(4, 4, 2);
    let experts = layout.shares_experts().then_some(Experts { hidden: 8, ..Experts::MIXTRAL });
    let shape = Shape { width: 8, hidden: 8, vocabulary: 8, heads, experts, ..Shape::LLAMA };
    let device = kernels::meta_of::<Cpu<f32>>();
    let mesh = layout.ghost(0).expect("a first rank");
    let at = layout.place(&device, &mesh, &RandomValues { seed: 0 });
    let mut model = Chunk::whole(&at, &shape).expect("a shape that two ranks can share");
    let cut = model.params().iter().any(|p| p.local() != p.shape());
    let apart = cut || layout.size(Axis::Pp) > 1;
    let split = |axis: &Axis| layout.size(*axis) > 1;
    let tokens = || split(&TokenShards::CONTEXT);
    let parts = [
        ("batch", split(&TokenShards::SEQUENCES)),
        ("sequence", at.region != Region::Whole || tokens()),
        ("hidden", cut),
        ("weights", apart || at.rests.value == AtRest::Shard),
        ("gradients", apart || at.rests.gradient == AtRest::Shard),
        ("optimizer", apart || at.rests.state == AtRest::Shard),
    ];
    parts.into_iter().filter_map(|(part, has)| has.then_some(part)).collect()
}
