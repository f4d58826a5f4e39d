//! The whole model under every layout equals the oracle, bit for bit in the field: logits, losses, norms,
//! every gradient and every new weight, over two clipped steps of two ragged microbatches.
use comm::Axis;
use kernels::Heads;
use layers::{Biases, Choice, Design, OptimizerKind, Positions, Shape, StrategyInfo, Window};
use ops::{ADAMW, SGD};
use parallel::layout::covering::covering;
use parallel::{Layout, Network, strategies};
use prove::cases::{HABITS, Member, PANEL, ProofCase, certify_panel, never_ran};
use prove::{OracleTraces, Subject, Verdict, oracle, prove};
use tensor::{Key, Rope, Scaling, mix};

pub(crate) const SHAPE: Shape = Shape {
    width: 12,
    blocks: 2,
    heads: Heads::new(8, 4, 3),
    hidden: 8,
    vocabulary: 16,
    positions: Positions::Rotary(Rope { base: 100.0, scaling: Scaling::None }),
    ..Shape::LLAMA
};
const LAYOUTS: &str = "none tp=2 tp=2,sp tp=4 tp=8 tp=8,sp dp=2 dp=3 tp=4,sp,dp=2 tp=4,dp=2 tp=2,dp=3 \
    tp=2,dp=2:zero1,pp=2";

/// A fixed key and a fresh key.
fn keys() -> [Key; 2] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let fresh = Key(mix(now.as_nanos() as u64));
    println!("the fresh key is {:#x}", fresh.0);
    [Key(2), fresh]
}

/// Kills, beyond the proofs of single layers: unequal microbatches averaged, gradients of data ranks not
/// summed, gradients of data ranks averaged, a norm that counts replicas, weight decay of gains, moments
/// mixed up, accumulation overwritten, accumulation not reset; a dropout mask that depends on the layout or
/// the microbatch, documents that attend to each other, ignored targets that count, positions by row, texts
/// read by the wrong data rank.
fn equal(who: impl Fn(&Member) -> bool) {
    let (keys, written) =
        (keys(), LAYOUTS.split(' ').map(|layout| layout.parse().unwrap()).collect::<Vec<_>>());
    let layouts: Vec<Layout> = written.iter().copied().chain(covering(8)).collect();
    for (number, member) in PANEL.iter().enumerate().filter(|(_, member)| who(member)) {
        // models of two depths: some layouts have more chunks
        let mut subjects: Vec<(Subject, OracleTraces)> = Vec::new();
        // every two strategies meet in a layout of the covering, each with a third of the panel
        let meets = |(i, _): &(usize, &Layout)| *i < written.len() || (i + number).is_multiple_of(3);
        for (i, layout) in layouts.iter().enumerate().filter(meets) {
            // a quarter of the pairs has the fresh key, too: which, it decides
            let is_fresh = (i / 2 + number + (keys[1].0 % 4) as usize).is_multiple_of(4);
            let keys = &keys[..=usize::from(is_fresh)];
            let subject = member.subject(layout).unwrap();
            let at = subjects.iter().position(|(other, _)| *other == subject).unwrap_or_else(|| {
                subjects.push((subject, OracleTraces::default()));
                subjects.len() - 1
            });
            let (subject, truths) = &subjects[at];
            let params = oracle::design(&subject.model).shapes().len();
            let verdict = prove(subject, layout, keys, truths).unwrap();
            assert!(verdict.equal, "{}: {}", member.name, verdict.statement());
            let (ranks, stages) = (layout.ranks(), layout.size(Axis::Pp));
            let plan = layout.pipeline().plan(stages, 1);
            let [first, last] =
                [0, plan.all_chunks() - 1].map(|chunk| layout.pipeline().schedule.rank_of(chunk, &plan));
            let tied = subject.model.shape().is_some_and(|shape| shape.tied);
            let twice = usize::from(tied && first != last); // the embedding table
            let norms = usize::from(!layout.pipeline().schedule.updates_each());
            // logits; loss, norm²; the rest
            let a_key = ranks * (1 + 2 * (1 + norms)) + ranks / stages * (params + twice) * 2 * 2;
            assert_eq!(verdict.tensors, a_key * keys.len(), "{}, {layout}", member.name);
        }
        assert!(
            subjects.len() <= 12, // two of them with other batches, for steps of many updates; some sparse
            "one run of the oracle serves all layouts of as many blocks and experts"
        );
    }
}

