//! Random cases: each kind is drawn often enough, and a failing case is found and shrunk.
use super::drawn::drawn_with;
use super::*;
use crate::{Difference, Verdict};
use layers::{FeedForward, NormKind, Scoring, Shape};
use ops::SGD;
use parallel::{Layout, strategies};
use std::collections::BTreeSet;
use std::iter::successors;
use tensor::Key;

fn numbers(from: u64) -> impl Iterator<Item = Key> {
    successors(Some(Key(from)), |key| Some(key.next()))
}

fn drawn(n: usize) -> Vec<ProofCase> {
    numbers(6).take(n).map(|key| draw(key.0, None)).collect()
}

/// Checks that each habit is in at least one of fifty cases, that each kind of choice is in at least a tenth
/// of them with its strategies equally often, and that every layout of one strategy and whole models are
/// drawn. Kills: a habit that is never drawn, a new strategy of the list that is never drawn.
#[test]
fn every_habit_and_every_strategy_is_drawn_often() {
    let cases = drawn(6000);
    for (what, is) in HABITS.iter() {
        let seen = cases.iter().filter(|case| is(case)).count();
        assert!(seen * 50 >= cases.len(), "{what}: {seen} of {}", cases.len());
    }
    for about in strategies::all() {
        let with = |case: &&ProofCase| case.layout.strategies().iter().any(|a| a.name == about.name);
        let seen = cases.iter().filter(with).count();
        let others = strategies::all().iter().filter(|of| drawn_with(of) == drawn_with(about));
        assert!(seen * 10 * others.count() >= cases.len(), "{}: {seen} of {}", about.name, cases.len());
    }
    // half of the tensor layouts are sparse
    let dense = |case: &ProofCase| case.layout.to_string().replace(":sparse/50", "");
    let layouts: BTreeSet<String> = cases.iter().map(dense).collect();
    for layout in ["none", "tp=2", "tp=3", "tp=4", "tp=8", "dp=2", "dp=3", "dp=8", "tp=4,dp=2", "pp=8"] {
        assert!(layouts.contains(layout), "{layout} is not among {layouts:?}");
    }
    for several in ["tp=2,sp,dp=2", "tp=2,sp,dp=4:zero1"] {
        let with = |layout: &String| layout.starts_with(several);
        assert!(layouts.iter().any(with), "{several} is not among {layouts:?}");
    }
    assert!(layouts.iter().any(|layout| layout.contains(",order=pp.")), "{layouts:?}");
}

/// Kills: experts that the oracle does not support (more chosen than there are, groups of unequal size,
/// biases besides), a setting drawn only together with one other, texts where tokens compete.
#[test]
fn experts_are_drawn_of_every_kind_and_can_be() {
    let cases: Vec<_> = drawn(1000).into_iter().filter(|case| case.shape.experts.is_some()).collect();
    let mut kinds = BTreeSet::new();
    for case in &cases {
        let of = case.shape.experts.unwrap();
        let (groups, from) = of.groups.map_or((1, 1), |groups| (groups.count, groups.chosen));
        assert!(of.count.is_multiple_of(groups) && (1..=groups).contains(&from), "{case}");
        assert!((1..=of.count / groups * from).contains(&of.chosen) && !of.forced, "{case}");
        assert!(of.expert_choice_conflict().is_none(), "{case}");
        assert!(!case.shape.bias.mlp && (case.texts.is_empty() || of.capacity.is_none()), "{case}");
        kinds.insert((
            of.scoring == Scoring::Softmax,
            of.groups.is_some(),
            of.capacity.is_some(),
            of.shared.is_some(),
        ));
    }
    assert_eq!(kinds.len(), 16, "{kinds:?}");
    let odd =
        cases.iter().filter(|case| case.shape.experts.is_some_and(|of| of.count % 2 == 1 && of.count > 1));
    assert!(odd.count() * 5 > cases.len(), "experts that ranks do not divide");
}

/// Draws all combinations of norm, feed-forward and biases. Kills: two settings that depend on each other.
#[test]
fn every_combination_of_norm_feed_forward_and_biases_is_drawn() {
    let of = |case: ProofCase| {
        let Shape { norm, feed_forward, bias, .. } = case.shape;
        (norm == NormKind::Rms, feed_forward, bias)
    };
    let mut seen = Vec::new();
    for combination in drawn(2000).into_iter().map(of) {
        if !seen.contains(&combination) {
            seen.push(combination);
        }
    }
    assert_eq!(seen.len(), 2 * 6 * 8);
    assert!(seen.iter().any(|(_, feed_forward, _)| *feed_forward == FeedForward::SWIGLU));
}

