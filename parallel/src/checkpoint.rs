//! Parameters and optimizer state in files, independent of the layout: gathered one tensor at a time by their
//! placements, written by rank 0, read by each rank for its local part. A complete new file replaces the old
//! one.
use crate::{Entry, Error, Named, Result, Stored, bail, named, whole};
use comm::Mesh;
use kernels::Kernels;
use layers::{Design, Optimizer, OptimizerKind, Param, ValueSource, Wide};
use std::collections::BTreeMap;
use std::path::Path;
use tensor::quoted::quoted;
use tensor::safetensors::{Dtype, File, Writer};
use tensor::{Device, Place, Real};

type Metadata = BTreeMap<String, String>;

/// Writes a file of whole tensors, each given with its parameter's name, in f32, as the entries say. Every
/// rank gathers them; rank 0 writes.
fn write<P: Place, E: Real>(
    path: &Path,
    metadata: &Metadata,
    entries: &[Entry],
    mesh: &Mesh<P>,
    tensors: impl Iterator<Item = Result<(String, Option<Vec<E>>)>>,
) -> Result<()> {
    let header: Vec<_> = entries.iter().map(|e| (e.name.clone(), Dtype::F32, e.shape())).collect();
    let create = || Writer::create(path, metadata, &header);
    let mut writer = (mesh.rank() == 0).then(create).transpose()?;
    for tensor in tensors {
        let (param, whole) = tensor?;
        let (Some(writer), Some(whole)) = (&mut writer, whole) else { continue };
        if !whole.iter().all(|x| (x.to_f64() as f32).is_finite()) {
            let path = path.display();
            bail!("{path} is left as it is: {param} has values that are not finite");
        }
        for entry in entries.iter().filter(|e| e.param == param) {
            writer.tensor(&entry.name, &entry.arrange(&whole, |x| x.to_f64() as f32))?;
        }
    }
    writer.map_or(Ok(()), |w| Ok(w.finish()?))
}

/// Writes parameters in f32, as the entries say; narrow ones from their masters. Every rank calls it; rank 0
/// writes.
///
/// # Errors
/// If a collective fails, a value is not finite, or the file cannot be written; then the old file is
/// untouched.
pub fn save_params<D: Kernels<Wide: Device<Elem: Real>>>(
    path: &Path,
    metadata: &Metadata,
    entries: &[Entry],
    (design, params): (&Design, &[&mut Param<D>]),
    mesh: &Mesh<D::Place>,
) -> Result<()> {
    let tensor = |of: Named| {
        let values = whole(params[0].device().wide(), &of, mesh, |i| params[i].gather_master(mesh))?;
        Ok((of.name, values))
    };
    write(path, metadata, entries, mesh, named(design, params, mesh)?.into_iter().map(tensor))
}

/// Returns entries for the moments of every trained parameter. There are none before the first step, or for
/// plain descent.
fn moments(kind: OptimizerKind, steps: usize, params: &[Named]) -> Vec<Entry> {
    if kind == OptimizerKind::Sgd || steps == 0 {
        return Vec::new();
    }
    let entry = |moment: &str, p: &Named| Entry::whole(format!("{moment}.{}", p.name), p.shape);
    let trained = params.iter().filter(|p| p.trained);
    trained.flat_map(|p| MOMENTS.map(|m| entry(m, p))).collect()
}
const MOMENTS: [&str; 2] = ["m", "v"];

