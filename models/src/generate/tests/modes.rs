//! Requests one by one, in slots and as one batch: the same texts, and each its price.
use super::*;

const MODES: [RequestMode; 6] = [
    RequestMode::Sync,
    RequestMode::Batch,
    RequestMode::Async { slots: None },
    RequestMode::Async { slots: Some(1) },
    RequestMode::Async { slots: Some(2) },
    RequestMode::Async { slots: Some(3) },
];

/// A model of four blocks, without experts or with some.
fn deep(experts: Option<bool>, eos: Vec<u32>) -> Model {
    let of = experts.map_or_else(|| model(Vec::new()), |forced| with_experts(forced, Balance::default()));
    let shape = Shape { blocks: 4, ..of.config.shape };
    Model::fresh(Config { shape, eos, ..of.config }, 5)
}

fn prompts() -> Vec<Vec<u32>> {
    let prompt =
        |n: u32| (0..[3, 1, 5, 2, 4, 1, 7][n as usize]).map(|i| (17 * n + 5 * i + 1) % 300).collect();
    (0..7).map(prompt).collect()
}

fn in_mode(requests: RequestMode, sampling: Sampling, prompts: Vec<Vec<u32>>) -> Prompts {
    Prompts { requests, ..request(sampling, NEW, prompts) }
}

fn answers(model: &Model, layout: &str, request: &Prompts) -> Generated<f32> {
    let layout = layout.parse().unwrap();
    generate::<Cpu<f32>>(model, (&layout, &Network::default()), request, &|_| ())
        .unwrap_or_else(|why| panic!("{layout}, {:?}: {why}", request.requests))
}

/// Asserts that two runs have the same ids, and floats that differ by rounding.
fn assert_equal(one: &Generated<f32>, other: &Generated<f32>, what: &str) {
    assert_eq!((one.texts.len(), one.times.len()), (other.texts.len(), other.texts.len()), "{what}");
    for (n, (a, b)) in one.texts.iter().zip(&other.texts).enumerate() {
        assert_eq!(a.ids, b.ids, "text {n}, {what}");
        let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
        assert_eq!(a.prompt_logits.len(), b.prompt_logits.len(), "text {n}, {what}");
        assert!(a.prompt_logits.iter().zip(&b.prompt_logits).all(|(a, b)| near((*a).into(), (*b).into())));
        assert_eq!(a.margins.len(), b.margins.len(), "text {n}, {what}");
        assert!(a.margins.iter().zip(&b.margins).all(|(a, b)| near(*a, *b)), "text {n}, {what}");
    }
    for times in &one.times {
        assert!(0.0 < times.first && times.first <= times.last, "{times:?}, {what}");
    }
}

/// The ids that end some of the texts early, each after another number of tokens.
fn ends(experts: Option<bool>, sampling: Sampling) -> Vec<u32> {
    let texts =
        answers(&deep(experts, Vec::new()), "none", &in_mode(RequestMode::Batch, sampling, prompts()));
    let new = |text: usize, n: usize| texts.texts[text].ids[prompts()[text].len() + n];
    vec![new(0, 1), new(2, 3), new(3, 0)]
}

fn all_modes_equal_the_unsplit_batch(experts: Option<bool>, layouts: &[&str]) {
    for sampling in [GREEDY, Sampling { top_k: Some(9), ..WARM }] {
        let model = deep(experts, ends(experts, sampling));
        let alone = answers(&model, "none", &in_mode(RequestMode::Batch, sampling, prompts()));
        let new: Vec<_> = alone.texts.iter().map(|text| text.margins.len()).collect();
        assert!(new.contains(&1) && new.contains(&NEW), "some texts end early: {new:?}");
        for layout in layouts {
            for mode in MODES {
                let run = answers(&model, layout, &in_mode(mode, sampling, prompts()));
                assert_equal(&run, &alone, &format!("{mode:?} under {layout}"));
            }
        }
    }
}

/// Seven requests of unequal lengths, more than slots; some end early. Kills: caches swapped between two
/// slots, a token given to another slot, a request that joins behind the positions of the one before it,
/// draws by slot, a rank that waits for another slot than the one whose turn it is, texts in another order.
#[test]
fn every_mode_gives_the_texts_of_the_unsplit_batch() {
    all_modes_equal_the_unsplit_batch(
        None,
        &["none", "pp=2", "pp=3", "pp=2,tp=2", "dp=2,pp=2", "tp=2,sp,pp=2", "cp=2,pp=2", "dp=2:zero3,pp=2"],
    );
}

/// Kills: an answer by the last rank in the place of the one that has the head, a pass that begins before all
/// chunks of its rank have run the one before it.
#[test]
fn every_mode_runs_under_schedules_with_several_chunks() {
    all_modes_equal_the_unsplit_batch(
        None,
        &["pp=2:interleaved/2", "pp=2:zb-v", "pp=4", "pp=2:seq1f1b", "pp=2,dp=2,order=pp.dp"],
    );
}

