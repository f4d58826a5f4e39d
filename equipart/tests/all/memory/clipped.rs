//! Prices of steps that are clipped, and of others.
use super::*;

/// The sums of squares are there for other parts of a step if it is clipped: under Muon, while it holds most.
/// Kills: a price of a clipped step where none is clipped, or the other way round.
#[test]
fn a_price_is_that_of_the_step_that_is_trained_clipped_or_not() {
    let config = config(64, 1, 512);
    for kind in ops::OPTIMIZERS.iter().map(|info| layers::OptimizerKind::usual(info)) {
        for (text, clip) in [("none", None), ("none", Some(1.0)), ("dp=2", None), ("dp=2", Some(1.0))] {
            let settings = Settings { optimizer: kind, clip, ..settings(16, 2) };
            let (layout, priced): (Layout, _) = (text.parse().unwrap(), prices(&config, &settings, text));
            let world = layout.world().unwrap();
            let run =
                session::run((&layout, &world), &RandomValues { seed: 0 }, |at: BuildContext<Cpu<f32>>| {
                    program(&at, config.shape, &settings).map(|cost| cost.peaks.total)
                });
            let priced = priced.iter().map(|of| of.peak_bytes["total"]).collect::<Vec<_>>();
            assert_eq!(run.unwrap(), priced, "{} {text} {clip:?}", kind.name());
        }
    }
    let peaks = [&["--clip", "1"][..], &[]].map(|clip| {
        let job = ["--json", "--optimizer", "muon", "--layout", "tp=2", "--seq", "8", "--batch-size", "2"];
        let lines = |command: &[&str]| {
            let [_, lines] = said(&[command, &job, clip].concat());
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        let trained = lines(&["train", "--steps", "2", "--data", crate::child::SHORT]);
        let last = trained.iter().rfind(|line| line["step"] == 2).unwrap()["peak_bytes"].clone();
        let priced = lines(&["price"]).into_iter().flat_map(|kind| {
            vec![kind["peak_bytes"]["total"].clone(); kind["ranks"].as_u64().unwrap() as usize]
        });
        assert_eq!(last, priced.collect::<Value>(), "{clip:?}");
        last
    });
    assert_ne!(peaks[0], peaks[1]);
    refused(&["price", "--clip", "0"], "--clip is 0; it must be a positive number");
    let stale = ["price", "--layout", "pp=2:pipedream", "--clip", "1"];
    refused(&stale, "--clip is 1, but PipeDream updates each stage by itself");
}
