//! `prove`: the whole model under a layout equals the unsplit oracle, bit for bit, in the prime field 2^61 − 1.
//!
//! For each key, both read texts (the program token by token, with a cache of keys and values), then train on ragged
//! microbatches with a clipped norm. Compared are the texts' logits, then for each step the loss, the norm², every gradient and every new weight, put together from all ranks, on every rank.
//! After a step a fresh random number is added to every weight, so that degrees, and with them the bound, do not
//! compound.
mod classifier;
mod difference;
mod locate;
mod subject;
mod timeline;
mod trace;
mod verdict;

pub use classifier::{ClassifierSubject, certify_classifier, prove_classifier, prove_classifier_in};
pub use difference::Difference;
pub use subject::Subject;
pub use verdict::Verdict;

use self::timeline::{Moment, Shown};
use self::trace::{Named, Trace};
use crate::dump::{self, About, Seen};
use crate::{Layout, Result};
use comm::{Mesh, World};
use kernels::Kernels;
use layers::{Chunk, Cx, Random, Record};
use parallel::{Entry, Trainer};
use reference::Weights;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tensor::{Cpu, F61, Ids, Key};

/// What one rank saw: the weights before, and everything after.
struct Run<S> {
    start: Weights<S>,
    trace: Named<S>,
    seen: Option<Seen<S>>,              // of the first step, where that was asked for
    timeline: Vec<Moment<S>>,           // where everything is looked at
    built: Vec<(String, &'static str)>, // layers that strategies built, with their names
}

/// What a program leaves besides its results.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing.
    Results,
    /// What its first step took, gave and learnt.
    Dump,
    /// Everything, in program order.
    Everything,
}

/// The layout's program on one rank, on any device: its weights before, and its trace.
fn program<D: Kernels>(
    subject: &Subject,
    layout: &Layout,
    device: &D,
    mesh: &Mesh<D>,
    look: Look,
) -> parallel::Result<Run<D::Elem>> {
    let at = layout.place(device, mesh, &Random { seed: 0 });
    let mut trainer = Trainer::new(&at, &subject.shape, subject.optimizer)?;
    let mut trace = Vec::new();
    let start = dump::weights(trainer.model().params(), mesh)?.into_iter().collect();
    let record = || (look == Look::Everything).then(|| Record::new(mesh));
    let taken = |record: Option<Record<D>>| record.map(|record| record.take()).unwrap_or_default();
    let (mut seen, mut timeline, of_texts) = (None, Vec::new(), record());
    let vocabulary = subject.shape.vocabulary;
    let logits = read(&subject.texts, trainer.model(), device, vocabulary, of_texts.clone())?;
    trace.push(("logits".to_string(), logits));
    if look == Look::Everything {
        let shown = Shown { prefix: "texts: ".into(), seen: taken(of_texts), report: None, calls: 0 };
        timeline.extend(timeline::moments(shown, Vec::new(), mesh));
    }
    for (n, (batch, lr)) in subject.steps.iter().enumerate() {
        let (of_step, calls) = (record(), mesh.calls_made());
        trainer.record(of_step.clone());
        let report = if look == Look::Dump && n == 0 {
            let (report, all) = dump::step(&mut trainer, mesh, batch, *lr)?;
            seen = Some(all);
            report
        } else {
            trainer.step(batch, *lr)?
        };
        if look == Look::Everything {
            let shown =
                Shown { prefix: format!("step {n}: "), seen: taken(of_step), report: Some(&report), calls };
            timeline.extend(timeline::moments(shown, trainer.model().params(), mesh));
        }
        trace::seen(&mut trace, n, &report, trainer.model().params(), device, mesh)?;
    }
    Ok(Run { start, trace, seen, timeline, built: at.built.take() })
}

/// The logits of every token of every text, fed as a generation would be: prompts, then one token at a time.
fn read<D: Kernels>(
    texts: &[(Vec<u32>, usize)],
    model: &mut Chunk<D>,
    device: &D,
    vocabulary: usize,
    record: Option<Record<D>>,
) -> parallel::Result<Vec<D::Elem>> {
    let capacity = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let mut lengths: Vec<_> = texts.iter().map(|(_, prompt)| *prompt).collect();
    let mut cx = Cx::infer(&lengths).recorded(record).with_cache(capacity);
    let (mut done, mut rows) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
    while lengths.iter().any(|&n| n > 0) {
        let fed =
            texts.iter().zip(&done).zip(&lengths).flat_map(|(((ids, _), &from), n)| &ids[from..from + n]);
        let ids = Ids::new(device, &fed.copied().collect::<Vec<_>>(), vocabulary)?;
        let logits = model.logits(&cx, ids, true)?.read().unwrap_or_default();
        let mut logits = logits.chunks(vocabulary);
        for ((rows, n), done) in rows.iter_mut().zip(&lengths).zip(&mut done) {
            rows.extend(logits.by_ref().take(*n).flatten().copied());
            *done += n;
        }
        lengths = texts.iter().zip(&done).map(|((ids, _), &done)| usize::from(done < ids.len())).collect();
        cx.advance(&lengths);
    }
    Ok(rows.concat())
}

/// The oracle's traces of one subject under each key, computed once and used for every layout.
#[derive(Default)]
pub struct Truths(Mutex<BTreeMap<u64, Arc<OnceLock<Trace>>>>);

impl Truths {
    fn of(&self, key: Key, subject: &Subject, start: Weights<F61>) -> Arc<OnceLock<Trace>> {
        let place = self.0.lock().expect("nothing panics under this lock").entry(key.0).or_default().clone();
        place.get_or_init(|| subject.truth(start));
        place
    }
}

