//! Files of every layout: the same bytes, read by every other.
use super::*;
use crate::pipeline::gpipe::GPipe;
use crate::{
    Batch, BuildContext, Entry, Named, Orientation, Schedule, Sequence, Stacked, Stored, Trainer, named,
    whole,
};
use comm::{Axis, World};
use kernels::Heads;
use layers::{Builder, OptimizerKind, Shape};
use ops::{ADAMW, OPTIMIZERS, RandomValues, SGD, VALUE, ValueSource};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use tensor::bulk::finite_f32;
use tensor::safetensors::{File, Writer};
use tensor::{Category, Cpu, Device, Host, Real};

/// A vocabulary that no two ranks divide, KV heads that four share, gains, biases of norms, rows that
/// ranks cut at multiples of 4.
const SHAPE: Shape = Shape {
    width: 4,
    blocks: 2,
    heads: Heads::new(4, 2, 4),
    hidden: 16,
    vocabulary: 13,
    norm: layers::NormKind::Layer,
    ..Shape::LLAMA
};
mod loss_scaling;

const ALONE: [usize; 3] = [1, 1, 1];
const LAYOUTS: [[usize; 3]; 5] = [ALONE, [1, 1, 2], [1, 2, 2], [1, 1, 4], [2, 1, 2]]; // pp, dp, tp
const FILES: [&str; 2] = ["model", "optimizer"];

type Float = Cpu<f32>;

