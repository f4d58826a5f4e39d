//! The grammar with a list of strategies that do not exist, of every choice.
use super::super::covering;
use super::super::grammar::Grammar;
use super::super::misfit::misfit;
use super::*;
use layers::{NumberArgument, Sizes};
use ops::{DividedSize, DivisionRule};

const NOTHING: StrategyInfo = StrategyInfo {
    name: "made up",
    axis: None,
    choice: Choice::Recompute,
    word: Choice::RECOMPUTE,
    takes: NumberArgument::Nothing,
    tries: layers::Tries::Always(&[]),
    needs: None,
    shares: |_, _| vec![],
    alone: false,
    paper: "",
    chapter: None,
    hints: &[],
};
const fn of(axis: Axis, choice: Choice, word: &'static str) -> StrategyInfo {
    StrategyInfo { axis: Some(axis), choice, word, ..NOTHING }
}
const BLOCK: NumberArgument = NumberArgument::Optional("ranks of a block");
static LIST: [&StrategyInfo; 23] = [
    &of(Axis::Tp, Choice::Layers, "tp"),
    &of(Axis::Tp, Choice::Layers, "sp"),
    &of(Axis::Cp, Choice::Dealing, "consecutive"),
    &of(Axis::Cp, Choice::Dealing, "zigzag"),
    &of(Axis::Cp, Choice::Core, "ring"),
    &StrategyInfo {
        takes: NumberArgument::Required("ranks that share heads"),
        ..of(Axis::Cp, Choice::Core, "ulysses")
    },
    &of(Axis::Dp, Choice::State, "dp"),
    &of(Axis::Dp, Choice::State, "classic"),
    &of(Axis::Dp, Choice::State, "zero1"),
    &StrategyInfo { takes: BLOCK, ..of(Axis::Dp, Choice::State, "zero3") },
    &of(Axis::Dp, Choice::Offload, "offload-file"),
    &StrategyInfo {
        takes: NumberArgument::Required("pieces of a layer"),
        needs: Some("zero3"),
        ..of(Axis::Dp, Choice::Tiling, "tile")
    },
    &StrategyInfo { takes: BLOCK, ..of(Axis::Pp, Choice::Schedule, "gpipe") },
    &of(Axis::Pp, Choice::Schedule, "naive"),
    &StrategyInfo {
        takes: NumberArgument::Required("chunks of a rank"),
        ..of(Axis::Pp, Choice::Schedule, "interleaved")
    },
    &StrategyInfo {
        takes: NumberArgument::Required("slices of a sequence"),
        ..of(Axis::Pp, Choice::Schedule, "seq1f1b")
    },
    &of(Axis::Ep, Choice::Dispatcher, "ep"),
    &of(Axis::Ep, Choice::Dispatcher, "by-hand"),
    &of(Axis::Etp, Choice::Layers, "etp"),
    &NOTHING,
    &StrategyInfo { word: "selective", ..NOTHING },
    &StrategyInfo {
        word: "full",
        takes: NumberArgument::Optional("blocks between two that are kept"),
        ..NOTHING
    },
    &StrategyInfo { word: "twice", shares: |_, _| vec![], ..of(Axis::Tp, Choice::Layers, "twice") },
];

fn made(text: &str) -> Result<Layout> {
    Grammar(&LIST).read(text)
}
fn printed(text: &str) -> String {
    let layout = made(text).unwrap_or_else(|why| panic!("{text}: {why}"));
    let printed = Grammar(&LIST).print(&layout);
    assert_eq!(made(&printed), Ok(layout), "{text} is printed {printed}");
    printed
}
fn whynot(text: &str) -> String {
    made(text).err().unwrap_or_else(|| panic!("{text} is read")).to_string()
}

/// Every example of the module's text. Kills: one that is not read, or not printed as it was written.
#[test]
fn layouts_of_every_choice_read_back() {
    for text in [
        "tp=2,sp",
        "cp=8:zigzag:ulysses/4",
        "pp=4:interleaved/2",
        "pp=2:seq1f1b/2",
        "dp=8:zero3/4",
        "dp=2:zero1:offload-file",
        "offload-file",
        "tp=2,pp=2,offload-file,recompute:selective",
        "dp=8:zero3/4:offload-file:tile/2",
        "dp=2:classic",
        "recompute",
        "recompute:selective",
        "recompute:full/2",
        "tp=2,dp=2,pp=2,order=dp.tp.pp",
        "tp=2,sp,twice,cp=2,dp=2:offload-file,pp=2:naive,recompute:full",
        "pp=2:gpipe/2",
    ] {
        assert_eq!(printed(text), text);
    }
}

