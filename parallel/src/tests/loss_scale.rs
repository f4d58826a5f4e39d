//! Loss scaling on ranks: a power of two changes no bit of a step, and a step that overflows changes nothing.
use crate::copies::tests::{all_layouts, batch, fitting};
use crate::{BuildContext, Entry, Layout, Result, Trainer, dump, session};
use comm::Mesh;
use layers::{Balance, Builder, Experts, Shape};
use ops::{ADAMW, GradientScaling, LossScaling, Param, RandomValues};
use tensor::{Cpu, F61, Key};

/// A scale by which squares of usual gradients overflow in f32.
const HUGE: LossScaling = LossScaling { log2: 72, ..LossScaling::USUAL };

/// Every balance of experts.
const BALANCE: Balance = Balance { microbatch: 0.5, sequence: 0.25, pooled: 0.5, z: 0.125 };

/// Bits of all that a rank keeps of a model.
type State = Vec<(String, &'static str, Vec<u32>)>;

fn state(trainer: &mut Trainer<Cpu<f32>>) -> State {
    let params = trainer.model().params();
    let kept = params.iter().flat_map(|param| param.tensors()).map(|tensor| {
        let bits = tensor.read().read().unwrap().iter().map(|x| x.to_bits()).collect();
        (tensor.param().to_string(), tensor.name(), bits)
    });
    kept.collect()
}

/// On each rank, the state before and after so many steps that are not skipped, and the number of those that
/// are.
fn trained(layout: &Layout, loss: Option<LossScaling>, steps: usize) -> Vec<([State; 2], usize)> {
    let run = |at: BuildContext<Cpu<f32>>| {
        let scaling = GradientScaling { clip: Some(1.0), loss };
        let (batch, mut skips) = (batch(layout), 0);
        let shape = fitting(layout);
        let experts = shape.experts.map(|experts| Experts { balance: BALANCE, ..experts });
        let mut trainer = Trainer::new(&at, Shape { experts, ..shape }, (ADAMW, scaling))?;
        let start = state(&mut trainer);
        while trainer.parts().1.steps() < steps {
            let before = trainer.parts().1.steps();
            let report = trainer.step(&batch, 0.125)?;
            let skipped = report.skipped;
            let scaling = trainer.parts().1.scaling().loss;
            assert_eq!(trainer.parts().1.steps(), before + usize::from(!skipped), "{layout}");
            assert_eq!(report.norm2.unwrap().read().unwrap()[0].is_finite(), !skipped, "{layout}");
            skips += usize::from(skipped);
            assert_eq!(scaling.map(|of| of.log2), loss.map(|of| of.log2 - skips as u32), "{layout}");
            if skipped && before == 0 {
                assert!(state(&mut trainer) == start, "a skipped step of {layout} changes nothing");
            }
        }
        let end = state(&mut trainer);
        Result::Ok(([start, end], skips))
    };
    session::run((layout, &layout.world().unwrap()), &RandomValues { seed: 3 }, run).unwrap()
}

/// Under every schedule, wherever parameters rest, with experts whose biases move. Kills: a skipped step that
/// counts, or moves a value, a master, a moment or a bias; ranks or stages that decide apart; a scale that is
/// halved on some ranks only or twice; a step by another scale than its own; a loss that is scaled twice, in
/// one kernel only, or where experts add to it.
#[test]
fn skipped_steps_change_nothing_and_others_have_the_same_bits() {
    for layout in all_layouts().into_iter().filter(|layout| !layout.pipeline().schedule.updates_each()) {
        let (plain, scaled) = (trained(&layout, None, 2), trained(&layout, Some(HUGE), 2));
        for (rank, ((wanted, none), (seen, skips))) in plain.iter().zip(&scaled).enumerate() {
            assert!(
                *none == 0 && *skips > 1 && *skips == scaled[0].1,
                "{layout}, rank {rank}: {skips} skips"
            );
            let keeps_none = seen[0].is_empty(); // the model rests on another rank
            assert!(seen == wanted && (keeps_none || seen[0] != seen[1]), "{layout}, rank {rank}");
        }
    }
}

/// Kills: a schedule whose stages update alone, and could not skip a step together.
#[test]
fn stages_that_update_alone_refuse_a_scaled_loss() {
    for word in ["pipedream", "pipedream-vertical"] {
        let layout: Layout = format!("pp=2:{word}").parse().unwrap();
        let run = |at: BuildContext<Cpu<f32>>| {
            let scaling = GradientScaling { clip: None, loss: Some(LossScaling::USUAL) };
            Ok::<_, crate::Error>(
                Trainer::new(&at, fitting(&layout), (ADAMW, scaling)).err().map(|e| e.to_string()),
            )
        };
        let said = session::run((&layout, &layout.world().unwrap()), &RandomValues { seed: 3 }, run).unwrap();
        for why in said {
            let why = why.expect("refused");
            assert!(why.contains("updates each stage by itself, so loss scaling cannot skip"), "{why}");
        }
    }
}

/// In the field a scale is divided out exactly. Kills: a gradient of an activation or of a weight that is
/// dumped with the scale, or an activation or a weight that is divided by it.
#[test]
fn dumps_have_the_same_bytes_under_a_loss_scale() {
    let dumped = |loss| {
        let (device, mesh) = (Cpu::<F61>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 3 }).into();
        let (folder, _key) = (tempfile::tempdir().unwrap(), Key(6).enter());
        let scaling = GradientScaling { clip: None, loss };
        let mut trainer = Trainer::new(&at, fitting(&Layout::UNSPLIT), (ADAMW, scaling)).unwrap();
        let entry = |of: &&mut Param<_>| Entry::whole(of.name().to_string(), of.shape());
        let entries: Vec<_> = trainer.model().params().iter().map(entry).collect();
        let (_, seen) = dump::step(&mut trainer, &mesh, &batch(&Layout::UNSPLIT), 0.125).unwrap();
        dump::write(folder.path(), &entries, vec![seen], &dump::Provenance::default()).unwrap();
        ["activations", "gradients", "weights"]
            .map(|name| std::fs::read(folder.path().join(format!("{name}.safetensors"))).unwrap())
    };
    let [plain, scaled] = [None, Some(LossScaling::USUAL)].map(dumped);
    assert!(plain == scaled);
}
