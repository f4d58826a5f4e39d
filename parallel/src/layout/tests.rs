mod grammar;

use super::*;
use ::tensor::Cpu;
use kernels::Heads;
use layers::Shape;
use ops::RandomValues;

fn read(text: &str) -> Result<Layout> {
    text.parse()
}
fn why(text: &str) -> String {
    read(text).unwrap_err().to_string()
}
fn shape(queries: usize, keys: usize, hidden: usize) -> Shape {
    Shape { width: 8, heads: Heads::new(queries, keys, 4), hidden, ..Shape::LLAMA }
}

/// Every layout of at most `MOST_OFFERED` ranks. Kills: an axis printed and not read, or read as another.
#[test]
fn every_printed_layout_reads_back_as_itself() {
    let mut all = vec![vec![]];
    for axis in split_axes().filter(|axis| Axis::DENSE.contains(axis)) {
        let longer = |sizes: &Vec<(Axis, usize)>| {
            let ranks: usize = sizes.iter().map(|(_, size)| size).product();
            (1..=MOST_OFFERED / ranks)
                .map(|size| [sizes.clone(), vec![(axis, size)]].concat())
                .collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    let with_experts = |sizes: Vec<(Axis, usize)>| {
        let stage: usize = sizes.iter().filter(|(axis, _)| *axis != Axis::Pp).map(|(_, n)| n).product();
        let most = if stage > 8 { 1 } else { stage }; // of few ranks all there are, for time
        let size = move |n: &usize| *n <= most && stage.is_multiple_of(*n);
        let pairs = (1..=stage).filter(size).flat_map(move |ep| (1..=stage / ep).map(move |etp| (ep, etp)));
        let pairs = pairs.filter(move |(ep, etp)| stage.is_multiple_of(ep * etp) && size(etp));
        pairs.map(move |(ep, etp)| {
            let of = |axis| match axis {
                Axis::Ep => (axis, ep),
                Axis::Etp => (axis, etp),
                axis => *sizes.iter().find(|(of, _)| *of == axis).unwrap(),
            };
            split_axes().map(of).collect::<Vec<_>>()
        })
    };
    let all: Vec<_> = all.into_iter().flat_map(with_experts).collect();
    assert!(all.len() > 5_000);
    for sizes in all {
        let layout = Layout::new(&sizes).unwrap();
        assert_eq!(layout.axes(), sizes);
        let dense = sizes.iter().filter(|(axis, _)| Axis::DENSE.contains(axis));
        assert_eq!(layout.ranks(), dense.map(|(_, size)| size).product::<usize>());
        assert!(sizes.iter().all(|&(axis, size)| layout.size(axis) == size));
        assert_eq!(read(&layout.to_string()), Ok(layout));
        let spelt: Vec<_> = sizes.iter().map(|(axis, size)| format!(" {axis} = {size}\t")).collect();
        assert_eq!(read(&spelt.join(",")), Ok(layout));
    }
}

#[test]
fn layouts_are_printed_as_users_write_them() {
    let printed = |sizes: &[(Axis, usize)]| Layout::new(sizes).unwrap().to_string();
    assert_eq!(printed(&[(Axis::Dp, 2), (Axis::Tp, 4)]), "tp=4,dp=2");
    assert_eq!(printed(&[(Axis::Dp, 2), (Axis::Tp, 1)]), "dp=2");
    assert_eq!((printed(&[(Axis::Tp, 1)]), printed(&[])), ("none".to_owned(), "none".to_owned()));
    assert_eq!(format!("{:<6}|", Layout::UNSPLIT), "none  |");
    for unsplit in ["none", " none ", "tp=1", "dp=1,tp=1", "tp=01"] {
        assert_eq!(read(unsplit), Ok(Layout::default()), "{unsplit}");
    }
    assert_eq!(read("dp=2,tp=4"), read("tp=4,dp=2"));
    assert_eq!(read("ep=4"), read("dp=4,ep=4"));
    assert_eq!(printed(&[(Axis::Tp, 2), (Axis::Ep, 2)]), "tp=2,ep=2");
    assert_eq!(
        Layout::UNSPLIT.axes(),
        [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Ep, Axis::Etp, Axis::Tp].map(|axis| (axis, 1))
    );
}

#[test]
fn what_is_no_layout_is_said_in_one_sentence() {
    let starts = |text: &str, says: &str| assert!(why(text).starts_with(says), "{}", why(text));
    let empty = "the layout is empty; write none, or ranks along axes, such as tp=2,dp=2";
    assert_eq!((why(""), why(" ")), (empty.to_owned(), empty.to_owned()));
    starts("tp=2,", "\"\" is not part of a layout; write axis=ranks, such as tp=2,dp=2");
    starts("tp", "\"tp\" is not part of a layout; write axis=ranks, such as tp=2,dp=2");
    assert!(why("tp=2,ps").contains("and beside them "), "{}", why("tp=2,ps"));
    starts("zp=2", "\"zp\" is not an axis of a layout; the axes are tp, etp, ep, cp, dp and pp");
    starts("TP=2", "\"TP\" is not an axis of a layout; the axes are tp, etp, ep, cp, dp and pp");
    assert_eq!(why("tp=2,dp=2,tp=2"), "the tp axis is given twice; give each axis once");
    for (text, seen) in [("tp=", ""), ("tp=0", "0"), ("tp=-1", "-1"), ("tp=+2", "+2"), ("tp=2=2", "2=2")] {
        let wanted = format!("tp is {seen:?}; it must be a whole number of ranks, 1 or more");
        assert_eq!(why(text), wanted);
    }
    for with in ["none,tp=2", "tp=2,none", "tp=2, none ,"] {
        assert_eq!(why(with), "none stands alone: it cannot be combined with \"tp=2\"");
    }
    assert_eq!(why("none,none"), "none stands alone: it cannot be combined with \"none\"");
}

#[test]
fn more_ranks_than_there_may_be_are_refused() {
    let wanted = |seen| {
        format!("{seen} makes more than 1048576 ranks; the product of all axes must be at most 1048576")
    };
    assert_eq!(read("tp=1024,dp=1024").unwrap().ranks(), 1 << 20);
    let huge = format!("tp={},dp=2", 1u64 << 63);
    for text in ["tp=1048577", "tp=1024,dp=1025", "tp=99999999999999999999", huge.as_str()] {
        assert_eq!(why(text), wanted(text));
    }
}

#[test]
fn ranks_that_cannot_share_a_model_are_refused_with_those_that_can() {
    let fits = |text: &str, shape: &Shape| read(text).unwrap().fits(shape).map_err(|why| why.to_string());
    let model = shape(8, 4, 96);
    for good in ["none", "tp=2", "tp=4", "tp=8,sp", "tp=4,dp=256", "dp=1023"] {
        assert_eq!(fits(good, &model), Ok(()), "{good}");
    }
    let wrong = |text: &str, shape: &Shape| fits(text, shape).unwrap_err();
    assert_eq!(
        wrong("tp=5", &model),
        "tp=5 does not fit 8 query heads, 4 KV heads and 96 hidden features: tp can be 1, 2, 4 or 8"
    );
    assert_eq!(wrong("tp=16,dp=2", &model), "tp=16 does not fit 8 query heads: tp can be 1, 2, 4 or 8");
    assert_eq!(wrong("tp=4", &shape(12, 6, 96)), "tp=4 does not fit 6 KV heads: tp can be 1, 2, 3, 6 or 12");
    assert_eq!(wrong("tp=6", &shape(12, 6, 33)), "tp=6 does not fit 33 hidden features: tp can be 1 or 3");
    assert_eq!(fits("tp=6", &shape(12, 1, 96)), Ok(()), "one KV head, six copies");
    let eight = Shape { blocks: 8, ..model };
    assert_eq!(fits("pp=8", &eight), Ok(()));
    let odd = Shape { hidden: 33, ..model };
    assert!(fits("tp=2", &odd).is_err());
    assert_eq!(
        fits("tp=2", &Shape { experts: Some(layers::Experts::MIXTRAL), ..odd }),
        Ok(()),
        "nobody has them"
    );
    let few =
        Shape { experts: Some(layers::Experts { count: 3, hidden: 6, ..layers::Experts::MIXTRAL }), ..model };
    assert_eq!(
        [fits("ep=3", &few), fits("tp=2,ep=2", &few), fits("tp=2,etp=2", &few)],
        [Ok(()), Ok(()), Ok(())]
    );
    assert_eq!(wrong("ep=4", &few), "ep=4 does not fit 3 experts: ep can be 1, 2 or 3");
    assert!(
        wrong("tp=4,etp=4", &few)
            .starts_with("etp=4 does not fit 6 hidden features of an expert: etp can be")
    );
    assert!(wrong("ep=2", &model).starts_with("ep=2 does not fit a model without experts"));
    assert_eq!(wrong("pp=9", &eight), "pp=9 does not fit 8 blocks: pp can be 1, 2, 3, 4, 5, 6, 7 or 8");
    let four = Shape { blocks: 4, ..model };
    assert_eq!(
        wrong("pp=4:zb-v", &four),
        format!(
            "pp=4:zb-v does not fit 4 blocks in 8 chunks: pp can be 2 with zb-v; pp=4 fits with {}",
            schedules(|word| read(&format!("pp=4:{word}")).unwrap().fits(four).is_ok())
        )
    );
    let why = wrong("pp=2:interleaved/3", &four);
    assert!(
        why.starts_with("pp=2:interleaved/3 does not fit 4 blocks in 6 chunks: no number of pp ranks does; ")
    );
    assert!(why.contains("pp=2 fits with 1f1b, naive, gpipe, interleaved, looped-bfs, "), "{why}");
    assert_eq!(
        wrong("pp=9:zb-v", &eight),
        "pp=9:zb-v does not fit 8 blocks in 18 chunks: pp can be 2, 3 or 4 with zb-v"
    );
    assert_eq!(
        wrong("tp=3,dp=300", &shape(4, 4, 4)),
        "tp=3 does not fit 4 query heads, 4 KV heads and 4 hidden features: tp can be 1 or 2"
    );
}

/// The words of these schedules, as a sentence lists them; 1F1B, naive and GPipe are among them.
fn schedules(which: impl Fn(&str) -> bool) -> String {
    let words: Vec<_> = pipeline::ALL.iter().map(|of| of.about().word).filter(|word| which(word)).collect();
    assert!(words.starts_with(&["1f1b", "naive", "gpipe", "zb-h1", "zb-h2"]), "{words:?}");
    let (last, others) = words.split_last().unwrap();
    format!("{} or {last}", others.join(", "))
}

/// Kills: slices of sequences with what needs a whole microbatch; a refusal of experts that go token by
/// token.
#[test]
fn slices_take_no_experts_that_see_whole_microbatches() {
    use layers::{Balance, Experts};
    let fits = |text: &str, experts: Experts| {
        let shape = Shape { blocks: 2, experts: Some(experts), ..shape(8, 4, 96) };
        read(text).unwrap().fits(shape).map_err(|why| why.to_string())
    };
    let of = |microbatch, sequence, z| Experts {
        balance: Balance { microbatch, sequence, z, ..Balance::default() },
        ..Experts::MIXTRAL
    };
    let together = [
        Experts { capacity: Some(1.0), ..Experts::MIXTRAL },
        Experts { forced: true, ..Experts::MIXTRAL },
        of(0.5, 0.0, 0.0),
        of(0.0, 0.5, 0.0),
        Experts { balance: Balance { pooled: 0.5, ..Balance::default() }, ..Experts::MIXTRAL },
    ];
    for experts in together {
        let why = fits("pp=2:seq1f1b", experts).unwrap_err();
        assert_eq!(
            why,
            format!(
                "pp=2:seq1f1b does not fit 1 capacity or balance of experts over a whole microbatch, of \
                 which a slice sees only a part: no number of pp ranks does; pp=2 fits with {}",
                schedules(|word| fits(&format!("pp=2:{word}"), experts).is_ok())
            )
        );
        assert_eq!([fits("pp=2", experts), fits("pp=2:seq1f1b/1", experts)], [Ok(()), Ok(())]);
    }
    assert_eq!(fits("pp=2:seq1f1b", of(0.0, 0.0, 0.5)), Ok(()));
}

/// Kills: a word that is printed and not read, or taken where there is nobody to share tokens with.
#[test]
fn sequence_parallelism_is_over_the_tensor_ranks() {
    for text in ["tp=2,sp", "sp,tp=2", " sp , tp = 2"] {
        let layout = read(text).unwrap();
        assert_eq!((layout.to_string(), layout.ranks()), ("tp=2,sp".into(), 2));
        assert_eq!(Ok(layout), read("tp=2").unwrap().with("sp"));
        let names: Vec<_> = layout.strategies().iter().map(|about| about.name).collect();
        assert_eq!(names, ["tensor parallelism", "sequence parallelism"]);
    }
    assert_eq!(read("dp=2,sp,tp=4").unwrap().to_string(), "tp=4,sp,dp=2");
    assert_eq!(read("tp=4,sp,dp=2"), read("dp=2,sp,tp=4"));
    assert_ne!(read("tp=2,sp"), read("tp=2"));
    let needs = "sp (sequence parallelism) needs tp ranks, 2 or more: write tp=2,sp";
    assert_eq!((why("sp"), why("dp=2,sp"), why("tp=1,sp")), (needs.into(), needs.into(), needs.into()));
    let alone = "has no ranks of its own; write tp=2,sp";
    assert_eq!(why("tp=2,sp=2"), format!("sp=2: sp {alone}"));
    assert_eq!(why("dp=2,sp=4"), format!("sp=4: sp {alone}"));
    assert_eq!(why("tp=2,sp,sp"), "sp is written twice; write it once");
}

/// Kills: a strategy of the list that no layout can name, or that layouts name in two ways.
#[test]
fn every_strategy_of_the_list_has_a_key_of_its_own() {
    let mut keys = Vec::new();
    for about in strategies::all() {
        let text = about.written(2);
        let layout = read(&text).unwrap_or_else(|why| panic!("{}: {why}", about.name));
        assert_eq!(read(&layout.to_string()), Ok(layout));
        assert!(layout.takes(about), "{text}");
        assert!(!keys.contains(&about.word), "two strategies are written {text}");
        keys.push(about.word);
        let hint = about.hints.last();
        assert!(hint.is_some_and(|(of, _)| of.is_empty()), "{}: a hint for any tensor", about.name);
    }
    assert!(
        grammar().contains("none, tp=2, ") && grammar().contains("`equipart strategies` lists all"),
        "{}",
        grammar()
    );
    assert!(grammar().len() <= 5 * 70, "five lines of a terminal: {}", grammar());
    assert!(keys.len() <= 64, "a layout has a bit for each");
}

/// Kills: a pair of strategies that no proof of pairs sees, a layout that machines of 8 ranks cannot hold.
#[test]
fn every_two_strategies_meet_in_few_layouts() {
    let all = covering::covering(8);
    assert!(all.iter().all(|layout| layout.ranks() <= 8 && read(&layout.to_string()) == Ok(*layout)));
    let meets =
        |a: &StrategyInfo, b: &StrategyInfo| all.iter().any(|layout| layout.takes(a) && layout.takes(b));
    let (mut apart, mut exclude, list) = (Vec::new(), Vec::new(), strategies::all());
    let one_of = |a: &StrategyInfo, b: &StrategyInfo| {
        let alike = |c: &StrategyInfo| (c.choice, c.axis) == (b.choice, b.axis) && c.choice != Choice::Layers;
        let needed = list.iter().find(|c| c.axis == a.axis && Some(c.word) == a.needs);
        let versions =
            pipeline::ALL.iter().filter(|of| of.updates_each()).any(|of| of.about().word == a.word);
        let shards = ["zero2", "zero3", "tile"].contains(&b.word); // which keep no version of whole weights
        let alone = (a.alone || b.alone) && ![a, b].iter().any(|about| about.choice == Choice::Recompute);
        alone || alike(a) || versions && shards || needed.is_some_and(|c| alike(c) && c.word != b.word)
    };
    for (i, a) in list.iter().enumerate() {
        assert!(meets(a, a), "{}", a.name);
        apart.extend(list[..i].iter().filter(|b| !meets(a, b)).map(|b| (b.word, a.word)));
        exclude.extend(list[..i].iter().filter(|b| one_of(a, b)).map(|b| (b.word, a.word)));
    }
    assert_eq!(apart, exclude, "they exclude each other");
    assert!(apart.contains(&("dp", "zero1")) && apart.contains(&("1f1b", "gpipe")), "{apart:?}");
    let (states, schedules) = (data::ALL.len(), pipeline::ALL.len());
    assert!(all.len() <= states * schedules + list.len(), "{} for {states} × {schedules}", all.len());
}

/// Kills: a root beside ranks or methods that split its model, a root that forbids recomputation, a refusal
/// that depends on the order.
#[test]
fn a_root_stands_alone() {
    for (text, with) in [
        ("dp=2:classic,tp=2", "tp=2"),
        ("tp=2,sp,dp=3:classic", "tp=2"),
        ("pp=2,dp=2:classic", "pp=2"),
        ("dp=2:classic,pp=2:gpipe", "pp=2"),
        ("cp=2,dp=2:classic", "cp=2"),
        ("ep=2,dp=2:classic", "ep=2"),
    ] {
        let ranks = if text.contains("dp=3") { 3 } else { 2 };
        let wanted = format!(
            "classic stands alone: it is combined with {with}; write dp={ranks}:classic, with recompute at most"
        );
        assert_eq!(why(text), wanted, "{text}");
    }
    let exclude = "classic and zero1 exclude each other; write one of them";
    assert_eq!(why("dp=2:classic:zero1"), exclude);
    assert_eq!(
        why("dp=1:classic"),
        "classic (DataParallel, with a root) needs dp ranks, 2 or more: write dp=2:classic"
    );
    assert_eq!(why("dp=2:classic/2"), "classic/2: classic takes no number; write classic");
    assert!(read("tp=2,dp=2").unwrap().with("classic").is_err());
    for text in ["dp=2:classic", "dp=4:classic,recompute"] {
        assert_eq!(read(text).unwrap().to_string(), text);
        assert_eq!(read(text).unwrap().rests(), ShardingStrategy::ROOT);
    }
    assert_eq!(read("dp=2,recompute").unwrap().with("classic"), read("recompute,dp=2:classic"));
}

/// Kills: a state split or a schedule that a layout names and nobody asks for.
#[test]
fn a_layout_knows_its_schedule_and_where_parameters_rest() {
    let of = |text: &str| read(text).unwrap();
    assert_eq!([of("none").rests(), of("dp=2").rests()], [ShardingStrategy::WHOLE; 2]);
    let zero1 = ShardingStrategy { state: ops::AtRest::Shard, ..ShardingStrategy::WHOLE };
    assert_eq!(of("tp=2,dp=2:zero1").rests(), zero1);
    let (device, values, mesh) =
        (kernels::meta_of::<Cpu<f32>>(), RandomValues { seed: 0 }, of("dp=2").ghost(1).unwrap());
    assert_eq!(of("dp=2:zero1").place(&device, &mesh, &values).rests, zero1);
    assert_eq!(["none", "pp=2"].map(|text| of(text).pipeline().schedule.about().word), ["none", "1f1b"]);
}

/// Kills: an order that is read and not obeyed.
#[test]
fn ranks_lie_in_the_order_of_the_layout() {
    let groups = |text: &str| {
        let (layout, tensor) = (read(text).unwrap(), Axis::Tp);
        let run = |_: Cpu<f32>, mesh: Mesh<::tensor::Host>| {
            let group = mesh.group(tensor);
            Ok::<_, CommError>(group.rank())
        };
        let ranks = layout.world().unwrap().run(run).unwrap();
        let ghosts = (0..layout.ranks()).map(|rank| layout.ghost(rank).unwrap().group(tensor).rank());
        assert_eq!(ranks, ghosts.collect::<Vec<_>>());
        ranks
    };
    assert_eq!(groups("tp=2,dp=2"), [0, 1, 0, 1]);
    assert_eq!(groups("tp=2,dp=2,order=dp.tp"), [0, 0, 1, 1]);
}
