//! Checkpoints in the field: every layout writes the same bytes, reads those of any other, and goes on
//! exactly as a run that did not stop. Files hold an element's canonical integer.
use comm::Axis;
use layers::Choice;
use ops::{ADAMW, Draw, LossScaling, OPTIMIZERS, Param, ParamValues, RandomValues, VALUE, ValueSource};
use parallel::checkpoint::{self, CheckpointFile, optimizer_file};
use parallel::layout::covering::covering;
use parallel::{BuildContext, Entry, Layout, Result, Trainer, named, session};
use prove::Subject;
use prove::cases::{Member, PANEL};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensor::safetensors::File;
use tensor::{Cpu, F61, Key, mix};

const FILES: [&str; 2] = ["model.safetensors", "optimizer.safetensors"];
const KEY: Key = Key(41);

/// Values of a file by name, or fresh ones.
struct FieldFile(Option<File>);

impl ValueSource<F61> for FieldFile {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> ops::Result<ParamValues<'_, F61>> {
        let Some(file) = &self.0 else { return RandomValues { seed: 5 }.of(name, shape, draw) };
        let values = file.values::<u64>(name, &shape).expect("the file has it");
        Ok(ParamValues::each(move |[row, col]| F61::from_canonical(values[row * shape[1] + col])))
    }
}

/// Builds the model of a subject under a layout, fresh or from the files of a folder; trains so many of its
/// steps; and saves it in another folder.
fn run(subject: &Subject, layout: &Layout, from: Option<&Path>, steps: &[usize], to: &[&Path]) -> Result<()> {
    let opened = |name: &str| from.map(|folder| File::open(&folder.join(name)).expect("it was saved"));
    let [values, state] = FILES.map(|name| FieldFile(opened(name)));
    let program = |at: BuildContext<Cpu<F61>>| {
        let _key = KEY.enter();
        let mut trainer = Trainer::new(&at, subject.model.clone(), subject.optimizer)?;
        let done = if from.is_some() { steps.first().copied().unwrap_or(1) } else { 0 };
        if from.is_some() {
            let (model, optimizer, _) = trainer.parts();
            let loss = optimizer.scaling().loss.map(|loss| LossScaling { good: done as u32, ..loss });
            optimizer.restore((done, loss), &mut model.params(), |param: &Param<_>, state_of| {
                let name = format!("{}.{}", state_of.name, param.name());
                state.of(&name, state_of.like.shape(param.shape()), Draw { mean: 0.0, std: 0.0 })
            })?;
            save(&mut trainer, to[0])?;
        }
        for (step, folder) in (done..2).zip(if from.is_some() { &to[1..] } else { to }) {
            let (batch, lr) = &subject.steps[step];
            trainer.step(batch, *lr)?;
            save(&mut trainer, folder)?;
        }
        Ok(())
    };
    let world = layout.world()?;
    let _key = KEY.enter();
    session::run((layout, &world), &values, program).map(drop)
}

fn save(trainer: &mut Trainer<Cpu<F61>>, folder: &Path) -> Result<()> {
    let (stages, optimizer, mesh) = trainer.parts();
    let (design, params) = (stages.design().clone(), stages.params());
    let [path, state] = FILES.map(|name| folder.join(name));
    let metadata = BTreeMap::new();
    let place = (state, String::new(), u64::MAX);
    let state = optimizer_file(place, metadata.clone(), optimizer, (&design, &params), mesh)?;
    let entry = |of: parallel::Named| (Entry::whole(of.name, of.shape), VALUE);
    let tensors = named(&design, &params, mesh)?.into_iter().map(entry).collect();
    let model = CheckpointFile { path, shards: String::new(), limit: u64::MAX, metadata, tensors };
    let to = |values: &[F61], to: &mut [u64]| {
        to.iter_mut().zip(values).for_each(|(to, value)| *to = value.canonical());
        true
    };
    checkpoint::save(vec![state, model], &params, mesh, (to, false))?.advance(mesh, true).map(drop)
}

