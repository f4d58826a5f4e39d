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
use self::trace::{Compared, Judge, Trace};
use crate::dump::{self, About, Seen};
use crate::{Layout, Result, memory, price};
use comm::{Axis, Mesh, World};
use kernels::{Kernels, Meta};
use layers::{Builder, Chunk, Cx, Random, Record};
use parallel::{Entry, Trainer, deal};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tensor::{Cpu, F61, Ids, Key, Place, Scalar};

/// Who is told what is being done.
pub type Watch<'a> = dyn Fn(&str) + Sync + 'a;

/// The weights that a program begins with: the same under every layout.
const START: Random = Random { seed: 0 };

/// What is looked at while a program runs, as it comes about: nothing of it stays with a rank.
enum Look<'a, E: Scalar> {
    /// What is compared: whole tensors, in program order.
    Results(&'a mut dyn FnMut(String, Vec<E>)),
    /// What the first step took, gave, learnt and left.
    Dump(&'a mut Option<Seen<E>>),
    /// Everything on this rank, in program order.
    Everything(&'a mut dyn FnMut(Moment<E>)),
}

/// The program on one rank, on any device: which layers its strategies built.
fn program<D: Kernels<Wide = D>>(
    subject: &Subject,
    at: &Builder<D>,
    mut look: Look<D::Elem>,
    watch: &Watch,
) -> parallel::Result<Vec<(String, &'static str)>> {
    let (device, mesh) = (at.device, at.mesh);
    let mut trainer = Trainer::new(at, &subject.shape, subject.optimizer)?;
    let everything = matches!(look, Look::Everything(_));
    let record = || everything.then(|| Record::new(mesh));
    let taken = |record: Option<Record<D>>| record.map(|record| record.take()).unwrap_or_default();
    let watch = |what: &str| {
        if mesh.rank() == 0 {
            watch(what);
        }
    };
    let of_texts = record();
    watch("the texts");
    let logits = read(subject, trainer.model(), (device, mesh), of_texts.clone())?;
    match &mut look {
        Look::Results(see) => see("logits".into(), logits),
        Look::Dump(_) => {}
        Look::Everything(see) => {
            let shown = Shown { prefix: "texts: ".into(), seen: taken(of_texts), report: None, calls: 0 };
            timeline::moments::<D>(shown, Vec::new(), mesh, see);
        }
    }
    for (n, (batch, lr)) in subject.steps.iter().enumerate() {
        watch(&format!("step {n}"));
        let (of_step, calls) = (record(), mesh.calls_made());
        trainer.record(of_step.clone());
        let report = match &mut look {
            Look::Dump(seen) if n == 0 => {
                let (report, all) = dump::step(&mut trainer, mesh, batch, *lr)?;
                let after = dump::after(&report, trainer.model().params(), mesh)?;
                **seen = Some(Seen { after: Some(after), ..all });
                report
            }
            _ => trainer.step(batch, *lr)?,
        };
        if let Look::Everything(see) = &mut look {
            let shown =
                Shown { prefix: format!("step {n}: "), seen: taken(of_step), report: Some(&report), calls };
            timeline::moments(shown, trainer.model().params(), mesh, see);
        }
        let mut nobody = |_, _| ();
        let see = if let Look::Results(see) = &mut look { &mut **see } else { &mut nobody };
        trace::seen(see, n, &report, trainer.model().params(), device, mesh)?;
    }
    Ok(at.built.take())
}

/// The logits after the prompt and after each further token of this data rank's texts, fed as a generation would be.
pub(crate) fn read<D: Kernels>(
    subject: &Subject,
    model: &mut Chunk<D>,
    (device, mesh): (&D, &Mesh<D::Place>),
    record: Option<Record<D>>,
) -> parallel::Result<Vec<D::Elem>> {
    let (vocabulary, data) = (subject.shape.vocabulary, mesh.group(Axis::SEQUENCES));
    let mine = deal(subject.texts.len(), data.rank(), data.size());
    let texts = &subject.texts[mine.clone()];
    let capacity = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let mut lengths: Vec<_> = texts.iter().map(|(_, prompt)| *prompt).collect();
    let mut cx = Cx::infer(&lengths).numbered_from(mine.start).recorded(record).with_cache(capacity);
    let (mut done, mut rows) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
    while lengths.iter().any(|&n| n > 0) {
        let fed =
            texts.iter().zip(&done).zip(&lengths).flat_map(|(((ids, _), &from), n)| &ids[from..from + n]);
        let ids = Ids::new(device.place(), &fed.copied().collect::<Vec<_>>(), vocabulary)?;
        let logits = model.logits(&cx, ids, false)?.read().unwrap_or_default();
        let fed = rows.iter_mut().zip(&lengths).filter(|(_, n)| **n > 0);
        fed.zip(logits.chunks(vocabulary)).for_each(|((rows, _), row)| rows.extend_from_slice(row));
        done.iter_mut().zip(&lengths).for_each(|(done, n)| *done += n);
        lengths = texts.iter().zip(&done).map(|((ids, _), &done)| usize::from(done < ids.len())).collect();
        cx.advance(&lengths);
    }
    Ok(rows.concat())
}

/// Which of all texts' logits a data rank reads.
fn logits_of<P: Place>(subject: &Subject, mesh: &Mesh<P>) -> Range<usize> {
    let data = mesh.group(Axis::SEQUENCES);
    let mine = deal(subject.texts.len(), data.rank(), data.size());
    let before = |n: usize| subject.shape.vocabulary * rows_read(&subject.texts[..n]);
    before(mine.start)..before(mine.end)
}

/// For how many tokens of these texts a generation has logits: each prompt's last, and all after it.
fn rows_read(texts: &[(Vec<u32>, usize)]) -> usize {
    texts.iter().map(|(ids, prompt)| ids.len() - prompt + 1).sum()
}

/// The oracle's traces of one subject under each key, computed once and used for every layout.
#[derive(Default)]
pub struct Truths(Mutex<BTreeMap<u64, Arc<OnceLock<Trace>>>>);

impl Truths {
    /// The trace under the key in force, which is this one.
    fn of(&self, key: Key, subject: &Subject, watch: &Watch) -> Result<Arc<OnceLock<Trace>>> {
        let place = self.0.lock().expect("nothing panics under this lock").entry(key.0).or_default().clone();
        if place.get().is_none() {
            let start = subject.start()?;
            place.get_or_init(|| subject.truth(start, watch));
        }
        Ok(place)
    }
}

/// Proves one layout under these keys, and says how surely; `watch` is told what is being done.
///
/// # Errors
/// As [`prove`], and if the machine has not the memory for it, before any of it is taken.
pub fn certify<'a>(
    subject: &Subject,
    split: impl Into<Split<'a>>,
    keys: &[Key],
    watch: &Watch,
) -> Result<Verdict> {
    let split = split.into();
    check(subject, split.layout)?;
    let mut verdict = watched(&world(split.layout)?, subject, split, keys, &Truths::default(), watch)?;
    if let Some(seen) = verdict.first_difference.take() {
        watch("locating the difference");
        verdict.first_difference = Some(locate(subject, split, keys)?.unwrap_or(seen));
    }
    watch("bounding the probability of an error");
    Ok(Verdict { bound_log2: subject.bound_log2(keys.len()), ..verdict })
}

/// Whether a proof can be, and the machine has the memory for it.
///
/// # Errors
/// If the layout does not fit the model or the batch; both numbers of bytes.
pub fn check(subject: &Subject, layout: &Layout) -> Result<()> {
    layout.fits(&subject.shape)?;
    memory::fits(&format!("proving {layout}"), bytes(subject, layout)?, memory::free())
}

/// Bytes that a proof under one key holds at most: those of all ranks, and what they share.
///
/// # Errors
/// If the layout does not fit the model or the batch, or 64 bits do not count what a rank holds.
pub fn bytes(subject: &Subject, layout: &Layout) -> Result<u128> {
    let data = layout.size(Axis::SEQUENCES);
    let dealt = |rank| -> Result<Vec<_>> {
        subject.steps.iter().map(|(batch, _)| Ok(batch.dealt(rank, data)?)).collect()
    };
    let ranks = price::peak_of_all(layout, dealt, |device: &Meta<Cpu<F61>>, mesh| {
        program(subject, &layout.place(device, mesh, &START), Look::Results(&mut |_, _| ()), &|_| ())?;
        Ok(())
    })?;
    let rows = rows_read(&subject.texts);
    let compared = [
        (price::sizes(&subject.shape)?, 2 * subject.steps.len()),
        (vec![rows.saturating_mul(subject.shape.vocabulary)], 1),
    ];
    Ok(ranks.all + on_host(layout, &compared))
}

/// Bytes of the host while a proof runs: the oracle's trace of tensors of these sizes, each so many times in it, its
/// weights, and on every rank the one that is being compared.
fn on_host(layout: &Layout, compared: &[(Vec<usize>, usize)]) -> u128 {
    let all = compared
        .iter()
        .flat_map(|(sizes, times)| sizes.iter().map(move |n| *n as u128 * (*times as u128 + 1)));
    let largest = compared.iter().flat_map(|(sizes, _)| sizes).max().copied().unwrap_or(0);
    (all.sum::<u128>() + layout.ranks() as u128 * largest as u128) * size_of::<F61>() as u128
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
        if let Some(difference) = locate_in(world(split.layout)?, subject, split, key)? {
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
    prove_in(&world(split.layout)?, subject, split, keys, truths)
}

/// As [`prove`], in a world of the layout's ranks that may be [on trial](World::on_trial), or slow.
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
    watched(world, subject, split.into(), keys, truths, &|_| ())
}

/// As [`prove_in`], telling what is being done.
fn watched(
    world: &World,
    subject: &Subject,
    split: Split,
    keys: &[Key],
    truths: &Truths,
    watch: &Watch,
) -> Result<Verdict> {
    split.layout.fits(&subject.shape)?;
    let one = |key: Key| {
        let _key = key.enter();
        let watch = |what: &str| watch(&format!("proving {split} under {:#018x}: {what}", key.0));
        let truth = truths.of(key, subject, &watch)?;
        let truth = truth.get().expect("just computed");
        let ranks = world.run(|device: Cpu<F61>, mesh| {
            let mut judge = Judge::new(truth, logits_of(subject, &mesh), mesh.rank());
            let look = Look::Results(&mut |name, whole| judge.sees(&name, &whole));
            program(subject, &split.place(&device, &mesh, &START), look, &watch)?;
            Ok::<_, parallel::Error>(judge.compared())
        })?;
        Ok(ranks)
    };
    let bytes = || bytes(subject, split.layout);
    Ok(Verdict { window: subject.narrowed, ..under_keys((&split, subject), keys, bytes, &one)? })
}

/// The world of a proof, whose ranks do nothing but compute: those that share a core wait for each other's work, a minute
/// for each.
fn world(layout: &Layout) -> Result<World> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(layout.world()?.limit(Duration::from_mins(layout.ranks().div_ceil(cores) as u64)))
}