/// Kills: two strategies that break only together, in a pair that no proof has.
#[test]
fn every_pair_of_entries_meets_among_the_layouts_that_are_proven() {
    let has = |layout: &Layout| layout.strategies().iter().map(|about| about.name).collect::<Vec<_>>();
    let all: Vec<_> = covering(8).iter().map(has).collect();
    let listed = strategies::all();
    for (i, one) in listed.iter().enumerate() {
        for other in &listed[i..] {
            let meet = all.iter().any(|layout| layout.contains(&one.name) && layout.contains(&other.name));
            let layers = |about: &StrategyInfo| about.choice == Choice::Layers;
            let instead =
                |a: &StrategyInfo, b: &StrategyInfo| a.name != b.name && a.choice == b.choice && !layers(a);
            let needed = |of: &&StrategyInfo| other.needs == Some(of.word);
            let without = listed.iter().find(|of| needed(of)).is_some_and(|of| instead(of, one));
            let recomputes = |about: &StrategyInfo| about.choice == Choice::Recompute;
            let alone = (one.alone || other.alone) && !recomputes(one) && !recomputes(other);
            let stale = |about: &StrategyInfo| about.word.starts_with("pipedream");
            let sharded = |about: &StrategyInfo| ["zero2", "zero3", "tile", "classic"].contains(&about.word);
            let versions = stale(one) && sharded(other) || sharded(one) && stale(other);
            let alternatives = versions || without || instead(one, other) || alone && one.name != other.name;
            assert_eq!(meet, !alternatives, "{} and {} in {all:?}", one.name, other.name);
        }
    }
}

#[test]
fn plain_descent_equals_the_oracle_under_every_layout() {
    equal(|member| member.optimizer.0 == SGD);
}

#[test]
fn adamw_equals_the_oracle_under_every_layout() {
    equal(|member| member.optimizer.0 != SGD);
}

/// Habits that the panel cannot have: no target of a step or of a rank counts, so that its gradients prove
/// nothing.
const NOTHING: [&str; 2] = ["a step of which no target counts", "a data rank of which no target counts"];

/// Kills: a habit of random cases missing from the panel, a shape not adapted to the layout, a shape changed
/// needlessly.
#[test]
fn the_panel_has_every_habit_and_gives_way_to_layouts() {
    let cases = |layout: &str| {
        let layout: Layout = layout.parse().unwrap();
        PANEL
            .iter()
            .map(move |member| ProofCase::of(&member.subject(&layout).unwrap(), layout).unwrap())
            .collect::<Vec<_>>()
    };
    let four = cases("tp=8,sp,dp=2");
    for (what, has) in HABITS.iter() {
        assert_eq!(four.iter().any(has), !NOTHING.contains(what), "{what}");
    }
    for member in PANEL.iter().filter(|member| member.shape.padding.is_some()) {
        let subject = member.subject(&Layout::default()).unwrap();
        let sequences = subject.steps.iter().flat_map(|(batch, _)| batch.microbatches().iter().flatten());
        let read: Vec<_> =
            sequences.flat_map(|sequence| &sequence.ids[..]).map(|&id| Some(id as usize)).collect();
        assert!(
            read.contains(&subject.model.shape().unwrap().padding),
            "{}: nobody reads its padding, but {read:?}",
            member.name
        );
    }
    for layout in ["tp=3", "tp=2", "dp=2"] {
        let habit = |what: &str| &HABITS.iter().find(|(habit, _)| *habit == what).unwrap().1;
        let lacks = |what: &str| !cases(layout).iter().any(habit(what));
        for what in ["more tensor ranks than KV heads", "ids that tensor ranks do not divide"] {
            assert_eq!(lacks(what), layout == "dp=2", "{what} under {layout}");
        }
        assert!(!lacks("bias of attention's output") && !lacks("a tied head"), "{layout}");
    }
    let why = |layout: &str| PANEL[0].subject(&layout.parse().unwrap()).unwrap_err().why;
    assert_eq!(why("tp=17"), "no small model fits tp=17; prove a model that does, with --config");
    assert!(why("dp=2:zero3,pp=2:pipedream").starts_with("PipeDream keeps versions of whole weights, but"));
}

