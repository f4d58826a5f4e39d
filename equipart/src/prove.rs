//! `prove`: the whole model under a layout equals the unsplit oracle, bit for bit, in the prime field 2^61 − 1.
//!
//! For each key, both read texts, then train on ragged microbatches with a clipped norm. The program reads as a
//! generation does: texts are dealt over data ranks, prompts are fed whole and then token by token, with a cache of keys
//! and values, and logits are those of the last token fed. Compared are these, then for each step the loss, the norm²,
//! every gradient and every new weight, put together from all ranks, on every rank.
//! After a step a fresh random number is added to every weight, so that degrees, and with them the bound, do not
//! compound.
mod classifier;
mod difference;
mod locate;
mod split;
mod subject;
mod timeline;
mod trace;
mod verdict;

pub use classifier::{ClassifierSubject, certify_classifier, prove_classifier, prove_classifier_in};
pub use difference::Difference;
pub use split::Split;
pub use subject::Subject;
pub use verdict::Verdict;

pub(crate) use verdict::{LIMITS, WHAT, hexadecimal, sure};

use self::timeline::{Moment, Shown};
use self::trace::Trace;
use crate::dump::{self, About, Seen};
use crate::{Layout, Result};
use comm::{Axis, Mesh, World};
use kernels::Kernels;
use layers::{Chunk, Cx, Random, Record};
use parallel::{Entry, Trainer, deal};
use reference::Weights;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tensor::{Cpu, F61, Ids, Key};

/// What one rank saw: the weights before, and everything after.
struct Run {
    start: Weights<F61>,
    trace: Trace,
    read: Range<usize>,                 // which of all texts' logits are in the trace
    seen: Option<Seen<F61>>,            // of the first step, where that was asked for
    timeline: Vec<Moment<F61>>,         // where everything is looked at
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

/// The program on one rank: its weights before, and its trace.
fn program(
    subject: &Subject,
    split: Split,
    device: &Cpu<F61>,
    mesh: &Mesh<Cpu<F61>>,
    look: Look,
) -> parallel::Result<Run> {
    let at = split.place(device, mesh, &Random { seed: 0 });
    let mut trainer = Trainer::new(&at, &subject.shape, subject.optimizer)?;
    let mut trace = Vec::new();
    let start = dump::weights(trainer.model().params(), mesh)?.into_iter().collect();
    let record = || (look == Look::Everything).then(|| Record::new(mesh));
    let taken = |record: Option<Record<_>>| record.map(|record| record.take()).unwrap_or_default();
    let (mut seen, mut timeline, of_texts) = (None, Vec::new(), record());
    let (logits, read) = read(subject, trainer.model(), (device, mesh), of_texts.clone())?;
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
            let after = dump::after(&report, trainer.model().params(), mesh)?;
            seen = Some(Seen { after: Some(after), ..all });
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
    Ok(Run { start, trace, read, seen, timeline, built: at.built.take() })
}

/// The logits after the prompt and after each further token of this data rank's texts, fed as a generation would be; and
/// which of all texts' logits these are.
pub(crate) fn read<D: Kernels>(
    subject: &Subject,
    model: &mut Chunk<D>,
    (device, mesh): (&D, &Mesh<D>),
    record: Option<Record<D>>,
) -> parallel::Result<(Vec<D::Elem>, Range<usize>)> {
    let (vocabulary, data) = (subject.shape.vocabulary, mesh.group(Axis::Dp));
    let mine = deal(subject.texts.len(), data.rank(), data.size());
    let [before, through] = [mine.start, mine.end].map(|n| vocabulary * rows_read(&subject.texts[..n]));
    let texts = &subject.texts[mine.clone()];
    let capacity = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let mut lengths: Vec<_> = texts.iter().map(|(_, prompt)| *prompt).collect();
    let mut cx = Cx::infer(&lengths).numbered_from(mine.start).recorded(record).with_cache(capacity);
    let (mut done, mut rows) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
    while lengths.iter().any(|&n| n > 0) {
        let fed =
            texts.iter().zip(&done).zip(&lengths).flat_map(|(((ids, _), &from), n)| &ids[from..from + n]);
        let ids = Ids::new(device, &fed.copied().collect::<Vec<_>>(), vocabulary)?;
        let logits = model.logits(&cx, ids, false)?.read().unwrap_or_default();
        let fed = rows.iter_mut().zip(&lengths).filter(|(_, n)| **n > 0);
        fed.zip(logits.chunks(vocabulary)).for_each(|((rows, _), row)| rows.extend_from_slice(row));
        done.iter_mut().zip(&lengths).for_each(|(done, n)| *done += n);
        lengths = texts.iter().zip(&done).map(|((ids, _), &done)| usize::from(done < ids.len())).collect();
        cx.advance(&lengths);
    }
    Ok((rows.concat(), before..through))
}

/// For how many tokens of these texts a generation has logits: each prompt's last, and all after it.
fn rows_read(texts: &[(Vec<u32>, usize)]) -> usize {
    texts.iter().map(|(ids, prompt)| ids.len() - prompt + 1).sum()
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
pub fn certify<'a>(subject: &Subject, split: impl Into<Split<'a>>, keys: &[Key]) -> Result<Verdict> {
    let split = split.into();
    let mut verdict = prove(subject, split, keys, &Truths::default())?;
    if let Some(seen) = verdict.first_difference.take() {
        verdict.first_difference = Some(locate(subject, split, keys)?.unwrap_or(seen));
    }
    Ok(Verdict { bound_log2: subject.bound_log2(keys.len()), ..verdict })
}

/// Where a layout's program parts from the oracle under the first of these keys that tells: forward activations and
/// their gradients are looked at, too. None if nothing does.
///
/// # Errors
/// As [`prove`].
pub fn locate<'a>(
    subject: &Subject,
    split: impl Into<Split<'a>>,
    keys: &[Key],
) -> Result<Option<Difference>> {
    let split = split.into();
    for &key in keys {
        if let Some(difference) = locate_in(split.layout.world()?, subject, split, key)? {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

/// The same under one key, in a world of the layout's ranks that may be [on trial](World::on_trial).
///
/// # Errors
/// As [`prove`].
pub fn locate_in<'a>(
    world: World,
    subject: &Subject,
    split: impl Into<Split<'a>>,
    key: Key,
) -> Result<Option<Difference>> {
    let split = split.into();
    split.layout.fits(&subject.shape)?;
    locate::locate(subject, split, key, world)
}

/// Proves one layout under these keys, without the bound; the oracle's part is kept in `truths` for the next.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn prove<'a>(
    subject: &Subject,
    split: impl Into<Split<'a>>,
    keys: &[Key],
    truths: &Truths,
) -> Result<Verdict> {
    let split = split.into();
    prove_in(&split.layout.world()?, subject, split, keys, truths)
}

/// The same in a world of the layout's ranks that may be [on trial](World::on_trial), or slow.
///
/// # Errors
/// As [`prove`].
pub fn prove_in<'a>(
    world: &World,
    subject: &Subject,
    split: impl Into<Split<'a>>,
    keys: &[Key],
    truths: &Truths,
) -> Result<Verdict> {
    let split = split.into();
    split.layout.fits(&subject.shape)?;
    let one = |key: Key| {
        let _key = key.enter();
        let truth = OnceLock::new();
        let ranks = world.run(|device: Cpu<F61>, mesh| {
            let Run { start, trace, read, .. } = program(subject, split, &device, &mesh, Look::Results)?;
            let truth = truth.get_or_init(|| truths.of(key, subject, start));
            let truth = truth.get().expect("just computed");
            Ok::<_, parallel::Error>(compare(&trace, truth, read, mesh.rank()))
        })?;
        Ok(ranks)
    };
    Ok(Verdict { window: subject.narrowed, ..under_keys((&split, &subject), keys, &one)? })
}