/// Kills: two texts of one layout that differ, a default that is printed.
#[test]
fn what_is_taken_anyway_is_not_printed() {
    for (text, wanted) in [
        ("pp=2:gpipe", "pp=2"),
        ("offload-file,dp=2,recompute", "dp=2:offload-file,recompute"),
        ("cp=2:ring:consecutive", "cp=2"),
        ("cp=2:ulysses/2:zigzag", "cp=2:zigzag:ulysses/2"),
        ("tp=2,dp=2,pp=2,order=tp.dp.pp", "tp=2,dp=2,pp=2"),
        ("order= dp . tp ,dp=2,tp=2", "tp=2,dp=2,order=dp.tp"),
        (" recompute : selective , pp = 2 : interleaved / 2 ", "pp=2:interleaved/2,recompute:selective"),
        ("dp=1,order=tp,tp=2", "tp=2"),
        ("ep=4", "dp=4,ep=4"),
        ("ep=2,etp=2", "dp=4,ep=2,etp=2"),
        ("ep=2,pp=2", "dp=2,pp=2,ep=2"),
        ("tp=2,ep=2:by-hand", "tp=2,ep=2:by-hand"),
    ] {
        assert_eq!(printed(text), wanted, "{text}");
    }
    assert_eq!(made("tp=2,ep=2").unwrap().ranks(), 2);
    assert_eq!(made("ep=2,etp=2").unwrap().ranks(), 4);
}