/// Kills: a certificate that leaves a model out, a certificate with a smaller bound than its worst model's.
#[test]
fn a_panel_is_proven_under_layouts_that_few_models_fit() {
    for layout in ["tp=3", "tp=3,sp,dp=2"] {
        let layout: Layout = layout.parse().unwrap();
        let proven = certify_panel(&layout, &keys()[..1], (&Network::default(), &|_| ())).unwrap();
        let says = proven.statement();
        assert!(proven.verdict.equal && PANEL.iter().all(|member| says.contains(member.name)), "{says}");
        let bounds: Vec<_> = proven.models.iter().map(|model| model.bound_log2.unwrap()).collect();
        let worst = proven.verdict.bound_log2.unwrap();
        assert!(
            bounds.iter().all(|bound| *bound <= worst) && bounds.contains(&worst) && worst < -14.0,
            "{says}"
        );
    }
}

/// Kills: a proof of one model that does not list the features it never ran, a listed feature that did run.
#[test]
fn what_a_model_has_no_use_for_is_told_as_never_run() {
    let layout: Layout = "tp=2".parse().unwrap();
    let never = |shape| never_ran(&Subject::small(shape, &layout).unwrap(), &layout);
    let plain = never(SHAPE);
    for what in ["bias of attention's output", "biases of the feed-forward", "layer norm", "weight decay"] {
        assert!(plain.contains(&what), "{plain:?}");
    }
    assert!(!plain.contains(&"SwiGLU") && !plain.contains(&"packed documents"), "{plain:?}");
    let biased = never(Shape { bias: Biases { out: true, ..SHAPE.bias }, ..SHAPE });
    let exited: Vec<_> = plain.iter().filter(|what| !biased.contains(what)).collect();
    assert_eq!(exited, [&"bias of attention's output"]);
    let of_data = never_ran(&Subject::small(SHAPE, &layout).unwrap(), &"dp=2".parse().unwrap());
    assert!(!of_data.contains(&"more tensor ranks than KV heads"), "{of_data:?}");
}

/// Checks that the subject of a proof has documents and ignored targets. Kills: a subject that lost one of
/// its habits.
#[test]
fn a_small_subject_packs_documents_and_ignores_targets() {
    for data in [1, 3, 8] {
        let subject = Subject::smallest(SHAPE, &format!("dp={data}").parse().unwrap()).unwrap();
        let sequences = || subject.steps.iter().flat_map(|(batch, _)| batch.microbatches().iter().flatten());
        assert!(sequences().any(|s| s.documents.len() > 1), "{data} data ranks");
        assert!(sequences().any(|s| s.targets.contains(&tensor::IGNORED)), "{data} data ranks");
        assert!(subject.steps.iter().all(|(batch, _)| batch.counted() < batch.tokens()), "{data} data ranks");
    }
}

/// Proves classifiers of one to four layers, and blocks without embedding and head. Kills: noise or clipping
/// that program and oracle do not share, examples of another step, logits of another data rank's examples, a
/// proof that compares the tensors of no rank.
#[test]
fn models_of_features_are_proven_under_every_layout() {
    let classifier = |sizes: &[usize]| Design::Classifier { sizes: sizes.to_vec() };
    let models: [(Design, OptimizerKind, Option<f64>, &[&str]); 5] = [
        (classifier(&[6, 8, 4, 5]), SGD, Some(0.5), &["pp=3", "pp=2,tp=2,sp,dp=2"]),
        (classifier(&[6, 8, 10]), ADAMW, None, &["pp=2,tp=2", "dp=2:zero1"]),
        (classifier(&[6, 8, 4, 7, 5]), ADAMW, Some(0.5), &["pp=3", "pp=2,tp=2,sp"]),
        (classifier(&[3, 10]), SGD, None, &["dp=4"]),
        (Design::Blocks(SHAPE), ADAMW, Some(0.5), &["dp=2:zero1", "dp=4"]),
    ];
    for (model, kind, clip, more) in models {
        let parameters = oracle::design(&model).shapes().len();
        for layout in ["none", "tp=2", "tp=2,sp", "dp=2", "tp=2,dp=2"].iter().chain(more) {
            let layout: Layout = layout.parse().unwrap();
            let subject =
                Subject { optimizer: (kind, clip.into()), ..Subject::small(model.clone(), &layout).unwrap() };
            let verdict = prove(&subject, &layout, &keys(), &OracleTraces::default()).unwrap();
            assert!(verdict.equal, "{}", verdict.statement());
            if layout.size(comm::Axis::Pp) == 1 {
                let a_rank = 1 + 2 * (2 + 2 * parameters); // texts; loss, norm², gradients, weights
                assert_eq!(verdict.tensors, a_rank * keys().len() * layout.ranks(), "{layout}");
            }
            let whole = prove::locate(&subject, &layout, &keys()[..1]).unwrap();
            assert_eq!(whole, None, "everything looked at, {layout}");
        }
    }
}