/// Kills: a data rank that leaves while another needs its experts, or runs fewer passes.
#[test]
fn every_mode_gives_the_texts_of_experts() {
    all_modes_equal_the_unsplit_batch(
        Some(false),
        &["none", "pp=2", "pp=3", "ep=2", "ep=2,pp=2", "dp=2,ep=2,pp=2", "tp=2,pp=2", "ep=4:all-gather,pp=2"],
    );
}

/// Kills: a rank without a request that does not compute for the others.
#[test]
fn fewer_requests_than_data_ranks_run_in_slots() {
    let model = deep(Some(false), Vec::new());
    for n in 1..4 {
        let of = |mode| in_mode(mode, GREEDY, prompts()[..n].to_vec());
        let alone = answers(&model, "none", &of(RequestMode::Batch));
        for mode in MODES {
            assert_equal(&answers(&model, "ep=4,pp=2", &of(mode)), &alone, &format!("{n}, {mode:?}"));
        }
    }
}

/// Kills: a mode priced as another, a price without the caches of all slots or the message of a token, the
/// caches of requests one by one priced at once, a cache that stays when the next request has joined, a mode
/// that runs as another.
#[test]
fn each_mode_is_priced_to_the_byte() {
    let (dense, forced) = (deep(None, Vec::new()), deep(Some(true), Vec::new()));
    let dense_layouts =
        ["none", "pp=2", "pp=3", "dp=2,pp=2", "tp=2,pp=2", "pp=2:interleaved/2", "dp=2:zero3,pp=2"];
    let all = dense_layouts.map(|layout| (&dense, layout));
    for (model, layout) in all.into_iter().chain(["ep=2,pp=2", "ep=2"].map(|layout| (&forced, layout))) {
        for mode in MODES {
            let request = in_mode(mode, GREEDY, prompts());
            let run = answers(model, layout, &request);
            let held: usize = run.taken.iter().map(|t| t.load.max(t.work)).sum();
            let priced = request.peak::<Cpu<f32>>(model, &layout.parse().unwrap()).unwrap().all;
            assert_eq!(priced, held as u128, "{mode:?} under {layout}");
        }
    }
    let order = [0, 3, 4, 5, 2, 1].map(|mode: usize| {
        in_mode(MODES[mode], GREEDY, prompts())
            .peak::<Cpu<f32>>(&dense, &"pp=2".parse().unwrap())
            .unwrap()
            .all
    });
    assert!(order.is_sorted_by(|a, b| a < b), "more requests at once hold more: {order:?}");
}

/// Kills: a price that is too low where a request joins earlier than the others do, or another slot.
#[test]
fn a_price_of_texts_that_end_early_is_enough() {
    let model = deep(None, ends(None, GREEDY));
    for mode in MODES {
        let request = in_mode(mode, GREEDY, prompts());
        let held: usize = answers(&model, "pp=2", &request).taken.iter().map(|t| t.load.max(t.work)).sum();
        let priced = request.peak::<Cpu<f32>>(&model, &"pp=2".parse().unwrap()).unwrap().all;
        assert!(priced >= held as u128, "{mode:?}: {priced} priced, {held} held");
    }
    let request =
        in_mode(RequestMode::Async { slots: Some(2) }, GREEDY, [1, 2, 3, 9, 4].map(|n| vec![0; n]).into());
    let lengths = |early| {
        let planned = request.planned(&"pp=2".parse().unwrap(), 1, early).unwrap();
        planned.prompts.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(
        [lengths(false), lengths(true)],
        [[1, 2, 3, 9, 4], [1, 2, 9, 9, 9]],
        "who waits may join any slot"
    );
}

/// Kills: a mean over tokens of all texts, the wait for a text's first token among the times between tokens.
#[test]
fn latency_is_a_mean_over_texts() {
    let text = |new| Text { margins: vec![0.0; new], ..Text::new(&[1], new) };
    let times = |first, last| TokenTimes { first, last };
    let mut run = Generated::<f32>::new();
    assert_eq!(run.latency(), TokenLatency { first_token_seconds: None, token_seconds: None });
    run.texts = vec![text(3), text(1), text(0), text(2)];
    run.times = vec![times(1.0, 2.0), times(4.0, 4.0), times(0.0, 0.0), times(1.0, 2.5)];
    let wanted = TokenLatency { first_token_seconds: Some(2.0), token_seconds: Some(1.0) };
    assert_eq!(run.latency(), wanted);
}

/// Kills: a dump of several batches, a run without slots.
#[test]
fn a_request_that_no_mode_answers_is_refused() {
    let why = |requests, record| {
        let request = Prompts { record, ..in_mode(requests, GREEDY, prompts()) };
        let layout = "pp=2".parse().unwrap();
        request
            .check::<Cpu<f32>>(&deep(None, Vec::new()), (&layout, &Network::default()))
            .unwrap_err()
            .to_string()
    };
    let dump = "a dump records one batch, but requests are answered sync; leave one of them out";
    assert_eq!(why(RequestMode::Sync, true), dump);
    assert_eq!(why(RequestMode::Async { slots: Some(0) }, false), "there are 0 slots; give at least 1");
}