/// Kills: a method that excludes the wrong ones, a default beside what was named in its place.
#[test]
fn of_each_choice_one_strategy_is_taken() {
    let taken = |text: &str| {
        let taken = Grammar(&LIST).taken(&made(text).unwrap());
        taken.into_iter().map(|i| LIST[i].word).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(taken("none"), "");
    assert_eq!(taken("tp=2,cp=2,dp=2,pp=2"), "tp consecutive ring dp gpipe");
    assert_eq!(
        taken("tp=2,sp,twice,cp=2:zigzag,dp=2:offload-file"),
        "tp sp zigzag ring dp offload-file twice"
    );
    assert_eq!(taken("cp=2:ulysses/2,dp=2:zero3:offload-file"), "consecutive ulysses zero3 offload-file");
    assert_eq!(taken("pp=2:gpipe/2,ep=2,recompute:full"), "dp gpipe ep full");
    let with = |text: &str, more| {
        let layout = Grammar(&LIST).with(made(text).unwrap(), more);
        layout.map(|layout| Grammar(&LIST).print(&layout)).map_err(|why| why.to_string())
    };
    assert_eq!(with("dp=2:offload-file", "zero3/2").unwrap(), "dp=2:zero3/2:offload-file");
    assert_eq!(with("dp=2", "recompute").unwrap(), "dp=2,recompute");
    assert_eq!(
        with("dp=2:zero1", "zero3").unwrap_err(),
        "zero1 and zero3 exclude each other; write one of them"
    );
    assert_eq!(with("tp=2,dp=2", "tile/3").unwrap(), "tp=2,dp=2:zero3:tile/3");
    assert_eq!(with("dp=4:zero3/2", "tile/3").unwrap(), "dp=4:zero3/2:tile/3");
    let excluded = "zero1 and zero3 exclude each other; write one of them";
    assert_eq!(with("dp=2:zero1", "tile/3").unwrap_err(), excluded);
    assert!(with("dp=2", "dp").is_err() && with("dp=2", "sp").is_err() && with("dp=2", "new").is_err());
}

/// Kills: what makes no sense and is taken for something else; an answer that does not say what would fit.
#[test]
fn what_does_not_fit_is_said_in_one_sentence() {
    for (text, wanted) in [
        ("dp=2:zero1:zero1", "zero1 is written twice; write it once"),
        ("dp=2:zero1:zero3", "zero1 and zero3 exclude each other; write one of them"),
        ("pp=2:gpipe:naive", "gpipe and naive exclude each other; write one of them"),
        ("recompute:full,recompute", "full and recompute exclude each other; write one of them"),
        ("tp=2:zero1", "zero1 (made up) goes with dp, not with tp: write dp=2:zero1"),
        ("tp=2,sp:zigzag", "zigzag (made up) goes with cp, not with tp: write cp=2:zigzag"),
        ("recompute:naive", "naive (made up) goes with pp, not with recompute: write pp=2:naive"),
        ("dp=2:full", "full (made up) goes with recompute, not with dp: write recompute:full"),
        ("tp=2:new", "\"new\" is not a method of tp; it has none"),
        ("tp=2:sp", "\"sp\" is not a method of tp; it has none"),
        ("dp=2:dp", "\"dp\" is not a method of dp; write classic, zero1, zero3, offload-file or tile"),
        ("cp=2:", "\"\" is not a method of cp; write consecutive, zigzag, ring or ulysses"),
        ("dp=2:tile/4", "tile (made up) needs zero3: write dp=2:zero3:tile/2"),
        ("dp=2:zero1:tile/4", "tile (made up) needs zero3: write dp=2:zero3:tile/2"),
        ("tp=2:tile/4", "tile (made up) goes with dp, not with tp: write dp=2:zero3:tile/2"),
        ("dp=2:zero3:tile", "tile needs a number, its pieces of a layer; write tile/2"),
        ("dp=1:zero1", "zero1 (made up) needs dp ranks, 2 or more: write dp=2:zero1"),
        ("pp=1:gpipe", "gpipe (made up) needs pp ranks, 2 or more: write pp=2:gpipe"),
        ("dp=2:zero1/2", "zero1/2: zero1 takes no number; write zero1"),
        ("pp=2:interleaved", "interleaved needs a number, its chunks of a rank; write interleaved/2"),
        ("dp=2:zero3/x", "zero3/x: ranks of a block must be a whole number, 1 or more, such as zero3/2"),
        (
            "pp=2:interleaved/0",
            "interleaved/0: chunks of a rank must be a whole number, 1 or more, such as interleaved/2",
        ),
        ("edp=2", "edp is never written: it follows from the other axes; leave it out"),
        (
            "zp=2",
            "\"zp\" is not an axis of a layout; the axes are tp, cp, dp, pp, ep and etp, and beside them sp, \
             offload-file, recompute and twice",
        ),
        ("zero1=2", "zero1=2: zero1 has no ranks of its own; write dp=2:zero1"),
        ("tp=2,ep=3", "tp=2,ep=3: 3 ranks of experts do not divide the 2 ranks of a stage; add dp=3"),
        (
            "tp=2,ep=4,pp=2",
            "tp=2,ep=4,pp=2: 4 ranks of experts do not divide the 2 ranks of a stage; add dp=2",
        ),
        (
            "tp=2,ep=10000000019",
            "tp=2,ep=10000000019: 10000000019 ranks of experts do not divide the 2 ranks of a stage",
        ),
        ("dp=3,ep=2", "dp=3,ep=2: 2 ranks of experts do not divide the 3 ranks of a stage; write dp=6"),
        ("order=tp", "order=tp orders nothing, as no axis is split; leave it out"),
        (
            "dp=2,order=dp,order=dp",
            "\"order=dp\" is not a valid order, or is a second one; write order=tp.dp once",
        ),
        (
            "dp=2,order=dp:zero1",
            "\"order=dp:zero1\" is not a valid order, or is a second one; write order=tp.dp once",
        ),
    ] {
        assert_eq!(whynot(text), wanted, "{text}");
    }
    for (order, wanted) in [
        ("tp.xp", "names \"xp\", which is not a split axis"),
        ("tp.cp.dp", "names \"cp\", which is not a split axis"),
        ("tp.dp.tp", "names tp twice"),
        ("dp", "lacks tp"),
        ("", "names \"\", which is not a split axis"),
    ] {
        let why =
            format!("order={order} {wanted}; each split axis is named once, innermost first: order=tp.dp");
        assert_eq!(whynot(&format!("dp=2,tp=2,order={order}")), why);
    }
}

/// Kills: sizes of other axes that a strategy is not told, its own number, an answer that asks with the wrong
/// ones.
#[test]
fn a_strategy_is_asked_with_all_sizes() {
    static HEADS: StrategyInfo = StrategyInfo {
        shares: |design, sizes| {
            let over = sizes.along(Axis::Tp) * sizes.number.unwrap_or(1);
            vec![DividedSize {
                what: "heads",
                size: design.shape().unwrap().heads.queries,
                over,
                by: DivisionRule::Equally,
            }]
        },
        ..NOTHING
    };
    let shape = Shape { heads: Heads::new(12, 12, 2), ..Shape::LLAMA };
    let fits = |tp: usize, number| {
        let mut ranks = Layout::UNSPLIT.sizes;
        ranks[Axis::Tp as usize] = tp;
        (HEADS.shares)(&shape.into(), &Sizes { ranks, number }).iter().all(DividedSize::fits)
    };
    assert_eq!(
        [fits(2, Some(3)), fits(2, Some(4)), fits(4, None), fits(5, None)],
        [true, false, true, false]
    );
    let nobody = misfit((Axis::Cp, 2), (None, &[]), "5 heads", &[]).to_string();
    assert_eq!(nobody, "cp=2 does not fit 5 heads: no number of cp ranks does");
}

/// Kills: a pair that is passed over; one that is thought to exclude itself; layouts without end.
#[test]
fn every_two_that_can_meet_do_so_in_a_longer_list() {
    let list = Grammar(&LIST);
    let fits = |layout: &Layout| !(list.print(layout).contains("sp,twice"));
    let all: Vec<_> =
        covering::of(list, 8, &fits).iter().map(|layout| (list.taken(layout), layout.ranks())).collect();
    assert!(all.iter().all(|(_, ranks)| *ranks <= 8) && all.len() <= 25, "{}", all.len());
    let words = |word: &str| LIST.iter().position(|about| about.word == word).unwrap();
    let meet = |a: usize, b: usize| all.iter().any(|(taken, _)| taken.contains(&a) && taken.contains(&b));
    for i in 0..LIST.len() {
        for j in 0..i {
            let (a, b) = (LIST[i], LIST[j]);
            let alike = (a.axis, a.choice) == (b.axis, b.choice) && a.choice != Choice::Layers;
            let without = |a: &StrategyInfo, b: &StrategyInfo| {
                a.needs.is_some_and(|needs| b.choice == Choice::State && b.word != needs)
            };
            let apart = alike || without(a, b) || [i, j] == [words("twice"), words("sp")];
            assert_eq!(meet(i, j), !apart, "{} and {}", a.word, b.word);
        }
    }
}

/// Kills: two methods of one choice, a number that stays, a method of another choice that is lost, an axis
/// without ranks.
#[test]
fn a_strategy_replaces_the_other_of_its_choice() {
    let about = |word: &str| *strategies::all().iter().find(|about| about.word == word).unwrap();
    let with = |text: &str, word: &str| {
        let layout: Layout = text.parse().unwrap();
        layout.with_instead(about(word)).map(|layout| layout.to_string())
    };
    let seen = |text: &str, word: &str| with(text, word).unwrap();
    assert_eq!(seen("dp=4:zero3,tp=2,sp,recompute", "zero1"), "tp=2,sp,dp=4:zero1,recompute");
    assert_eq!(seen("pp=2:interleaved/3,recompute", "zb-h1"), "pp=2:zb-h1,recompute");
    assert_eq!(seen("dp=2,pp=2:interleaved/3", "zero3"), "dp=2:zero3,pp=2:interleaved/3");
    assert_eq!(seen("dp=2:zero2", "recompute"), "dp=2:zero2,recompute");
    assert_eq!(seen("recompute", "recompute"), "recompute");
    assert!(with("tp=2", "zero1").unwrap_err().why.contains("needs dp ranks"));
    let limited: Layout = "dp=2".parse().unwrap();
    assert_eq!(limited.limited(Some(7)).with_instead(about("zero1")).unwrap().memory_limit(), Some(7));
}