fn batch() -> Batch {
    let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
    Batch::new([5, 12, 3].map(sequence).to_vec(), 1).unwrap()
}
/// The first column of each, and the others, turned; of feed-forwards, several matrices in one, one with
/// alternate columns and one turned.
fn entries(params: &[Named]) -> Vec<Entry> {
    let both = |p: &Named| -> Vec<Entry> {
        let ([rows, cols], name) = (p.shape, p.name.clone());
        for (of, orientation) in [("gate_up", Orientation::Alternate), ("down", Orientation::Transposed)] {
            if name.ends_with(of) {
                let within = Some(Stacked::All(4));
                return vec![Entry { orientation, within, ..Entry::whole(name, p.shape) }];
            }
        }
        [(0..1, Orientation::Same), (1..cols, Orientation::Transposed)]
            .map(|(columns, orientation)| {
                let named = format!("{name} from {}", columns.start);
                let param = name.clone();
                Entry { param, columns, orientation, ..Entry::whole(named, [rows, cols]) }
            })
            .into()
    };
    params.iter().flat_map(both).collect()
}
/// Every optimizer of the list, with the smallest blocks of state: of 4 elements.
pub(crate) fn kinds() -> impl Iterator<Item = OptimizerKind> {
    OPTIMIZERS.iter().map(|info| {
        let usual = OptimizerKind::usual(info);
        usual.set("block-size", &[4.0]).unwrap_or(usual)
    })
}
/// The model's file, and the optimizer's, of at most so many bytes each.
pub(crate) fn files<D: Kernels<Place = Host>>(
    folder: &Path,
    trainer: &mut Trainer<D>,
    limit: u64,
    entries: impl Fn(&[Named]) -> Vec<Entry>,
) -> Result<Vec<CheckpointFile>> {
    let (model, optimizer, mesh) = trainer.parts();
    let (design, metadata) =
        (model.design().clone(), BTreeMap::from([("of".to_string(), "a test".to_string())]));
    let (params, [path, state]) = (model.params(), FILES.map(|name| folder.join(name)));
    let value = |entry| (entry, VALUE);
    let tensors = entries(&named(&design, &params, mesh)?).into_iter().map(value).collect();
    let place = (state, format!("optimizer-{}", optimizer.steps()), limit);
    let state = optimizer_file(place, metadata.clone(), optimizer, (&design, &params), mesh)?;
    let shards = format!("model-{}", optimizer.steps());
    Ok(vec![state, CheckpointFile { path, shards, limit, metadata, tensors }])
}
/// Writes the files, in the background or not.
pub(crate) fn written<D: Kernels<Place = Host>>(
    files: Vec<CheckpointFile>,
    trainer: &mut Trainer<D>,
    background: bool,
) -> Result<()>
where
    Wide<D>: Real,
{
    let (model, _, mesh) = trainer.parts();
    let saving = super::save(files, &model.params(), mesh, (finite_f32, background));
    assert!(saving?.advance(mesh, true)?);
    Ok(())
}
fn save(folder: &Path, trainer: &mut Trainer<Float>) -> Result<()> {
    let files = files(folder, trainer, u64::MAX, entries)?;
    written(files, trainer, false)
}
fn at<'a>(
    device: &'a Float,
    mesh: &'a Mesh<Host>,
    values: &'a dyn ValueSource<f32>,
) -> BuildContext<'a, Float> {
    BuildContext { builder: Builder::new(device, mesh, values), pipeline: (&GPipe as &dyn Schedule).into() }
}
/// Another trainer at a place, in the state of the files.
pub(crate) fn restored<D: Kernels<Place = Host>>(
    folder: &Path,
    at: &BuildContext<D>,
    (shape, kind): (Shape, OptimizerKind),
    entries: impl Fn(&[Named]) -> Vec<Entry>,
) -> Result<Trainer<D>> {
    let ([from, state], design) = (FILES.map(|name| folder.join(name)), shape.into());
    let mut fresh = Trainer::new(at, shape, (kind, None))?;
    let params = entries(&named(&design, &fresh.model().params(), at.mesh)?);
    let stored = Stored::new(File::open(&from)?, params, |_| false)?;
    let builder = Builder { values: &stored, ..at.builder.clone() };
    let mut trainer = Trainer::new(&BuildContext { builder, pipeline: at.pipeline }, shape, (kind, None))?;
    let (model, optimizer, mesh) = trainer.parts();
    restore_optimizer("state", &File::open(&state)?, optimizer, (&design, &mut model.params()), mesh)?;
    Ok(trainer)
}
fn load(folder: &Path, device: &Float, mesh: &Mesh<Host>, kind: OptimizerKind) -> Result<Trainer<Float>> {
    restored(folder, &at(device, mesh, &RandomValues { seed: 9 }), (SHAPE, kind), entries)
}
/// Every tensor that is saved, of all ranks together, in f32: each element once, from the rank that saves it.
pub(crate) fn saved<D: Kernels<Place = Host>>(trainer: &mut Trainer<D>) -> Result<BTreeMap<String, Vec<u32>>>
where
    Wide<D>: Real,
{
    let (model, optimizer, mesh) = trainer.parts();
    let (design, params, states) = (model.design().clone(), model.params(), optimizer.rule().states());
    let mut all = BTreeMap::new();
    for of in named(&design, &params, mesh)? {
        let kept = states.of(&of.name, of.shape).iter().map(|state| (state.name, state.like.shape(of.shape)));
        for (which, [height, width]) in std::iter::once((VALUE, of.shape)).chain(kept) {
            let mut whole = vec![[0u32; 2]; height * width]; // bits, and how often they are saved
            for param in params.iter().filter(|param| **param.name() == *of.name) {
                let mut parts = param.tensors().filter_map(|tensor| tensor.saved());
                let Some(part) = parts.find(|part| part.name == which) else { continue };
                let values = part.tensor.read().expect("the host has values");
                for ops::SavedRectangle { begin, shape: [rows, cols], from, stride } in part.rectangles {
                    for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                        let [bits, times] = &mut whole[(begin[0] + row) * width + begin[1] + col];
                        *bits = (values[from + row * stride + col].to_f64() as f32).to_bits();
                        *times += 1;
                    }
                }
            }
            mesh.world().all_reduce_values(&mut whole, |a, b| [a[0] + b[0], a[1] + b[1]])?;
            let trained = which == VALUE || of.trained;
            assert!(!trained || whole.iter().all(|[_, times]| *times == 1), "{which} of {}", of.name);
            all.insert(format!("{which} of {}", of.name), whole.into_iter().map(|[bits, _]| bits).collect());
        }
    }
    Ok(all)
}
/// The tensors that are saved, the values as they are gathered, and the steps done.
fn state(trainer: &mut Trainer<Float>) -> Result<(usize, BTreeMap<String, Vec<u32>>)> {
    let mut all = saved(trainer)?;
    let (model, optimizer, mesh) = trainer.parts();
    let params = model.params();
    let device = params[0].device().clone();
    for of in named(&SHAPE.into(), &params, mesh)? {
        let values = whole(&device, &of, mesh, |i| params[i].gather(mesh))?.unwrap();
        let bits: Vec<_> = values.into_iter().map(f32::to_bits).collect();
        assert!(bits == all[&format!("value of {}", of.name)], "{}", of.name);
        all.insert(of.name, bits);
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
fn trained(
    folder: &Path,
    layout: [usize; 3],
    kind: OptimizerKind,
) -> [(usize, BTreeMap<String, Vec<u32>>); 2] {
    let run = |device: Float, mesh: Mesh<_>| {
        let mut trainer = Trainer::new(&at(&device, &mesh, &RandomValues { seed: 2 }), SHAPE, (kind, None))?;
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

/// Under every optimizer, each from another layout. Kills: a moment of another parameter or of a share, or
/// one that no rank keeps, such as the second of a matrix under Muon; padding in a file, a replica's piece
/// read for another's, steps counted anew, a file that depends on who wrote it.
#[test]
fn what_one_layout_writes_every_other_reads_bit_for_bit_and_writes_again() {
    for (kind, layout) in kinds().zip(LAYOUTS.into_iter().cycle()) {
        let folder = tempfile::tempdir().unwrap();
        let [saved, next] = trained(folder.path(), layout, kind);
        assert_eq!((saved.0, next.0), (2, 3));
        let notes = FILES.map(|name| File::open(&folder.path().join(name)).unwrap().metadata().clone());
        let of = [("of", "a test"), ("optimizer", kind.name()), ("updates", "2")];
        let of: Vec<_> = of.map(|(key, value)| (key.to_string(), value.to_string())).to_vec();
        assert_eq!(notes.map(|notes| notes.into_iter().collect::<Vec<_>>()), [of[..1].to_vec(), of]);
        let states =
            saved.1.keys().filter_map(|key| key.split_once(" of ")).filter(|(which, _)| *which != VALUE);
        let states: BTreeSet<_> = states.map(|(which, name)| format!("{which}.{name}")).collect();
        let file = File::open(&folder.path().join("optimizer")).unwrap();
        assert!(file.names().eq(states.iter()), "{kind}: {:?}", file.names().collect::<Vec<_>>());
        assert!(saved.1.iter().all(|(name, bits)| bits.iter().any(|b| *b != 0) && next.1[name] != *bits));
        for other in LAYOUTS {
            let copy = tempfile::tempdir().unwrap();
            let run = |device: Float, mesh: Mesh<_>| {
                let mut trainer = load(folder.path(), &device, &mesh, kind)?;
                save(copy.path(), &mut trainer)?;
                let read = state(&mut trainer)?;
                trainer.step(&batch(), 0.1)?;
                Ok([read, state(&mut trainer)?])
            };
            let [read, then] = on(other, run).unwrap();
            assert!(read == saved, "{kind}: {layout:?} read by {other:?}");
            assert!(other != layout || then == next, "{kind}: {layout:?} goes on as if it had not stopped");
            for name in FILES {
                let bytes = [&folder, &copy].map(|at| fs::read(at.path().join(name)).unwrap());
                assert!(bytes[0] == bytes[1], "{kind}: {name} of {layout:?} written again by {other:?}");
            }
        }
    }
}

/// Kills: the state of another optimizer taken for this one's, a step that is no number, a file without
/// notes.
#[test]
fn a_state_that_is_not_this_optimizers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), ALONE, ADAMW);
    let reported =
        |kind| on(ALONE, |device, mesh| load(folder.path(), &device, &mesh, kind).map(drop)).unwrap_err();
    assert_eq!(reported(SGD), "state: the optimizer is \"adamw\"; wanted sgd");
    let noting = |notes: &[(&str, &str)]| {
        let notes = notes.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Writer::create::<&str>(&folder.path().join("optimizer"), &notes, &[]).unwrap().finish().unwrap();
        reported(ADAMW)
    };
    assert_eq!(noting(&[]), "state: the file's metadata has no \"optimizer\"");
    assert_eq!(noting(&[("optimizer", "adamw")]), "state: the file's metadata has no \"steps\"");
    let wrong = noting(&[("optimizer", "adamw"), ("steps", "two")]);
    assert_eq!(wrong, "state: the number of updates is \"two\"; it must be a whole number");
    let missing = noting(&[("optimizer", "adamw"), ("updates", "2")]);
    assert!(missing.contains("m.embedding"), "{missing}");
}

/// Kills: a file replaced by one that is not whole.
#[test]
fn numbers_that_are_not_finite_leave_the_file_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), [1, 1, 2], ADAMW);
    let before = FILES.map(|name| fs::read(folder.path().join(name)).unwrap());
    let why = on([1, 1, 2], |device, mesh| {
        let mut trainer = load(folder.path(), &device, &mesh, ADAMW)?;
        trainer.step(&batch(), f64::INFINITY)?;
        save(folder.path(), &mut trainer)
    });
    let path = folder.path().join("model");
    let says = format!("{} is left as it is: embedding has values that are not finite", path.display());
    assert_eq!(why, Err(says));
    assert!(FILES.map(|name| fs::read(folder.path().join(name)).unwrap()) == before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

fn fresh(device: &Float, mesh: &Mesh<Host>, shape: Shape) -> Result<Trainer<Float>> {
    let mut trainer = Trainer::new(&at(device, mesh, &RandomValues { seed: 2 }), shape, (ADAMW, None))?;
    trainer.step(&batch(), 0.1)?;
    Ok(trainer)
}

/// Kills: elements that cross a link, a gather of whole tensors.
#[test]
fn only_names_sizes_and_digests_cross_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let run = |device: Float, mesh: Mesh<Host>| {
        let mut trainer = fresh(&device, &mesh, Shape { vocabulary: 4001, ..SHAPE })?;
        let before = mesh.ledger().wire_bytes();
        save(folder.path(), &mut trainer)?;
        Ok(mesh.ledger().wire_bytes() - before)
    };
    let sent = on([2, 2, 2], run).unwrap();
    let held: u64 = FILES.map(|name| fs::metadata(folder.path().join(name)).unwrap().len()).iter().sum();
    assert!((100..4_000).contains(&sent) && held > 300_000, "{sent} of {held} bytes");
}