/// What a rank compared: tensors, elements, and the first that differ.
type Compared = (usize, usize, Option<Difference>);

/// Runs `one` under each key, all at once, and puts together what its ranks compared.
fn under_keys(
    (split, subject): (&dyn Display, &dyn Display),
    keys: &[Key],
    one: &(dyn Fn(Key) -> Result<Vec<Compared>> + Sync),
) -> Result<Verdict> {
    let under_all_keys: Vec<Result<_>> = std::thread::scope(|scope| {
        let runs: Vec<_> = keys.iter().map(|&key| scope.spawn(move || one(key))).collect();
        runs.into_iter().map(|run| run.join().expect("ranks' panics are errors")).collect()
    });
    let mut verdict = Verdict::of((split, subject), keys);
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

/// Writes what the layout's first step took, gave, learnt and left under a key: elements of the field. The folder has been
/// prepared.
///
/// # Errors
/// As [`prove`], and if a file cannot be written.
pub fn dump(subject: &Subject, layout: &Layout, key: Key, dir: &Path, entries: &[Entry]) -> Result<()> {
    layout.fits(&subject.shape)?;
    let _key = key.enter();
    let ranks = layout.world()?.run(|device: Cpu<F61>, mesh| {
        let run = program(subject, layout.into(), &device, &mesh, Look::Dump)?;
        Ok::<_, parallel::Error>(run.seen)
    })?;
    let ((kind, clip), lr) = (subject.optimizer, subject.steps.first().map(|(_, lr)| *lr));
    let optimizer = lr.map(|lr| (kind, clip, lr));
    let about = About { key: Some(key.0), layout: layout.to_string(), step: Some(0), optimizer };
    dump::write(dir, entries, ranks.into_iter().flatten().collect(), &about)
}

/// Tensors and elements compared, and the first that differ. What one has and the other lacks differs, too. Of the
/// truth's first tensor, the logits, this rank has only these.
fn compare(mine: &Trace, truth: &Trace, read: Range<usize>, rank: usize) -> Compared {
    let logits = truth.iter().take(1).map(|(name, x)| (name, &x[read.clone()]));
    let truth: Vec<_> = logits.chain(truth.iter().skip(1).map(|(name, x)| (name, x.as_slice()))).collect();
    let elements = truth.iter().map(|(_, x)| x.len()).sum();
    let mut first = None;
    for ((name, got), (wanted, want)) in mine.iter().zip(&truth) {
        let same = got.iter().zip(*want).filter(|(a, b)| a == b).count();
        let (differ, of) = (want.len().max(got.len()) - same, want.len());
        if differ > 0 || name != *wanted {
            let name = if name == *wanted { name.clone() } else { format!("{wanted} (seen: {name})") };
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
