//! `prove`: the whole model under a layout equals the unsplit oracle, bit for bit, in the prime field 2^61 − 1.
//!
//! For each key, both read texts (the program token by token, with a cache of keys and values), then train on ragged
//! microbatches with a clipped norm. Compared are the texts' logits, then for each step the loss, the norm², every gradient and every new weight, put together from all ranks, on every rank.
//! After a step a fresh random number is added to every weight, so that degrees, and with them the bound, do not
//! compound.
mod classifier;
mod subject;
mod trace;

pub use classifier::{ClassifierSubject, certify_classifier, prove_classifier};
pub use subject::Subject;

use self::trace::{Named, Trace};
use crate::dump::{self, About, Seen};
use crate::{Layout, Result};
use comm::{Axis, Mesh, World};
use kernels::Kernels;
use layers::{Chunk, Cx, Random};
use parallel::{Entry, Trainer};
use reference::Weights;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tensor::{Cpu, F61, Ids, Key};

/// The first tensor, in program order, that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its name, with the step.
    pub name: String,
    /// The rank that saw it.
    pub rank: usize,
    /// How many of its elements differ.
    pub differ: usize,
    /// How many it has.
    pub of: usize,
}

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The layout.
    pub layout: String,
    /// The keys, in hexadecimal.
    pub keys: Vec<String>,
    /// Whether everything was equal.
    pub equal: bool,
    /// log₂ of the probability that a wrong program passes; null where the bound says nothing, or was not asked for.
    pub bound_log2: Option<f64>,
    /// Tensors compared, under all keys on all ranks.
    pub tensors: usize,
    /// Elements compared.
    pub elements: usize,
    /// The window that was proven, where the model's was narrowed to what the short texts can show.
    pub window: Option<usize>,
    /// What differs first.
    pub first_difference: Option<Difference>,
}

/// What one rank saw: the weights before, and everything after.
struct Run<S> {
    start: Weights<S>,
    trace: Named<S>,
    seen: Option<Seen<S>>, // of the first step, where that was asked for
}

/// The layout's program on one rank, on any device: its weights before, and its trace.
fn program<D: Kernels>(
    subject: &Subject,
    layout: &Layout,
    device: &D,
    mesh: &Mesh<D>,
    dumped: bool,
) -> parallel::Result<Run<D::Elem>> {
    let at = layout.place(device, mesh, &Random { seed: 0 });
    let mut trainer = Trainer::new(&at, &subject.shape, subject.optimizer)?;
    let mut trace = Vec::new();
    let start = dump::weights(trainer.model().params(), mesh)?.into_iter().collect();
    let logits = read(&subject.texts, trainer.model(), device, subject.shape.vocabulary)?;
    trace.push(("logits".to_string(), logits));
    let mut seen = None;
    for (n, (batch, lr)) in subject.steps.iter().enumerate() {
        let report = if dumped && n == 0 {
            let (report, all) = dump::step(&mut trainer, mesh, batch, *lr)?;
            seen = Some(all);
            report
        } else {
            trainer.step(batch, *lr)?
        };
        trace::seen(&mut trace, n, &report, trainer.model().params(), device, mesh)?;
    }
    Ok(Run { start, trace, seen })
}

/// The logits of every token of every text, fed as a generation would be: prompts, then one token at a time.
fn read<D: Kernels>(
    texts: &[(Vec<u32>, usize)],
    model: &mut Chunk<D>,
    device: &D,
    vocabulary: usize,
) -> parallel::Result<Vec<D::Elem>> {
    let capacity = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let mut lengths: Vec<_> = texts.iter().map(|(_, prompt)| *prompt).collect();
    let mut cx = Cx::infer(&lengths).with_cache(capacity);
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
    let verdict = prove(subject, layout, keys, &Truths::default())?;
    Ok(Verdict { bound_log2: subject.bound_log2(keys.len()), ..verdict })
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
            let Run { start, trace, .. } = program(subject, layout, &device, &mesh, false)?;
            let truth = truth.get_or_init(|| truths.of(key, subject, start));
            let truth = truth.get().expect("just computed");
            Ok::<_, parallel::Error>(compare(&trace, truth, mesh.rank()))
        })?;
        Ok(ranks)
    };
    Ok(Verdict { window: subject.narrowed, ..under_keys(layout, keys, &one)? })
}

/// What a rank compared: tensors, elements, and the first that differ.
type Compared = (usize, usize, Option<Difference>);

/// Runs `one` under each key, all at once, and puts together what its ranks compared.
fn under_keys(
    layout: &Layout,
    keys: &[Key],
    one: &(dyn Fn(Key) -> Result<Vec<Compared>> + Sync),
) -> Result<Verdict> {
    let under_all_keys: Vec<Result<_>> = std::thread::scope(|scope| {
        let runs: Vec<_> = keys.iter().map(|&key| scope.spawn(move || one(key))).collect();
        runs.into_iter().map(|run| run.join().expect("ranks' panics are errors")).collect()
    });
    let mut verdict = Verdict {
        layout: layout.to_string(),
        keys: keys.iter().map(|k| format!("{:#018x}", k.0)).collect(),
        equal: true,
        bound_log2: None,
        tensors: 0,
        elements: 0,
        window: None,
        first_difference: None,
    };
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
        let run = program(subject, layout, &device, &mesh, true)?;
        Ok::<_, parallel::Error>(run.seen.filter(|_| mesh.group(Axis::Tp).rank() == 0))
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
            first = Some(Difference { name, rank, differ, of });
            break;
        }
    }
    if first.is_none() && mine.len() != truth.len() {
        let name = format!("{} tensors where the oracle has {}", mine.len(), truth.len());
        first = Some(Difference { name, rank, differ: mine.len().abs_diff(truth.len()), of: truth.len() });
    }
    (truth.len(), elements, first)
}

impl Verdict {
    /// The statement, in words: what was shown, how surely, and what it does not say.
    pub fn statement(&self) -> String {
        let Verdict { layout, tensors, elements, .. } = self;
        let keys = self.keys.join(" and ");
        let Some(d) = &self.first_difference else {
            let sure = match self.bound_log2 {
                Some(log2) => format!("a wrong program would pass with probability at most 2^{log2:.1}"),
                None => "these shapes are too large for the bound to say how surely".into(),
            };
            let narrow = self
                .window
                .map(|n| format!("Its window was narrowed to {n} tokens, as the texts are short.\n"));
            let narrow = narrow.unwrap_or_default();
            return format!(
                "Randomised proof: under {layout}, training equals the unsplit oracle in the field of 2^61 - 1.\n\
                 Equal bit for bit: {tensors} tensors, {elements} elements (logits, losses, norms, every gradient, \
                 every new weight), on every rank, under the keys {keys}.\n\
                 For the shapes that ran, {sure} (opaque functions taken as random).\n\
                 {narrow}It says nothing about rounding, overflow, other shapes or deadlock."
            );
        };
        format!(
            "Not equal: under {layout}, the first tensor that differs is \"{}\", rank {}: {} of {} elements \
             differ (keys {keys}).",
            d.name, d.rank, d.differ, d.of
        )
    }
}