/// Runs `one` under each key and puts together what its ranks compared: all keys at once, or one after the other where
/// the free memory does not hold the `bytes` of each for all.
fn under_keys(
    (split, subject): (&dyn Display, &dyn Display),
    keys: &[Key],
    bytes: impl FnOnce() -> Result<u128>,
    one: &(dyn Fn(Key) -> Result<Vec<Compared>> + Sync),
) -> Result<Verdict> {
    let together = match keys.len() {
        n if n > 1 && !memory::holds(bytes()? * n as u128, memory::free()) => 1,
        n => n.max(1),
    };
    let mut verdict = Verdict::of((split, subject), keys);
    for keys in keys.chunks(together) {
        let under_all: Vec<Result<_>> = std::thread::scope(|scope| {
            let runs: Vec<_> = keys.iter().map(|&key| scope.spawn(move || one(key))).collect();
            runs.into_iter().map(|run| run.join().expect("ranks' panics are errors")).collect()
        });
        for (tensors, elements, difference) in
            under_all.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten()
        {
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
    let ranks = world(layout)?.run(|device: Cpu<F61>, mesh| {
        let mut seen = None;
        program(subject, &layout.place(&device, &mesh, &START), Look::Dump(&mut seen), &|_| ())?;
        Ok::<_, parallel::Error>(seen)
    })?;
    let ((kind, clip), lr) = (subject.optimizer, subject.steps.first().map(|(_, lr)| *lr));
    let optimizer = lr.map(|lr| (kind, clip, lr));
    let about = About { key: Some(key.0), layout: layout.to_string(), step: Some(0), optimizer };
    dump::write(dir, entries, ranks.into_iter().flatten().collect(), &about)
}