/// Proves a classifier cut after any layer, or, with tensor ranks, after a pair. Kills: a stage that begins
/// with another layer than the one before ends with, a default split that counts pairs where layers are cut,
/// or layers where pairs are.
#[test]
fn a_classifier_is_proven_however_it_is_cut() {
    let model = Design::Classifier { sizes: vec![6, 8, 4, 5] };
    let cut: [(&str, Option<&[usize]>); 6] = [
        ("pp=2", Some(&[1, 2])),
        ("pp=2", Some(&[2, 1])),
        ("pp=2:1f1b,dp=2", None),
        ("pp=2,dp=2:zero1", Some(&[1, 2])),
        ("pp=2:gpipe,dp=2:zero3", Some(&[2, 1])),
        ("pp=2,tp=2", Some(&[1, 1])),
    ];
    for (layout, split) in cut {
        let layout: Layout = layout.parse().unwrap();
        let layout = split.map_or(Ok(layout), |split| layout.splitting(split, &model)).unwrap();
        let subject = Subject::small(model.clone(), &layout).unwrap();
        let verdict = prove(&subject, &layout, &keys(), &OracleTraces::default()).unwrap();
        assert!(verdict.equal, "{split:?}: {}", verdict.statement());
    }
    let layout: Layout = "pp=2,tp=2".parse().unwrap();
    let why = layout.splitting(&[1, 2], &model).unwrap_err().to_string();
    assert_eq!(
        why,
        "the split 1 and 2 is not 2 pairs of layers in 2 chunks of at least one each, such as 1,1"
    );
    let deep: Layout = "pp=4".parse().unwrap();
    let why = deep.fits(model).unwrap_err().to_string();
    assert_eq!(why, "pp=4 does not fit 3 layers: pp can be 1, 2 or 3");
}

/// Kills: a bound that does not count the terms of features.
#[test]
fn the_bound_of_a_classifier_is_small_and_grows_with_its_sizes() {
    let bound = |hidden: &[usize]| {
        let sizes = [&[9], hidden, &[10]].concat();
        let subject = Subject::small(Design::Classifier { sizes }, &Layout::default()).unwrap();
        subject.bound_log2(2).unwrap()
    };
    let (one, two) = (bound(&[8]), bound(&[8, 8]));
    assert!(one < two && two < -70.0, "{one} {two}");
}

/// Checks that data ranks read their own texts, and have logits of each prompt's last token and of every
/// later token. Kills: a way of reading that no generation uses: all texts on every rank, all logits of a
/// prompt.
#[test]
fn texts_are_read_as_a_generation_reads_them() {
    let read = Subject { steps: Vec::new(), ..Subject::small(SHAPE, &"dp=2".parse().unwrap()).unwrap() };
    let rows: usize = read.texts.iter().map(|(ids, prompt)| ids.len() - prompt + 1).sum();
    let truths = OracleTraces::default();
    for (layout, times) in [("none", 1), ("tp=2,sp", 2), ("dp=2", 1), ("tp=2,dp=2", 2)] {
        let verdict = prove(&read, &layout.parse().unwrap(), &[Key(1)], &truths).unwrap();
        let wanted = (times * rows * SHAPE.vocabulary, true);
        assert_eq!((verdict.elements, verdict.equal), wanted, "{}", verdict.statement());
    }
}

