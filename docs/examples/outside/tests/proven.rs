//! Proofs of a model of one's own: equal to the unsplit one in every layout, and priced to the byte.
use layers::{Experts, Shape};
use ops::{RandomValues, SGD};
use parallel::{Batch, BuildContext, Layout, Sequence, Trainer, price, session};
use prove::{OracleTraces, Subject, prove};
use tensor::{Cpu, Device, Key};

/// Layouts of every kind: axes, all attentions over cp, chunks that cut the pattern, and states of
/// parameters.
pub(crate) const LAYOUTS: [&str; 17] = [
    "none",
    "tp=4",
    "tp=2,sp",
    "cp=2",
    "cp=2:ulysses",
    "cp=2:gathered",
    "cp=2:ring",
    "pp=3",
    "pp=2:interleaved/3",
    "pp=2:dualpipe-v",
    "ep=2,dp=2",
    "dp=2:zero1",
    "dp=2:zero2",
    "dp=2:zero3",
    "recompute",
    "pp=2,recompute:full/2",
    "tp=2,pp=2,dp=2:zero2,recompute",
];

/// Proves the values, gradients and new weights of two steps, and logits of texts that are read with a cache,
/// in these layouts.
pub(crate) fn proves(shape: Shape, layouts: &[&str]) {
    let truths = OracleTraces::default();
    for text in layouts {
        let layout: Layout = text.parse().unwrap();
        let subject = Subject::small(shape, &layout).unwrap();
        assert!(!subject.texts.is_empty(), "texts are read token by token");
        let verdict = prove(&subject, &layout, &[Key(1)], &truths).unwrap();
        assert!(verdict.equal, "{text}: {:?}", verdict.first_difference);
    }
}

/// Compares prices with the bytes that ranks hold at most, in these layouts.
pub(crate) fn prices(shape: Shape, layouts: &[&str]) {
    let sequence = || Sequence::new(vec![1, 2, 3, 4, 5, 6, 7, 8], vec![2, 3, 4, 5, 6, 7, 8, 9]);
    let dealt = |experts| Experts { forced: true, ..experts }; // the same number on all ranks
    let shape = Shape { experts: shape.experts.map(dealt), ..shape };
    let batch = Batch::new((0..4).map(|_| sequence()).collect(), 2).unwrap();
    for text in layouts {
        let layout: Layout = text.parse().unwrap();
        let held = session::run(
            (&layout, &layout.world().unwrap()),
            &RandomValues { seed: 0 },
            |at: BuildContext<Cpu<f32>>| {
                let mut trainer = Trainer::new(&at, shape, (SGD, None))?;
                (0..price::STEPS).try_for_each(|_| trainer.step(&batch, 1.0).map(drop))?;
                Ok(at.device.meter().peaks_of_all().total)
            },
        );
        let held = held.unwrap();
        let price = price::training::<Cpu<f32>>(&layout, shape, (SGD, None), &batch, |_, _| Ok(()));
        assert_eq!(price.unwrap().all, held.iter().map(|bytes| *bytes as u128).sum::<u128>(), "{text}");
    }
}
