//! `AdamW` with moments of 8 bits, on ranks that keep parts of parameters: the same numbers, for the memory
//! that is worked out.
use crate::Trainer;
use crate::rests::{STAGES, batch, equals_the_oracle, on, zero};
use comm::{Axis, Mesh};
use kernels::Heads;
use layers::{Builder, OptimizerKind, Shape};
use ops::{ADAMW, ADAMW_8BIT, RandomValues};
use tensor::{Category, Cpu, Device, Key, Real};

/// The shape of other tests of state at rest, with rows that ranks cut at multiples of 4.
pub(crate) const SHAPE: Shape = Shape { heads: Heads::new(4, 2, 4), hidden: 16, ..crate::rests::SHAPE };
const BLOCKS_OF_4: OptimizerKind = ADAMW_8BIT.with(&[0.5, 0.75, 0.5, 0.25, 4.0]);
const BLOCKS_OF_8: OptimizerKind = ADAMW_8BIT.with(&[0.5, 0.75, 0.5, 0.25, 8.0]);

/// Three clipped steps of two microbatches that ranks do not divide: units of the second step decide the
/// third. Kills: a block at another place of its row, a shard with parts of blocks, a unit of another block,
/// of the first element or of the step before; ids of a vocabulary that are cut inside a block; codes off the
/// device that are not stored.
#[test]
fn coded_moments_equal_the_oracle_wherever_parameters_rest() {
    let _key = Key(6).enter();
    let [dp, tp] = [Axis::Dp, Axis::Tp].map(|axis| move |n| (axis, n));
    let layouts: [(&[_], bool, Option<usize>, OptimizerKind); 5] = [
        (&[dp(2)], false, None, BLOCKS_OF_8),
        (&[dp(3), tp(2)], true, None, BLOCKS_OF_4),
        (&[dp(2), tp(4)], false, None, BLOCKS_OF_4),
        (&[dp(4)], false, Some(2), BLOCKS_OF_8),
        (&[tp(4)], true, None, BLOCKS_OF_4),
    ];
    let cases = layouts.iter().flat_map(|layout| STAGES.map(|stage| (layout, stage)));
    for ((sizes, regions, subgroup, kind), stage) in cases {
        let what = format!("zero{stage}, {sizes:?}");
        let rests = (zero(stage, *subgroup), *regions);
        on(sizes, rests, |at| equals_the_oracle(at, (SHAPE, *kind), 3, &what));
    }
}

/// Loss of the last of 200 steps on one batch, and bytes of optimizer state.
fn learned(kind: OptimizerKind) -> (f64, usize) {
    let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 2 }).into();
    let mut trainer = Trainer::new(&at, SHAPE, (kind, Some(1.0))).unwrap();
    let mut loss = |_| trainer.step(&batch(), 0.0005).unwrap().loss.read().unwrap()[0].to_f64();
    let loss = (0..200).map(&mut loss).last().unwrap();
    (loss, device.meter().peaks_of_all().category[Category::Optimizer as usize])
}

/// Kills: values of codes that are not the nearest, units too small for their block, codes of four bytes.
#[test]
fn coded_moments_learn_as_well_in_a_quarter_of_the_memory() {
    let [(exact, moments), (coded, codes)] = [ADAMW, ADAMW_8BIT].map(learned);
    assert!((coded / exact - 1.0).abs() < 0.01 && exact < 1.5, "{coded}, with exact moments {exact}");
    let shapes = reference::Model::from(SHAPE).shapes();
    let bytes = |of: fn(usize) -> usize| -> usize {
        shapes.iter().map(|(_, [rows, columns])| rows * of(*columns)).sum()
    };
    assert_eq!(moments, bytes(|columns| 8 * columns));
    assert_eq!(codes, bytes(|columns| 8 * (columns.div_ceil(4) + columns.div_ceil(256))));
}

/// Kills: a row cut inside a block, whose blocks would depend on the ranks.
#[test]
fn rows_are_not_cut_inside_blocks() {
    let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Mesh::ghost(&[(Axis::Tp, 4)], 1).unwrap());
    let at = Builder::new(&device, &mesh, &RandomValues { seed: 2 }).into();
    let why = Trainer::new(&at, SHAPE, (BLOCKS_OF_8, None)).err().unwrap().to_string();
    let wanted = "the column of blocks.0.attention.qkv at which tp cuts is 4; it must be a multiple of 8, \
                  the elements of a block";
    assert_eq!(why, wanted);
}