/// Checks that a window too wide for the short texts is narrowed and reported, and that few positions give
/// short documents. Kills: a proof that never reaches the edge of its window.
#[test]
fn a_subject_shows_its_window_and_keeps_to_its_positions() {
    let window = |size| Some(Window { size, sinks: 0 });
    let layout = Layout::default();
    let wide = Subject::small(Shape { window: window(4096), ..SHAPE }, &layout).unwrap();
    assert_eq!((wide.model.shape().unwrap().window, wide.narrowed), (window(2), Some(2)));
    assert!(wide.texts.iter().any(|(ids, _)| ids.len() > 2), "a token beyond the window");
    let says = prove(&wide, &layout, &[Key(1)], &OracleTraces::default()).unwrap().statement();
    assert!(says.contains("narrowed to 2 tokens"), "{says}");
    let narrow = Subject::small(Shape { window: window(2), ..SHAPE }, &layout).unwrap();
    assert_eq!(narrow.narrowed, None);
    for n in [1, 2, 3] {
        let shape = Shape { positions: Positions::Learned(n), ..SHAPE };
        let verdict =
            prove(&Subject::small(shape, &layout).unwrap(), &layout, &[Key(1)], &OracleTraces::default());
        assert!(verdict.unwrap().equal, "{n} positions");
    }
}

/// Checks that another oracle is rejected: the report names the first difference, its rank and the number of
/// elements.
#[test]
fn another_model_is_rejected_by_name() {
    let layout: Layout = "tp=2".parse().unwrap();
    let subject = Subject::small(SHAPE, &layout).unwrap();
    let mut other = subject.clone();
    other.steps[0].1 = 0.5; // half the oracle's learning rate
    let truths = OracleTraces::only(other.clone());
    assert!(prove(&other, &layout, &[Key(1)], &truths).unwrap().equal);
    let verdict = prove(&subject, &layout, &[Key(1)], &truths).unwrap();
    let first = verdict.first_difference.clone().unwrap();
    assert!(!verdict.equal && first.name == "step 0: new embedding" && first.rank == 0, "{first:?}");
    assert!(first.differ > 0 && first.differ <= first.of && first.of == 16 * 12, "{first:?}");
    let says = verdict.statement();
    assert!(says.contains("Not equal") && says.contains("\"step 0: new embedding\", rank 0"), "{says}");
}

#[test]
fn the_bound_is_small_and_grows_with_the_shapes() {
    let bound = |blocks| {
        let shape = Shape { blocks, ..SHAPE };
        let bound = |subject: Subject| subject.bound_log2(2).unwrap();
        let [one, shared] =
            [Subject::smallest(shape, &Layout::UNSPLIT), Subject::small(shape, &Layout::default())];
        let (one, shared) = (bound(one.unwrap()), bound(shared.unwrap()));
        assert!(one < shared && shared < -36.0, "what deals to eight ranks: {shared}, to one: {one}");
        one
    };
    assert!(bound(1) < -45.0 && bound(1) < bound(2) && bound(2) < -36.0, "{} {}", bound(1), bound(2));
}

#[test]
fn layouts_that_do_not_fit_are_refused_before_anything_runs() {
    let why = |layout: &str| {
        let layout: Layout = layout.parse().unwrap();
        prove(&Subject::small(SHAPE, &layout).unwrap(), &layout, &[Key(1)], &OracleTraces::default())
            .unwrap_err()
            .why
    };
    assert_eq!(
        why("tp=16"),
        "tp=16 does not fit 8 query heads and 8 hidden features: tp can be 1, 2, 4 or 8"
    );
    assert!(why("tp=3").ends_with("tp can be 1, 2, 4 or 8"), "{}", why("tp=3"));
}

/// Kills: equality without a bound on its error that is told as a proof.
#[test]
fn equality_without_a_bound_is_no_proof() {
    let verdict =
        |bound_log2| Verdict { equal: true, bound_log2, keys: vec!["0x1".into()], ..Verdict::default() };
    let without = verdict(None).statement();
    assert!(without.starts_with("Equal, but without a bound on the error, because"), "{without}");
    assert!(verdict(Some(-31.0)).statement().starts_with("Randomised proof: "));
}