/// Kills: a layout that the model does not fit, batches that cannot be split over the ranks, documents longer
/// than the positions, a key or an id lost in JSON.
#[test]
fn every_case_fits_and_survives_as_json() {
    for case in drawn(400) {
        assert!(case.layout.fits(case.shape).is_ok() && case.layout.ranks() <= 8, "{case}");
        let again = ProofCase::parse(&case.line()).unwrap();
        assert_eq!(again, case);
        let (subject, tokens) = (case.subject().unwrap(), case.layout.tokens());
        let last = tokens.of_data_rank(tokens.data_ranks() - 1);
        for (batch, _) in &subject.steps {
            let parts = 0..batch.microbatches().len();
            assert!(parts.into_iter().all(|m| batch.share(m, &last).is_ok()), "{case}");
        }
    }
}

/// Kills: a case that depends on earlier draws or on a clock.
#[test]
fn a_case_is_a_function_of_its_number() {
    let twice = || numbers(9).take(20).map(|key| draw(key.0, None)).collect::<Vec<_>>();
    assert_eq!(twice(), twice());
    assert_ne!(draw(1, None), draw(2, None));
}

/// Checks that a line written before a field of the shape was added can still be read, and that an invalid
/// line gives one error message.
#[test]
fn lines_read_with_what_they_leave_out() {
    let line = |shape: &str, step: &str| {
        format!(
            r#"{{"key":"0x1","layout":"none","shape":{shape},"optimizer":"sgd","lr":1.0,"steps":[{step}]}}"#
        )
    };
    let step = r#"{"microbatches":1,"sequences":[["..x","."]]}"#;
    let case = ProofCase::parse(&line(r#"{"width":3}"#, step)).unwrap();
    assert_eq!(case.shape, Shape { width: 3, ..Shape::LLAMA });
    assert_eq!((case.texts.len(), case.clip, case.layout.ranks()), (0, None, 1));
    let subject = case.subject().unwrap();
    assert_eq!((subject.steps[0].0.tokens(), subject.steps[0].0.counted()), (4, 3));
    let why = |line: String| ProofCase::parse(&line).unwrap_err().why;
    assert!(why(line(r#"{"widht":3}"#, step)).contains("unknown field `widht`"));
    assert!(why(line(r#"{"width":0}"#, step)).contains("shape.width is 0; it must be 1 to 4096"));
    let padding = r#"{"vocabulary":3,"padding":3}"#;
    assert!(why(line(padding, step)).contains("shape.padding is 3; it must be below the vocabulary of 3"));
    assert!(why(line("{}", &step.replace("..x", ".y"))).contains("\".y\" is not a document"));
    let hostile = why(line(&format!("{{\"\\u001b[31m{}\":1}}", "x".repeat(5000)), step));
    assert!(hostile.contains(r"unknown field `\u{1b}[31mxx") && hostile.len() < 400, "{hostile}");
    let experts = |of: &str| why(line(&format!(r#"{{"experts":{{{of}}}}}"#), step));
    assert!(experts(r#""chosen":3"#).contains("shape.experts.chosen is 3; it must be 1 to 2"));
    let groups = |n: usize| format!(r#""count":6,"groups":{{"count":{n},"chosen":1}}"#);
    assert!(experts(&groups(4)).contains("shape.experts.groups.count is 4; it must be a divisor of 6"));
    assert!(experts(&groups(0)).contains("shape.experts.groups.count is 0; it must be 1 to 6"));
    assert!(experts(r#""capacity":0.0"#).contains("shape.experts.capacity is 0; it must be more than 0"));
    assert!(experts(r#""by_experts":true"#).contains("experts that choose tokens need a capacity"));
    let learned = r#"{"positions":{"learned":2}}"#;
    assert!(why(line(learned, step)).contains("the length of a document is 3; it must be at most 2"));
}

fn fails(why: &str) -> Verdict {
    Verdict { error: Some(why.into()), ..Verdict::default() }
}

fn never(case: &ProofCase, differs: bool) -> Verdict {
    let difference = || Difference {
        name: "planted".into(),
        rank: 0,
        differ: 1,
        of: 1,
        ranks: vec![0],
        after: None,
        collectives: vec![],
        hint: None,
    };
    if differs {
        Verdict { first_difference: Some(difference()), ..Verdict::default() }
    } else {
        Verdict { equal: true, tensors: 1, elements: case.steps.len(), ..Verdict::default() }
    }
}

fn campaign(
    key: u64,
    judge: &(dyn Fn(&ProofCase) -> Verdict + Sync),
    reported: &dyn Fn(usize, Key),
) -> CampaignReport {
    let cases = Some(200);
    Campaign { key: Key(key), cases, until: None, layout: None, judge }.run(reported).unwrap()
}

/// Plants a bug of sequence parallelism (more ranks than KV heads, with a bias): the campaign finds it and
/// shrinks it to two ranks, one head, one token, one step and nothing else. Kills: shrinking that keeps a
/// part irrelevant to the failure, shrinking that accepts a case without a difference, shrinking that accepts
/// another failure.
#[test]
fn a_planted_bug_is_found_and_shrunk_to_what_it_needs() {
    let planted = |case: &ProofCase| {
        let regions = case.layout.to_string().contains(",sp");
        if case.layout.ranks() == 1 && case.shape.bias.mlp {
            return fails("something else");
        }
        never(
            case,
            regions && case.shape.bias.out && case.layout.size(comm::Axis::Tp) > case.shape.heads.keys,
        )
    };
    let bug = |case: &ProofCase| match planted(case) {
        // the other bug occurs only while shrinking
        outcome if outcome.error.is_some() => never(case, false),
        outcome => outcome,
    };
    for key in [1, 2, 3] {
        let found = campaign(key, &bug, &|_, _| ());
        let failure = found.failure.unwrap();
        assert!(!found.equal && failure.first_difference.is_some() && failure.error.is_none());
        let ProofCase { layout, shape, steps, texts, optimizer, clip, .. } = &failure.case;
        assert_eq!(layout.to_string(), "tp=2,sp", "{}", failure.case);
        let plainest = Shape {
            bias: shape.bias,
            heads: shape.heads,
            hidden: 2,
            width: 1,
            vocabulary: 1,
            ..Shape::LLAMA
        };
        assert_eq!(*shape, plainest, "{}", failure.case);
        assert_eq!((shape.bias.out, shape.bias.qkv, shape.bias.mlp), (true, false, false));
        assert_eq!((shape.heads.queries, shape.heads.keys, shape.heads.dim), (2, 1, 1), "{}", failure.case);
        let step = CaseStep { microbatches: 1, sequences: vec![vec![Document::new([true])]] };
        assert_eq!((steps, texts.len()), (&vec![step], 0), "{}", failure.case);
        assert_eq!((*optimizer, *clip), (SGD, None));
        assert!(
            failure.statement().contains(&failure.case.line()) && failure.statement().contains("\"planted\"")
        );
    }
}

/// Plants a failure that occurs on two and on eight ranks only: the case is shrunk to two. Kills: a search
/// that infers from three passing ranks that two pass as well.
#[test]
fn a_bug_of_some_numbers_of_ranks_is_shrunk_to_the_fewest() {
    let judge = |case: &ProofCase| never(case, [2, 8].contains(&case.layout.size(comm::Axis::Tp)));
    for key in 0..3 {
        let failure = campaign(key, &judge, &|_, _| ()).failure.unwrap();
        assert_eq!(failure.case.layout.to_string(), "tp=2", "{}", failure.case);
    }
}

/// Checks that a panic is a failure, and is shrunk as one. Kills: a shrunk case that fails in another way
/// than the first.
#[test]
fn what_fails_is_shrunk_to_what_fails_alike() {
    let judge = |case: &ProofCase| match case.shape.window {
        Some(_) if case.layout.ranks() > 1 => fails("a window"),
        _ => never(case, case.layout.ranks() > 1 && case.shape.blocks == 1),
    };
    let mut kinds = BTreeSet::new();
    for key in 5..13 {
        let failure = campaign(key, &judge, &|_, _| ()).failure.unwrap();
        let first = judge(&draw(failure.number.0, None));
        assert_eq!(failure.error.is_some(), first.error.is_some(), "{}", failure.case);
        assert_eq!(failure.error.is_some(), failure.case.shape.window.is_some(), "{}", failure.case);
        kinds.insert(failure.error.is_some());
    }
    assert_eq!(kinds.len(), 2, "both kinds were seen first");
}

/// Checks that an error is a failure, and is reported without the number of the rank that failed first.
/// Kills: a message that depends on timing, an error that ends the campaign.
#[test]
fn what_ranks_say_is_told_of_any_rank() {
    let case = drawn(1000)
        .into_iter()
        .find(|case| case.layout.to_string().starts_with("dp=8") && case.shape.latent.is_none())
        .expect("one of them");
    let heads = kernels::Heads::new(3, 2, 1);
    let odd = ProofCase { shape: Shape { heads, ..case.shape }, ..case };
    let Some(why) = judge(&odd).error else { panic!("{odd} is no model") };
    assert!(why.starts_with("the number of query heads") && judge(&odd).error == Some(why));
    for (reported, wanted) in [("rank 3: is late: 7", "a rank: is late: 7"), ("rank x: 7", "rank x: 7")] {
        assert_eq!(campaign::of_any_rank(reported.into()), wanted);
    }
    assert!(ProofCase::parse(&odd.line()).unwrap_err().why.contains("3 query heads cannot share 2 KV heads"));
}

/// Kills: a report that depends on the order of threads, a key to resume with that skips or repeats a case, a
/// reported failure that is not the first.
#[test]
fn campaigns_tell_the_same_in_order_and_go_on() {
    let fine = |case: &ProofCase| {
        // late cases overtake early ones
        std::thread::sleep(std::time::Duration::from_micros(case.key.0 % 300));
        never(case, false)
    };
    let keys = std::sync::Mutex::new(Vec::new());
    let whole = campaign(7, &fine, &|n, key| keys.lock().unwrap().push((n, key)));
    assert_eq!(whole, campaign(7, &fine, &|_, _| ()));
    let chain: Vec<_> = numbers(7).skip(1).take(200).enumerate().map(|(i, key)| (i + 1, key)).collect();
    assert_eq!(keys.into_inner().unwrap(), chain);
    assert_eq!(whole.next_key, format!("{:#018x}", chain[199].1.0));
    let half = |key| Campaign { key, cases: Some(100), until: None, layout: None, judge: &fine };
    let first = half(Key(7)).run(&|_, _| ()).unwrap();
    let second = half(chain[99].1).run(&|_, _| ()).unwrap();
    assert_eq!(
        (first.next_key.clone(), second.next_key.clone()),
        (second.key.clone(), whole.next_key.clone())
    );
    for ((whole, first), second) in whole.habits.iter().zip(&first.habits).zip(&second.habits) {
        assert_eq!(whole.cases, first.cases + second.cases, "{}", whole.what);
    }
    let late = Campaign {
        key: Key(7),
        cases: None,
        until: Some(std::time::Instant::now()),
        layout: None,
        judge: &fine,
    };
    assert_eq!(late.run(&|_, _| ()).unwrap().cases, 1, "a case at least");
    let bad: Vec<Key> = [chain[49].1, chain[50].1].to_vec();
    let two = |case: &ProofCase| never(case, bad.iter().any(|key| key.next() == case.key));
    let failure = campaign(7, &two, &|_, _| ()).failure.unwrap();
    assert_eq!((failure.after, failure.number), (50, bad[0]));
}

/// Kills: a given layout replaced by a random one, shapes that do not fit the layout, a layout accepted
/// although no shape fits it.
#[test]
fn a_given_layout_is_that_of_every_case() {
    let layout: Layout = "tp=4,sp,dp=2".parse().unwrap();
    for key in numbers(3).take(50) {
        let case = draw(key.0, Some(layout));
        assert!(case.layout == layout && layout.fits(case.shape).is_ok(), "{case}");
    }
    let judge: &(dyn Fn(&ProofCase) -> Verdict + Sync) = &|case| never(case, false);
    let run = |layout: &str| {
        let layout = Some(layout.parse().unwrap());
        Campaign { key: Key(1), cases: Some(5), until: None, layout, judge }.run(&|_, _| ())
    };
    assert_eq!(
        run("tp=4,dp=2").unwrap().layouts.into_iter().collect::<Vec<_>>(),
        [("tp=4,dp=2".to_string(), 5)]
    );
    assert!(run("tp=17").unwrap_err().why.starts_with("no case can have the layout tp=17"));
}
