//! Compares the oracle with an independent implementation: Hugging Face's `LlamaForCausalLM` (transformers
//! 5.23) trained by `PyTorch` 2.15 in float64, three steps of `AdamW` with clipping over two microbatches of
//! unequal, ragged sequences. `llama.py` beside this file prints the numbers; this test needs only the
//! numbers.
use reference::{ADAMW, Model, Sequence, Trainer, Weights};
use shape::{Heads, Positions, Shape};

pub(crate) const BATCHES: [&[&[u32]]; 2] = [&[&[1, 5, 2, 7], &[9]], &[&[3, 3, 0, 10, 4, 8]]];

/// Results of `PyTorch`.
struct Seen {
    logits: [f64; 11],           // of the second token
    steps: [([f64; 2], f64); 3], // each microbatch's loss, and norm²
    squares: f64,                // Σ w² over all parameters at the end
}

pub(crate) fn model(tied: bool) -> Model {
    let heads = Heads::new(4, 2, 4);
    let sizes = Shape { width: 8, blocks: 2, heads, hidden: 6, vocabulary: 11, ..Shape::LLAMA };
    Shape { positions: Positions::Rotary(100.0.into()), eps: 0.0625, tied, ..sizes }.into()
}

/// Weights in [−1, 1), drawn in program order.
pub(crate) fn weights(model: &Model) -> Weights<f64> {
    let mut state = 2024u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    model.shapes().into_iter().map(|(name, [r, c])| (name, (0..r * c).map(|_| draw()).collect())).collect()
}

pub(crate) fn sequence(ids: &&[u32]) -> Sequence {
    Sequence {
        ids: ids.to_vec(),
        targets: ids.iter().zip(0..).map(|(id, place)| (3 * id + place) % 11).collect(),
        ..Sequence::default()
    }
}

fn close(what: &str, seen: f64, wanted: f64) {
    assert!((seen - wanted).abs() < 1e-12 * wanted.abs().max(1.0), "{what}: {seen}, PyTorch {wanted}");
}

fn train_as_pytorch(model: Model, wanted: &Seen) {
    let batches = BATCHES.map(|batch| batch.iter().map(sequence).collect::<Vec<_>>());
    let weights = weights(&model);
    let logits = model.logits_recorded(&weights, &batches[0], &mut |_, _| {});
    for (at, &logit) in wanted.logits.iter().enumerate() {
        close("logit", logits[11 + at], logit);
    }
    let adam = ADAMW.with(&[0.875, 0.75, 0.03125, 0.25]);
    let mut trainer = Trainer::new(model, adam, Some(0.25), weights);
    for (losses, norm2) in wanted.steps {
        let step = trainer.step(&batches, 0.0625);
        assert_eq!(step.losses.len(), 2);
        close("first loss", step.losses[0], losses[0]);
        close("second loss", step.losses[1], losses[1]);
        close("norm²", step.norm2, norm2);
    }
    close("Σ w²", trainer.weights().values().flatten().map(|w| w * w).sum(), wanted.squares);
}

/// Kills: any difference from the usual Llama: pairs of rotary, groups of heads, places of norms, order of
/// gate and up, causal mask, mean of the loss, bias corrections and weight decay of `AdamW`.
#[test]
fn training_equals_hugging_face_and_pytorch() {
    let seen = Seen {
        logits: [
            0.097_463_148_912_947_54,
            0.074_884_763_878_804_4,
            1.025_776_754_115_538_7,
            0.817_343_353_026_997_7,
            -1.656_381_061_557_904_4,
            -0.453_289_960_435_861_5,
            -1.051_576_558_527_536_5,
            -1.101_060_194_225_199_4,
            0.424_703_126_163_037_8,
            0.410_500_024_821_363_6,
            -0.185_305_619_246_256_05,
        ],
        steps: [
            ([0.933_457_010_156_927, 1.469_306_945_745_944_4], 2.028_865_542_216_045),
            ([0.698_407_112_506_710_4, 1.386_930_249_525_401_7], 1.855_221_610_723_592_8),
            ([0.623_628_212_683_57, 1.318_509_225_894_245], 1.241_720_880_608_519),
        ],
        squares: 395.816_552_012_130_3,
    };
    train_as_pytorch(model(false), &seen);
}

/// Kills: a tied weight updated twice, a tied weight updated by the gradient of one use only.
#[test]
fn tied_training_equals_hugging_face_and_pytorch() {
    let seen = Seen {
        logits: [
            -0.184_241_525_518_439_53,
            -0.727_578_450_223_154_9,
            0.073_730_901_399_106_87,
            -0.044_917_807_134_618_154,
            -0.662_705_582_821_213_6,
            0.796_105_515_520_442_8,
            0.289_044_412_700_725_84,
            -0.678_961_721_655_312_3,
            1.139_791_249_702_283_5,
            -0.226_316_076_211_706_82,
            -0.118_338_233_643_191_18,
        ],
        steps: [
            ([1.077_359_307_645_593, 1.422_198_905_288_203_6], 4.432_069_849_704_015),
            ([0.906_873_880_151_473_1, 1.335_149_192_072_086_2], 1.314_081_682_804_908),
            ([0.803_590_016_996_606_9, 1.264_843_912_939_504], 0.752_692_902_300_682_4),
        ],
        squares: 366.694_992_627_649_6,
    };
    train_as_pytorch(model(true), &seen);
}
