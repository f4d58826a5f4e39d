//! bf16 and f16: parameters and activations of 16 bits; gradients, masters, moments, statistics and sums of
//! 32.
use crate::child::{SHORT, equipart, refused};
use crate::memory::{settings, sized};
use kernels::{Heads, Kernels, MetaOf};
use layers::Shape;
use ops::{ADAMW, LossScaling, RandomValues, SGD};
use parallel::dtype::DtypeName;
use parallel::{BuildContext, Layout, session};
use run::price::{Cost, price, program};
use run::roundoff::unit;
use run::train::settings::Settings;
use serde_json::Value;
use std::fs;
use tensor::dtype::Dtype;
use tensor::{Bf16, CodeKind, Coded, Cpu, F16, Host, Real};

const STEPS: [&str; 8] = ["--steps", "6", "--seq", "32", "--batch-size", "4", "--data", SHORT];
/// Blocks of the embedded model.
const BLOCKS: usize = 4;

/// Roundings to 16 bits, one after the other, of what becomes a logit: in a block what its 11 kernels write
/// (two norms, four products, turned heads, attention, gates, two sums) and 4 weights; besides, the
/// embedding, a norm, the head's weight and the logit.
pub(crate) fn roundings(blocks: usize) -> f64 {
    (4 + 15 * blocks) as f64
}

/// Three deviations of a loss, the mean over so many tokens, whose logits deviate so much from their mean,
/// where what becomes a logit is rounded so often: each rounding is off evenly within `unit`, so by `unit/√3`
/// in the mean square; they are independent, so squares add up; and over `n` tokens a mean deviates `√n`
/// times less.
pub(crate) fn three_deviations(unit: f64, roundings: f64, logits: f64, tokens: usize) -> f64 {
    3.0 * unit * (roundings / 3.0).sqrt() * logits / (tokens as f64).sqrt()
}

/// How much logits deviate when the loss is this, if fresh ones gave `first`: fresh ones are independent, so
/// their loss is that of guessing one of 256 and half their variance; what was learnt since has moved those
/// of the targets.
pub(crate) fn deviation(first: f64, loss: f64) -> f64 {
    (2.0 * (first - 256f64.ln()) + (first - loss).powi(2)).sqrt()
}

/// The most that a row's largest error may be of the unsplit run's own. Both are the largest of 1000 errors
/// or more. A split sum is rounded as often, in other places, so both have one deviation. Beyond six of it
/// lies one error in 500 million, and within one and a half lie all of 1000 in less than one run of 10^62.
pub(crate) const LARGEST: f64 = 6.0 / 1.5;