/// Writes the optimizer's state in f32, and adds `optimizer` and `steps` to `metadata`. Every rank calls it.
///
/// # Errors
/// As [`save_params`].
pub fn save_optimizer<D: Kernels<Wide: Device<Elem: Real>>>(
    path: &Path,
    mut metadata: Metadata,
    optimizer: &Optimizer<D>,
    (design, params): (&Design, &[&mut Param<D>]),
    mesh: &Mesh<D::Place>,
) -> Result<()> {
    metadata.insert("optimizer".into(), optimizer.kind().name().into());
    metadata.insert("steps".into(), optimizer.steps().to_string());
    let all = named(design, params, mesh)?;
    let entries = moments(optimizer.kind(), optimizer.steps(), &all);
    let tensor = |(of, which): (&Named, usize)| {
        let read = |i: usize| optimizer.gather(params, i, which, mesh);
        let values = whole(params[0].device().wide(), of, mesh, read)?;
        Ok((format!("{}.{}", MOMENTS[which], of.name), values))
    };
    let trained = all.iter().filter(|of| of.trained && !entries.is_empty());
    let each = trained.flat_map(|of| (0..MOMENTS.len()).map(move |which| (of, which)));
    write(path, &metadata, &entries, mesh, each.map(tensor))
}

/// Restores the optimizer's state from a file that [`save_optimizer`] wrote, under any layout.
///
/// # Errors
/// If the file holds the state of another optimizer or another model.
pub fn restore_optimizer<D: Kernels>(
    path: &str,
    file: &File,
    optimizer: &mut Optimizer<D>,
    (design, params): (&Design, &mut [&mut Param<D>]),
    mesh: &Mesh<D::Place>,
) -> Result<()> {
    let noted = |key: &str| {
        let missing = || Error::new(format!("{path}: the file's metadata has no {key:?}"));
        file.metadata().get(key).ok_or_else(missing)
    };
    let (kind, steps) = (noted("optimizer")?, noted("steps")?);
    let wanted = optimizer.kind().name();
    if kind != wanted {
        bail!("{path}: the optimizer is {}; wanted {wanted}", quoted(kind));
    }
    let steps = steps
        .parse()
        .map_err(|_| Error::new(format!("{path}: steps is {}; it must be a whole number", quoted(steps))))?;
    let entries = moments(optimizer.kind(), steps, &named(design, params, mesh)?);
    let stored = Stored::new(file.clone(), entries, |_| false)?;
    let draw = layers::Draw { mean: 0.0, std: 0.0 };
    optimizer.restore(steps, params, |param, which| {
        let name = format!("{}.{}", MOMENTS[which], param.name());
        <Stored as ValueSource<Wide<D>>>::of(&stored, &name, param.shape(), draw)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::gpipe::GPipe;
    use crate::{Batch, BuildContext, Sequence, Trainer};
    use crate::{Orientation, Schedule};
    use comm::{Axis, World};
    use kernels::Heads;
    use layers::{Builder, RandomValues, Shape};
    use std::fs;
    use tensor::{Cpu, Host};

    /// A vocabulary that no two ranks divide, KV heads that four share, gains, biases of norms.
    const SHAPE: Shape = Shape {
        width: 4,
        blocks: 2,
        heads: Heads { queries: 4, keys: 2, dim: 2 },
        hidden: 4,
        vocabulary: 13,
        norm: layers::NormKind::Layer,
        ..Shape::LLAMA
    };
    const ALONE: [usize; 3] = [1, 1, 1];
    const LAYOUTS: [[usize; 3]; 5] = [ALONE, [1, 1, 2], [1, 2, 2], [1, 1, 4], [2, 1, 2]]; // pp, dp, tp
    const FILES: [&str; 2] = ["model", "optimizer"];

    type Float = Cpu<f32>;

    fn batch() -> Batch {
        let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
        Batch::new([5, 12, 3].map(sequence).to_vec(), 1).unwrap()
    }
    /// The first column of each, and the others, turned.
    fn entries(params: &[Named]) -> Vec<Entry> {
        let both = |p: &Named| {
            let ([rows, cols], name) = (p.shape, p.name.clone());
            [(0..1, Orientation::Same), (1..cols, Orientation::Transposed)].map(|(columns, orientation)| {
                let named = format!("{name} from {}", columns.start);
                let param = name.clone();
                Entry { param, columns, orientation, ..Entry::whole(named, [rows, cols]) }
            })
        };
        params.iter().flat_map(both).collect()
    }
    fn save(folder: &Path, trainer: &mut Trainer<Float>) -> Result<()> {
        let ((model, optimizer, mesh), [to, state]) = (trainer.parts(), FILES.map(|name| folder.join(name)));
        let (design, metadata) =
            (model.design().clone(), Metadata::from([("of".to_string(), "a test".to_string())]));
        let params = model.params();
        save_params(&to, &metadata, &entries(&named(&design, &params, mesh)?), (&design, &params), mesh)?;
        save_optimizer(&state, metadata, optimizer, (&design, &params), mesh)
    }
    fn at<'a>(
        device: &'a Float,
        mesh: &'a Mesh<Host>,
        values: &'a dyn ValueSource<f32>,
    ) -> BuildContext<'a, Float> {
        BuildContext {
            builder: Builder::new(device, mesh, values),
            pipeline: (&GPipe as &dyn Schedule).into(),
        }
    }
    /// Another trainer, at the same place, in the state of the files.
    fn load(folder: &Path, device: &Float, mesh: &Mesh<Host>, kind: OptimizerKind) -> Result<Trainer<Float>> {
        let [from, state] = FILES.map(|name| folder.join(name));
        let fresh = RandomValues { seed: 9 };
        let mut fresh = Trainer::new(&at(device, mesh, &fresh), SHAPE, (kind, None))?;
        let params = entries(&named(&SHAPE.into(), &fresh.model().params(), mesh)?);
        let stored = Stored::new(File::open(&from)?, params, |_| false)?;
        let mut trainer = Trainer::new(&at(device, mesh, &stored), SHAPE, (kind, None))?;
        let (model, optimizer, _) = trainer.parts();
        restore_optimizer(
            "state",
            &File::open(&state)?,
            optimizer,
            (&SHAPE.into(), &mut model.params()),
            mesh,
        )?;
        Ok(trainer)
    }
    /// Bits of every parameter and of its moments, and the steps done.
    fn state(trainer: &mut Trainer<Float>) -> Result<(usize, BTreeMap<String, Vec<u32>>)> {
        let (model, optimizer, mesh) = trainer.parts();
        let (params, mut all) = (model.params(), BTreeMap::new());
        let bits = |x: Option<Vec<f32>>| x.unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let device = params[0].device().clone();
        for of in named(&SHAPE.into(), &params, mesh)? {
            all.insert(of.name.clone(), bits(whole(&device, &of, mesh, |i| params[i].gather(mesh))?));
            for (which, moment) in MOMENTS.iter().enumerate() {
                let read = |i: usize| optimizer.gather(&params, i, which, mesh);
                all.insert(format!("{moment} of {}", of.name), bits(whole(&device, &of, mesh, read)?));
            }
        }
        Ok((optimizer.steps(), all))
    }
    fn on<T: Send>(
        [pp, dp, tp]: [usize; 3],
        run: impl Fn(Float, Mesh<Host>) -> Result<T> + Sync,
    ) -> std::result::Result<T, String> {
        let world = World::threads(&[(Axis::Pp, pp), (Axis::Dp, dp), (Axis::Tp, tp)]).unwrap();
        world.run(run).map(|mut all| all.swap_remove(0)).map_err(|error| error.reason)
    }
    /// Trains two steps and saves them; the state then, and after another step.
    fn trained(folder: &Path, layout: [usize; 3]) -> [(usize, BTreeMap<String, Vec<u32>>); 2] {
        let run = |device: Float, mesh: Mesh<_>| {
            let mut trainer = Trainer::new(
                &at(&device, &mesh, &RandomValues { seed: 2 }),
                SHAPE,
                (OptimizerKind::ADAMW, None),
            )?;
            for _ in 0..2 {
                trainer.step(&batch(), 0.1)?;
            }
            save(folder, &mut trainer)?;
            let saved = state(&mut trainer)?;
            trainer.step(&batch(), 0.1)?;
            Ok([saved, state(&mut trainer)?])
        };
        on(layout, run).unwrap()
    }

    /// Kills: a moment of another parameter or of a share, padding in a file, a replica's piece read for
    /// another's, steps counted anew, a file that depends on who wrote it.
    #[test]
    fn what_one_layout_writes_every_other_reads_bit_for_bit_and_writes_again() {
        for layout in LAYOUTS {
            let folder = tempfile::tempdir().unwrap();
            let [saved, next] = trained(folder.path(), layout);
            assert_eq!((saved.0, next.0), (2, 3));
            let notes = FILES.map(|name| File::open(&folder.path().join(name)).unwrap().metadata().clone());
            let of = [("of", "a test"), ("optimizer", "adamw"), ("steps", "2")];
            let of: Vec<_> = of.map(|(key, value)| (key.to_string(), value.to_string())).to_vec();
            assert_eq!(notes.map(|notes| notes.into_iter().collect::<Vec<_>>()), [of[..1].to_vec(), of]);
            assert!(saved.1.iter().all(|(name, bits)| bits.iter().any(|b| *b != 0) && next.1[name] != *bits));
            for other in LAYOUTS {
                let copy = tempfile::tempdir().unwrap();
                let run = |device: Float, mesh: Mesh<_>| {
                    let mut trainer = load(folder.path(), &device, &mesh, OptimizerKind::ADAMW)?;
                    save(copy.path(), &mut trainer)?;
                    let read = state(&mut trainer)?;
                    trainer.step(&batch(), 0.1)?;
                    Ok([read, state(&mut trainer)?])
                };
                let [read, then] = on(other, run).unwrap();
                assert!(read == saved, "{layout:?} read by {other:?}");
                assert!(other != layout || then == next, "{layout:?} goes on as if it had not stopped");
                for name in FILES {
                    let bytes = [&folder, &copy].map(|at| fs::read(at.path().join(name)).unwrap());
                    assert!(bytes[0] == bytes[1], "{name} of {layout:?} written again by {other:?}");
                }
            }
        }
    }

    /// Kills: the state of another optimizer taken for this one's, a step that is no number, a file without
    /// notes.
    #[test]
    fn a_state_that_is_not_this_optimizers_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        trained(folder.path(), ALONE);
        let reported =
            |kind| on(ALONE, |device, mesh| load(folder.path(), &device, &mesh, kind).map(drop)).unwrap_err();
        assert_eq!(reported(OptimizerKind::Sgd), "state: the optimizer is \"adamw\"; wanted sgd");
        let noting = |notes: &[(&str, &str)]| {
            let notes = notes.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            Writer::create::<&str>(&folder.path().join("optimizer"), &notes, &[]).unwrap().finish().unwrap();
            reported(OptimizerKind::ADAMW)
        };
        assert_eq!(noting(&[]), "state: the file's metadata has no \"optimizer\"");
        assert_eq!(noting(&[("optimizer", "adamw")]), "state: the file's metadata has no \"steps\"");
        let wrong = noting(&[("optimizer", "adamw"), ("steps", "two")]);
        assert_eq!(wrong, "state: steps is \"two\"; it must be a whole number");
        let missing = noting(&[("optimizer", "adamw"), ("steps", "2")]);
        assert!(missing.contains("m.embedding"), "{missing}");
    }

    /// Kills: a file replaced by one that is not whole.
    #[test]
    fn numbers_that_are_not_finite_leave_the_file_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        trained(folder.path(), [1, 1, 2]);
        let before = FILES.map(|name| fs::read(folder.path().join(name)).unwrap());
        let why = on([1, 1, 2], |device, mesh| {
            let mut trainer = load(folder.path(), &device, &mesh, OptimizerKind::ADAMW)?;
            trainer.step(&batch(), f64::INFINITY)?;
            save(folder.path(), &mut trainer)
        });
        let path = folder.path().join("model");
        let says = format!("{} is left as it is: embedding has values that are not finite", path.display());
        assert_eq!(why, Err(says));
        assert!(FILES.map(|name| fs::read(folder.path().join(name)).unwrap()) == before);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
