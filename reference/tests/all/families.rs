//! Compares the other families with independent implementations: Hugging Face's GPT-2, Mistral, Qwen2 and
//! Qwen3 (transformers 5.23) trained by `PyTorch` 2.15 in float64, three steps of `AdamW` with clipping over
//! two microbatches of unequal, ragged sequences, two targets of which are ignored. `families.py` beside this
//! file prints the numbers; these tests need only the numbers.
use crate::llama::{BATCHES, weights};
use reference::{ADAMW, Model, Sequence, Trainer};
use shape::{
    Activation, Biases, Blocks, FeedForward, Heads, NormKind, Objective, Pattern, Positions, Shape, Window,
};
use tensor::IGNORED;

/// Results of `PyTorch`.
struct Seen {
    logits: [f64; 11],           // of the last token
    steps: [([f64; 2], f64); 3], // each microbatch's loss, and norm²
    squares: f64,                // Σ w² over all parameters at the end
}

fn sequence(ids: &&[u32]) -> Sequence {
    let target = |(id, place): (&u32, u32)| if place == 2 { IGNORED } else { (3 * id + place) % 11 };
    Sequence { ids: ids.to_vec(), targets: ids.iter().zip(0..).map(target).collect(), ..Sequence::default() }
}

fn close(what: &str, seen: f64, wanted: f64) {
    assert!((seen - wanted).abs() < 1e-12 * wanted.abs().max(1.0), "{what}: {seen}, PyTorch {wanted}");
}

fn train_as_pytorch(model: Shape, wanted: &Seen) {
    let model = Model::from(model);
    let batches = BATCHES.map(|batch| batch.iter().map(sequence).collect::<Vec<_>>());
    let weights = weights(&model);
    let logits = model.logits_recorded(&weights, &batches[1], &mut |_, _| {});
    for (at, &logit) in wanted.logits.iter().enumerate() {
        close("logit", logits[5 * 11 + at], logit);
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

fn llama() -> Shape {
    *crate::llama::model(false)
}

/// Kills: other places of norms, another order of Q, K and V, another `GeLU`, other positions or biases;
/// smoothing, z-loss or ignored targets that differ from `PyTorch`'s; weight decay of biases, no weight decay
/// of positions.
#[test]
fn gpt2_training_equals_hugging_face_and_pytorch() {
    let model = Shape {
        heads: Heads::new(4, 4, 2),
        tied: true,
        norm: NormKind::Layer,
        positions: Positions::Learned(7),
        feed_forward: FeedForward::Plain(Activation::GeluTanh),
        bias: Biases { qkv: true, out: true, mlp: true },
        loss: Objective { smoothing: 0.125, z: 0.25 },
        ..llama()
    };
    let seen = Seen {
        logits: [
            0.623_047_480_028_7,
            -3.297_811_239_800_188_4,
            -0.015_474_715_998_692_99,
            3.110_922_040_164_685_3,
            1.577_296_943_268_969,
            0.780_971_208_575_847_3,
            1.056_257_487_633_129_9,
            -0.055_765_672_343_544_015,
            2.117_741_857_062_879,
            0.110_711_479_352_626_37,
            1.341_233_933_719_914_4,
        ],
        steps: [
            ([3.259_461_516_303_034, 4.179_314_744_113_903], 46.725_403_906_220_784),
            ([2.663_108_984_370_609_7, 3.418_024_048_648_397_7], 24.305_511_898_063_855),
            ([2.234_575_926_869_481, 2.918_474_624_757_654], 9.236_394_663_289_834),
        ],
        squares: 319.312_390_884_952_6,
    };
    train_as_pytorch(model, &seen);
}

/// Kills: a window one token too wide or too narrow.
#[test]
fn mistral_training_equals_hugging_face_and_pytorch() {
    let model = Shape { window: Some(Window { size: 3, sinks: 0 }), ..llama() };
    let seen = Seen {
        logits: [
            -0.710_821_975_159_067_2,
            0.732_017_964_632_275_2,
            0.339_098_364_919_460_3,
            -2.187_796_157_508_354_4,
            0.945_507_688_776_619_6,
            0.084_140_730_808_197_84,
            1.762_940_414_005_337,
            2.457_581_859_488_269_2,
            0.260_500_509_442_068_9,
            -0.266_420_993_574_918_83,
            -0.007_598_652_518_249_926_5,
        ],
        steps: [
            ([0.822_268_911_355_519_9, 1.369_436_655_689_244_6], 2.457_066_076_397_712_4),
            ([0.658_274_171_619_894_3, 1.181_965_153_902_077], 1.551_459_862_946_897_4),
            ([0.559_905_789_495_191_3, 1.101_578_255_398_377_5], 0.974_975_425_722_361_7),
        ],
        squares: 395.891_814_111_331_2,
    };
    train_as_pytorch(model, &seen);
}

/// Kills: a window that begins in another block, a bias added after rotary.
#[test]
fn qwen2_training_equals_hugging_face_and_pytorch() {
    let (window, pattern) =
        (Some(Window { size: 2, sinks: 0 }), Pattern { whole: Blocks::FIRST, ..Pattern::NONE });
    let model = Shape { bias: Biases { qkv: true, ..Biases::default() }, window, pattern, ..llama() };
    let seen = Seen {
        logits: [
            0.023_564_908_453_404_254,
            0.753_516_009_647_361,
            1.597_145_665_416_280_3,
            1.363_118_730_870_416_2,
            1.786_417_065_102_414_7,
            1.321_841_126_286_984_5,
            0.196_330_837_596_692_8,
            0.750_837_948_857_930_4,
            1.955_673_498_822_386,
            -0.982_373_625_897_602_1,
            0.566_129_240_820_353_3,
        ],
        steps: [
            ([1.633_108_220_391_027_9, 1.698_843_659_563_338_3], 25.855_274_129_738_97),
            ([1.132_902_048_168_447_3, 1.615_108_392_139_374_3], 4.902_704_530_342_055_6),
            ([0.877_405_889_965_291_9, 1.520_349_888_147_475], 1.504_201_029_127_269_6),
        ],
        squares: 414.831_304_335_283_5,
    };
    train_as_pytorch(model, &seen);
}

/// Kills: a head norm after rotary, a head norm over all heads, a norm of values.
#[test]
fn qwen3_training_equals_hugging_face_and_pytorch() {
    let model = Shape { head_norm: true, ..llama() };
    let seen = Seen {
        logits: [
            1.577_092_679_257_412_5,
            -2.012_307_522_018_378_6,
            0.012_261_462_582_146_887,
            1.657_174_000_242_864_8,
            0.035_994_167_448_609_28,
            -2.090_938_785_967_638,
            0.066_265_216_018_441_93,
            -0.350_525_598_815_145,
            -0.906_186_701_661_054_4,
            0.894_840_221_636_604_9,
            0.575_232_468_235_175_9,
        ],
        steps: [
            ([1.530_852_805_224_867_8, 1.578_996_677_859_571_2], 3.510_086_131_053_959_5),
            ([1.158_166_321_163_528_2, 1.410_756_040_519_033], 3.412_326_737_890_551_5),
            ([0.924_825_986_156_584_4, 1.309_374_534_585_585], 0.767_672_062_853_336_3),
        ],
        squares: 399.774_618_246_309_67,
    };
    train_as_pytorch(model, &seen);
}
