//! Compares Muon with `torch.optim.Muon` (2.15) in float64, its cast to bfloat16 removed: six steps of
//! Hugging Face's Llama, with `AdamW` for what is no matrix of a block. `llama.py` prints the numbers.
use crate::llama::{BATCHES, model, sequence, weights};
use reference::{MUON, Trainer};

/// Loss before each step, and after it five weights: of a key, an up-projection, a down-projection, an output
/// of attention and the head; and Σ w² over the matrices of blocks.
type MuonStep = (f64, [f64; 5], f64);

const ORIGINAL: [MuonStep; 6] = [
    (
        2.402_763_955_902_871_3,
        [
            -0.987_715_523_228_641_2,
            -0.372_870_973_575_969_1,
            -0.167_651_387_299_689_4,
            -0.258_806_911_292_593_87,
            0.001_525_199_213_857_685_6,
        ],
        349.537_502_174_716_45,
    ),
    (
        1.984_629_631_067_227,
        [
            -0.992_269_893_233_230_8,
            -0.390_327_356_347_104_14,
            -0.175_015_706_451_170_57,
            -0.253_107_666_491_441_7,
            -0.000_175_683_703_160_967,
        ],
        344.303_358_846_015_6,
    ),
    (
        1.715_068_833_879_192_4,
        [
            -0.992_727_911_911_550_1,
            -0.401_031_305_642_486_2,
            -0.169_924_720_455_099_04,
            -0.250_831_213_593_213_03,
            -0.004_030_213_016_537_692,
        ],
        339.593_629_745_845_5,
    ),
    (
        1.494_716_256_191_893_9,
        [
            -0.991_973_677_000_764_9,
            -0.412_742_443_221_471_4,
            -0.163_286_426_432_895_54,
            -0.248_358_484_522_433_14,
            -0.009_797_718_413_506_788,
        ],
        335.207_648_857_139_13,
    ),
    (
        1.294_886_285_373_321_2,
        [
            -0.987_516_191_172_918_9,
            -0.425_723_905_076_393_3,
            -0.156_427_371_244_721_14,
            -0.244_472_837_105_781_74,
            -0.017_307_255_407_758_827,
        ],
        330.610_354_528_373_4,
    ),
    (
        1.114_336_768_224_706_7,
        [
            -0.983_209_084_398_455_2,
            -0.441_040_725_752_373_7,
            -0.149_740_539_568_134_43,
            -0.240_448_576_649_911_54,
            -0.026_151_650_319_282_55,
        ],
        326.319_030_582_321_15,
    ),
];
const MATCH_RMS_ADAMW: [MuonStep; 6] = [
    (
        2.402_763_955_902_871_3,
        [
            -0.983_811_776_823_01,
            -0.368_701_677_924_509_64,
            -0.172_617_315_308_196_88,
            -0.259_308_919_679_459_9,
            0.001_525_199_213_857_685_6,
        ],
        349.465_420_221_199_05,
    ),
    (
        2.006_616_990_316_739,
        [
            -0.986_651_678_452_250_8,
            -0.374_260_305_092_578_9,
            -0.173_259_220_191_343_13,
            -0.255_319_021_548_878_2,
            0.000_334_138_374_495_063_75,
        ],
        344.226_780_872_293_4,
    ),
    (
        1.761_716_689_408_868,
        [
            -0.986_527_834_952_703_2,
            -0.379_430_085_167_786_1,
            -0.172_279_173_039_363_24,
            -0.254_424_895_981_157_14,
            -0.002_999_926_906_217_211,
        ],
        339.084_883_417_546_3,
    ),
    (
        1.566_582_608_361_155,
        [
            -0.983_206_516_263_724_6,
            -0.386_195_978_991_590_3,
            -0.168_729_003_770_671_4,
            -0.252_882_893_794_544_15,
            -0.008_133_621_252_807_062,
        ],
        334.189_472_842_078_66,
    ),
    (
        1.394_930_360_413_909_4,
        [
            -0.979_142_550_833_880_8,
            -0.391_641_134_347_524_46,
            -0.165_173_024_140_846_5,
            -0.250_175_674_105_861_94,
            -0.014_922_630_101_606_16,
        ],
        329.118_510_343_660_43,
    ),
    (
        1.223_092_288_280_648_5,
        [
            -0.974_405_887_964_412_1,
            -0.397_721_353_985_962_26,
            -0.161_325_668_060_805_56,
            -0.247_110_218_730_598_16,
            -0.023_144_195_490_598_665,
        ],
        324.240_172_334_200_34,
    ),
];

/// Kills: a fused matrix orthogonalised as one, the scale of the transposed shape, a decay by the scaled
/// rate, momentum without Nesterov's step, the head or a gain among the matrices, a rate for the wrong part.
#[test]
fn six_steps_equal_those_of_pytorch() {
    for (by_rms, wanted) in [(0.0, ORIGINAL), (1.0, MATCH_RMS_ADAMW)] {
        let muon = MUON.with(&[0.5, 0.95, by_rms, 0.0, 0.875, 0.75, 0.03125, 0.25]);
        let model = model(false);
        let mut trainer = Trainer::new(model, muon, None, weights(&model));
        let batch: Vec<_> = BATCHES.iter().flat_map(|batch| batch.iter().map(sequence)).collect();
        for (loss, some, squares) in wanted {
            let seen = trainer.step(std::slice::from_ref(&batch), 0.0625).losses[0];
            let of = |name: &str, at: usize| trainer.weights()[name][at];
            let weights = [
                of("blocks.0.attention.qkv", 2 * 32 + 16 + 1),
                of("blocks.0.mlp.gate_up", 4 * 12 + 6 + 3),
                of("blocks.0.mlp.down", 2 * 8 + 5),
                of("blocks.1.attention.out", 9 * 8 + 7),
                of("head", 3 * 11 + 10),
            ];
            let matrices = ["qkv", "out", "gate_up", "down"];
            let blocks =
                trainer.weights().iter().filter(|(name, _)| matrices.iter().any(|of| name.ends_with(of)));
            let sum: f64 = blocks.flat_map(|(_, w)| w).map(|w| w * w).sum();
            let all = [(seen, loss), (sum, squares)].into_iter().chain(weights.into_iter().zip(some));
            for (seen, wanted) in all {
                // of updates that are 0.02 to 0.04 at most
                assert!((seen - wanted).abs() < 1e-11 * wanted.abs().max(1.0), "{seen}, PyTorch {wanted}");
            }
        }
    }
}