/// The tensors of a file or its shards, by name.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = File::open_whole_or_shards(path).unwrap();
    file.verify().unwrap();
    file.names().map(|name| (name.to_string(), file.whole(name).unwrap().2.to_vec())).collect()
}

/// Kills: a tensor in two shards or in none, one of another's step, an index that is written before its
/// shards or counts only some of them, an old file that hides a new index, or the other way round.
#[test]
fn shards_hold_what_one_file_holds_and_replace_it() {
    let [one, many] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let run = |device: Float, mesh: Mesh<Host>| {
        let mut trainer = fresh(&device, &mesh, SHAPE)?;
        save(one.path(), &mut trainer)?;
        save(many.path(), &mut trainer)?;
        trainer.step(&batch(), 0.1)?;
        let shards = files(many.path(), &mut trainer, 300, entries)?;
        written(shards, &mut trainer, false)?;
        save(one.path(), &mut trainer)
    };
    on([2, 1, 2], run).unwrap();
    for name in FILES {
        let [whole, split] = [&one, &many].map(|folder| folder.path().join(name));
        assert!(tensors(&whole) == tensors(&split), "{name}");
        assert!(whole.exists() && !split.exists());
        let shards = fs::read_dir(many.path()).unwrap().map(|file| file.unwrap());
        let shards =
            shards.filter(|file| file.file_name().to_str().unwrap().starts_with(&format!("{name}-2-")));
        let sizes: Vec<_> = shards.map(|shard| shard.metadata().unwrap().len()).collect();
        assert!(sizes.len() > 3 && sizes.iter().all(|size| *size < 3_000), "{sizes:?}");
        let index = fs::read(many.path().join(format!("{name}.index.json"))).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let bytes: usize = tensors(&whole).values().map(Vec::len).sum();
        assert_eq!(index["metadata"]["total_size"].as_u64(), Some(bytes as u64), "others plan memory by it");
    }
    let run = |device: Float, mesh: Mesh<Host>| save(many.path(), &mut fresh(&device, &mesh, SHAPE)?);
    on([1, 1, 2], run).unwrap();
    for name in FILES {
        assert!(many.path().join(name).exists() && !many.path().join(format!("{name}.index.json")).exists());
    }
}

