//! `Meta` predicts the price of a layer: the bytes by category, FLOPs and traffic that are measured when it
//! runs.
use super::case::LayerInput;
use super::erased::Erased;
use super::run::{STEPS, run};
use comm::{Mesh, World};
use ops::{Error, RandomValues};
use tensor::{Cpu, Device};

pub(super) fn check(case: &(impl Erased + ?Sized), regions: bool) {
    let given = |step: usize| LayerInput::<f32>::draw(case.features(), step);
    let values = RandomValues { seed: 7 };
    for &ranks in case.ranks() {
        let axes = case.world(ranks);
        let measured = World::threads(&axes)
            .expect("a world")
            .run(|device: Cpu<f32>, mesh| {
                run((case, regions), &device, &mesh, &values, &given, STEPS)?;
                Ok::<_, Error>((device.meter().peaks_of_all(), device.meter().flops(), mesh.ledger()))
            })
            .unwrap_or_else(|why| panic!("{why}"));
        for (rank, measured) in measured.into_iter().enumerate() {
            let device = kernels::meta_of::<Cpu<f32>>();
            let mesh = Mesh::ghost(&axes, rank).expect("a mesh");
            run((case, regions), &device, &mesh, &values, &given, STEPS).expect("a ghost meets everyone");
            let priced = (device.meter().peaks_of_all(), device.meter().flops(), mesh.ledger());
            assert_eq!(priced, measured, "priced and measured on rank {rank} of {ranks}");
        }
    }
}
