//! Proves a layout: runs its program under each key, compares what ranks give with the oracle's trace, and says how surely.
use crate::program::{START, logits_of, program, rows_read};
use crate::trace::{Compared, Judge, Trace, uncovered};
use crate::{Split, Subject, Verdict, Watch, locate};
use comm::{Axis, World};
use kernels::Meta;
use parallel::dump::{self, About};
use parallel::{At, Entry, Layout, Result, Trainer, budget, price, session};
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tensor::{Cpu, F61, Key};

/// The oracle's traces of each subject under each key, computed once and used for every layout.
#[derive(Default)]
pub struct Truths(Mutex<Vec<(Subject, Key, Arc<OnceLock<Trace>>)>>);

impl Truths {
    /// The trace under the key in force, which is this one.
    fn of(&self, key: Key, subject: &Subject, watch: &Watch) -> Result<Arc<OnceLock<Trace>>> {
        let place = {
            let mut all = self.0.lock().expect("nothing panics under this lock");
            let at =
                all.iter().position(|(of, under, _)| (of, *under) == (subject, key)).unwrap_or(all.len());
            if at == all.len() {
                all.push((subject.clone(), key, Arc::default()));
            }
            all[at].2.clone()
        };
        if place.get().is_none() {
            let start = subject.start()?;
            place.get_or_init(|| subject.truth(start, watch, &mut |_, _, _, _| ()));
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
    let mut verdict = prove_in(&world(split.layout)?, subject, split, keys, &Truths::default(), watch)?;
    if let Some(seen) = verdict.first_difference.take() {
        watch("locating the difference");
        verdict.first_difference = Some(locate::locate(subject, split, keys)?.unwrap_or(seen));
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
    budget::fits(format_args!("proving {layout}"), bytes(subject, layout)?)
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
    let ranks = price::peak_of_all(layout, dealt, |at: At<Meta<Cpu<F61>>>| {
        program(subject, &at, (&mut |_, _| (), None), &|_| ()).map(drop)
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
pub(crate) fn on_host(layout: &Layout, compared: &[(Vec<usize>, usize)]) -> u128 {
    let all = compared
        .iter()
        .flat_map(|(sizes, times)| sizes.iter().map(move |n| *n as u128 * (*times as u128 + 1)));
    let largest = compared.iter().flat_map(|(sizes, _)| sizes).max().copied().unwrap_or(0);
    (all.sum::<u128>() + layout.ranks() as u128 * largest as u128) * size_of::<F61>() as u128
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
    prove_in(&world(split.layout)?, subject, split, keys, truths, &|_| ())
}

/// Proves one layout under these keys in a world of its ranks that may be [on trial](World::on_trial), or slow; `watch` is
/// told what is being done.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn prove_in<'a>(
    world: &World,
    subject: &Subject,
    split: impl Into<Split<'a>>,
    keys: &[Key],
    truths: &Truths,
    watch: &Watch,
) -> Result<Verdict> {
    let split = split.into();
    split.layout.fits(&subject.shape)?;
    let one = |key: Key| {
        let _key = key.enter();
        let watch = |what: &str| watch(&format!("proving {split} under {:#018x}: {what}", key.0));
        let truth = truths.of(key, subject, &watch)?;
        let truth = truth.get().expect("just computed");
        let mut ranks = session::run((split.layout, world), &START, |at: At<Cpu<F61>>| {
            let mut judge = Judge::new(truth, logits_of(subject, at.mesh), at.mesh.rank());
            let mut results = |name: String, whole: Vec<_>| judge.sees(&name, &whole);
            program(subject, &split.on(at), (&mut results, None), &watch)?;
            Ok(judge.compared())
        })?;
        if ranks.iter().all(|rank| rank.first.is_none()) {
            ranks[0].first = uncovered(truth, &ranks);
        }
        Ok(ranks)
    };
    let bytes = || bytes(subject, split.layout);
    Ok(Verdict { window: subject.narrowed, ..under_keys((&split, subject), keys, bytes, &one)? })
}

/// The world of a proof, whose ranks do nothing but compute: those that share a core wait for each other's work, a minute
/// for each.
pub(crate) fn world(layout: &Layout) -> Result<World> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(layout.world()?.limit(Duration::from_mins(layout.ranks().div_ceil(cores) as u64)))
}

/// Runs `one` under each key and puts together what its ranks compared: all keys at once, or one after the other where
/// the free memory does not hold the `bytes` of each for all.
pub(crate) fn under_keys(
    (split, subject): (&dyn Display, &dyn Display),
    keys: &[Key],
    bytes: impl FnOnce() -> Result<u128>,
    one: &(dyn Fn(Key) -> Result<Vec<Compared>> + Sync),
) -> Result<Verdict> {
    let together = match keys.len() {
        n if n > 1 && !budget::holds(bytes()? * n as u128, budget::free()) => 1,
        n => n.max(1),
    };
    let mut verdict = Verdict::of((split, subject), keys);
    for keys in keys.chunks(together) {
        let under_all: Vec<Result<_>> = std::thread::scope(|scope| {
            let runs: Vec<_> = keys.iter().map(|&key| scope.spawn(move || one(key))).collect();
            runs.into_iter().map(|run| run.join().expect("ranks' panics are errors")).collect()
        });
        for ranks in under_all.into_iter().collect::<Result<Vec<_>>>()? {
            for rank in &ranks {
                verdict.tensors += rank.seen.iter().filter(|seen| **seen).count();
                verdict.elements += rank.elements;
            }
            let first = ranks.into_iter().filter_map(|rank| rank.first).min_by_key(|(place, _)| *place);
            verdict.first_difference = verdict.first_difference.or(first.map(|(_, difference)| difference));
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
    let ranks = session::run((layout, &world(layout)?), &START, |at: At<Cpu<F61>>| {
        let Some((batch, lr)) = subject.steps.first() else { return Ok(None) };
        let mut trainer = Trainer::new(&at, &subject.shape, subject.optimizer)?;
        let (report, all) = dump::step(&mut trainer, at.mesh, batch, *lr)?;
        let after = dump::after(&report, trainer.model().params(), at.mesh)?;
        Ok(Some(dump::Seen { after: Some(after), ..all }))
    })?;
    let ((kind, clip), lr) = (subject.optimizer, subject.steps.first().map(|(_, lr)| *lr));
    let optimizer = lr.map(|lr| (kind, clip, lr));
    let about = About { key: Some(key.0), layout: layout.to_string(), step: Some(0), optimizer };
    dump::write(dir, entries, ranks.into_iter().flatten().collect(), &about)
}