fn bytes(folder: &Path) -> [Vec<u8>; 2] {
    FILES.map(|name| fs::read(folder.join(name)).unwrap())
}

/// Every pair of entries of all lists, each with a model of the panel in turn. Two layouts that write the
/// same files, and continue from them alike, can follow each other in any order. Kills: a piece that two
/// ranks write or none, a shard of another rank, a moment of another parameter or step, a tied end saved from
/// both stages, a file that depends on who wrote it.
#[test]
fn checkpoints_of_all_layouts_are_the_same_and_go_on_alike() {
    let layouts = covering(8);
    let mut tried = BTreeMap::new();
    for (i, layout) in layouts.iter().enumerate() {
        let info = OPTIMIZERS[i % OPTIMIZERS.len()];
        let with = PANEL.iter().find(|member| member.optimizer.0.name() == info.name).expect("there is one");
        let member = &PANEL[mix(i as u64) as usize % PANEL.len()];
        let member = Member { optimizer: (with.optimizer.0, member.optimizer.1), ..*member };
        if layout.pipeline().schedule.updates_each() {
            continue; // other updates lead to other files
        }
        let is_sparse = layout.strategies().iter().any(|about| about.choice == Choice::Features);
        let sparse = || format!("tp={}:sparse/50", layout.size(Axis::Tp)).parse().unwrap();
        let base = if is_sparse { sparse() } else { Layout::UNSPLIT }; // of a model without these weights
        let Ok(subject) = member.subject(layout) else { continue };
        let folders = [(); 6].map(|()| tempfile::tempdir().unwrap());
        let [first, second, own, then, read, last] = folders.each_ref().map(tempfile::TempDir::path);
        let about = format!("{layout}, {} ({})", member.name, subject.learner());
        run(&subject, &base, None, &[], &[first, second]).unwrap();
        run(&subject, layout, None, &[], &[own, then]).unwrap_or_else(|why| panic!("{about}: {why}"));
        assert!(bytes(own) == bytes(first) && bytes(then) == bytes(second), "{about}: written");
        run(&subject, layout, Some(first), &[1], &[read, last]).unwrap();
        assert!(bytes(read) == bytes(first), "{about}: read and written again");
        assert!(bytes(last) == bytes(second), "{about}: resumed");
        *tried.entry(info.name).or_insert(0) += 1;
    }
    let few = |n: &usize| *n * OPTIMIZERS.len() * 2 < layouts.len();
    assert!(tried.len() == OPTIMIZERS.len() && !tried.values().any(few), "{tried:?} of {}", layouts.len());
}

/// Every run loses a rank after its first step: four ranks are followed by three, whose data ranks have
/// unequal parts of a batch, these by two, and two by one. Kills: files that only layouts of one number of
/// ranks can continue, a batch or a mean that depends on the number of ranks, a shard that is left with a
/// lost rank.
#[test]
fn a_checkpoint_goes_on_with_fewer_ranks() {
    let chain = ["tp=2,dp=2:zero1", "dp=3:zero3", "pp=2:zb-h1", "none"].map(|layout| layout.parse().unwrap());
    for member in PANEL.iter() {
        let subject = member.subject(&Layout::UNSPLIT).unwrap();
        let subject = Subject { optimizer: (ADAMW, subject.optimizer.1), ..subject };
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let [first, second, more] = folders.each_ref().map(tempfile::TempDir::path);
        run(&subject, &Layout::UNSPLIT, None, &[], &[first, second]).unwrap();
        for pair in chain.windows(2) {
            let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
            let [own, read, last] = folders.each_ref().map(tempfile::TempDir::path);
            run(&subject, &pair[0], None, &[], &[own, more]).unwrap();
            run(&subject, &pair[1], Some(own), &[1], &[read, last]).unwrap();
            let about = format!("{} to {}, {}", pair[0], pair[1], member.name);
            assert!(bytes(own) == bytes(first) && bytes(last) == bytes(second), "{about}");
        }
    }
}