/// Kills: a copy that shares memory with the state, one that is taken after the next update, a checkpoint
/// that is current before all ranks have written.
#[test]
fn a_checkpoint_in_the_background_holds_the_step_at_which_it_began() {
    let [now, later] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let run = |device: Float, mesh: Mesh<Host>| {
        let mut trainer = fresh(&device, &mesh, SHAPE)?;
        save(now.path(), &mut trainer)?;
        let files = files(later.path(), &mut trainer, u64::MAX, entries)?;
        let held = device.meter().now(Category::Snapshot);
        let mut saving = super::save(files, &trainer.model().params(), &mesh, (finite_f32, true))?;
        let copied = device.meter().now(Category::Snapshot) - held;
        trainer.step(&batch(), 0.1)?;
        while !saving.advance(&mesh, false)? {
            trainer.step(&batch(), 0.1)?;
        }
        let left = device.meter().now(Category::Snapshot);
        Ok((copied, left, mesh.world().all_gather_values(&[copied])?.concat()))
    };
    let (_, left, copied) = on([2, 2, 2], run).unwrap();
    let elements: u64 = FILES
        .map(|name| tensors(&now.path().join(name)).values().map(Vec::len).sum::<usize>() as u64)
        .iter()
        .sum();
    assert!(left == 0 && copied.iter().sum::<usize>() as u64 >= elements, "{copied:?} of {elements}");
    for name in FILES {
        let bytes = [&now, &later].map(|folder| fs::read(folder.path().join(name)).unwrap());
        assert!(bytes[0] == bytes[1], "{name}");
    }
}

/// Kills: a rank's failure that others do not see, files of a failed checkpoint that stay.
#[test]
fn a_rank_that_cannot_write_leaves_the_old_checkpoint() {
    for background in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let run = |device: Float, mesh: Mesh<Host>| {
            let mut trainer = fresh(&device, &mesh, SHAPE)?;
            save(folder.path(), &mut trainer)?;
            trainer.step(&batch(), f64::INFINITY)?;
            let files = files(folder.path(), &mut trainer, u64::MAX, entries)?;
            written(files, &mut trainer, background)
        };
        let why = on([2, 1, 2], run).unwrap_err();
        assert!(why.contains("is left as it is") && why.ends_with("values that are not finite"), "{why}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        for name in FILES {
            assert!(File::open(&folder.path().join(name)).unwrap().verify().unwrap() > 3);
        }
    }
}