/// The objects that a command prints with `--json`.
fn lines(args: &[&str]) -> Vec<Value> {
    let output = equipart(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// By category, counted by parameters. Kills: a wide parameter, a narrow
/// gradient, moment or master, a master of plain descent that is left out.
#[test]
fn bytes_are_two_for_a_parameter_and_four_for_all_that_sums() {
    let (_dir, config) = sized("8", "16", "48");
    let config = models::Config::read(config.as_ref()).unwrap();
    for (optimizer, states) in [(ADAMW, [2, 3]), (SGD, [0, 1])] {
        for layout in ["none", "tp=2", "tp=2,sp,dp=2"] {
            let layout: Layout = layout.parse().unwrap();
            let of = |number| {
                let settings = Settings { optimizer, number, ..settings(8, 2) };
                price(&config, &settings, &layout).unwrap().swap_remove(0).peak_bytes
            };
            let (wide, narrow) = (of(DtypeName::F32), of(DtypeName::Bf16));
            assert_eq!(of(DtypeName::F16), narrow, "{layout}");
            let parameters = wide["weights"] / 4;
            let seen =
                ["weights", "gradients", "optimizer"].map(|category| [wide[category], narrow[category]]);
            let wanted = [[4, 2], [4, 4], states.map(|n| 4 * n)].map(|bytes| bytes.map(|n| n * parameters));
            assert_eq!(seen, wanted, "{optimizer} {layout}");
            assert!(narrow["activations"] * 10 < wide["activations"] * 7, "{narrow:?} {wide:?}");
        }
    }
}

/// Costs of the ranks: measured, and priced.
fn costs<S: Real>(layout: &Layout, shape: Shape, settings: &Settings) -> [Vec<Cost>; 2]
where
    Cpu<S>: Kernels<Elem = S, Place = Host>,
{
    let priced = |at: BuildContext<MetaOf<Cpu<S>>>| program(&at, shape, settings);
    let run = |rank| session::ghost::<Cpu<S>, _>(layout, (rank, None), priced).unwrap();
    let world = layout.world().unwrap();
    let values = RandomValues { seed: 0 };
    let real = |at: BuildContext<Cpu<S>>| program(&at, shape, settings);
    let measured = session::run((layout, &world), &values, real).unwrap();
    [measured, (0..layout.ranks()).map(run).collect()]
}

/// To the byte, as for every number. Kills: a device without numbers that takes wide ones for narrow, scratch
/// or widened keys that are not counted.
#[test]
fn the_price_of_narrow_numbers_is_what_is_measured() {
    let heads = Heads::new(4, 2, 4);
    let shape = Shape { width: 16, heads, hidden: 12, vocabulary: 11, head_norm: true, ..Shape::LLAMA };
    let fitting = ["recompute:selective", "offload-file", "dp=2:zero1:offload-file,recompute:full/2"];
    for layout in ["none", "tp=2", "tp=4,sp", "tp=2,dp=2"].into_iter().chain(fitting) {
        let (layout, settings): (Layout, _) = (layout.parse().unwrap(), settings(8, 2));
        let [measured, priced] = costs::<Bf16>(&layout, shape, &settings);
        assert_eq!(measured, priced, "{layout}");
        let scaled = Settings { loss_scaling: Some(LossScaling::USUAL), ..settings };
        let [measured, priced] = costs::<F16>(&layout, shape, &scaled);
        assert_eq!(measured, priced, "f16, {layout}");
    }
}

/// The losses of a few steps, each of 128 tokens, are those of f32 but for rounding, under every layout.
/// Kills: a gradient, master or moment in the wrong numbers, weights that do not move where steps are small.
#[test]
fn training_follows_f32() {
    let losses = |more: &[&str]| -> Vec<f64> {
        let all = lines(&[&["train"][..], &STEPS, more].concat());
        all.iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    let truth = losses(&[]);
    assert!(truth[0] - truth[5] > 0.5, "{truth:?}");
    let all = ["none", "tp=2", "dp=2", "tp=2,sp,dp=2"].map(|layout| ("bf16", Dtype::BF16, layout));
    let all = all.into_iter().chain(["none", "tp=2,sp,dp=2"].map(|layout| ("f16", Dtype::F16, layout)));
    for (dtype, stored, layout) in all {
        let seen = losses(&["--dtype", dtype, "--layout", layout]);
        assert!(seen != truth && seen.len() == truth.len(), "{layout}: {seen:?}");
        for (seen, loss) in seen.iter().zip(&truth) {
            let bound = three_deviations(unit(stored), roundings(BLOCKS), deviation(truth[0], *loss), 4 * 32);
            assert!((seen - loss).abs() < bound, "{dtype}, {layout}: {seen}, in f32 {loss}, within {bound}");
        }
        assert_eq!(seen, losses(&["--dtype", dtype, "--layout", layout]), "another run of {layout}");
    }
}

/// A checkpoint holds the masters. Kills: a run that goes on from rounded weights, or in other numbers.
#[test]
fn a_resumed_run_is_the_run_that_did_not_stop() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let train = |more: &[&str]| lines(&[&["train"][..], &STEPS, &["--dtype", "bf16"], more].concat());
    train(&["--out", &at("whole")]);
    train(&["--out", &at("parts"), "--stop-after", "3"]);
    // its settings, and its numbers, are noted
    lines(&["train", "--resume", &at("parts"), "--layout", "tp=2"]);
    train(&["--out", &at("parts2"), "--stop-after", "3"]);
    lines(&["train", "--resume", &at("parts2")]);
    for file in ["model.safetensors", "optimizer-6.safetensors"] {
        let [whole, parts] =
            ["whole", "parts2"].map(|run| fs::read(dir.path().join(run).join(file)).unwrap());
        assert!(whole == parts, "{file}");
    }
    let model = tensor::safetensors::File::open(&dir.path().join("whole/model.safetensors")).unwrap();
    let shape = model.info("model.embed_tokens.weight").unwrap().shape.clone();
    let values: Vec<f32> = model.values("model.embed_tokens.weight", &shape).unwrap();
    let rounded = values.iter().filter(|x| x.to_bits().trailing_zeros() >= 16);
    assert!(rounded.count() * 2 < values.len(), "the masters, not what they are rounded to");
    refused(
        &["train", "--resume", &at("parts"), "--dtype", "f32"],
        "--dtype is f32, but the run to resume began with bf16",
    );
}

/// Kills: a command that takes the flag and computes in f32.
#[test]
fn every_command_has_the_number() {
    let loss = |number| {
        lines(&["eval", "--seq", "64", "--data", SHORT, "--dtype", number])[0]["loss"].as_f64().unwrap()
    };
    let [losses, of_f16] = [[loss("f32"), loss("bf16")], [loss("f32"), loss("f16")]];
    let old = lines(&["eval", "--seq", "64", "--data", SHORT, "--number", "bf16"])[0]["loss"].as_f64();
    assert_eq!(old, Some(losses[1]), "the name that --dtype had before");
    let generate = |number| {
        let args = ["generate", "--prompt", "The ", "--max-new", "8", "--layout", "tp=2", "--dtype", number];
        lines(&args).swap_remove(0)
    };
    let (wide, narrow) = (generate("f32"), generate("bf16"));
    assert_ne!(wide["prompt_logits"], narrow["prompt_logits"]);
    // Of 1071 tokens. Logits that are off by `e` at random also add the mean of e²/2 to every token's loss.
    let logits: Vec<f64> =
        wide["prompt_logits"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let mean = logits.iter().sum::<f64>() / logits.len() as f64;
    let deviation = (logits.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logits.len() as f64).sqrt();
    let [of_one, of_all] =
        [1, 1071].map(|n| three_deviations(unit(Dtype::BF16), roundings(BLOCKS), deviation, n));
    let (apart, bound) = ((losses[0] - losses[1]).abs(), of_all + (of_one / 3.0).powi(2) / 2.0);
    assert!(apart > 0.0 && apart < bound.min(5e-3), "{losses:?} are within {bound}");
    let apart = (of_f16[0] - of_f16[1]).abs();
    assert!(apart > 0.0 && apart < bound / 8.0, "{of_f16:?}: f16 has three more digits");
    assert_eq!(wide["ids"].as_array().unwrap().len(), narrow["ids"].as_array().unwrap().len());
    let held = |line: &Value| line["peak_bytes"]["total"][0].as_u64().unwrap();
    assert!(held(&narrow) * 10 < held(&wide) * 6, "{narrow} {wide}");
    let (_dir, model, text) = crate::screens::four_blocks();
    let rows = |dtype| {
        let rows = ["compare", "--layout", "tp=2", "--dtype", dtype, "--seconds", "0", "--model", &model];
        lines(&[&rows[..], &["--data", &text]].concat())
    };
    for row in ["bf16", "f16"].into_iter().flat_map(rows) {
        assert!(row["equal"] == true && row["error_ratio"].as_f64().unwrap() < LARGEST, "{row}");
        let (by_number, total) =
            (&row["peak_bytes_by_number"], row["peak_bytes"]["total"].as_array().unwrap());
        let most = total.iter().map(|bytes| bytes.as_u64().unwrap()).max();
        assert_eq!(by_number["bf16"].as_u64(), most, "{row}");
        assert_ne!(by_number["f32"], by_number["bf16"], "{row}");
    }
    for dtype in ["bf16", "f16"] {
        let said = format!("--dtype is {dtype}; a proof runs in a finite field, where nothing rounds");
        refused(&["prove", "--dtype", dtype], &said);
    }
}

/// The furthest rounding between two codes is half of their distance, in the middle. Kills: a page that says
/// less than 8-bit moments lose.
#[test]
fn codes_of_eight_bits_are_as_exact_as_the_book_says() {
    let off = |kind: CodeKind, least: f64| {
        let values: Vec<f64> = (0..255).map(|code| f64::decoded(code, kind)).collect();
        let worst =
            values.windows(2).map(|pair| [(pair[1] - pair[0]) / 2.0, f64::midpoint(pair[0], pair[1])]);
        worst.filter(|[_, middle]| *middle >= least * values[254]).map(|[off, x]| off / x).fold(0.0, f64::max)
    };
    let page = include_str!("../../../docs/src/narrow-numbers.md").replace('\n', " ");
    let told = [
        ("the largest element of a block is rounded by less than", 0.99),
        ("one of at least a thousandth of it by", 0.001),
    ];
    for (words, least) in told {
        let off = [CodeKind::Signed, CodeKind::Unsigned]
            .map(|kind| off(kind, least))
            .into_iter()
            .fold(0.0, f64::max);
        assert!(page.contains(&format!("{words} {:.0} %", 100.0 * off)), "{words} {off}");
    }
}