/// Proves one layout under these keys, and says how surely.
///
/// # Errors
/// As [`prove`].
pub fn certify(subject: &Subject, layout: &Layout, keys: &[Key]) -> Result<Verdict> {
    let mut verdict = prove(subject, layout, keys, &Truths::default())?;
    if let Some(seen) = verdict.first_difference.take() {
        verdict.first_difference = Some(locate(subject, layout, keys)?.unwrap_or(seen));
    }
    Ok(Verdict { bound_log2: subject.bound_log2(keys.len()), ..verdict })
}

/// Where a layout's program parts from the oracle under the first of these keys that tells: forward activations and
/// their gradients are looked at, too. None if nothing does.
///
/// # Errors
/// As [`prove`].
pub fn locate(subject: &Subject, layout: &Layout, keys: &[Key]) -> Result<Option<Difference>> {
    for &key in keys {
        if let Some(difference) = locate_in(layout.world()?, subject, layout, key)? {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// The same under one key, in a world of the layout's ranks that may be [on trial](World::on_trial).
///
/// # Errors
/// As [`prove`].
pub fn locate_in(world: World, subject: &Subject, layout: &Layout, key: Key) -> Result<Option<Difference>> {
    layout.fits(&subject.shape)?;
    locate::locate(subject, layout, key, world)
}

/// Proves one layout under these keys, without the bound; the oracle's part is kept in `truths` for the next.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn prove(subject: &Subject, layout: &Layout, keys: &[Key], truths: &Truths) -> Result<Verdict> {
    prove_in(&layout.world()?, subject, layout, keys, truths)
}

/// The same in a world of the layout's ranks that may be [on trial](World::on_trial), or slow.
///
/// # Errors
/// As [`prove`].
pub fn prove_in(
    world: &World,
    subject: &Subject,
    layout: &Layout,
    keys: &[Key],
    truths: &Truths,
) -> Result<Verdict> {
    layout.fits(&subject.shape)?;
    let one = |key: Key| {
        let _key = key.enter();
        let truth = OnceLock::new();
        let ranks = world.run(|device: Cpu<F61>, mesh| {
            let Run { start, trace, .. } = program(subject, layout, &device, &mesh, Look::Results)?;
            let truth = truth.get_or_init(|| truths.of(key, subject, start));
            let truth = truth.get().expect("just computed");
            Ok::<_, parallel::Error>(compare(&trace, truth, mesh.rank()))
        })?;
        Ok(ranks)
    };
    Ok(Verdict { window: subject.narrowed, ..under_keys((layout, subject.to_string()), keys, &one)? })
}

/// What a rank compared: tensors, elements, and the first that differ.
type Compared = (usize, usize, Option<Difference>);

/// Runs `one` under each key, all at once, and puts together what its ranks compared.
fn under_keys(
    (layout, subject): (&Layout, String),
    keys: &[Key],
    one: &(dyn Fn(Key) -> Result<Vec<Compared>> + Sync),
) -> Result<Verdict> {
    let under_all_keys: Vec<Result<_>> = std::thread::scope(|scope| {
        let runs: Vec<_> = keys.iter().map(|&key| scope.spawn(move || one(key))).collect();
        runs.into_iter().map(|run| run.join().expect("ranks' panics are errors")).collect()
    });
    let mut verdict = Verdict::of((layout, subject), keys);
    for ranks in under_all_keys {
        for (tensors, elements, difference) in ranks? {
            verdict.tensors += tensors;
            verdict.elements += elements;
            verdict.first_difference = verdict.first_difference.or(difference);
        }
    }
    verdict.equal = verdict.first_difference.is_none();
    Ok(verdict)
}

/// Writes what the layout's first step took, gave and learnt under a key: elements of the field. The folder has been
/// prepared.
///
/// # Errors
/// As [`prove`], and if a file cannot be written.
pub fn dump(subject: &Subject, layout: &Layout, key: Key, dir: &Path, entries: &[Entry]) -> Result<()> {
    layout.fits(&subject.shape)?;
    let _key = key.enter();
    let ranks = layout.world()?.run(|device: Cpu<F61>, mesh| {
        let run = program(subject, layout, &device, &mesh, Look::Dump)?;
        Ok::<_, parallel::Error>(run.seen)
    })?;
    let about = About { key: Some(key.0), layout: layout.to_string(), step: Some(0) };
    dump::write(dir, entries, ranks.into_iter().flatten().collect(), &about)
}

/// Tensors and elements compared, and the first that differ. What one has and the other lacks differs, too.
fn compare(mine: &Trace, truth: &Trace, rank: usize) -> Compared {
    let elements = truth.iter().map(|(_, x)| x.len()).sum();
    let mut first = None;
    for ((name, got), (wanted, want)) in mine.iter().zip(truth) {
        let same = got.iter().zip(want).filter(|(a, b)| a == b).count();
        let (differ, of) = (want.len().max(got.len()) - same, want.len());
        if differ > 0 || name != wanted {
            let name = if name == wanted { name.clone() } else { format!("{wanted} (seen: {name})") };
            first = Some(Difference::of(name, rank, differ, of));
            break;
        }
    }
    if first.is_none() && mine.len() != truth.len() {
        let name = format!("{} tensors where the oracle has {}", mine.len(), truth.len());
        first = Some(Difference::of(name, rank, mine.len().abs_diff(truth.len()), truth.len()));
    }
    (truth.len(), elements, first)
}
